"""A sum by a warp.

The 32 lanes of a warp can read each other's registers: ptx.shfl_sync_bfly(bits, mask) gives the
word of lane ^ mask. With masks 16, 8, 4, 2, 1 every lane ends up with the sum of all 32, without
shared memory and without a barrier. All 32 lanes must take part.

The instruction moves 32 bits, whatever they mean: ptx.bits_of_f32 and ptx.f32_of_bits change the
type and not the bits.
"""

from numba import cuda

from numba_marlin import ptx


def spec(x):
    return x.reshape(-1, 32).sum(axis=1)


@cuda.jit
def warp_sum(x, y):
    lane = cuda.threadIdx.x
    total = x[cuda.blockIdx.x * 32 + lane]
    # >>> solution
    for mask in (16, 8, 4, 2, 1):
        total += ptx.f32_of_bits(ptx.shfl_sync_bfly(ptx.bits_of_f32(total), mask))
    # >>> start
    #: # for mask in (16, 8, 4, 2, 1): ...
    # <<<
    if lane == 0:
        y[cuda.blockIdx.x] = total


# ---- how it is checked
import numpy as np

from numba_marlin.puzzles.judge import Case
from numba_marlin.puzzles.rules import uses, without

KERNEL = "warp_sum"
HINT = "total += ptx.f32_of_bits(ptx.shfl_sync_bfly(ptx.bits_of_f32(total), mask))"
CASES = [
    Case({"x": (np.arange(size) % 11).astype(np.float32)}, grid=(size // 32,)) for size in (32, 96)
]
RULES = [uses("shfl", "let lanes exchange registers"), without("bar", "a warp needs no barrier")]
