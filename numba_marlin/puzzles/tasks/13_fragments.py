"""Who holds what: fragments.

A tensor-core instruction is executed by a warp together, and its matrices lie spread over the
registers of the 32 lanes. In `mma.m16n8k16` (PTX ISA, "Matrix Fragments for mma.m16n8k16") lane
4 g + t holds of the result C [16, 8], four floats:

    c0, c1: row g,     columns 2 t, 2 t + 1
    c2, c3: row g + 8, columns 2 t, 2 t + 1

Each lane of the warp has its four numbers in x[lane]. Put them in their places in y [16, 8].
"""

import numpy as np
from numba import cuda


def spec(x):
    return x.reshape(8, 4, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8).copy()


@cuda.jit
def store_fragment(x, y):
    lane = cuda.threadIdx.x
    # >>> solution
    g, t = lane // 4, lane % 4
    y[g, 2 * t] = x[lane, 0]
    y[g, 2 * t + 1] = x[lane, 1]
    y[g + 8, 2 * t] = x[lane, 2]
    y[g + 8, 2 * t + 1] = x[lane, 3]
    # >>> start
    #: g, t = lane // 4, lane % 4
    #: y[g, t] = x[lane, 0]
    # <<<


# ---- how it is checked
from numba_marlin.puzzles.judge import Case

KERNEL = "store_fragment"
HINT = "Four stores a lane. The picture of a right answer is the fragment map itself."
CASES = [Case({"x": np.arange(128, dtype=np.float32).reshape(32, 4)})]
RULES = []
