"""The kernel ``naive``: ``kernel`` is a plain Numba file, to be read and copied; ``declare`` says
what others want to know of it. Importing this imports no Numba."""

from numba_marlin.kernels.naive.declare import KERNEL, NaiveConfig

__all__ = ["KERNEL", "NaiveConfig"]
