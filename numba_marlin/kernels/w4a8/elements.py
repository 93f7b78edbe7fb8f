"""The two types of 8-bit numbers that W4A8 multiplies: how a word of Marlin's becomes bytes of the
type, the product, and its sums as fp32.

Both are exact: a byte is (code - zero) times ``config.unit``, zero 8 without zero points. In s8
that is 16, the nibble in the upper half with its highest bit flipped, or 1 with zero points. In
e4m3 it is 2**-9: the bytes 0 to 15 are the numbers 0 to 15 * 2**-9 (subnormal up to 7, then those
of the least exponent), so that |code - zero|, at most 15, is its own e4m3, and bit 7 is the sign.
With ``offsets`` it is the code, or the code - 15.

Instructions for the 8 weights of a word, the two ``prmt`` that sort by column included, without and
with zero points (the two that are built: as in the SASS; the others: counted by hand):

    s8                                                             5    9
    e4m3, ``vabsdiff4`` for the magnitude, lop3 for the sign      10   11    this one
    e4m3 of the code c at even k, of c - 15 at odd k               5    -    with ``offsets``
    e4m3 of the code itself, the zero point a product with sums
      of x                                                         5    5
    e4m3, prmt as a table of 16: it has 8 entries, and bit 3 of a
      selector repeats the sign of one; two tables and the nibble
      rotated, so that bit 3 is its lowest                        14    -
    e4m3, one's complement, plus 1 where it is negative           13    -

Sums of x that were taken from the accumulators would be 64 additions of a thread for each group of
128, in a tile of 128 x 128, where exact bytes are 40 instructions more than codes. As a product
with the scales, at a tile's end, they cost next to nothing (``offsets``).

**Why codes in turns.** Tensor cores cut what they add off below 2**-13 of the largest term. Bytes 0
to 15 are all positive: with x of one sign, as behind a ReLU, every term is cut off towards zero on
the same side, and sums grow with k. On the machine's adder results lose 0.008 of their root mean
square, all downwards, in groups of 128, and 0.43 with 1,024 of k added up; with c and c - 15 in
turns 0.0003 to 0.0008 and 0.0009 to 0.0024, the rounding of the offsets included, for normal x, x
of one sign, x with a mean of 1, and x with long tails. Exact bytes lose 0.0001 and 0.0004 at most,
and rounding x to e4m3 0.024 to 0.030 (experiments/23_w4a8/losses.py).
"""

from numba_marlin.layout.w4a8 import ALTERNATE, FLIP, LOWER, UPPER

MAGIC_BITS, MAGIC = 0x4B400000, 12582912.0  # 1.5 * 2**23: its last bit counts 1
AND_XOR, AND_OR, OR_NOT_AND = 0x6A, 0xEA, 0xF2  # of lop3: a & b ^ c, a & b | c, a | ~b & c
EIGHTS, TWO_BYTES = 0x08080808, 0x00010001


def element_verbs(lang, config):
    """-> namespace of the type's verbs: ``zeros_of(points)``: a word of zero points, the warp's
    strip lowest -> what ``bytes_of(word, zeros)`` -> (even nibbles, odd nibbles) subtracts;
    ``wgmma``, ``no_sums`` and ``keep_sums`` of a strip's accumulators; ``as_float(sum)``."""
    return {"int8": _int8_verbs, "fp8": _fp8_verbs}[config.activations](lang, config)


def _zeros_of(lang):
    @lang.device
    def zeros_of(points):
        """Zero points of columns g and g + 8, as the bytes of a word have their codes: by turns."""
        return ((points & 15) | (points >> 8 & 0xF00)) * TWO_BYTES

    return zeros_of


def int8_byte_verbs(lang, zeroed):
    """-> namespace of ``zeros_of``, ``bytes_of`` and ``as_float`` of int8."""
    ptx, uint32 = lang.ptx, lang.uint32
    and_xor, and_or = ptx.lop3(table=AND_XOR), ptx.lop3(table=AND_OR)

    @lang.device
    def bytes_of(word, zeros):
        if zeroed:  # a borrow bit keeps bytes apart
            lower = (and_or(word, LOWER, FLIP) - zeros) ^ FLIP
            upper = (and_or(word >> 4, LOWER, FLIP) - zeros) ^ FLIP
            return lower, upper
        return and_xor(word << 4, UPPER, FLIP), and_xor(word, UPPER, FLIP)

    @lang.device
    def as_float(number):
        """An int32 below 2**22 in magnitude, exactly."""
        return ptx.f32_of_bits(uint32(number) + MAGIC_BITS) - MAGIC

    return lang.namespace("bytes", zeros_of=_zeros_of(lang), bytes_of=bytes_of, as_float=as_float)


def _int8_verbs(lang, config):
    ptx = lang.ptx
    of_bytes = int8_byte_verbs(lang, config.zeros is not None)
    return lang.namespace(
        "int8",
        zeros_of=of_bytes.zeros_of,
        bytes_of=of_bytes.bytes_of,
        as_float=of_bytes.as_float,
        wgmma=ptx.wgmma_m64k32_s32_s8_s8_rs(n=config.tile_m),
        no_sums=ptx.zero_i32(width=config.accumulators),
        keep_sums=ptx.keep_i32(width=config.accumulators),
    )


def _fp8_verbs(lang, config):
    ptx = lang.ptx
    zeroed, offsets = config.zeros is not None, config.offsets
    and_xor = ptx.lop3(table=AND_XOR)
    and_or, or_not_and = ptx.lop3(table=AND_OR), ptx.lop3(table=OR_NOT_AND)
    distance = ptx.vabsdiff4_u32

    @lang.device
    def bytes_of(word, zeros):
        if zeroed:  # bit 7 of a difference: nothing was borrowed, it is not negative
            lower, upper = and_or(word, LOWER, FLIP), and_or(word >> 4, LOWER, FLIP)
            flipped = zeros | FLIP
            return (
                or_not_and(distance(lower, flipped), lower - zeros, FLIP),
                or_not_and(distance(upper, flipped), upper - zeros, FLIP),
            )
        if offsets:
            return and_xor(word, LOWER, ALTERNATE), and_xor(word >> 4, LOWER, ALTERNATE)
        # bit 3 of a code: it is not less than 8
        return (
            or_not_and(distance(word & LOWER, EIGHTS), word << 4, FLIP),
            or_not_and(distance(word >> 4 & LOWER, EIGHTS), word, FLIP),
        )

    @lang.device
    def as_float(number):
        return number

    return lang.namespace(
        "fp8",
        zeros_of=_zeros_of(lang),
        bytes_of=bytes_of,
        wgmma=ptx.wgmma_m64k32_f32_e4m3_e4m3_rs(n=config.tile_m),
        no_sums=ptx.zero_f32(width=config.accumulators),
        keep_sums=ptx.keep_f32(width=config.accumulators),
        as_float=as_float,
    )
