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
stage for 8192 of k, after its 64, in bfloat16 two.

``offset_verbs(lang, config, ring)`` -> namespace of device functions: ``fill(shared, place, tile,
offsets_map, sizes) -> place`` of the producer, ``add(shared, place, totals, tile, thread, scales,
sizes) -> (place, totals)`` of a consumer.
"""

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
    wgmma = {"float16": ptx.wgmma_m64k16_f32_f16_rs, "bfloat16": ptx.wgmma_m64k16_f32_bf16_rs}[
        config.dtype
    ](n=config.tile_m)
    keep_totals, keep_words = ptx.keep_f32(width=config.accumulators), ptx.keep_u32(width=4)
    wait_for_all = ptx.wgmma_wait_group(n=0)
    lower, upper = ptx.prmt_b32(selector=LOWER_HALVES), ptx.prmt_b32(selector=UPPER_HALVES)
    ones, parts = ONES[config.dtype], OFFSET_PARTS[config.dtype]

    # of the weights: where the lane's scales of group 0 begin; bytes from a group to the next; the
    # last group
    Scales = lang.record("Scales", "address pitch last")

    @lang.device
    def groups_of(sizes):
        return (sizes.k + (OFFSET_GROUP - 1)) // OFFSET_GROUP

    @lang.device
    def blocks_of(sizes):
        """Stages of one part."""
        return (groups_of(sizes) + (OFFSET_STEP - 1)) // OFFSET_STEP

    # ---- the producer

    @lang.device
    def fill(shared, place, tile, offsets_map, sizes):
        blocks = blocks_of(sizes)
        for block in range(blocks):
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
        return place

    # ---- scales of 16 groups, as fragments

    @lang.device
    def scales_of(scales, tile, thread, sizes):
        """Those of the lane's columns, pairs of g and g + 8, as Marlin has them: 128 bytes per
        panel; of the last panel instead of one that is not."""
        panels = (sizes.n + 63) // 64
        panel = min(tile.column_first // 64 + thread.panel, panels - 1)
        own = panel * 128 + thread.lane // 4 * 16 + thread.first_strip * 4
        return Scales(scales + uint64(own), panels * 128, groups_of(sizes) - 1)

    def fragments_from(strip):
        """-> device function (Scales, group) -> a fragment for each strip from ``strip`` on, of
        groups ``group``, the lane's first, and 1, 8 and 9 on."""

        @lang.device
        def word(scales, group):
            """Of the last group instead of one that is not, whose offset is 0: no branch."""
            row = uint64(min(group, scales.last)) * uint64(scales.pitch)
            return ptx.ld_global_b32(scales.address + (row + 4 * strip))

        @lang.device
        def one(scales, group):
            near, next_near = word(scales, group), word(scales, group + 1)
            far, next_far = word(scales, group + 8), word(scales, group + 9)
            return (
                (
                    lower(near, next_near),
                    upper(near, next_near),
                    lower(far, next_far),
                    upper(far, next_far),
                ),
            )

        if strip == strips - 1:
            return one
        rest = fragments_from(strip + 1)

        @lang.device
        def more(scales, group):
            return one(scales, group) + rest(scales, group)

        return more

    def ones_of(count):
        @lang.device
        def one(scales, group):
            word = ptx.opaque_u32(ones)  # a constant would come to its register behind the fence
            return ((word, word, word, word),)

        if count == 1:
            return one
        rest = ones_of(count - 1)

        @lang.device
        def more(scales, group):
            return one(scales, group) + rest(scales, group)

        return more

    fragments_of = fragments_from(0) if config.grouped else ones_of(strips)

    def steps_from(step):
        """-> device function (Scales, group) -> the fragments of products ``step`` and on of a
        stage, step after step."""

        @lang.device
        def one(scales, group):
            return fragments_of(scales, group + 16 * step)

        if step == STEPS - 1:
            return one
        rest = steps_from(step + 1)

        @lang.device
        def more(scales, group):
            return one(scales, group) + rest(scales, group)

        return more

    all_fragments = steps_from(0)

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
    def add_part(shared, place, totals, fragments, thread):
        ring.wait_full(shared.barriers, place)
        ptx.wgmma_fence()
        totals = all_products(totals, fragments, descriptor_of(shared, place))
        ptx.wgmma_commit_group()
        wait_for_all()
        totals = keep(totals, 0)
        if thread.lane == 0:
            ring.release(shared.barriers, place)
        return ring.advance(place), totals

    @lang.device
    def add(shared, place, totals, tile, thread, scales, sizes):
        own, group = scales_of(scales, tile, thread, sizes), thread.lane % 4 * 2
        for _ in range(blocks_of(sizes)):
            fragments = all_fragments(own, group)
            for _ in range(parts):
                place, totals = add_part(shared, place, totals, fragments, thread)
            keep_fragments(fragments, 0)
            group += OFFSET_STEP
        return place, totals

    return lang.namespace("offsets", fill=fill, add=add)
