"""Shared memory and the barrier.

The threads of a block share a fast memory: cuda.shared.array(SIZE, type). A thread may read there
what another one wrote, but only after a barrier, cuda.syncthreads(), that both come to: the warps
of a block do not run in step.

Reverse x within a block of 64 threads. The kernel below forgets something. On a GPU it may give the
right answer for years.
"""

import numpy as np
from numba import cuda


def spec(x):
    return x[::-1].copy()


@cuda.jit
def reverse(x, y):
    tile = cuda.shared.array(64, np.float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    # >>> solution
    cuda.syncthreads()
    # >>> start
    # <<<
    y[i] = tile[63 - i]


# ---- how it is checked
from numba_marlin.puzzles.judge import Case

KERNEL = "reverse"
HINT = "One line, between the store to the tile and the load from it."
CASES = [Case({"x": np.arange(64, dtype=np.float32)}, block=(64,))]
RULES = []
