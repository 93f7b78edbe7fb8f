"""Bank conflicts.

Shared memory has 32 banks, 4 bytes wide: word i is in bank i % 32. Lanes of a warp that read
different words of the same bank wait for each other. A column of a tile with 32 floats in a row
lies in one bank: 32 turns where one would do.

Transpose x [32, 32] through shared memory, with reads and writes of global memory that are
coalesced, and without a conflict. The kernel below has them; one character mends it.
"""

import numpy as np
from numba import cuda


def spec(x):
    return x.T.copy()


@cuda.jit
def transpose(x, y):
    # >>> solution
    tile = cuda.shared.array((32, 33), np.float32)
    # >>> start
    #: tile = cuda.shared.array((32, 32), np.float32)
    # <<<
    c, r = cuda.threadIdx.x, cuda.threadIdx.y
    tile[r, c] = x[r, c]
    cuda.syncthreads()
    y[r, c] = tile[c, r]


# ---- how it is checked
from numba_marlin.puzzles.judge import Case
from numba_marlin.puzzles.rules import at_most_sectors, no_bank_conflicts

KERNEL = "transpose"
HINT = "With rows of 33 words, the elements of a column are in 32 different banks."
CASES = [Case({"x": np.arange(1024, dtype=np.float32).reshape(32, 32)}, block=(32, 32))]
RULES = [
    at_most_sectors(128, "x", "let a warp's 32 threads read 32 neighbours"),
    at_most_sectors(128, "y", "let a warp's 32 threads write 32 neighbours"),
    no_bank_conflicts,
]
