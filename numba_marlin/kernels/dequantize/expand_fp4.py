"""Device verbs from the words of block-scaled FP4 to 16-bit floats. (``formats.fp4_words`` packs
these words, and says why their bits stand as they do.)

``fp4_verbs(lang, dtype)`` -> namespace of device functions:

``expand(word)``      a word of codes -> four registers of two numbers of ``dtype``: register r has
                      code r in its low half and code r + 4 in its high half, as number * 2**-14
                      (float16) or * 2**-126 (bfloat16), exactly. Code p is the element of W that
                      nibble p of a 4-bit word of Marlin at this place is (``lookup``, ``general``)
``scale_pair(word)``  a word of scales -> the first pair of its two, to multiply registers by: the
                      stored scales (float16), or these * 2**112 (bfloat16; a stored 0 is not read
                      as 0, but all its codes are 0). Code times scale is then number * stored
                      scale * 2**-14 in both types, exactly
``other_pair(word)``  a word of scales, rotated so that its second pair is where the first was

**Bits of codes.** A code is e2m1: bit 3 is the sign, bits 2 and 1 are the exponent, bit 0 is the
significand. In a half of a register they are the sign, the last two bits of the exponent and the
first bit of the significand: the mask. Register r of word w is one of these, & mask:

    dtype     mask        register 0   1        2                    3
    float16   0x8e008e00  w            w << 8   (w >> 3) ^ (w << 7)  (w << 5) ^ (w << 15)
    bfloat16  0x81c081c0  w            w << 3   (w >> 3) ^ (w << 1)  (w << 2) ^ (w << 6)

The masks differ, so the types take different bits of a word: weights are packed for one of them,
``nm.pack(q, dtype="float16")`` (the default) or ``"bfloat16"``. A plain shift of the mask would not
do for registers 2 and 3, because four copies of the mask do not tile a word. They take each bit
from where there is place, in two shifts, and with it bits of other codes: ``pack`` has stored the
exclusive or with these, which takes them out again. So the bits of w are, with s for bit 3 of a
code and d for its bits 2 to 0,

    code  float16: bits, of which       bfloat16: bits, of which
    0     15, 11-9   s, d               15, 8-6    s, d
    1     7, 3-1     s, d               12, 5-3    s, d
    2     8          s ^ bit 18         14         s ^ bit 18
          14-12      d ^ bits 4-2       11-9       d ^ bits 7-5
    3     0          s ^ bit 10         13         s ^ bit 9
          6-4        d                  2-0        d ^ bits 6-4
    4     31, 27-25  s, d               31, 24-22  s, d
    5     23, 19-17  s, d               28, 21-19  s, d
    6     24         s                  30         s
          30-28      d ^ bits 20-18     27-25      d ^ bits 23-21
    7     16         s ^ bit 26         29         s ^ bit 25
          22-20      d ^ bits 12-10     18-16      d ^ bits 22-20

**Bits of scales.** A scale is eight bits, bits 14 to 7 of a float16. Bits 14-7 and 30-23 of a word
are the first pair (low half, high half), and the same bits of the word rotated to the left by 8 are
the second: bits 6-0 and, as the lowest bit, 31; bits 22-15.

Instructions for a word of codes: 8 to float16, 9 to bfloat16, whose exponent reaches over a byte's
border.
"""

# of the sign and the other three bits of a code in each half; the same, in each byte
CODES, CODES_OF_BYTES = 0x8E008E00, 0x8E8E8E8E
UPPER_BYTES = 0xFF00FF00  # of both halves
WIDE_CODES = 0x81C081C0  # CODES of bfloat16
# Bits 14-7 of halves; bits 11-4, where they are the last five bits of the exponent and the first
# three of the significand of a bfloat16; the three bits above these, set: a factor of 2**112.
SCALE_PAIR, WIDE_SCALE_PAIR, WIDE_EXPONENT = 0x7F807F80, 0x0FF00FF0, 0x70007000
# prmt selectors: a digit says which byte goes to a byte of the result, the highest first. Byte 4 is
# the lowest of the second operand, which is 0 here.
LOWER_BYTES_UP, ROTATE_BY_8 = 0x2404, 0x2103


def fp4_verbs(lang, dtype):
    ptx = lang.ptx
    lower_bytes_up, rotate_by_8 = (
        ptx.prmt_b32(selector=LOWER_BYTES_UP),
        ptx.prmt_b32(selector=ROTATE_BY_8),
    )

    @lang.device
    def expand_float16(word):
        """The last two registers are the upper and the lower bytes of one exclusive or."""
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
