"""The third kernel of the ladder, after ``tiled``: a double buffer. The next tiles arrive while
these are multiplied: 79 us on an H200 and not 104 (m 16, n, k 4096; experiments/18_ladder).

A thread block of 4 warps makes 16 x 64 outputs, warp w columns 16 w to 16 w + 15 of them, over all
of k: no sums are exchanged; each is fp32, in the order of k. Of 16 k by 64 columns of W, 128 words,
lane 4 g + t takes word 4 * lane + w: its nibbles 0, 4, 1, 5 are k = 2 t, 2 t + 1, 2 t + 8, 2 t + 9
of column 16 w + g, nibbles 2, 6, 3, 7 (a shift by 8 bits) those of column 16 w + g + 8.

Shared memory has two stages, each a tile of x and one of W for 64 steps of k. ``cp.async.cg``
copies 16 bytes there from global memory and does not wait. A turn of the main loop starts copying
the next tiles into one stage, waits for those of the other, started one turn before, and multiplies
them. Before reading: ``wait_group 1`` waits for all of a thread's commit groups but the newest (the
next tiles; empty in the last turn), and the first syncthreads makes that true of all threads.
Before overwriting: the second; the next copies start after it. (S stages would take n = S - 1.)

    import numba_marlin as nm  # to run after this file; GPU of sm_80 or newer, numba-cuda >= 0.30
    m, n, k = 16, 256, 512
    x, y = np.random.randn(m, k).astype(np.float16), np.empty((m, n), np.float16)
    p = nm.pack(nm.quantize(np.random.randn(k, n).astype(np.float32), group_size=128))
    buffered[(n // 64, (m + 15) // 16), 128](x, p.qweight, p.scales, y)
    assert np.allclose(y, x.astype(np.float32) @ nm.dequantize(p, np.float32), 0.001, 0.05)

x [m, k], y [m, n], scales [k / group_size, n]: float16; qweight: int32 [k / 16, 2 n]; C-contiguous,
on host or device. 16 divides k and group_size < k, 64 divides n. ``ptx.NAME(...)`` is one PTX
instruction, ptx/NAME.ptx, its immediate a keyword; cvta_to_*(array, index): array[index]'s address.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx

TILE_M, TILE_N, TILE_K = 16, 64, 64  # with 128 threads: fetch and the warps' shares assume it
X_PITCH = TILE_K + 8  # halves: 36 words, so that 8 rows of 16 bytes (ldmatrix) fill all 32 banks
W_ROWS, W_WORDS = TILE_K // 16, 2 * TILE_N  # rows of packed words (16 k each), words of a row


@cuda.jit(device=True, forceinline=True)
def multiply(x_fragment, word, scale, sums):
    """sums += x [16 x 16] * W [16 x 8], (code - 8) * scale of nibbles 0, 4 and 1, 5, in float16."""
    low = ptx.lop3(word, 0x000F000F, 0x64006400, table=0xEA)  # 0x6400 | code is 1024.0 + code
    high = ptx.lop3(word, 0x00F000F0, 0x64006400, table=0xEA)
    first = ptx.sub_f16x2(low, 0x64086408)  # 1024 + code - 1032
    second = ptx.fma_rn_f16x2(high, 0x2C002C00, 0xD480D480)  # (1024 + 16 code) / 16 - 72
    weights = ptx.mul_f16x2(first, scale), ptx.mul_f16x2(second, scale)
    return ptx.mma_m16n8k16_f32_f16(x_fragment, weights, sums)


@cuda.jit(device=True, forceinline=True)
def store(y, row, col, left, right):
    if row < y.shape[0]:  # the last tile may have rows past m
        y[row, col], y[row, col + 1] = left, right  # rounded to float16 here


@cuda.jit(device=True, forceinline=True)
def fetch(x, qweight, x_tile, w_tile, stage, k_first):
    """Start a thread's copies to a stage. For rows past m x's last one, nothing past k's end."""
    thread = cuda.threadIdx.x
    row, k = thread // 8, thread % 8 * 8  # in x's tile
    if k_first + k < x.shape[1]:
        here = (min(cuda.blockIdx.y * TILE_M + row, x.shape[0] - 1), k_first + k)
        there = ptx.cvta_to_shared(x_tile, (stage, row, k))
        ptx.cp_async_16(there, ptx.cvta_to_global(x, here))
    w_row, word = thread // 32, thread % 32 * 4
    if k_first + 16 * w_row < x.shape[1]:
        here = (k_first // 16 + w_row, cuda.blockIdx.x * W_WORDS + word)
        there = ptx.cvta_to_shared(w_tile, (stage, w_row, word))
        ptx.cp_async_16(there, ptx.cvta_to_global(qweight, here))
    ptx.cp_async_commit_group()


@cuda.jit
def buffered(x, qweight, scales, y):
    x_tile = cuda.shared.array((2, TILE_M, X_PITCH), np.float16, alignment=16)  # [stage, row, k]
    w_tile = cuda.shared.array((2, W_ROWS, W_WORDS), np.int32, alignment=16)  # stage, k // 16, word
    depth, group_size = x.shape[1], x.shape[1] // scales.shape[0]
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    g, t, col_first = lane // 4, lane % 4, cuda.blockIdx.x * TILE_N
    left = right = (np.float32(0), np.float32(0), np.float32(0), np.float32(0))
    fetch(x, qweight, x_tile, w_tile, 0, 0)  # the first tiles, to stage 0
    for k_first in range(0, depth, TILE_K):
        stage = k_first // TILE_K % 2  # is multiplied in this turn
        fetch(x, qweight, x_tile, w_tile, 1 - stage, k_first + TILE_K)
        ptx.cp_async_wait_group(n=1)
        cuda.syncthreads()
        for w_row in range(min(TILE_K, depth - k_first) // 16):
            place = (stage, lane % 16, 16 * w_row + lane // 16 * 8)  # lanes 0-15: k 0-7, then 8-15
            x_fragment = ptx.ldmatrix_x4(ptx.cvta_to_shared(x_tile, place))
            word = w_tile[stage, w_row, 4 * lane + warp]  # a 4-way bank conflict, left as it is
            here = ((k_first + 16 * w_row) // group_size, col_first + 8 * g + 2 * warp)
            pair = ptx.ld_global_b32(ptx.cvta_to_global(scales, here))  # the warp's columns g, g+8
            left = multiply(x_fragment, word, ptx.both_low_f16x2(pair), left)  # low half, twice
            right = multiply(x_fragment, word >> 8, ptx.both_high_f16x2(pair), right)
        cuda.syncthreads()
    row, col = cuda.blockIdx.y * TILE_M + g, col_first + 16 * warp + 2 * t  # of the lane's sum 0
    store(y, row, col, left[0], left[1])
    store(y, row + 8, col, left[2], left[3])
    store(y, row, col + 8, right[0], right[1])
    store(y, row + 8, col + 8, right[2], right[3])
