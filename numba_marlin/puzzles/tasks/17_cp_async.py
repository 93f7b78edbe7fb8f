"""Asynchronous copies.

`cp.async` copies 16 bytes from global to shared memory and does not wait: the thread goes on, no
register is needed on the way. A thread closes a group of its copies with
ptx.cp_async_commit_group(), and ptx.cp_async_wait_group(n=...) waits until all but the thread's n
latest groups have arrived; n=0: all. Other threads' copies need a barrier after that.

Here a block of 64 threads brings 512 halves to shared memory, 8 each, and reads them in the
opposite order. Something is missing.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx


def spec(x):
    return x[::-1].copy()


@cuda.jit
def copied(x, y):
    tile = cuda.shared.array(512, np.float16, alignment=16)
    i = cuda.threadIdx.x
    ptx.cp_async_16(ptx.cvta_to_shared(tile, 8 * i), ptx.cvta_to_global(x, 8 * i))
    # >>> solution
    ptx.cp_async_commit_group()
    ptx.cp_async_wait_group(n=0)
    cuda.syncthreads()
    # >>> start
    #: cuda.syncthreads()
    # <<<
    for j in range(i, 512, 64):
        y[j] = tile[511 - j]


# ---- how it is checked
from numba_marlin.puzzles.judge import Case
from numba_marlin.puzzles.rules import uses

KERNEL = "copied"
HINT = "Commit, wait, barrier, in this order: each thread waits for its own copies only."
CASES = [Case({"x": np.arange(512).astype(np.float16)}, block=(64,))]
RULES = [uses("cp.async", "nothing is copied asynchronously: ptx.cp_async_16")]
