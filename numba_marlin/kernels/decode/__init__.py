"""The kernel ``decode``: ``kernel`` is what to read first, ``config`` holds its sizes."""

from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.decode.kernel import KERNEL

__all__ = ["KERNEL", "DecodeConfig"]
