"""Rung 3: a double buffer. One idea more than rung 2: the next tiles arrive while these multiply.
On an H200 79 us, where rung 2 takes 104 (16 rows of x, 4096 x 4096 weights; experiments/18_ladder).

Shared memory holds two stages, each with a tile of x and one of the weights. ``cp.async`` (.cg)
copies 16 bytes from global to shared memory, through no register, and does not wait. So each turn
starts the copies of the next tiles into one stage, then waits for those of the other, which the
turn before has started (the first, before the loop), and multiplies them.

Two guards make that right. A thread commits its copies as a group; ``cp.async.wait_group 1`` waits
for all its groups but the newest, and ``syncthreads`` makes that true of all threads. The
``syncthreads`` after the products keeps the next turn's copies, which start before that turn's
first barrier, from overwriting what other warps still read. (Started behind that barrier, with a
wait for all groups before it, they would need one barrier per turn, not two.)

    buffered[(n // 64, (m + 15) // 16), 128](x, qweight, scales, y)

Arrays as in ``naive``; shapes, fragments, bank conflicts and ``dequantize`` as in ``tiled``.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx

TILE_M, TILE_N, TILE_K = 16, 64, 64
X_PITCH = TILE_K + 8  # halves from a row of x's tile to the next, 4 banks on
W_ROWS, W_WORDS = TILE_K // 16, 2 * TILE_N  # rows of packed words, and words of a row


@cuda.jit(device=True, forceinline=True)
def dequantize(word, scale):
    """Nibbles 0, 4 and 1, 5 of a word -> (code - 8) * scale, two pairs of float16 (rung 2)."""
    low = ptx.lop3(word, 0x000F000F, 0x64006400, table=0xEA)
    high = ptx.lop3(word, 0x00F000F0, 0x64006400, table=0xEA)
    first = ptx.sub_f16x2(low, 0x64086408)
    second = ptx.fma_rn_f16x2(high, 0x2C002C00, 0xD480D480)
    return ptx.mul_f16x2(first, scale), ptx.mul_f16x2(second, scale)


@cuda.jit(device=True, forceinline=True)
def multiply(x_fragment, word, scale, sums):
    """sums [16 x 8] += 16 rows of x times 8 columns, one in nibbles 0, 1, 4, 5 of each lane."""
    return ptx.mma_m16n8k16_f32_f16(x_fragment, dequantize(word, scale), sums)


@cuda.jit(device=True, forceinline=True)
def store(y, row, col, left, right):
    if row < y.shape[0]:
        y[row, col] = left
        y[row, col + 1] = right


@cuda.jit(device=True, forceinline=True)
def fetch(x, qweight, x_tile, w_tile, stage, k_first):
    """Start copying the tiles from k_first on into a stage, and commit the copies as a group."""
    thread = cuda.threadIdx.x
    row, k = thread // 8, thread % 8 * 8
    if k_first + k < x.shape[1]:
        here = (min(cuda.blockIdx.y * TILE_M + row, x.shape[0] - 1), k_first + k)
        there = ptx.cvta_to_shared(x_tile, (stage, row, k))
        ptx.cp_async_16(there, ptx.cvta_to_global(x, here))
    row, word = thread // 32, thread % 32 * 4
    if k_first + 16 * row < x.shape[1]:
        here = (k_first // 16 + row, cuda.blockIdx.x * W_WORDS + word)
        there = ptx.cvta_to_shared(w_tile, (stage, row, word))
        ptx.cp_async_16(there, ptx.cvta_to_global(qweight, here))
    ptx.cp_async_commit_group()


@cuda.jit
def buffered(x, qweight, scales, y):
    x_tile = cuda.shared.array((2, TILE_M, X_PITCH), np.float16, alignment=16)
    w_tile = cuda.shared.array((2, W_ROWS, W_WORDS), np.int32, alignment=16)
    depth, group_size = x.shape[1], x.shape[1] // scales.shape[0]
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    g, t, col_first = lane // 4, lane % 4, cuda.blockIdx.x * TILE_N
    zero = np.float32(0)
    left = right = (zero, zero, zero, zero)
    fetch(x, qweight, x_tile, w_tile, 0, 0)  # the first tiles, to stage 0
    for k_first in range(0, depth, TILE_K):
        stage = k_first // TILE_K % 2
        # In the last turn an empty group: else ``wait_group 1`` would not wait for the last tiles.
        fetch(x, qweight, x_tile, w_tile, 1 - stage, k_first + TILE_K)
        ptx.cp_async_wait_group(n=1)
        cuda.syncthreads()
        for row in range(min(TILE_K, depth - k_first) // 16):
            place = ptx.cvta_to_shared(x_tile, (stage, lane % 16, 16 * row + lane // 16 * 8))
            x_fragment = ptx.ldmatrix_x4(place)
            word = w_tile[stage, row, 4 * lane + warp]
            group = (k_first + 16 * row) // group_size
            place = ptx.cvta_to_global(scales, (group, col_first + 8 * g + 2 * warp))
            pair = ptx.ld_global_b32(place)
            left = multiply(x_fragment, word, ptx.both_low_f16x2(pair), left)
            right = multiply(x_fragment, word >> 8, ptx.both_high_f16x2(pair), right)
        cuda.syncthreads()
    row, col = cuda.blockIdx.y * TILE_M + g, col_first + 16 * warp + 2 * t
    store(y, row, col, left[0], left[1])
    store(y, row + 8, col, left[2], left[3])
    store(y, row, col + 8, right[0], right[1])
    store(y, row + 8, col + 8, right[2], right[3])
