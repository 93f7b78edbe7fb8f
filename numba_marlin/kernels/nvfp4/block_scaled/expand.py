"""From NVFP4 codes and scales to halves, exactly, and the role of the block-scaled kernel
(``block_scaled``) that does so for B.

*A number.* e2m1's exponent and significand, moved to bits 9 to 11 of a half, *are* the number times
2**-14, its subnormal one included, and its sign goes to bit 15: all of it in the upper byte. So
four codes are put into bytes together, by two shifts and two logical operations, and each two of
them become halves by one more: 11 for 8 numbers (with each two put in place on their own 16). Times
the block's scale, a half as well, that is a multiple of 2**-24 with 6 significant bits: exact. The
2**-14 of both operands are taken back with alpha.

*The order of k.* Both operands are put in the same order, which costs nothing and saves every
shuffle. Of 128 of k lane t of four has codes 32 t .. 32 t + 31, one 16-byte load and two blocks:
the first block is multiplied in the first half, the other in the second. A half is four k16 rows of
``wgmma``, two for each word: the first takes the pairs of nibbles (1, 5) and (3, 7), in places (2t,
2t + 1) and (2t + 8, 2t + 9), the other (0, 4) and (2, 6).

*The price, before it was built* (256 x 128 tile, cycles of a multiprocessor for 128 of k;
modelled):

    tensor cores        256 * 128 * 128 / 2048 products a cycle                               2048
    integer units       (256 + 128) * 128 numbers, 2 operations each, 64 lanes a cycle        1536
    issue slots         the same and a multiply for two, loads, stores: 3 a number, 4 * 32    1152
    shared memory       128 bytes a cycle: wgmma reads B 4 times (131 KB), 24 KB packed
                        and 3 KB of scales in and out, 32 KB of expanded B                    1720

so the tensor cores should remain the limit, with little to spare. Were both operands expanded into
shared memory it would be 2500 for that: one of them must go through registers, and it is the larger
part of the tile, A, whose fragment a lane can expand from what it loaded itself.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.dequantize.verbs import AND_OR
from numba_marlin.kernels.nvfp4.block_scaled.config import (
    ROW_BYTES,
    SCALE_BYTES,
    SCALE_ROWS,
    WARPGROUP,
)
from numba_marlin.kernels.nvfp4.block_scaled.schedule import NO_TILE

SIGNS, MAGNITUDES, UPPER_BYTES = 0x80808080, 0x0E0E0E0E, 0xFF00FF00
EVEN_BYTES_UP = 0x2404  # prmt: bytes 0 and 2, each above a byte of the other operand
E2M1_POWER = 14  # a code's half is its number times 2**-E2M1_POWER


def number_verbs(lang):
    """-> namespace of device functions: ``odd_nibbles(word)`` -> ``Pairs``, two registers of halves
    times 2**-14: first nibbles 1 and 5, second nibbles 3 and 7; ``even_nibbles(word)``: 0 and 4, 2
    and 6."""
    ptx = lang.ptx
    and_or, shift_bytes = ptx.lop3(table=AND_OR), ptx.prmt_b32(selector=EVEN_BYTES_UP)
    Pairs = lang.record("Pairs", "first second")

    @lang.device
    def halves_of(signs, magnitudes):
        """Of four codes, each the upper byte of a half, those in bytes 0 and 2, and 1 and 3."""
        four = and_or(signs, SIGNS, magnitudes & MAGNITUDES)
        return Pairs(shift_bytes(four, 0), four & UPPER_BYTES)

    @lang.device
    def odd_nibbles(word):
        return halves_of(word, word >> 3)

    @lang.device
    def even_nibbles(word):
        return halves_of(word << 4, word << 1)

    return lang.namespace("numbers", odd_nibbles=odd_nibbles, even_nibbles=even_nibbles)


def expand_verbs(lang, config, schedule, packed, expanded):
    """packed, expanded: pipelines of both kinds of stages. -> ``expand_tiles(shared, sizes)``, for
    the 128 threads of a warpgroup: each takes a row of B."""
    ptx, uint16 = lang.ptx, lang.uint16
    cfg = lang.constants(config)
    numbers = number_verbs(lang)
    times, low, high = ptx.mul_f16x2, ptx.both_low_f16x2, ptx.both_high_f16x2

    # of a packed step: the shares of lanes 0 to 3, four words each, and of each share the scales of
    # both blocks as a pair of halves
    RowStep = lang.record("RowStep", "shares scale_pairs")

    @lang.device
    def scales_of(word):
        """Four e4m3 codes -> two f16x2"""
        return (
            ptx.cvt_rn_f16x2_e4m3x2(uint16(word & 0xFFFF)),
            ptx.cvt_rn_f16x2_e4m3x2(uint16(word >> 16)),
        )

    @lang.device
    def put_pair(target, flip, pairs0, pairs1, pairs2, pairs3, scales):
        """Two of each of the four lanes' shares: two chunks of 16 bytes, those of one k16 row."""
        ptx.st_shared_v4_b32(
            target + flip,
            (
                times(pairs0.first, scales[0]),
                times(pairs1.first, scales[1]),
                times(pairs2.first, scales[2]),
                times(pairs3.first, scales[3]),
            ),
        )
        ptx.st_shared_v4_b32(
            target + (flip ^ 16),
            (
                times(pairs0.second, scales[0]),
                times(pairs1.second, scales[1]),
                times(pairs2.second, scales[2]),
                times(pairs3.second, scales[3]),
            ),
        )

    @lang.device
    def put_chunks(target, flip, words, scales):
        """A word of each of the four lanes' shares: two k16 rows."""
        put_pair(
            target,
            flip,
            numbers.odd_nibbles(words[0]),
            numbers.odd_nibbles(words[1]),
            numbers.odd_nibbles(words[2]),
            numbers.odd_nibbles(words[3]),
            scales,
        )
        put_pair(
            target,
            flip ^ 32,
            numbers.even_nibbles(words[0]),
            numbers.even_nibbles(words[1]),
            numbers.even_nibbles(words[2]),
            numbers.even_nibbles(words[3]),
            scales,
        )

    def put_half(half, scale_of):
        """-> device function (expanded stage, row number, ``RowStep``) that expands half a
        row's step, 0 or 1: the first words of the four shares fill chunks 0 to 3, the second words
        4 to 7."""
        first, second = 2 * half, 2 * half + 1

        @lang.device
        def put_row(stage, number, row):
            target, flip = stage + number * 128, (number & 7) << 4
            q, s = row.shares, row.scale_pairs
            scales = (scale_of(s[0]), scale_of(s[1]), scale_of(s[2]), scale_of(s[3]))
            words = (q[0][first], q[1][first], q[2][first], q[3][first])
            put_chunks(target, flip, words, scales)
            words = (q[0][second], q[1][second], q[2][second], q[3][second])
            put_chunks(target, flip ^ 64, words, scales)

        return put_row

    put_first_half, put_second_half = put_half(0, low), put_half(1, high)

    @lang.device
    def load_row(stage, number, first_row):
        """-> ``RowStep``; first_row: the tile's in B, which says where its scales begin"""
        address, flip = stage + cfg.b_shared + number * ROW_BYTES, (number >> 1 & 3) << 4
        among = first_row % SCALE_ROWS + number
        own = (
            stage
            + cfg.sfb_shared
            + among // SCALE_ROWS * SCALE_BYTES
            + among % 32 * 16
            + among % SCALE_ROWS // 32 * 4
        )
        s01 = scales_of(ptx.ld_shared_b32(own))
        s23 = scales_of(ptx.ld_shared_b32(own + SCALE_BYTES // 2))
        return RowStep(
            (
                ptx.ld_shared_v4_b32(address + flip),
                ptx.ld_shared_v4_b32(address + (flip ^ 16)),
                ptx.ld_shared_v4_b32(address + (flip ^ 32)),
                ptx.ld_shared_v4_b32(address + (flip ^ 48)),
            ),
            (s01[0], s01[1], s23[0], s23[1]),
        )

    @lang.device
    def stage_at(shared, target):
        return shared + cfg.expanded_shared + target.stage * cfg.expanded_bytes

    @lang.device
    def publish(shared, target, lane):
        """Ordinary stores become visible to wgmma, then the stage is full."""
        ptx.fence_proxy_async_shared()
        ptx.bar_warp_sync(ALL_LANES)
        if lane == 0:
            ptx.mbarrier_arrive(expanded.full(shared + cfg.expanded_barriers, target))

    @lang.device
    def expand_tiles(shared, sizes):
        row_number = ptx.tid_x() % WARPGROUP
        lane = row_number % 32
        barriers, expanded_barriers = shared + cfg.barriers_shared, shared + cfg.expanded_barriers
        steps = schedule.counts(sizes).steps
        place, target = packed.consumer_start(), expanded.producer_start()
        number, following = schedule.fetch_together(shared, schedule.start(), lane)
        while number != NO_TILE:
            first_row, step = schedule.corner(number, sizes).column, 0
            while step < steps:
                packed.wait_full(barriers, place)
                stage = shared + place.stage * cfg.stage_bytes
                row = load_row(stage, row_number % cfg.tile_n, first_row)
                expanded.wait_empty(expanded_barriers, target)
                if row_number < cfg.tile_n:
                    put_first_half(stage_at(shared, target), row_number, row)
                publish(shared, target, lane)
                if lane == 0:
                    packed.release(barriers, place)
                place, target = packed.advance(place), expanded.advance(target)
                expanded.wait_empty(expanded_barriers, target)
                if row_number < cfg.tile_n:
                    put_second_half(stage_at(shared, target), row_number, row)
                publish(shared, target, lane)
                target = expanded.advance(target)
                step += 1
            number, following = schedule.fetch_together(shared, following, lane)

    return lang.namespace("expand", expand_tiles=expand_tiles)
