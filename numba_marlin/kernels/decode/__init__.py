"""The kernel ``decode``: ``kernel`` is what to read first, ``config`` holds its sizes,
``choose`` says which of them a problem gets, ``declare`` what others want to know."""

from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.decode.declare import KERNEL

__all__ = ["KERNEL", "DecodeConfig"]
