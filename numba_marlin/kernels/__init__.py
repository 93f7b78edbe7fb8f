"""The kernels: a ladder of device programs, one idea a rung, each a module that exports ``KERNEL:
KernelDefinition``.

A module here imports ``layout`` (whose maps it consumes) and its neighbours in this room, and
nothing else of the package: no compiler, no numba, no CUDA. What a kernel needs of a compiler it
gets as ``lang`` when its body is made (``definition``).
"""
