"""The kernel ``block_mma``: ``kernel`` is what to read first, ``config`` holds its sizes."""

from numba_marlin.kernels.nvfp4.block_mma.config import BlockMmaConfig
from numba_marlin.kernels.nvfp4.block_mma.kernel import KERNEL

__all__ = ["KERNEL", "BlockMmaConfig"]
