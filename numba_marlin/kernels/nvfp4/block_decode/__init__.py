"""The kernel ``block_decode``: ``kernel`` is what to read first, ``config`` holds its sizes,
``choose`` says which of them a problem gets, ``declare`` what others want to know."""

from numba_marlin.kernels.nvfp4.block_decode.config import BlockDecodeConfig
from numba_marlin.kernels.nvfp4.block_decode.declare import KERNEL

__all__ = ["KERNEL", "BlockDecodeConfig"]
