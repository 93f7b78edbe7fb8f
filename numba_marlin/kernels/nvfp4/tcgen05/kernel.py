"""The Blackwell kernel: block-scaled tensor cores (``tcgen05``), operands by TMA, sums and scales
in tensor memory. sm_100a.

``D[m, n] = activation(alpha * (A * SFA) @ (B * SFB)^T + beta * C + bias)``; parameters: tensor maps
(``tensor_maps``) of a uint8 [m, k * bits / 8] and b uint8 [n, k * bits / 8] (bits of an element, 4
or 8; k contiguous; of two FP4 in a byte the low nibble comes first), of sfa and sfb, their scales
in 128x4 order (``layout.block_scales``), and of d [m, n]; addresses of C [m, n] and of the bias,
float32 [n], if they are added, and of factors, float32 [2]: alpha, which contains both global
scales, and beta; m, n, k as int32. m is any, k a multiple of 32 and n of 8: TMA wants rows of 16
bytes, of FP4 and of D. The host checks both: ``problems.operands``.

**Who does what.** Persistent: of tiles of 128 x tile_n, numbered along m first, so that blocks that
run at the same time read the same rows of B, block b takes b, b + gridDim.x, ... and all of their
k. No clusters, no products over two SMs, no split of k. 192 threads in three roles, which know of
each other by mbarriers only:

    role      who        waits for        does                         tells, and by what
    load      warp 4,    empty: a stage   four tensor copies: A, B,    full: the stage
              1 thread                    their scales                 (the copies' bytes)
    mma       warp 5,    empty: sums,     copies scales to tensor      empty: the stage,
              1 thread   full: a stage    memory; four products per    full: the sums
                                          stage                        (tcgen05.commit)
    epilogue  warps 0-3  full: sums       tensor memory -> registers,  empty: the sums
                                          finished (``output``) ->     (an arrival per warp)
                                          shared memory -> D

A product is 128 x tile_n x 32 bytes of k: one thread issues it for all. The mma warp also allocates
tensor memory and gives it back, all 512 columns, so an SM has one block at a time.

**Tensor memory** is 128 lanes by 512 columns of 4 bytes; an address is lane << 16 | column, so
numbers that the code adds to one count columns. Sums: row r of a tile is lane r, its column c is
column c of the accumulator.

**In flight.** Where everything lies, in shared and in tensor memory: ``config``. Three things are
handed on:

- *Stages* of 128 bytes of k (``stage_ring``). Full: the load thread's arrival and the bytes of its
  copies. Empty: one arrival, by the commit behind the stage's copies and products, when all have
  been done. The stage's scales in tensor memory have the same two barriers: the mma thread writes
  them when the stage is full again, so after the load thread has waited for empty.
- *Sums*: a tile's accumulator in tensor memory (``sum_ring``). Full: the commit behind its last
  product. Empty: one lane of each of the 4 epilogue warps, when the last of its sums are in
  registers, so near the end of the tile's epilogue: they go through *results* a box at a time. With
  tile_n = 128 there are two accumulators: the epilogue reads one while the main loop fills the
  other. With 256 there is one, and the main loop waits.
- *Results*: 4 KiB of shared memory for each epilogue warp, one box, written again when lane 0 has
  waited for the TMA store that reads it. (Nobody could time whether a second would be faster.)

Loads run ahead up to ``stages`` stages, over the ends of tiles. The mma thread waits for no copy
and no product of its own: it issues a stage's when the stage is full. PTX orders a ``tcgen05.mma``
after the ``tcgen05.cp`` that its thread issued before, and products with one accumulator after each
other, but not a copy after the products before it: so every stage has columns of its own for
scales.

**Which k and n.** Nothing is unpacked. Row r of a stage's A is row tile.row + r of A; row r of its
B is row n = tile.column + r of B, column n of D. Byte 32 i + j of a row (j = 0 .. 31) is for
product i = 0 .. 3; in step s it has

    FP4   k = 256 s + 64 i + 2 j in the low nibble, k = 256 s + 64 i + 2 j + 1 in the high one
    FP8   k = 128 s + 32 i + j

and lies in shared memory at 128 r + (32 i + j, its bits 4 to 6 xor r % 8).

**Scales** come by TMA, tiles of 128 rows by four scales. ``tcgen05.cp`` copies a tile to 4 columns
of tensor memory: row r's word to lane r % 32 of column r // 32, and again to lanes 32, 64 and 96
further on, since each quarter of the lanes must have all scales. The tensor core applies them:
product i takes c = ``scales_per_product`` scales of each row (nvfp4 4, mxfp4 2, mxfp8 1), from
scale c i of the stage on: byte (c i) % 4 of the words of tile c i // 4.

**Banks.** Rows of codes are 128 bytes, in TMA's 128-byte swizzle, which the descriptor names too:
the tensor core xors bits 4 to 6 of an address with bits 7 to 9, as TMA did. Scales are read by
``tcgen05.cp`` as they lie, 512 bytes in one piece. Results: ``output``. No access of a warp's
conflicts (counted: experiments/12_blackwell).

**Sums** are added up by the tensor core, in order of k, the first product of a tile overwriting
what was there; nobody else adds to them: the same input gives the same bits.

**Tails.** TMA gives zeros outside of a matrix, and outside of the scales, which are stored as whole
tiles of 128 rows by four; a code 0 adds 0. If k does not fill the last tile of scales (4 scales of
16 or 32) there are scales beyond k in it: the host must make that padding 0
(``api.block_scaled_matmul``), since 0 times NaN is NaN. TMA writes nothing outside of D; it stores
whole chunks of 16 bytes, of which D's rows are made, since n % 8 is 0.

**State of the loops.** All: ``number`` of the tile. Load: ``place`` (stage and parity in
``stage_ring``), ``step`` of the tile (128 bytes of k each, from k = 0). mma: ``place``, ``step``,
the same; ``sums_place`` (in ``sum_ring``), whose stage is the number of the accumulator;
``accumulator``, its address; ``adds``, 0 for the tile's first stage. Epilogue: ``sums_place``.

No GPU that has these instructions has run this kernel; the PTX machine has. It assumes an order and
a rounding of the sum within a product, which PTX leaves open (``emulator.tensor.block_scales``),
and of the order of ``tcgen05`` instructions no more than PTX says
(``emulator.tensor.tensor_hazards``).
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

# The 64 bits of matrix descriptors, all but the address, which is 0 here (``descriptor_of`` puts it
# in): of A or B in a stage, groups of eight rows 1024 bytes apart (a swizzle with k contiguous has
# no use for the leading offset); and of a tile of scales, 32 rows of 16 bytes in one piece, without
# a swizzle
MATRIX_FIELDS = encode(Descriptor(0, stride_bytes=8 * STAGE_ROW, swizzle=STAGE_ROW))
SCALE_FIELDS = scale_descriptor(0)
MULTIPLY = {
    "nvfp4": "tcgen05_mma_mxf4nvf4_4x",
    "mxfp4": "tcgen05_mma_mxf4_2x",
    "mxfp8-e4m3": "tcgen05_mma_mxf8f6f4_1x",
}


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    uint32, uint64, int32, float32 = lang.uint32, lang.uint64, lang.int32, lang.float32
    cfg = lang.constants(config)
    # of a product whose scales are in byte 0 of their words
    instruction_descriptor = config.instruction_descriptor(0)
    stage_ring = pipeline_verbs(lang, config.stages, producers=1, consumers=1)
    sum_ring = pipeline_verbs(lang, config.accumulators, producers=1, consumers=EPILOGUE_WARPS)
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

    # map of D; alpha, beta; addresses of C and of the bias
    Outputs = lang.record("Outputs", "d_map alpha beta c bias")

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
        """One thread. x is innermost, along k: in bytes for A and B, in 8 bytes for scales, so 64
        to a tile of scales; y is in rows, for scales in tiles of 128 rows."""
        work, barriers = work_of(sizes), shared + cfg.load_barriers
        place, number = stage_ring.producer_start(), first_number()
        while number < work.tiles:
            tile, step = tile_of(number, work), 0
            while step < work.steps:
                stage_ring.wait_empty(barriers, place)
                stage_ring.expect(barriers, place, cfg.copied_bytes)
                stage = shared + place.stage * cfg.stage_bytes
                full = stage_ring.full(barriers, place)
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
                place = stage_ring.advance(place)
                step += 1
            number = next_number(number)
        # Shared memory must outlive the commits that say its stages are empty: their arrivals come
        # whenever products are done. So wait once more for each stage, from the one that would be
        # filled next on; one that was never filled passes, as in the first lap.
        for _ in range(cfg.stages):
            stage_ring.wait_empty(barriers, place)
            place = stage_ring.advance(place)

    @lang.device
    def descriptor_of(address, fields):
        """``fields`` with the address, in units of 16 bytes, in the lowest bits, where they are
        0."""
        return uint64(address >> 4) | fields

    @lang.device
    def copy_scales(stage, columns):
        """A stage's, to tensor memory from address ``columns`` on: tiles, 4 columns each, of A
        [scale_tiles], then of B [scale_tiles][n_tiles], so that all of B's rows are beside each
        other for a product. (In shared memory B's are [n_tiles][scale_tiles], as TMA's box has
        them.) To: an address of tensor memory; from: a matrix descriptor."""
        for i in range(cfg.scale_tiles):
            ptx.tcgen05_cp_32x128b_warpx4(
                columns + i * SCALE_COLUMNS,
                descriptor_of(stage + (cfg.sfa_shared + i * TILE_BYTES), SCALE_FIELDS),
            )
            for j in range(cfg.n_tiles):
                source = cfg.sfb_shared + (j * cfg.scale_tiles + i) * TILE_BYTES
                ptx.tcgen05_cp_32x128b_warpx4(
                    columns + (cfg.scale_tiles + i * cfg.n_tiles + j) * SCALE_COLUMNS,
                    descriptor_of(stage + source, SCALE_FIELDS),
                )

    @lang.device
    def multiply_stage(stage, accumulator, columns, adds):
        """accumulator, columns: addresses of tensor memory, of the sums and of the stage's scales;
        adds: 0 if the stage's first product is to overwrite the accumulator."""
        a = descriptor_of(stage, MATRIX_FIELDS)
        b = descriptor_of(stage + cfg.b_shared, MATRIX_FIELDS)
        for i in range(PRODUCTS):
            first_scale = i * cfg.scales_per_product
            scale_tile, scale_byte = first_scale // TILE_BLOCKS, first_scale % TILE_BLOCKS
            # (D, A's descriptor, B's, instruction descriptor, scales of A, of B, whether D is added
            # to: PTX's enable-input-d). A descriptor counts 16 bytes: 2 i is 32 i bytes on in every
            # row. That may be added before the xor of the swizzle, which is of bits of the address:
            # a row begins at a multiple of 128, so nothing is carried into bits 7 to 9.
            multiply(
                accumulator,
                a + 2 * i,
                b + 2 * i,
                instruction_descriptor + scale_byte * cfg.scale_byte_step,
                columns + scale_tile * SCALE_COLUMNS,
                columns + (cfg.scale_tiles + scale_tile * cfg.n_tiles) * SCALE_COLUMNS,
                adds if i == 0 else 1,
            )

    @lang.device
    def multiply_tiles(shared, tensor, sizes):
        work = work_of(sizes)
        barriers, sum_barriers = shared + cfg.load_barriers, shared + cfg.sum_barriers
        place, sums_place = stage_ring.consumer_start(), sum_ring.producer_start()
        number = first_number()
        while number < work.tiles:
            sum_ring.wait_empty(sum_barriers, sums_place)
            accumulator, adds, step = tensor + sums_place.stage * cfg.tile_n, 0, 0
            while step < work.steps:
                stage_ring.wait_full(barriers, place)
                # What is issued from here on comes after what the waits have told: the tile's, that
                # the epilogue has read these sums; the stage's, that it was filled, so that older
                # products have read its scales in tensor memory (the load thread waited for them).
                ptx.tcgen05_fence_after_thread_sync()
                stage = shared + place.stage * cfg.stage_bytes
                columns = tensor + cfg.scales_tensor + place.stage * cfg.stage_columns
                copy_scales(stage, columns)
                # no wait: PTX orders products after copies (cp) of the same thread
                multiply_stage(stage, accumulator, columns, adds)
                # arrives when all copies and products so far are done
                ptx.tcgen05_commit(stage_ring.empty(barriers, place))
                place, adds = stage_ring.advance(place), 1
                step += 1
            ptx.tcgen05_commit(sum_ring.full(sum_barriers, sums_place))
            sums_place = sum_ring.advance(sums_place)
            number = next_number(number)

    @lang.device
    def finish_tiles(shared, tensor, outputs, sizes):
        work, sum_barriers = work_of(sizes), shared + cfg.sum_barriers
        warp, lane = ptx.tid_x() // 32, ptx.tid_x() % 32
        # Lanes of tensor memory are rows of the tile. Warp w may load lanes 32 (w % 4) to
        # 32 (w % 4) + 31 only: so the epilogue has warps 0 to 3. Warp w begins at lane 32 w, in an
        # address 32 w << LANE_SHIFT.
        own_lanes = tensor + (warp << (LANE_SHIFT + 5))
        own_results = shared + cfg.results_shared + warp * BOX_BYTES
        sums_place, number = sum_ring.consumer_start(), first_number()
        while number < work.tiles:
            sum_ring.wait_full(sum_barriers, sums_place)
            ptx.tcgen05_fence_after_thread_sync()
            tile = tile_of(number, work)
            own_rows = Tile(tile.row + warp * 32, tile.column)
            accumulator = own_lanes + sums_place.stage * cfg.tile_n
            output.store_tile(own_results, outputs, accumulator, own_rows, sizes, lane)
            # all the warp's sums of the tile have been loaded from tensor memory
            ptx.tcgen05_fence_before_thread_sync()
            ptx.bar_warp_sync(ALL_LANES)
            if lane == 0:
                sum_ring.release(sum_barriers, sums_place)
            sums_place = sum_ring.advance(sums_place)
            number = next_number(number)
        if lane == 0:
            # shared memory must outlive it; D is complete when the grid is
            output.wait_for_store()

    def kernel(a_map, b_map, sfa_map, sfb_map, d_map, c, bias, factors, m, n, k):
        sizes = Sizes(m, n, k)
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)  # rounded up
        warp, leads = ptx.tid_x() // 32, ptx.tid_x() % 32 == 0
        if ptx.tid_x() == 0:
            stage_ring.initialise(shared + cfg.load_barriers)
            sum_ring.initialise(shared + cfg.sum_barriers)
        if warp == MULTIPLY_WARP:
            allocate(shared + cfg.address_shared)
            ptx.tcgen05_relinquish_alloc_permit()  # the block will ask for no more
        # No tcgen05 fence: allocation is synchronous, and every thread that touches tensor memory
        # executes fence::after_thread_sync first.
        cuda.syncthreads()
        tensor = ptx.ld_shared_b32(shared + cfg.address_shared)
        if warp == LOAD_WARP:
            if leads:
                load_tiles(shared, Maps(a_map, b_map, sfa_map, sfb_map), sizes)
        elif warp == MULTIPLY_WARP:
            if leads:
                multiply_tiles(shared, tensor, sizes)
        else:
            alpha = ptx.ld_global_f32(factors)
            beta = ptx.ld_global_f32(factors + 4) if cfg.source else float32(0)
            finish_tiles(shared, tensor, Outputs(d_map, alpha, beta, c, bias), sizes)
        # Of warps 4 and 5 the 31 lanes without a role come here at once: they wait for the one that
        # has one, since only whole warps may come to syncthreads. After that the epilogue is done
        # with tensor memory too, and it may be given back.
        ptx.bar_warp_sync(ALL_LANES)
        cuda.syncthreads()
        if warp == MULTIPLY_WARP:
            free(tensor)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """A and B in boxes of a tile's rows by 128 bytes, scales in boxes of a stage's tiles
    (``layout.block_scales.tensor_map``: in tiles, rows by k), D in boxes of a warp's 32 rows by 128
    bytes; all but the scales in the 128-byte swizzle. ``a_stride``: unused, for kernels whose A may
    be a slice."""
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
