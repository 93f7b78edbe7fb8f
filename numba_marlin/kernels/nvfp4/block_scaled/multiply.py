"""The main loop of the block-scaled kernel (``block_scaled``), the role that multiplies: A goes
from packed stages into registers, B from expanded stages to the tensor cores.

A warpgroup has ``m64_blocks`` blocks of 64 rows of A, a warp 16 rows of each, lane 4 g + t (g is 0
to 7, t is 0 to 3) rows g and g + 8 of those, of which it loads and expands share t, 32 of 128 k.
``expand`` says which codes these are, and what a *k16 row* is: the 16 of k of one wgmma, eight in a
packed step, four in an expanded stage. All m64 blocks' products of a k16 row are one wgmma group,
"product 0" to "product 7" of a step. ``sums``: a tuple with the accumulators of each m64 block.

A packed step (128 of k), in order; a_i: A's fragments of k16 row i:

    wait for an expanded stage; start product 0, wait for product 7 of the step before (and 6),
        expand a_1; give back the expanded stage before
    start 1, wait for 0, expand a_2; start 2, wait for 1, expand a_3;
        start 3, wait for 2, expand a_4
    wait for the next expanded stage; start 4, wait for 3, expand a_5; give back the first
    wait for the next packed stage, load its shares and scales: 4 in flight
    start 5, wait for 4, expand a_6; start 6, wait for 5, expand a_7; start 7
    give back the packed stage; expand a_0 of the next step: 6 and 7 in flight, into the next turn

So one product is in flight while the next row is expanded. The tensor cores are shared by both
warpgroups, which wait for the same stages and so reach the same places at about the same time: what
stands between two products is a gap for both. So the load stands in the middle of a step, into
registers of its own, and the first row of the next step behind two products. The load and a_0 of a
tile's first step overlap nothing. All lanes read a packed stage with ordinary loads, so it is given
back behind a warp sync; an expanded one is read by wgmma alone, for which the whole warp waits.

State over the loop's back edge, besides ``sums``:

    packed_place     ring place of the packed stage in use
    expanded_place   of the expanded stage that is opened next
    held             of the expanded stage that is not given back yet; ``begun``: there is one
    steps            packed steps that are left
    rows             ``Share`` of each m64 block: the codes and scales of the packed stage in use
    a0               fragments that product 0 takes; a6, a7: of products that are in flight

Tried, and slower (experiments/11_block_scaled/tried.jsonl has the times): two products in flight
everywhere, with a third set of fragments; the same with the load moved up before product 4, which
takes more registers than there are, so that the assembler serialises products; the load beside
product 7, or between steps; giving the packed stage back when it is loaded, in a branch for the
last step; asking for expanded stages earlier.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.tuples import for_each, map_each, numbered, repeat, together
from numba_marlin.kernels.nvfp4.block_scaled.config import (
    ROW_BYTES,
    SCALE_BYTES,
    SCALE_ROWS,
)
from numba_marlin.kernels.nvfp4.block_scaled.expand import number_verbs
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES
from numba_marlin.layout.wgmma import Descriptor

# of wgmma's matrix descriptor all but the address: 128-byte swizzle (``Descriptor``'s default),
# groups of eight rows 1024 bytes apart
DESCRIPTOR_HIGH = Descriptor(0, SWIZZLE_PATTERN_BYTES).encode()
# 32 bytes, a k16 row, in the descriptor's units of 16. Stages begin at multiples of 1024, and the
# swizzle is a function of the address that comes out, so it may be added to the descriptor.
ROW_DESCRIPTORS = 2
ADDRESS_BITS = 0x3FFFF  # of a shared address, those that a descriptor holds


def multiply_verbs(lang, config, packed, expanded):
    """-> namespace with ``multiply_steps(shared, places, steps, thread) -> (places, sums)``;
    places: those in the rings of packed and of expanded stages. When it returns nothing is in
    flight and all stages are given back. ``Places`` and ``Thread`` are those of ``kernel``: records
    of one name with the same fields are one class.

    A tuple with an element for each m64 block is worked on by ``kernels.language.tuples``: a verb
    for one block takes and returns tuples of one, ``(x,)`` and ``x[0]``, and a second argument,
    ``where``, that is the same for all (0 if the verb has no use for it).

    ``keep_*`` are empty inline assembly that takes registers and gives them back changed, as far as
    the compiler knows: nothing that it is given is computed later, or its registers reused earlier,
    than where it stands. wgmma reads registers after it was issued; the compiler does not know."""
    ptx, uint64 = lang.ptx, lang.uint64
    cfg = lang.constants(config)
    numbers = number_verbs(lang)
    m64_blocks, accumulators = config.m64_blocks, config.accumulators
    times, low, high = ptx.mul_f16x2, ptx.both_low_f16x2, ptx.both_high_f16x2
    wgmma = ptx.wgmma_m64k16_f32_f16_rs(n=config.tile_n)
    keep_sums, keep_fragment = ptx.keep_f32(width=accumulators), ptx.keep_u32(width=4)
    wait_for_all_but_one, wait_for_all_but_two, wait_for_all = (
        ptx.wgmma_wait_group(n=1),
        ptx.wgmma_wait_group(n=2),
        ptx.wgmma_wait_group(n=0),
    )

    Places = lang.record("Places", "packed expanded")

    # what a lane has of an m64 block in a packed step: of row g (above) and g + 8 (below) its
    # share, four words; of either the scales of its two blocks, fp16, the first in the low half
    Share = lang.record("Share", "above below scales scales_below")

    # the address of a packed stage, and who reads it
    Reader = lang.record("Reader", "stage thread")

    zero = repeat(lang, m64_blocks, ptx.zero_f32(width=accumulators))
    # 1: the product is added to what the accumulators hold (wgmma's scale-d)
    multiply = together(
        lang,
        m64_blocks,
        1,
        lang.device(lambda sums, a, descriptor: (wgmma(sums[0], a[0], descriptor, 1),)),
    )
    keep = map_each(lang, m64_blocks, 1, lang.device(lambda one, where: (keep_sums(one[0]),)))
    no_fragments = repeat(lang, m64_blocks, lang.device(lambda: keep_fragment((0, 0, 0, 0))))
    pin = map_each(lang, m64_blocks, 1, lang.device(lambda one, where: (keep_fragment(one[0]),)))
    keep_fragments = for_each(
        lang, m64_blocks, 1, lang.device(lambda one, where: keep_fragment(one[0]))
    )

    # A

    def load_block(block):
        """-> device function (a placeholder, ``Reader``) -> (``Share`` of m64 block ``block``,)"""

        @lang.device
        def load(placeholder, reader):
            stage, thread = reader
            g, t = thread.lane // 4, thread.lane % 4
            row = (thread.warpgroup * cfg.m64_blocks + block) * 64 + thread.warp * 16 + g
            address = stage + row * ROW_BYTES + t * 16
            # of blocks 2 t (the low byte) and 2 t + 1 of the step's eight: ``load`` has the formula
            scales = stage + (
                cfg.sfa_shared
                + row // SCALE_ROWS * SCALE_BYTES
                + row % SCALE_ROWS // 32 * 4
                + row % 32 * 16
                + t // 2 * (SCALE_BYTES // 2)
                + t % 2 * 2
            )
            return (
                Share(
                    ptx.ld_shared_v4_b32(address),
                    ptx.ld_shared_v4_b32(address + 8 * ROW_BYTES),
                    ptx.cvt_rn_f16x2_e4m3x2(ptx.ld_shared_b16(scales)),
                    ptx.cvt_rn_f16x2_e4m3x2(ptx.ld_shared_b16(scales + 8 * 16)),
                ),
            )

        return load

    load_rows = numbered(lang, m64_blocks, 1, load_block)
    placeholders = repeat(lang, m64_blocks, lang.device(lambda: 0))

    def spread_row(k16_row):
        """-> device function (what ``load_rows`` returned, 0) -> A's fragments of that k16 row of
        the packed stage's eight"""
        word = k16_row // 2
        pairs_of = numbers.odd_nibbles if k16_row % 2 == 0 else numbers.even_nibbles
        scale_of = low if k16_row < 4 else high

        @lang.device
        def spread(rows, where):
            share = rows[0]
            s, s_below = scale_of(share.scales), scale_of(share.scales_below)
            upper, lower = pairs_of(share.above[word]), pairs_of(share.below[word])
            return (
                (
                    times(upper.first, s),
                    times(lower.first, s_below),
                    times(upper.second, s),
                    times(lower.second, s_below),
                ),
            )

        return map_each(lang, m64_blocks, 1, spread)

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
        stage = shared + cfg.expanded_shared + expanded_place.stage * cfg.expanded_bytes
        return uint64((ptx.shfl_sync_idx(stage, 0) & ADDRESS_BITS) >> 4) | DESCRIPTOR_HIGH

    def then(row):
        """-> device function (sums, a, last, rows, descriptor) -> (sums, the next row's fragments):
        starts product ``row``, of fragments ``a``; waits until the one before, of fragments
        ``last``, has ended; then expands the next row, while product ``row`` is in flight."""
        spread, offset = spread_row(row + 1), row % 4 * ROW_DESCRIPTORS

        @lang.device
        def go_on(sums, a, last, rows, descriptor):
            sums = start(sums, a, descriptor + offset)
            wait_for_all_but_one()
            keep_fragments(last, 0)
            return sums, pin(spread(rows, 0), 0)

        return go_on

    after0, after1, after2, after3, after4, after5, after6 = (then(row) for row in range(7))
    spread_first = spread_row(0)

    @lang.device
    def take_packed(shared, place, thread):
        """-> A's rows of a packed stage"""
        packed.wait_full(shared + cfg.packed_barriers, place)
        return load_rows(placeholders(), Reader(shared + place.stage * cfg.stage_bytes, thread))

    @lang.device
    def first_fragments(rows):
        """-> those of the step's k16 row 0"""
        return pin(spread_first(rows, 0), 0)

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
        """steps: at least 1, since a first stage is waited for in any case (``kernel``, "Sizes");
        so ``begun`` is True at the end."""
        packed_place, expanded_place = places.packed, places.expanded
        leader = thread.lane == 0
        sums, a6, a7 = zero(), no_fragments(), no_fragments()
        rows = take_packed(shared, packed_place, thread)
        a0 = first_fragments(rows)
        held, begun = expanded_place, False
        while steps != 0:
            descriptor = open_expanded(shared, expanded_place)
            sums, a1 = after0(sums, a0, a7, rows, descriptor)
            keep_fragments(a6, 0)
            give_back(shared, held, leader and begun)
            sums, a2 = after1(sums, a1, a0, rows, descriptor)
            sums, a3 = after2(sums, a2, a1, rows, descriptor)
            sums, a4 = after3(sums, a3, a2, rows, descriptor)
            held, expanded_place = expanded_place, expanded.advance(expanded_place)
            descriptor = open_expanded(shared, expanded_place)
            sums, a5 = after4(sums, a4, a3, rows, descriptor)
            give_back(shared, held, leader)
            # Behind the last step: its own stage once more, for nothing; a branch would cost every
            # step. So the stage is not given back before this load.
            upcoming = packed.advance(packed_place) if steps != 1 else packed_place
            next_rows = take_packed(shared, upcoming, thread)
            sums, a6 = after5(sums, a5, a4, rows, descriptor)
            sums, a7 = after6(sums, a6, a5, rows, descriptor)
            sums = start(sums, a7, descriptor + 3 * ROW_DESCRIPTORS)
            give_back_packed(shared, packed_place, leader)
            rows, packed_place, steps = next_rows, packed.advance(packed_place), steps - 1
            # Redundant: ``after6`` has waited for product 5, and without these two lines ptxas 13.5
            # keeps its promises as well (no spills, no wgmma that waits for another).
            wait_for_all_but_two()
            keep_fragments(a5, 0)
            a0 = first_fragments(rows)
            held, expanded_place, begun = expanded_place, expanded.advance(expanded_place), True
        wait_for_all()
        keep_fragments(a6, 0)
        keep_fragments(a7, 0)
        give_back(shared, held, leader and begun)
        return Places(packed_place, expanded_place), keep(sums, 0)

    return lang.namespace("multiply", multiply_steps=multiply_steps)
