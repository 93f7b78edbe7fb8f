"""ldmatrix.

Gathering a fragment word by word costs an instruction a register. `ldmatrix` loads four 8 x 8
matrices of fp16 from shared memory and hands every lane its words: 8 lanes name the rows of each
matrix (lanes 0 to 7 of the first, 8 to 15 of the second ...), 16 bytes a row, and lane 4 g + t gets
the pair of row g, columns 2 t and 2 t + 1 of each.

So for the A fragment of the last puzzle, a0 to a3: which quarter of A [16, 16] is matrix 0, 1, 2
and 3, and so which row and column must lane `lane` name? Mend `row, column`: the column counts
halves, so the second 16 bytes of a row begin at column 8.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx


def spec(a):
    words = a.view(np.int32)
    quarters = [words[:8, :4], words[8:, :4], words[:8, 4:], words[8:, 4:]]
    return np.stack([each.reshape(32) for each in quarters], axis=1)


@cuda.jit
def load_fragment(a, y):
    tile = cuda.shared.array((16, 16), np.float16, alignment=16)
    lane = cuda.threadIdx.x
    for i in range(lane, 256, 32):
        tile[i // 16, i % 16] = a[i // 16, i % 16]
    cuda.syncwarp()
    # >>> solution
    row, column = lane % 16, lane // 16 * 8
    # >>> start
    #: row, column = lane % 8, lane // 8
    # <<<
    fragment = ptx.ldmatrix_x4(ptx.cvta_to_shared(tile, (row, column)))
    for register in range(4):
        y[lane, register] = fragment[register]


# ---- how it is checked
from numba_marlin.puzzles.judge import Case

KERNEL = "load_fragment"
SHOW = "halves"
HINT = "Matrices 0, 1 are rows 0-7 and 8-15 of columns 0-7; 2, 3 the same of columns 8-15."
CASES = [Case({"a": np.arange(256).reshape(16, 16).astype(np.float16)})]
RULES = []
