"""wgmma.

Hopper's product is started by four warps together and runs beside them: D [64, 8] = A [64, 16] by
B [16, 8], both in shared memory, named by descriptors. Two engines are at work that know nothing of
each other's order, so what was an instruction is a small protocol:

    1. after ordinary stores to shared memory: ptx.fence_proxy_async_shared() and the barrier; wgmma
       reads through another path, the asynchronous proxy
    2. ptx.wgmma_fence(), before the first product: it will write the accumulators' registers
    3. the product, or several
    4. ptx.wgmma_commit_group()
    5. d = ptx.wgmma_wait_group_f32(d, n=0, width=4): before that, d belongs to the tensor core

Put in what is missing. (Layout here: no swizzle; the 16 bytes of a row's half k come first for all
rows, then those of the other half. The descriptor has the address and these two distances, in units
of 16 bytes.)
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx


def spec(a, b):
    return a.astype(np.float32) @ b.astype(np.float32).T


@cuda.jit(device=True, forceinline=True)
def descriptor(address, between_halves, between_eights):
    return (
        np.uint64(address >> 4)
        | np.uint64(between_halves >> 4) << np.uint64(16)
        | np.uint64(between_eights >> 4) << np.uint64(32)
    )


@cuda.jit
def wgmma(a, b, y):
    a_tile = cuda.shared.array((2, 64, 8), np.float16, alignment=128)
    b_tile = cuda.shared.array((2, 8, 8), np.float16, alignment=128)
    i = cuda.threadIdx.x
    for j in range(8):
        a_tile[i % 2, i // 2, j] = a[i // 2, i % 2 * 8 + j]
    b_tile[i // 64, i % 64 // 8, i % 8] = b[i % 64 // 8, i // 64 * 8 + i % 8]
    a_name = descriptor(ptx.cvta_to_shared(a_tile, (0, 0, 0)), 1024, 128)
    b_name = descriptor(ptx.cvta_to_shared(b_tile, (0, 0, 0)), 128, 128)
    d = ptx.zero_f32(width=4)
    # >>> solution
    ptx.fence_proxy_async_shared()
    cuda.syncthreads()
    ptx.wgmma_fence()
    d = ptx.wgmma_m64k16_f32_f16_ss(d, a_name, b_name, 0, n=8)
    ptx.wgmma_commit_group()
    d = ptx.wgmma_wait_group_f32(d, n=0, width=4)
    # >>> start
    #: cuda.syncthreads()
    #: d = ptx.wgmma_m64k16_f32_f16_ss(d, a_name, b_name, 0, n=8)
    # <<<
    lane = i % 32
    row, column = i // 32 * 16 + lane // 4, 2 * (lane % 4)
    y[row, column], y[row, column + 1] = d[0], d[1]
    y[row + 8, column], y[row + 8, column + 1] = d[2], d[3]


# ---- how it is checked
from numba_marlin.puzzles.judge import Case

_DRAWN = np.random.default_rng(4)
KERNEL = "wgmma"
HINT = "fence_proxy_async_shared, syncthreads, wgmma_fence, product, commit, wait: in this order."
CASES = [
    Case(
        {
            "a": _DRAWN.integers(-3, 4, (64, 16)).astype(np.float16),
            "b": _DRAWN.integers(-3, 4, (8, 16)).astype(np.float16),
        },
        block=(128,),
    )
]
RULES = []
