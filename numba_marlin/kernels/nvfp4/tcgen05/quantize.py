"""The Blackwell kernel's (``tcgen05``) own quantiser: 32 columns of a lane's row, fp32 numbers in
its registers -> codes and scales of NVFP4, MXFP4 or MXFP8 (``result_codes``), stored to global
memory.

A lane has whole scale blocks of its row, two of 16 columns (NVFP4) or one of 32 (MX): no lanes
exchange anything. It stores 8 bytes of FP4 codes or 16 of FP8 at a time, 16 columns, for n is a
multiple of 16 or 32; and its scales, two bytes or one. So a store touches a sector of 32 bytes in
each of 32 rows and fills a quarter of it, or half, and L2 joins what follows. (A box in shared
memory and a tensor copy, as other results have, would need n to be a multiple of 32 for FP4; there
was no GPU on which to see what it gains.)
"""

from numba_marlin.kernels.language.tuples import numbered_each
from numba_marlin.kernels.nvfp4.result_codes import ELEMENTS, code_verbs

HALF = 16  # columns that are stored at a time


def quantize_verbs(lang, config):
    """-> namespace with ``put_part(values, at)``: 32 finished numbers of a lane's row; and the
    record ``PartAt``."""
    ptx, uint16, uint64 = lang.ptx, lang.uint16, lang.uint64
    # other results make these functions too and do not call them: any format will do
    result = config.result if config.scaled else "nvfp4"
    two_blocks = result == "nvfp4"  # in 32 columns
    four_bits = ELEMENTS[result] == "e2m1"
    half_bytes = HALF // 2 if four_bits else HALF
    codes_of = code_verbs(lang, result, config.rounding)
    largest_of, word_of, words_of = codes_of.largest_of, codes_of.word_of, codes_of.words_of

    # of a lane's row, addresses in D: of the part's first code, 0 for a row that D does not have,
    # and of the row's first four scales; number of the part's first block along D's columns; how
    # many columns D has from the part's first on; inverse, sixth: numbers at ``factors``
    PartAt = lang.record("PartAt", "codes scales block left inverse sixth")

    # of 16 columns and the 16 behind them: address of the first's codes; how many columns D has
    # from it on; factors of the two
    HalvesAt = lang.record("HalvesAt", "codes left first second")

    @lang.device
    def largest_of_half(x):
        """Bits of the largest magnitude of 16."""
        return max(
            max(largest_of(x[0], x[1], x[2], x[3]), largest_of(x[4], x[5], x[6], x[7])),
            max(largest_of(x[8], x[9], x[10], x[11]), largest_of(x[12], x[13], x[14], x[15])),
        )

    @lang.device
    def scales_of(x, at):
        """-> (codes of the scales, the second in the high byte; factors of both halves)"""
        first, second = largest_of_half(x[:16]), largest_of_half(x[16:])
        if two_blocks:
            return codes_of.e4m3_scales(
                ptx.f32_of_bits(first), ptx.f32_of_bits(second), at.inverse, at.sixth
            )
        return codes_of.power_scale(max(first, second))

    def put_half(half):
        before, skipped = half * HALF, half * half_bytes

        @lang.device
        def put(x, at):
            factor = at.first if half == 0 else at.second
            if at.left > before:
                if four_bits:
                    ptx.st_global_v2_b32(
                        at.codes + skipped,
                        (word_of(x[:8], factor, factor), word_of(x[8:], factor, factor)),
                    )
                else:
                    ptx.st_global_v4_b32(
                        at.codes + skipped,
                        words_of(x[:8], factor, factor) + words_of(x[8:], factor, factor),
                    )

        return put

    put_halves = numbered_each(lang, 2 * HALF, HALF, put_half)

    @lang.device
    def put_part(x, at):
        codes, first, second = scales_of(x, at)
        if at.codes != 0 and at.left > 0:
            put_halves(x, HalvesAt(at.codes, at.left, first, second))
            address = at.scales + (uint64(at.block // 4) * 512 + at.block % 4)
            if two_blocks:
                ptx.st_global_b16(address, uint16(codes if at.left > HALF else codes & 0xFF))
            else:
                ptx.st_global_b8(address, uint16(codes))

    return lang.namespace("quantize", put_part=put_part, PartAt=PartAt)
