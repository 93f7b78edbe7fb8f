"""The main loop of ``decode``: what a consumer warp does with a stage. It multiplies its own
columns and its own part of the stage's k by all rows of x.

``multiply_verbs(lang, config, ring)`` -> namespace of device functions, and the lengths of the
local arrays that they want. ``fetch`` brings a stage's words to registers, ``weights`` and ``fp4``
make A fragments of them, ``promote`` adds a group's accumulators to those of the tile.

``Registers``, of a lane:

``acc``          accumulators of the tile, [16-column block][n8 block][4]
``products``     those of a group, promoted to ``acc`` at its end; ``acc`` itself if nothing is done
                 to a group's products
``words``        packed weights, [slot][row_words]
``x``            B fragments, [n8 block][slot][2]
``corrections``  integer zero points (``zero_points``), or scales of blocks (``fp4``)
``minus_x``      minus the sums of x (``promote``)
``upper_first``  whether the lane's words begin with their upper half (``weights``)

A slot is the registers of a k16 row (16 of k). Up to 16 rows of x a warp has four slots, that is
two buffers of a pair of rows (32 of k): ``buffer`` 0 or 1 is slots 2 buffer and 2 buffer + 1, and
``of_pair`` 0 or 1 is which row of the pair. The pair in one buffer multiplies while the next one is
on its way from shared memory to the other. Above 16 rows there are registers for a single slot, and
k16 rows take turns. An n8 block is 8 rows of x.

Overlap ends with a stage: ``from_first_fetch`` waits for the stage's first pair, and only other
warps' work can hide that.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.decode import fp4, weights
from numba_marlin.kernels.decode.fetch import fetch_verbs
from numba_marlin.kernels.decode.promote import promotion_verbs


def multiply_verbs(lang, config, ring):
    cuda, ptx, uint32 = lang.cuda, lang.ptx, lang.uint32
    cfg = lang.constants(config)
    codes = (fp4 if config.block_scaled else weights).weight_verbs(lang, config)
    fetch = fetch_verbs(lang, config, codes)
    at = fetch.at
    promotion = promotion_verbs(lang, config, at)
    Registers = lang.record("Registers", "acc products words x corrections minus_x upper_first")

    @lang.device
    def done_with_stage(shared, place, lane):
        """All lanes have read all they need, though not yet used it."""
        ptx.bar_warp_sync(ALL_LANES)
        if lane == 0:
            ring.release(shared.barriers, place)

    parts = lang.namespace(
        "parts",
        fetch=fetch,
        promotion=promotion,
        multiply_first=row_product(lang, config, codes, promotion, first=config.promoted),
        multiply_next=row_product(lang, config, codes, promotion, first=False),
        done_with_stage=done_with_stage,
    )
    multiply_pairs = all_pairs(lang, config, parts)
    multiply_tail = tail(lang, config, parts)

    @lang.device
    def multiply_stage(registers, shared, offsets, place, rows, thread):
        """rows: k16 rows that the matrix has of the stage."""
        pointers = cuda.local.array(at.number, uint32)
        for i in range(at.number):
            pointers[i] = shared.base + place.stage * cfg.stage_bytes + offsets[i]
        if not cfg.ragged or rows == cfg.stage_rows:
            multiply_pairs(registers, pointers, shared, place, thread.lane)
        else:
            before = thread.warp_k * cfg.rows_per_warp
            own_rows = min(rows - before, cfg.rows_per_warp) if rows > before else 0
            multiply_tail(registers, pointers, own_rows)
            done_with_stage(shared, place, thread.lane)

    return lang.namespace(
        "multiply",
        Registers=Registers,
        stage_offsets=fetch.stage_offsets,
        multiply_stage=multiply_stage,
        done_with_stage=done_with_stage,
        upper_first=codes.upper_first,
        products=config.accumulators if config.promoted else 1,
        corrections=codes.corrections,
        minus_x=4 * config.batch_blocks if config.zeros == "float16" else 1,
        pointers=at.number,
    )


def row_product(lang, config, codes, promotion, first):
    """-> device function (registers, slot, of_pair): one k16 row, four blocks of 16 columns each,
    times all rows of x. first: the product replaces ``products``. of_pair: which row of its pair it
    is."""
    ptx, float32, cfg = lang.ptx, lang.float32, lang.constants(config)
    multiply_accumulate = {
        "float16": ptx.mma_m16n8k16_f32_f16,
        "bfloat16": ptx.mma_m16n8k16_f32_bf16,
    }[config.dtype]
    add_x = promotion.add_x_first if first else promotion.add_x

    @lang.device
    def zeros_of(products, o):
        return float32(0), float32(0), float32(0), float32(0)

    @lang.device
    def four_of(products, o):
        return products[o], products[o + 1], products[o + 2], products[o + 3]

    addend = zeros_of if first else four_of

    @lang.device
    def multiply_row(registers, slot, of_pair):
        products, x = registers.products, registers.x
        for j in range(4):
            w = codes.fragment(registers, slot, j, of_pair)
            for b in range(cfg.batch_blocks):
                o, i = 4 * (cfg.batch_blocks * j + b), cfg.x_row_words * b + 2 * slot
                d = multiply_accumulate(w, (x[i], x[i + 1]), addend(products, o))
                for r in range(4):
                    products[o + r] = d[r]
        add_x(registers, slot)

    return multiply_row


# ---- a full stage ----


def all_pairs(lang, config, parts):
    """-> device function (registers, pointers, shared, place, lane): all of a warp's k16 rows of a
    full stage, pair by pair, unrolled. It releases the stage after its last read.

    A pair's code depends on its number: which group, whether it begins or ends one, what to fetch
    next. So each pair is a device function of its own, made here from the last to the first, and
    calls the next one, ``rest``: all of them are inlined, and no number is left at run time."""
    late = config.zeros == "float16"
    pair_verb = double_buffered if config.two_pairs else late_turns if late else in_turns

    @lang.device
    def no_more_pairs(registers, pointers, shared, place, lane):
        pass

    rest = no_more_pairs
    for number in reversed(range(config.pairs)):
        rest = pair_verb(lang, config, parts, number, rest)
    if not config.two_pairs:
        return rest
    first_pair = rest

    @lang.device
    def from_first_fetch(registers, pointers, shared, place, lane):
        parts.fetch.fetch_pair(registers, 0, pointers, 0)
        first_pair(registers, pointers, shared, place, lane)

    return from_first_fetch


def group_verbs(lang, config, parts, number):
    """-> namespace: what pair ``number`` does for its group, besides its products. The first pair
    of a group fetches integer zero points, and its first product replaces ``products``; the last
    pair promotes, with the ``terms`` that it has fetched."""
    group, pair_of_group = divmod(number, config.pairs_per_scale)
    begins, ends = pair_of_group == 0, pair_of_group + 1 == config.pairs_per_scale

    @lang.device
    def fetch_zeros(registers, pointers):
        parts.fetch.fetch_group(registers, pointers, group)

    @lang.device
    def fetch_terms(pointers):
        return parts.promotion.fetch(pointers, group)

    @lang.device
    def no_zeros(registers, pointers):
        pass

    @lang.device
    def no_terms(pointers):
        return 0

    @lang.device
    def promote_nothing(registers, terms):
        pass

    return lang.namespace(
        "group",
        fetch_zeros=fetch_zeros if begins else no_zeros,
        multiply_first=parts.multiply_first if begins else parts.multiply_next,
        fetch_terms=fetch_terms if ends else no_terms,
        promote=parts.promotion.promote if ends else promote_nothing,
    )


def double_buffered(lang, config, parts, number, rest):
    """-> device function: pair ``number``, which is in registers, while the next one is on its way
    to them; then ``rest``."""
    group, buffer = group_verbs(lang, config, parts, number), number % 2
    last = number + 1 == config.pairs

    @lang.device
    def multiply_pairs(registers, pointers, shared, place, lane):
        group.fetch_zeros(registers, pointers)
        terms = group.fetch_terms(pointers)
        if last:
            parts.done_with_stage(shared, place, lane)
        else:
            parts.fetch.fetch_pair(registers, 1 - buffer, pointers, number + 1)
        group.multiply_first(registers, 2 * buffer, 0)
        parts.multiply_next(registers, 2 * buffer + 1, 1)
        group.promote(registers, terms)
        rest(registers, pointers, shared, place, lane)

    return multiply_pairs


def in_turns(lang, config, parts, number, rest):
    """-> device function: pair ``number``, one k16 row fetched and multiplied after the other; then
    ``rest``."""
    group, last = group_verbs(lang, config, parts, number), number + 1 == config.pairs

    @lang.device
    def multiply_pairs(registers, pointers, shared, place, lane):
        group.fetch_zeros(registers, pointers)
        terms = group.fetch_terms(pointers)
        parts.fetch.fetch_pair_scales(registers, pointers, number)
        parts.fetch.fetch_row(registers, pointers, 2 * number)
        group.multiply_first(registers, 0, 0)
        parts.fetch.fetch_row(registers, pointers, 2 * number + 1)
        if last:
            parts.done_with_stage(shared, place, lane)
        parts.multiply_next(registers, 0, 1)
        group.promote(registers, terms)
        rest(registers, pointers, shared, place, lane)

    return multiply_pairs


def late_turns(lang, config, parts, number, rest):
    """``in_turns`` with float16 zero points: no registers to keep scales and zero points in while a
    row multiplies."""
    group, last = group_verbs(lang, config, parts, number), number + 1 == config.pairs

    @lang.device
    def multiply_pairs(registers, pointers, shared, place, lane):
        parts.fetch.fetch_row(registers, pointers, 2 * number)
        group.multiply_first(registers, 0, 0)
        parts.fetch.fetch_row(registers, pointers, 2 * number + 1)
        parts.multiply_next(registers, 0, 1)
        terms = group.fetch_terms(pointers)
        if last:
            parts.done_with_stage(shared, place, lane)
        group.promote(registers, terms)
        rest(registers, pointers, shared, place, lane)

    return multiply_pairs


# ---- the last stage of k ----


def tail(lang, config, parts):
    """-> device function (registers, pointers, rows): the last stage of k, of fewer rows than a
    stage holds: one after the other, each a group of its own, and nothing that was not copied."""
    cfg = lang.constants(config)

    @lang.device
    def multiply_tail(registers, pointers, rows):
        row = 0
        while row < rows:
            group = row // cfg.rows_per_scale
            parts.fetch.fetch_group(registers, pointers, group)
            parts.fetch.fetch_row(registers, pointers, row)
            parts.fetch.fetch_row_scales(registers, pointers, row)
            parts.multiply_first(registers, 0, 0)
            parts.promotion.promote(registers, parts.promotion.fetch(pointers, group))
            row += 1

    return multiply_tail
