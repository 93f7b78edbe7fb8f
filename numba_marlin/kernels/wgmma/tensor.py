"""The consumers of ``wgmma``: weights from shared memory to registers to the tensor cores.

The accumulators are a tuple with, for each word that a warp takes, those of one m64 block of the
instruction: 64 columns of W, 16 of them this warp's, by tile_m rows of x. A k16 row of a stage is
one wgmma group; two groups are in flight at most, so there are two sets of weight registers. With
``scaling="sums"`` the integers are multiplied, and the products of a group are scaled and added to
the others' in fp32. No product may be in flight then: ptxas serialises accumulators that take turns
over the back edge of a loop. Instructions of a warp for a step of k = 64, in the SASS (tile_n 256,
two warpgroups; not timed):

    scaling                             tile_m 16    32    64    32, k_groups 2
    weights                                   168   168   168   178
    sums, groups of 128                       162   172   187   220
    sums, groups of 256                       150   155   162

The 32 multiplies of a step's weights go, an FMA for each accumulator comes, once a group or, with
two rows of consumers, once a step.
"""

from numba_marlin.kernels.language.tuples import map_each, repeat, together
from numba_marlin.kernels.wgmma.weights import weight_verbs
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES
from numba_marlin.layout.wgmma import Descriptor

# 128-byte swizzle; eight rows are 1024 bytes apart (layout.wgmma.Descriptor)
DESCRIPTOR_HIGH = Descriptor(0, SWIZZLE_PATTERN_BYTES).encode()
ROW_DESCRIPTORS = 2  # 32 bytes, a k16 row, in the descriptor's units of 16


