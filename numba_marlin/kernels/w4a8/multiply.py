"""The main loop of the consumers: Marlin's words to bytes to the tensor cores, and
sums of groups into totals.

A round multiplies a stage, 128 of k; from top to bottom::

    wait until the stage is full
    load the words of its eight k16 rows, scales, zero points
    for each scale group in it (one of 128, two of 64, four of 32; with one scale per column, all):
        for each 32 of k: dequantise two k16 rows; issue a product per strip
        wait until nothing is in flight
        (the stage's last one: lane 0 releases the stage)
        promote: totals += scale * sums, in fp32 (fp8 with one scale per column: totals += sums)

No product of this warpgroup is in flight while it promotes. Those of the other should be, but the
ring alone does not see to it: on an H200 the two ran in lock step, 825 TFLOP/s with int8 and groups
of 128 where 1,590 were reached without promotion. With ``ordered`` they take turns
(``turn_verbs``), as in CUTLASS's ping-pong kernels and FlashAttention-3: the first product of a
group waits for the warpgroup's turn, and the turn passes on when the last has been issued. Words
are loaded, and the first product's bytes made, before the turn. The turn passes before the products
are done, so that the other's are queued behind them. Why lane 0 may release the stage for its warp:
``kernels.wgmma.tensor``.

The state of the loop: ``place`` and ``steps_left``, the same in all consumers; ``acc``, int32 or
fp32 sums, of the scale group multiplied last, or of all k; ``totals``, fp32. All of a thread's are
tuples with an element per strip. Accumulator 4v + 2h + e: row 8v + 2t + e, column g + 8h of the
strip.
"""

from numba_marlin.kernels.hopper.shared import DESCRIPTOR_WITHOUT_ADDRESS, WARPGROUP
from numba_marlin.kernels.language.tuples import for_each, map_each, repeat, together
from numba_marlin.kernels.w4a8.config import K32_STEPS
from numba_marlin.kernels.w4a8.elements import element_verbs
from numba_marlin.layout.w4a8 import EVEN_BYTES, ODD_BYTES

TURN = 1  # and 2: named barriers; 0 is syncthreads
NEXT_K32 = 2  # 32 bytes of a row of x on, in the descriptor's units of 16


def turn_verbs(lang, config):
    """-> namespace: ``open``, ``wait``, ``give_over``, ``close``: device functions of a warpgroup's
    number, with which two warpgroups take turns to multiply, number 0 first. Named barrier TURN +
    w: it is w's turn; w waits, the other arrives. ``open`` and ``close`` come before the first turn
    and after the last: of either barrier there are as many arrivals as waits."""
    ptx = lang.ptx
    threads = 2 * WARPGROUP

    @lang.device
    def wait(warpgroup):
        ptx.bar_sync(TURN + warpgroup, threads)

    @lang.device
    def give_over(warpgroup):
        ptx.bar_arrive(TURN + 1 - warpgroup, threads)

    @lang.device
    def begin(warpgroup):
        if warpgroup == 1:
            give_over(warpgroup)

    @lang.device
    def end(warpgroup):
        if warpgroup == 0:
            wait(warpgroup)

    return lang.namespace("turns", open=begin, wait=wait, give_over=give_over, close=end)


