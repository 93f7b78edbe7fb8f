"""What numba-cuda 0.30 still asks of NumPy, and NumPy 2.5 no longer has."""

import numpy


def restore_row_stack() -> None:
    """numba-cuda looks up ``numpy.row_stack`` before its first kernel (NVIDIA/numba-cuda#907: "will
    not be fixed"). It always was ``vstack`` under another name."""
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack
