"""The kernel ``wgmma_int8``: ``kernel`` is what to read first, ``config`` holds its sizes,
``choose`` says which of them a problem gets, ``declare`` what others want to know."""

from numba_marlin.kernels.w4a8.wgmma_int8.config import WgmmaInt8Config
from numba_marlin.kernels.w4a8.wgmma_int8.declare import KERNEL

__all__ = ["KERNEL", "WgmmaInt8Config"]
