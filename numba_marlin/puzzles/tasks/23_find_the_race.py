"""Find the race.

A warp of producers fills a ring of two stages, a warp of consumers empties it. Two mbarriers a
stage: `full`, on which 32 producers arrive, and `empty`, on which 32 consumers do. Who waits for
phase p of a barrier waits for its parity, p % 2.

The waits are right. Something else is not, and the kernel passes every test that compares numbers
on an idle GPU. Let the machine say which two lines meet, and mend it: nothing needs to be added.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx


def spec(x):
    return x.reshape(-1, 32)[:, ::-1].sum(axis=0)


@cuda.jit
def ring(x, y):
    stages = cuda.shared.array((2, 32), np.float32)
    barriers = cuda.shared.array((2, 2), np.int64, alignment=8)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    if cuda.threadIdx.x == 0:
        for stage in range(2):
            ptx.mbarrier_init(ptx.cvta_to_shared(barriers, (0, stage)), 32)
            ptx.mbarrier_init(ptx.cvta_to_shared(barriers, (1, stage)), 32)
    cuda.syncthreads()
    total = np.float32(0)
    for turn in range(x.size // 32):
        stage, phase = turn % 2, turn // 2
        full = ptx.cvta_to_shared(barriers, (0, stage))
        empty = ptx.cvta_to_shared(barriers, (1, stage))
        if warp == 0:
            if turn >= 2:
                while not ptx.mbarrier_try_wait_parity(empty, (phase - 1) % 2):
                    pass
            stages[stage, lane] = x[32 * turn + lane]
            ptx.mbarrier_arrive(full)
        else:
            while not ptx.mbarrier_try_wait_parity(full, phase % 2):
                pass
            # >>> solution
            total += stages[stage, 31 - lane]
            ptx.mbarrier_arrive(empty)
            # >>> start
            #: ptx.mbarrier_arrive(empty)
            #: total += stages[stage, 31 - lane]
            # <<<
    if warp == 1:
        y[lane] = total


# ---- how it is checked
from numba_marlin.puzzles.judge import Case

KERNEL = "ring"
HINT = "Who arrives on `empty` says: I have read it."
CASES = [Case({"x": (np.arange(32 * 7) % 9).astype(np.float32)}, block=(64,))]
RULES = []
