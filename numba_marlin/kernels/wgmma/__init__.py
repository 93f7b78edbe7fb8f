"""The kernel ``wgmma``: ``kernel`` is what to read first, ``config`` holds its sizes,
``choose`` says which of them a problem gets, ``declare`` what others want to know."""

from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.kernels.wgmma.declare import KERNEL

__all__ = ["KERNEL", "WgmmaConfig"]
