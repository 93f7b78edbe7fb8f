"""Device verbs from the words of block-scaled FP4 to 16-bit floats: ``formats.fp4_words`` says how
the bits stand, and why.

``fp4_verbs(lang, dtype)`` -> namespace of device functions: ``expand(word)``: the four registers of
a word of codes, code * 2**-14 (float16) or * 2**-126 (bfloat16), register r of codes r (low half)
and r + 4 (high half), which are the elements of W that Marlin's nibbles of these numbers are;
``other_pair(word)``: a word of scales, turned so that its second pair is where the first was;
``scale_pair(word)``: the first pair, to multiply registers of codes by: of float16 the scale that
is stored, of bfloat16 that times 2**112. Their product is code * scale * 2**-14, exactly.

Where the bits of the codes stand: register r is (w shifted ^ w shifted) & mask, where a half of the
mask has the sign and the three other bits of an e2m1 code where a 16-bit float has its sign, the
last bits of its exponent and the first of its significand:

    dtype     mask        register 0   1        2                    3
    float16   0x8e008e00  w            w << 8   (w >> 3) ^ (w << 7)  (w << 5) ^ (w << 15)
    bfloat16  0x81c081c0  w            w << 3   (w >> 3) ^ (w << 1)  (w << 2) ^ (w << 6)

Instructions for a word of codes: 8 to float16, 9 to bfloat16, whose exponent reaches over a byte's
border.
"""

CODES, CODES_OF_BYTES, UPPER_BYTES = 0x8E008E00, 0x8E8E8E8E, 0xFF00FF00
WIDE_CODES = 0x81C081C0
SCALE_PAIR, WIDE_SCALE_PAIR, WIDE_EXPONENT = 0x7F807F80, 0x0FF00FF0, 0x70007000
LOWER_BYTES_UP, ROTATE_BY_8 = 0x2404, 0x2103  # prmt selectors; byte 4 is a 0


def fp4_verbs(lang, dtype):
    ptx = lang.ptx
    lower_bytes_up, rotate_by_8 = (
        ptx.prmt_b32(selector=LOWER_BYTES_UP),
        ptx.prmt_b32(selector=ROTATE_BY_8),
    )

    @lang.device
    def expand_float16(word):
        """The last two registers are the upper and the lower bytes of one sum."""
        both = ((word >> 3) ^ (word << 7)) & CODES_OF_BYTES
        return (
            word & CODES,
            (word << 8) & CODES,
            both & UPPER_BYTES,
            lower_bytes_up(both, 0),
        )

    @lang.device
    def expand_bfloat16(word):
        third = ((word >> 3) ^ (word << 1)) & WIDE_CODES
        fourth = ((word << 2) ^ (word << 6)) & WIDE_CODES
        return (
            word & WIDE_CODES,
            (word << 3) & WIDE_CODES,
            third,
            fourth,
        )

    @lang.device
    def other_pair(word):
        return rotate_by_8(word, 0)

    @lang.device
    def float16_pair(word):
        return word & SCALE_PAIR

    @lang.device
    def bfloat16_pair(word):
        return ((word >> 3) & WIDE_SCALE_PAIR) | WIDE_EXPONENT

    expand, scale_pair = {
        "float16": (expand_float16, float16_pair),
        "bfloat16": (expand_bfloat16, bfloat16_pair),
    }[dtype]
    return lang.namespace("fp4", expand=expand, other_pair=other_pair, scale_pair=scale_pair)
