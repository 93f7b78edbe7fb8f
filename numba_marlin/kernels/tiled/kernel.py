"""The second kernel of the ladder, after ``naive``: shared memory and tensor cores. 104 us on an
H200 and not 1333 (16 rows of x, 4096 x 4096 weights W; cold L2, experiments/18_ladder).

A packed word *is* two tensor-core fragments. ``mma.m16n8k16`` multiplies 16 rows of x by 8 columns
of W, 16 deep, and wants lane 4 g + t to hold, of column g, the weights at k = 2 t, 2 t + 1, 2 t + 8
and 2 t + 9. Row k0 / 16 of qweight, words 2 n0 to 2 n0 + 127, hold 16 k by 64 columns from k0, n0
on. Word 4 * lane + j of them has those of column n0 + 16 j + g in nibbles 0, 4, 1, 5, in this order
of k, and where a shift right by 8 bits finds them (2, 6, 3, 7) those of column n0 + 16 j + g + 8.

A thread block of 4 warps makes 16 x 64 outputs, warp w columns 16 w to 16 w + 15 of them (j = w),
over all of k. So no sums are exchanged; each is fp32, in the order of k, in every run the same. For
each 64 steps of k: all threads copy a tile of x and one of W through registers to shared memory;
syncthreads (they are there); each warp multiplies; syncthreads (all have read them, they may be
overwritten). Loads and products take turns. Scales come from global memory, where they are used.

    import numba_marlin as nm  # to run after this file; GPU of sm_80 or newer, numba-cuda >= 0.30
    m, n, k = 16, 256, 512
    x, y = np.random.randn(m, k).astype(np.float16), np.empty((m, n), np.float16)
    p = nm.pack(nm.quantize(np.random.randn(k, n).astype(np.float32), group_size=128))
    tiled[(n // 64, (m + 15) // 16), 128](x, p.qweight, p.scales, y)
    assert np.allclose(y, x.astype(np.float32) @ nm.dequantize(p, np.float32), 0.001, 0.05)

x [m, k], y [m, n], scales [k / group_size, n]: float16; qweight: int32 [k / 16, 2 n]; C-contiguous,
on host or device. 16 divides k and group_size < k, 64 divides n. ``ptx.NAME(...)`` is one PTX
instruction (ptx/NAME.ptx; help(ptx.NAME)) in any @cuda.jit kernel; vectors are tuples, an immediate
is a keyword, ints take the operand's type. cvta_to_*(array, index): the address of array[index].
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx

TILE_M, TILE_N, TILE_K = 16, 64, 64  # with 128 threads: load_tiles and the warps' shares assume it
X_PITCH = TILE_K + 8  # halves: 36 words, so that 8 rows of 16 bytes (ldmatrix) fill all 32 banks
W_ROWS, W_WORDS = TILE_K // 16, 2 * TILE_N  # rows of packed words (16 k each), words of a row


@cuda.jit(device=True, forceinline=True)
def multiply(x_fragment, word, scale, sums):
    """sums += x [16 x 16] * W [16 x 8], (code - 8) * scale of nibbles 0, 4 and 1, 5, in float16:
    0x6400 is 1024.0, so 0x6400 | code is 1024 + code; 4 bits further up, code counts 16 times."""
    low = ptx.lop3(word, 0x000F000F, 0x64006400, table=0xEA)  # (word & 0x000F000F) | 0x64006400
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
def load_tiles(x, qweight, x_tile, w_tile, k_first):
    """Copy 16 bytes of each tile per thread; for rows past m x's last one, nothing past k's end."""
    thread = cuda.threadIdx.x
    row, k = thread // 8, thread % 8 * 8  # in x's tile
    if k_first + k < x.shape[1]:
        here = (min(cuda.blockIdx.y * TILE_M + row, x.shape[0] - 1), k_first + k)
        values = ptx.ld_global_v4_b32(ptx.cvta_to_global(x, here))
        ptx.st_shared_v4_b32(ptx.cvta_to_shared(x_tile, (row, k)), values)
    w_row, word = thread // 32, thread % 32 * 4
    if k_first + 16 * w_row < x.shape[1]:
        here = (k_first // 16 + w_row, cuda.blockIdx.x * W_WORDS + word)
        values = ptx.ld_global_v4_b32(ptx.cvta_to_global(qweight, here))
        ptx.st_shared_v4_b32(ptx.cvta_to_shared(w_tile, (w_row, word)), values)


@cuda.jit
def tiled(x, qweight, scales, y):
    x_tile = cuda.shared.array((TILE_M, X_PITCH), np.float16, alignment=16)  # [row of x, k]
    w_tile = cuda.shared.array((W_ROWS, W_WORDS), np.int32, alignment=16)  # [k // 16, word]
    depth, group_size = x.shape[1], x.shape[1] // scales.shape[0]
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    g, t, col_first = lane // 4, lane % 4, cuda.blockIdx.x * TILE_N
    left = right = (np.float32(0), np.float32(0), np.float32(0), np.float32(0))
    for k_first in range(0, depth, TILE_K):  # left, right: sums of the warp's columns 0-7, 8-15
        load_tiles(x, qweight, x_tile, w_tile, k_first)
        cuda.syncthreads()
        for w_row in range(min(TILE_K, depth - k_first) // 16):
            # lanes 0-7, 8-15, 16-23, 24-31 give the rows of rows 0-7, 8-15 at k 0-7, then at k 8-15
            place = (lane % 16, 16 * w_row + lane // 16 * 8)
            x_fragment = ptx.ldmatrix_x4(ptx.cvta_to_shared(x_tile, place))
            word = w_tile[w_row, 4 * lane + warp]  # a 4-way bank conflict, left as it is
            here = ((k_first + 16 * w_row) // group_size, col_first + 8 * g + 2 * warp)
            pair = ptx.ld_global_b32(ptx.cvta_to_global(scales, here))  # the warp's columns g, g+8
            left = multiply(x_fragment, word, ptx.both_low_f16x2(pair), left)  # low half, twice
            right = multiply(x_fragment, word >> 8, ptx.both_high_f16x2(pair), right)
        cuda.syncthreads()
    # the mma leaves in lane 4 g + t sums of columns 2 t, 2 t + 1 in rows g (first two) and g + 8
    row, col = cuda.blockIdx.y * TILE_M + g, col_first + 16 * warp + 2 * t
    store(y, row, col, left[0], left[1])
    store(y, row + 8, col, left[2], left[3])
    store(y, row, col + 8, right[0], right[1])
    store(y, row + 8, col + 8, right[2], right[3])
