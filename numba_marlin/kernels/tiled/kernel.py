"""Rung 2: shared memory and tensor cores. A block of four warps makes a tile of 16 x 64 outputs.

The idea: a packed word *is* a tensor-core fragment. ``mma.m16n8k16`` multiplies 16 rows of x by 8
columns of weights, 16 deep, and wants lane 4 g + t of a warp to hold, of column g, the weights at
k = 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. Word 4 * lane + j of a Marlin block (16 k x 64 n) has those
of columns 16 j + g and 16 j + g + 8 in its nibbles (the formula stands in rung 1). So a lane loads
its word from shared memory, turns it into two fragments, and never asks where a weight belongs.

Every 64 k, the block copies its tiles of x and of the weights to shared memory, waits until all
threads have done so, multiplies, and waits until all threads have multiplied, before the next
tiles overwrite these: loads and products take turns. The next rung overlaps them.

    tiled[(n // 64, (m + 15) // 16), 128](x, qweight, scales, y)

Arrays as in ``naive``; x and qweight begin at multiples of 16 bytes. A row of the tile of x takes
72 halves, not 64, of shared memory: ``ldmatrix`` reads eight rows at a time, and so they start in
different banks.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx

TILE_M, TILE_N, TILE_K = 16, 64, 64
X_PITCH = TILE_K + 8  # halves from a row of the tile to the next
W_ROWS, W_WORDS = TILE_K // 16, 2 * TILE_N


@cuda.jit(device=True, forceinline=True)
def dequantize(word):
    """Nibbles 0, 4 and 1, 5 of a word -> code - 8 as two pairs of float16. A nibble or-ed into
    the bits of 1024.0 makes the number 1024 + code; high nibbles make 1024 + 16 code."""
    low = ptx.lop3(word, 0x000F000F, 0x64006400, table=0xEA)  # (word & mask) | 1024.0, twice
    high = ptx.lop3(word, 0x00F000F0, 0x64006400, table=0xEA)
    # low - 1032, and high / 16 - 72
    return ptx.sub_f16x2(low, 0x64086408), ptx.fma_rn_f16x2(high, 0x2C002C00, 0xD480D480)


@cuda.jit(device=True, forceinline=True)
def multiply(x_fragment, word, scale, sums):
    """sums [16 x 8] += 16 rows of x times the 8 columns in nibbles 0, 1, 4, 5 of the word."""
    first, second = dequantize(word)
    w_fragment = ptx.mul_f16x2(first, scale), ptx.mul_f16x2(second, scale)
    return ptx.mma_m16n8k16_f32_f16(x_fragment, w_fragment, sums)


@cuda.jit(device=True, forceinline=True)
def store(y, row, col, left, right):
    if row < y.shape[0]:
        y[row, col] = left
        y[row, col + 1] = right


@cuda.jit
def tiled(x, qweight, scales, y):
    x_tile = cuda.shared.array((TILE_M, X_PITCH), np.float16, alignment=16)
    w_tile = cuda.shared.array((W_ROWS, W_WORDS), np.int32, alignment=16)
    m, depth = x.shape
    group_size = depth // scales.shape[0]
    col_first, row_first = cuda.blockIdx.x * TILE_N, cuda.blockIdx.y * TILE_M
    thread = cuda.threadIdx.x
    warp, lane = thread // 32, thread % 32
    g, t = lane // 4, lane % 4
    zero = np.float32(0)
    left = right = (zero, zero, zero, zero)  # 16 x 8 sums of columns 16 warp, and 8 further

    for k_first in range(0, depth, TILE_K):
        # Each thread copies 16 bytes of x and 16 of the weights. Rows past the end repeat the last.
        row, k = thread // 8, thread % 8 * 8
        if k_first + k < depth:
            here = ptx.cvta_to_global(x, (min(row_first + row, m - 1), k_first + k))
            ptx.st_shared_v4_b32(ptx.cvta_to_shared(x_tile, (row, k)), ptx.ld_global_v4_b32(here))
        row, word = thread // 32, thread % 32 * 4
        if k_first + 16 * row < depth:
            here = ptx.cvta_to_global(qweight, (k_first // 16 + row, 2 * col_first + word))
            there = ptx.cvta_to_shared(w_tile, (row, word))
            ptx.st_shared_v4_b32(there, ptx.ld_global_v4_b32(here))
        cuda.syncthreads()

        for row in range(min(TILE_K, depth - k_first) // 16):
            # four 8 x 8 matrices of x: this lane gives the address of one of their rows
            place = ptx.cvta_to_shared(x_tile, (lane % 16, 16 * row + lane // 16 * 8))
            x_fragment = ptx.ldmatrix_x4(place)
            word = w_tile[row, 4 * lane + warp]
            # scales of columns 16 warp + g and 16 warp + g + 8, which are neighbours
            group = (k_first + 16 * row) // group_size
            place = ptx.cvta_to_global(scales, (group, col_first + 8 * g + 2 * warp))
            pair = ptx.ld_global_b32(place)
            left = multiply(x_fragment, word, ptx.both_low_f16x2(pair), left)
            right = multiply(x_fragment, word >> 8, ptx.both_high_f16x2(pair), right)
        cuda.syncthreads()

    # lane 4 g + t has columns 2 t and 2 t + 1 of rows g and g + 8 of either sum
    row, col = row_first + g, col_first + 16 * warp + 2 * t
    store(y, row, col, left[0], left[1])
    store(y, row + 8, col, left[2], left[3])
    store(y, row, col + 8, right[0], right[1])
    store(y, row + 8, col + 8, right[2], right[3])
