"""Eight codes in a word.

A 4-bit weight is a code from 0 to 15. Eight of them are in an int32: code p is in bits 4 p to
4 p + 3. The weight is (code - 8) * scale.

Unpack: w [n / 8] words, y [n] floats. A thread does one word, all eight codes of it. Words are
signed; what does that do to a shift to the right?
"""

import numpy as np
from numba import cuda


def spec(w, scale):
    codes = w[:, None] >> (4 * np.arange(8)) & 15
    return ((codes - 8) * scale[0]).astype(np.float32).reshape(-1)


@cuda.jit
def unpack(w, scale, y):
    i = cuda.grid(1)
    # >>> solution
    if i < w.size:
        for p in range(8):
            y[8 * i + p] = ((w[i] >> (4 * p)) & 15) - 8
            y[8 * i + p] *= scale[0]
    # >>> start
    #: if i < w.size:
    #:     y[8 * i] = 0
    # <<<


# ---- how it is checked
from numba_marlin.puzzles.judge import Case

_WORDS = np.random.default_rng(0).integers(-(2**31), 2**31, 100).astype(np.int32)
KERNEL = "unpack"
HINT = "(w[i] >> 4 * p) & 15: the mask removes the copies of the sign that the shift brings in."
CASES = [Case({"w": _WORDS, "scale": np.array([0.5], np.float32)}, grid=(4,))]
RULES = []
