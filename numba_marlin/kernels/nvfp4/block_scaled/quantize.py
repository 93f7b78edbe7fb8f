"""The block-scaled kernel's (``block_scaled``) own quantiser: rows of 32 fp32 numbers in the
registers of four lanes -> codes and scales of NVFP4, MXFP4 or MXFP8.

Bit for bit ``quantizers.operands.quantize_blocks``, the same operations on float32 in the same
order. A *block* is a scale block here, columns of a row of D that share a scale: 16 (NVFP4) or 32
(MX). Scale of an NVFP4 block: its largest magnitude times ``sixth`` (``finish``), rounded to e4m3;
codes: numbers times inverse / scale, rounded to e2m1. Scale of an MX block: a power of two from the
exponent of its largest magnitude; codes: numbers / scale, rounded. Magnitudes are compared as bits,
which have the same order.

Lane 4 g + t has columns 8 v + 2 t and the next one, v = 0 .. 3, of 32: of an NVFP4 block four
numbers, of an MX block eight; two shuffles give all four lanes of a row the largest magnitude.
Hopper has no conversion to e2m1. Its numbers are multiples of a *step*, which depends on the
exponent e:

    numbers           e    step, 2**(e - 1)
    below 2           0    1/2
    2 and 3           1    1
    4 and 6           2    2

The last bit of 2**(22 + e) as an fp32 is worth one step. So adding 2**(22 + e) to a number rounds
it to a multiple of its step, once and to nearest even, and leaves the count of steps in the low
bits: with e = 1, 3.2 + 2**23 is 2**23 + 3, three steps of 1 (``e2m1_code`` goes on).

Codes of v = 0 .. 3 are then exchanged among the four lanes, so that lane t has all of v = t, 8
codes, 4 bytes (FP8: 8), and the four lanes write 16 (32) contiguous bytes of a row.
"""

from numba_marlin.kernels.language.tuples import numbered_each

ELEMENTS = {"nvfp4": "e2m1", "mxfp4": "e2m1", "mxfp8-e4m3": "e4m3", "mxfp8-e5m2": "e5m2"}
# 6, 448, 57344 as float32
LARGEST_BITS = {"e2m1": 0x40C00000, "e4m3": 0x43E00000, "e5m2": 0x47600000}
ONE_BITS, EXPONENT = 0x3F800000, 0x7F800000
STEPS = 22 << 23  # what makes 2**e into 2**(22 + e)


def power_offset(element, rounding):
    """What is subtracted from the bits of a block's largest magnitude (float32); the exponent field
    of the difference, bits 23 on, then is the scale's e8m0 code, 127 + its power of two. rounding
    "floor": the scale is 2**(exponent of the magnitude - exponent of the largest element), and what
    is too large saturates; "ceil": it is the least power of two for which nothing is too large.

    Of e2m1, whose largest element is 6 = 1.5 * 2**2, with a largest magnitude of 7 = 1.75 * 2**2:
    "floor" gives 2**0 (7 becomes 6), "ceil" gives 2**1 (7 / 2 = 3.5). Subtracting the largest
    element's bits, less 0x7FFFFF, rounds the quotient's power of two up: 7 is above 6 * 2**0."""
    largest = LARGEST_BITS[element]
    return (largest & ~0x7FFFFF if rounding == "floor" else largest - 0x7FFFFF) - ONE_BITS


