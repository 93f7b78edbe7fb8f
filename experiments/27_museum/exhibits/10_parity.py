"""A wait for a phase that is over."""

import numpy as np
from numba import cuda, float32

from numba_marlin import judge, ptx

ISSUES = ("tile-ai/tilelang#3087",)
SEEN = "Generated pipelines gave wrong results with three stages and more."
CAUSE = """The compiler derived the parity that is waited for from the ring of stages, as for
barriers of its own, one a stage: it flips once in as many turns as there are stages. This barrier
was a single one, which completes a phase in every turn. The wait asked for a phase that was over,
came back at once. (There it was a product that was waited for, and the next copy overwrote what it
read; here it is the copy itself.)"""
FIX = "The parity of a single barrier is that of the turn."
KIND = "pending-copy-read"
TILE, STAGES = 64, 2
BYTES = 4 * TILE

task = judge.Task(
    title="sums of tiles that arrive by bulk copies",
    sizes={"tiles": judge.Size(1, 5)},
    arguments=[
        judge.Input("x", "float32", ("tiles", TILE), fill="integers"),
        judge.Output("y", "float32", (TILE,)),
    ],
    reference=lambda x: x[:, ::-1].sum(0),
    grid=1,
    block=TILE,
)


@cuda.jit
def broken(x, y):
    stages = cuda.shared.array((STAGES, TILE), float32, alignment=128)
    barriers = cuda.shared.array(1, np.int64, alignment=8)
    full = ptx.cvta_to_shared(barriers, 0)
    t = cuda.threadIdx.x
    if t == 0:
        ptx.mbarrier_init(full, 1)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    total = float32(0)
    for turn in range(x.shape[0]):
        stage = turn % STAGES
        if t == 0:
            ptx.mbarrier_arrive_expect_tx(full, BYTES)
            to, source = ptx.cvta_to_shared(stages, (stage, 0)), ptx.cvta_to_global(x, (turn, 0))
            ptx.cp_async_bulk_g2s(to, source, BYTES, full)
        while not ptx.mbarrier_try_wait_parity(full, turn // STAGES % 2):
            pass
        total += stages[stage, TILE - 1 - t]
        cuda.syncthreads()
    y[t] = total


@cuda.jit
def fixed(x, y):
    stages = cuda.shared.array((STAGES, TILE), float32, alignment=128)
    barriers = cuda.shared.array(1, np.int64, alignment=8)
    full = ptx.cvta_to_shared(barriers, 0)
    t = cuda.threadIdx.x
    if t == 0:
        ptx.mbarrier_init(full, 1)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    total = float32(0)
    for turn in range(x.shape[0]):
        stage = turn % STAGES
        if t == 0:
            ptx.mbarrier_arrive_expect_tx(full, BYTES)
            to, source = ptx.cvta_to_shared(stages, (stage, 0)), ptx.cvta_to_global(x, (turn, 0))
            ptx.cp_async_bulk_g2s(to, source, BYTES, full)
        while not ptx.mbarrier_try_wait_parity(full, turn % 2):
            pass
        total += stages[stage, TILE - 1 - t]
        cuda.syncthreads()
    y[t] = total
