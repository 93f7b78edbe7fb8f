"""Many writers, one sum.

`y[i] += v` is a load, an addition and a store. When threads of two blocks do it to one element, one
of the two additions may be lost. An atomic does the three as one: cuda.atomic.add(y, i, v).

Count how often each number from 0 to 7 is in x. y begins as zeros. (Atomics on one address wait for
each other, and on floats their order is not the same in every run: keep them for where they fit.)
"""

import numpy as np
from numba import cuda


def spec(x):
    return np.bincount(x, minlength=8).astype(np.int32)


@cuda.jit
def histogram(x, y):
    i = cuda.grid(1)
    if i < x.size:
        # >>> solution
        cuda.atomic.add(y, x[i], 1)
        # >>> start
        #: y[x[i]] += 1
        # <<<


# ---- how it is checked
from numba_marlin.puzzles.judge import Case

_DRAWN = np.random.default_rng(3).integers(0, 8, 200).astype(np.int32)
KERNEL = "histogram"
HINT = "One line: cuda.atomic.add(array, index, value)."
CASES = [Case({"x": _DRAWN}, grid=(7,), zeroed=("y",))]
RULES = []
