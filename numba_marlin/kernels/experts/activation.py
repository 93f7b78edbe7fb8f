"""The activation of a layer of experts, in fp32, for epilogues: ``reference.experts.activate``.

``activation_verbs(lang, config)`` -> namespace of device functions: ``activate(gate, up)``;
``rounded(x)``: x as a result of ``config.dtype`` would hold it, in fp32. Gate and up are rounded
before they are multiplied, as if they had been stored: the same bits wherever it is done.

exp is ``ex2.approx`` (2 ulp), the quotient a product with ``rcp.approx`` (1 ulp): with the other
roundings below the 8 that ``reference.experts`` allows. Comparisons keep NaN.
"""

import math

LIMIT, SLOPE = 7.0, 1.702  # of swiglu-oai
LOG2_E = math.log2(math.e)


def activation_verbs(lang, config):
    ptx, float32 = lang.ptx, lang.float32
    pair_of, float_of = {
        "float16": (ptx.cvt_rn_f16x2_f32, ptx.cvt_f32_f16_low),
        "bfloat16": (ptx.cvt_rn_bf16x2_f32, ptx.cvt_f32_bf16_low),
    }[config.dtype]
    limited = config.activation == "swiglu-oai"
    per_unit = -LOG2_E * (SLOPE if limited else 1)

    @lang.device
    def times_sigmoid(gate):
        return gate * ptx.rcp_approx_f32(ptx.ex2_approx_f32(gate * float32(per_unit)) + float32(1))

    @lang.device
    def silu(gate, up):
        return times_sigmoid(gate) * up

    @lang.device
    def swiglu(gate, up):
        gate = float32(LIMIT) if gate > float32(LIMIT) else gate
        up = float32(LIMIT) if up > float32(LIMIT) else up
        up = float32(-LIMIT) if up < float32(-LIMIT) else up
        return times_sigmoid(gate) * (up + float32(1))

    @lang.device
    def rounded(x):
        return float_of(pair_of(x, x))

    return lang.namespace("activation", activate=swiglu if limited else silu, rounded=rounded)
