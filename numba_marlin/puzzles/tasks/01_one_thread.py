"""A thread, an element.

A kernel is a function that many threads run at once. All run the same lines; what differs is
cuda.threadIdx.x, the thread's number in its block.

One block is launched, with as many threads as x has elements. Add 10 to every element: each thread
does one. There is no loop to write.
"""

from numba import cuda


def spec(x):
    return x + 10


@cuda.jit
def add_ten(x, y):
    # >>> solution
    i = cuda.threadIdx.x
    y[i] = x[i] + 10
    # >>> start
    #: pass  # y[?] = x[?] + 10
    # <<<


# ---- how it is checked
import numpy as np

from numba_marlin.puzzles.judge import Case

KERNEL = "add_ten"
HINT = "i = cuda.threadIdx.x is a number from 0 to 31; it may be used as an index."
CASES = [Case({"x": np.arange(size, dtype=np.float32)}, block=(size,)) for size in (32, 64)]
RULES = []
