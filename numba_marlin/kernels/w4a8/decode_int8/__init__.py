"""The kernel ``decode_int8``: that of ``kernels.w4a8.few_rows`` for int8 activations."""

from numba_marlin.kernels.w4a8.decode_int8.declare import KERNEL
from numba_marlin.kernels.w4a8.few_rows.config import DecodeInt8Config

__all__ = ["KERNEL", "DecodeInt8Config"]
