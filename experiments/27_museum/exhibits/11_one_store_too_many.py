"""A wait that leaves one store in flight: the one that matters."""

import numpy as np
from numba import cuda, float32

from numba_marlin import judge, ptx

ISSUES = ("deepseek-ai/DeepEP#657", "deepseek-ai/DeepEP#660")
SEEN = """Found by reading: a copy from device to device through two stages of shared memory may
corrupt what it copies."""
CAUSE = """Before a stage is loaded anew, all but the latest `stages - 1` stores were waited for.
But the store from this very stage *is* the latest: with two stages, the wait came back at once,
and the load overwrote what the store was still reading."""
FIX = "Wait for all stores."
KIND = "pending-copy-read"
TILE, STAGES = 64, 2
BYTES = 4 * TILE

task = judge.Task(
    title="a copy through two stages",
    sizes={"tiles": judge.Size(1, 5)},
    arguments=[
        judge.Input("x", "float32", ("tiles", TILE)),
        judge.Output("y", "float32", ("tiles", TILE)),
    ],
    reference=lambda x: x,
    grid=1,
    block=32,
)


@cuda.jit
def broken(x, y):
    stages = cuda.shared.array((STAGES, TILE), float32, alignment=128)
    barriers = cuda.shared.array(STAGES, np.int64, alignment=8)
    if cuda.threadIdx.x == 0:
        for stage in range(STAGES):
            ptx.mbarrier_init(ptx.cvta_to_shared(barriers, stage), 1)
        ptx.fence_mbarrier_init()
        for turn in range(x.shape[0] + STAGES):
            stage = turn % STAGES
            full = ptx.cvta_to_shared(barriers, stage)
            place = ptx.cvta_to_shared(stages, (stage, 0))
            if turn >= STAGES:
                while not ptx.mbarrier_try_wait_parity(full, (turn // STAGES - 1) % 2):
                    pass
                ptx.cp_async_bulk_s2g(ptx.cvta_to_global(y, (turn - STAGES, 0)), place, BYTES)
                ptx.cp_async_bulk_commit_group()
                ptx.cp_async_bulk_wait_group_read(n=1)
            if turn < x.shape[0]:
                ptx.mbarrier_arrive_expect_tx(full, BYTES)
                ptx.cp_async_bulk_g2s(place, ptx.cvta_to_global(x, (turn, 0)), BYTES, full)
        ptx.cp_async_bulk_wait_group(n=0)


@cuda.jit
def fixed(x, y):
    stages = cuda.shared.array((STAGES, TILE), float32, alignment=128)
    barriers = cuda.shared.array(STAGES, np.int64, alignment=8)
    if cuda.threadIdx.x == 0:
        for stage in range(STAGES):
            ptx.mbarrier_init(ptx.cvta_to_shared(barriers, stage), 1)
        ptx.fence_mbarrier_init()
        for turn in range(x.shape[0] + STAGES):
            stage = turn % STAGES
            full = ptx.cvta_to_shared(barriers, stage)
            place = ptx.cvta_to_shared(stages, (stage, 0))
            if turn >= STAGES:
                while not ptx.mbarrier_try_wait_parity(full, (turn // STAGES - 1) % 2):
                    pass
                ptx.cp_async_bulk_s2g(ptx.cvta_to_global(y, (turn - STAGES, 0)), place, BYTES)
                ptx.cp_async_bulk_commit_group()
                ptx.cp_async_bulk_wait_group_read(n=0)
            if turn < x.shape[0]:
                ptx.mbarrier_arrive_expect_tx(full, BYTES)
                ptx.cp_async_bulk_g2s(place, ptx.cvta_to_global(x, (turn, 0)), BYTES, full)
        ptx.cp_async_bulk_wait_group(n=0)
