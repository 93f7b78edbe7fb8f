"""The main loop of ``wgmma``'s consumers: weights from shared memory to registers to the tensor
cores.

The accumulators are a tuple with an element per strip of the warp: a thread's part of m64, of which
16 columns of W are this warp's, by tile_m rows of x. A k16 row of a stage is one wgmma group. A
round multiplies a stage; from top to bottom, and side by side what overlaps:

    a warp's instructions                                    the tensor cores
    wait until the stage is full                             k16 row 3 of the stage before
    load the words of its four k16 rows, scales, zero points     "
    dequantise k16 row 0                                         "
    issue row 0; wait until one group at most is in flight   row 3 is done
    lane 0 releases the stage before
    dequantise row 1                                         row 0
    issue row 1; wait until one group at most is in flight   row 0 is done
    dequantise row 2                                         row 1
    ... and so with rows 2 and 3; row 3 stays in flight
    on to the k group's next stage

After the last round it waits until nothing is in flight, and lane 0 releases the last stage. So
dequantised weights have two sets of registers. Lane 0 releases for its warp without a barrier of
the warp: ``wgmma`` takes registers of all lanes, so when a stage's products are done all lanes'
loads of it are. (The scales of "sums" are no operands of it, but loaded before it: a warp's loads
from shared memory are served in order.) The producer's copies overlap with all of this, and the
tensor store of C with the next item's rounds.

The state of the loop (``multiply_steps``), all of it the same in all lanes but the registers:

    place       the next stage to multiply, and the parity of its round (RingPlace)
    remaining   steps of this call that are left from ``place`` on, those of both k groups
    unreleased  the stage last multiplied, to be released one round later (RingPlace)
    begun       whether this k group has multiplied any stage in this call
    last        A fragments of k16 row 3 of ``unreleased``: registers in use by the tensor cores
    acc         accumulators, with products in flight
    scales      with "sums": of the stage last multiplied

With ``scaling="sums"`` integers are multiplied, and the products of a scale group are scaled and
added to the others' in fp32 (``multiply_groups``: totals, step and remaining, in steps of the
item's tile, and steps, those of the next scale group). No product is in flight between scale
groups: ptxas serialises ``wgmma`` if accumulators are read in a loop while others are in flight
over its back edge. (The accumulators of several strips count as one there: issued together, and not
read before nothing is in flight. ``compiler.gates`` asks ptxas.) Instructions of a warp for a step,
in the SASS (tile_n 256, two warpgroups; not timed); the last column is tile_m 32, k_groups 2:

    scaling                             tile_m 16    32    64    32 x 2
    weights                                   168   168   168   178
    sums, groups of 128                       162   172   187   220
    sums, groups of 256                       150   155   162

"sums" saves the 32 multiplications of a step's weights and costs an FMA per accumulator, once per
scale group, or with k_groups=2 once per step.
"""

from numba_marlin.kernels.language.tuples import map_each, repeat, together
from numba_marlin.kernels.wgmma.weights import weight_verbs
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES
from numba_marlin.layout.wgmma import Descriptor

# All of x's descriptor but the address: 128-byte swizzle, groups of eight rows 1024 bytes apart.
DESCRIPTOR_WITHOUT_ADDRESS = Descriptor(
    address=0, stride_bytes=SWIZZLE_PATTERN_BYTES, swizzle=128
).encode()
# From a k16 row to the next in a row of x: 32 bytes, in the descriptor's units of 16. The swizzle
# is a function of the whole address, so that a start inside of a 128-byte row is allowed.
ROW_DESCRIPTORS = 2


def tensor_verbs(lang, config, ring):
    """-> device function ``multiply_stages(shared, place, item, thread) -> (place, accumulators)``:
    the main loop over an item's stages of the ring, of which ``place`` is the first. When it
    returns, no product is in flight, the k group's stages are released, and place is behind the
    item's last stage.
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
    zero = repeat(lang, config.strips, ptx.zero_f32(width=config.accumulators))

    # what a k16 row of weights is multiplied by: the descriptor of 16 columns of x's stage; adds: 0
    # if the product replaces the accumulators, else 1
    Multiplier = lang.record("Multiplier", "descriptor adds")

    # two scales, of columns g and g + 8
    Scales = lang.record("Scales", "lower upper")

    # the accumulators of a strip, and what they are scaled by: a pair of scales in 32 bits
    Scaled = lang.record("Scaled", "acc scale")

    @lang.device
    def multiply_strip(acc, fragment, x):
        return (wgmma(acc[0], fragment[0], x.descriptor, x.adds),)

    multiply = together(lang, config.strips, 1, multiply_strip)

    @lang.device
    def keep_strip(acc, where):
        return (keep_accumulators(acc[0]),)

    keep = map_each(lang, config.strips, 1, keep_strip)

    @lang.device
    def start(acc, fragments, descriptor, adds):
        """A k16 row goes to the tensor cores, a group of a product per strip."""
        ptx.wgmma_fence()
        acc = multiply(acc, fragments, Multiplier(descriptor, adds))
        ptx.wgmma_commit_group()
        return acc

    @lang.device
    def first_own(place, remaining, thread):
        """Past the stage of the other k group, if this is one. (The ring's length is a multiple of
        k_groups: a stage always belongs to the same.)"""
        if cfg.k_groups == 2 and remaining != 0 and place.stage % 2 != thread.k_group:
            return ring.advance(place), remaining - 1
        return place, remaining

    @lang.device
    def next_own(place, remaining):
        """On to the next stage of this k group, or behind the last one of these steps."""
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
        # bits 4 to 17 of the address go to bits 0 to 13 of the descriptor; adding ROW_DESCRIPTORS
        # cannot carry out of them, for shared memory ends below 2^18.
        # The shuffle tells the assembler that all lanes agree. It then keeps descriptors in uniform
        # registers, where it used to move them there for each wgmma: of 186 instructions a step
        # (tile_n 256, two warpgroups) 18 go.
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
            # "sums": a group's first product replaces those of the group before, which need not
            # be cleared; else acc was 0 at the start
            acc = start(acc, a0, descriptor, 1 if begun or not scales_sums else 0)
            wait_for_last_but_one()
            weights.keep_fragments(last, 0)  # their registers are free from here on, not before
            if leader and begun:
                ring.release(shared.barriers, unreleased)
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
            unreleased, begun = place, True
            place, remaining = next_own(place, remaining)
        wait_for_all()
        weights.keep_fragments(last, 0)
        if leader and begun:
            ring.release(shared.barriers, unreleased)
        # keep: a compiler does not know that the wait finished what it sees as earlier results
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
    def add_strip(totals, scaled, where):
        strip = scaled[0]
        scales = Scales(low_of(strip.scale), high_of(strip.scale))
        return (add_quads(totals[0], strip.acc, scales),)

    @lang.device
    def with_scale(acc, scale, where):
        return (Scaled(acc[0], scale[0]),)

    add_scaled = together(lang, config.strips, 1, add_strip)
    with_scales = together(lang, config.strips, 1, with_scale)

    @lang.device
    def multiply_groups(shared, place, item, thread):
        """The products of a scale group, as much of it as the item has, are scaled and added to
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
