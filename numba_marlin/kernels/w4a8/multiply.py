"""The main loop of the consumers: Marlin's words to bytes to the tensor cores, and
sums of groups into totals.

A round multiplies a stage, 128 of k, of which weights, scales and zero points are in registers
before (x is read where it lies). Panels, strips, k16 rows, lane 4g + t: ``kernels.wgmma.kernel``.
A round, from top to bottom::

    for each 32 of k: dequantise two k16 rows; issue a product per strip
    wait until the next stage is full, and load the words of its eight k16 rows, scales, zero points
    wait until nothing is in flight; lane 0 releases the stage
    promote, by scales that a round ago were loaded: totals += scale * sums, in fp32 (fp8 with one
        scale per column: totals += sums, every ``sum_stages`` rounds; int8 with one: not at all)

So the way to the next stage's words is under the products. Without that, on an H200 (Nsight
Compute's samples: 192 x 128, e4m3, groups of 128, in turns), a warpgroup's round was 1,277 cycles,
of which the tensor cores are busy 384 for it and as long for the other: 308 until the words were
there and the first product's bytes made, 53 for its turn, 266 to issue four products, whose bytes
are made on the way, 302 waiting for them, 247 promoting: a chain that has less than half of the
tensor cores' time in it, so that two warpgroups could not fill them. With it the round is 1,135:
126, 52 for the turn, 375, 198 under the products, 91 waiting, 327 promoting. (Parts are shares of
samples, and add up to within 8%.) That is a chain still, in which instructions come 4 to 5 cycles
apart: each needs the one before, and registers that ``wgmma`` reads and writes at the same time are
in their way (a third of the promotion). Timed beside the loop without (m = 16 to 4096, 40 products)
int8 is 4 to 18% faster with groups of 128, fp8 up to 14%, one product 4% slower; int8 in 256 x 128,
where tensor cores are the limit, the same. Not kept: the first product's bytes made under the
products too, which ptxas moves behind the wait; int8 with one scale per column became 20% slower.

Where ``loads_ahead`` says no, words are loaded, multiplied, waited for and promoted for each scale
group of a stage, one after the other: with groups of 32 or 64, of which a stage has several, and in
tiles of few rows of an expert (``experts.w4a8.config``).

No product of this warpgroup is in flight while it promotes. With ``ordered`` two warpgroups take
turns (``turn_verbs``), as in CUTLASS's ping-pong kernels and FlashAttention-3: the first product
between two promotions waits for the warpgroup's turn, and the turn passes on when the last has been
issued, before it is done, so that the other's are queued behind. It gains 2 to 3%. Why lane 0 may
release the stage for its warp: ``kernels.wgmma.tensor``.

The state of the loop: ``place`` and ``steps_left``, the same in all consumers; ``acc``, int32 or
fp32 sums, of the scale group multiplied last, or of all k; ``totals``, fp32. All of a thread's are
tuples with an element per strip. Accumulator 4v + 2h + e: row 8v + 2t + e, column g + 8h of the
strip.
"""

from numba_marlin.kernels.hopper.shared import DESCRIPTOR_WITHOUT_ADDRESS
from numba_marlin.kernels.language.tuples import for_each, map_each, repeat, together
from numba_marlin.kernels.w4a8.config import K32_STEPS
from numba_marlin.kernels.w4a8.elements import element_verbs
from numba_marlin.kernels.w4a8.offsets import offset_verbs
from numba_marlin.kernels.w4a8.promote import promote_verb
from numba_marlin.kernels.w4a8.turns import turn_verbs
from numba_marlin.kernels.w4a8.weights import weight_verbs

NEXT_K32 = 2  # 32 bytes of a row of x on, in the descriptor's units of 16


