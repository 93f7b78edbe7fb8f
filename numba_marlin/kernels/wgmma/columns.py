"""What happens to a column's sums of the Hopper kernel (``wgmma``) at the end, in fp32: its scale,
if there is one a column, its bias, and the cast.

``column_verbs(lang, config)`` -> namespace: ``factors(scales, bias, column, n, g)``, of column g
and g + 8 of the word that begins at ``column``: (scale, scale, bias, bias), 1 and 0 where there is
none; ``finish_quads(width)``: device function (sums, factors) -> sums, quads of two sums each of
the two columns; ``pair_of``: two sums -> a register of ``config.dtype``.
"""

from types import SimpleNamespace

from numba_marlin.kernels.language.tuples import map_each


def column_verbs(lang, config):
    ptx, uint32, uint64, float32 = lang.ptx, lang.uint32, lang.uint64, lang.float32
    scales_columns, biased, block_scaled = config.scales_columns, config.bias, config.block_scaled
    pair_of, number_of = {
        "float16": (ptx.cvt_rn_f16x2_f32, ptx.cvt_f32_f16_low),
        "bfloat16": (ptx.cvt_rn_bf16x2_f32, ptx.cvt_f32_bf16_low),
    }[config.dtype]

    @lang.device
    def number_at(address, index, exists, otherwise):
        return (
            number_of(uint32(ptx.ld_global_b16(address + uint64(index) * uint64(2))))
            if exists
            else otherwise
        )

    @lang.device
    def factors(scales, bias, column, n, g):
        """One scale a column stands, in every 32 columns, in the order 2i + {0, 1, 8, 9, 16, 17,
        24, 25}; there are scales for all of 64 columns or none. Factors of FP4, in their place:
        those of columns g and g + 8 side by side."""
        position = uint32(
            column // uint32(32) * uint32(32)
            + column // uint32(16) % uint32(2) * uint32(4)
            + g // uint32(2) * uint32(8)
            + g % uint32(2)
        )
        one, none = float32(1), float32(0)
        scaled = scales_columns and column < n
        low, high = (
            number_at(scales, position, scaled, one),
            number_at(scales, uint32(position + uint32(2)), scaled, one),
        )
        if block_scaled and column < n:
            low, high = ptx.ld_global_v2_f32(scales + uint64(column + uint32(2) * g) * uint64(4))
        return (
            low,
            high,
            number_at(bias, uint32(column + g), biased and column < n, none),
            number_at(
                bias,
                uint32(column + uint32(8) + g),
                biased and uint32(column + uint32(8)) < n,
                none,
            ),
        )

    @lang.device
    def finish_quad(s, f):
        return (
            ptx.fma_rn_f32(s[0], f[0], f[2]),
            ptx.fma_rn_f32(s[1], f[0], f[2]),
            ptx.fma_rn_f32(s[2], f[1], f[3]),
            ptx.fma_rn_f32(s[3], f[1], f[3]),
        )

    def finish_quads(width):
        return map_each(lang, width, 4, finish_quad)

    return SimpleNamespace(factors=factors, finish_quads=finish_quads, pair_of=pair_of)
