"""What x brings where the bytes of weights are codes (``config.offsets``), and its product with the
scales, which ends a tile's main loop.

A weight v = c - 8 is the byte c at even k and c - 15 at odd k (``elements``): 8 more than v, and 7
less. So the sums of a scale group are 8 E - 7 O too large, of the sums E and O of x at even and odd
k. ``formats.activations`` has -(8 E - 7 O), in units of a weight's byte, of each 128 of k and row
of x, in 16 bits: in float16 as one number, in bfloat16, which has few bits, as two, whose sum it
is. Times the scales of the groups they are a product of 16 bits, as deep as there are groups::

    totals[column, row] += sum over groups g: scale[g, column] * offsets[row, g]

``wgmma`` adds it up into the totals: A is the scales, transposed, from global memory to registers
(ones, where a column has one scale, which the epilogue knows), B the offsets, in a stage of the
ring, where a row of 128 bytes has ``OFFSET_STEP`` of them and lies as a row of x does. That is one
stage, in bfloat16 two, for every 8192 of k, all behind the tile's last stage of x. An offset is of
128 of k also where a column has one scale. Of a tile in parts, each adds the stages of offsets that
begin in its steps of k, whichever part the rest of such a stage is of.

Loads of scales take as long as half a step. Where there are registers for them
(``keeps_offset_scales``), those of the first stage come before the main loop, those of the second
under its last products, and the others under the products here, a stage ahead; else the first under
the last products, and the others here, each in front of its stage.

``offset_verbs(lang, config, ring)`` -> namespace of device functions: ``fill(shared, place, item,
plan, offsets_map, sizes) -> place`` of the producer; of a consumer ``scales_of(scales, tile, plan,
thread, sizes) -> Scales``, ``words_of(own, block, thread) -> words``, of a block of 64 groups, and
``add(shared, place, totals, words, next_words, own, thread) -> (place, totals)``, the words those
of block ``own.first``, and of the next where the configuration ``keeps_offset_scales``.
"""

from numba_marlin.kernels.hopper.schedule import schedule_verbs
from numba_marlin.kernels.hopper.shared import DESCRIPTOR_WITHOUT_ADDRESS
from numba_marlin.kernels.language.tuples import for_each, map_each, together
from numba_marlin.layout.offsets import OFFSET_GROUP, OFFSET_PARTS, OFFSET_STEP

STEPS = OFFSET_STEP // 16  # products of a stage, 16 groups deep
NEXT_STEP = 2  # 32 bytes of a row on, in the descriptor's units of 16
LOWER_HALVES, UPPER_HALVES = 0x5410, 0x7632  # of two words, side by side: selectors of prmt
ONES = {"float16": 0x3C003C00, "bfloat16": 0x3F803F80}


