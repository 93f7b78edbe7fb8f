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
    cuda, ptx, uint32, uint64, int32 = lang.cuda, lang.ptx, lang.uint32, lang.uint64, lang.int32
    shared_base = lang.shared_base
    TILE_N, STAGES, STAGE, STAGE_BYTES, STAGE_K = (
        config.tile_n,
        config.stages,
        config.stage_bytes,
        config.copied_bytes,
        config.stage_k,
    )
    B_SHARED, SFA_SHARED, SFB_SHARED, RESULTS = (
        config.b_shared,
        config.sfa_shared,
        config.sfb_shared,
        config.results_shared,
    )
    LOADS, SUMS, WHERE = config.load_barriers, config.sum_barriers, config.address_shared
    SCALES_TENSOR, STAGE_COLUMNS, SCALE_TILES, N_TILES, VECTORS = (
        config.scales_tensor,
        config.stage_columns,
        config.scale_tiles,
        config.n_tiles,
        config.kind.vectors,
    )
    IDESC, IDESC_STEP = config.instruction_descriptor(0), config.instruction_descriptor_step
    SCALE_UNITS = SCALE_TILES * TILE_BYTES // 8
    loads = pipeline_verbs(lang, config.stages, producers=1, consumers=1)
    sums = pipeline_verbs(lang, config.accumulators, producers=1, consumers=EPILOGUE_WARPS)
    wait_stage_full, wait_stage_empty, expect, stage_full, stage_empty = (
        loads.wait_full,
        loads.wait_empty,
        loads.expect,
        loads.full,
        loads.empty,
    )
    wait_sums_full, wait_sums_empty, sums_full, release_sums = (
        sums.wait_full,
        sums.wait_empty,
        sums.full,
        sums.release,
    )
    next_stage, next_sums, initialise_loads, initialise_sums = (
        loads.advance,
        sums.advance,
        loads.initialise,
        sums.initialise,
    )
    producer_start, consumer_start = loads.producer_start, loads.consumer_start
    allocate, free, multiply = (
        ptx.tcgen05_alloc(columns=COLUMNS),
        ptx.tcgen05_dealloc(columns=COLUMNS),
        getattr(ptx, MULTIPLY[config.format]),
    )
    output = output_verbs(lang, config)
    store_tile, wait_for_store = output.store_tile, output.wait_for_store

    @lang.device
    def first_tile():
        return uint32(cuda.blockIdx.x)

    @lang.device
    def tiles_and_steps(sizes):
        m, n, k = sizes
        row_tiles = (m + (TILE_M - 1)) // TILE_M
        return (
            row_tiles * ((n + (TILE_N - 1)) // TILE_N),
            row_tiles,
            (k + (STAGE_K - 1)) // STAGE_K,
        )

    @lang.device
    def next_tile(tile):
        return tile + uint32(cuda.gridDim.x)

    @lang.device
    def load_tiles(shared, maps, sizes):
        a_map, b_map, sfa_map, sfb_map = maps
        tiles, row_tiles, steps = tiles_and_steps(sizes)
        barriers = shared + LOADS
        place, tile = producer_start(), first_tile()
        while tile < tiles:
            row, column, step = (
                tile % row_tiles * TILE_M,
                tile // row_tiles * TILE_N,
                0,
            )
            while step < steps:
                wait_stage_empty(barriers, place)
                expect(barriers, place, STAGE_BYTES)
                stage, full = shared + place[0] * STAGE, stage_full(barriers, place)
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage, a_map, int32(step * STAGE_ROW), int32(row), full
                )
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage + B_SHARED,
                    b_map,
                    int32(step * STAGE_ROW),
                    int32(column),
                    full,
                )
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage + SFA_SHARED,
                    sfa_map,
                    int32(step * SCALE_UNITS),
                    int32(row // TILE_ROWS),
                    full,
                )
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage + SFB_SHARED,
                    sfb_map,
                    int32(step * SCALE_UNITS),
                    int32(column // TILE_ROWS),
                    full,
                )
                place = next_stage(place)
                step = step + 1
            tile = next_tile(tile)
        # shared memory must outlive the commits that say its stages are empty
        for _ in range(STAGES):
            wait_stage_empty(barriers, place)
            place = next_stage(place)

    @lang.device
    def copy_scales(stage, columns):
        """To tensor memory: SCALE_TILES times A's 128 rows, then, for each of them, all of B's."""
        for i in range(SCALE_TILES):
            ptx.tcgen05_cp_32x128b_warpx4(
                columns + (i * SCALE_COLUMNS),
                uint64(stage + (SFA_SHARED + i * TILE_BYTES)) >> 4 | SCALES,
            )
            for j in range(N_TILES):
                target = columns + ((SCALE_TILES + i * N_TILES + j) * SCALE_COLUMNS)
                ptx.tcgen05_cp_32x128b_warpx4(
                    target,
                    uint64(stage + (SFB_SHARED + (j * SCALE_TILES + i) * TILE_BYTES)) >> 4 | SCALES,
                )

    @lang.device
    def multiply_stage(stage, accumulator, columns, adds):
        a, b = (
            uint64(stage) >> 4 | MATRIX,
            uint64(stage + B_SHARED) >> 4 | MATRIX,
        )
        for i in range(PRODUCTS):
            sfa, sfb = (
                columns + (i * VECTORS // TILE_BLOCKS * SCALE_COLUMNS),
                columns + ((SCALE_TILES + i * VECTORS // TILE_BLOCKS * N_TILES) * SCALE_COLUMNS),
            )
            multiply(
                accumulator,
                a + uint64(2 * i),
                b + uint64(2 * i),
                IDESC + (i * VECTORS % TILE_BLOCKS) * IDESC_STEP,
                sfa,
                sfb,
                adds if i == 0 else 1,
            )

    @lang.device
    def multiply_tiles(shared, tensor, sizes):
        tiles, row_tiles, steps = tiles_and_steps(sizes)
        place, sums_place, tile = consumer_start(), producer_start(), first_tile()
        while tile < tiles:
            wait_sums_empty(shared + SUMS, sums_place)
            accumulator, adds, step = tensor + sums_place[0] * TILE_N, 0, 0
            while step < steps:
                wait_stage_full(shared + LOADS, place)
                ptx.tcgen05_fence_after_thread_sync()
                stage, columns = (
                    shared + place[0] * STAGE,
                    tensor + SCALES_TENSOR + place[0] * STAGE_COLUMNS,
                )
                copy_scales(stage, columns)
                multiply_stage(stage, accumulator, columns, adds)
                ptx.tcgen05_commit(stage_empty(shared + LOADS, place))
                place, adds = next_stage(place), 1
                step = step + 1
            ptx.tcgen05_commit(sums_full(shared + SUMS, sums_place))
            sums_place = next_sums(sums_place)
            tile = next_tile(tile)

    @lang.device
    def finish_tiles(shared, tensor, d_map, alpha, sizes):
        tiles, row_tiles, steps = tiles_and_steps(sizes)
        factor = ptx.ld_global_f32(alpha)
        warp, lane = ptx.tid_x() // 32, ptx.tid_x() % 32
        own_lanes, results = (
            tensor + (warp << (LANE_SHIFT + 5)),
            shared + RESULTS + warp * BOX_BYTES,
        )
        place, tile = consumer_start(), first_tile()
        while tile < tiles:
            wait_sums_full(shared + SUMS, place)
            ptx.tcgen05_fence_after_thread_sync()
            row, column = (
                int32(tile % row_tiles * TILE_M + warp * 32),
                int32(tile // row_tiles * TILE_N),
            )
            store_tile(results, d_map, own_lanes + place[0] * TILE_N, row, column, factor, lane)
            ptx.tcgen05_fence_before_thread_sync()
            ptx.bar_warp_sync(ALL_LANES)
            if lane == 0:
                release_sums(shared + SUMS, place)
            place = next_sums(place)
            tile = next_tile(tile)
        if lane == 0:
            wait_for_store()

    def kernel(a_map, b_map, sfa_map, sfb_map, d_map, alpha, m, n, k):
        sizes = (uint32(m), uint32(n), uint32(k))
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)
        warp, leads = ptx.tid_x() // 32, ptx.tid_x() % 32 == 0
        if ptx.tid_x() == 0:
            initialise_loads(shared + LOADS)
            initialise_sums(shared + SUMS)
        if warp == MULTIPLY_WARP:
            allocate(shared + WHERE)
            ptx.tcgen05_relinquish_alloc_permit()
        cuda.syncthreads()
        tensor = ptx.ld_shared_b32(shared + WHERE)
        if warp == LOAD_WARP:
            if leads:
                load_tiles(shared, (a_map, b_map, sfa_map, sfb_map), sizes)
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
