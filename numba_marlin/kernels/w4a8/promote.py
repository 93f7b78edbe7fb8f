"""Sums of groups into totals, in fp32.

``promote_verb(lang, config)`` -> device function ``promote(totals, acc, scales)`` -> totals: of
groups ``totals += scale * acc``; of all k in fp8 ``totals += acc``; of all k in int8 ``totals`` as
they are. All are tuples with an element per strip.
"""

from numba_marlin.kernels.language.tuples import together
from numba_marlin.kernels.w4a8.elements import element_verbs


def promote_verb(lang, config):
    if config.grouped:
        return _add_scaled(lang, config)
    return _add(lang, config) if config.promotes else _nothing(lang)


def _add_scaled(lang, config):
    ptx, strips, width = lang.ptx, config.strips, config.accumulators
    as_float = element_verbs(lang, config).as_float
    low_of, high_of = {
        "float16": (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high),
        "bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high),
    }[config.dtype]
    # of a strip, columns g and g + 8, in fp32
    TwoScales = lang.record("TwoScales", "lower upper")
    # the sums of a strip, and the pair of scales that they are to be multiplied by
    StripAndScale = lang.record("StripAndScale", "acc scale")

    @lang.device
    def add_quad(totals, acc, scales):
        return (
            ptx.fma_rn_f32(as_float(acc[0]), scales.lower, totals[0]),
            ptx.fma_rn_f32(as_float(acc[1]), scales.lower, totals[1]),
            ptx.fma_rn_f32(as_float(acc[2]), scales.upper, totals[2]),
            ptx.fma_rn_f32(as_float(acc[3]), scales.upper, totals[3]),
        )

    add_quads = together(lang, width, 4, add_quad)

    @lang.device
    def add_strip(totals, scaled, where):
        strip = scaled[0]
        scales = TwoScales(low_of(strip.scale), high_of(strip.scale))
        return (add_quads(totals[0], strip.acc, scales),)

    @lang.device
    def with_scale(acc, scale, where):
        return (StripAndScale(acc[0], scale[0]),)

    add_strips = together(lang, strips, 1, add_strip)
    with_scales = together(lang, strips, 1, with_scale)

    @lang.device
    def promote(totals, acc, scales):
        return add_strips(totals, with_scales(acc, scales, 0), 0)

    return promote


def _add(lang, config):
    as_float = element_verbs(lang, config).as_float

    @lang.device
    def add_one(total, sums, where):
        return (total[0] + as_float(sums[0]),)

    add_sums = together(lang, config.accumulators, 1, add_one)

    @lang.device
    def add_strip(totals, acc, where):
        return (add_sums(totals[0], acc[0], 0),)

    add_strips = together(lang, config.strips, 1, add_strip)

    @lang.device
    def promote(totals, acc, scales):
        return add_strips(totals, acc, 0)

    return promote


def _nothing(lang):
    @lang.device
    def promote(totals, acc, scales):
        return totals

    return promote
