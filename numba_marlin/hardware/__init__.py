"""What GPUs are, as plain numbers: the only copy of every limit, size and rate in the package.

``limits``
    what holds on every GPU from compute capability 8.0 on: lanes of a warp, threads of a block,
    registers of a thread, what CUDA reserves of shared memory, sizes of a tensor map.
``architectures``
    one row per compute capability: what an SM holds, what a block may have, which targets run
    there and which instructions its tensor cores have.
``devices``
    one row per GPU: SMs, memory, L2, clock and peak rates, and where each figure comes from.
    ``driver.describe`` fills such a row from a real GPU.
``targets``
    the names that ptxas takes, derived from the architectures.

A new GPU is one row in ``devices``; a new architecture is one row in ``architectures``. This room
imports nothing but the standard library, so that every other room may import it.
"""
