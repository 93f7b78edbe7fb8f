"""The Blackwell kernel: block-scaled tensor cores (``tcgen05``), operands by TMA, sums and scales
in tensor memory. sm_100a.

``D[m, n] = activation(alpha * (A * SFA) @ (B * SFB)^T + beta * C + bias)``; parameters: tensor maps
(``tensor_maps``) of a uint8 [m, k * bits / 8] and b uint8 [n, k * bits / 8] (bits of an element, 4
or 8; k contiguous; of two FP4 in a byte the low nibble comes first), of sfa and sfb, their scales
in 128x4 order (``layout.block_scales``), of C [m, n] if it is added and of d [m, n] if it is not
block-scaled; addresses of d and of its scales sfd if it is (sfd in 128x4 order, filled with zeros
before the launch), of the bias, float32 [n], if it is added, of factors, float32 [4] (``output``),
and of the tile counter (``schedule``), int32, zero before and after; m, n, k as int32. m is any, k
a multiple of 32 and n of 8 (of 16 where D is NVFP4, of 32 where it is MX): TMA wants rows of 16
bytes, of FP4 and of D. The host checks both: ``problems.operands``.

**Who does what.** Persistent: blocks take tiles of 128 x tile_n, and all of their k, in the order
of ``schedule``. No clusters, no products over two SMs, no split of k. 256 threads in five roles,
those of CUTLASS's kernel, which know of each other by mbarriers only; a role of one thread is done
by the lane that ``elect.sync`` elects:

    role            who        waits for         does                      tells, and by what
    scheduler       warp 6,    empty: a number   takes tiles from the      full: the number
                    1 thread                     counter
    main-loop load  warp 4,    a number; empty:  four tensor copies: A,    full: the stage
                    1 thread   a stage           B, their scales           (the copies' bytes)
    mma             warp 5,    a number; empty:  copies scales to tensor   empty: the stage,
                    1 thread   sums; full: a     memory; four products     full: the sums
                               stage             per stage                 (tcgen05.commit)
    epilogue load   warp 7,    a number; empty:  a tensor copy: 32         full: its stage
                    1 thread   a stage of C      columns of C              (the copy's bytes)
    epilogue        warps 0-3  a number; full:   tensor memory ->          empty: the stage of C,
                               sums, a stage     registers, finished       the sums
                               of C              (``output``) -> D         (an arrival per warp)

A product is 128 x tile_n x 32 bytes of k: one thread issues it for all. The mma warp also allocates
tensor memory and gives it back, all 512 columns, so an SM has one block at a time.

**Tensor memory** is 128 lanes by 512 columns of 4 bytes; an address is lane << 16 | column, so
numbers that the code adds to one count columns. Sums: row r of a tile is lane r, its column c is
column c of the accumulator.

**In flight.** Where everything lies, in shared and in tensor memory: ``config``. Five things are
handed on:

- *Tile numbers* (``schedule``): two at a time. Empty: all who have read the number, one arrival per
  warp or lone thread.
- *Stages* of 128 bytes of k (``stage_ring``). Full: the load thread's arrival and the bytes of its
  copies. Empty: one arrival, by the commit behind the stage's copies and products, when all have
  been done. The stage's scales in tensor memory have the same two barriers: the mma thread writes
  them when the stage is full again, so after the load thread has waited for empty.
- *Sums*: a tile's accumulator in tensor memory (``sum_ring``). Full: the commit behind its last
  product. Empty: one lane of each of the 4 epilogue warps, when the last of its sums are in
  registers, so near the end of the tile's epilogue: they go through *results* a box at a time. With
  tile_n = 128 there are two accumulators: the epilogue reads one while the main loop fills the
  other. With 256 there is one, and the main loop waits.
- *C* (``source_ring``): 32 columns of a tile in a stage. Full: the epilogue load's arrival and the
  bytes of its copy. Empty: one lane of each of the 4 epilogue warps, when its rows have been read.
- *Results*: 4 KiB of shared memory for each epilogue warp, one box, written again when lane 0 has
  waited for the TMA store that reads it. (Nobody could time whether a second would be faster.) A
  block-scaled D has none.

Loads run ahead up to ``stages`` stages, over the ends of tiles, but not past the second number that
the slowest role has not read. The mma thread waits for no copy
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
scale c i of the stage on: byte (c i) % 4 of the words of tile c i // 4. A tile of 64 or 192 columns
whose rows of B begin at row 64 of their tile of scales takes them from 2 columns further on.

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

**Programmatic dependent launch** (``griddepcontrol``): blocks start, set up barriers and allocate
tensor memory while the kernel before ends, and read nothing before it has.

**State of the loops.** All: ``number`` of the tile, ``tile_place`` in the ring of numbers. Load:
``nvfp4.load``, ``load``. mma: ``place`` (stage and parity in ``stage_ring``), ``step`` of the tile
(128 bytes of k each, from k = 0); ``sums_place`` (in ``sum_ring``), whose stage is the number of
the accumulator; ``accumulator``, its address; ``adds``, 0 for the tile's first stage. Epilogue:
``sums_place``, ``source_place``.

No GPU that has these instructions has run this kernel; the PTX machine has. It assumes an order and
a rounding of the sum within a product, which PTX leaves open (``emulator.tensor.block_scales``),
and of the order of ``tcgen05`` instructions no more than PTX says
(``emulator.tensor.tensor_hazards``).
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.nvfp4.schedule import NO_TILE, schedule_verbs
from numba_marlin.kernels.nvfp4.tcgen05.config import (
    ALIGNMENT,
    EPILOGUE_WARPS,
    LOAD_WARP,
    MULTIPLY_WARP,
    PART,
    PRODUCTS,
    SCHEDULE_WARP,
    SOURCE_STAGES,
    SOURCE_WARP,
    STAGE_ROW,
    TILE_M,
)
from numba_marlin.kernels.nvfp4.tcgen05.load import load_verbs
from numba_marlin.kernels.nvfp4.tcgen05.output import output_verbs
from numba_marlin.layout.block_scales import TILE_BLOCKS, TILE_BYTES, TILE_ROWS
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
ROWS_OF_A_COLUMN = TILE_ROWS // SCALE_COLUMNS  # of a tile of scales, in tensor memory: 32
MULTIPLY = {
    "nvfp4": "tcgen05_mma_mxf4nvf4_4x",
    "mxfp4": "tcgen05_mma_mxf4_2x",
    "mxfp8-e4m3": "tcgen05_mma_mxf8f6f4_1x",
}


def make(lang, config):
    cuda, ptx, shared_base, uint64 = lang.cuda, lang.ptx, lang.shared_base, lang.uint64
    cfg = lang.constants(config)
    # of a product whose scales are in byte 0 of their words
    instruction_descriptor = config.instruction_descriptor(0)
    stage_ring = pipeline_verbs(lang, config.stages, producers=1, consumers=1)
    sum_ring = pipeline_verbs(lang, config.accumulators, producers=1, consumers=EPILOGUE_WARPS)
    source_ring = pipeline_verbs(lang, SOURCE_STAGES, producers=1, consumers=EPILOGUE_WARPS)
    # the epilogue's warps, the main-loop load, mma, the load of C if there is one
    schedule = schedule_verbs(lang, config, listeners=EPILOGUE_WARPS + 2 + config.source)
    load = load_verbs(lang, config, schedule, stage_ring, source_ring)
    allocate, free = ptx.tcgen05_alloc(columns=COLUMNS), ptx.tcgen05_dealloc(columns=COLUMNS)
    multiply = getattr(ptx, MULTIPLY[config.format])
    output = output_verbs(lang, config, source_ring)

    Sizes = lang.record("Sizes", "m n k")

    # of D: its first row and column
    Tile = lang.record("Tile", "row column")

    Maps = lang.record("Maps", "a b sfa sfb")

    # map of D; addresses of D and its scales, of the bias, of the factors
    Outputs = lang.record("Outputs", "d_map d sfd bias factors")

    # an epilogue thread's
    Thread = lang.record("Thread", "warp lane")

    @lang.device
    def initialise(shared):
        stage_ring.initialise(shared + cfg.load_barriers)
        sum_ring.initialise(shared + cfg.sum_barriers)
        if cfg.source:
            source_ring.initialise(shared + cfg.source_barriers)
        schedule.initialise(shared + cfg.tile_barriers)

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
    def multiply_stage(stage, accumulator, columns, shift, adds):
        """accumulator, columns: addresses of tensor memory, of the sums and of the stage's scales;
        shift: columns from the scales of the first tile's rows of B to those of the first row that
        is multiplied; adds: 0 if the stage's first product is to overwrite the accumulator."""
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
                columns + (cfg.scale_tiles + scale_tile * cfg.n_tiles) * SCALE_COLUMNS + shift,
                adds if i == 0 else 1,
            )

    @lang.device
    def shift_of(number, sizes):
        """Row r of a tile of scales has its word in column r // 32: 2 from row 64 on."""
        if cfg.shifts_scales:
            return schedule.corner(number, sizes).column % TILE_ROWS // ROWS_OF_A_COLUMN
        return 0

    @lang.device
    def multiply_tiles(shared, tensor, sizes):
        steps = schedule.counts(sizes).steps
        barriers, sum_barriers = shared + cfg.load_barriers, shared + cfg.sum_barriers
        place, sums_place = stage_ring.consumer_start(), sum_ring.producer_start()
        number, tile_place = schedule.fetch_alone(shared, schedule.start())
        while number != NO_TILE:
            sum_ring.wait_empty(sum_barriers, sums_place)
            accumulator, adds, step = tensor + sums_place.stage * cfg.tile_n, 0, 0
            shift = shift_of(number, sizes)
            while step < steps:
                stage_ring.wait_full(barriers, place)
                # What is issued from here on comes after what the waits have told: the tile's, that
                # the epilogue has read these sums; the stage's, that it was filled, so that older
                # products have read its scales in tensor memory (the load thread waited for them).
                ptx.tcgen05_fence_after_thread_sync()
                stage = shared + place.stage * cfg.stage_bytes
                columns = tensor + cfg.scales_tensor + place.stage * cfg.stage_columns
                copy_scales(stage, columns)
                # no wait: PTX orders products after copies (cp) of the same thread
                multiply_stage(stage, accumulator, columns, shift, adds)
                # arrives when all copies and products so far are done
                ptx.tcgen05_commit(stage_ring.empty(barriers, place))
                place, adds = stage_ring.advance(place), 1
                step += 1
            ptx.tcgen05_commit(sum_ring.full(sum_barriers, sums_place))
            sums_place = sum_ring.advance(sums_place)
            number, tile_place = schedule.fetch_alone(shared, tile_place)

    @lang.device
    def finish_tiles(shared, tensor, outputs, sizes):
        sum_barriers = shared + cfg.sum_barriers
        thread = Thread(ptx.tid_x() // 32, ptx.tid_x() % 32)
        # Lanes of tensor memory are rows of the tile. Warp w may load lanes 32 (w % 4) to
        # 32 (w % 4) + 31 only: so the epilogue has warps 0 to 3. Warp w begins at lane 32 w, in an
        # address 32 w << LANE_SHIFT.
        own_lanes = tensor + (thread.warp << (LANE_SHIFT + 5))
        sums_place, source_place = sum_ring.consumer_start(), source_ring.consumer_start()
        number, tile_place = schedule.fetch_together(shared, schedule.start(), thread.lane)
        while number != NO_TILE:
            sum_ring.wait_full(sum_barriers, sums_place)
            ptx.tcgen05_fence_after_thread_sync()
            corner = schedule.corner(number, sizes)
            own_rows = Tile(corner.row + thread.warp * 32, corner.column)
            accumulator = own_lanes + sums_place.stage * cfg.tile_n
            source_place = output.store_tile(
                shared, outputs, accumulator, own_rows, source_place, sizes, thread
            )
            # all the warp's sums of the tile have been loaded from tensor memory
            ptx.tcgen05_fence_before_thread_sync()
            ptx.bar_warp_sync(ALL_LANES)
            if thread.lane == 0:
                sum_ring.release(sum_barriers, sums_place)
            sums_place = sum_ring.advance(sums_place)
            number, tile_place = schedule.fetch_together(shared, tile_place, thread.lane)
        output.drain(thread.lane)

    def kernel(a_map, b_map, sfa_map, sfb_map, c_map, d_map, d, sfd, bias, factors, locks, m, n, k):
        sizes = Sizes(m, n, k)
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)  # rounded up
        warp = ptx.tid_x() // 32
        if ptx.tid_x() == 0:
            initialise(shared)
        if warp == MULTIPLY_WARP:
            allocate(shared + cfg.address_shared)
            ptx.tcgen05_relinquish_alloc_permit()  # the block will ask for no more
        # No tcgen05 fence: allocation is synchronous, and every thread that touches tensor memory
        # executes fence::after_thread_sync first.
        cuda.syncthreads()
        tensor = ptx.ld_shared_b32(shared + cfg.address_shared)
        ptx.griddepcontrol_wait()  # all that is read may be what the kernel before has just written
        ptx.griddepcontrol_launch_dependents()  # behind the wait: ``block_decode`` says why
        if warp == LOAD_WARP:
            if ptx.elect_sync():
                load.load_tiles(shared, Maps(a_map, b_map, sfa_map, sfb_map), sizes)
        elif warp == MULTIPLY_WARP:
            if ptx.elect_sync():
                multiply_tiles(shared, tensor, sizes)
        elif warp == SCHEDULE_WARP:
            if ptx.elect_sync():
                schedule.hand_out_tiles(shared, locks, sizes)
        elif warp == SOURCE_WARP:
            if cfg.source and ptx.elect_sync():
                load.load_source(shared, c_map, sizes)
        else:
            finish_tiles(shared, tensor, Outputs(d_map, d, sfd, bias, factors), sizes)
        # Of warps 4 to 7 the lanes without a role come here at once: they wait for the one that has
        # one, since only whole warps may come to syncthreads. After that the epilogue is done with
        # tensor memory too, and it may be given back.
        ptx.bar_warp_sync(ALL_LANES)
        cuda.syncthreads()
        if warp == MULTIPLY_WARP:
            free(tensor)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """A and B in boxes of a tile's rows by 128 bytes, scales in boxes of a stage's tiles
    (``layout.block_scales.tensor_map``: in tiles, rows by k), C in boxes of a tile's rows by 32
    columns, D in boxes of a warp's 32 rows by 128 bytes; all but the scales in a swizzle as wide as
    their rows. ``a_stride``: unused, for kernels whose A may be a slice."""
    row_bytes = k * config.bits // 8

    def codes(rows, tile_rows):
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
            rows, k // config.kind.block, (ceil_div(tile_rows, TILE_ROWS), config.scale_tiles)
        )

    def numbers(dtype, size, rows, columns):
        return TensorMap(dtype, (m, n), (size * n, size), (rows, columns), swizzle=columns * size)

    # a map must be passed where nobody reads it
    absent = ("a", codes(m, TILE_M))
    return {
        "a_map": ("a", codes(m, TILE_M)),
        "b_map": ("b", codes(n, config.tile_n)),
        "sfa_map": ("sfa", scales(m, TILE_M)),
        "sfb_map": ("sfb", scales(n, config.tile_n)),
        "c_map": ("c", numbers(config.source_dtype, config.source_bytes, TILE_M, PART))
        if config.source
        else absent,
        "d_map": absent
        if config.scaled
        else ("d", numbers(config.result, config.result_bytes, 32, config.box_columns)),
    }
