"""The second kernel of the ladder, after ``naive``: shared memory and tensor cores. 104 us on an
H200 and not 1333 (m 16, n and k 4096; cold L2, experiments/18_ladder): 64 blocks, for 132 SMs.

Nibble p (bits 4 p to 4 p + 3) of qweight[k0 / 16, 2 n0 + 4 (4 g + t) + j] is the code of W[k, n],

    k = k0 + 2 t + p // 4 + 8 (p % 2)     k0, n0: multiples of 16, of 64; j, t: 0 to 3; g: 0 to 7
    n = n0 + 16 j + g + 8 (p // 2 % 2)

so lane 4 g + t finds in one word its share of two B fragments of ``mma.m16n8k16`` (x [16 x 16] *
W [16 x 8]): nibbles 0, 4, 1, 5 and, 8 columns further, 2, 6, 3, 7. The scale of column n0 + c is at
n0 + 8 (c % 8) + c // 8 in its group's row: the scales of columns n and n + 8 are neighbours.

A thread block of 4 warps makes 16 x 64 outputs over all of k, warp j by words j: columns 16 j to
16 j + 15. So no sums are exchanged; each is fp32, takes 16 k after 16 k (inside an mma in the
hardware's order), and is the same in every run. For each 64 k: all threads copy a tile of x and one
of W, through registers; syncthreads (the tiles are complete); each warp multiplies, with scales
read from global memory; syncthreads (all have read the tiles). Copies and products take turns.

    import numba_marlin as nm  # pip install -e '.[cu13]' (or cu12) in a checkout; GPU: sm_80 or up
    m, n, k = 16, 256, 512
    x, y = np.random.randn(m, k).astype(np.float16), np.empty((m, n), np.float16)
    p = nm.pack(nm.quantize(np.random.randn(k, n).astype(np.float32), group_size=128))
    tiled[(n // 64, (m + 15) // 16), 128](x, p.qweight, p.scales, y)  # run this file first
    assert np.allclose(y, x @ nm.dequantize(p, np.float32), rtol=0.001, atol=0.05)

x [m, k], y [m, n], scales [k / group_size, n]: float16; qweight: int32 [k / 16, 2 n]; C-contiguous.
m <= 16 * 65535; n is a multiple of 64, k and group_size are multiples of 16; group_size divides k
and is less than k (``naive`` says why). ``nm.matmul`` checks this, a launch does not. Instructions
that touch memory stay in order with each other, with w_tile[...] and with syncthreads.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx  # ptx.NAME(...) is the instruction of ptx/NAME.ptx: help(ptx.NAME)

TILE_M, TILE_N, TILE_K = 16, 64, 64  # 128 threads copy and multiply these: not to be changed alone
X_PITCH = TILE_K + 8  # halves, 9 * 16 bytes: rows begin 4 banks apart, 8 of ldmatrix fill all 32
W_ROWS, W_WORDS = TILE_K // 16, 2 * TILE_N  # of W's tile: rows of qweight (16 k each), words in one


@cuda.jit(device=True, forceinline=True)
def multiply(x_fragment, word, scale, sums):
    """-> sums + x * W, in fp32; W: (code - 8) * scale, rounded to float16, of nibbles 0, 4, 1, 5.
    0x6400 is 1024.0: with code in its lowest bits 1024 + code, 4 bits higher 1024 + 16 code."""
    low = ptx.lop3(word, 0x000F000F, 0x64006400, table=0xEA)  # a & b | c: (0xF0 & 0xCC) | 0xAA
    high = ptx.lop3(word, 0x00F000F0, 0x64006400, table=0xEA)  # cuts off what >> 8 does to the sign
    first = ptx.sub_f16x2(low, 0x64086408)  # 1024 + code - 1032
    second = ptx.fma_rn_f16x2(high, 0x2C002C00, 0xD480D480)  # (1024 + 16 code) / 16 - 72
    weights = ptx.mul_f16x2(first, scale), ptx.mul_f16x2(second, scale)
    return ptx.mma_m16n8k16_f32_f16(x_fragment, weights, sums)


@cuda.jit(device=True, forceinline=True)
def store(y, row, col, first, second):
    if row < y.shape[0]:  # the last tile may have rows past m
        y[row, col], y[row, col + 1] = first, second  # rounded to float16 here


@cuda.jit(device=True, forceinline=True)
def load_tiles(x, qweight, x_tile, w_tile, k_first):
    """Each thread: 16 bytes of each tile. Rows past m repeat the last one; nothing is past k."""
    row, k = cuda.threadIdx.x // 8, cuda.threadIdx.x % 8 * 8  # in x's tile
    if k_first + k < x.shape[1]:
        source = (min(cuda.blockIdx.y * TILE_M + row, x.shape[0] - 1), k_first + k)
        values = ptx.ld_global_v4_b32(ptx.cvta_to_global(x, source))
        ptx.st_shared_v4_b32(ptx.cvta_to_shared(x_tile, (row, k)), values)
    w_row, word = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32 * 4  # in W's tile
    if k_first + 16 * w_row < x.shape[1]:
        source = (k_first // 16 + w_row, cuda.blockIdx.x * W_WORDS + word)
        values = ptx.ld_global_v4_b32(ptx.cvta_to_global(qweight, source))
        ptx.st_shared_v4_b32(ptx.cvta_to_shared(w_tile, (w_row, word)), values)


@cuda.jit
def tiled(x, qweight, scales, y):
    x_tile = cuda.shared.array((TILE_M, X_PITCH), np.float16, alignment=16)  # [row][k]: 2304 bytes
    w_tile = cuda.shared.array((W_ROWS, W_WORDS), np.int32, alignment=16)  # [k // 16][word]: 2048
    depth, group_size = x.shape[1], x.shape[1] // scales.shape[0]
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    g, t, col_first = lane // 4, lane % 4, cuda.blockIdx.x * TILE_N
    left = right = (np.float32(0), np.float32(0), np.float32(0), np.float32(0))  # columns 0-7, 8-15
    for k_first in range(0, depth, TILE_K):  # the tiles' first k
        load_tiles(x, qweight, x_tile, w_tile, k_first)
        cuda.syncthreads()
        for w_row in range(min(TILE_K, depth - k_first) // 16):  # past k, tiles hold what was there
            x_place = (lane % 16, 16 * w_row + lane // 16 * 8)  # lanes 0-15: k 0-7; 16-31: k 8-15
            x_fragment = ptx.ldmatrix_x4(ptx.cvta_to_shared(x_tile, x_place))
            word = w_tile[w_row, 4 * lane + warp]  # lanes 8 apart: 4-way conflict; ampere has none
            scale_place = ((k_first + 16 * w_row) // group_size, col_first + 8 * g + 2 * warp)
            pair = ptx.ld_global_b32(ptx.cvta_to_global(scales, scale_place))  # of columns g, g + 8
            left = multiply(x_fragment, word, ptx.both_low_f16x2(pair), left)
            right = multiply(x_fragment, word >> 8, ptx.both_high_f16x2(pair), right)
        cuda.syncthreads()
    row, col = cuda.blockIdx.y * TILE_M + g, col_first + 16 * warp + 2 * t
    store(y, row, col, left[0], left[1])  # an mma leaves lane 4 g + t columns 2 t, 2 t + 1 of row g
    store(y, row + 8, col, left[2], left[3])  # and of row g + 8
    store(y, row, col + 8, right[0], right[1])
    store(y, row + 8, col + 8, right[2], right[3])
