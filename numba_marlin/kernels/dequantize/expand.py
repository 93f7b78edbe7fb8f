"""Device verbs from a word of codes to 16-bit floats, for every type of integer codes: what
``verbs.dequantize`` does for float16 and 4 bits, and its relatives.

``expand_verbs(lang, dtype, bits, origin)`` -> ``expand(word)``: a tuple of 16 / bits registers of
two numbers of ``dtype``. Register r has code r of the word in its low half and code r + 16 / bits
in its high half (code p is bits p * bits and on), each minus ``origin``, all exact. origin: 8 or
128, the zero point of symmetric weights, or 0 where zero points are subtracted later; a word of
packed zero points goes through the same verb and gives pairs that go with ``formats.marlin``'s
pairs of group scales. Which element of W a code is: ``formats.marlin_order``; ``lookup.load_code``
has it as code. As for fragments, 4-bit registers (0, 1) and (2, 3) are the B fragments of two n8
tiles, and (0, 2, 1, 3) is the A fragment of 16 columns of the transposed product; an 8-bit word is
half as much.

A code is or-ed, or put by ``prmt``, into the mantissa of a power of two whose last place is 1, and
the power is subtracted again: float16 has room for 8 bits (1024), bfloat16 for 4 (128), so that its
bytes are made of nibbles: 16 high + (low - origin).
"""

import struct

from numba_marlin.kernels.dequantize.verbs import AND_OR, HIGH_NIBBLES, LOW_NIBBLES

BYTES_ABOVE = 0x64646464  # prmt's other operand: the upper byte of 1024.0
# selectors: bytes 0 and 2, or 1 and 3, each under one of BYTES_ABOVE
EVEN_BYTES, ODD_BYTES = 0x4240, 0x4341


def pair(value, dtype):
    """Two equal numbers of ``dtype`` in a register; value: one that it has."""
    half = struct.pack("<e", value) if dtype == "float16" else struct.pack("<f", value)[2:]
    return int.from_bytes(half + half, "little")


def expand_verbs(lang, dtype, bits, origin):
    ptx = lang.ptx
    and_or = ptx.lop3(table=AND_OR)
    even_bytes, odd_bytes = ptx.prmt_b32(selector=EVEN_BYTES), ptx.prmt_b32(selector=ODD_BYTES)
    exponent, power = pair(1024, "float16"), pair(1024 + origin, "float16")
    sixteenth, minus_sixteenths = pair(1 / 16, "float16"), pair(-64 - origin, "float16")
    wide_exponent, wide_power, wide_middle, sixteen = (
        pair(value, "bfloat16") for value in (128, 128, 128 + origin, 16)
    )

    @lang.device
    def float16_nibbles(word):
        """Nibbles 0, 4 and 1, 5. The second pair stands 4 bits higher in the significand, as 1024
        + 16 code: divided by 16, less 64 and the origin, that is the code too."""
        low = and_or(word, LOW_NIBBLES, exponent)
        high = and_or(word, HIGH_NIBBLES, exponent)
        return ptx.sub_f16x2(low, power), ptx.fma_rn_f16x2(high, sixteenth, minus_sixteenths)

    @lang.device
    def expand_float16_nibbles(word):
        first, second = float16_nibbles(word), float16_nibbles(word >> 8)
        return first[0], first[1], second[0], second[1]

    @lang.device
    def expand_float16_bytes(word):
        return (
            ptx.sub_f16x2(even_bytes(word, BYTES_ABOVE), power),
            ptx.sub_f16x2(odd_bytes(word, BYTES_ABOVE), power),
        )

    @lang.device
    def bfloat16_nibbles(word, subtract):
        """Nibbles 0 and 4, minus what ``subtract`` is above 128."""
        return ptx.sub_bf16x2(and_or(word, LOW_NIBBLES, wide_exponent), subtract)

    @lang.device
    def expand_bfloat16_nibbles(word):
        word0, word1, word2, word3 = word, word >> 4, word >> 8, word >> 12
        return (
            bfloat16_nibbles(word0, wide_middle),
            bfloat16_nibbles(word1, wide_middle),
            bfloat16_nibbles(word2, wide_middle),
            bfloat16_nibbles(word3, wide_middle),
        )

    @lang.device
    def bfloat16_bytes(word):
        """Bytes 0 and 2."""
        return ptx.fma_rn_bf16x2(
            bfloat16_nibbles(word >> 4, wide_power),
            sixteen,
            bfloat16_nibbles(word, wide_middle),
        )

    @lang.device
    def expand_bfloat16_bytes(word):
        word0, word1 = word, word >> 8
        return bfloat16_bytes(word0), bfloat16_bytes(word1)

    return {
        ("float16", 4): expand_float16_nibbles,
        ("float16", 8): expand_float16_bytes,
        ("bfloat16", 4): expand_bfloat16_nibbles,
        ("bfloat16", 8): expand_bfloat16_bytes,
    }[dtype, bits]
