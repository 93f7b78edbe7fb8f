"""The kernel ``block_decode``: ``kernel`` is what to read first, ``config`` holds its sizes."""

from numba_marlin.kernels.nvfp4.block_decode.config import BlockDecodeConfig
from numba_marlin.kernels.nvfp4.block_decode.kernel import KERNEL

__all__ = ["KERNEL", "BlockDecodeConfig"]
