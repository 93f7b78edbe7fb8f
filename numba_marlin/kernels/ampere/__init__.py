"""The kernel ``ampere``: ``kernel`` is what to read first, ``config`` holds its sizes,
``choose`` says which of them a problem gets, ``declare`` what others want to know."""

from numba_marlin.kernels.ampere.config import AmpereConfig
from numba_marlin.kernels.ampere.declare import KERNEL

__all__ = ["KERNEL", "AmpereConfig"]
