"""Both operands block-scaled, few rows of A: ``D = activation(alpha * (A * SFA) @ (B * SFB)^T +
beta * C + bias)`` of NVFP4 matrices as fast as B comes from memory. sm_90a.

Parameters: tensor maps (``tensor_maps``) of a uint8 [m, k/2] and b uint8 [n, k/2], of sfa and sfb,
e4m3 in 128x4 order (``layout.block_scales``); c and d [m, n]; bias float32 [n]; factors float32
[2]: alpha, with both global scales and this kernel's powers of two in it, and beta; m, n, k as
int32. m any, k a multiple of 32, n of 8.

With few rows B is what takes time: 4.5 bits an element, once. So tensor cores multiply B by A, not
A by B: ``mma.sync``, whose 16 rows are B's and whose 8 columns are tokens. Both operands go from
shared memory into registers packed, 16 bytes a lane, and become halves there
(``block_scaled_expand``: the same order of k in both, no shuffle, nothing expanded is stored). A
warp has 64 rows of B and all tokens, so that expanding the tokens, which every warp does, costs an
eighth of the rest for 8 of them, half for 32.

    role        who                 takes                    gives
    load        one thread          A, B and their scales    stages, 256 of k
    multiply    2 x k_warps warps   a stage's half, 128 k    sums in registers
    epilogue    the same            all sums of a column     D

Launches overlap (``griddepcontrol``): blocks come and make ready while the kernel before ends, and
read nothing before it has.

Shares of k are added up in shared memory, those of a cluster's blocks through each other's, in an
order that is always the same.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.nvfp4.block_decode.config import (
    CHUNKS,
    COLUMNS,
    ROW_WARPS,
    SCALE_BYTES,
    STAGE_K,
    STAGE_ROW,
    WARP_BLOCKS,
    WARP_COLUMNS,
)
from numba_marlin.kernels.nvfp4.block_decode.output import output_verbs
from numba_marlin.kernels.nvfp4.block_scaled.config import ALIGNMENT, BLOCK
from numba_marlin.kernels.nvfp4.block_scaled.expand import number_verbs
from numba_marlin.layout.block_scales import TILE_BYTES, TILE_ROWS
from numba_marlin.layout.block_scales import tensor_map as scales_map
from numba_marlin.layout.tensor_map import TensorMap


def make(lang, config):
    cuda, ptx, uint32, int32, float32 = lang.cuda, lang.ptx, lang.uint32, lang.int32, lang.float32
    shared_base = lang.shared_base
    STAGE, A_SHARED, SFB_SHARED, SFA_SHARED, BARRIERS = (
        config.stage_bytes,
        config.a_shared,
        config.sfb_shared,
        config.sfa_shared,
        config.barriers_shared,
    )
    TOKENS, TOKEN_BLOCKS, CONSUMERS, SPLIT, STRIDE = (
        config.tokens,
        config.token_blocks,
        config.consumers,
        config.split,
        config.k_warps // CHUNKS,
    )
    BLOCKS, HALF_ROWS, SUMS, B_WORDS, A_WORDS, FRAGMENTS = (
        WARP_BLOCKS,
        2 * WARP_BLOCKS,
        4 * WARP_BLOCKS * TOKEN_BLOCKS,
        8 * WARP_BLOCKS,
        4 * TOKEN_BLOCKS,
        2 * TOKEN_BLOCKS,
    )
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=ROW_WARPS * CHUNKS)
    initialise, producer_start, advance = ring.initialise, ring.producer_start, ring.advance
    wait_full, wait_empty, expect, full, release = (
        ring.wait_full,
        ring.wait_empty,
        ring.expect,
        ring.full,
        ring.release,
    )
    numbers = number_verbs(lang)
    odd_nibbles, even_nibbles = numbers.odd_nibbles, numbers.even_nibbles
    times, low, high, matmul = (
        ptx.mul_f16x2,
        ptx.both_low_f16x2,
        ptx.both_high_f16x2,
        ptx.mma_m16n8k16_f32_f16,
    )
    output = output_verbs(lang, config)
    leave_sums, write_out = output.leave_sums, output.write_out

    @lang.device
    def load_stages(shared, maps, column, token, first, steps):
        a_map, b_map, sfa_map, sfb_map = maps
        place, step = producer_start(), first
        while step < first + steps:
            wait_empty(shared + BARRIERS, place)
            expect(shared + BARRIERS, place, STAGE)
            stage, barrier = (
                shared + place[0] * STAGE,
                full(shared + BARRIERS, place),
            )
            x, scale_x = int32(step * STAGE_ROW), int32(step * (SCALE_BYTES // 8))
            ptx.cp_async_bulk_tensor_2d_g2s(stage, b_map, x, int32(column), barrier)
            ptx.cp_async_bulk_tensor_2d_g2s(
                stage + SFB_SHARED,
                sfb_map,
                scale_x,
                int32(column // TILE_ROWS),
                barrier,
            )
            ptx.cp_async_bulk_tensor_2d_g2s(stage + A_SHARED, a_map, x, int32(token), barrier)
            ptx.cp_async_bulk_tensor_2d_g2s(
                stage + SFA_SHARED,
                sfa_map,
                scale_x,
                int32(token // TILE_ROWS),
                barrier,
            )
            place = advance(place)
            step = step + 1

    @lang.device
    def fetch(words, scales, i, rows, row_scales):
        """A lane's share of a row, 32 codes, and its two scales."""
        v = ptx.ld_shared_v4_b32(rows)
        for w in range(4):
            words[4 * i + w] = v[w]
        scales[i] = ptx.cvt_rn_f16x2_e4m3x2(ptx.ld_shared_b16(row_scales))

    def multiply_row(row):
        """-> device function that multiplies 16 of k: a word of every share, its odd nibbles or its
        even ones."""
        halves_of, word = (even_nibbles if row % 2 else odd_nibbles), row // 2

        @lang.device
        def multiply(acc, fragments, b_words, a_words, b_scales, a_scales):
            for j in range(TOKEN_BLOCKS):
                h = halves_of(a_words[4 * j + word])
                fragments[2 * j], fragments[2 * j + 1] = (
                    times(h[0], a_scales[j]),
                    times(h[1], a_scales[j]),
                )
            for i in range(BLOCKS):
                upper, lower = (
                    halves_of(b_words[8 * i + word]),
                    halves_of(b_words[8 * i + 4 + word]),
                )
                s, s_below = b_scales[2 * i], b_scales[2 * i + 1]
                b = (
                    times(upper[0], s),
                    times(lower[0], s_below),
                    times(upper[1], s),
                    times(lower[1], s_below),
                )
                for j in range(TOKEN_BLOCKS):
                    o = 4 * (TOKEN_BLOCKS * i + j)
                    d = matmul(
                        b,
                        (fragments[2 * j], fragments[2 * j + 1]),
                        (acc[o], acc[o + 1], acc[o + 2], acc[o + 3]),
                    )
                    for r in range(4):
                        acc[o + r] = d[r]

        return multiply

    row0, row1, row2, row3, row4, row5, row6, row7 = (multiply_row(row) for row in range(8))

    def scales_of(half):
        """-> device function that takes those of the first or the second block of every share"""

        @lang.device
        def take(b_scales, a_scales, b_pairs, a_pairs):
            for i in range(HALF_ROWS):
                b_scales[i] = half(b_pairs[i])
            for j in range(TOKEN_BLOCKS):
                a_scales[j] = half(a_pairs[j])

        return take

    first_scales, second_scales = scales_of(low), scales_of(high)

    @lang.device
    def multiply_stages(acc, shared, steps, token, lane_place):
        """The warp's share of the block's k."""
        row_warp, k_warp, own, t = lane_place
        b_words = cuda.local.array(B_WORDS, uint32)
        a_words = cuda.local.array(A_WORDS, uint32)
        b_pairs = cuda.local.array(HALF_ROWS, uint32)
        a_pairs = cuda.local.array(TOKEN_BLOCKS, uint32)
        b_scales = cuda.local.array(HALF_ROWS, uint32)
        a_scales = cuda.local.array(TOKEN_BLOCKS, uint32)
        fragments = cuda.local.array(FRAGMENTS, uint32)
        chunk = k_warp % CHUNKS
        share = (own * STAGE_ROW) + (((chunk * 4 + t) ^ own) << 4)
        # Scales in 128x4 order: those of the next row are 16 bytes behind, those of the row 32
        # behind 4 bytes.
        scale = (chunk * 2 + t // 2) * TILE_BYTES + own * 16 + t % 2 * 2
        b_share, b_scale = (
            share + row_warp * (WARP_COLUMNS * STAGE_ROW),
            SFB_SHARED + scale + row_warp * 8,
        )
        a_share, a_scale = (
            A_SHARED + share,
            (SFA_SHARED + scale + token % 32 * 16 + token % TILE_ROWS // 32 * 4),
        )
        step = k_warp // CHUNKS
        # a stage always has the same warps: in the first round those of its number
        place = ring.Place(step, 0)
        while step < steps:
            wait_full(shared + BARRIERS, place)
            stage = shared + place[0] * STAGE
            for i in range(HALF_ROWS):
                fetch(
                    b_words,
                    b_pairs,
                    i,
                    stage + b_share + (8 * STAGE_ROW * i),
                    stage + b_scale + (128 * (i % 4) + 4 * (i // 4)),
                )
            for j in range(TOKEN_BLOCKS):
                fetch(
                    a_words,
                    a_pairs,
                    j,
                    stage + a_share + (8 * STAGE_ROW * j),
                    stage + a_scale + (128 * j),
                )
            ptx.bar_warp_sync(ALL_LANES)
            if own == 0 and t == 0:
                release(shared + BARRIERS, place)
            first_scales(b_scales, a_scales, b_pairs, a_pairs)
            row0(acc, fragments, b_words, a_words, b_scales, a_scales)
            row1(acc, fragments, b_words, a_words, b_scales, a_scales)
            row2(acc, fragments, b_words, a_words, b_scales, a_scales)
            row3(acc, fragments, b_words, a_words, b_scales, a_scales)
            second_scales(b_scales, a_scales, b_pairs, a_pairs)
            row4(acc, fragments, b_words, a_words, b_scales, a_scales)
            row5(acc, fragments, b_words, a_words, b_scales, a_scales)
            row6(acc, fragments, b_words, a_words, b_scales, a_scales)
            row7(acc, fragments, b_words, a_words, b_scales, a_scales)
            for _ in range(STRIDE):
                place = advance(place)
            step = step + STRIDE

    @lang.device
    def row_of(g):
        """Of eight rows the one that lanes 4 g .. 4 g + 3 have: rows of neighbouring g are four
        apart, so that eight lanes that load at once meet different banks of the swizzle."""
        return ((g & 1) << 2) | (g >> 1)

    def kernel(a_map, b_map, sfa_map, sfb_map, c, d, bias, factors, m, n, k):
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)
        warp, lane = ptx.tid_x() // 32, ptx.tid_x() % 32
        column, token = (
            uint32(cuda.blockIdx.x) // SPLIT * COLUMNS,
            uint32(cuda.blockIdx.y) * TOKENS,
        )
        rank = uint32(cuda.blockIdx.x) % SPLIT
        all_steps = (uint32(k) + (STAGE_K - 1)) // STAGE_K
        share = (all_steps + (SPLIT - 1)) // SPLIT
        first = min(rank * share, all_steps)
        steps = min(all_steps - first, share)
        if ptx.tid_x() == 0:
            initialise(shared + BARRIERS)
        cuda.syncthreads()
        ptx.griddepcontrol_wait()  # both operands may be what the kernel before has just written
        ptx.griddepcontrol_launch_dependents()
        if warp == CONSUMERS:
            if lane == 0:
                load_stages(shared, (a_map, b_map, sfa_map, sfb_map), column, token, first, steps)
        else:
            acc = cuda.local.array(SUMS, float32)
            for i in range(SUMS):
                acc[i] = float32(0)
            lane_place = (
                warp % ROW_WARPS,
                warp // ROW_WARPS,
                row_of(lane // 4),
                lane % 4,
            )
            multiply_stages(acc, shared, steps, token, lane_place)
            leave_sums(acc, shared, lane_place)
            write_out(shared, (c, d, bias, factors), (token, column, uint32(m), uint32(n)), rank)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """A and B in boxes of 128 bytes of a block's rows, in the 128-byte swizzle; scales in boxes of
    those of a stage."""

    def matrix(rows, box):
        return TensorMap("uint8", (rows, k // 2), (k // 2, 1), (box, STAGE_ROW), STAGE_ROW, 256)

    def scales(rows):
        return scales_map(rows, k // BLOCK, (1, SCALE_BYTES // TILE_BYTES))

    return {
        "a_map": ("a", matrix(m, config.tokens)),
        "b_map": ("b", matrix(n, COLUMNS)),
        "sfa_map": ("sfa", scales(m)),
        "sfb_map": ("sfb", scales(n)),
    }
