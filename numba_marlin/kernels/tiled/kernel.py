"""The second kernel of the ladder, after ``naive``: shared memory and tensor cores. 104 us on an
H200 and not 1333 (m 16, n, k 4096; experiments/18_ladder). These are 64 blocks: half the SMs idle.

Nibble p (bits 4 p to 4 p + 3) of qweight[k0 / 16, 2 n0 + 4 (4 g + t) + j] is the code of W[k, n],
k = k0 + 2 t + p // 4 + 8 (p % 2), n = n0 + 16 j + g + 8 (p // 2 % 2). (k0, n0: multiples of 16, 64;
j, t: 0 to 3; g: 0 to 7.) So a word is lane 4 g + t's share of two B fragments of ``mma.m16n8k16``:
nibbles 0, 4, 1, 5 and, 8 columns on, 2, 6, 3, 7. The scale of column n0 + c is in its group's row
at n0 + 8 (c % 8) + c // 8: those of columns n and n + 8 are neighbours.

A thread block of 4 warps makes 16 x 64 outputs over all rows of W; warp j, by word j of each lane's
four, columns 16 j to 16 j + 15. So no sums are exchanged; each is fp32, adds 16 rows of W after 16
(inside an mma in the hardware's order), and is the same in every run. A round, for 64 rows of W:
threads copy tiles of x and W, through registers; syncthreads (tiles complete); per 16 rows, a warp
loads from them, loads two scales per lane from global memory, waits, dequantises, multiplies;
syncthreads (all have read the tiles). A block's copies and products do not overlap. State of the
loop: ``k_first``, the tiles' first row of W; ``k16_row``, which 16 of their 64; ``left`` and
``right``, four sums each in a lane, of columns 0-7 and 8-15 of its warp's 16.

    import numba_marlin as nm  # pip install -e '.[cu13]' (or cu12) in a checkout; GPU: sm_80 or up
    x, y = np.random.randn(16, 512).astype(np.float16), np.empty((16, 256), np.float16)
    p = nm.pack(nm.quantize(np.random.randn(512, 256).astype(np.float32), group_size=128))
    tiled[(256 // 64, (16 + 15) // 16), 128](x, p.qweight, p.scales, y)  # n 256, m 16
    assert np.allclose(y, x @ nm.dequantize(p, np.float32), rtol=0.001, atol=0.05)

x [m, k], y [m, n], scales [k / group_size, n]: float16; qweight: int32 [k / 16, 2 n]; C-contiguous,
aligned to 16 bytes. m <= 16 * 65535; 64 divides n; 16 divides group_size, which divides k and is
less (see ``naive``). nm.matmul checks it, a launch does not. In PTX, accesses to memory (ptx.NAME,
w_tile[...]) and syncthreads are in the order written."""

import numpy as np
from numba import cuda

from numba_marlin import ptx  # ptx.NAME(...) is the instruction of ptx/NAME.ptx: help(ptx.NAME)

TILE_M, TILE_N, TILE_K = 16, 64, 64  # 128 threads copy and multiply these: not to be changed alone
X_PITCH = TILE_K + 8  # in halves; rows begin 4 banks apart: 8 rows of 16 bytes (ldmatrix) fill 32
W_ROWS, W_WORDS = TILE_K // 16, 2 * TILE_N  # of W's tile: rows of qweight (16 k each), words in one


@cuda.jit(device=True, forceinline=True)
def multiply(x_fragment, word, scale, sums):
    """-> sums + x * W, in fp32; W: (code - 8) * scale, rounded to float16, of nibbles 0, 4, 1, 5.
    0x6400 is 1024.0. The masks also drop what ``word >> 8`` below has copied of word's sign."""
    low = ptx.lop3(word, 0x000F000F, 0x64006400, table=0xEA)  # a & b | c: 1024 + code
    high = ptx.lop3(word, 0x00F000F0, 0x64006400, table=0xEA)  # 4 bits higher: 1024 + 16 code
    first = ptx.sub_f16x2(low, 0x64086408)  # 1024 + code - 1032
    second = ptx.fma_rn_f16x2(high, 0x2C002C00, 0xD480D480)  # (1024 + 16 code) / 16 - 72
    weights = ptx.mul_f16x2(first, scale), ptx.mul_f16x2(second, scale)
    return ptx.mma_m16n8k16_f32_f16(x_fragment, weights, sums)


