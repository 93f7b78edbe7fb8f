"""Integers to floats without a conversion.

Conversions are slow; logic is fast. The fp16 number 1024 is 0x6400, and its last bits count in
steps of one: 0x6400 | code is 1024 + code. So one `lop3` makes two fp16 numbers of two codes, and
one subtraction, of 1024 + 8, makes them weights: exactly.

Each word of w holds two codes, in bits 0 to 3 and 16 to 19; what is in other bits must not matter.
y gets a word with the two fp16 weights. ptx.lop3(a, b, c, table=0xEA) is a & b | c, bit by bit;
ptx.sub_f16x2(a, b) subtracts two halves from two halves.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx


def spec(w):
    codes = np.stack([w & 15, (w >> 16) & 15], axis=1)
    return (codes - 8).astype(np.float16).view(np.int32).reshape(-1)


@cuda.jit
def dequantize(w, y):
    i = cuda.grid(1)
    # >>> solution
    both = ptx.lop3(w[i], 0x000F000F, 0x64006400, table=0xEA)
    y[i] = ptx.sub_f16x2(both, 0x64086408)
    # >>> start
    #: y[i] = w[i]  # 0x6400 is 1024 in fp16; 0x6408 is 1032
    # <<<


# ---- how it is checked
from numba_marlin.puzzles.judge import Case
from numba_marlin.puzzles.rules import uses, without

_WORDS = np.random.default_rng(1).integers(-(2**31), 2**31, 64).astype(np.int32)
KERNEL = "dequantize"
SHOW = "halves"
HINT = "lop3 with the mask 0x000F000F and 0x64006400, then minus 0x64086408."
CASES = [Case({"w": _WORDS}, grid=(2,))]
RULES = [
    uses("lop3", "one instruction does & and |"),
    uses("sub", "the subtraction of 1032 is sub.f16x2"),
    without("cvt.rn.f16", "no conversion is needed"),
]
