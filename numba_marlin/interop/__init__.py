"""Arrays of other libraries: NumPy, CuPy, torch, Numba, and whatever speaks
``__cuda_array_interface__`` or DLPack.

Imports NumPy; a library is only ever touched when an object of it was passed in, so none of them is
a dependency. ``arrays.view`` says what an array is (where, shape, strides), ``arrays.empty_like``
makes one of the same kind.
"""
