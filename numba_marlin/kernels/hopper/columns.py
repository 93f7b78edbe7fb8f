"""What happens to a column's accumulators in ``wgmma`` at the end, in fp32: its scale, if there is
one per column, its bias, and the cast.

``column_verbs(lang, config)`` -> namespace: ``factors_of(result, column, g, n)``: factors and
biases of columns g and g + 8 of the strip that begins at ``column``, 1 and 0 where there is none;
``finish_quads(width)`` -> device function (accumulators, factors) -> accumulators, in quads, two of
column g, then two of column g + 8; ``pair_of(low, high)``: two of them -> a register of
``config.dtype``, the first in the low half (PTX's cvt names the high one first).
"""

from numba_marlin.kernels.language.tuples import map_each


def column_verbs(lang, config):
    ptx, uint64, float32 = lang.ptx, lang.uint64, lang.float32
    cfg = lang.constants(config)
    pair_of, float_of = {
        "float16": (ptx.cvt_rn_f16x2_f32, ptx.cvt_f32_f16_low),
        "bfloat16": (ptx.cvt_rn_bf16x2_f32, ptx.cvt_f32_bf16_low),
    }[config.dtype]

    # of columns g (lower) and g + 8 (upper) of a strip's 16: factors, fp32, and biases
    FactorsAndBiases = lang.record("FactorsAndBiases", "lower upper lower_bias upper_bias")

    @lang.device
    def float_at(address, position, exists, otherwise):
        return float_of(ptx.ld_global_b16(address + uint64(position) * 2)) if exists else otherwise

    @lang.device
    def factors_of(result, column, g, n):
        """One scale per column: position 8q + r, q = 0 to 3, of every 32 is that of column 2q +
        (0, 1, 8, 9, 16, 17, 24, 25)[r]. Factors of FP4: position 2g + h of every 16 is that of
        column g + 8h. Both are padded to whole panels, so that column < n guards upper ones too;
        the bias is not."""
        position = column // 32 * 32 + column // 16 % 2 * 4 + g // 2 * 8 + g % 2
        one, none = float32(1), float32(0)
        scaled = cfg.scales_columns and column < n
        lower = float_at(result.column_scales, position, scaled, one)
        upper = float_at(result.column_scales, position + 2, scaled, one)
        if cfg.block_scaled and column < n:
            lower, upper = ptx.ld_global_v2_f32(result.column_scales + uint64(column + 2 * g) * 4)
        return FactorsAndBiases(
            lower,
            upper,
            float_at(result.bias, column + g, cfg.bias and column < n, none),
            float_at(result.bias, column + 8 + g, cfg.bias and column + 8 < n, none),
        )

    @lang.device
    def finish_quad(acc, factors):
        return (
            ptx.fma_rn_f32(acc[0], factors.lower, factors.lower_bias),
            ptx.fma_rn_f32(acc[1], factors.lower, factors.lower_bias),
            ptx.fma_rn_f32(acc[2], factors.upper, factors.upper_bias),
            ptx.fma_rn_f32(acc[3], factors.upper, factors.upper_bias),
        )

    def finish_quads(width):
        return map_each(lang, width, 4, finish_quad)

    return lang.namespace(
        "columns", factors_of=factors_of, finish_quads=finish_quads, pair_of=pair_of
    )
