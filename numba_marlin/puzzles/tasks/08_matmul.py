"""A product of matrices, a thread an output.

y[row, column] is the sum over i of a[row, i] * b[i, column]. Blocks of 16 x 16 threads cover y, and
y's sides are no multiples of 16. This is the first rung of the ladder that leads to Marlin: its
kernel `naive` is this loop over 4-bit weights.
"""

import numpy as np
from numba import cuda


def spec(a, b):
    return a @ b


@cuda.jit
def matmul(a, b, y):
    column = cuda.blockIdx.x * 16 + cuda.threadIdx.x
    row = cuda.blockIdx.y * 16 + cuda.threadIdx.y
    # >>> solution
    if row < y.shape[0] and column < y.shape[1]:
        total = np.float32(0)
        for i in range(a.shape[1]):
            total += a[row, i] * b[i, column]
        y[row, column] = total
    # >>> start
    #: pass
    # <<<


# ---- how it is checked
from numba_marlin.puzzles.judge import Case


def _case(m, n, k):
    drawn = np.random.default_rng(m * n * k)
    a, b = (drawn.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    return Case({"a": a, "b": b}, (-(-n // 16), -(-m // 16)), (16, 16))


KERNEL = "matmul"
HINT = "Start with total = np.float32(0): a plain 0 would make the sum a float64, 32 times slower."
CASES = [_case(16, 16, 8), _case(20, 37, 5)]
RULES = []
