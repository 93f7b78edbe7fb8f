"""The kernel ``ampere``: ``kernel`` is what to read first, ``config`` holds its sizes."""

from numba_marlin.kernels.ampere.config import AmpereConfig
from numba_marlin.kernels.ampere.kernel import KERNEL

__all__ = ["KERNEL", "AmpereConfig"]
