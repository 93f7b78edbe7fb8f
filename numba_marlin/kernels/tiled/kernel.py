"""Rung 2: shared memory and tensor cores. A block of four warps makes a tile of 16 x 64 outputs. On
an H200 104 us, where rung 1 takes 1333 (16 rows of x, 4096 x 4096 weights; experiments/18_ladder).

The idea: a packed word *is* a tensor-core fragment. ``mma.m16n8k16`` multiplies 16 rows of x by 8
columns of weights, 16 deep, and wants lane 4 g + t of a warp to hold, of column g, the weights at
k = 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. Word 4 * lane + j of a Marlin block (16 k x 64 n) has them:
nibbles 0, 4 are k = 2 t, 2 t + 1 of column 16 j + g, nibbles 1, 5 are 2 t + 8, 2 t + 9; behind a
shift by 8 bits come those of column 16 j + g + 8. So a lane turns a word into two fragments, and
never asks where a weight belongs. Warp w takes word j = w of each lane: columns 16 w to 16 w + 15.

Every 64 k, the block copies tiles of x and of the weights to shared memory, waits for all threads,
multiplies, and waits again: loads and products take turns. The next rung overlaps them. Scales are
read from global memory, for simplicity, and their products with codes are rounded to float16 here.

    tiled[(n // 64, (m + 15) // 16), 128](x, qweight, scales, y)

x [m, k], y [m, n] and scales [groups, n] are float16, qweight int32 [k / 16, 2 n], as in ``naive``.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx

TILE_M, TILE_N, TILE_K = 16, 64, 64
X_PITCH = TILE_K + 8  # halves; rows begin 4 banks apart: eight of 16 bytes (ldmatrix) fill all 32
W_ROWS, W_WORDS = TILE_K // 16, 2 * TILE_N  # rows of packed words, and words of a row


@cuda.jit(device=True, forceinline=True)
def dequantize(word, scale):
    """Nibbles 0, 4 and 1, 5 of a word -> (code - 8) * scale as two pairs of float16. 0x6400 is
    1024.0, so 0x6400 | code is 1024 + code; four bits further up, code counts sixteen times."""
    low = ptx.lop3(word, 0x000F000F, 0x64006400, table=0xEA)  # (word & 0x000F000F) | 0x64006400
    high = ptx.lop3(word, 0x00F000F0, 0x64006400, table=0xEA)
    first = ptx.sub_f16x2(low, 0x64086408)  # 1024 + code - 1032
    second = ptx.fma_rn_f16x2(high, 0x2C002C00, 0xD480D480)  # (1024 + 16 code) / 16 - 72
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
def load_tiles(x, qweight, x_tile, w_tile, k_first):
    """Copy the tiles from k_first on, 16 bytes of either per thread; past its end, x's last row."""
    thread = cuda.threadIdx.x
    row, k = thread // 8, thread % 8 * 8
    if k_first + k < x.shape[1]:
        here = (min(cuda.blockIdx.y * TILE_M + row, x.shape[0] - 1), k_first + k)
        values = ptx.ld_global_v4_b32(ptx.cvta_to_global(x, here))
        ptx.st_shared_v4_b32(ptx.cvta_to_shared(x_tile, (row, k)), values)
    row, word = thread // 32, thread % 32 * 4
    if k_first + 16 * row < x.shape[1]:
        here = (k_first // 16 + row, cuda.blockIdx.x * W_WORDS + word)
        values = ptx.ld_global_v4_b32(ptx.cvta_to_global(qweight, here))
        ptx.st_shared_v4_b32(ptx.cvta_to_shared(w_tile, (row, word)), values)


@cuda.jit
def tiled(x, qweight, scales, y):
    x_tile = cuda.shared.array((TILE_M, X_PITCH), np.float16, alignment=16)
    w_tile = cuda.shared.array((W_ROWS, W_WORDS), np.int32, alignment=16)
    depth, group_size = x.shape[1], x.shape[1] // scales.shape[0]
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    g, t, col_first = lane // 4, lane % 4, cuda.blockIdx.x * TILE_N
    zero = np.float32(0)
    left = right = (zero, zero, zero, zero)  # sums of this warp's columns 0 to 7, and 8 to 15
    for k_first in range(0, depth, TILE_K):
        load_tiles(x, qweight, x_tile, w_tile, k_first)
        cuda.syncthreads()
        for row in range(min(TILE_K, depth - k_first) // 16):
            # each lane gives the address of one row of the four 8 x 8 matrices of a fragment
            place = (lane % 16, 16 * row + lane // 16 * 8)
            x_fragment = ptx.ldmatrix_x4(ptx.cvta_to_shared(x_tile, place))
            # every fourth word: a 4-way bank conflict; ``ampere`` reads a lane's four as one vector
            word = w_tile[row, 4 * lane + warp]
            group = (k_first + 16 * row) // group_size
            place = (group, col_first + 8 * g + 2 * warp)
            pair = ptx.ld_global_b32(
                ptx.cvta_to_global(scales, place)
            )  # of g and g + 8: neighbours
            left = multiply(x_fragment, word, ptx.both_low_f16x2(pair), left)
            right = multiply(x_fragment, word >> 8, ptx.both_high_f16x2(pair), right)
        cuda.syncthreads()
    # lane 4 g + t has columns 2 t and 2 t + 1 of rows g and g + 8
    row, col = cuda.blockIdx.y * TILE_M + g, col_first + 16 * warp + 2 * t
    store(y, row, col, left[0], left[1])
    store(y, row + 8, col, left[2], left[3])
    store(y, row, col + 8, right[0], right[1])
    store(y, row + 8, col + 8, right[2], right[3])
