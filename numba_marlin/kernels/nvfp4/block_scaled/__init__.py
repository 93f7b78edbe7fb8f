"""The kernel ``block_scaled``: ``kernel`` is what to read first, ``config`` holds its sizes."""

from numba_marlin.kernels.nvfp4.block_scaled.config import BlockScaledConfig
from numba_marlin.kernels.nvfp4.block_scaled.kernel import KERNEL

__all__ = ["KERNEL", "BlockScaledConfig"]