def tensor_verbs(lang, config, ring):
    """-> device function ``multiply_stages(shared, place, item, thread) -> (place, accumulators)``:
    the main loop over an item's stages of the ring. When it returns, nothing is in flight and all
    of them are released.
    """
    ptx, uint64 = lang.ptx, lang.uint64
    cfg = lang.constants(config)
    weights = weight_verbs(lang, config)
    scales_sums, two_groups = config.scales_sums, config.groups_per_stage == 2
    low_of, high_of = {
        "float16": (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high),
        "bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high),
    }[config.dtype]
    wgmma = {"float16": ptx.wgmma_m64k16_f32_f16_rs, "bfloat16": ptx.wgmma_m64k16_f32_bf16_rs}[
        config.dtype
    ](n=config.tile_m)
    keep_accumulators = ptx.keep_f32(width=config.accumulators)
    wait_for_last_but_one, wait_for_all = ptx.wgmma_wait_group(n=1), ptx.wgmma_wait_group(n=0)
    zero = repeat(lang, config.words, ptx.zero_f32(width=config.accumulators))

    # what a k16 row of weights is multiplied by, rows of x in shared memory; adds: 0 if the product
    # replaces the accumulators
    Multiplier = lang.record("Multiplier", "descriptor adds")

    # two scales, of columns g and g + 8
    Scales = lang.record("Scales", "lower upper")

    # the accumulators of a word, and what they are scaled by
    Scaled = lang.record("Scaled", "acc scale")

    @lang.device
    def multiply_word(acc, fragment, x):
        return (wgmma(acc[0], fragment[0], x.descriptor, x.adds),)

    multiply = together(lang, config.words, 1, multiply_word)

    @lang.device
    def keep_word(acc, where):
        return (keep_accumulators(acc[0]),)

    keep = map_each(lang, config.words, 1, keep_word)

    @lang.device
    def start(acc, fragments, descriptor, adds):
        """A k16 row goes to the tensor cores."""
        ptx.wgmma_fence()
        acc = multiply(acc, fragments, Multiplier(descriptor, adds))
        ptx.wgmma_commit_group()
        return acc

    @lang.device
    def first_own(place, remaining, thread):
        """Past the stage of the other row of consumers, if this is one. (There is an even number of
        stages: each row has its own.)"""
        if cfg.k_groups == 2 and remaining != 0 and place.stage % 2 != thread.k_group:
            return ring.advance(place), remaining - 1
        return place, remaining

    @lang.device
    def next_own(place, remaining):
        """On to the next stage of this row of consumers, or behind the last of the item."""
        if cfg.k_groups == 1:
            return ring.advance(place), remaining - 1
        stages = min(cfg.k_groups, remaining)
        stage = place.stage + stages
        around = stage >= cfg.stages
        place = ring.Place(
            stage - cfg.stages if around else stage, place.parity ^ 1 if around else place.parity
        )
        return place, remaining - stages

    @lang.device
    def x_descriptor(stage):
        # The shuffle tells the assembler that all lanes agree. It then keeps descriptors in uniform
        # registers, where it used to move them there for each wgmma: of 186 instructions a step
        # (tile_n 256, two warpgroups) 18 go.
        return uint64((ptx.shfl_sync_idx(stage, 0) & 0x3FFFF) >> 4) | DESCRIPTOR_HIGH

    @lang.device
    def multiply_steps(shared, place, acc, steps, thread):
        """-> (place, accumulators, whether any stage was for this row of consumers, scales of the
        last one)"""
        own = weights.own_words(thread)
        leader = thread.lane == 0
        last = weights.no_fragments()
        scales = weights.no_scales()
        before = place
        place, remaining = first_own(place, steps, thread)
        begun = False
        while remaining != 0:
            ring.wait_full(shared.barriers, place)
            stage = shared.base + place.stage * cfg.stage_bytes
            descriptor = x_descriptor(stage)
            words = stage + own
            w0 = weights.load_words(words)
            w1 = weights.load_words(words + cfg.w_row_bytes)
            w2 = weights.load_words(words + 2 * cfg.w_row_bytes)
            w3 = weights.load_words(words + 3 * cfg.w_row_bytes)
            if scales_sums:
                scales = weights.load_scales(stage, 0, thread)
            f0 = weights.load_factors(stage, 0, thread)
            f2 = weights.load_factors(stage, 2, thread) if two_groups else f0
            a0 = weights.spread(w0, f0, 0)
            acc = start(acc, a0, descriptor, 1 if begun or not scales_sums else 0)
            wait_for_last_but_one()
            weights.keep_fragments(last, 0)
            if leader and begun:
                ring.release(shared.barriers, before)
            a1 = weights.spread(w1, f0, 1)
            acc = start(acc, a1, descriptor + ROW_DESCRIPTORS, 1)
            wait_for_last_but_one()
            weights.keep_fragments(a0, 0)
            a2 = weights.spread(w2, f2, 0)
            acc = start(acc, a2, descriptor + 2 * ROW_DESCRIPTORS, 1)
            wait_for_last_but_one()
            weights.keep_fragments(a1, 0)
            last = weights.spread(w3, f2, 1)
            acc = start(acc, last, descriptor + 3 * ROW_DESCRIPTORS, 1)
            wait_for_last_but_one()
            weights.keep_fragments(a2, 0)
            before, begun = place, True
            place, remaining = next_own(place, remaining)
        wait_for_all()
        weights.keep_fragments(last, 0)
        if leader and begun:
            ring.release(shared.barriers, before)
        return place, keep(acc, 0), begun, scales

    @lang.device
    def add_quad(totals, acc, scales):
        """Accumulators of columns g and g + 8, two each."""
        return (
            ptx.fma_rn_f32(acc[0], scales.lower, totals[0]),
            ptx.fma_rn_f32(acc[1], scales.lower, totals[1]),
            ptx.fma_rn_f32(acc[2], scales.upper, totals[2]),
            ptx.fma_rn_f32(acc[3], scales.upper, totals[3]),
        )

    add_quads = together(lang, config.accumulators, 4, add_quad)

    @lang.device
    def add_word(totals, words, where):
        word = words[0]
        scales = Scales(low_of(word.scale), high_of(word.scale))
        return (add_quads(totals[0], word.acc, scales),)

    @lang.device
    def with_scale(acc, scale, where):
        return (Scaled(acc[0], scale[0]),)

    add_scaled = together(lang, config.words, 1, add_word)
    with_scales = together(lang, config.words, 1, with_scale)

    @lang.device
    def multiply_groups(shared, place, item, thread):
        """The products of a group, all that there is of it in these steps, are scaled and added to
        the others in fp32."""
        totals, acc = zero(), zero()
        step, remaining = item.first_step, item.steps
        while remaining != 0:
            steps = min(cfg.steps_per_scale - step % cfg.steps_per_scale, remaining)
            place, acc, begun, scales = multiply_steps(shared, place, acc, steps, thread)
            if begun:
                totals = add_scaled(totals, with_scales(acc, scales, 0), 0)
            step += steps
            remaining -= steps
        return place, totals

    @lang.device
    def multiply_all(shared, place, item, thread):
        place, acc, begun, scales = multiply_steps(shared, place, zero(), item.steps, thread)
        return place, acc

    return multiply_groups if scales_sums else multiply_all
