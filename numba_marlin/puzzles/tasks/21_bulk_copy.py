"""Bulk copies and the mbarrier.

Since Hopper one thread can ask the copy engine for a whole block of bytes: `cp.async.bulk`. It
counts the bytes that arrive on an mbarrier, 8 bytes of shared memory with phases: a phase completes
when all expected arrivals *and* all expected bytes have come.

    one thread: mbarrier_init(bar, 1), fence_mbarrier_init(), then a barrier for the block
    one thread: mbarrier_arrive_expect_tx(bar, bytes), cp_async_bulk_g2s(to, from, bytes, bar)
    all:        while not mbarrier_try_wait_parity(bar, parity): loop

The first phase has parity 0, the second 1, then 0 again. Below, tiles of 256 floats arrive one
after the other in the same place. Mend the parity, and tell the barrier how many bytes to expect.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx

TILE = 256
BYTES = 4 * TILE


def spec(x):
    return x.reshape(-1, TILE)[:, ::-1].sum(axis=0)


@cuda.jit
def bulk_sums(x, y):
    tile = cuda.shared.array(TILE, np.float32, alignment=128)
    barriers = cuda.shared.array(1, np.int64, alignment=8)
    bar = ptx.cvta_to_shared(barriers, 0)
    i = cuda.threadIdx.x
    if i == 0:
        ptx.mbarrier_init(bar, 1)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    total = np.float32(0)
    for number in range(x.size // TILE):
        # >>> solution
        if i == 0:
            ptx.mbarrier_arrive_expect_tx(bar, BYTES)
            to, source = ptx.cvta_to_shared(tile, 0), ptx.cvta_to_global(x, TILE * number)
            ptx.cp_async_bulk_g2s(to, source, BYTES, bar)
        while not ptx.mbarrier_try_wait_parity(bar, number % 2):
            pass
        # >>> start
        #: if i == 0:
        #:     ptx.mbarrier_arrive_expect_tx(bar, TILE)
        #:     to, source = ptx.cvta_to_shared(tile, 0), ptx.cvta_to_global(x, TILE * number)
        #:     ptx.cp_async_bulk_g2s(to, source, BYTES, bar)
        #: while not ptx.mbarrier_try_wait_parity(bar, 0):
        #:     pass
        # <<<
        total += tile[TILE - 1 - i]
        cuda.syncthreads()
    y[i] = total


# ---- how it is checked
from numba_marlin.puzzles.judge import Case

KERNEL = "bulk_sums"
HINT = "A float has 4 bytes; turn `number` waits for the phase of parity number % 2."
CASES = [
    Case({"x": (np.arange(tiles * TILE) % 7).astype(np.float32)}, block=(TILE,)) for tiles in (3, 1)
]
RULES = []
