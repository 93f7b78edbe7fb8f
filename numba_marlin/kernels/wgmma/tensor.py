"""The consumers of the Hopper kernel (``wgmma``): weights from shared memory to registers to the
tensor cores.

``sums``: a tuple with, for each word that a warp takes, the accumulators of one m64 block of the
instruction: 64 columns of W, 16 of them this warp's, by tile_m rows of x. A k16 row of a stage is
one wgmma group; two groups are in flight at most, so there are two sets of weight registers. With
``scaling="sums"`` the integers are multiplied, and a group's sums are scaled and added up in fp32.
No product may be in flight then: ptxas serialises accumulators that take turns over the back edge
of a loop. Instructions of a warp for a step of k = 64, in the SASS (tile_n 256, two warpgroups; not
timed):

    scaling                             tile_m 16    32    64    32, k_groups 2
    weights                                   168   168   168   178
    sums, groups of 128                       162   172   187   220
    sums, groups of 256                       150   155   162

The 32 multiplies of a step's weights go, an FMA for each accumulator comes, once a group or, with
two rows of consumers, once a step.

``lane_place``: (consumer warpgroup among those side by side, thread in it, its first word, its
64-column block, lane, its row of consumers).
"""

from types import SimpleNamespace

from numba_marlin.kernels.language.tuples import map_each, repeat, together
from numba_marlin.kernels.wgmma.weights import weight_verbs
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES
from numba_marlin.layout.wgmma import Descriptor

# 128-byte swizzle; eight rows are 1024 bytes apart (layout.wgmma.Descriptor)
DESCRIPTOR_HIGH = Descriptor(0, SWIZZLE_PATTERN_BYTES).encode()
ROW_DESCRIPTORS = 2  # 32 bytes, a k16 row, in the descriptor's units of 16


