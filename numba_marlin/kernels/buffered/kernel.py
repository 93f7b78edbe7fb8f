"""The third kernel of the ladder, after ``tiled``: a double buffer. The next tiles arrive while
these are multiplied: 79 us on an H200 and not 104 (m 16, n, k 4096; experiments/18_ladder).

Nibble p (bits 4 p to 4 p + 3) of qweight[k0 / 16, 2 n0 + 4 (4 g + t) + j] is the code of W[k, n],
k = k0 + 2 t + p // 4 + 8 (p % 2), n = n0 + 16 j + g + 8 (p // 2 % 2). (k0, n0: multiples of 16, 64;
j, t: 0 to 3; g: 0 to 7.) So a word is lane 4 g + t's share of two B fragments of ``mma.m16n8k16``:
nibbles 0, 4, 1, 5 and, 8 columns on, 2, 6, 3, 7. The scale of column n0 + c is in its group's row
at n0 + 8 (c % 8) + c // 8: those of columns n and n + 8 are neighbours. A thread block of 4 warps
makes 16 x 64 outputs over all rows of W, warp j (word j of each lane's four) columns 16 j and on.
No sums are exchanged; each is fp32, 16 rows of W after 16 (as in ``tiled``), the same in every run.

Two stages of shared memory; tiles i of x and W (64 rows of W) are in stage i % 2. Turn i starts
copies of tiles i + 1 (cp.async, past L1) and commits them as a group; ``wait_group n=1``: all of
the thread's groups but the newest are complete, so its copies of tiles i; syncthreads: all threads'
are; per 16 rows, a warp loads from stage i % 2, waits for two scales per lane from global memory,
multiplies; syncthreads: all have read the stage, turn i + 1 may copy there. S stages: arrays of S,
stage i % S, S - 1 groups before the loop; turn i copies tiles i + S - 1 to stage (i + S - 1) % S; n
is S - 1. S = 1 is correct but overlaps nothing; 11 (of 4352 bytes) fit in 48 KiB of static memory.
State of the loop: ``k_first``, the tiles' first row of W (64 i); ``stage`` (i % 2); ``left`` and
``right``, four sums each in a lane; a thread's groups, i + 2 at the wait.

    import numba_marlin as nm  # pip install -e '.[cu13]' (or cu12) in a checkout; GPU: sm_80 or up
    x, y = np.random.randn(16, 512).astype(np.float16), np.empty((16, 256), np.float16)
    p = nm.pack(nm.quantize(np.random.randn(512, 256).astype(np.float32), group_size=128))
    buffered[(256 // 64, (16 + 15) // 16), 128](x, p.qweight, p.scales, y)  # n 256, m 16
    assert np.allclose(y, x @ nm.dequantize(p, np.float32), rtol=0.001, atol=0.05)

x [m, k], y [m, n], scales [k / group_size, n]: float16; qweight: int32 [k / 16, 2 n]; C-contiguous,
aligned to 16 bytes. m <= 16 * 65535; 64 divides n; 16 divides group_size, which divides k and is
less (``naive``). nm.matmul checks it, a launch does not. PTX has accesses and barriers in order."""

import numpy as np
from numba import cuda

from numba_marlin import ptx  # ptx.NAME(...) is the instruction of ptx/NAME.ptx: help(ptx.NAME)

TILE_M, TILE_N, TILE_K = 16, 64, 64  # 128 threads copy and multiply these: not to be changed alone
X_PITCH = TILE_K + 8  # in halves; rows begin 4 banks apart: 8 rows of 16 bytes (ldmatrix) fill 32
W_ROWS, W_WORDS = TILE_K // 16, 2 * TILE_N  # of W's tile: rows of qweight (16 k each), words in one


@cuda.jit(device=True, forceinline=True)
def multiply(x_fragment, word, scale, sums):
    """-> sums + x * W in fp32; W: (code - 8) * scale, rounded to float16, of nibbles 0, 4, 1, 5."""
    low = ptx.lop3(word, 0x000F000F, 0x64006400, table=0xEA)  # a & b | c: 1024 + code
    high = ptx.lop3(word, 0x00F000F0, 0x64006400, table=0xEA)  # 1024 + 16 code; >> 8's sign is cut
    first = ptx.sub_f16x2(low, 0x64086408)  # 1024 + code - 1032
    second = ptx.fma_rn_f16x2(high, 0x2C002C00, 0xD480D480)  # (1024 + 16 code) / 16 - 72
    weights = ptx.mul_f16x2(first, scale), ptx.mul_f16x2(second, scale)
    return ptx.mma_m16n8k16_f32_f16(x_fragment, weights, sums)


@cuda.jit(device=True, forceinline=True)
def store(y, row, col, first, second):
    if row < y.shape[0]:  # the last tile may have rows past m
        y[row, col], y[row, col + 1] = first, second  # no shuffle: 2-byte stores, cvt.rn (nearest)


@cuda.jit(device=True, forceinline=True)
def fetch(x, qweight, x_tile, w_tile, stage, k_first):
    r, c = cuda.threadIdx.x // 8, cuda.threadIdx.x % 8 * 8  # in x's tile: 8 threads, all 32 banks
    if k_first + c < x.shape[1]:  # nothing is copied past k; for rows past m, the last one is
        src = (min(cuda.blockIdx.y * TILE_M + r, x.shape[0] - 1), k_first + c)
        ptx.cp_async_16(ptx.cvta_to_shared(x_tile, (stage, r, c)), ptx.cvta_to_global(x, src))
    r, c = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32 * 4  # in W's tile: 8 threads, 32 banks
    if k_first + 16 * r < x.shape[1]:
        src = (k_first // 16 + r, cuda.blockIdx.x * W_WORDS + c)
        ptx.cp_async_16(ptx.cvta_to_shared(w_tile, (stage, r, c)), ptx.cvta_to_global(qweight, src))
    ptx.cp_async_commit_group()  # empty in the last turn: wait_group counts it


@cuda.jit
def buffered(x, qweight, scales, y):
    x_tile = cuda.shared.array((2, TILE_M, X_PITCH), np.float16, alignment=16)  # [stage][row][k]
    w_tile = cuda.shared.array((2, W_ROWS, W_WORDS), np.int32, alignment=16)  # stage, k // 16, word
    k, group_size = x.shape[1], x.shape[1] // scales.shape[0]
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    g, t, col_first = lane // 4, lane % 4, cuda.blockIdx.x * TILE_N
    left = right = (np.float32(0), np.float32(0), np.float32(0), np.float32(0))  # columns 0-7, 8-15
    fetch(x, qweight, x_tile, w_tile, 0, 0)  # tiles 0, to stage 0
    for k_first in range(0, k, TILE_K):  # turn i = k_first // TILE_K
        stage = k_first // TILE_K % 2  # to be multiplied
        fetch(x, qweight, x_tile, w_tile, 1 - stage, k_first + TILE_K)
        ptx.cp_async_wait_group(n=1)
        cuda.syncthreads()
        for k16_row in range(min(TILE_K, k - k_first) // 16):  # past k, tiles are stale
            x_place = (stage, lane % 16, 16 * k16_row + lane // 16 * 8)  # lanes 16-31: k 8-15
            x_fragment = ptx.ldmatrix_x4(ptx.cvta_to_shared(x_tile, x_place))
            word = w_tile[stage, k16_row, 4 * lane + warp]  # lanes 8 apart: 4-way bank conflict
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
