"""The Blackwell kernel: block-scaled tensor cores (``tcgen05``), operands by TMA, sums and scales
in tensor memory. sm_100a.

``D[m, n] = alpha * (A * SFA) @ (B * SFB)^T``; parameters: tensor maps (``tensor_maps``) of a uint8
[m, k * bits / 8] and b uint8 [n, k * bits / 8] (bits of an element, 4 or 8; k contiguous; of two
FP4 in a byte the low nibble comes first), of sfa and sfb, their scales in 128x4 order
(``layout.block_scales``), and of d [m, n]; alpha, float32 [1], which contains both global scales,
as an address; m, n, k as int32. m is any, k a multiple of 32 and n of 8: TMA wants rows of 16
bytes, of FP4 and of D. The host checks both: ``problems.operands``.

**Who does what.** Persistent: of tiles of 128 x tile_n, numbered down the rows first, block b takes
b, b + gridDim.x, ... and all of their k. No clusters, no products over two SMs, no split of k. 192
threads in three roles, which know of each other by mbarriers only:

    role      who        waits for       does                         tells
    load      warp 4,    an empty stage  four tensor copies: A, B,    the stage is full: the
              1 thread                   their scales                 bytes count
    mma       warp 5,    a full stage,   copies scales to tensor      the stage is empty, the
              1 thread   empty sums      memory; four products per    sums are full:
                                         stage                        tcgen05.commit
    epilogue  warps 0-3  full sums       tensor memory -> registers,  the sums are empty
                                         times alpha -> shared
                                         memory -> D

A product is 128 x tile_n x 32 bytes of k: one thread issues it for all. The mma warp also allocates
tensor memory and gives it back, all 512 columns, so an SM has one block at a time.

**In flight.** Where everything lies, in shared and in tensor memory: ``config``. Three things are
handed on:

- *Stages* of 128 bytes of k. Full: the load thread's arrival and the bytes of its copies. Empty:
  one arrival, by the commit behind the stage's copies and products, when all have been done. The
  scales in tensor memory belong to the stage, and are guarded by the same two barriers.
- *Sums*: a tile's accumulator in tensor memory. Full: the commit behind its last product. Empty:
  one lane of each of the 4 epilogue warps, when its rows are in registers. With tile_n = 128 there
  are two: the epilogue reads one while the main loop fills the other. With 256 the main loop waits.
- *Results*: 4 KiB of shared memory for each epilogue warp, written again when lane 0 has waited for
  the TMA store that reads it.

Loads run ahead up to ``stages`` stages, over the ends of tiles. The mma thread waits for no copy
and no product of its own: it issues a stage's when the stage is full. PTX orders a product after
the copies that its thread issued before, and products with one accumulator after each other, but
not a copy after the products before it: so every stage has columns of its own for scales.

**Which k and n.** Nothing is unpacked. Row r of a stage is row tile.row + r of A, and row n =
tile.column + r of B. Of its 32 bytes for product i of step s, byte j has

    FP4   k = 256 s + 64 i + 2 j in the low nibble, 2 j + 1 in the high one
    FP8   k = 128 s + 32 i + j

**Scales** come by TMA, tiles of 128 rows by four scales. ``tcgen05.cp`` copies a tile to 4 columns
of tensor memory: row r to lane r % 32 (and lanes 32, 64, 96 further on) of column r // 32. The
tensor core applies them: product i has ``vectors`` scales of each row, from scale number
i * vectors of the stage on, which is byte (i * vectors) % 4 of the words of tile i * vectors // 4.

**Banks.** Rows of codes are 128 bytes, in TMA's 128-byte swizzle, which the descriptor names too:
the tensor core xors bits 4 to 6 of an address with bits 7 to 9, as TMA did. Scales are read by
``tcgen05.cp`` as they lie, 512 bytes in one piece. Results: ``output``. No access of a warp's
conflicts (counted: experiments/12_blackwell).

**Sums** are added up by the tensor core, in order of k, the first product of a tile overwriting
what was there; nobody else adds to them: the same input gives the same bits.

**Tails.** TMA gives zeros outside of a matrix and outside of its tiles of scales, and a code 0 adds
0. If k does not fill the last tile of scales (4 scales of 16 or 32) there are scales beyond k in
it: the host must make that padding 0 (``api.block_scaled_matmul``), since 0 times NaN is NaN. TMA
writes nothing outside of D.

**State of the loops.** All: ``number`` of the tile. Load: ``place`` in the ring of stages, ``step``
of the tile. mma: ``place``, ``step``; ``sums_place``, whose stage is the number of the accumulator;
``accumulator``, its address; ``adds``, 0 for the tile's first stage. Epilogue: ``place`` in the
ring of sums.

No GPU that has these instructions has run this kernel; the PTX machine has, under assumptions that
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
from numba_marlin.layout.block_scales import TILE_BLOCKS, TILE_BYTES, TILE_MAP_WIDTH, TILE_ROWS
from numba_marlin.layout.block_scales import tensor_map as scales_map
from numba_marlin.layout.tcgen05 import COLUMNS, LANE_SHIFT, SCALE_COLUMNS, encode, scale_descriptor
from numba_marlin.layout.tensor_map import TensorMap
from numba_marlin.layout.wgmma import Descriptor

# Descriptors at address 0: of A or B in a stage, groups of eight rows 1024 bytes apart; and of a
# tile of scales, 32 rows of 16 bytes in one piece, without a swizzle
MATRIX = encode(Descriptor(0, stride_bytes=8 * STAGE_ROW, swizzle=STAGE_ROW))
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
    stages = pipeline_verbs(lang, config.stages, producers=1, consumers=1)
    sums = pipeline_verbs(lang, config.accumulators, producers=1, consumers=EPILOGUE_WARPS)
    allocate, free = ptx.tcgen05_alloc(columns=COLUMNS), ptx.tcgen05_dealloc(columns=COLUMNS)
    multiply = getattr(ptx, MULTIPLY[config.format])
    output = output_verbs(lang, config)

    Sizes = lang.record("Sizes", "m n k")

    # what all blocks have to do: tiles of D, how many of them cover the rows, and steps along k of
    # each, a stage each
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
        """One thread. Maps of A and B count x in bytes, those of scales in 8 bytes and y in tiles
        of 128 rows."""
        work, barriers = work_of(sizes), shared + cfg.load_barriers
        place, number = stages.producer_start(), first_number()
        while number < work.tiles:
            tile, step = tile_of(number, work), 0
            while step < work.steps:
                stages.wait_empty(barriers, place)
                stages.expect(barriers, place, cfg.copied_bytes)
                stage, full = shared + place.stage * cfg.stage_bytes, stages.full(barriers, place)
                x, scale_x = (
                    int32(step * STAGE_ROW),
                    int32(step * (cfg.scale_tiles * TILE_MAP_WIDTH)),
                )
                # (to, map, x, y, barrier that counts the bytes)
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
                place = stages.advance(place)
                step += 1
            number = next_number(number)
        # Shared memory must outlive the commits that say its stages are empty: their arrivals come
        # whenever products are done. A stage that was never filled counts as empty.
        for _ in range(cfg.stages):
            stages.wait_empty(barriers, place)
            place = stages.advance(place)

    @lang.device
    def descriptor_of(address, fields):
        """``fields`` with the address, in 16 bytes, in the lowest bits, which are 0 in them."""
        return uint64(address >> 4) | fields

    @lang.device
    def copy_scales(stage, columns):
        """A stage's, to tensor memory: columns are [scale_tiles] of A, then [scale_tiles][n_tiles]
        of B, so that all of B's rows are beside each other for a product. (In shared memory B's
        are [n_tiles][scale_tiles], as the box has them.)"""
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
        """columns: the stage's scales in tensor memory; adds: 0 if the stage's first product is to
        overwrite the accumulator (PTX: enable-input-d)."""
        a, b = descriptor_of(stage, MATRIX), descriptor_of(stage + cfg.b_shared, MATRIX)
        for i in range(PRODUCTS):
            scale_tile, scale_byte = i * cfg.vectors // TILE_BLOCKS, i * cfg.vectors % TILE_BLOCKS
            multiply(
                accumulator,
                # 32 bytes on in every row: the swizzle is of addresses, from a multiple of 1024 on
                a + 2 * i,
                b + 2 * i,
                first_descriptor + scale_byte * cfg.scale_byte_step,
                columns + scale_tile * SCALE_COLUMNS,
                columns + (cfg.scale_tiles + scale_tile * cfg.n_tiles) * SCALE_COLUMNS,
                adds if i == 0 else 1,
            )

    @lang.device
    def multiply_tiles(shared, tensor, sizes):
        work = work_of(sizes)
        barriers, sum_barriers = shared + cfg.load_barriers, shared + cfg.sum_barriers
        place, sums_place = stages.consumer_start(), sums.producer_start()
        number = first_number()
        while number < work.tiles:
            sums.wait_empty(sum_barriers, sums_place)
            accumulator, adds, step = tensor + sums_place.stage * cfg.tile_n, 0, 0
            while step < work.steps:
                stages.wait_full(barriers, place)
                # What is issued from here on comes after what the two waits have told: that the
                # epilogue has read these sums, that older products have read these scales.
                ptx.tcgen05_fence_after_thread_sync()
                stage = shared + place.stage * cfg.stage_bytes
                columns = tensor + cfg.scales_tensor + place.stage * cfg.stage_columns
                copy_scales(stage, columns)
                # no wait: a product comes after its thread's copies
                multiply_stage(stage, accumulator, columns, adds)
                # arrives when all copies and products so far are done
                ptx.tcgen05_commit(stages.empty(barriers, place))
                place, adds = stages.advance(place), 1
                step += 1
            ptx.tcgen05_commit(sums.full(sum_barriers, sums_place))
            sums_place = sums.advance(sums_place)
            number = next_number(number)

    @lang.device
    def finish_tiles(shared, tensor, d_map, alpha, sizes):
        work, sum_barriers = work_of(sizes), shared + cfg.sum_barriers
        factor = ptx.ld_global_f32(alpha)
        warp, lane = ptx.tid_x() // 32, ptx.tid_x() % 32
        # Lanes of tensor memory are rows of the tile. Warp w may load lanes 32 (w % 4) to
        # 32 (w % 4) + 31 only: so the epilogue has warps 0 to 3. Lane 32 w is 32 w << LANE_SHIFT.
        own_lanes = tensor + (warp << (LANE_SHIFT + 5))
        own_results = shared + cfg.results_shared + warp * BOX_BYTES
        place, number = sums.consumer_start(), first_number()
        while number < work.tiles:
            sums.wait_full(sum_barriers, place)
            ptx.tcgen05_fence_after_thread_sync()
            tile = tile_of(number, work)
            own_rows = Tile(tile.row + warp * 32, tile.column)
            accumulator = own_lanes + place.stage * cfg.tile_n
            output.store_tile(own_results, d_map, accumulator, own_rows, factor, lane)
            # the rows are in registers, or further
            ptx.tcgen05_fence_before_thread_sync()
            ptx.bar_warp_sync(ALL_LANES)
            if lane == 0:
                sums.release(sum_barriers, place)
            place = sums.advance(place)
            number = next_number(number)
        if lane == 0:
            # shared memory must outlive it; D is complete when the grid is
            output.wait_for_store()

    def kernel(a_map, b_map, sfa_map, sfb_map, d_map, alpha, m, n, k):
        sizes = Sizes(m, n, k)
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)  # rounded up
        warp, leads = ptx.tid_x() // 32, ptx.tid_x() % 32 == 0
        if ptx.tid_x() == 0:
            stages.initialise(shared + cfg.load_barriers)
            sums.initialise(shared + cfg.sum_barriers)
        if warp == MULTIPLY_WARP:
            allocate(shared + cfg.address_shared)
            ptx.tcgen05_relinquish_alloc_permit()  # the block will ask for no more
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
        # Tensor memory may be given back when the epilogue, as all others, is done with it. Lanes
        # without a role wait for the one that has: whole warps come to the barrier.
        ptx.bar_warp_sync(ALL_LANES)
        cuda.syncthreads()
        if warp == MULTIPLY_WARP:
            free(tensor)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """A and B in boxes of a tile's rows by 128 bytes, scales in boxes of a stage's tiles
    (``layout.block_scales.tensor_map``: in tiles, rows by k), D in boxes of a warp's 32 rows by 128
    bytes; all but the scales in the 128-byte swizzle. ``a_stride`` is for kernels whose A may be a
    slice."""
    row_bytes = k * config.bits // 8

    def matrix(rows, tile_rows):
        return TensorMap(
            "uint8",
            (rows, row_bytes),
            (row_bytes, 1),
            (tile_rows, STAGE_ROW),
            swizzle=STAGE_ROW,
            l2_promotion=256,
        )

    def scales(rows, tile_rows):
        return scales_map(
            rows, k // config.kind.block, (tile_rows // TILE_ROWS, config.scale_tiles)
        )

    result_bytes = config.result_bytes
    return {
        "a_map": ("a", matrix(m, TILE_M)),
        "b_map": ("b", matrix(n, config.tile_n)),
        "sfa_map": ("sfa", scales(m, TILE_M)),
        "sfb_map": ("sfb", scales(n, config.tile_n)),
        "d_map": (
            "d",
            TensorMap(
                config.result,
                (m, n),
                (result_bytes * n, result_bytes),
                (32, config.box_columns),
                swizzle=STAGE_ROW,
            ),
        ),
    }