def quantize_verbs(lang, config):
    """-> namespace with ``put_rows(values, at)``: all of a thread's values of 16 rows, finished;
    and the records ``RowsAt`` and ``RowAt``."""
    ptx, uint16, uint32, uint64, float32 = (
        lang.ptx,
        lang.uint16,
        lang.uint32,
        lang.uint64,
        lang.float32,
    )
    # other results make these functions too and do not call them: any format will do
    result = config.result if config.kind == "scaled" else "nvfp4"
    element = ELEMENTS[result]
    two_blocks = result == "nvfp4"  # in 32 columns
    pair_bytes = 1 if element == "e2m1" else 2  # of two codes, a lane's of a v
    offset = power_offset(element, config.rounding)

    # addresses in D: of the tile's first code of a row, 0 for a row that D does not have; of the
    # row's first four scales
    RowAt = lang.record("RowAt", "codes scales")

    # rows g and g + 8; first_block: number of the tile's first block along D's columns; left: how
    # many columns D has from the tile's first on (not the lane's); ``finish``'s factors; t: lane
    # mod 4
    RowsAt = lang.record("RowsAt", "above below first_block left factors t")

    pair_codes = {
        "e4m3": ptx.cvt_rn_satfinite_e4m3x2_f32,
        "e5m2": ptx.cvt_rn_satfinite_e5m2x2_f32,
    }.get(element)
    # prmt: digit d from the right says where byte d comes from, 0 .. 3 of the first operand, 4 .. 7
    # of the second. Both low halves, both high halves; bytes 0 and 2 of the first, each below the
    # same of the second; bytes 1 and 3 likewise.
    low_halves, high_halves = ptx.prmt_b32(selector=0x5410), ptx.prmt_b32(selector=0x7632)
    even_bytes, odd_bytes = ptx.prmt_b32(selector=0x6240), ptx.prmt_b32(selector=0x7351)

    # scales

    @lang.device
    def magnitude(v):
        return ptx.bits_of_f32(v) & 0x7FFFFFFF

    @lang.device
    def largest_of(a, b, c, d):
        return max(max(magnitude(a), magnitude(b)), max(magnitude(c), magnitude(d)))

    @lang.device
    def among_lanes(bits):
        """The largest of four lanes, those of a row."""
        bits = max(bits, ptx.shfl_sync_bfly(bits, 1))
        return max(bits, ptx.shfl_sync_bfly(bits, 2))

    @lang.device
    def factor_of(scale, inverse):
        return inverse * ptx.rcp_rn_f32(scale) if scale != float32(0) else float32(0)

    @lang.device
    def e4m3_scales(x, inverse, sixth):
        """Two blocks of 16 -> (both codes, the second in the high byte; a factor each)"""
        # their largest magnitudes
        first, second = (
            ptx.f32_of_bits(among_lanes(largest_of(x[0], x[1], x[2], x[3]))),
            ptx.f32_of_bits(among_lanes(largest_of(x[4], x[5], x[6], x[7]))),
        )
        codes = ptx.cvt_rn_satfinite_e4m3x2_f32(first * sixth, second * sixth)
        scales = ptx.cvt_rn_f16x2_e4m3x2(codes)
        return (
            uint32(codes),
            factor_of(ptx.cvt_f32_f16_low(scales), inverse),
            factor_of(ptx.cvt_f32_f16_high(scales), inverse),
        )

    @lang.device
    def power_scales(x, inverse, sixth):
        """One block of 32 -> (its code, its factor twice)"""
        bits = among_lanes(
            max(largest_of(x[0], x[1], x[2], x[3]), largest_of(x[4], x[5], x[6], x[7]))
        )
        # e8m0: code c is 2**(c - 127), and the factor, 2**(127 - c), has the exponent 254 - c. At
        # most 253, so that the factor is a normal number.
        code = min((bits - offset) >> 23, 253) if bits >= offset else 0
        factor = ptx.f32_of_bits((254 - code) << 23)
        return code, factor, factor

    scales_of = e4m3_scales if two_blocks else power_scales

    # codes

    @lang.device
    def e2m1_code(v):
        bits = ptx.bits_of_f32(v)
        size = ptx.min_f32(ptx.f32_of_bits(bits & 0x7FFFFFFF), float32(6))
        binade = ptx.bits_of_f32(ptx.max_f32(size, float32(1))) & EXPONENT
        steps = ptx.bits_of_f32(size + ptx.f32_of_bits(binade + STEPS)) - (binade + STEPS)
        # Code = steps + 2 e, and (binade >> 22) - 2 * 127 is 2 e, binade being e + 127 from bit 23
        # on. 3: 3 steps of 1, e = 1, code 5. 5.5: 2.75, rounded 3, steps of 2, e = 2, code 7, which
        # is 6. What rounds up to the next binade gets its first code: 3.75 is 4 steps of 1, code 6,
        # which is 4. Then the sign.
        return (steps + ((binade >> 22) - 2 * 127)) | ((bits >> 28) & 8)

    @lang.device
    def nibbles(a, b):
        return e2m1_code(a) | (e2m1_code(b) << 4)

    @lang.device
    def word_of(x, first, second):
        """A byte for each v."""
        lower = nibbles(x[0] * first, x[1] * first) | (nibbles(x[2] * first, x[3] * first) << 8)
        upper = nibbles(x[4] * second, x[5] * second) | (nibbles(x[6] * second, x[7] * second) << 8)
        return lower | (upper << 16)

    @lang.device
    def words_of(x, first, second):
        """Two bytes for each v."""
        lower = uint32(pair_codes(x[0] * first, x[1] * first)) | (
            uint32(pair_codes(x[2] * first, x[3] * first)) << 16
        )
        upper = uint32(pair_codes(x[4] * second, x[5] * second)) | (
            uint32(pair_codes(x[6] * second, x[7] * second)) << 16
        )
        return lower, upper

    @lang.device
    def exchange_bytes(word, t):
        """Byte v of lane t -> byte t of lane v, a 4 x 4 transposition: first lanes 1 apart exchange
        two bytes each, then lanes 2 apart."""
        other = ptx.shfl_sync_bfly(word, 1)
        pairs = even_bytes(word, other) if t % 2 == 0 else odd_bytes(other, word)
        opposite = ptx.shfl_sync_bfly(pairs, 2)
        return low_halves(pairs, opposite) if t < 2 else high_halves(opposite, pairs)

    @lang.device
    def exchange_halves(words, t):
        """Half-word v of lane t -> half-word t of lane v."""
        even = t % 2 == 0
        # v = 0, 2 or 1, 3
        kept = low_halves(words[0], words[1]) if even else high_halves(words[0], words[1])
        given = ptx.shfl_sync_bfly(
            high_halves(words[0], words[1]) if even else low_halves(words[0], words[1]),
            1,
        )
        first = low_halves(kept, given) if even else low_halves(given, kept)
        second = high_halves(kept, given) if even else high_halves(given, kept)
        below = t < 2
        opposite = ptx.shfl_sync_bfly(second if below else first, 2)
        return (first, opposite) if below else (opposite, second)

    @lang.device
    def put_word(address, x, first, second, t):
        word = exchange_bytes(word_of(x, first, second), t)
        if address != 0:
            ptx.st_global_b32(address + 4 * t, word)

    @lang.device
    def put_words(address, x, first, second, t):
        words = exchange_halves(words_of(x, first, second), t)
        if address != 0:
            ptx.st_global_v2_b32(address + 8 * t, words)

    put_codes = put_word if pair_bytes == 1 else put_words

    # pieces

    def put_piece(piece):
        """32 columns of rows g and g + 8."""
        column, codes_before = 32 * piece, 16 * pair_bytes * piece
        blocks_before = (2 if two_blocks else 1) * piece

        @lang.device
        def put_row(x, row, at, storing_t):
            """x: the lane's 8 numbers of the row; storing_t: t of the lane that stores scales"""
            # scale codes; factors of v = 0, 1 and of v = 2, 3
            codes, first, second = scales_of(x, at.factors.inverse, at.factors.sixth)
            exists = row.codes != 0 and column + 8 * at.t < at.left
            put_codes(row.codes + codes_before if exists else uint64(0), x, first, second, at.t)
            if at.t == storing_t and row.codes != 0 and at.left > column:
                block = at.first_block + blocks_before
                address = row.scales + (uint64(block // 4) * 512 + block % 4)
                if two_blocks:
                    both = at.left > column + 16
                    ptx.st_global_b16(address, uint16(codes if both else codes & 0xFF))
                else:
                    ptx.st_global_b8(address, uint16(codes))

        @lang.device
        def put(v, at):
            above = (v[0], v[1], v[4], v[5], v[8], v[9], v[12], v[13])
            below = (v[2], v[3], v[6], v[7], v[10], v[11], v[14], v[15])
            put_row(above, at.above, at, 0)
            put_row(below, at.below, at, 1)

        return put

    # a lane's values of 16 rows, 16 of them in a piece: two rows of 8
    put_rows = numbered_each(lang, config.d_tile_n // 2, 16, put_piece)
    return lang.namespace("quantize", put_rows=put_rows, RowAt=RowAt, RowsAt=RowsAt)
