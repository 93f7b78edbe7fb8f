"""The role of the block-scaled kernel (``block_scaled``) that multiplies: A from packed stages into registers, B from expanded stages, to the tensor cores.

A warpgroup has ``words`` blocks of 64 rows of A, a warp 16 rows of each, a lane rows g and g + 8 of those, of which it expands share t (``block_scaled_expand`` says
which codes these are). ``sums``: a tuple with the accumulators of each m64 block. A k16 row is one wgmma group; two are in flight at most, so there are two sets
of A's registers. A packed stage is given back as soon as it is in registers, an expanded one when the first product of the next is under way.

``lane_place``: (warpgroup, warp in it, lane).
"""
from types import SimpleNamespace

from numba_marlin.kernels.block_scaled_config import ROW_BYTES, SCALE_BYTES, SCALE_ROWS
from numba_marlin.kernels.block_scaled_expand import number_verbs
from numba_marlin.kernels.block_scaled_schedule import ALL_LANES
from numba_marlin.kernels.tuples import for_each, map_each, numbered, repeat, together

DESCRIPTOR_HIGH = (1 << 62) | (64 << 32) | (1 << 16)  # 128-byte swizzle; eight rows are 1024 bytes apart (layout.wgmma.descriptor)
ROW_DESCRIPTORS = 2  # 32 bytes, a k16 row, in the descriptor's units of 16


