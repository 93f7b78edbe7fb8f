"""The role of the block-scaled kernel (``block_scaled``) that multiplies: A from packed stages into
registers, B from expanded stages, to the tensor cores.

A warpgroup has ``words`` blocks of 64 rows of A, a warp 16 rows of each, a lane rows g and g + 8 of
those, of which it expands share t (``block_scaled_expand`` says which codes these are). ``sums``: a
tuple with the accumulators of each m64 block. A k16 row is one wgmma group; the next row is
expanded while it is multiplied. The next packed stage is waited for and loaded into registers of
its own in the middle of the one before, and the first row of it expanded while two products are
under way: whatever stands between two products, the tensor cores of both warpgroups, which keep in
step, wait for. A packed stage is given back when the next is in registers, an expanded one when the
first product of the next is under way.

Tried (experiments/11_block_scaled has the times): two products in flight everywhere, with a third
set of registers, and with the load brought forward as well, when they do not fit and the assembler
serialises; the load beside the last product, or between; giving the packed stage back at once, in a
branch; asking for expanded stages earlier.
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

# 128-byte swizzle; eight rows are 1024 bytes apart (layout.wgmma.Descriptor)
DESCRIPTOR_HIGH = Descriptor(0, SWIZZLE_PATTERN_BYTES).encode()
ROW_DESCRIPTORS = 2  # 32 bytes, a k16 row, in the descriptor's units of 16


def multiply_verbs(lang, config, packed, expanded):
    """-> namespace with ``multiply_steps(shared, places, steps, thread) -> (places, sums)``;
    places: those in the rings of packed and of expanded stages. When it returns nothing is in
    flight and all stages are given back. Records are those of ``kernel``."""
    ptx, uint64 = lang.ptx, lang.uint64
    cfg = lang.constants(config)
    numbers = number_verbs(lang)
    words, accumulators = config.words, config.accumulators
    times, low, high = ptx.mul_f16x2, ptx.both_low_f16x2, ptx.both_high_f16x2
    wgmma = ptx.wgmma_m64k16_f32_f16_rs(n=config.tile_n)
    keep_sums, keep_fragment = ptx.keep_f32(width=accumulators), ptx.keep_u32(width=4)
    wait_for_all_but_one, wait_for_all_but_two, wait_for_all = (
        ptx.wgmma_wait_group(n=1),
        ptx.wgmma_wait_group(n=2),
        ptx.wgmma_wait_group(n=0),
    )

    Places = lang.record("Places", "packed expanded")

    # what a lane loads of an m64 block: its 16-byte shares of rows g and g + 8, their two scales
    # each
    Share = lang.record("Share", "above below scales scales_below")

    # of a packed stage in shared memory: where it begins, and who reads it
    Where = lang.record("Where", "stage thread")

    zero = repeat(lang, words, ptx.zero_f32(width=accumulators))
    multiply = together(
        lang,
        words,
        1,
        lang.device(lambda sums, a, descriptor: (wgmma(sums[0], a[0], descriptor, 1),)),
    )
    keep = map_each(lang, words, 1, lang.device(lambda one, where: (keep_sums(one[0]),)))
    no_fragments = repeat(lang, words, lang.device(lambda: keep_fragment((0, 0, 0, 0))))
    pin = map_each(lang, words, 1, lang.device(lambda one, where: (keep_fragment(one[0]),)))
    keep_fragments = for_each(lang, words, 1, lang.device(lambda one, where: keep_fragment(one[0])))

    # A

    def load_block(block):
        """-> device function (nothing, where) -> (``Share`` of m64 block ``block``,)"""

        @lang.device
        def load(nothing, where):
            stage, thread = where
            g, t = thread.lane // 4, thread.lane % 4
            row = (thread.warpgroup * cfg.words + block) * 64 + thread.warp * 16 + g
            address = stage + row * ROW_BYTES + t * 16
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

    load_rows = numbered(lang, words, 1, load_block)
    nothing = repeat(lang, words, lang.device(lambda: 0))

    def spread_row(step):
        """-> device function (what ``load_rows`` returned, 0) -> A's fragments of k16 row ``step``
        of the packed stage's eight"""
        word = step // 2
        halves_of = numbers.odd_nibbles if step % 2 == 0 else numbers.even_nibbles
        scale_of = low if step < 4 else high

        @lang.device
        def spread(rows, where):
            share = rows[0]
            s, s_below = scale_of(share.scales), scale_of(share.scales_below)
            upper, lower = halves_of(share.above[word]), halves_of(share.below[word])
            return (
                (
                    times(upper.first, s),
                    times(lower.first, s_below),
                    times(upper.second, s),
                    times(lower.second, s_below),
                ),
            )

        return map_each(lang, words, 1, spread)

    # products

    @lang.device
    def start(sums, a, descriptor):
        ptx.wgmma_fence()
        sums = multiply(sums, a, descriptor)
        ptx.wgmma_commit_group()
        return sums

    @lang.device
    def descriptor_of(shared, target):
        """The shuffle tells the assembler that all lanes agree: descriptors then stay in uniform
        registers."""
        stage = shared + cfg.expanded_shared + target.stage * cfg.expanded_bytes
        return uint64((ptx.shfl_sync_idx(stage, 0) & 0x3FFFF) >> 4) | DESCRIPTOR_HIGH

    def then(row):
        """-> device function (sums, a, last, rows, descriptor) -> (sums, the next row's fragments):
        multiplies k16 row ``row`` by what ``a`` holds; expands the next row when the product of
        ``last``, a row back, has ended."""
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
        packed.wait_full(shared + cfg.barriers_shared, place)
        return load_rows(nothing(), Where(shared + place.stage * cfg.stage_bytes, thread))

    @lang.device
    def first_row(rows):
        """-> the fragments of its first k16 row"""
        return pin(spread_first(rows, 0), 0)

    @lang.device
    def open_expanded(shared, target):
        expanded.wait_full(shared + cfg.expanded_barriers, target)
        return descriptor_of(shared, target)

    @lang.device
    def give_back(shared, target, leader):
        if leader:
            expanded.release(shared + cfg.expanded_barriers, target)

    @lang.device
    def give_back_packed(shared, place, leader):
        ptx.bar_warp_sync(ALL_LANES)
        if leader:
            packed.release(shared + cfg.barriers_shared, place)

    @lang.device
    def multiply_steps(shared, places, steps, thread):
        place, target = places.packed, places.expanded
        leader = thread.lane == 0
        sums, a6, a7 = zero(), no_fragments(), no_fragments()
        rows = take_packed(shared, place, thread)
        a0 = first_row(rows)
        before, begun = target, False
        while steps != 0:
            descriptor = open_expanded(shared, target)
            sums, a1 = after0(sums, a0, a7, rows, descriptor)
            keep_fragments(a6, 0)
            give_back(shared, before, leader and begun)
            sums, a2 = after1(sums, a1, a0, rows, descriptor)
            sums, a3 = after2(sums, a2, a1, rows, descriptor)
            sums, a4 = after3(sums, a3, a2, rows, descriptor)
            before, target = target, expanded.advance(target)
            descriptor = open_expanded(shared, target)
            sums, a5 = after4(sums, a4, a3, rows, descriptor)
            give_back(shared, before, leader)
            # behind the last step: its own stage once more, for nothing; a branch would cost every
            # step
            upcoming = packed.advance(place) if steps != 1 else place
            next_rows = take_packed(shared, upcoming, thread)
            sums, a6 = after5(sums, a5, a4, rows, descriptor)
            sums, a7 = after6(sums, a6, a5, rows, descriptor)
            sums = start(sums, a7, descriptor + 3 * ROW_DESCRIPTORS)
            give_back_packed(shared, place, leader)
            rows, place, steps = next_rows, packed.advance(place), steps - 1
            wait_for_all_but_two()
            keep_fragments(a5, 0)
            a0 = first_row(rows)
            before, target, begun = target, expanded.advance(target), True
        wait_for_all()
        keep_fragments(a6, 0)
        keep_fragments(a7, 0)
        give_back(shared, before, leader and begun)
        return Places(place, target), keep(sums, 0)

    return lang.namespace("multiply", multiply_steps=multiply_steps)
