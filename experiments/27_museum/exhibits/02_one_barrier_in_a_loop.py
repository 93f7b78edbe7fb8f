"""One barrier in a loop that needs two."""

import numpy as np
from numba import cuda, float32

from numba_marlin import judge

ISSUES = ("NVIDIA/cuml#6578",)
SEEN = "A product of a matrix and a vector by one block, `_block_gemv`, could give wrong rows."
CAUSE = """All threads write their part, meet, and one thread adds the parts up. The others are
already in the next turn of the loop, and overwrite parts that it is still to read."""
FIX = "A second barrier at the end of each turn."
KIND = "race"
THREADS = 64

task = judge.Task(
    title="matrix by vector, one block",
    sizes={"m": judge.Size(1, 4), "k": judge.Size(1, 150)},
    arguments=[
        judge.Input("a", "float32", ("m", "k")),
        judge.Input("x", "float32", ("k",)),
        judge.Output("y", "float32", ("m",)),
    ],
    reference=lambda a, x: a @ x,
    bound=lambda a, x, k: judge.sum_bound(k + THREADS, np.abs(a) @ np.abs(x)),
    grid=1,
    block=THREADS,
)


@cuda.jit
def broken(a, x, y):
    parts = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    for row in range(a.shape[0]):
        part = float32(0)
        for i in range(t, a.shape[1], THREADS):
            part += a[row, i] * x[i]
        parts[t] = part
        cuda.syncthreads()
        if t == 0:
            total = float32(0)
            for other in range(THREADS):
                total += parts[other]
            y[row] = total


@cuda.jit
def fixed(a, x, y):
    parts = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    for row in range(a.shape[0]):
        part = float32(0)
        for i in range(t, a.shape[1], THREADS):
            part += a[row, i] * x[i]
        parts[t] = part
        cuda.syncthreads()
        if t == 0:
            total = float32(0)
            for other in range(THREADS):
                total += parts[other]
            y[row] = total
        cuda.syncthreads()
