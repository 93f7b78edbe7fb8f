"""The kernel ``tiled``: ``kernel`` is a plain Numba file, to be read and copied; ``declare`` says
what others want to know of it. Importing this imports no Numba."""

from numba_marlin.kernels.tiled.declare import KERNEL, TiledConfig

__all__ = ["KERNEL", "TiledConfig"]
