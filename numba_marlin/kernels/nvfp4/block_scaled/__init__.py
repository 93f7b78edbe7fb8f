"""The kernel ``block_scaled``: ``kernel`` is what to read first, ``config`` holds its sizes,
``choose`` says which of them a problem gets, ``declare`` what others want to know."""

from numba_marlin.kernels.nvfp4.block_scaled.config import BlockScaledConfig
from numba_marlin.kernels.nvfp4.block_scaled.declare import KERNEL

__all__ = ["KERNEL", "BlockScaledConfig"]
