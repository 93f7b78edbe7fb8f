"""The kernel ``decode_fp8``: that of ``kernels.w4a8.few_rows`` for e4m3 activations."""

from numba_marlin.kernels.w4a8.decode_fp8.declare import KERNEL
from numba_marlin.kernels.w4a8.few_rows.config import DecodeFp8Config

__all__ = ["KERNEL", "DecodeFp8Config"]
