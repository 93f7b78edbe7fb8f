"""All lanes store, one lane arrives."""

import numpy as np
from numba import cuda, float32

from numba_marlin import judge, ptx

ISSUES = ("NVIDIA/cudnn-frontend#426",)
SEEN = "A latent race: racecheck reported it in a kernel for Blackwell whose own tests passed."
CAUSE = """The lanes of a loading warp store to shared memory, and one elected lane arrives on the
mbarrier. An arrival releases what *its own thread* did before; what the other lanes stored may
come later."""
FIX = """`__syncwarp` between the stores and the arrival: it orders the lanes, and the one passes
it on."""
KIND = "race"

task = judge.Task(
    title="handed over by an mbarrier",
    arguments=[
        judge.Input("x", "float32", (32,)),
        judge.Output("y", "float32", (32,)),
    ],
    reference=lambda x: x[::-1],
    grid=1,
    block=64,
)


@cuda.jit
def broken(x, y):
    tile = cuda.shared.array(32, float32)
    barriers = cuda.shared.array(1, np.int64, alignment=8)
    full = ptx.cvta_to_shared(barriers, 0)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    if cuda.threadIdx.x == 0:
        ptx.mbarrier_init(full, 1)
    cuda.syncthreads()
    if warp == 0:
        tile[lane] = x[lane]
        if lane == 0:
            ptx.mbarrier_arrive(full)
    else:
        while not ptx.mbarrier_try_wait_parity(full, 0):
            pass
        y[lane] = tile[31 - lane]


@cuda.jit
def fixed(x, y):
    tile = cuda.shared.array(32, float32)
    barriers = cuda.shared.array(1, np.int64, alignment=8)
    full = ptx.cvta_to_shared(barriers, 0)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    if cuda.threadIdx.x == 0:
        ptx.mbarrier_init(full, 1)
    cuda.syncthreads()
    if warp == 0:
        tile[lane] = x[lane]
        cuda.syncwarp()
        if lane == 0:
            ptx.mbarrier_arrive(full)
    else:
        while not ptx.mbarrier_try_wait_parity(full, 0):
            pass
        y[lane] = tile[31 - lane]