def tensor_verbs(lang, config, pipeline):
    """-> namespace with ``multiply_stages(shared, barriers, place, first, steps, lane_place) ->
    (place, sums)``: that many stages of the ring, one after the other, the ``first``-th of k and so
    on. When it returns, nothing is in flight and all of them are released.
    """
    ptx, uint32, uint64 = lang.ptx, lang.uint32, lang.uint64
    wait_full, release, advance = pipeline.wait_full, pipeline.release, pipeline.advance
    weights = weight_verbs(lang, config)
    own_words, load, load_factors, spread = (
        weights.own_words,
        weights.load_words,
        weights.load_factors,
        weights.spread,
    )
    no_weights, keep_weights = weights.no_fragments, weights.keep_fragments
    scale_numbers = {
        "float16": (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high),
        "bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high),
    }[config.dtype]
    K_GROUPS, WORDS, STAGE, W_ROW = (
        config.k_groups,
        config.words,
        config.stage_bytes,
        config.w_row_bytes,
    )
    no_scales, load_scales, low_of, high_of = weights.no_scales, weights.load_scales, *scale_numbers
    SCALES_SUMS, STEPS_PER_SCALE = config.scales_sums, config.steps_per_scale
    ACCUMULATORS, TWO_GROUPS = config.tile_m // 2, config.groups_per_stage == 2
    wgmma = {"float16": ptx.wgmma_m64k16_f32_f16_rs, "bfloat16": ptx.wgmma_m64k16_f32_bf16_rs}[
        config.dtype
    ](n=config.tile_m)
    keep_sums = ptx.keep_f32(width=ACCUMULATORS)
    wait_for_last_but_one, wait_for_all = ptx.wgmma_wait_group(n=1), ptx.wgmma_wait_group(n=0)
    zero = repeat(lang, WORDS, ptx.zero_f32(width=ACCUMULATORS))
    multiply = together(
        lang,
        WORDS,
        1,
        lang.device(lambda sums, a, where: (wgmma(sums[0], a[0], where[0], where[1]),)),
    )
    keep = map_each(lang, WORDS, 1, lang.device(lambda one, where: (keep_sums(one[0]),)))

    @lang.device
    def start(sums, a, descriptor, adds):
        """A k16 row goes to the tensor cores, to be added to the sums, or to replace them where
        ``adds`` is 0."""
        ptx.wgmma_fence()
        sums = multiply(sums, a, (descriptor, adds))
        ptx.wgmma_commit_group()
        return sums

    @lang.device
    def skip_foreign(place, remaining, lane_place):
        """Past the stage of the other row of consumers, if this is one. (There is an even number of
        stages: each row has its own.)"""
        if (
            K_GROUPS == 2
            and remaining != uint32(0)
            and uint32(place[0] % uint32(2)) != lane_place[5]
        ):
            return advance(place), uint32(remaining - uint32(1))
        return place, remaining

    @lang.device
    def multiply_steps(shared, barriers, place, sums, steps, lane_place):
        """-> (place, sums, whether any stage was for this row of consumers, scales of the last
        one)"""
        own = own_words(lane_place)
        leader = lane_place[4] == uint32(0)
        last = no_weights()
        scales = no_scales()
        before = place
        place, remaining = skip_foreign(place, steps, lane_place)
        begun = False
        while remaining != uint32(0):
            wait_full(barriers, place)
            stage = shared + place[0] * uint32(STAGE)
            # The shuffle tells the assembler that all lanes agree. It then keeps descriptors in
            # uniform registers, where it used to move them there for each wgmma: of 186
            # instructions a step (tile_n 256, two warpgroups) 18 go.
            descriptor = uint64(
                uint32(ptx.shfl_sync_idx(stage, uint32(0)) & uint32(0x3FFFF)) >> uint32(4)
            ) | uint64(DESCRIPTOR_HIGH)
            w0, w1 = load(stage + own), load(stage + own + uint32(W_ROW))
            w2, w3 = load(stage + own + uint32(2 * W_ROW)), load(stage + own + uint32(3 * W_ROW))
            if SCALES_SUMS:
                scales = load_scales(stage, 0, lane_place)
            f0 = load_factors(stage, 0, lane_place)
            f2 = load_factors(stage, 2, lane_place) if TWO_GROUPS else f0
            a0 = spread(w0, f0, uint32(0))
            sums = start(sums, a0, descriptor, uint32(1) if begun or not SCALES_SUMS else uint32(0))
            wait_for_last_but_one()
            keep_weights(last, uint32(0))
            if leader and begun:
                release(barriers, before)
            a1 = spread(w1, f0, uint32(1))
            sums = start(sums, a1, descriptor + uint64(ROW_DESCRIPTORS), uint32(1))
            wait_for_last_but_one()
            keep_weights(a0, uint32(0))
            a2 = spread(w2, f2, uint32(0))
            sums = start(sums, a2, descriptor + uint64(2 * ROW_DESCRIPTORS), uint32(1))
            wait_for_last_but_one()
            keep_weights(a1, uint32(0))
            last = spread(w3, f2, uint32(1))
            sums = start(sums, last, descriptor + uint64(3 * ROW_DESCRIPTORS), uint32(1))
            wait_for_last_but_one()
            keep_weights(a2, uint32(0))
            before, begun = place, True
            place, remaining = skip_foreign(
                advance(place), uint32(remaining - uint32(1)), lane_place
            )
        wait_for_all()
        keep_weights(last, uint32(0))
        if leader and begun:
            release(barriers, before)
        return place, keep(sums, uint32(0)), begun, scales

    @lang.device
    def add_quad(totals, sums, scale):
        """Accumulators of columns g and g + 8, two each."""
        return (
            ptx.fma_rn_f32(sums[0], scale[0], totals[0]),
            ptx.fma_rn_f32(sums[1], scale[0], totals[1]),
            ptx.fma_rn_f32(sums[2], scale[1], totals[2]),
            ptx.fma_rn_f32(sums[3], scale[1], totals[3]),
        )

    add_quads = together(lang, ACCUMULATORS, 4, add_quad)

    @lang.device
    def add_word(totals, sums_and_scales, where):
        sums, scale = sums_and_scales[0]
        return (add_quads(totals[0], sums, (low_of(scale), high_of(scale))),)

    add_scaled = together(lang, WORDS, 1, add_word)
    with_scales = together(
        lang, WORDS, 1, lang.device(lambda sums, scales, where: ((sums[0], scales[0]),))
    )

    @lang.device
    def multiply_groups(shared, barriers, place, first, steps, lane_place):
        """The sums of a group, all that there is of it in these steps, are scaled and added to the
        others in fp32."""
        totals, sums = zero(), zero()
        while steps != uint32(0):
            count = uint32(
                min(uint32(uint32(STEPS_PER_SCALE) - first % uint32(STEPS_PER_SCALE)), steps)
            )
            place, sums, begun, scales = multiply_steps(
                shared, barriers, place, sums, count, lane_place
            )
            if begun:
                totals = add_scaled(totals, with_scales(sums, scales, uint32(0)), uint32(0))
            first, steps = uint32(first + count), uint32(steps - count)
        return place, totals

    @lang.device
    def multiply_all(shared, barriers, place, first, steps, lane_place):
        place, sums, begun, scales = multiply_steps(
            shared, barriers, place, zero(), steps, lane_place
        )
        return place, sums

    multiply_stages = multiply_groups if SCALES_SUMS else multiply_all

    return SimpleNamespace(multiply_stages=multiply_stages)
