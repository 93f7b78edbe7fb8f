"""A sum by a block.

128 numbers, 128 threads, one sum. One thread that adds them all takes 128 steps; a tree takes
seven: in each, the first half of what is left adds the second half to itself, and all threads meet
at a barrier.

Write the loop. The barrier must be reached by all threads, so it must not stand inside an `if` that
only some of them enter.
"""

import numpy as np
from numba import cuda

THREADS = 128


def spec(x):
    return x.reshape(-1, THREADS).sum(axis=1)


@cuda.jit
def block_sum(x, y):
    part = cuda.shared.array(THREADS, np.float32)
    i = cuda.threadIdx.x
    part[i] = x[cuda.blockIdx.x * THREADS + i]
    cuda.syncthreads()
    # >>> solution
    half = THREADS // 2
    while half > 0:
        if i < half:
            part[i] += part[i + half]
        cuda.syncthreads()
        half //= 2
    # >>> start
    #: half = THREADS // 2  # then 32, 16, ... 1
    # <<<
    if i == 0:
        y[cuda.blockIdx.x] = part[0]


# ---- how it is checked
from numba_marlin.puzzles.judge import Case

KERNEL = "block_sum"
HINT = "while half > 0: threads i < half add part[i + half] to part[i]; barrier; half //= 2."
CASES = [
    Case({"x": (np.arange(size) % 13).astype(np.float32)}, (size // THREADS,), (THREADS,))
    for size in (128, 384)
]
RULES = []
