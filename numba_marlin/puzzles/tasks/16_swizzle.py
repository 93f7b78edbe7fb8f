"""The XOR swizzle.

A tile with rows of 64 halves (128 bytes) puts every row's first 16 bytes in the same four banks:
`ldmatrix` of 8 rows is 8 turns. Padding helps and wastes room (and TMA cannot do it). Marlin's way:
chunk c (16 bytes) of row r is kept at place c ^ (r % 8) of its row. Each row is only permuted, and
the 8 rows of a column of chunks are in 8 different places.

Writers and readers must agree. Below, the writer swizzles. Mend the reader: y gets the fragments of
all four 16 x 16 tiles, as in the last puzzle.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx


def spec(a):
    words = a.view(np.int32)
    tiles = [words[:, 8 * i : 8 * i + 8] for i in range(4)]
    quarters = [[w[:8, :4], w[8:, :4], w[:8, 4:], w[8:, 4:]] for w in tiles]
    return np.stack([np.stack([q.reshape(32) for q in each], 1) for each in quarters])


@cuda.jit
def swizzled(a, y):
    tile = cuda.shared.array((16, 64), np.float16, alignment=128)
    lane = cuda.threadIdx.x
    for i in range(lane, 1024, 32):
        row, chunk, half = i // 64, i % 64 // 8, i % 8
        tile[row, (chunk ^ (row % 8)) * 8 + half] = a[row, chunk * 8 + half]
    cuda.syncwarp()
    for number in range(4):
        # >>> solution
        row, chunk = lane % 16, 2 * number + lane // 16
        place = (row, (chunk ^ (row % 8)) * 8)
        # >>> start
        #: row, chunk = lane % 16, 2 * number + lane // 16
        #: place = (row, chunk * 8)
        # <<<
        fragment = ptx.ldmatrix_x4(ptx.cvta_to_shared(tile, place))
        for register in range(4):
            y[number, lane, register] = fragment[register]


# ---- how it is checked
from numba_marlin.puzzles.judge import Case
from numba_marlin.puzzles.rules import at_most_shared, no_bank_conflicts

KERNEL = "swizzled"
SHOW = "halves"
HINT = "The reader wants chunk `chunk` of row `row`: it is at place chunk ^ (row % 8)."
CASES = [Case({"a": np.arange(1024).reshape(16, 64).astype(np.float16)})]
RULES = [no_bank_conflicts, at_most_shared(2048, "permute the chunks of a row, without padding")]
