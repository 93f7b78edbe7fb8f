"""What GPUs are, as plain numbers: the only copy of every limit, size and rate in the package.

``limits``
    limits of every GPU of compute capability 8.0 or higher: lanes per warp, threads per block,
    registers per thread, shared memory that CUDA reserves, sizes of a tensor map.
``architectures``
    one row per compute capability: limits of an SM and of a block, the targets that run there, and
    the instructions of its tensor cores.
``devices``
    one row per GPU: SMs, memory, L2, clock and peak rates, and the source of each figure.
    ``driver.describe`` fills such a row from a real GPU.
``targets``
    the target names of ptxas, derived from the architectures.

A new GPU is one row in ``devices``; a new architecture is one row in ``architectures``. This room
imports nothing but the standard library, so that every other room may import it.
"""
