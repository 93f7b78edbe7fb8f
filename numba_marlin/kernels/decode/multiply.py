"""The main loop of ``decode``: what a consumer warp does with a stage. It multiplies its own
columns and its own part of the stage's k by all rows of x.

``multiply_verbs(lang, config, ring)`` -> namespace of device functions, and the lengths of the
local arrays that they want. ``fetch`` brings a stage's words to registers, ``weights`` and ``fp4``
make A fragments of them, ``promote`` adds a group's accumulators to those of the tile. ``kernel``
says what a stage, a pair, a group and a 16-column block are. A function of this module that says
"-> device function" makes one.

``Registers``, of a lane:

``acc``              accumulators of the tile, [16-column block][n8 block][4]
``products``         those of a group, promoted to ``acc`` at its end. ``acc`` itself where nothing
                     is promoted (``config.promoted``); the array made for it has one element then
``words``            packed weights, [slot][row_words]
``x``                B fragments, [n8 block][slot][2], or what they are made of (``activations``)
``zeros_or_scales``  a group's integer zero points (``zero_points``), or scales of FP4 (``fp4``), or
                     nothing, one element: what a fragment is made with besides its words
``minus_x``          minus the sums of x (``promote``), with float16 zero points
``upper_first``      whether the lane's words begin with their upper half (``weights``)

A *slot* is the registers of a k16 row. With ``batch`` up to 16 a warp has four slots, that is two
buffers of a pair: ``buffer`` 0 or 1 is slots 2 buffer and 2 buffer + 1, and ``of_pair`` 0 or 1 says
which row of the pair. Above 16 there is a single slot.

**From one step to the next** only ``acc`` carries a value (``upper_first`` never changes). Of all
other registers a step writes first what it reads: its first pair always begins a group, or a
further part of one.

**What a warp does with a full stage**, in the order of the source. With batch <= 16, four pairs,
and groups of two (``double_buffered``; "zeros": of a group, integer ones, if there are any;
"terms": its scales and float16 zero points, if it is promoted)::

    fetch pair 0 to buffer 0
    fetch zeros 0;  fetch pair 1 to buffer 1;  multiply pair 0, whose first row replaces products
    fetch terms 0;  fetch pair 2 to buffer 0;  multiply pair 1;  promote group 0
    fetch zeros 1;  fetch pair 3 to buffer 1;  multiply pair 2, whose first row replaces products
    fetch terms 1;  release the stage;         multiply pair 3;  promote group 1

The default configuration has only the first two lines and the last: two pairs of one group. FP4's
scales come with their pair, and where nothing is promoted rows are added to ``acc``. With batch >
16 there is no buffer for the next pair, so the two rows take turns in one slot (``in_turns``), two
pairs to a group::

    fetch zeros 0;  fetch row 0;  multiply, replacing products;  fetch row 1;  multiply
    fetch terms 0;  fetch row 2;  multiply;  fetch row 3;  release the stage;  multiply;  promote

and with float16 zero points besides (``late``) terms come after the group's last multiply, and the
release after the terms. In a last step that k does not fill rows come one at a time, and the stage
is released after all of them (``tail``).

**What overlaps with what** in a warp is up to the assembler: loads may move among products, as
neither changes what the other reads. What ptxas 13.5 makes of four configurations (read, not timed)
has all loads between the stage's wait and its release, and the release before the last products.
(Whether these come before or after the next stage's wait was not looked at.) With batch <= 16 it
begins with pair 0 and issues the loads of each next pair one by one among the products of the pair
before. With batch > 16 it too issues loads of a row among products of earlier rows, in as many
registers as are left, though the source has one slot. The first products of a stage wait for its
first loads with nothing to overlap, which only other warps' work can hide; with rows_per_warp = 2
there is no other pair.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.decode import fp4 as fp4_weights
from numba_marlin.kernels.decode import weights as integer_weights
from numba_marlin.kernels.decode.activations import x_verbs
from numba_marlin.kernels.decode.fetch import fetch_verbs
from numba_marlin.kernels.decode.promote import promotion_verbs

REGISTERS = "acc products words x zeros_or_scales minus_x upper_first"


def multiply_verbs(lang, config, ring):
    kind = fp4_weights if config.block_scaled else integer_weights
    weights = kind.weight_verbs(lang, config)
    fetch = fetch_verbs(lang, config, weights)
    at = fetch.at
    promotion = promotion_verbs(lang, config, at)
    Registers = lang.record("Registers", REGISTERS)

    done_with_stage = release_verb(lang, ring)

    # What pairs are made of. multiply_first, for the first k16 row of a group, replaces
    # ``products``, unless nothing is promoted: then these are the tile's accumulators, and it adds
    # to them as multiply_next does.
    verbs = lang.namespace(
        "verbs",
        fetch=fetch,
        promotion=promotion,
        multiply_first=row_product(lang, config, weights, promotion, replaces=config.promoted),
        multiply_next=row_product(lang, config, weights, promotion, replaces=False),
        done_with_stage=done_with_stage,
    )
    full_stage = double_buffered if config.two_pairs else in_turns
    multiply_full = full_stage(lang, config, verbs)
    multiply_tail = tail(lang, config, verbs)

    return lang.namespace(
        "multiply",
        Registers=Registers,
        stage_offsets=fetch.stage_offsets,
        multiply_stage=stage_verb(lang, config, at, multiply_full, multiply_tail, done_with_stage),
        done_with_stage=done_with_stage,
        reads_upper_first=weights.reads_upper_first,
        products_length=config.accumulators if config.promoted else 1,
        zeros_or_scales_length=weights.zeros_or_scales_length,
        minus_x_length=4 * config.n8_blocks if config.zeros == "float16" else 1,
        offsets_length=at.length,
    )


def release_verb(lang, ring):
    ptx = lang.ptx

    @lang.device
    def done_with_stage(shared, place, lane):
        """To be called when the warp has fetched all it needs of a stage, used or not. The barrier
        of the warp orders all lanes' reads before lane 0's arrival at the empty mbarrier, a
        release, which the producer waits for, an acquire, before its next copy.

        Reads go through the generic proxy, the copy through the async proxy, and there is no
        fence.proxy.async. Such a fence makes writes of one proxy visible to the other, but here the
        generic proxy writes nothing; a copy's completion has its own fence towards the readers.
        What is left is that no copy may overtake a read: the loads have returned their values when
        the arrival takes effect, and the copy is issued after the producer has seen it. CUTLASS's
        mixed-input main loop for Hopper relies on the same (ldmatrix, then
        PipelineTmaAsync::consumer_release, a bare arrival); its epilogue has a fence at such a
        place. The PTX ISA asks for a fence where proxies meet, and does not treat this case."""
        ptx.bar_warp_sync(ALL_LANES)
        if lane == 0:
            ring.release(shared.barriers, place)

    return done_with_stage


def stage_verb(lang, config, at, multiply_full, multiply_tail, done_with_stage):
    """-> device function: a warp's part of a stage. multiply_full(registers, pointers, shared,
    place, lane) releases the stage; multiply_tail(registers, pointers, own k16 rows) does not."""
    cuda, uint32, cfg = lang.cuda, lang.uint32, lang.constants(config)

    @lang.device
    def multiply_stage(registers, shared, offsets, place, k16_rows, thread):
        """The warp's part of a stage that has landed; then the stage is released. offsets: of what
        the lane reads, in bytes from where a stage begins (``fetch.stage_offsets``); k16_rows: what
        the matrix has of the step."""
        pointers = cuda.local.array(at.length, uint32)
        for i in range(at.length):
            pointers[i] = shared.base + place.stage * cfg.stage_bytes + offsets[i]
        if not cfg.ragged or k16_rows == cfg.stage_rows:
            multiply_full(registers, pointers, shared, place, thread.lane)
        else:
            before = thread.warp_k * cfg.rows_per_warp
            own_rows = min(k16_rows - before, cfg.rows_per_warp) if k16_rows > before else 0
            multiply_tail(registers, pointers, own_rows)
            done_with_stage(shared, place, thread.lane)

    return multiply_stage


def row_product(lang, config, weights, promotion, replaces):
    """-> device function (registers, slot, of_pair): one k16 row, four 16-column blocks, times all
    rows of x. replaces: the product replaces ``products`` and is not added to it. of_pair matters
    to FP4 only. With float16 zero points it sums up x too (``add_x``, otherwise empty)."""
    ptx, float32, cfg = lang.ptx, lang.float32, lang.constants(config)
    multiply_accumulate = {
        "float16": ptx.mma_m16n8k16_f32_f16,
        "bfloat16": ptx.mma_m16n8k16_f32_bf16,
    }[config.product_dtype]
    widen = x_verbs(lang, config).widen
    add_x = promotion.add_x_first if replaces else promotion.add_x

    @lang.device
    def zeros_of(products, o):
        return float32(0), float32(0), float32(0), float32(0)

    @lang.device
    def four_of(products, o):
        return products[o], products[o + 1], products[o + 2], products[o + 3]

    addend = zeros_of if replaces else four_of

    @lang.device
    def multiply_block(registers, slot, j, of_pair):
        products, x = registers.products, registers.x
        w = weights.fragment(registers, slot, j, of_pair)
        for n8 in range(cfg.n8_blocks):
            o, i = 4 * (cfg.n8_blocks * j + n8), cfg.x_words_per_n8 * n8 + 2 * slot
            d = multiply_accumulate(w, (x[i], x[i + 1]), addend(products, o))
            for r in range(4):
                products[o + r] = d[r]

    @lang.device
    def multiply_row(registers, slot, of_pair):
        for n8 in range(cfg.n8_blocks):
            widen(registers.x, cfg.x_words_per_n8 * n8 + 2 * slot)
        multiply_block(registers, slot, 0, of_pair)
        multiply_block(registers, slot, 1, of_pair)
        multiply_block(registers, slot, 2, of_pair)
        multiply_block(registers, slot, 3, of_pair)
        add_x(registers, slot)

    return multiply_row


# ---- a full stage ----


def place_of_pair(config, number):
    """-> (group, begins, ends, last) of pair ``number`` of a warp's part of a stage. group: number
    of its group, counted from the first that the warp has of the stage; begins, ends: whether the
    pair is the first and the last one of its group there; last: of the stage. A group that spans
    several stages, or several warps, is promoted part by part, as the last pair always ends one."""
    group, pair_of_group = divmod(number, config.pairs_per_sum)
    ends = pair_of_group + 1 == config.pairs_per_sum
    return group, pair_of_group == 0, ends, number + 1 == config.pairs


def double_buffered(lang, config, verbs):
    """-> device function (registers, pointers, shared, place, lane): a warp's part of a full stage,
    then released. While a pair is multiplied from one buffer, the next is fetched to the other."""

    @lang.device
    def no_pair_left(registers, pointers, shared, place, lane):
        pass

    def pairs_from(number):
        """-> device function: pair ``number``, then all after it. pairs_from(0) is the stage. In
        CUDA it would be a loop over the body of ``multiply_pairs``::

            #pragma unroll
            for (int number = 0; number < pairs; number++) {
                ...
            }

        Numba has no such pragma, and a loop that stays rolled would index registers at run time. So
        each turn is a device function that calls the next one, all of them inlined. ``number`` and
        the names of the next two lines are constants in it, so each ``if`` leaves one side."""
        group, begins, ends, last = place_of_pair(config, number)
        buffer = number % 2
        following_pairs = no_pair_left if last else pairs_from(number + 1)

        @lang.device
        def multiply_pairs(registers, pointers, shared, place, lane):
            # The pair's weights, FP4's scales and rows of x are in ``buffer`` already.
            if begins:
                verbs.fetch.fetch_zeros(registers, pointers, group)
            if ends:
                terms = verbs.promotion.fetch_terms(pointers, group)
            if last:
                verbs.done_with_stage(shared, place, lane)
            else:
                verbs.fetch.fetch_pair(registers, 1 - buffer, pointers, number + 1)
            if begins:
                verbs.multiply_first(registers, 2 * buffer, of_pair=0)
            else:
                verbs.multiply_next(registers, 2 * buffer, of_pair=0)
            verbs.multiply_next(registers, 2 * buffer + 1, of_pair=1)
            if ends:
                verbs.promotion.promote(registers, terms)
            following_pairs(registers, pointers, shared, place, lane)

        return multiply_pairs

    all_pairs = pairs_from(0)

    @lang.device
    def multiply_full(registers, pointers, shared, place, lane):
        verbs.fetch.fetch_pair(registers, 0, pointers, 0)
        all_pairs(registers, pointers, shared, place, lane)

    return multiply_full


def in_turns(lang, config, verbs):
    """-> the same for batch > 16, where registers suffice for one k16 row: the rows of a pair are
    fetched and multiplied in turn. Unrolled as in ``double_buffered``.

    With float16 zero points not even a group's scales and zero points can be kept while a row
    multiplies. So these are read last (``late``), and the stage is released after that."""
    late = config.zeros == "float16"

    @lang.device
    def no_pair_left(registers, pointers, shared, place, lane):
        pass

    def pairs_from(number):
        group, begins, ends, last = place_of_pair(config, number)
        following_pairs = no_pair_left if last else pairs_from(number + 1)

        @lang.device
        def multiply_pairs(registers, pointers, shared, place, lane):
            if begins:
                verbs.fetch.fetch_zeros(registers, pointers, group)
            if ends and not late:
                terms = verbs.promotion.fetch_terms(pointers, group)
            verbs.fetch.fetch_pair_scales(registers, pointers, number)
            verbs.fetch.fetch_row(registers, pointers, 2 * number)
            if begins:
                verbs.multiply_first(registers, 0, of_pair=0)
            else:
                verbs.multiply_next(registers, 0, of_pair=0)
            verbs.fetch.fetch_row(registers, pointers, 2 * number + 1)
            if last and not late:
                verbs.done_with_stage(shared, place, lane)
            verbs.multiply_next(registers, 0, of_pair=1)
            if ends and late:
                terms = verbs.promotion.fetch_terms(pointers, group)
            if last and late:
                verbs.done_with_stage(shared, place, lane)
            if ends:
                verbs.promotion.promote(registers, terms)
            following_pairs(registers, pointers, shared, place, lane)

        return multiply_pairs

    return pairs_from(0)


# ---- the last step of a tile, where k does not fill it ----


def tail(lang, config, verbs):
    """-> device function (registers, pointers, k16_rows): a warp's rows of the last step of a
    tile, of which the matrix has fewer than a stage holds; some warps have none. They are
    multiplied one by one, each promoted by itself, so that nothing is read that was not copied."""
    cfg = lang.constants(config)

    @lang.device
    def multiply_tail(registers, pointers, k16_rows):
        row = 0
        while row < k16_rows:
            group = row // cfg.k16_rows_per_sum
            verbs.fetch.fetch_zeros(registers, pointers, group)
            verbs.fetch.fetch_row(registers, pointers, row)
            verbs.fetch.fetch_row_scales(registers, pointers, row)
            # replaces ``products``, and adds to ``acc`` where nothing is promoted
            verbs.multiply_first(registers, 0, of_pair=0)
            verbs.promotion.promote(registers, verbs.promotion.fetch_terms(pointers, group))
            row += 1

    return multiply_tail
