"""The kernel ``tcgen05``: ``kernel`` is what to read first, ``config`` holds its sizes."""

from numba_marlin.kernels.nvfp4.tcgen05.config import Tcgen05Config
from numba_marlin.kernels.nvfp4.tcgen05.kernel import KERNEL

__all__ = ["KERNEL", "Tcgen05Config"]
