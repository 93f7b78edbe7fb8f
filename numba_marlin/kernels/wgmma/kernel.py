"""The Hopper kernel for larger batches: ``wgmma`` on the transposed product, straight from Marlin's
bytes. ``C[m, n] = A[m, k] @ W[k, n]``. On an H200, 4096 x 4096 INT4 weights in groups of 128 take
6.4 us at m = 16 and 9.5 us at m = 64; with ``decode``, the Hopper kernel for small batches, 6.9 and
14.7, with ``ampere`` 10.0 and 16.5 (experiments/18_ladder; at m = 1 ``decode`` wins).

Parameters, in the signature's order:

a_map, b_map, s_map, c_map   tensor maps (``tensor_maps``) of
                             x = A [m, k], rows ``a_stride`` elements apart; the address, and the
                             distance of rows, are multiples of 16 bytes;
                             b int32 [k/16, n_packed * bits/2] in Marlin's order (the map counts it
                             in uint64; of FP4, words are encoded for the type of x);
                             scales [scale rows, n_packed], of the type of x; of FP4 int32
                             [n_packed / 64, scale rows * ``scale_words``];
                             c [m, n]
c, scales                    addresses of the same; of scales, where there is one per column
zeros                        not used: ``z_map`` brings them
bias                         [n]
partials, locks              workspace, fp32 and int32 (``workspace_bytes``); locks are zero before
                             and zero again after
m, n, k, a_stride            int32, at least 1; k is a multiple of 16, n of 8
z_map                        of zeros int32 [scale rows, n_packed * bits/32] or float16 [scale rows,
                             n_packed]; of the scales again if there are no zero points
factors                      FP4 only: fp32 [n_packed], a column's global scale times a power of 2
                             that undoes the units of its codes and scales (``fp4``)

n_packed is n rounded up to a multiple of 64; scale rows: below (one, if scales are per column).

Of the modules that are named below, ``shared``, ``load``, ``schedule``, ``columns`` and ``output``
lie in ``kernels.hopper``.

**Terms.** *x* is the matrix A of the interface; a *fragment* is a lane's four registers of
``wgmma``'s first operand A, which is weights. *Block* alone: a thread block. *Row* alone: of x and
C. *Groups* alone, or of 128 rows: scale groups. ``group_m`` counts row tiles (``schedule``).
*Word*: 32 bits. *Lane* 4g + t: g = 0 to 7, t = 0 to 3.

    panel        64 columns of W, as wide as Marlin's permutation
    strip        16 columns of a panel
    k16 row      16 rows of W: one row of b. (``group_blocks`` counts them in a scale group)
    step         64 of k: four k16 rows
    stage        a part of the ring in shared memory, which holds one step at a time
    tile         tile_m x tile_n of C
    item         consecutive steps of one tile that a block multiplies: all of its steps, or some
    part         an item of split-K, or of a cluster; *stripe*: a block's share of stream-K
    team         the blocks that share every tile, one part each; *wave*: a tile for each team
    box          what one tensor copy or tensor store (TMA) moves
    k group      ``warpgroups`` consumers, which take every k_groups-th stage (k_groups: 1 or 2)
    scale group  the rows of W that share a scale, in one column
    scale row    scales, or zero points, of a scale group (FP4: of 32 rows of W) and all columns
    wgmma group  the products between two ``wgmma.commit_group``
    quad         four fp32 accumulators of a thread, 16 bytes
    piece        16 rows of a strip of C: two quads of each lane. (In ``language.tuples`` a
                 slice; in ``dequantize.lookup`` 16 x 64 codes.)
    factor       of a column, in fp32, multiplies its accumulators in the epilogue

**The idea.** ``wgmma`` (sm_90a: a warpgroup, four warps, multiplies m64 by k16) takes A from
registers or shared memory, and B from shared memory only. Weights must pass through registers to be
dequantised, so they must be A: the kernel computes C^T = W^T x^T. The instruction's M is along n
here, its N is tile_m. So no byte of Marlin's layout has to move, dequantised weights never go back
to shared memory, and x is multiplied where TMA laid it down: [tile_m][k] with k contiguous, which
is B "K-major", as it stands (``tensor``).

**Who does what.** Blocks are persistent, one per SM or fewer (``config.grid``: no more than there
are tiles, or steps of k with ``split``), and warpgroups specialised. The last one is the producer:
one thread of it copies (``load``), and the warpgroup gives its registers up to the others
(``setmaxnreg``). The other ``warpgroups * k_groups`` are consumers: they dequantise,
multiply all rows of the tile (``tensor``), and write C (``output``). Number i of them is warpgroup
i % warpgroups of k group i // warpgroups. With ``k_groups=2``, stage s belongs to k group s % 2.
Warp w of a warpgroup has ``strips`` neighbouring strips of one panel, w % panels, from
``first_strip`` on:

    tile_n  warpgroups  panels  strips  first_strip
    64      1           1       1       w
    128     1           2       2       w // 2 * 2
    128     2           2       1       w // 2 + 2 * warpgroup
    256     1           4       4       0
    256     2           4       2       2 * warpgroup

Of two warpgroups each has strips of every panel, not a contiguous half: a lane's words of
neighbouring strips are neighbours in b, and one load (two for 4 strips of 8 bits) brings all that
its warp takes. The r-th strips of the four warps are the m64 of one ``wgmma``: 16 rows of W^T from
each warp, which is where the instruction wants them. So a warpgroup issues ``strips`` products per
k16 row, and a thread has as many tuples of tile_m / 2 accumulators.

**What is in flight, and what guards a stage.** The ring has ``stages`` stages, and runs on from
tile to tile. Up to all of them are on their way or full; of these a k group multiplies one, and
holds the one before while that one's last products run. A stage has two mbarriers, and each side
waits for one and arrives at the other. That is all that guards it:

========  ==========================  ============================================================
who       before it                   waits for
========  ==========================  ============================================================
consumer  reads a stage               *full*: the producer's one arrival, and all bytes it announced
producer  overwrites one (but in the  *empty*: an arrival of each of the 4 * warpgroups warps of the
          first lap: it is empty)     k group that the stage belongs to, made when the stage's last
                                      product is done, while the next one multiplies (``tensor``)
========  ==========================  ============================================================

``RingPlace(stage, parity)`` is a thread's place in the ring: the stage, and the parity of the phase
to wait for, which flips with each lap (``language.pipeline``). A consumer has two wgmma groups in
flight at most, of a k16 row each. What is not in the ring, the tile of C on its way out and the
accumulators that are exchanged, has guards of its own (``output``, ``exchange``).

Programmatic dependent launch (``griddepcontrol``): a launch's blocks begin on SMs that the kernel
before has left, and a ring full of weights is on its way before that kernel has ended. Nothing but
weights, scales and zero points is touched before it is complete: the producer waits before its
first copy of x, consumers before their first item.

**How many stages.** At least 2 * k_groups: a k group gives a stage back when its next one has begun
to multiply, so with fewer it would wait for itself. A multiple of k_groups: a stage belongs to one
k group for good. At most what fits in the 227 KiB that a block may have on Hopper
(``shared_bytes``, checked in ``config``): 6 of 25 KiB beside 64 KiB of C for 128 x 256 INT4, 18 for
16 x 256 and two k groups. Any number in between works, odd ones with k_groups=1. It changes how far
the producer runs ahead, and where what lies behind the ring is (``shared``), and nothing in the
main loop.

**How work is divided among blocks** (``schedule``). With ``parts`` (split-K), or ``cluster``, so
many blocks are a team: of a tile's steps of k each has an equal part, give or take one, perhaps
none. Else a block is its own team. With B teams a wave is B tiles of C. With ``split`` (stream-K)
the tiles that do not fill a wave are cut along k into B equal stripes, so that all blocks finish
together: a block does its stripe first, then its whole tiles, one of each wave. Without it a team
does its whole tiles, and some teams have one more. A cluster shares k only, nothing is multicast;
it was never faster than ``parts``, and ``choose`` proposes none.

**Which k and n a code has.** Of k16 row R, which begins at word R * n_packed * bits/2 of b, of
panel P of the matrix and strip j of it, lane = 4g + t has

    4 bits: word 128 * P + 4 * lane + j, nibble p          k = 2t + p // 4 + 8 * (p % 2)
                                                           n = 16j + g + 8 * (p // 2 % 2)
    8 bits: word 256 * P + 8 * lane + 2j + h, byte p       k = 2t + p // 2 + 8 * (p % 2)
            (h is 0 or 1: the columns g, or those 8 on)    n = 16j + g + 8h

of which k counts from 16 R and n from 64 P. FP4: code p of a word has the k and n of nibble p, but
is no nibble: register r of the expanded word, r = 0 to 3, has code r in its low half and code r + 4
in its high half, and which bits of the word make up a code depends on the type of x
(``expand_fp4``; packing: ``formats.fp4_words``). With w[b] bit b of the word, 0 unless 0 <= b < 32,
^ exclusive or, and u 0 for the low half of the register and 1 for the high one, bit i of code
r + 4u (bit 3 is the sign, bits 2 to 0 are e e m) is

    float16, q = 16u + (15, or 9 + i for i < 3)     bfloat16, q = 16u + (15, or 6 + i for i < 3)
    r = 0   w[q]                                    w[q]
    r = 1   w[q - 8]                                w[q - 3]
    r = 2   w[q + 3] ^ w[q - 7]                     w[q + 3] ^ w[q - 1]
    r = 3   w[q - 5] ^ w[q - 15]                    w[q - 2] ^ w[q - 6]

In W^T, where columns of W are rows, a lane has rows g and g + 8 of the strip's 16. So nibbles (0,
4), (2, 6), (1, 5) and (3, 7) are, in this order, the four registers of the lane's fragment: W^T's
rows g, g + 8, g, g + 8, columns 2t and 2t + 1, the last two with 8 more. ``expand`` gives d0 to d3,
register r of codes (r, r + 4), or of bytes (0, 2) and (1, 3) of word h = 0, then of word h = 1: the
fragment is d0, d2, d1, d3. Of the tile of C, accumulator 4v + 2h + e of strip j is row 8v + 2t + e
and column 16j + g + 8h of the panel; v = 0 to tile_m / 8 - 1, h and e 0 or 1.

**Scales.** W[k, n] has the scale, and the zero point, of scale group G = k // (16 * group_blocks),
0 if group_blocks is -1, in column n. With n = 64P + 16j + g + 8h, g = 0 to 7, j = 0 to 3, h = 0 or
1, they lie in row G of scales and of zero points (of FP4's scales, row P), at

    scales of groups, float16 zeros   element 64P + 8g + 2j + h
    scales per column                 element 64P + 32 (j//2) + 8 (g//2) + 4 (j%2) + g%2 + 2h
    integer zero points, 4 bits       nibble j + 4h of word 8P + g
    integer zero points, 8 bits       byte j % 2 + 2h of word 16P + 2g + j // 2
    FP4 scales, groups of 16          half h of pair k // 16 % 2 of word 32 (k // 32) + 4g + j
    FP4 scales, groups of 32          half h of pair j % 2 of word 16 (k // 32) + 2g + j // 2
    FP4 factors                       element 64P + 16j + 2g + h

(pairs of a word: ``fp4``). Scales of groups, and zero points, come with each stage, by TMA; a lane
loads those of its columns with the stage's words, and multiplies weights in 16 bits after the zero
point is subtracted, before ``wgmma``. With ``scaling="sums"`` weights stay integers, and a scale
group's products are scaled in fp32 when they are added to the tile's (``tensor``). Scales per
column, FP4's factors and the bias are loaded from global memory in the epilogue and applied in fp32
(``columns``). The exception: with float16 zero points, scales per column too come with the stage
and multiply weights. There code - zero is no integer and is rounded, and ``reference.weights``
allows for round(round(code - zero) * scale), not for sums of rounded weights, scaled afterwards.

**Partial sums, and their order.** Along k a consumer's accumulators add up in ``wgmma``. The second
k group hands its own to the first through shared memory. Blocks of a cluster wait for each other,
read each other's through DSMEM, in the order of their ranks, and each finishes a share of the tile
(``exchange``). Blocks of split-K and stream-K wait for no other block: they leave fp32 partial
tiles in the workspace and count themselves in, each warpgroup for itself; the last to come adds
them all, its own too, in the order of the blocks (of two parts, the other's to its own: a + b is b
+ a; ``output``). So the order is fixed: the same input, configuration and number of SMs give the
same bits.

**Epilogue.** Factors and bias in fp32, conversion to 16 bits, ``stmatrix``, which transposes, into
shared memory, each warp its own columns; then a tensor store of [tile_m][16 * strips] carries them
off while the next tile begins (``output``). Of a cluster's share, 16-byte stores (``exchange``).
No ping-pong: a warpgroup multiplies nothing in its epilogue. Meanwhile the producer fills the ring,
the other warpgroup goes its own way, and the second k group, which has no epilogue, multiplies the
next item already, until its sums of that are to be added.

**Tails** need no code in the main loop. A copy brings a whole box, with zeros for what lies outside
of x, b, scales and zero points, and these bytes count. Beyond k, x is 0, and weights, codes of 0
with a scale, are finite: their products are 0. (A row of FP4's scales is of 32 rows of W; where k
ends in its middle, the packer has stored 0 for the rest. Integer groups divide k.) Beyond n and m,
products go to places that the tensor store clips. Loads of factors and bias, and a cluster's
stores, are guarded by column < n and row < m. The host refuses an n that is not a multiple of 8
(``declare``: column_step), a k that is not a multiple of 16 (``formats.marlin`` packs no such
weights), and an a_stride that is not a multiple of 8: rows of a tensor map are multiples of 16
bytes apart (``layout.tensor_map``).

**Shared memory**, with its offsets, sizes, shapes and bank conflicts: ``shared``. **The order of a
round, and the state of the main loop**: ``tensor``.

**Tuples.** A thread's accumulators, fragments and scales are tuples with an element per strip, and
are walked while the kernel is compiled (``language.tuples``: for_each, map_each, together, repeat).
With piece 1, f takes and returns tuples of one: acc[0] is a strip's accumulators. A bare 0 for
``where`` is one that nobody reads."""

