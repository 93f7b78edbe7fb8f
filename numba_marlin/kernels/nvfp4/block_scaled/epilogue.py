"""How tiles of the block-scaled kernel (``block_scaled``) leave it: the epilogue's arithmetic in
fp32, then the type of D.

    D = activation(alpha * sums + beta * C + bias)

each product and sum rounded once, beta * C by a fused multiply-add. (Sums are written as
multiply-adds by 1: assemblers are free to fuse any other.) ``factors``: address of four float32
numbers: alpha, with both operands' global scales and the kernel's own powers of two in it; beta; 1
/ D's global scale, and that divided by 6 (``quantize.block_scaled``). Accumulator 4 v + 2 h + e of
lane 4 g + t belongs to row g + 8 h of the warp's 16 and to column 8 v + 2 t + e.

gated_silu: columns come in pairs of eight, eight of the gate and the eight they open; D has
silu(gate) * other, half as many columns.
"""

from numba_marlin.kernels.language.tuples import numbered

LOG2_E = 1.4426950408889634
GELU_LINEAR, GELU_CUBIC = 0.7978845608028654, 0.044715


def activation_verb(lang, name):
    """-> device function of a number; gelu is the tanh approximation, v / (1 + exp(-2 sqrt(2 / pi)
    (v + 0.044715 v^3)))"""
    ptx, float32 = lang.ptx, lang.float32
    SILU, GELU, CUBIC = -LOG2_E, -2 * LOG2_E * GELU_LINEAR, GELU_CUBIC

    @lang.device
    def same(v):
        return v

    @lang.device
    def relu(v):
        """(max.f32 would make 0 of NaN.)"""
        return float32(0) if v < float32(0) else v

    @lang.device
    def silu(v):
        return v * ptx.rcp_approx_f32(float32(1) + ptx.ex2_approx_f32(v * float32(SILU)))

    @lang.device
    def gelu(v):
        inner = ptx.fma_rn_f32(v * v * v, float32(CUBIC), v)
        return v * ptx.rcp_approx_f32(float32(1) + ptx.ex2_approx_f32(inner * float32(GELU)))

    return {None: same, "relu": relu, "silu": silu, "gelu": gelu, "gated_silu": silu}[name]


def finish_verbs(lang, config):
    """-> namespace with ``finish(sums, where) -> values``, and the records ``Where`` and
    ``Factors``"""
    ptx, float32 = lang.ptx, lang.float32
    activate = activation_verb(lang, config.activation)
    biased, sourced, gated = config.bias, config.source, config.gated

    # the numbers at ``factors``; sixth: inverse / 6
    Factors = lang.record("Factors", "alpha beta inverse sixth")

    # factors; address of the lane's first two numbers of bias, columns left from them on; address
    # of the lane's row of C in shared memory, what its chunks are xored with
    Where = lang.record("Where", "factors bias left row flip")

    widen_low, widen_high = {"bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high)}.get(
        config.result, (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high)
    )

    @lang.device
    def add_source(v, beta, pair):
        return ptx.fma_rn_f32(beta, widen_low(pair), v[0]), ptx.fma_rn_f32(
            beta, widen_high(pair), v[1]
        )

    @lang.device
    def add(v, other):
        return ptx.fma_rn_f32(v[0], float32(1), other[0]), ptx.fma_rn_f32(
            v[1], float32(1), other[1]
        )

    @lang.device
    def bias_at(where, column):
        return (
            ptx.ld_global_v2_f32(where.bias + column * 4)
            if biased and where.left > column
            else (float32(0), float32(0))
        )

    @lang.device
    def open_gate(gate, other):
        return activate(gate) * other

    def finish_sixteen(piece):
        """Two columns of eight, rows g and g + 8."""
        column, box, chunk = 16 * piece, piece // 4 * config.box_bytes, 32 * (piece % 4)

        @lang.device
        def finish(sums, where):
            alpha, beta = where.factors.alpha, where.factors.beta
            a, b, c, d = (
                (alpha * sums[0], alpha * sums[1]),
                (alpha * sums[2], alpha * sums[3]),
                (alpha * sums[4], alpha * sums[5]),
                (alpha * sums[6], alpha * sums[7]),
            )
            if sourced:
                s = ptx.ldmatrix_x4(where.row + box + (where.flip ^ chunk))
                a, b, c, d = (
                    add_source(a, beta, s[0]),
                    add_source(b, beta, s[1]),
                    add_source(c, beta, s[2]),
                    add_source(d, beta, s[3]),
                )
            if biased:
                first, second = bias_at(where, column), bias_at(where, column + 8)
                a, b, c, d = add(a, first), add(b, first), add(c, second), add(d, second)
            if gated:
                return (
                    open_gate(a[0], c[0]),
                    open_gate(a[1], c[1]),
                    open_gate(b[0], d[0]),
                    open_gate(b[1], d[1]),
                )
            return (
                activate(a[0]),
                activate(a[1]),
                activate(b[0]),
                activate(b[1]),
                activate(c[0]),
                activate(c[1]),
                activate(d[0]),
                activate(d[1]),
            )

        return finish

    finish = numbered(lang, config.accumulators, 8, finish_sixteen)
    return lang.namespace("finish", finish=finish, Where=Where, Factors=Factors)
