"""Codes into Marlin's words and back, on a GPU: no rung of a ladder, because nothing is multiplied.
``kernel`` has the device programs in plain Numba, ``definitions`` how they are made and launched,
``execution.packing`` launches them. ``hostloops`` has the same for the CPU; ``formats.marlin``
specifies the bytes of both. Importing this imports no Numba."""

from numba_marlin.kernels.packing.definitions import PACK, UNPACK, CodeBits

__all__ = ["PACK", "UNPACK", "CodeBits"]