def multiply_verbs(lang, config, packed, expanded):
    """-> namespace with ``multiply_steps(shared, places, steps, lane_place) -> (places, sums)``; places: those in the rings of packed and of expanded stages. When it
    returns nothing is in flight and all stages are given back."""
    ptx, uint32, uint64 = lang.ptx, lang.uint32, lang.uint64
    numbers = number_verbs(lang)
    WORDS, ACCUMULATORS, STAGE, SFA_SHARED = config.words, config.accumulators, config.stage_bytes, config.sfa_shared
    EXPANDED, EXPANDED_BYTES, BARRIERS, EXPANDED_BARRIERS = config.expanded_shared, config.expanded_bytes, config.barriers_shared, config.expanded_barriers
    wait_full, release, advance = packed.wait_full, packed.release, packed.advance
    wait_expanded, release_expanded, advance_expanded = expanded.wait_full, expanded.release, expanded.advance
    times, low, high = ptx.mul_f16x2, ptx.both_low_f16x2, ptx.both_high_f16x2
    wgmma = ptx.wgmma_m64k16_f32_f16_rs(n=config.tile_n)
    keep_sums, keep_fragment = ptx.keep_f32(width=ACCUMULATORS), ptx.keep_u32(width=4)
    wait_for_last_but_one, wait_for_all = ptx.wgmma_wait_group(n=1), ptx.wgmma_wait_group(n=0)
    zero = repeat(lang, WORDS, ptx.zero_f32(width=ACCUMULATORS))
    multiply = together(lang, WORDS, 1, lang.device(lambda sums, a, where: (wgmma(sums[0], a[0], where[0], where[1]),)))
    keep = map_each(lang, WORDS, 1, lang.device(lambda one, where: (keep_sums(one[0]),)))
    no_fragments = repeat(lang, WORDS, lang.device(lambda: (uint32(0), uint32(0), uint32(0), uint32(0))))
    pin = map_each(lang, WORDS, 1, lang.device(lambda one, where: (keep_fragment(one[0]),)))
    keep_fragments = for_each(lang, WORDS, 1, lang.device(lambda one, where: keep_fragment(one[0])))

    # ---- A ------------------------------------------------------------------------------------------------------------------------

    def load_block(block):
        """-> device function (nothing, (stage, lane_place)): (16-byte shares of rows g and g + 8 of m64 block ``block``, their two scales each)"""
        @lang.device
        def load(nothing, where):
            stage, lane_place = where
            warpgroup, warp, lane = lane_place
            g, t = uint32(lane // uint32(4)), uint32(lane % uint32(4))
            row = uint32(uint32(warpgroup * uint32(WORDS) + uint32(block)) * uint32(64) + warp * uint32(16) + g)
            address = stage + row * uint32(ROW_BYTES) + t * uint32(16)
            scales = stage + (uint32(SFA_SHARED) + row // uint32(SCALE_ROWS) * uint32(SCALE_BYTES) + row % uint32(SCALE_ROWS) // uint32(32) * uint32(4) + row % uint32(32) * uint32(16)
                              + t // uint32(2) * uint32(SCALE_BYTES // 2) + t % uint32(2) * uint32(2))
            return ((ptx.ld_shared_v4_b32(address), ptx.ld_shared_v4_b32(address + uint32(8 * ROW_BYTES)),
                     ptx.cvt_rn_f16x2_e4m3x2(ptx.ld_shared_b16(scales)), ptx.cvt_rn_f16x2_e4m3x2(ptx.ld_shared_b16(scales + uint32(8 * 16)))),)

        return load

    load_rows = numbered(lang, WORDS, 1, load_block)
    nothing = repeat(lang, WORDS, lang.device(lambda: uint32(0)))

    def spread_row(step):
        """-> device function (what ``load_rows`` returned, 0) -> A's fragments of k16 row ``step`` of the packed stage's eight"""
        word = step // 2
        first, second = (numbers.pair0, numbers.pair1) if step % 2 == 0 else (numbers.pair2, numbers.pair3)
        scale_of = low if step < 4 else high

        @lang.device
        def spread(rows, where):
            above, below, scales, scales_below = rows[0]
            s, s_below = scale_of(scales), scale_of(scales_below)
            return ((times(first(above[word]), s), times(first(below[word]), s_below), times(second(above[word]), s), times(second(below[word]), s_below)),)

        return map_each(lang, WORDS, 1, spread)

    # ---- products -------------------------------------------------------------------------------------------------------------------

    @lang.device
    def start(sums, a, descriptor):
        """-> (sums, a). What A's registers get is written before the fence, wherever else the compiler would rather have put it."""
        a = pin(a, uint32(0))
        ptx.wgmma_fence()
        sums = multiply(sums, a, (descriptor, uint32(1)))
        ptx.wgmma_commit_group()
        return sums, a

    @lang.device
    def descriptor_of(shared, place):
        """The shuffle tells the assembler that all lanes agree: descriptors then stay in uniform registers."""
        stage = shared + uint32(EXPANDED) + place[0] * uint32(EXPANDED_BYTES)
        return uint64(uint32(ptx.shfl_sync_idx(stage, uint32(0)) & uint32(0x3FFFF)) >> uint32(4)) | uint64(DESCRIPTOR_HIGH)

    def half_of(first):
        """-> device function (shared, rows, sums, last, begun, before, target, leader) -> (sums, last): four k16 rows from ``first`` on, and the stage before given back"""
        spread0, spread1, spread2, spread3 = (spread_row(first + i) for i in range(4))

        @lang.device
        def half(shared, rows, sums, last, begun, before, target, leader):
            wait_expanded(shared + uint32(EXPANDED_BARRIERS), target)
            descriptor = descriptor_of(shared, target)
            sums, a0 = start(sums, spread0(rows, uint32(0)), descriptor)
            wait_for_last_but_one()
            keep_fragments(last, uint32(0))
            if leader and begun:
                release_expanded(shared + uint32(EXPANDED_BARRIERS), before)
            sums, a1 = start(sums, spread1(rows, uint32(0)), descriptor + uint64(ROW_DESCRIPTORS))
            wait_for_last_but_one()
            keep_fragments(a0, uint32(0))
            sums, a2 = start(sums, spread2(rows, uint32(0)), descriptor + uint64(2 * ROW_DESCRIPTORS))
            wait_for_last_but_one()
            keep_fragments(a1, uint32(0))
            sums, last = start(sums, spread3(rows, uint32(0)), descriptor + uint64(3 * ROW_DESCRIPTORS))
            wait_for_last_but_one()
            keep_fragments(a2, uint32(0))
            return sums, last

        return half

    first_half, second_half = half_of(0), half_of(4)

    @lang.device
    def multiply_steps(shared, places, steps, lane_place):
        place, target = places
        leader = lane_place[2] == uint32(0)
        sums, last = zero(), no_fragments()
        before, begun = target, False
        while steps != uint32(0):
            wait_full(shared + uint32(BARRIERS), place)
            rows = load_rows(nothing(), (shared + place[0] * uint32(STAGE), lane_place))
            sums, last = first_half(shared, rows, sums, last, begun, before, target, leader)
            ptx.bar_warp_sync(uint32(ALL_LANES))
            if leader:
                release(shared + uint32(BARRIERS), place)
            before, begun = target, True
            place, target = advance(place), advance_expanded(target)
            sums, last = second_half(shared, rows, sums, last, begun, before, target, leader)
            before, target = target, advance_expanded(target)
            steps = uint32(steps - uint32(1))
        wait_for_all()
        keep_fragments(last, uint32(0))
        if leader and begun:
            release_expanded(shared + uint32(EXPANDED_BARRIERS), before)
        return (place, target), keep(sums, uint32(0))

    return SimpleNamespace(multiply_steps=multiply_steps)
