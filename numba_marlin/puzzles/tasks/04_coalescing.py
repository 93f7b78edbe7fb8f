"""Neighbours read neighbours.

The threads of a block are run in warps of 32, numbered along threadIdx.x. What a warp reads in one
instruction is fetched from memory in sectors of 32 bytes: 32 neighbouring floats are 4 sectors, 32
floats in 32 different rows are 32 sectors, eight times the traffic for the same numbers.

Add the vector v to each row of x, a matrix of 32 x 32. One block of 32 x 32 threads is launched;
which thread does which element is yours to choose. The kernel below is right and slow: x is read in
1,024 sectors. 128 are enough.
"""

from numba import cuda


def spec(x, v):
    return x + v


@cuda.jit
def add_to_rows(x, v, y):
    # >>> solution
    row, column = cuda.threadIdx.y, cuda.threadIdx.x
    # >>> start
    #: row, column = cuda.threadIdx.x, cuda.threadIdx.y
    # <<<
    y[row, column] = x[row, column] + v[column]


# ---- how it is checked
import numpy as np

from numba_marlin.puzzles.judge import Case
from numba_marlin.puzzles.rules import at_most_sectors

KERNEL = "add_to_rows"
HINT = "x[row, column] and x[row, column + 1] are neighbours in memory; so are threadIdx.x and + 1."
CASES = [
    Case(
        {
            "x": np.arange(1024, dtype=np.float32).reshape(32, 32),
            "v": np.arange(32, dtype=np.float32),
        },
        block=(32, 32),
    )
]
RULES = [at_most_sectors(128, "x", "let a warp's 32 threads read 32 neighbours")]
