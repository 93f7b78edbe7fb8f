"""Restores a function of NumPy that numba-cuda 0.30 requires and NumPy 2.5 lacks."""

import numpy


def restore_row_stack() -> None:
    """Define ``numpy.row_stack``, another name of ``vstack``, if NumPy lacks it. numba-cuda looks
    it up before its first kernel (NVIDIA/numba-cuda#907: "will not be fixed")."""
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack
