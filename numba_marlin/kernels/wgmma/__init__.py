"""The kernel ``wgmma``: ``kernel`` is what to read first, ``config`` holds its sizes."""

from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.kernels.wgmma.kernel import KERNEL

__all__ = ["KERNEL", "WgmmaConfig"]
