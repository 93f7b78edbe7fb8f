"""The main loop of the block-scaled kernel (``block_scaled``), its mma role: A goes from packed
stages into registers, B from expanded stages to the tensor cores.

A warpgroup has ``m64_blocks`` *m64 blocks* of 64 rows of A, a warp 16 rows of each, lane 4 g + t (g
is 0 to 7, t is 0 to 3) rows g and g + 8 of those, of which it loads and expands share t, 32 of 128
k. ``expand`` says which codes these are, and what a *k16 slice* is: the 16 of k of one wgmma, eight
in a packed step, four in an expanded stage. The wgmmas of all m64 blocks for a slice are one wgmma
group, *product* 0 to 7 of a step. ``sums``: a tuple with the accumulators of each m64 block. (Of
the patterns in ``compiler.language``, "Wide accumulators", this is the good one with a product in
flight over the loop's back edge: accumulators of one group, none of which is read in the loop,
count as one.)

A packed step (128 of k), step s, in order; a_i: A's fragments of k16 slice i, of all m64 blocks. A
line "start i, wait for i - 1, expand a_(i + 1)" is one call, ``start0_expand1`` and so on:

    wait for expanded stage 2 s
    start product 0, wait for product 7 (and so 6) of step s - 1, expand a_1
    give back expanded stage 2 s - 1
    start 1, wait for 0, expand a_2
    start 2, wait for 1, expand a_3
    start 3, wait for 2, expand a_4
    wait for expanded stage 2 s + 1
    start 4, wait for 3, expand a_5
    give back expanded stage 2 s
    wait for packed stage s + 1, load its codes and scales into registers     (4 in flight)
    start 5, wait for 4, expand a_6
    start 6, wait for 5, expand a_7
    start 7; give back packed stage s
    expand a_0 of step s + 1                                                  (6 and 7 in flight)

So one product is in flight while the next slice is expanded, and two while a_0 is. Both warpgroups
share the tensor cores, wait for the same stages, and so reach the same point at about the same
time: what stands between two products is a gap for both. This is why the load stands in the middle
of a step and has registers of its own, and why a_0 is expanded behind two products. Only the load
and a_0 of a tile's first step overlap nothing.

*Packed stage s is given back a step and a half after it was read.* In a tile's last step there is
no stage s + 1 to load; a branch would cost every step, so that step loads its own stage once more,
for nothing. So a stage must be held until the load in its own step is behind it. That it is given
back behind product 7, and not right behind that load, is a choice that was not measured; by then
the load's latency is over. All lanes read it with ordinary loads: a warp sync stands before the
arrival. An expanded stage is read by wgmma alone, whose end the whole warp waits for: no sync.

State over the loop's back edge, besides ``sums``:

    packed_place     place in the ring of packed stages: of the stage of this step
    expanded_place   place in the ring of expanded stages: of the next to be waited for
    held             the same ring: of the one that products read and that is not given back yet
    begun            whether ``held`` is such a stage: False in a tile's first step only
    steps            packed steps of the tile that are left, this one included
    shares           ``Share`` of each m64 block: this step's codes and scales of A
    a0               fragments of the product that is started next
    a6, a7           fragments of the products in flight, which wgmma may still read

Tried, and not faster (speed relative to cuBLAS at 8192 cubed on an H200, of two runs, in which this
loop had 0.879 and 0.884; experiments/11_block_scaled/tried.jsonl): two products in flight
everywhere, with a third set of fragments, and the load between steps (0.850); the same with the
load moved up, which takes more registers than there are, so that the assembler serialises products
(0.753); the load beside product 7 (0.870) or a product later than now (0.873);
giving the packed stage back when it is loaded, in a branch for the last step (0.862, second run);
asking for expanded stages earlier (0.888, second run: equal within noise).
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.tuples import for_each, map_each, numbered, repeat, together
from numba_marlin.kernels.nvfp4.block_scaled.config import (
    ROW_BYTES,
    SCALE_BYTES,
    SCALE_ROWS,
)
from numba_marlin.kernels.nvfp4.block_scaled.expand import number_verbs
from numba_marlin.layout.wgmma import Descriptor

# wgmma's matrix descriptor without its address (from bit 0, in units of 16 bytes): groups of eight
# rows are 8 * 128 bytes apart (from bit 32, in units of 16), 128-byte swizzle (1 from bit 62); the
# leading dimension's field, from bit 16, means nothing in a swizzle
DESCRIPTOR_HIGH = Descriptor(address=0, stride_bytes=8 * 128, swizzle=128).encode()
# A k16 slice is 32 bytes of a row, 2 of the descriptor's units. Stages begin at multiples of 1024,
# and the swizzle is a function of the address that comes out, so it may be added to the descriptor.
SLICE_UNITS = 2
ADDRESS_BITS = 0x3FFFF  # of a shared address, those that a descriptor holds


def multiply_verbs(lang, config, packed, expanded):
    """-> namespace with ``multiply_steps(shared, places, steps, thread) -> (places, sums)``;
    places: in the rings of packed and of expanded stages. When it returns nothing is in flight and
    all stages are given back. ``Places`` and ``Thread`` are those of ``kernel``: records of one
    name with the same fields are one class.

    ``sums``, ``shares`` and fragments are tuples with an element for each m64 block. Functions of
    one element become functions of such tuples by ``for_blocks`` and ``for_numbered_blocks``: what
    an unrolled loop over m64 blocks is in CUDA."""
    ptx, uint64 = lang.ptx, lang.uint64
    cfg = lang.constants(config)
    numbers = number_verbs(lang)
    m64_blocks, accumulators = config.m64_blocks, config.accumulators
    # low, high: f16x2 whose halves are both the low, both the high half of their argument
    times, low, high = ptx.mul_f16x2, ptx.both_low_f16x2, ptx.both_high_f16x2
    wgmma = ptx.wgmma_m64k16_f32_f16_rs(n=config.tile_n)
    keep_sums, keep_fragment = ptx.keep_f32(width=accumulators), ptx.keep_u32(width=4)
    wait_for_all_but_one, wait_for_all_but_two, wait_for_all = (
        ptx.wgmma_wait_group(n=1),
        ptx.wgmma_wait_group(n=2),
        ptx.wgmma_wait_group(n=0),
    )

    Places = lang.record("Places", "packed expanded")

    # What a lane has of an m64 block in a packed step. above, below: of its rows g and g + 8, the
    # four words of its share; scales_above, scales_below: the scales of the two scale blocks of
    # either, a pair of fp16, the first in the low half.
    Share = lang.record("Share", "above below scales_above scales_below")

    # the address of a packed stage, and the ``Thread`` that reads it
    Reader = lang.record("Reader", "stage thread")

    # m64 blocks (``language.tuples`` hands its verbs tuples of one, and a last argument)

    def for_blocks(function):
        """-> device function of a tuple: ``function`` of each m64 block's element"""

        @lang.device
        def of_block(each, unused):
            return (function(each[0]),)

        applied = map_each(lang, m64_blocks, 1, of_block)
        return lang.device(lambda elements: applied(elements, 0))

    zeros = repeat(lang, m64_blocks, lang.device(lambda: 0))

    def for_numbered_blocks(function_of):
        """-> device function (argument) -> tuple of what ``function_of(m64)`` makes of it"""

        def verb_of(m64):
            function = function_of(m64)
            return lang.device(lambda unused, argument: (function(argument),))

        applied = numbered(lang, m64_blocks, 1, verb_of)
        return lang.device(lambda argument: applied(zeros(), argument))

    zero_sums = repeat(lang, m64_blocks, ptx.zero_f32(width=accumulators))

    @lang.device
    def multiply_m64(sums, a, descriptor):
        # 1: the product is added to what the accumulators hold (wgmma's scale-d)
        return (wgmma(sums[0], a[0], descriptor, 1),)

    # (sums, fragments, descriptor) -> sums, one wgmma for each m64 block
    multiply = together(lang, m64_blocks, 1, multiply_m64)

    # ``keep_*`` are empty volatile assembly that, as far as the compiler knows, changes registers.
    # wgmma reads and writes registers after it was issued, which the compiler does not know. So:
    # sums are read behind the wait before this, not earlier
    read_from_here = for_blocks(keep_sums)
    # fragments are computed before this, not where they are used first
    computed_by_here = for_blocks(keep_fragment)

    # wgmma may read fragments until here: their registers are not reused earlier
    @lang.device
    def keep_m64(a, unused):
        keep_fragment(a[0])

    in_use_until_here = for_each(lang, m64_blocks, 1, keep_m64)
    # of no product: what a tile's first step has in place of a6 and a7
    no_fragments = repeat(lang, m64_blocks, lang.device(lambda: keep_fragment((0, 0, 0, 0))))

    # A

    def load_m64(m64):
        """-> device function (``Reader``) -> ``Share`` of m64 block ``m64``"""

        @lang.device
        def load(reader):
            stage, thread = reader
            g, t = thread.lane // 4, thread.lane % 4
            row = (thread.warpgroup * cfg.m64_blocks + m64) * 64 + thread.warp * 16 + g
            address = stage + row * ROW_BYTES + t * 16
            # Of scale blocks 2 t (the low byte) and 2 t + 1 of the step's eight: ``nvfp4.load`` has
            # the formula. Row + 8 is 8 * 16 bytes on: row mod 16 is g, so row mod 32 is below 24.
            scales = stage + (
                cfg.sfa_shared
                + row // SCALE_ROWS * SCALE_BYTES
                + row % SCALE_ROWS // 32 * 4
                + row % 32 * 16
                + t // 2 * (SCALE_BYTES // 2)
                + t % 2 * 2
            )
            return Share(
                ptx.ld_shared_v4_b32(address),
                ptx.ld_shared_v4_b32(address + 8 * ROW_BYTES),
                ptx.cvt_rn_f16x2_e4m3x2(ptx.ld_shared_b16(scales)),
                ptx.cvt_rn_f16x2_e4m3x2(ptx.ld_shared_b16(scales + 8 * 16)),
            )

        return load

    load_shares = for_numbered_blocks(load_m64)

    def expand_slice(i):
        """-> device function (shares) -> a_i, A's fragments of k16 slice ``i``, 0 to 7, of the
        packed stage that the shares are of"""
        word = i // 2
        nibbles_of = numbers.odd_nibbles if i % 2 == 0 else numbers.even_nibbles
        scale_of = low if i < 4 else high

        @lang.device
        def fragment(share):
            s_above, s_below = scale_of(share.scales_above), scale_of(share.scales_below)
            above, below = nibbles_of(share.above[word]), nibbles_of(share.below[word])
            return (
                times(above.first, s_above),
                times(below.first, s_below),
                times(above.second, s_above),
                times(below.second, s_below),
            )

        return for_blocks(fragment)

    # products

    @lang.device
    def start(sums, a, descriptor):
        ptx.wgmma_fence()
        sums = multiply(sums, a, descriptor)
        ptx.wgmma_commit_group()
        return sums

    @lang.device
    def descriptor_of(shared, expanded_place):
        """The shuffle tells the assembler that all lanes agree: descriptors then stay in uniform
        registers."""
        stage = shared + cfg.expanded_at + expanded_place.stage * cfg.expanded_bytes
        return uint64((ptx.shfl_sync_idx(stage, 0) & ADDRESS_BITS) >> 4) | DESCRIPTOR_HIGH

    def start_wait_expand(i):
        """-> device function (sums, a, last, shares, descriptor) -> (sums, the next fragments):
        starts product ``i``, 0 to 6, of fragments ``a``; waits until the one before, of fragments
        ``last``, has ended; then, while product ``i`` is in flight, expands those of slice
        ``i`` + 1. descriptor: of the expanded stage, whose slices are counted from 0."""
        expand_next, offset = expand_slice(i + 1), i % 4 * SLICE_UNITS

        @lang.device
        def go_on(sums, a, last, shares, descriptor):
            sums = start(sums, a, descriptor + offset)
            wait_for_all_but_one()
            in_use_until_here(last, 0)
            return sums, computed_by_here(expand_next(shares))

        return go_on

    (
        start0_expand1,
        start1_expand2,
        start2_expand3,
        start3_expand4,
        start4_expand5,
        start5_expand6,
        start6_expand7,
    ) = (start_wait_expand(i) for i in range(7))
    expand_slice0 = expand_slice(0)

    @lang.device
    def take_packed(shared, place, thread):
        """-> the lane's shares of a packed stage, in registers. (It may be asked for a stage that
        was waited for before: until this warp gives the stage back, its full barrier cannot
        complete another phase, and the wait passes at once.)"""
        packed.wait_full(shared + cfg.packed_barriers, place)
        return load_shares(Reader(shared + place.stage * cfg.stage_bytes, thread))

    @lang.device
    def first_fragments(shares):
        """-> a_0"""
        return computed_by_here(expand_slice0(shares))

    @lang.device
    def open_expanded(shared, expanded_place):
        expanded.wait_full(shared + cfg.expanded_barriers, expanded_place)
        return descriptor_of(shared, expanded_place)

    @lang.device
    def give_back(shared, held, leader):
        """Behind a wait for its last product, which is the whole warp's."""
        if leader:
            expanded.release(shared + cfg.expanded_barriers, held)

    @lang.device
    def give_back_packed(shared, place, leader):
        ptx.bar_warp_sync(ALL_LANES)
        if leader:
            packed.release(shared + cfg.packed_barriers, place)

    @lang.device
    def multiply_steps(shared, places, steps, thread):
        """steps: at least 1, since a first stage is waited for in any case (``kernel``, "Sizes").
        So ``begun`` is True behind the loop, where it is asked for to no effect."""
        packed_place, expanded_place = places.packed, places.expanded
        leader = thread.lane == 0
        sums, a6, a7 = zero_sums(), no_fragments(), no_fragments()
        shares = take_packed(shared, packed_place, thread)
        a0 = first_fragments(shares)
        held, begun = expanded_place, False
        while steps != 0:
            descriptor = open_expanded(shared, expanded_place)
            sums, a1 = start0_expand1(sums, a0, a7, shares, descriptor)
            in_use_until_here(a6, 0)
            give_back(shared, held, leader and begun)
            sums, a2 = start1_expand2(sums, a1, a0, shares, descriptor)
            sums, a3 = start2_expand3(sums, a2, a1, shares, descriptor)
            sums, a4 = start3_expand4(sums, a3, a2, shares, descriptor)
            held, expanded_place = expanded_place, expanded.advance(expanded_place)
            descriptor = open_expanded(shared, expanded_place)
            sums, a5 = start4_expand5(sums, a4, a3, shares, descriptor)
            give_back(shared, held, leader)
            # In the last step its own stage once more, for nothing (the module's docstring).
            upcoming = packed.advance(packed_place) if steps != 1 else packed_place
            next_shares = take_packed(shared, upcoming, thread)
            sums, a6 = start5_expand6(sums, a5, a4, shares, descriptor)
            sums, a7 = start6_expand7(sums, a6, a5, shares, descriptor)
            sums = start(sums, a7, descriptor + 3 * SLICE_UNITS)
            give_back_packed(shared, packed_place, leader)
            shares, packed_place, steps = next_shares, packed.advance(packed_place), steps - 1
            # These two lines are redundant (product 5 was waited for beside product 6): no wait, no
            # instruction but a wgmma.wait_group that passes at once. They stay because every
            # measured time is of the loop with them; ptxas 13.5 does as well without.
            wait_for_all_but_two()
            in_use_until_here(a5, 0)
            a0 = first_fragments(shares)
            held, expanded_place, begun = expanded_place, expanded.advance(expanded_place), True
        wait_for_all()
        in_use_until_here(a6, 0)
        in_use_until_here(a7, 0)
        give_back(shared, held, leader and begun)
        return Places(packed_place, expanded_place), read_from_here(sums)

    return lang.namespace("multiply", multiply_steps=multiply_steps)
