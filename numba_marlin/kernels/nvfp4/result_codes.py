"""Codes and scales of a block-scaled D, of fp32 numbers in a lane's registers: for the kernels of
two block-scaled operands. Which lane has which numbers is their own affair
(``block_scaled.quantize``, ``tcgen05.quantize``).

Bit for bit ``quantizers.operands.quantize_blocks``, the same operations on float32 in the same
order. A *block* is a scale block, columns of a row of D that share a scale: 16 (NVFP4) or 32 (MX).
Scale of an NVFP4 block: its largest magnitude times ``sixth``, rounded to e4m3; codes: numbers
times inverse / scale, rounded to e2m1. Scale of an MX block: a power of two from the exponent of
its largest magnitude; codes: numbers / scale, rounded. Magnitudes are compared as bits, which have
the same order. (inverse: 1 / D's global scale; sixth: inverse / 6.)

e2m1's numbers are multiples of a *step*, which depends on the exponent e:

    numbers           e    step, 2**(e - 1)
    below 2           0    1/2
    2 and 3           1    1
    4 and 6           2    2

The last bit of 2**(22 + e) as an fp32 is worth one step. So adding 2**(22 + e) to a number rounds
it to a multiple of its step, once and to nearest even, and leaves the count of steps in the low
bits: with e = 1, 3.2 + 2**23 is 2**23 + 3, three steps of 1 (``e2m1_code`` goes on). Hopper has no
conversion to e2m1; Blackwell has one (``cvt.rn.satfinite.e2m1x2.f32``), which the PTX machine does
not know yet: its kernel counts steps as well.

Scales lie in 128x4 order, tiles of 128 rows by four blocks, 512 bytes each, those of the same rows
one after the other (``layout.block_scales``).
"""

ELEMENTS = {"nvfp4": "e2m1", "mxfp4": "e2m1", "mxfp8-e4m3": "e4m3", "mxfp8-e5m2": "e5m2"}
# 6, 448, 57344 as float32
LARGEST_BITS = {"e2m1": 0x40C00000, "e4m3": 0x43E00000, "e5m2": 0x47600000}
ONE_BITS, EXPONENT = 0x3F800000, 0x7F800000
STEPS = 22 << 23  # what makes 2**e into 2**(22 + e)


def scale_columns(result):
    """Of D, that share a scale."""
    return 16 if result == "nvfp4" else 32


def codes_per_byte(result):
    return 2 if ELEMENTS.get(result) == "e2m1" else 1


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


def code_verbs(lang, result, rounding):
    """result: one of ELEMENTS. -> namespace of device functions."""
    ptx, uint32, float32 = lang.ptx, lang.uint32, lang.float32
    element = ELEMENTS[result]
    offset = power_offset(element, rounding)
    pair_codes = {
        "e4m3": ptx.cvt_rn_satfinite_e4m3x2_f32,
        "e5m2": ptx.cvt_rn_satfinite_e5m2x2_f32,
    }.get(element)

    # scales

    @lang.device
    def magnitude(v):
        return ptx.bits_of_f32(v) & 0x7FFFFFFF

    @lang.device
    def largest_of(a, b, c, d):
        """Bits of the largest magnitude."""
        return max(max(magnitude(a), magnitude(b)), max(magnitude(c), magnitude(d)))

    @lang.device
    def factor_of(scale, inverse):
        return inverse * ptx.rcp_rn_f32(scale) if scale != float32(0) else float32(0)

    @lang.device
    def e4m3_scales(first, second, inverse, sixth):
        """Largest magnitudes of two blocks -> (both codes, the second in the high byte; a factor
        each)"""
        codes = ptx.cvt_rn_satfinite_e4m3x2_f32(first * sixth, second * sixth)
        scales = ptx.cvt_rn_f16x2_e4m3x2(codes)
        return (
            uint32(codes),
            factor_of(ptx.cvt_f32_f16_low(scales), inverse),
            factor_of(ptx.cvt_f32_f16_high(scales), inverse),
        )

    @lang.device
    def power_scale(bits):
        """Bits of a block's largest magnitude -> (its code, its factor twice)"""
        # e8m0: code c is 2**(c - 127), and the factor, 2**(127 - c), has the exponent 254 - c. At
        # most 253, so that the factor is a normal number.
        code = min((bits - offset) >> 23, 253) if bits >= offset else 0
        factor = ptx.f32_of_bits((254 - code) << 23)
        return code, factor, factor

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
        """FP4: eight numbers, their first four times ``first``, the others times ``second`` -> four
        bytes of two."""
        lower = nibbles(x[0] * first, x[1] * first) | (nibbles(x[2] * first, x[3] * first) << 8)
        upper = nibbles(x[4] * second, x[5] * second) | (nibbles(x[6] * second, x[7] * second) << 8)
        return lower | (upper << 16)

    @lang.device
    def words_of(x, first, second):
        """FP8: the same -> two words of four codes."""
        lower = uint32(pair_codes(x[0] * first, x[1] * first)) | (
            uint32(pair_codes(x[2] * first, x[3] * first)) << 16
        )
        upper = uint32(pair_codes(x[4] * second, x[5] * second)) | (
            uint32(pair_codes(x[6] * second, x[7] * second)) << 16
        )
        return lower, upper

    return lang.namespace(
        "codes_of",
        largest_of=largest_of,
        e4m3_scales=e4m3_scales,
        power_scale=power_scale,
        word_of=word_of,
        words_of=words_of,
    )


def scales_at_verb(lang, result):
    """-> device function (sfd, row, n) -> address of the first four scales of a row of D, which has
    n columns"""
    uint64, columns = lang.uint64, scale_columns(result)

    @lang.device
    def scales_at(sfd, row, n):
        across = (n // columns + 3) // 4
        tile = uint64(row // 128) * across
        return sfd + (tile * 512 + (row % 32 * 16 + row % 128 // 32 * 4))

    return scales_at
