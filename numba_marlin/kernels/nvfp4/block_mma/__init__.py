"""The kernel ``block_mma``: ``kernel`` is what to read first, ``config`` holds its sizes,
``choose`` says which of them a problem gets, ``declare`` what others want to know."""

from numba_marlin.kernels.nvfp4.block_mma.config import BlockMmaConfig
from numba_marlin.kernels.nvfp4.block_mma.declare import KERNEL

__all__ = ["KERNEL", "BlockMmaConfig"]