def multiply_verbs(lang, config, ring):
    """-> device function ``multiply_item(shared, place, item, thread) -> (place, sums)``: the main
    loop over an item's stages, of which there is at least one. sums: totals where they are
    promoted, else int32 sums of all k. When it returns, no product is in flight and all stages are
    released. With ``config.offsets`` it has an argument more, ``own``, of ``offsets.scales_of``,
    and the offsets are added."""
    ptx, uint64 = lang.ptx, lang.uint64
    cfg = lang.constants(config)
    strips, width = config.strips, config.accumulators
    elements, weights = element_verbs(lang, config), weight_verbs(lang, config)
    turns, ordered = turn_verbs(lang, config), config.ordered
    dequantise, promote = weights.dequantise, promote_verb(lang, config)
    wait_for_all = ptx.wgmma_wait_group(n=0)
    keep_fragment = ptx.keep_u32(width=4)
    no_sums = repeat(lang, strips, elements.no_sums)
    no_totals = repeat(lang, strips, ptx.zero_f32(width=width))
    goes_on = 0 if config.promotes else 1  # whether a stage's sums are added to those before
    sum_stages, several = config.sum_stages, config.sum_stages > 1

    # what is multiplied by: the descriptor of the same 32 of k in the stage's x; adds: 0 if the
    # product replaces the accumulators, else 1
    Multiplier = lang.record("Multiplier", "descriptor adds")

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

    keep = map_each(lang, strips, 1, keep_strip)

    def issue_from(first, count, opens=True):
        """-> device function (acc, loaded words, descriptor, zero points, warpgroup, adds) ->
        accumulators in flight, the fragments that they are made of: products number ``first`` and
        ``count - 1`` more of a stage. opens: it is the first of those between two promotions."""
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
            return one
        rest = issue_from(first + 1, count - 1, opens=False)

        @lang.device
        def more(acc, words, descriptor, points, warpgroup, adds):
            acc, fragments = one(acc, words, descriptor, points, warpgroup, adds)
            acc, others = rest(acc, words[two_rows:], descriptor, points, warpgroup, 1)
            return acc, fragments + others

        return more

    def wait_for(count):
        """-> device function (acc in flight, fragments of ``count`` products) -> acc."""
        keep_fragments = for_each(lang, strips * count, 1, keep_one)

        @lang.device
        def done(acc, fragments):
            wait_for_all()
            keep_fragments(fragments, 0)
            return keep(acc, 0)

        return done

    @lang.device
    def x_descriptor(stage):
        # as in ``kernels.wgmma.tensor``
        return uint64((ptx.shfl_sync_idx(stage, 0) & 0x3FFFF) >> 4) | DESCRIPTOR_WITHOUT_ADDRESS

    @lang.device
    def stage_at(shared, place):
        return shared.base + place.stage * cfg.stage_bytes

    @lang.device
    def release(shared, place, thread):
        if thread.lane == 0:
            ring.release(shared.barriers, place)

    if config.promotes:

        @lang.device
        def sums_of(totals, acc):
            return totals
    else:

        @lang.device
        def sums_of(totals, acc):
            return acc

    # ---- stages between two promotions

    @lang.device
    def adds_to(summed):
        """Whether a stage's sums are added to those that ``acc`` has, of ``summed`` stages."""
        return summed if several else goes_on

    @lang.device
    def promote_due(totals, acc, scales, summed, steps_left):
        """After a stage -> totals, and of how many stages ``acc`` has sums that are not in them;
        of ``summed`` it had them before."""
        if several and summed + 1 != sum_stages and steps_left != 1:
            return totals, summed + 1
        return promote(totals, acc, scales), 0

    # ---- a stage whose weights are in registers, and the way to the next one's

    load_all = weights.load_of(0, config.products_per_scale)
    issue_all, all_done = issue_from(0, K32_STEPS), wait_for(K32_STEPS)

    @lang.device
    def load_full(shared, place, thread):
        """The weights of a stage, once it is full."""
        ring.wait_full(shared.barriers, place)
        return load_all(stage_at(shared, place), thread)

    @lang.device
    def multiply_ahead(shared, place, item, thread):
        totals, acc = no_totals(), no_sums()
        loaded = load_full(shared, place, thread)
        steps_left, summed = item.steps, 0
        while steps_left != 0:
            scales, descriptor = loaded.scales, x_descriptor(stage_at(shared, place))
            acc, fragments = issue_all(
                acc, loaded.words, descriptor, loaded.points, thread.warpgroup, adds_to(summed)
            )
            if steps_left > 1:
                loaded = load_full(shared, ring.advance(place), thread)
            acc = all_done(acc, fragments)
            release(shared, place, thread)
            totals, summed = promote_due(totals, acc, scales, summed, steps_left)
            place = ring.advance(place)
            steps_left -= 1
        return place, sums_of(totals, acc)

    if config.offsets:
        offsets, keeps = offset_verbs(lang, config, ring), config.keeps_offset_scales

        @lang.device
        def multiply_then_offsets(shared, place, item, thread, own):
            """As ``multiply_ahead``. Scales for the offsets are loaded before all, and those of the
            next stage of offsets under the last products; where registers are few, the first are
            loaded there."""
            if keeps:
                words = offsets.words_of(own, own.first, thread)
            totals, acc = no_totals(), no_sums()
            loaded = load_full(shared, place, thread)
            steps_left, summed = item.steps, 0
            while steps_left > 1:
                scales, descriptor = loaded.scales, x_descriptor(stage_at(shared, place))
                acc, fragments = issue_all(
                    acc, loaded.words, descriptor, loaded.points, thread.warpgroup, adds_to(summed)
                )
                loaded = load_full(shared, ring.advance(place), thread)
                acc = all_done(acc, fragments)
                release(shared, place, thread)
                totals, summed = promote_due(totals, acc, scales, summed, steps_left)
                place = ring.advance(place)
                steps_left -= 1
            descriptor = x_descriptor(stage_at(shared, place))
            acc, fragments = issue_all(
                acc, loaded.words, descriptor, loaded.points, thread.warpgroup, adds_to(summed)
            )
            next_words = offsets.words_of(own, own.first + (1 if keeps else 0), thread)
            if not keeps:
                words = next_words
            acc = all_done(acc, fragments)
            release(shared, place, thread)
            totals = promote(totals, acc, loaded.scales)
            place = ring.advance(place)
            return offsets.add(shared, place, totals, words, next_words, own, thread)

        return multiply_then_offsets

    # ---- a stage whose scale groups are loaded, multiplied and promoted one after the other

    def groups_from(row):
        """-> device function (totals, acc, summed, stage, thread, shared, place, steps_left) ->
        totals, acc, summed: scale groups ``row`` and on of a stage, which is released when all is
        read."""
        count, is_last = config.products_per_scale, row == config.scale_rows - 1
        load, done = weights.load_of(row, count), wait_for(count)
        issue = issue_from(row * count, count)

        @lang.device
        def one(totals, acc, summed, stage, thread, shared, place, steps_left):
            descriptor, loaded = x_descriptor(stage), load(stage, thread)
            acc, fragments = issue(
                acc, loaded.words, descriptor, loaded.points, thread.warpgroup, adds_to(summed)
            )
            acc = done(acc, fragments)
            if is_last:
                release(shared, place, thread)
            totals, summed = promote_due(totals, acc, loaded.scales, summed, steps_left)
            return totals, acc, summed

        if is_last:
            return one
        rest = groups_from(row + 1)

        @lang.device
        def more(totals, acc, summed, stage, thread, shared, place, steps_left):
            totals, acc, summed = one(totals, acc, summed, stage, thread, shared, place, steps_left)
            return rest(totals, acc, summed, stage, thread, shared, place, steps_left)

        return more

    scale_groups = groups_from(0)

    @lang.device
    def multiply_in_order(shared, place, item, thread):
        totals, acc = no_totals(), no_sums()
        steps_left, summed = item.steps, 0
        while steps_left != 0:
            ring.wait_full(shared.barriers, place)
            stage = stage_at(shared, place)
            totals, acc, summed = scale_groups(
                totals, acc, summed, stage, thread, shared, place, steps_left
            )
            place = ring.advance(place)
            steps_left -= 1
        return place, sums_of(totals, acc)

    return multiply_ahead if config.loads_ahead else multiply_in_order
