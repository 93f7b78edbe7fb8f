"""Block-scaled tensor cores without tensor memory: ``mma.sync`` with block scales. sm_120a (RTX
50).

``D[m, n] = alpha * (A * SFA) @ (B * SFB)^T``; parameters: tensor maps (``tensor_maps``) of a uint8
[m, k/2] and b uint8 [n, k/2] (k contiguous, of two FP4 in a byte the low one first), of sfa and
sfb, their scales in 128x4 order (``layout.block_scales``); d [m, n] and alpha, float32 [1], as
addresses; m, n, k as int32. m any, k a multiple of 32, n of 8.

A block multiplies a tile of 128 x 128, a warp 32 x 64 of it. One thread of the last warp keeps the
stages full: TMA, 128-byte swizzle. The fragments of FP4 are those of bytes, or of halves, seen as
bytes: ``ldmatrix`` fetches them. Scales come as words, one for each row and 64 of k, and each lane
holds other rows' words: the four lanes of a quad have those of 32 rows of A in one register, and
those of 64 columns of B in two; every ``mma`` says which lanes' words are meant (thread-id-a, -b).
Words of neighbouring rows lie 16 bytes apart in the 128x4 order, so a load of them takes four
wavefronts: a quarter of the kernel's traffic with shared memory are such conflicts
(experiments/12_blackwell).

No GPU that has this instruction has run this; the PTX machine has, under the assumptions of
``emulator.tensor.block_scales``.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.nvfp4.block_mma.config import (
    ALIGNMENT,
    CONSUMERS,
    SCALES_OF_A_STEP,
    STAGE_K,
    STAGE_ROW,
    STEPS,
    TILE,
    WARP_COLUMNS,
    WARP_ROWS,
)
from numba_marlin.layout.block_scales import TILE_BLOCKS, TILE_BYTES, TILE_ROWS
from numba_marlin.layout.block_scales import tensor_map as scales_map
from numba_marlin.layout.tensor_map import TensorMap

M_TILES, N_TILES = WARP_ROWS // 16, WARP_COLUMNS // 8
SUMS = 4  # a lane's, of a product of 16 x 8


def make(lang, config):
    cuda, ptx, uint32, uint64, int32 = lang.cuda, lang.ptx, lang.uint32, lang.uint64, lang.int32
    shared_base = lang.shared_base
    STAGE, BARRIERS, B_SHARED, SFA_SHARED, SFB_SHARED = (
        ceil_div(config.stage_bytes, ALIGNMENT) * ALIGNMENT,
        config.barriers_shared,
        config.b_shared,
        config.sfa_shared,
        config.sfb_shared,
    )
    STAGE_BYTES, SCALE_UNITS, VECTORS, HALVES = (
        config.stage_bytes,
        config.scale_tiles * TILE_BYTES // 8,
        SCALES_OF_A_STEP[config.format],
        config.result != "float32",
    )
    RESULT_SIZE = 2 if HALVES else 4
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=CONSUMERS)
    initialise, producer_start, consumer_start, advance = (
        ring.initialise,
        ring.producer_start,
        ring.consumer_start,
        ring.advance,
    )
    wait_full, wait_empty, expect, full, release = (
        ring.wait_full,
        ring.wait_empty,
        ring.expect,
        ring.full,
        ring.release,
    )
    zeros = ptx.zero_f32(width=SUMS * M_TILES * N_TILES)
    pair_of = ptx.cvt_rn_bf16x2_f32 if config.result == "bfloat16" else ptx.cvt_rn_f16x2_f32

    @lang.device
    def load_tile(shared, maps, row, column, steps):
        a_map, b_map, sfa_map, sfb_map = maps
        place, step = producer_start(), 0
        while step < steps:
            wait_empty(shared + BARRIERS, place)
            expect(shared + BARRIERS, place, STAGE_BYTES)
            stage, barrier = (
                shared + place[0] * STAGE,
                full(shared + BARRIERS, place),
            )
            ptx.cp_async_bulk_tensor_2d_g2s_cta(
                stage, a_map, int32(step * STAGE_ROW), int32(row), barrier
            )
            ptx.cp_async_bulk_tensor_2d_g2s_cta(
                stage + B_SHARED,
                b_map,
                int32(step * STAGE_ROW),
                int32(column),
                barrier,
            )
            ptx.cp_async_bulk_tensor_2d_g2s_cta(
                stage + SFA_SHARED,
                sfa_map,
                int32(step * SCALE_UNITS),
                int32(row // TILE_ROWS),
                barrier,
            )
            ptx.cp_async_bulk_tensor_2d_g2s_cta(
                stage + SFB_SHARED,
                sfb_map,
                int32(step * SCALE_UNITS),
                int32(column // TILE_ROWS),
                barrier,
            )
            place = advance(place)
            step = step + 1

    @lang.device
    def fetch(rows, row, chunk):
        """Four 8 x 16-byte matrices: the lane names a row and a chunk of it."""
        return ptx.ldmatrix_x4(rows + row * STAGE_ROW + ((chunk ^ (row & 7)) << 4))

    def products_from(first, count, byte):
        """-> device function (sums of ``count`` products from number ``first`` on, a, b, sfa, sfb)
        -> sums; product i is of rows 16 (i // N_TILES) and columns 8 (i % N_TILES) on."""
        if count > 1:
            half = count // 2
            own = SUMS * half
            low, high = (
                products_from(first, half, byte),
                products_from(first + half, count - half, byte),
            )

            @lang.device
            def both(sums, a, b, sfa, sfb):
                return low(sums[:own], a, b, sfa, sfb) + high(sums[own:], a, b, sfa, sfb)

            return both
        row, column = divmod(first, N_TILES)
        threads = {"thread_a": row, "thread_b": column % 4}
        multiply = (
            ptx.mma_m16n8k64_f32_mxf4nvf4_4x(**threads)
            if config.format == "nvfp4"
            else ptx.mma_m16n8k64_f32_mxf4_2x(byte=byte, **threads)
        )
        A, A_END, B, B_END, WORD = 4 * row, 4 * row + 4, 2 * column, 2 * column + 2, column // 4

        @lang.device
        def one(sums, a, b, sfa, sfb):
            return multiply(a[A:A_END], b[B:B_END], sums, sfa, sfb[WORD])

        return one

    def step_verb(byte):
        multiply = products_from(0, M_TILES * N_TILES, byte)

        @lang.device
        def multiply_step(sums, stage, step, lane_place):
            """64 of k: all fragments and scales, then 16 products."""
            lane, warp_row, warp_column = lane_place
            row = warp_row * WARP_ROWS + lane % 16
            chunk = (step * 2) + lane // 16
            a = fetch(stage, row, chunk) + fetch(stage, row + 16, chunk)
            column = warp_column * WARP_COLUMNS + lane // 16 * 8 + lane % 8
            side = (step * 2) + lane // 8 % 2
            rows = stage + B_SHARED
            b = (
                fetch(rows, column, side)
                + fetch(rows, column + 16, side)
                + fetch(rows, column + 32, side)
                + fetch(rows, column + 48, side)
            )
            group, member = lane // 4, lane % 4
            tile = step * VECTORS // TILE_BLOCKS * TILE_BYTES
            sfa = ptx.ld_shared_b32(
                stage + SFA_SHARED + tile + (member * 8 + group) * 16 + warp_row * 4
            )
            sfb = ptx.ld_shared_v2_b32(
                stage + SFB_SHARED + tile + (member * 8 + group) * 16 + warp_column * 8
            )
            return multiply(sums, a, b, sfa, sfb)

        return multiply_step

    multiply_even = step_verb(0)
    multiply_odd = multiply_even if VECTORS == 4 else step_verb(VECTORS)

    @lang.device
    def multiply_stages(shared, steps, lane_place):
        place, sums, step = consumer_start(), zeros(), 0
        while step < steps:
            wait_full(shared + BARRIERS, place)
            stage = shared + place[0] * STAGE
            for pair in range(STEPS // 2):
                sums = multiply_even(sums, stage, 2 * pair, lane_place)
                sums = multiply_odd(sums, stage, 2 * pair + 1, lane_place)
            ptx.bar_warp_sync(ALL_LANES)
            if lane_place[0] == 0:
                release(shared + BARRIERS, place)
            place = advance(place)
            step = step + 1
        return sums

    @lang.device
    def store_pair(d, row, column, low, high, sizes):
        if row < sizes[0] and column < sizes[1]:
            address = d + (uint64(row) * uint64(sizes[1]) + uint64(column)) * RESULT_SIZE
            if HALVES:
                ptx.st_global_b32(address, pair_of(low, high))
            else:
                ptx.st_global_v2_f32(address, (low, high))

    def stores_from(first, count):
        if count > 1:
            half = count // 2
            own = SUMS * half
            low, high = stores_from(first, half), stores_from(first + half, count - half)

            @lang.device
            def both(sums, d, row, column, alpha, sizes):
                low(sums[:own], d, row, column, alpha, sizes)
                high(sums[own:], d, row, column, alpha, sizes)

            return both
        DOWN, ACROSS = first // N_TILES * 16, first % N_TILES * 8

        @lang.device
        def one(sums, d, row, column, alpha, sizes):
            store_pair(
                d,
                row + DOWN,
                column + ACROSS,
                sums[0] * alpha,
                sums[1] * alpha,
                sizes,
            )
            store_pair(
                d,
                row + (DOWN + 8),
                column + ACROSS,
                sums[2] * alpha,
                sums[3] * alpha,
                sizes,
            )

        return one

    store = stores_from(0, M_TILES * N_TILES)

    def kernel(a_map, b_map, sfa_map, sfb_map, d, alpha, m, n, k):
        sizes = (uint32(m), uint32(n))
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)
        warp, lane = ptx.tid_x() // 32, ptx.tid_x() % 32
        row_tiles = (sizes[0] + (TILE - 1)) // TILE
        row, column = (
            uint32(cuda.blockIdx.x) % row_tiles * TILE,
            uint32(cuda.blockIdx.x) // row_tiles * TILE,
        )
        steps = (uint32(k) + (STAGE_K - 1)) // STAGE_K
        if ptx.tid_x() == 0:
            initialise(shared + BARRIERS)
        cuda.syncthreads()
        if warp == CONSUMERS:
            if lane == 0:
                load_tile(shared, (a_map, b_map, sfa_map, sfb_map), row, column, steps)
        else:
            lane_place = lane, warp // 2, warp % 2
            sums = multiply_stages(shared, steps, lane_place)
            own_row, own_column = (
                row + lane_place[1] * WARP_ROWS + lane // 4,
                column + lane_place[2] * WARP_COLUMNS + lane % 4 * 2,
            )
            store(sums, d, uint32(own_row), uint32(own_column), ptx.ld_global_f32(alpha), sizes)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """A and B in boxes of a tile's rows by 128 bytes; scales in boxes of those of a stage."""

    def matrix(rows):
        return TensorMap("uint8", (rows, k // 2), (k // 2, 1), (TILE, STAGE_ROW), STAGE_ROW, 256)

    def scales(rows):
        return scales_map(rows, k // config.block, (1, config.scale_tiles))

    return {
        "a_map": ("a", matrix(m)),
        "b_map": ("b", matrix(n)),
        "sfa_map": ("sfa", scales(m)),
        "sfb_map": ("sfb", scales(n)),
    }
