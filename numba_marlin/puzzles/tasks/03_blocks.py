"""Many blocks.

A block has at most 1,024 threads, a GPU has room for hundreds of thousands: a launch is a grid of
blocks. cuda.blockIdx.x is the block's number, cuda.blockDim.x the number of threads in each.

Blocks of 32 threads are launched, enough of them for all of x. Square every element.
"""

from numba import cuda


def spec(x):
    return x * x


@cuda.jit
def square(x, y):
    # >>> solution
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < x.size:
        y[i] = x[i] * x[i]
    # >>> start
    #: i = cuda.threadIdx.x
    #: if i < x.size:
    #:     y[i] = x[i] * x[i]
    # <<<


# ---- how it is checked
import numpy as np

from numba_marlin.puzzles.judge import Case

KERNEL = "square"
HINT = "Block 0 does elements 0 to 31, block 1 elements 32 to 63. (cuda.grid(1) is this number.)"
CASES = [
    Case({"x": np.arange(size, dtype=np.int32)}, grid=(-(-size // 32),)) for size in (100, 32, 65)
]
RULES = []
