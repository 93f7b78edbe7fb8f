"""The kernel ``tcgen05``: ``kernel`` is what to read first, ``config`` holds its sizes,
``choose`` says which of them a problem gets, ``declare`` what others want to know."""

from numba_marlin.kernels.nvfp4.tcgen05.config import Tcgen05Config
from numba_marlin.kernels.nvfp4.tcgen05.declare import KERNEL

__all__ = ["KERNEL", "Tcgen05Config"]