from numba_marlin.kernels.hopper.load import load_verbs
from numba_marlin.kernels.hopper.output import output_verbs
from numba_marlin.kernels.hopper.schedule import NO_TILE, schedule_verbs
from numba_marlin.kernels.hopper.shared import ALIGNMENT, STAGE_K, STAGE_K16_ROWS, WARPGROUP
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.wgmma.config import PRODUCER_REGISTERS
from numba_marlin.kernels.wgmma.exchange import exchange_verbs
from numba_marlin.kernels.wgmma.tensor import tensor_verbs
from numba_marlin.layout.tensor_map import ELEMENT_BYTES, TensorMap


def make(lang, config):
    ptx, shared_base = lang.ptx, lang.shared_base
    cfg = lang.constants(config)
    # consumers, to the ring: the warps of one k group, since only one uses a stage
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=4 * config.warpgroups)
    schedule = schedule_verbs(lang, config)
    load = load_verbs(lang, config, ring)
    multiply_stages = tensor_verbs(lang, config, ring)
    exchange, output = exchange_verbs(lang, config), output_verbs(lang, config)
    in_cluster, moves_registers = config.cluster > 1, config.consumer_registers is not None
    give_registers = ptx.setmaxnreg_dec(n=PRODUCER_REGISTERS)
    # (without moves_registers nobody calls it, but it must be made with some number)
    take_registers = ptx.setmaxnreg_inc(n=config.consumer_registers or 240)

    # warpgroup: which of those in a k group, 0 or 1; k_group: 0 or 1; number: the thread's in its
    # warpgroup, 0 to 127; panel: the warp's in the tile; first_strip: the warp's first of the
    # panel's four; lane: of the warp
    Thread = lang.record("Thread", "warpgroup k_group number panel first_strip lane")
    # In shared memory: addresses of the ring of stages, which comes first, and of its barriers
    Shared = lang.record("Shared", "base barriers")
    # In global memory: what the epilogue reads and writes. column_scales: scales of 16 bits, if
    # there is one per column, or FP4's fp32 factors; nobody reads the address of scales of groups
    Result = lang.record("Result", "c c_map column_scales bias partials locks")

    @lang.device
    def own_thread():
        """-> Thread of a consumer. (%tid.x is read once: a compiler takes two reads for two
        numbers, and keeps both. With 640 threads, short of registers, that took 14 instructions
        more per step, to work out addresses anew.)"""
        own = ptx.tid_x()
        consumer, number = own // WARPGROUP, own % WARPGROUP  # consumer: a warpgroup
        warp = number // 32
        warpgroup, k_group = consumer % cfg.warpgroups, consumer // cfg.warpgroups
        first_strip = (warp // cfg.panels + warpgroup * cfg.warps_per_panel) * cfg.strips
        return Thread(warpgroup, k_group, number, warp % cfg.panels, first_strip, number % 32)

    @lang.device
    def produce(shared, maps, sizes):
        """One thread: the stages of all items of this block. It may end before its last copies do,
        with no ``producer_tail`` as in CUTLASS: this block's consumers wait for all of them, and no
        other block arrives at the ring's barriers."""
        plan = schedule.plan_of(sizes)
        place = ring.producer_start()
        item = schedule.first_item(plan)
        if item.tile != NO_TILE:
            place, item = load.fill_first(shared, place, item, plan, maps, sizes)
        # after the first: what is left of it, perhaps 0 steps
        while item.tile != NO_TILE:
            place = load.fill_stages(shared, place, item, plan, maps, sizes)
            item = schedule.next_item(plan, item)

    @lang.device
    def consume(shared, result, sizes):
        """A consumer's thread: the main loop of each item, and its epilogue. place: the first stage
        of the ring that this thread has not looked at yet, the same for all consumers between
        items; item: steps of a tile to multiply; items_done: how many this block has done before;
        first_stage: the stage of the item's first step."""
        thread = own_thread()
        plan = schedule.plan_of(sizes)
        place = ring.consumer_start()
        item = schedule.first_item(plan)
        items_done = 0
        ptx.griddepcontrol_wait()  # c and the workspace may still be those of the kernel before
        while item.tile != NO_TILE:
            first_stage = place.stage
            place, acc = multiply_stages(shared, place, item, thread)
            acc = exchange.add_k_groups(acc, shared, items_done, first_stage, item.steps, thread)
            if thread.k_group == 0:
                if in_cluster:
                    exchange.add_blocks(acc, shared, items_done, result, item, plan, thread, sizes)
                else:
                    whole, acc = output.combine(acc, shared, result, item, plan, thread)
                    if whole:
                        acc = output.finish_columns(acc, result, item, plan, thread, sizes)
                        output.write_result(acc, shared, result, item, plan, thread)
            items_done += 1
            item = schedule.next_item(plan, item)
        output.drain(thread)
        exchange.close_exchange(shared, items_done)

    def kernel(
        a_map,
        b_map,
        s_map,
        c_map,
        c,
        scales,
        zeros,
        bias,
        partials,
        locks,
        m,
        n,
        k,
        a_stride,
        z_map,
        factors,
    ):
        sizes = schedule.Sizes(m, n, k)
        # rounded up: the language aligns to 128 bytes only, less than a swizzle's pattern
        base = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)
        shared = Shared(base, base + cfg.barriers_at)
        if ptx.tid_x() == 0:
            ring.initialise(shared.barriers)
        exchange.open_exchange(shared)  # always: its syncthreads lets all see the ring's barriers
        ptx.griddepcontrol_launch_dependents()
        if ptx.tid_x() >= cfg.consumer_threads:
            if moves_registers:
                give_registers()
            if ptx.tid_x() == cfg.consumer_threads:
                produce(shared, load.Maps(a_map, b_map, s_map, z_map), sizes)
        else:
            if moves_registers:
                take_registers()
            column_scales = factors if cfg.block_scaled else scales
            result = Result(c, c_map, column_scales, bias, partials, locks)
            consume(shared, result, sizes)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """-> {parameter: (matrix, TensorMap of dtype, shape, strides in bytes, box)}; matrix: a name of
    the launch's caller. Boxes: of x, a tile's rows by 64 of k, which is one row of the swizzle; of
    b, a stage's k16 rows by the tile's columns, or half of them; of scales and zero points, a
    stage's scale rows by the tile's columns; of c, the tile's rows by one warp's columns. Elements
    of b's map are uint64: a k16 row has ``w_elements`` per column, 1 with 4 bits and 2 with 8.
    Those of FP4's scales are int32: a row of the map is a panel, with ``scale_words`` per scale
    row."""
    n_packed, codes_per_word = ceil_div(n, 64) * 64, 32 // config.bits
    scale_rows = ceil_div(k, 16 * config.k16_per_scale_row) if config.grouped else 1
    row = config.w_elements * n_packed  # of b, in uint64
    x_box = (config.tile_m, STAGE_K)
    b_box = (STAGE_K16_ROWS, config.w_elements * config.w_box_columns)
    c_box = (config.tile_m, 16 * config.strips)
    a_map = TensorMap(config.dtype, (m, k), (2 * a_stride, 2), x_box, swizzle=128, l2_promotion=256)
    b_map = TensorMap("uint64", (k // 16, row), (8 * row, 8), b_box, l2_promotion=256)
    c_map = TensorMap(config.dtype, (m, n), (2 * n, 2), c_box, swizzle=config.result_row_bytes)

    def per_scale_row(dtype, pitch, box_columns):
        """Of [scale_rows, columns] in rows of ``pitch`` bytes."""
        size, box = ELEMENT_BYTES[dtype], (config.scale_rows, box_columns)
        return TensorMap(dtype, (scale_rows, pitch // size), (pitch, size), box, l2_promotion=128)

    scales = per_scale_row(config.dtype, 2 * n_packed, config.tile_n)
    if config.block_scaled:
        words = scale_rows * config.scale_words  # of a panel
        box = (config.panels, config.scale_rows * config.scale_words)
        scales = TensorMap("int32", (n_packed // 64, words), (4 * words, 4), box, l2_promotion=128)
    zeros = {
        None: ("scales", scales),  # a map must be passed, nobody reads it
        "integer": (
            "zeros",
            per_scale_row("int32", 4 * n_packed // codes_per_word, config.tile_n // codes_per_word),
        ),
        "float16": ("zeros", per_scale_row("float16", 2 * n_packed, config.tile_n)),
    }[config.zeros]
    return {
        "a_map": ("a", a_map),
        "b_map": ("b", b_map),
        "s_map": ("scales", scales),
        "c_map": ("c", c_map),
        "z_map": zeros,
    }
