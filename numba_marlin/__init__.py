"""FP16 x INT4 matrix multiplication (Marlin) written in Python with Numba and inline PTX."""

__version__ = "0.1.0"
