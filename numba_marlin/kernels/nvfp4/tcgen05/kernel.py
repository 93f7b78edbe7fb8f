"""The Blackwell kernel: block-scaled tensor cores (``tcgen05``), operands by TMA, sums and scales
in tensor memory. sm_100a.

``D[m, n] = alpha * (A * SFA) @ (B * SFB)^T``; parameters: tensor maps (``tensor_maps``) of a uint8
[m, k bits/8] and b uint8 [n, k bits/8] (k contiguous, of two FP4 in a byte the low one first), of
sfa and sfb, their scales in 128x4 order (``layout.block_scales``), and of d [m, n]; alpha, float32
[1], which takes both global scales, as an address; m, n, k as int32. m any, k a multiple of 32
(FP4: rows are multiples of 16 bytes), n of 8 (float32: of 4).

The roles of CUTLASS's kernel, without its scheduler (every block takes each gridDim-th tile) and
its load of C; each knows of the others by mbarriers only:

    role      who       waits for                          does
              tells
    load      1 thread  an empty stage                     four tensor copies: A, B, their scales
              the stage is full: the bytes count
    mma       1 thread  a full stage, empty sums           copies scales to tensor memory;
              the stage is empty, the sums are full:
                                                           products, four a stage
                                                               tcgen05.commit
    epilogue  4 warps   full sums                          tensor memory -> registers, times
              the sums are empty
                                                           alpha -> shared memory -> D

One thread issues each product of 128 rows; sums never touch its registers. The warp of the mma
thread also allocates tensor memory and gives it back. Where there is room there are two tiles of
sums: the epilogue reads one while the other fills. What lies outside of a matrix arrives as zeros,
scales too, and adds nothing.

No GPU that has these instructions has run this; the PTX machine has, under assumptions that
``emulator.tensor.block_scales`` and ``emulator.tensor.tensor_hazards`` state.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.nvfp4.tcgen05.config import (
    ALIGNMENT,
    BOX_BYTES,
    EPILOGUE_WARPS,
    LOAD_WARP,
    MULTIPLY_WARP,
    PRODUCTS,
    STAGE_ROW,
    TILE_M,
)
from numba_marlin.kernels.nvfp4.tcgen05.output import output_verbs
from numba_marlin.layout.block_scales import TILE_BLOCKS, TILE_BYTES, TILE_ROWS
from numba_marlin.layout.block_scales import tensor_map as scales_map
from numba_marlin.layout.tcgen05 import COLUMNS, LANE_SHIFT, SCALE_COLUMNS, encode, scale_descriptor
from numba_marlin.layout.tensor_map import TensorMap
from numba_marlin.layout.wgmma import Descriptor

# 128-byte swizzle, eight rows 1024 bytes apart; the address is added, in units of 16 bytes
MATRIX = encode(Descriptor(0, 8 * STAGE_ROW, 16, STAGE_ROW))
SCALES = scale_descriptor(0)
MULTIPLY = {
    "nvfp4": "tcgen05_mma_mxf4nvf4_4x",
    "mxfp4": "tcgen05_mma_mxf4_2x",
    "mxfp8-e4m3": "tcgen05_mma_mxf8f6f4_1x",
}


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    uint32, uint64, int32 = lang.uint32, lang.uint64, lang.int32
    cfg = lang.constants(config)
    first_descriptor = config.instruction_descriptor(0)
    loads = pipeline_verbs(lang, config.stages, producers=1, consumers=1)
    sums = pipeline_verbs(lang, config.accumulators, producers=1, consumers=EPILOGUE_WARPS)
    allocate, free = ptx.tcgen05_alloc(columns=COLUMNS), ptx.tcgen05_dealloc(columns=COLUMNS)
    multiply = getattr(ptx, MULTIPLY[config.format])
    output = output_verbs(lang, config)

    Sizes = lang.record("Sizes", "m n k")

    # what there is to do: tiles of D, how many of them lie below each other, steps along k of each
    Work = lang.record("Work", "tiles row_tiles steps")

    # of D: its first row and column
    Tile = lang.record("Tile", "row column")

    Maps = lang.record("Maps", "a b sfa sfb")

    @lang.device
    def work_of(sizes):
        row_tiles = (sizes.m + (TILE_M - 1)) // TILE_M
        column_tiles = (sizes.n + (cfg.tile_n - 1)) // cfg.tile_n
        steps = (sizes.k + (cfg.stage_k - 1)) // cfg.stage_k
        return Work(row_tiles * column_tiles, row_tiles, steps)

    @lang.device
    def first_number():
        return uint32(cuda.blockIdx.x)

    @lang.device
    def next_number(number):
        return number + uint32(cuda.gridDim.x)

    @lang.device
    def tile_of(number, work):
        return Tile(number % work.row_tiles * TILE_M, number // work.row_tiles * cfg.tile_n)

    @lang.device
    def load_tiles(shared, maps, sizes):
        work, barriers = work_of(sizes), shared + cfg.load_barriers
        place, number = loads.producer_start(), first_number()
        while number < work.tiles:
            tile, step = tile_of(number, work), 0
            while step < work.steps:
                loads.wait_empty(barriers, place)
                loads.expect(barriers, place, cfg.copied_bytes)
                stage, full = shared + place.stage * cfg.stage_bytes, loads.full(barriers, place)
                x, scale_x = int32(step * STAGE_ROW), int32(step * (cfg.scale_bytes // 8))
                ptx.cp_async_bulk_tensor_2d_g2s(stage, maps.a, x, int32(tile.row), full)
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage + cfg.b_shared, maps.b, x, int32(tile.column), full
                )
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage + cfg.sfa_shared, maps.sfa, scale_x, int32(tile.row // TILE_ROWS), full
                )
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage + cfg.sfb_shared, maps.sfb, scale_x, int32(tile.column // TILE_ROWS), full
                )
                place = loads.advance(place)
                step += 1
            number = next_number(number)
        # shared memory must outlive the commits that say its stages are empty
        for _ in range(cfg.stages):
            loads.wait_empty(barriers, place)
            place = loads.advance(place)

    @lang.device
    def descriptor_of(address, fields):
        return uint64(address >> 4) | fields

    @lang.device
    def copy_scales(stage, columns):
        """To tensor memory: scale_tiles times A's 128 rows, then, for each of them, all of B's."""
        for i in range(cfg.scale_tiles):
            ptx.tcgen05_cp_32x128b_warpx4(
                columns + i * SCALE_COLUMNS,
                descriptor_of(stage + (cfg.sfa_shared + i * TILE_BYTES), SCALES),
            )
            for j in range(cfg.n_tiles):
                source = cfg.sfb_shared + (j * cfg.scale_tiles + i) * TILE_BYTES
                ptx.tcgen05_cp_32x128b_warpx4(
                    columns + (cfg.scale_tiles + i * cfg.n_tiles + j) * SCALE_COLUMNS,
                    descriptor_of(stage + source, SCALES),
                )

    @lang.device
    def multiply_stage(stage, accumulator, columns, adds):
        a, b = descriptor_of(stage, MATRIX), descriptor_of(stage + cfg.b_shared, MATRIX)
        for i in range(PRODUCTS):
            tile, within = i * cfg.vectors // TILE_BLOCKS, i * cfg.vectors % TILE_BLOCKS
            multiply(
                accumulator,
                a + 2 * i,
                b + 2 * i,
                first_descriptor + within * cfg.instruction_descriptor_step,
                columns + tile * SCALE_COLUMNS,
                columns + (cfg.scale_tiles + tile * cfg.n_tiles) * SCALE_COLUMNS,
                adds if i == 0 else 1,
            )

    @lang.device
    def multiply_tiles(shared, tensor, sizes):
        work = work_of(sizes)
        barriers, sum_barriers = shared + cfg.load_barriers, shared + cfg.sum_barriers
        place, sums_place = loads.consumer_start(), sums.producer_start()
        number = first_number()
        while number < work.tiles:
            sums.wait_empty(sum_barriers, sums_place)
            accumulator, adds, step = tensor + sums_place.stage * cfg.tile_n, 0, 0
            while step < work.steps:
                loads.wait_full(barriers, place)
                ptx.tcgen05_fence_after_thread_sync()
                stage = shared + place.stage * cfg.stage_bytes
                columns = tensor + cfg.scales_tensor + place.stage * cfg.stage_columns
                copy_scales(stage, columns)
                multiply_stage(stage, accumulator, columns, adds)
                ptx.tcgen05_commit(loads.empty(barriers, place))
                place, adds = loads.advance(place), 1
                step += 1
            ptx.tcgen05_commit(sums.full(sum_barriers, sums_place))
            sums_place = sums.advance(sums_place)
            number = next_number(number)

    @lang.device
    def finish_tiles(shared, tensor, d_map, alpha, sizes):
        work, barriers = work_of(sizes), shared + cfg.sum_barriers
        factor = ptx.ld_global_f32(alpha)
        warp, lane = ptx.tid_x() // 32, ptx.tid_x() % 32
        own_lanes = tensor + (warp << (LANE_SHIFT + 5))
        own_results = shared + cfg.results_shared + warp * BOX_BYTES
        place, number = sums.consumer_start(), first_number()
        while number < work.tiles:
            sums.wait_full(barriers, place)
            ptx.tcgen05_fence_after_thread_sync()
            tile = tile_of(number, work)
            own_rows = Tile(tile.row + warp * 32, tile.column)
            accumulator = own_lanes + place.stage * cfg.tile_n
            output.store_tile(own_results, d_map, accumulator, own_rows, factor, lane)
            ptx.tcgen05_fence_before_thread_sync()
            ptx.bar_warp_sync(ALL_LANES)
            if lane == 0:
                sums.release(barriers, place)
            place = sums.advance(place)
            number = next_number(number)
        if lane == 0:
            output.wait_for_store()

    def kernel(a_map, b_map, sfa_map, sfb_map, d_map, alpha, m, n, k):
        sizes = Sizes(m, n, k)
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)
        warp, leads = ptx.tid_x() // 32, ptx.tid_x() % 32 == 0
        if ptx.tid_x() == 0:
            loads.initialise(shared + cfg.load_barriers)
            sums.initialise(shared + cfg.sum_barriers)
        if warp == MULTIPLY_WARP:
            allocate(shared + cfg.address_shared)
            ptx.tcgen05_relinquish_alloc_permit()
        cuda.syncthreads()
        tensor = ptx.ld_shared_b32(shared + cfg.address_shared)
        if warp == LOAD_WARP:
            if leads:
                load_tiles(shared, Maps(a_map, b_map, sfa_map, sfb_map), sizes)
        elif warp == MULTIPLY_WARP:
            if leads:
                multiply_tiles(shared, tensor, sizes)
        else:
            finish_tiles(shared, tensor, d_map, alpha, sizes)
        ptx.bar_warp_sync(ALL_LANES)
        cuda.syncthreads()  # the last sums have been read
        if warp == MULTIPLY_WARP:
            free(tensor)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """A and B in boxes of a tile's rows by 128 bytes; scales in boxes of those of a stage; D in
    boxes of 32 rows by 128 bytes."""
    row_bytes = k * config.bits // 8

    def matrix(rows, tile_rows):
        return TensorMap(
            "uint8", (rows, row_bytes), (row_bytes, 1), (tile_rows, STAGE_ROW), STAGE_ROW, 256
        )

    def scales(rows, tile_rows):
        return scales_map(
            rows, k // config.kind.block, (tile_rows // TILE_ROWS, config.scale_tiles)
        )

    size = STAGE_ROW // config.box_columns
    return {
        "a_map": ("a", matrix(m, TILE_M)),
        "b_map": ("b", matrix(n, config.tile_n)),
        "sfa_map": ("sfa", scales(m, TILE_M)),
        "sfb_map": ("sfb", scales(n, config.tile_n)),
        "d_map": (
            "d",
            TensorMap(
                config.result, (m, n), (size * n, size), (32, config.box_columns), STAGE_ROW, 0
            ),
        ),
    }
