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
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.nvfp4.block_mma.config import (
    ALIGNMENT,
    CONSUMERS,
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
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    uint32, uint64, int32 = lang.uint32, lang.uint64, lang.int32
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=CONSUMERS)
    zeros = ptx.zero_f32(width=SUMS * M_TILES * N_TILES)
    pair_of = ptx.cvt_rn_bf16x2_f32 if config.result == "bfloat16" else ptx.cvt_rn_f16x2_f32

    Sizes = lang.record("Sizes", "m n k")

    # of D: where a tile, or what a lane has of one, begins
    Tile = lang.record("Tile", "row column")

    # warp_m, warp_n: which rows and which columns of the tile are the warp's
    Thread = lang.record("Thread", "warp_m warp_n lane")

    Maps = lang.record("Maps", "a b sfa sfb")

    Output = lang.record("Output", "d alpha")

    # in a lane's registers, of 64 of k: fragments of A and B, a word and two words of scales
    Operands = lang.record("Operands", "a b sfa sfb")

    @lang.device
    def steps_of(sizes):
        return (sizes.k + (STAGE_K - 1)) // STAGE_K

    @lang.device
    def load_tile(shared, maps, tile, sizes):
        barriers, steps = shared + cfg.barriers_shared, steps_of(sizes)
        place, step = ring.producer_start(), 0
        while step < steps:
            ring.wait_empty(barriers, place)
            ring.expect(barriers, place, cfg.stage_bytes)
            stage, full = shared + place.stage * cfg.stage_pitch, ring.full(barriers, place)
            x, scale_x = int32(step * STAGE_ROW), int32(step * (cfg.scale_bytes // 8))
            ptx.cp_async_bulk_tensor_2d_g2s_cta(stage, maps.a, x, int32(tile.row), full)
            ptx.cp_async_bulk_tensor_2d_g2s_cta(
                stage + cfg.b_shared, maps.b, x, int32(tile.column), full
            )
            ptx.cp_async_bulk_tensor_2d_g2s_cta(
                stage + cfg.sfa_shared, maps.sfa, scale_x, int32(tile.row // TILE_ROWS), full
            )
            ptx.cp_async_bulk_tensor_2d_g2s_cta(
                stage + cfg.sfb_shared, maps.sfb, scale_x, int32(tile.column // TILE_ROWS), full
            )
            place = ring.advance(place)
            step += 1

    @lang.device
    def fetch(rows, row, chunk):
        """Four 8 x 16-byte matrices: the lane names a row and a chunk of it."""
        return ptx.ldmatrix_x4(rows + row * STAGE_ROW + ((chunk ^ (row & 7)) << 4))

    def products_from(first, count, byte):
        """-> device function (sums of ``count`` products from number ``first`` on, operands) ->
        sums; product i is of rows 16 (i // N_TILES) and columns 8 (i % N_TILES) on."""
        if count > 1:
            half = count // 2
            own = SUMS * half
            low, high = (
                products_from(first, half, byte),
                products_from(first + half, count - half, byte),
            )

            @lang.device
            def both(sums, operands):
                return low(sums[:own], operands) + high(sums[own:], operands)

            return both
        row, column = divmod(first, N_TILES)
        threads = {"thread_a": row, "thread_b": column % 4}
        multiply = (
            ptx.mma_m16n8k64_f32_mxf4nvf4_4x(**threads)
            if config.format == "nvfp4"
            else ptx.mma_m16n8k64_f32_mxf4_2x(byte=byte, **threads)
        )
        a, a_end, b, b_end, word = 4 * row, 4 * row + 4, 2 * column, 2 * column + 2, column // 4

        @lang.device
        def one(sums, operands):
            return multiply(
                operands.a[a:a_end], operands.b[b:b_end], sums, operands.sfa, operands.sfb[word]
            )

        return one

    def step_verb(byte):
        multiply = products_from(0, M_TILES * N_TILES, byte)

        @lang.device
        def multiply_step(sums, stage, step, thread):
            """64 of k: all fragments and scales, then 16 products."""
            lane = thread.lane
            row = thread.warp_m * WARP_ROWS + lane % 16
            chunk = lane // 16 + 2 * step
            a = fetch(stage, row, chunk) + fetch(stage, row + 16, chunk)
            column = thread.warp_n * WARP_COLUMNS + lane // 16 * 8 + lane % 8
            side = lane // 8 % 2 + 2 * step
            rows = stage + cfg.b_shared
            b = (
                fetch(rows, column, side)
                + fetch(rows, column + 16, side)
                + fetch(rows, column + 32, side)
                + fetch(rows, column + 48, side)
            )
            group, member = lane // 4, lane % 4
            tile = step * cfg.step_scales // TILE_BLOCKS * TILE_BYTES
            scales = stage + tile + (member * 8 + group) * 16
            sfa = ptx.ld_shared_b32(scales + cfg.sfa_shared + thread.warp_m * 4)
            sfb = ptx.ld_shared_v2_b32(scales + cfg.sfb_shared + thread.warp_n * 8)
            return multiply(sums, Operands(a, b, sfa, sfb))

        return multiply_step

    multiply_even = step_verb(0)
    # a word has the scales of two steps where a step takes two
    multiply_odd = multiply_even if config.step_scales == 4 else step_verb(config.step_scales)

    @lang.device
    def multiply_stages(shared, sizes, thread):
        barriers, steps = shared + cfg.barriers_shared, steps_of(sizes)
        place, sums, step = ring.consumer_start(), zeros(), 0
        while step < steps:
            ring.wait_full(barriers, place)
            stage = shared + place.stage * cfg.stage_pitch
            for pair in range(STEPS // 2):
                sums = multiply_even(sums, stage, 2 * pair, thread)
                sums = multiply_odd(sums, stage, 2 * pair + 1, thread)
            ptx.bar_warp_sync(ALL_LANES)
            if thread.lane == 0:
                ring.release(barriers, place)
            place = ring.advance(place)
            step += 1
        return sums

    @lang.device
    def store_pair(d, row, column, low, high, sizes):
        if row < sizes.m and column < sizes.n:
            address = d + (uint64(row) * sizes.n + column) * cfg.result_bytes
            if cfg.result_bytes == 2:
                ptx.st_global_b32(address, pair_of(low, high))
            else:
                ptx.st_global_v2_f32(address, (low, high))

    def stores_from(first, count):
        """-> device function (sums of ``count`` products from number ``first`` on, output, the
        lane's first row and column of the tile, sizes)"""
        if count > 1:
            half = count // 2
            own = SUMS * half
            low, high = stores_from(first, half), stores_from(first + half, count - half)

            @lang.device
            def both(sums, output, corner, sizes):
                low(sums[:own], output, corner, sizes)
                high(sums[own:], output, corner, sizes)

            return both
        down, across = first // N_TILES * 16, first % N_TILES * 8

        @lang.device
        def one(sums, output, corner, sizes):
            row, column, alpha = corner.row + down, corner.column + across, output.alpha
            store_pair(output.d, row, column, sums[0] * alpha, sums[1] * alpha, sizes)
            store_pair(output.d, row + 8, column, sums[2] * alpha, sums[3] * alpha, sizes)

        return one

    store = stores_from(0, M_TILES * N_TILES)

    @lang.device
    def own_tile(sizes):
        row_tiles = (sizes.m + (TILE - 1)) // TILE
        block = uint32(cuda.blockIdx.x)
        return Tile(block % row_tiles * TILE, block // row_tiles * TILE)

    def kernel(a_map, b_map, sfa_map, sfb_map, d, alpha, m, n, k):
        sizes = Sizes(m, n, k)
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)
        warp, lane = ptx.tid_x() // 32, ptx.tid_x() % 32
        tile = own_tile(sizes)
        if ptx.tid_x() == 0:
            ring.initialise(shared + cfg.barriers_shared)
        cuda.syncthreads()
        if warp == CONSUMERS:
            if lane == 0:
                load_tile(shared, Maps(a_map, b_map, sfa_map, sfb_map), tile, sizes)
        else:
            thread = Thread(warp // 2, warp % 2, lane)
            sums = multiply_stages(shared, sizes, thread)
            corner = Tile(
                tile.row + thread.warp_m * WARP_ROWS + lane // 4,
                tile.column + thread.warp_n * WARP_COLUMNS + lane % 4 * 2,
            )
            store(sums, Output(d, ptx.ld_global_f32(alpha)), corner, sizes)

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
