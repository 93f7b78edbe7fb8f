"""The kernel ``decode_int8``: few rows of int8 activations. ``kernel`` is what to read first,
``multiply`` its main loop, ``finish`` the last scales; the rest is ``kernels.decode``."""

from numba_marlin.kernels.w4a8.decode_int8.config import DecodeInt8Config
from numba_marlin.kernels.w4a8.decode_int8.declare import KERNEL

__all__ = ["KERNEL", "DecodeInt8Config"]