def multiply_verbs(lang, config, ring):
    """-> device function ``multiply_item(shared, place, item, thread) -> (place, sums)``: the main
    loop over an item's stages. sums: totals of groups, or int32 with one scale per column. When it
    returns, no product is in flight and all stages are released."""
    ptx, uint64 = lang.ptx, lang.uint64
    cfg = lang.constants(config)
    zeroed, strips, width = config.zeros is not None, config.strips, config.accumulators
    elements, turns, ordered = (
        element_verbs(lang, config),
        turn_verbs(lang, config),
        config.ordered,
    )
    even, odd = ptx.prmt_b32(selector=EVEN_BYTES), ptx.prmt_b32(selector=ODD_BYTES)
    wait_for_all = ptx.wgmma_wait_group(n=0)
    keep_fragment = ptx.keep_u32(width=4)
    low_of, high_of = {
        "float16": (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high),
        "bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high),
    }[config.dtype]
    no_sums = repeat(lang, strips, elements.no_sums)
    no_totals = repeat(lang, strips, ptx.zero_f32(width=width))

    # what is multiplied by: the descriptor of the same 32 of k in the stage's x; adds: 0 if the
    # product replaces the accumulators, else 1
    Multiplier = lang.record("Multiplier", "descriptor adds")
    # of a strip, columns g and g + 8, in fp32
    TwoScales = lang.record("TwoScales", "lower upper")
    # the sums of a strip, and the pair of scales that they are to be multiplied by
    StripAndScale = lang.record("StripAndScale", "acc scale")
    # a word of type uint32
    Register = lang.record("Register", "word")

    # ---- words, scales, zero points: from a stage to registers

    @lang.device
    def one_word(address):
        return (ptx.ld_shared_b32(address),)

    words_at = {1: one_word, 2: ptx.ld_shared_v2_b32, 4: ptx.ld_shared_v4_b32}[strips]

    @lang.device
    def own_words(thread):
        """Where in a stage a lane's words of k16 row 0 begin: a word of each of its strips."""
        panel = thread.panel * cfg.panel_bytes
        if cfg.w_boxes > 1:  # a gate's columns and an up's (``experts.w4a8``)
            box, of_box = thread.panel // cfg.w_panels, thread.panel % cfg.w_panels
            panel = box * cfg.w_box_bytes + of_box * cfg.panel_bytes
        return cfg.weights_at + panel + thread.lane * cfg.lane_bytes + thread.first_strip * 4

    def words_from(row, count):
        """-> device function (where in a stage a lane's words begin) -> its words of k16 rows
        ``row`` and ``count - 1`` more."""

        @lang.device
        def one(address):
            return words_at(address + row * cfg.w_row_bytes)

        if count == 1:
            return one
        rest = words_from(row + 1, count - 1)

        @lang.device
        def more(address):
            return one(address) + rest(address)

        return more

    @lang.device
    def own_scales(thread):
        """Where its pairs of scales begin, columns g and g + 8 of each strip, in the first scale
        row: the order of group scales, 128 bytes per panel."""
        return cfg.scales_at + thread.panel * 128 + thread.lane // 4 * 16 + thread.first_strip * 4

    @lang.device
    def load_zero_points(stage, row, thread):
        """The word with the eight zero points of g in a panel: strip j's are nibbles j and j + 4;
        shifted, so that the warp's first strip is strip 0."""
        row_at = stage + (cfg.zeros_at + row * cfg.z_row_bytes)
        word = ptx.ld_shared_b32(row_at + thread.panel * 32 + thread.lane // 4 * 4)
        return word >> (4 * thread.first_strip)

    # ---- bytes

    @lang.device
    def columns_of(word, zeros):
        """-> registers of columns g and g + 8: the four weights that a word has of each."""
        lower, upper = elements.bytes_of(word, zeros)
        return even(lower, upper), odd(lower, upper)

    def dequantise_from(count, strip=0):
        """-> device function (words of a k16 row, of the next, zero points) -> fragments."""

        @lang.device
        def one(first, second, points):
            zeros = elements.zeros_of(points >> (4 * strip))
            d0, d1 = columns_of(first[0], zeros)
            d2, d3 = columns_of(second[0], zeros)
            return ((d0, d1, d2, d3),)

        if count == 1:
            return one
        rest = dequantise_from(count - 1, strip + 1)

        @lang.device
        def more(first, second, points):
            return one(first[:1], second[:1], points) + rest(first[1:], second[1:], points)

        return more

    dequantise = dequantise_from(strips)

    # ---- products

    @lang.device
    def multiply_strip(acc, fragment, multiplier):
        return (elements.wgmma(acc[0], fragment[0], multiplier.descriptor, multiplier.adds),)

    multiply = together(lang, strips, 1, multiply_strip)

    @lang.device
    def keep_strip(acc, where):
        return (elements.keep_sums(acc[0]),)

    @lang.device
    def keep_one(fragments, where):
        keep_fragment(fragments[0])

    keep, keep_fragments = (
        map_each(lang, strips, 1, keep_strip),
        for_each(lang, strips, 1, keep_one),
    )

    def multiply_from(first, count, opens=True):
        """-> device function (acc, words, descriptor, zero points, warpgroup, adds) ->
        accumulators, done: products number ``first`` and ``count - 1`` more of a stage. words: of
        their k16 rows, one behind the other. opens: it is the first of those between two
        promotions."""
        waits_for_turn, passes_turn = ordered and opens, ordered and count == 1
        two_rows = 2 * strips

        @lang.device
        def one(acc, words, descriptor, points, warpgroup, adds):
            fragments = dequantise(words[:strips], words[strips:two_rows], points)
            if waits_for_turn:
                turns.wait(warpgroup)
            ptx.wgmma_fence()
            acc = multiply(acc, fragments, Multiplier(descriptor + first * NEXT_K32, adds))
            ptx.wgmma_commit_group()
            if passes_turn:
                turns.give_over(warpgroup)
            return acc, fragments

        if count == 1:

            @lang.device
            def last(acc, words, descriptor, points, warpgroup, adds):
                acc, fragments = one(acc, words, descriptor, points, warpgroup, adds)
                wait_for_all()
                keep_fragments(fragments, 0)
                return keep(acc, 0)

            return last
        rest = multiply_from(first + 1, count - 1, opens=False)

        @lang.device
        def more(acc, words, descriptor, points, warpgroup, adds):
            acc, fragments = one(acc, words, descriptor, points, warpgroup, adds)
            acc = rest(acc, words[two_rows:], descriptor, points, warpgroup, 1)
            keep_fragments(fragments, 0)
            return acc

        return more

    # ---- promotion

    @lang.device
    def add_quad(totals, acc, scales):
        return (
            ptx.fma_rn_f32(elements.as_float(acc[0]), scales.lower, totals[0]),
            ptx.fma_rn_f32(elements.as_float(acc[1]), scales.lower, totals[1]),
            ptx.fma_rn_f32(elements.as_float(acc[2]), scales.upper, totals[2]),
            ptx.fma_rn_f32(elements.as_float(acc[3]), scales.upper, totals[3]),
        )

    add_quads = together(lang, width, 4, add_quad)

    @lang.device
    def add_strip(totals, strips, where):
        strip = strips[0]
        scales = TwoScales(low_of(strip.scale), high_of(strip.scale))
        return (add_quads(totals[0], strip.acc, scales),)

    @lang.device
    def with_scale(acc, scale, where):
        return (StripAndScale(acc[0], scale[0]),)

    add_scaled = together(lang, strips, 1, add_strip)
    with_scales = together(lang, strips, 1, with_scale)

    @lang.device
    def add_one(total, sums, where):
        return (total[0] + elements.as_float(sums[0]),)

    add_sums = together(lang, width, 1, add_one)

    @lang.device
    def add_plain_strip(totals, acc, where):
        return (add_sums(totals[0], acc[0], 0),)

    add_plain = together(lang, strips, 1, add_plain_strip)

    # ---- a stage

    @lang.device
    def x_descriptor(stage):
        # as in ``kernels.wgmma.tensor``
        return uint64((ptx.shfl_sync_idx(stage, 0) & 0x3FFFF) >> 4) | DESCRIPTOR_WITHOUT_ADDRESS

    @lang.device
    def no_word():
        return Register(0).word

    @lang.device
    def points_of(stage, row, thread):
        return load_zero_points(stage, row, thread) if zeroed else no_word()

    if config.grouped:

        @lang.device
        def scales_of(stage, row, thread):
            return words_at(stage + own_scales(thread) + row * cfg.s_row_bytes)

        @lang.device
        def promote(totals, acc, scales):
            return add_scaled(totals, with_scales(acc, scales, 0), 0)
    else:

        @lang.device
        def scales_of(stage, row, thread):
            return no_word()

        @lang.device
        def promote(totals, acc, scales):
            return add_plain(totals, acc, 0)

    def groups_from(row):
        """-> device function (totals, acc, stage, thread, shared, place) -> totals, acc: scale
        groups ``row`` and on of a stage, which is released when all is read."""
        count = config.products_per_scale
        products = multiply_from(row * count, count)
        words_of = words_from(2 * row * count, 2 * count)
        is_last = row == config.scale_rows - 1

        @lang.device
        def one(totals, acc, stage, thread, shared, place):
            descriptor = x_descriptor(stage)
            scales = scales_of(stage, row, thread)
            points = points_of(stage, row, thread)
            words = words_of(stage + own_words(thread))
            acc = products(acc, words, descriptor, points, thread.warpgroup, 0)
            if is_last and thread.lane == 0:
                ring.release(shared.barriers, place)
            return promote(totals, acc, scales), acc

        if is_last:
            return one
        rest = groups_from(row + 1)

        @lang.device
        def more(totals, acc, stage, thread, shared, place):
            totals, acc = one(totals, acc, stage, thread, shared, place)
            return rest(totals, acc, stage, thread, shared, place)

        return more

    scale_groups = groups_from(0)
    all_products, all_words = multiply_from(0, K32_STEPS), words_from(0, 2 * K32_STEPS)

    @lang.device
    def multiply_groups(shared, place, item, thread):
        totals, acc = no_totals(), no_sums()
        steps_left = item.steps
        while steps_left != 0:
            ring.wait_full(shared.barriers, place)
            stage = shared.base + place.stage * cfg.stage_bytes
            totals, acc = scale_groups(totals, acc, stage, thread, shared, place)
            place = ring.advance(place)
            steps_left -= 1
        return place, totals

    @lang.device
    def multiply_columns(shared, place, item, thread):
        acc = no_sums()
        steps_left = item.steps
        while steps_left != 0:
            ring.wait_full(shared.barriers, place)
            stage = shared.base + place.stage * cfg.stage_bytes
            points = points_of(stage, 0, thread)
            words = all_words(stage + own_words(thread))
            acc = all_products(acc, words, x_descriptor(stage), points, thread.warpgroup, 1)
            if thread.lane == 0:
                ring.release(shared.barriers, place)
            place = ring.advance(place)
            steps_left -= 1
        return place, acc

    return multiply_groups if config.promotes else multiply_columns
