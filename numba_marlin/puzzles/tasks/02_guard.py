"""More threads than elements.

Threads come in blocks of a fixed size, and data seldom fit. Threads that have nothing to do must
leave memory alone: what lies behind an array belongs to somebody else. A GPU often says nothing
about it; this machine does.

One block of 64 threads is launched, and x has fewer elements. Double every one.
"""

from numba import cuda


def spec(x):
    return 2 * x


@cuda.jit
def double(x, y):
    i = cuda.threadIdx.x
    # >>> solution
    if i < x.size:
        y[i] = 2 * x[i]
    # >>> start
    #: y[i] = 2 * x[i]
    # <<<


# ---- how it is checked
import numpy as np

from numba_marlin.puzzles.judge import Case

KERNEL = "double"
HINT = "x.size is the number of elements (x.shape[0] too). `if` works as ever."
CASES = [Case({"x": np.arange(size, dtype=np.int32)}, block=(64,)) for size in (50, 64, 1)]
RULES = []
