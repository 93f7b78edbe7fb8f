"""The double buffer.

While a tile is being added up, the next one should be on its way: two stages of shared memory, tile
i in stage i % 2. Turn i starts the copies of tile i + 1 and commits them; then it must wait for
tile i and *not* for tile i + 1; then it reads.

Two things are wrong below: what the wait waits for, and what keeps a fast warp from overwriting the
stage that a slow one still reads. (In the last turn the group is empty, and counts all the same.)
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx

TILE = 512  # halves: 8 for each of 64 threads


def spec(x):
    return x.reshape(-1, 64, 8)[:, ::-1].astype(np.float32).sum(axis=(0, 2))


@cuda.jit(device=True, forceinline=True)
def fetch(x, tiles, number):
    if TILE * number < x.size:
        place = 8 * cuda.threadIdx.x
        ptx.cp_async_16(
            ptx.cvta_to_shared(tiles, (number % 2, place)),
            ptx.cvta_to_global(x, TILE * number + place),
        )
    ptx.cp_async_commit_group()


@cuda.jit
def sums(x, y):
    tiles = cuda.shared.array((2, TILE), np.float16, alignment=16)
    i = cuda.threadIdx.x
    total = np.float32(0)
    fetch(x, tiles, 0)
    for number in range(x.size // TILE):
        # >>> solution
        fetch(x, tiles, number + 1)
        ptx.cp_async_wait_group(n=1)
        cuda.syncthreads()
        for j in range(8):
            total += np.float32(tiles[number % 2, 8 * (63 - i) + j])
        cuda.syncthreads()
        # >>> start
        #: fetch(x, tiles, number + 1)
        #: ptx.cp_async_wait_group(n=0)
        #: cuda.syncthreads()
        #: for j in range(8):
        #:     total += np.float32(tiles[number % 2, 8 * (63 - i) + j])
        # <<<
    y[i] = total


# ---- how it is checked
from numba_marlin.puzzles.judge import Case
from numba_marlin.puzzles.rules import uses, without_text

KERNEL = "sums"
HINT = "All but the newest group: n=1. And a second barrier, after the stage has been read."
CASES = [
    Case({"x": (np.arange(tiles * TILE) % 5).astype(np.float16)}, block=(64,)) for tiles in (4, 1)
]
RULES = [
    without_text("cp.async.wait_group 0", "that waits for the next tile too, and nothing overlaps"),
    uses("cp.async", "nothing is copied asynchronously: ptx.cp_async_16"),
]
