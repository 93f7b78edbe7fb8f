"""Codes into Marlin's words and back, on a GPU: no rung of a ladder, because nothing is multiplied.
``words`` has the device programs in plain Numba, ``file_words`` those that read the words of
checkpoint files; ``definitions`` says how they are made and launched, ``execution.packing``
launches them. ``hostloops`` has the same for the CPU; ``formats.marlin`` and ``formats.streams``
specify the bytes of both. Importing this imports no Numba."""

from numba_marlin.kernels.packing.definitions import PACK, READ_WORDS, UNPACK, CodeBits, FileWords

__all__ = ["PACK", "READ_WORDS", "UNPACK", "CodeBits", "FileWords"]
