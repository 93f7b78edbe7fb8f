"""Ordinary stores that the copy engine does not see."""

from numba import cuda, float32

from numba_marlin import judge, ptx

ISSUES = ("MoonshotAI/FlashKDA#24",)
SEEN = """Found by an audit of the kernels for Hopper: mostly they work, by timing; hangs, stale
data and silent corruption are possible."""
CAUSE = """Threads write to shared memory, meet at a barrier, and one of them starts a bulk copy
(TMA) from there. Ordinary stores and the copy engine go by different proxies, which a barrier does
not order."""
FIX = "Each thread that wrote says `fence.proxy.async` before the barrier."
KIND = "proxy-hazard"
THREADS = 64

task = judge.Task(
    title="doubled, and stored by the copy engine",
    arguments=[
        judge.Input("x", "float32", (THREADS,)),
        judge.Output("y", "float32", (THREADS,)),
    ],
    reference=lambda x: 2 * x,
    grid=1,
    block=THREADS,
)


@cuda.jit
def broken(x, y):
    tile = cuda.shared.array(THREADS, float32, alignment=128)
    t = cuda.threadIdx.x
    tile[t] = 2 * x[t]
    cuda.syncthreads()
    if t == 0:
        to, source = ptx.cvta_to_global(y, 0), ptx.cvta_to_shared(tile, 0)
        ptx.cp_async_bulk_s2g(to, source, 4 * THREADS)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(n=0)


@cuda.jit
def fixed(x, y):
    tile = cuda.shared.array(THREADS, float32, alignment=128)
    t = cuda.threadIdx.x
    tile[t] = 2 * x[t]
    ptx.fence_proxy_async_shared()
    cuda.syncthreads()
    if t == 0:
        to, source = ptx.cvta_to_global(y, 0), ptx.cvta_to_shared(tile, 0)
        ptx.cp_async_bulk_s2g(to, source, 4 * THREADS)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(n=0)
