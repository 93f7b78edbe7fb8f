"""The main loop of ``wgmma``'s consumers: weights from shared memory to registers to the tensor
cores.

The accumulators are a tuple with an element per strip of the warp: a thread's part of the strip's
16 columns of W, a quarter of m64, by tile_m rows of x. A k16 row of a stage is one wgmma group. A
round multiplies a stage; from top to bottom, and side by side what overlaps:

    a warp's instructions                                    the tensor cores
    wait until the stage is full                             k16 row 3 of the stage before
    load the words of its four k16 rows, scales, zero points     "
    dequantise k16 row 0                                         "
    issue k16 row 0; wait until <= 1 wgmma group in flight   k16 row 3 is done
    lane 0 releases the stage before
    dequantise k16 row 1                                     k16 row 0
    issue k16 row 1; wait until <= 1 wgmma group in flight   k16 row 0 is done
    dequantise k16 row 2                                     k16 row 1
    ... and so with k16 rows 2 and 3; 3 stays in flight
    on to the k group's next stage

After the last round it waits until nothing is in flight, and lane 0 releases the last stage. So
dequantised weights have two sets of registers. "Stage before" and "next" are those of the k group.

Why lane 0 may release for its warp without a barrier of the warp: ``wgmma`` takes registers of all
lanes, so when a stage's products are done all lanes' loads of it are. (The scales of "sums" are no
operands of it. They are loaded before: shared memory serves what a warp asks of it in order, the
arrival, which the release is, included.) Nor is a proxy fence wanted between these loads and TMA's
next copy to the stage: they are reads, done before the arrival on *empty* that the producer waits
for. The producer's copies overlap with all of this, and the tensor store of C with the next item's
rounds.

The state of the loop (``multiply_steps``). The first four are the same in all threads of a k group,
the others each lane's own:

    place       the next stage to multiply, and the parity of its lap of the ring (RingPlace)
    steps_left  steps of this call from ``place`` on, those of both k groups
    unreleased  the stage last multiplied, to be released in the next turn of the loop (RingPlace)
    begun       whether this k group has multiplied any stage in this call
    last        fragments of k16 row 3 of ``unreleased``: registers in use by the tensor cores
    acc         accumulators, with products in flight
    scales      with "sums": of the stage last multiplied

With ``scaling="sums"`` integers are multiplied, and the products of a scale group are scaled and
added to the others' in fp32, by the loop around that one (``multiply_scale_groups``), whose state
is

    step             the next to multiply, counted from the tile's first
    group_steps      those of its scale group that the item has from there on
    item_steps_left  steps of the item from ``step`` on
    totals           sums of the scale groups before, scaled, fp32

No product is in flight between scale groups: ptxas serialises ``wgmma`` if accumulators are read in
a loop while others are in flight over its back edge. (The accumulators of several strips count as
one there: issued together, and not read before nothing is in flight. ``compiler.gates`` asks
ptxas.) "sums" saves the 32 multiplications of a step's weights and costs an FMA per accumulator and
scale group. (With k_groups=2 a k group has every other step of a scale group: of groups of 128 just
one.) Instructions of a warp for a step, in the SASS (tile_n 256, two warpgroups; not timed); the
last column is tile_m 32, k_groups 2:

    scaling                             tile_m 16    32    64    32 x 2
    weights                                   168   168   168   178
    sums, groups of 128                       162   172   187   220
    sums, groups of 256                       150   155   162
"""

from numba_marlin.kernels.hopper.shared import DESCRIPTOR_WITHOUT_ADDRESS
from numba_marlin.kernels.language.tuples import map_each, repeat, together
from numba_marlin.kernels.wgmma.weights import weight_verbs

# From 16 of k to the next 16, within a row of x: 32 bytes, in the descriptor's units of 16. The
# swizzle is a function of the whole address, so that a start inside of a 128-byte row is allowed.
NEXT_K16 = 2


