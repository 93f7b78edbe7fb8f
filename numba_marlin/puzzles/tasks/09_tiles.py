"""Tiles in shared memory.

In the last puzzle 16 threads of a row each read the same a[row, i] from global memory. Let the
block copy a tile of 16 x 16 of a and of b to shared memory first, once, then multiply from there:
16 times less traffic. Then the next tiles.

Two barriers a turn: nobody multiplies before the tiles are complete, and nobody overwrites a tile
that another warp still reads. Here all sides are multiples of 16.
"""

import numpy as np
from numba import cuda


def spec(a, b):
    return a @ b


@cuda.jit
def tiled_matmul(a, b, y):
    a_tile = cuda.shared.array((16, 16), np.float32)
    b_tile = cuda.shared.array((16, 16), np.float32)
    c, r = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.blockIdx.x * 16 + c, cuda.blockIdx.y * 16 + r
    total = np.float32(0)
    for first in range(0, a.shape[1], 16):
        # >>> solution
        a_tile[r, c] = a[row, first + c]
        b_tile[r, c] = b[first + r, column]
        cuda.syncthreads()
        for i in range(16):
            total += a_tile[r, i] * b_tile[i, c]
        cuda.syncthreads()
        # >>> start
        #: for i in range(16):
        #:     total += a[row, first + i] * b[first + i, column]
        # <<<
    y[row, column] = total


# ---- how it is checked
from numba_marlin.puzzles.judge import Case
from numba_marlin.puzzles.rules import at_most_sectors


def _case(m, n, k):
    drawn = np.random.default_rng(m * n * k)
    a, b = (drawn.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    return Case({"a": a, "b": b}, (n // 16, m // 16), (16, 16))


KERNEL = "tiled_matmul"
HINT = "Thread (r, c) copies a[row, first + c] and b[first + r, column] to [r, c] of the tiles."
CASES = [_case(32, 16, 48)]
RULES = [
    at_most_sectors(192, "a", "read each element of the tile once, to shared memory"),
    at_most_sectors(192, "b", "read each element of the tile once, to shared memory"),
]
