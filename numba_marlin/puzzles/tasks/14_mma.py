"""A product by tensor cores.

`mma.m16n8k16` multiplies A [16, 16] by B [16, 8] in one instruction of a warp. Lane 4 g + t holds
(every register is a pair of fp16 numbers, the first in the low half):

    a0: row g,     k 2 t, 2 t + 1          b0: column g, k 2 t, 2 t + 1
    a1: row g + 8, k 2 t, 2 t + 1          b1: column g, k 2 t + 8, 2 t + 9
    a2: row g,     k 2 t + 8, 2 t + 9
    a3: row g + 8, k 2 t + 8, 2 t + 9

a is A as words of two neighbours in a row: a[row, k // 2]. b is the transpose of B likewise:
b[column, k // 2]. Load the fragments, multiply once, store C as in the last puzzle.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx


def spec(a, b):
    return (a.view(np.float16) @ b.view(np.float16).T).astype(np.float32)


@cuda.jit
def mma(a, b, y):
    lane = cuda.threadIdx.x
    g, t = lane // 4, lane % 4
    zeros = (np.float32(0), np.float32(0), np.float32(0), np.float32(0))
    # >>> solution
    a_fragment = (a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4])
    b_fragment = (b[g, t], b[g, t + 4])
    # >>> start
    #: a_fragment = (a[g, t], a[g, t], a[g, t], a[g, t])
    #: b_fragment = (b[g, t], b[g, t])
    # <<<
    c = ptx.mma_m16n8k16_f32_f16(a_fragment, b_fragment, zeros)
    y[g, 2 * t], y[g, 2 * t + 1] = c[0], c[1]
    y[g + 8, 2 * t], y[g + 8, 2 * t + 1] = c[2], c[3]


# ---- how it is checked
from numba_marlin.puzzles.judge import Case

_DRAWN = np.random.default_rng(2)
KERNEL = "mma"
HINT = "k 2 t, 2 t + 1 is word t of a row; k 2 t + 8, 2 t + 9 is word t + 4."
CASES = [
    Case(
        {
            "a": _DRAWN.integers(-3, 4, (16, 16)).astype(np.float16).view(np.int32),
            "b": _DRAWN.integers(-3, 4, (8, 16)).astype(np.float16).view(np.int32),
        }
    )
]
RULES = []
