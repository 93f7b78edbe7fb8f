"""The kernel ``buffered``: ``kernel`` is a plain Numba file, to be read and copied; ``declare``
says what others want to know of it. Importing this imports no Numba."""

from numba_marlin.kernels.buffered.declare import KERNEL, BufferedConfig

__all__ = ["KERNEL", "BufferedConfig"]