@cuda.jit(device=True, forceinline=True)
def store(y, row, col, first, second):
    if row < y.shape[0]:  # the last tile may have rows past m
        y[row, col], y[row, col + 1] = first, second  # no shuffle: 2-byte stores, cvt.rn (nearest)


@cuda.jit(device=True, forceinline=True)
def load_tiles(x, qweight, x_tile, w_tile, k_first):
    """A thread: 16 bytes of each tile; 8 threads: 128 in a row, so no bank conflict. Rows past m
    repeat the last; nothing is copied past k. ptxas puts both loads first: one latency (sm_90a)."""
    x_row, x_col = cuda.threadIdx.x // 8, cuda.threadIdx.x % 8 * 8  # in x's tile
    if k_first + x_col < x.shape[1]:
        source = (min(cuda.blockIdx.y * TILE_M + x_row, x.shape[0] - 1), k_first + x_col)
        values = ptx.ld_global_v4_b32(ptx.cvta_to_global(x, source))
        ptx.st_shared_v4_b32(ptx.cvta_to_shared(x_tile, (x_row, x_col)), values)
    k16_row, w_col = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32 * 4  # in W's tile
    if k_first + 16 * k16_row < x.shape[1]:
        source = (k_first // 16 + k16_row, cuda.blockIdx.x * W_WORDS + w_col)
        values = ptx.ld_global_v4_b32(ptx.cvta_to_global(qweight, source))
        ptx.st_shared_v4_b32(ptx.cvta_to_shared(w_tile, (k16_row, w_col)), values)


@cuda.jit
def tiled(x, qweight, scales, y):
    x_tile = cuda.shared.array((TILE_M, X_PITCH), np.float16, alignment=16)  # [row][k]: 2304 bytes
    w_tile = cuda.shared.array((W_ROWS, W_WORDS), np.int32, alignment=16)  # 2048; [k // 16][word]
    k, group_size = x.shape[1], x.shape[1] // scales.shape[0]
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    g, t, col_first = lane // 4, lane % 4, cuda.blockIdx.x * TILE_N
    left = right = (np.float32(0), np.float32(0), np.float32(0), np.float32(0))  # columns 0-7, 8-15
    for k_first in range(0, k, TILE_K):
        load_tiles(x, qweight, x_tile, w_tile, k_first)
        cuda.syncthreads()
        for k16_row in range(min(TILE_K, k - k_first) // 16):  # past k, tiles are stale
            x_place = (lane % 16, 16 * k16_row + lane // 16 * 8)  # lanes 0-15: k 0-7; 16-31: k 8-15
            x_fragment = ptx.ldmatrix_x4(ptx.cvta_to_shared(x_tile, x_place))
            # lanes 8 apart: 4-way bank conflict (kernel ``ampere`` reads j = 0 to 3 at once: none)
            word = w_tile[k16_row, 4 * lane + warp]
            scale_place = ((k_first + 16 * k16_row) // group_size, col_first + 8 * g + 2 * warp)
            pair = ptx.ld_global_b32(ptx.cvta_to_global(scales, scale_place))  # of columns g, g + 8
            left = multiply(x_fragment, word, ptx.both_low_f16x2(pair), left)
            right = multiply(x_fragment, word >> 8, ptx.both_high_f16x2(pair), right)
        cuda.syncthreads()
    row, col = cuda.blockIdx.y * TILE_M + g, col_first + 16 * warp + 2 * t
    store(y, row, col, left[0], left[1])  # an mma leaves lane 4 g + t columns 2 t, 2 t + 1 of row g
    store(y, row + 8, col, left[2], left[3])  # and of row g + 8
    store(y, row, col + 8, right[0], right[1])
    store(y, row + 8, col + 8, right[2], right[3])
