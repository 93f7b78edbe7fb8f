"""Device functions ("verbs" in this folder) from four bits to float16, for the kernel ``ampere``.
(``tiled`` and ``buffered`` have the same written out; ``expand`` has it for all types, for
``decode`` and ``wgmma``.)

``dequantize`` follows the trick of FasterTransformer as Marlin uses it: a code q or-ed into the
mantissa of 1024.0 (0x6400) *is* the number 1024 + q, so one ``lop3`` turns two nibbles into two
halves, and one f16x2 instruction takes the offset off again, exactly. Nibbles 0 and 4 are the
lowest bits of their halves: (1024 + q) - 1032. Nibbles 1 and 5 are 4 bits higher:
(1024 + 16 q) / 16 - 72. Both are q - 8 with no rounding (tested for all 2**16 values of a half).
"""

LOW_NIBBLES, HIGH_NIBBLES = 0x000F000F, 0x00F000F0
EXPONENT_1024 = 0x64006400
AND_OR = (0xF0 & 0xCC) | 0xAA  # lop3 table of (a & b) | c
# two equal float16 each: +1032, which is subtracted; 1 / 16 and -72, of a multiply-add
PAIR_1032, PAIR_16TH, PAIR_MINUS_72 = 0x64086408, 0x2C002C00, 0xD480D480


def number_verbs(lang):
    """-> namespace of device functions on f16x2 registers (uint32): dequantize, scale_pair."""
    ptx = lang.ptx
    lop3_and_or = ptx.lop3(table=AND_OR)

    @lang.device
    def dequantize(word):
        """Nibbles 0, 4 and 1, 5 of a Marlin word -> (f16x2, f16x2) of code - 8; shift the word
        right by 8 for the other four."""
        low = lop3_and_or(word, LOW_NIBBLES, EXPONENT_1024)
        high = lop3_and_or(word, HIGH_NIBBLES, EXPONENT_1024)
        return (
            ptx.sub_f16x2(low, PAIR_1032),
            ptx.fma_rn_f16x2(high, PAIR_16TH, PAIR_MINUS_72),
        )

    @lang.device
    def scale_pair(pair, scale):
        """Multiply both registers of a fragment by one f16x2 scale: the only rounding a grouped
        weight sees."""
        return ptx.mul_f16x2(pair[0], scale), ptx.mul_f16x2(pair[1], scale)

    return lang.namespace("numbers", dequantize=dequantize, scale_pair=scale_pair)