def tensor_verbs(lang, config, ring):
    """-> device function ``multiply_stages(shared, place, item, thread) -> (place, accumulators)``:
    the main loop over an item's stages of the ring, of which ``place`` is the first. When it
    returns, no product is in flight, the k group's stages are released, and place is behind the
    item's last stage.
    """
    ptx, uint64 = lang.ptx, lang.uint64
    cfg = lang.constants(config)
    weights = weight_verbs(lang, config)
    scales_sums, two_scale_rows = config.scales_sums, config.scale_rows == 2
    low_of, high_of = {
        "float16": (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high),
        "bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high),
    }[config.dtype]
    wgmma = {"float16": ptx.wgmma_m64k16_f32_f16_rs, "bfloat16": ptx.wgmma_m64k16_f32_bf16_rs}[
        config.dtype
    ](n=config.tile_m)
    keep_accumulators = ptx.keep_f32(width=config.accumulators)
    wait_for_last_but_one, wait_for_all = ptx.wgmma_wait_group(n=1), ptx.wgmma_wait_group(n=0)
    zero = repeat(lang, config.strips, ptx.zero_f32(width=config.accumulators))

    # what a k16 row of weights is multiplied by: the descriptor of the same 16 of k in the stage's
    # x; adds: 0 if the product replaces the accumulators, else 1
    Multiplier = lang.record("Multiplier", "descriptor adds")

    # two scales in fp32, of columns g and g + 8 of a strip
    TwoScales = lang.record("TwoScales", "lower upper")

    # the accumulators of a strip, and what they are to be scaled by: a pair of scales in 32 bits
    StripAndScale = lang.record("StripAndScale", "acc scale")

    @lang.device
    def multiply_strip(acc, fragment, multiplier):
        return (wgmma(acc[0], fragment[0], multiplier.descriptor, multiplier.adds),)

    multiply = together(lang, config.strips, 1, multiply_strip)

    @lang.device
    def keep_strip(acc, where):
        return (keep_accumulators(acc[0]),)

    keep = map_each(lang, config.strips, 1, keep_strip)

    @lang.device
    def start(acc, fragments, descriptor, adds):
        """A k16 row goes to the tensor cores, a wgmma group of one product per strip."""
        ptx.wgmma_fence()
        acc = multiply(acc, fragments, Multiplier(descriptor, adds))
        ptx.wgmma_commit_group()
        return acc

    @lang.device
    def first_own(place, steps_left, thread):
        """Past the stage of the other k group, if this is one. (The ring's length is a multiple of
        k_groups: a stage always belongs to the same.)"""
        if cfg.k_groups == 2 and steps_left != 0 and place.stage % 2 != thread.k_group:
            return ring.advance(place), steps_left - 1
        return place, steps_left

    @lang.device
    def next_own(place, steps_left):
        """On to the next stage of this k group, or behind the last one of these steps."""
        if cfg.k_groups == 1:
            return ring.advance(place), steps_left - 1
        # min: not past the steps' last stage, so that both k groups end at the same place (a
        # RingPlace, which is ring.Place)
        stages = min(cfg.k_groups, steps_left)
        stage = place.stage + stages
        around = stage >= cfg.stages
        place = ring.Place(
            stage - cfg.stages if around else stage, place.parity ^ 1 if around else place.parity
        )
        return place, steps_left - stages

    @lang.device
    def x_descriptor(stage):
        # bits 4 to 17 of the address go to bits 0 to 13 of the descriptor; adding NEXT_K16
        # cannot carry out of them, for shared memory ends below 2^18.
        # The shuffle tells the assembler that all lanes agree. It then keeps descriptors in uniform
        # registers, where it used to move them there for each wgmma: of 186 instructions a step
        # (tile_n 256, two warpgroups) 18 go, and 1% of the time.
        return uint64((ptx.shfl_sync_idx(stage, 0) & 0x3FFFF) >> 4) | DESCRIPTOR_WITHOUT_ADDRESS

    @lang.device
    def multiply_steps(shared, place, acc, steps, thread):
        """-> (place, accumulators, whether any stage was this k group's, scales of the last
        one)"""
        own = weights.own_words(thread)
        leader = thread.lane == 0
        last = weights.no_fragments()
        scales = weights.no_scales()
        unreleased = place  # of that type; not looked at before ``begun``
        place, steps_left = first_own(place, steps, thread)
        begun = False
        while steps_left != 0:
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
            s0 = weights.load_scales_and_zeros(stage, 0, thread)
            s2 = weights.load_scales_and_zeros(stage, 2, thread) if two_scale_rows else s0
            f0 = weights.dequantise(w0, s0, 0)
            # "sums": a scale group's first product replaces the accumulators of the one before,
            # which need not be cleared; else acc was 0 at the start
            acc = start(acc, f0, descriptor, 1 if begun or not scales_sums else 0)
            wait_for_last_but_one()
            weights.keep_fragments(last, 0)  # their registers are free from here on, not before
            if leader and begun:
                ring.release(shared.barriers, unreleased)
            f1 = weights.dequantise(w1, s0, 1)
            acc = start(acc, f1, descriptor + NEXT_K16, 1)
            wait_for_last_but_one()
            weights.keep_fragments(f0, 0)
            f2 = weights.dequantise(w2, s2, 0)
            acc = start(acc, f2, descriptor + 2 * NEXT_K16, 1)
            wait_for_last_but_one()
            weights.keep_fragments(f1, 0)
            last = weights.dequantise(w3, s2, 1)
            acc = start(acc, last, descriptor + 3 * NEXT_K16, 1)
            wait_for_last_but_one()
            weights.keep_fragments(f2, 0)
            unreleased, begun = place, True
            place, steps_left = next_own(place, steps_left)
        wait_for_all()
        weights.keep_fragments(last, 0)
        if leader and begun:
            ring.release(shared.barriers, unreleased)
        # keep: a compiler does not know that the wait finished what it sees as earlier results
        return place, keep(acc, 0), begun, scales

    @lang.device
    def add_quad(totals, acc, scales):
        """scales: TwoScales. Accumulators of columns g and g + 8, two each."""
        return (
            ptx.fma_rn_f32(acc[0], scales.lower, totals[0]),
            ptx.fma_rn_f32(acc[1], scales.lower, totals[1]),
            ptx.fma_rn_f32(acc[2], scales.upper, totals[2]),
            ptx.fma_rn_f32(acc[3], scales.upper, totals[3]),
        )

    add_quads = together(lang, config.accumulators, 4, add_quad)

    @lang.device
    def add_strip(totals, strips, where):
        strip = strips[0]
        scales = TwoScales(low_of(strip.scale), high_of(strip.scale))
        return (add_quads(totals[0], strip.acc, scales),)

    @lang.device
    def with_scale(acc, scale, where):
        return (StripAndScale(acc[0], scale[0]),)

    add_scaled = together(lang, config.strips, 1, add_strip)
    with_scales = together(lang, config.strips, 1, with_scale)

    @lang.device
    def multiply_scale_groups(shared, place, item, thread):
        """The products of a scale group, as much of it as the item has, are scaled and added to
        the others in fp32."""
        totals, acc = zero(), zero()
        step, item_steps_left = item.first_step, item.steps
        while item_steps_left != 0:
            group_steps = min(cfg.steps_per_scale - step % cfg.steps_per_scale, item_steps_left)
            place, acc, begun, scales = multiply_steps(shared, place, acc, group_steps, thread)
            if begun:
                totals = add_scaled(totals, with_scales(acc, scales, 0), 0)
            step += group_steps
            item_steps_left -= group_steps
        return place, totals

    @lang.device
    def multiply_all(shared, place, item, thread):
        place, acc, begun, scales = multiply_steps(shared, place, zero(), item.steps, thread)
        return place, acc

    return multiply_scale_groups if scales_sums else multiply_all
