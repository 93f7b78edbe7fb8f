"""From NVFP4 codes and scales to fp16, exactly, and the role of the block-scaled kernel
(``block_scaled``) that does so for B.

*A number.* e2m1's exponent and significand, moved to bits 9 to 11 of an fp16, *are* the number
times 2**-14, its subnormal one included, and its sign goes to bit 15: all of it in the upper byte.
So four codes of a word are put into the bytes of a register together, by one or two shifts and two
logical operations, and two more take them apart into pairs of fp16: 5 operations for the odd
nibbles of a word and 6 for the even ones, 11 for 8 numbers. Times its scale, an fp16 as well, that
is a multiple of 2**-24 with 6 significant bits, below 1/4: exact, since neither ``mul.f16x2`` nor
wgmma flushes subnormal numbers. The 2**-14 of both operands are taken back with alpha.

*The order of k.* A row (of A or of B) in a packed stage, 128 of k, is four *shares* of 16 bytes;
share t = 0 .. 3 has k from 32 t to 32 t + 31, two scale blocks: four words j = 0 .. 3 of eight
nibbles i = 0 .. 7 (0 is the lowest),

    nibble i of word j of share t:    k = 128 step + 32 t + 8 j + i

wgmma takes 16 of k at a time, a *k16 slice*, eight in a packed step. As a sum has any order, which
k those 16 are is free, as long as A's and B's are the same. In wgmma's fragment of A, lane 4 g + t
holds positions 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of a slice. So these are given to share t: a lane
then loads 16 bytes of a row, and all that it expands from them is for its own registers, without a
shuffle; B is written in the same order, which costs nothing. Slice 2 j + o, o = 0, 1, has from word
j of every share the four nibbles of one parity, in positions 2 t + e + 8 h of its 16:

    position 2 t + e + 8 h of k16 slice 2 j + o:    i = (1 - o) + 2 h + 4 e      (o, h, e = 0, 1)

that is, odd nibbles first: (1, 5) and (3, 7), then even ones: (0, 4) and (2, 6). Words 0 and 1 are
a share's first scale block, 2 and 3 its second: so slices 0 to 3 are scale blocks 0, 2, 4, 6 of the
step's eight, B's first expanded stage, and slices 4 to 7 are 1, 3, 5, 7, its second.

*Where a number stands in an expanded stage.* Position p = 0 .. 15 of k16 slice q = 0 .. 7 of row r
of B, packed step s: in expanded stage 2 s + q div 4, chunk 2 (q mod 4) + p div 8 of its row (16
bytes, 8 numbers), so in the 128-byte swizzle at byte

    128 r + 16 ((2 (q mod 4) + p div 8) ^ (r mod 8)) + 2 (p mod 8)

*The price* (256 x 128 tile, cycles of an SM for 128 of k; modelled):

    tensor cores        256 * 128 * 128 multiply-adds, 2048 a cycle                           2048
    integer units       (256 + 128) * 128 numbers, 2 operations each at most (11 for 8 are    1536
                        1056 cycles; the rest: addresses, scales), 64 a cycle
    issue slots         3 instructions for a number at most (those 2; half a multiply; a      1152
                        quarter for loads and stores), 4 * 32 a cycle
    shared memory       128 bytes a cycle: wgmma reads expanded B once for each of the tile's 1712
                        four m64 blocks, 131072 bytes; it is written once, 32768; packed codes,
                        24576, and scales, 3072, are written and read

so the tensor cores should remain the limit, with little to spare; what came of it stands in
experiments/11_block_scaled. Were both operands expanded into shared memory, A's 65536 bytes,
written and read, would make that 2736: one operand must go through registers, and it is the larger
part of the tile, A, whose fragment a lane can expand from what it loaded itself.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.nvfp4.block_scaled.config import (
    ROW_BYTES,
    SCALE_BYTES,
    SCALE_ROWS,
    WARPGROUP_THREADS,
)
from numba_marlin.kernels.nvfp4.schedule import NO_TILE

AND_OR = (0xF0 & 0xCC) | 0xAA  # lop3 table of (a & b) | c
SIGNS, MAGNITUDES, UPPER_BYTES = 0x80808080, 0x0E0E0E0E, 0xFF00FF00
# prmt: digit d from the right says where byte d of the result comes from, 0 .. 3 of the first
# operand, 4 .. 7 of the second: bytes 0 and 2 each above a byte of the second
EVEN_BYTES_UP = 0x2404
E2M1_POWER = 14  # a code's fp16 is its number times 2**-E2M1_POWER


def number_verbs(lang):
    """-> namespace of device functions: ``odd_nibbles(word)`` -> ``Pairs``, two registers of two
    fp16 each, numbers times 2**-14: first nibbles 1 and 5, second nibbles 3 and 7;
    ``even_nibbles(word)``: 0 and 4, 2 and 6. (First and second: h = 0 and 1 of the docstring.)"""
    ptx = lang.ptx
    and_or, shift_bytes = ptx.lop3(table=AND_OR), ptx.prmt_b32(selector=EVEN_BYTES_UP)
    Pairs = lang.record("Pairs", "first second")

    @lang.device
    def pairs_from(signs, magnitudes):
        """Of four codes, each the upper byte of an fp16, those in bytes 0 and 2, and 1 and 3."""
        four = and_or(signs, SIGNS, magnitudes & MAGNITUDES)
        return Pairs(shift_bytes(four, 0), four & UPPER_BYTES)

    @lang.device
    def odd_nibbles(word):
        return pairs_from(word, word >> 3)

    @lang.device
    def even_nibbles(word):
        return pairs_from(word << 4, word << 1)

    return lang.namespace("numbers", odd_nibbles=odd_nibbles, even_nibbles=even_nibbles)


def expand_verbs(lang, config, schedule, packed, expanded):
    """packed, expanded: pipelines of both kinds of stages. -> ``expand_tiles(shared, sizes)``, for
    the 128 threads of a warpgroup: each takes a row of B. (Where tile_n is 64, the upper 64 threads
    load a row as well and store nothing.)

    ``flip`` is what the byte offset of a 16-byte chunk in a row is xored with: the swizzle of that
    row. Chunk c of the row is at its address + (flip ^ 16 c)."""
    ptx, uint16 = lang.ptx, lang.uint16
    cfg = lang.constants(config)
    numbers = number_verbs(lang)
    # low, high: f16x2 whose halves are both the low, both the high half of their argument
    times, low, high = ptx.mul_f16x2, ptx.both_low_f16x2, ptx.both_high_f16x2

    # of a row in a packed step: its four shares, four words each; and of each share the scales of
    # its two scale blocks as a pair of fp16, the first in the low half
    RowStep = lang.record("RowStep", "shares scale_pairs")

    @lang.device
    def scales_of(codes):
        """Four e4m3 codes of a 32-bit register -> two f16x2"""
        return (
            ptx.cvt_rn_f16x2_e4m3x2(uint16(codes & 0xFFFF)),
            ptx.cvt_rn_f16x2_e4m3x2(uint16(codes >> 16)),
        )

    @lang.device
    def put_pair(target, flip, pairs0, pairs1, pairs2, pairs3, scales):
        """A k16 slice of one row of B: two pairs of fp16 from a word of each share; the first pairs
        of all four shares are its chunk of positions 0 .. 7, the second of 8 .. 15."""
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
        """A word of each of the four shares: two k16 slices."""
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

    def expand_half(which, scale_of):
        """-> device function (address of an expanded stage, row of B in the tile, ``RowStep``) that
        expands scale block ``which``, 0 or 1, of each share: its first words fill chunks 0 to 3 of
        the row in the expanded stage, its second words 4 to 7."""
        first, second = 2 * which, 2 * which + 1

        @lang.device
        def put_row(stage, own_row, row):
            # 128-byte swizzle: 16-byte chunk ^ row mod 8
            target, flip = stage + own_row * 128, (own_row & 7) << 4
            q, s = row.shares, row.scale_pairs
            scales = (scale_of(s[0]), scale_of(s[1]), scale_of(s[2]), scale_of(s[3]))
            words = (q[0][first], q[1][first], q[2][first], q[3][first])
            put_chunks(target, flip, words, scales)
            words = (q[0][second], q[1][second], q[2][second], q[3][second])
            put_chunks(target, flip ^ 64, words, scales)

        return put_row

    put_first_half, put_second_half = expand_half(0, low), expand_half(1, high)

    @lang.device
    def load_row(stage, own_row, first_row):
        """-> ``RowStep``; own_row: the thread's, in the tile; first_row: the tile's in B, which
        says where in their 128 rows its scales begin (0 or 64)"""
        # 64-byte swizzle: 16-byte chunk ^ row div 2 mod 4
        address, flip = stage + cfg.b_shared + own_row * ROW_BYTES, (own_row >> 1 & 3) << 4
        scale_row = first_row % SCALE_ROWS + own_row
        # ``nvfp4.load`` has the formula. The term of further 128 rows is always 0: the stage has
        # scales of 128 rows, and a tile of 64 or 128 rows lies within them.
        scales = (
            stage
            + cfg.sfb_shared
            + scale_row // SCALE_ROWS * SCALE_BYTES
            + scale_row % 32 * 16
            + scale_row % SCALE_ROWS // 32 * 4
        )
        s01 = scales_of(ptx.ld_shared_b32(scales))
        s23 = scales_of(ptx.ld_shared_b32(scales + SCALE_BYTES // 2))
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
    def stage_at(shared, expanded_place):
        return shared + cfg.expanded_at + expanded_place.stage * cfg.expanded_bytes

    @lang.device
    def publish(shared, expanded_place, lane):
        """Ordinary stores become visible to wgmma, then the warp arrives on the full barrier: four
        warps fill a stage, each arrives for itself, and no bytes are expected."""
        ptx.fence_proxy_async_shared()
        ptx.bar_warp_sync(ALL_LANES)
        if lane == 0:
            ptx.mbarrier_arrive(expanded.full(shared + cfg.expanded_barriers, expanded_place))

    @lang.device
    def expand_tiles(shared, sizes):
        """State: packed_place, expanded_place, tile_place: in the rings, two expanded stages to a
        packed one; number: the tile; step: packed steps of the tile that are done; own_row: the
        thread's row of B, in the tile.

        The packed stage is given back behind the first of its two expanded stages though it is in
        registers (``row``) before: a warp sync must show that all lanes have loaded their rows, and
        ``publish`` has one. So a full ring of expanded stages also holds a packed stage here, which
        costs nothing, since the mma warps hold it longer (``kernel``, "What guards a stage")."""
        own_row = ptx.tid_x() % WARPGROUP_THREADS
        lane = own_row % 32
        barriers, expanded_barriers = shared + cfg.packed_barriers, shared + cfg.expanded_barriers
        steps = schedule.counts(sizes).steps
        packed_place, expanded_place = packed.consumer_start(), expanded.producer_start()
        number, tile_place = schedule.fetch_together(shared, schedule.start(), lane)
        while number != NO_TILE:
            first_row, step = schedule.corner(number, sizes).column, 0
            while step < steps:
                packed.wait_full(barriers, packed_place)
                stage = shared + packed_place.stage * cfg.stage_bytes
                row = load_row(stage, own_row % cfg.tile_n, first_row)
                expanded.wait_empty(expanded_barriers, expanded_place)
                if own_row < cfg.tile_n:
                    put_first_half(stage_at(shared, expanded_place), own_row, row)
                publish(shared, expanded_place, lane)
                # all lanes have loaded their row: they met in ``publish``
                if lane == 0:
                    packed.release(barriers, packed_place)
                packed_place, expanded_place = (
                    packed.advance(packed_place),
                    expanded.advance(expanded_place),
                )
                expanded.wait_empty(expanded_barriers, expanded_place)
                if own_row < cfg.tile_n:
                    put_second_half(stage_at(shared, expanded_place), own_row, row)
                publish(shared, expanded_place, lane)
                expanded_place = expanded.advance(expanded_place)
                step += 1
            number, tile_place = schedule.fetch_together(shared, tile_place, lane)

    return lang.namespace("expand", expand_tiles=expand_tiles)