def offset_verbs(lang, config, ring):
    ptx, uint64 = lang.ptx, lang.uint64
    cfg, strips = lang.constants(config), config.strips
    schedule = schedule_verbs(lang, config)
    wgmma = {"float16": ptx.wgmma_m64k16_f32_f16_rs, "bfloat16": ptx.wgmma_m64k16_f32_bf16_rs}[
        config.dtype
    ](n=config.tile_m)
    keep_totals, keep_words = ptx.keep_f32(width=config.accumulators), ptx.keep_u32(width=4)
    wait_for_all = ptx.wgmma_wait_group(n=0)
    lower, upper = ptx.prmt_b32(selector=LOWER_HALVES), ptx.prmt_b32(selector=UPPER_HALVES)
    ones, parts = ONES[config.dtype], OFFSET_PARTS[config.dtype]
    two_parts, keeps = parts == 2, config.keeps_offset_scales

    # of the weights: where the lane's scales of group 0 begin; bytes from a group to the next; the
    # last group; and of the blocks of groups those that this block adds: from, up to
    Scales = lang.record("Scales", "address pitch last first end")

    @lang.device
    def groups_of(sizes):
        return (sizes.k + (OFFSET_GROUP - 1)) // OFFSET_GROUP

    @lang.device
    def blocks_of(sizes):
        """Stages of one part."""
        return (groups_of(sizes) + (OFFSET_STEP - 1)) // OFFSET_STEP

    @lang.device
    def own_blocks(plan):
        """Those of one part whose first group is one of this block's steps: the first, and the one
        behind the last."""
        first, end = schedule.own_steps(plan)
        return (first + (OFFSET_STEP - 1)) // OFFSET_STEP, (end + (OFFSET_STEP - 1)) // OFFSET_STEP

    # ---- the producer

    @lang.device
    def fill(shared, place, item, plan, offsets_map, sizes):
        tile, blocks = schedule.tile_of(item, plan), blocks_of(sizes)
        block, end = own_blocks(plan)
        while block < end:
            for part in range(parts):
                ring.wait_empty(shared.barriers, place)
                ring.expect(shared.barriers, place, cfg.x_stage_bytes)
                ptx.cp_async_bulk_tensor_2d_g2s(
                    shared.base + place.stage * cfg.stage_bytes,
                    offsets_map,
                    (part * blocks + block) * OFFSET_STEP,
                    tile.row_first,
                    ring.full(shared.barriers, place),
                )
                place = ring.advance(place)
            block += 1
        return place

    # ---- scales of 64 groups, as words and as fragments

    @lang.device
    def scales_of(scales, tile, plan, thread, sizes):
        """Those of the lane's columns, pairs of g and g + 8, as Marlin has them: 128 bytes per
        panel; of the last panel instead of one that is not."""
        panels = (sizes.n + 63) // 64
        panel = min(tile.column_first // 64 + thread.panel, panels - 1)
        own = panel * 128 + thread.lane // 4 * 16 + thread.first_strip * 4
        first, end = own_blocks(plan)
        return Scales(scales + uint64(own), panels * 128, groups_of(sizes) - 1, first, end)

    @lang.device
    def word_of(own, group, strip):
        """Of the last group instead of one that is not, whose offset is 0: no branch."""
        row = uint64(min(group, own.last)) * uint64(own.pitch)
        return ptx.ld_global_b32(own.address + (row + 4 * strip))

    def words_from(number):
        """-> device function (Scales, group) -> four words for each strip of each product, of the
        groups 0, 1, 8 and 9 from the lane's first on; those of product and strip ``number`` and
        after."""
        step, strip = divmod(number, strips)

        @lang.device
        def one(own, group):
            first = group + 16 * step
            return (
                word_of(own, first, strip),
                word_of(own, first + 1, strip),
                word_of(own, first + 8, strip),
                word_of(own, first + 9, strip),
            )

        if number == STEPS * strips - 1:
            return one
        rest = words_from(number + 1)

        @lang.device
        def more(own, group):
            return one(own, group) + rest(own, group)

        return more

    @lang.device
    def ones_of(own, group):
        return (ptx.opaque_u32(ones),)  # a constant would come to its register behind the fence

    def fragments_from(count):
        """-> device function (words) -> fragments: of as many times four words."""

        @lang.device
        def one(words):
            w0, w1, w2, w3 = words
            d0, d1 = lower(w0, w1), upper(w0, w1)
            d2, d3 = lower(w2, w3), upper(w2, w3)
            return ((d0, d1, d2, d3),)

        if count == 1:
            return one
        rest = fragments_from(count - 1)

        @lang.device
        def more(words):
            return one(words[:4]) + rest(words[4:])

        return more

    def same(count):
        @lang.device
        def one(words):
            (word,) = words
            return ((word, word, word, word),)

        if count == 1:
            return one
        rest = same(count - 1)

        @lang.device
        def more(words):
            return one(words) + rest(words)

        return more

    if config.grouped:
        all_words = words_from(0)
        fragments_of = fragments_from(STEPS * strips)
    else:
        all_words, fragments_of = ones_of, same(STEPS * strips)

    @lang.device
    def words_of(own, block, thread):
        return all_words(own, block * OFFSET_STEP + thread.lane % 4 * 2)

    # ---- products

    @lang.device
    def multiply_strip(totals, fragment, descriptor):
        return (wgmma(totals[0], fragment[0], descriptor, 1),)

    multiply = together(lang, strips, 1, multiply_strip)

    def products_from(step):
        """-> device function (totals, fragments, descriptor) -> totals in flight."""

        @lang.device
        def one(totals, fragments, descriptor):
            return multiply(totals, fragments[:strips], descriptor + step * NEXT_STEP)

        if step == STEPS - 1:
            return one
        rest = products_from(step + 1)

        @lang.device
        def more(totals, fragments, descriptor):
            totals = one(totals, fragments, descriptor)
            return rest(totals, fragments[strips:], descriptor)

        return more

    all_products = products_from(0)

    @lang.device
    def keep_strip(totals, where):
        return (keep_totals(totals[0]),)

    @lang.device
    def keep_fragment(fragments, where):
        keep_words(fragments[0])

    keep = map_each(lang, strips, 1, keep_strip)
    keep_fragments = for_each(lang, strips * STEPS, 1, keep_fragment)

    @lang.device
    def descriptor_of(shared, place):
        # as in ``multiply``
        stage = ptx.shfl_sync_idx(shared.base + place.stage * cfg.stage_bytes, 0)
        return uint64((stage & 0x3FFFF) >> 4) | DESCRIPTOR_WITHOUT_ADDRESS

    @lang.device
    def start(shared, place, totals, fragments):
        """The products of one part, in flight."""
        ring.wait_full(shared.barriers, place)
        ptx.wgmma_fence()
        totals = all_products(totals, fragments, descriptor_of(shared, place))
        ptx.wgmma_commit_group()
        return totals

    @lang.device
    def finish(shared, place, totals, thread):
        wait_for_all()
        if thread.lane == 0:
            ring.release(shared.barriers, place)
        return ring.advance(place), keep(totals, 0)

    @lang.device
    def add(shared, place, totals, words, next_words, own, thread):
        block = own.first
        while block < own.end:
            fragments = fragments_of(words)
            totals = start(shared, place, totals, fragments)
            block += 1
            if keeps:
                words = next_words
                next_words = words_of(own, block + 1, thread)
            else:
                words = words_of(own, block, thread)
            place, totals = finish(shared, place, totals, thread)
            if two_parts:
                totals = start(shared, place, totals, fragments)
                place, totals = finish(shared, place, totals, thread)
            keep_fragments(fragments, 0)
        return place, totals

    return lang.namespace("offsets", fill=fill, scales_of=scales_of, words_of=words_of, add=add)
