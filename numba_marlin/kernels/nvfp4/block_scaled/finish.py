"""The arithmetic of the block-scaled kernel's epilogue (``block_scaled``), in fp32: what becomes of
the accumulators before ``epilogue`` converts and stores them.

    D = activation(alpha * sums + beta * C + bias)

each product and sum rounded once, beta * C by a fused multiply-add. (Adding bias is written as
fma(x, 1, bias). Of alpha * sum and a plain addition an assembler may make one fma, which rounds
once instead of twice, and D's bits would depend on whether it does; into an fma it cannot fold a
further product.) At ``factors`` stand four float32 numbers, ``declare.epilogue_factors``:

    alpha     the caller's, times both operands' global scales and 2**28 (``kernel.OPERAND_POWER``)
    beta
    inverse   1 / D's global scale, for an NVFP4 result; 1 for all others, which ignore it
    sixth     inverse / 6: an NVFP4 block's scale is its largest magnitude times this

C of D's 16-bit type stands in shared memory, where ``load`` has brought it. C of any other type (of
a D in FP4, above all) is read here from global memory: of a row the four lanes have 8 columns, of
float32 a sector of 32 bytes. How long it takes was not measured.

Accumulator 4 v + 2 h + e of lane 4 g + t belongs to row g + 8 h of the warp's 16 and to column
8 v + 2 t + e (h, e = 0, 1; g = 0 .. 7; t = 0 .. 3; v = 0 .. tile_n / 8 - 1).

gated_silu: D[:, 8 p + i] = silu(G[:, 16 p + i]) * G[:, 16 p + 8 + i], i = 0 .. 7, where G is
alpha * sums + bias: half as many columns. The caller interleaves the rows of B accordingly. Both
factors are in the same lane, accumulators with v = 2 p and 2 p + 1 (``epilogue`` says where the
values go).
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
    """-> namespace with ``finish(sums, at) -> values``: of a thread's accumulators of an m64 block,
    8 at a time, 8 values (4 if gated) in the same order; and the records ``FinishAt`` and
    ``Factors``"""
    ptx, float32 = lang.ptx, lang.float32
    activate = activation_verb(lang, config.activation)
    biased, sourced, gated = config.bias, config.source_tiles, config.gated
    source_bytes = config.source_bytes

    # the numbers at ``factors``
    Factors = lang.record("Factors", "alpha beta inverse sixth")

    # factors; bias: address of the lane's first two numbers; left: how many columns A @ B^T has
    # from the lane's first on; row: address in shared memory of the lane's row of C for ldmatrix;
    # flip: what the byte offset of a chunk in that row is xored with, the swizzle; above, below:
    # addresses of the lane's first number of C in rows g and g + 8, 0 for one that C does not have
    # (of a C that comes straight from global memory)
    FinishAt = lang.record("FinishAt", "factors bias left row flip above below")

    widen_low, widen_high = {"bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high)}.get(
        config.c_dtype or config.result, (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high)
    )

    @lang.device
    def add_source(v, beta, pair):
        return ptx.fma_rn_f32(beta, widen_low(pair), v[0]), ptx.fma_rn_f32(
            beta, widen_high(pair), v[1]
        )

    @lang.device
    def pair_at(address):
        """Two neighbours of C as float32."""
        if source_bytes == 4:
            return ptx.ld_global_v2_f32(address)
        pair = ptx.ld_global_b32(address)
        return widen_low(pair), widen_high(pair)

    @lang.device
    def add_from(v, beta, address, column, left):
        """beta * C of two columns; nothing where C has none. n is a multiple of 8: they are both
        inside or both outside."""
        if address != 0 and left > column:
            pair = pair_at(address + column * source_bytes)
            v = ptx.fma_rn_f32(beta, pair[0], v[0]), ptx.fma_rn_f32(beta, pair[1], v[1])
        return v

    @lang.device
    def add(v, other):
        return ptx.fma_rn_f32(v[0], float32(1), other[0]), ptx.fma_rn_f32(
            v[1], float32(1), other[1]
        )

    @lang.device
    def bias_at(at, column):
        return (
            ptx.ld_global_v2_f32(at.bias + column * 4)
            if biased and at.left > column
            else (float32(0), float32(0))
        )

    @lang.device
    def open_gate(gate, other):
        return activate(gate) * other

    def finish_sixteen(piece):
        """16 columns from 16 * piece on, rows g and g + 8: four 8 x 8 matrices."""
        # bytes: a panel has 64 columns, four pieces of two 16-byte chunks
        column, panel, chunk = 16 * piece, piece // 4 * config.panel_bytes, 32 * (piece % 4)

        @lang.device
        def finish(sums, at):
            alpha, beta = at.factors.alpha, at.factors.beta
            upper_left, lower_left, upper_right, lower_right = (
                (alpha * sums[0], alpha * sums[1]),
                (alpha * sums[2], alpha * sums[3]),
                (alpha * sums[4], alpha * sums[5]),
                (alpha * sums[6], alpha * sums[7]),
            )
            if sourced:
                s = ptx.ldmatrix_x4(at.row + panel + (at.flip ^ chunk))
                upper_left, lower_left, upper_right, lower_right = (
                    add_source(upper_left, beta, s[0]),
                    add_source(lower_left, beta, s[1]),
                    add_source(upper_right, beta, s[2]),
                    add_source(lower_right, beta, s[3]),
                )
            if source_bytes > 0:  # (numba-cuda-mlir takes an even number for false)
                right = column + 8
                upper_left, lower_left, upper_right, lower_right = (
                    add_from(upper_left, beta, at.above, column, at.left),
                    add_from(lower_left, beta, at.below, column, at.left),
                    add_from(upper_right, beta, at.above, right, at.left),
                    add_from(lower_right, beta, at.below, right, at.left),
                )
            if biased:
                first, second = bias_at(at, column), bias_at(at, column + 8)
                upper_left, lower_left, upper_right, lower_right = (
                    add(upper_left, first),
                    add(lower_left, first),
                    add(upper_right, second),
                    add(lower_right, second),
                )
            if gated:
                return (
                    open_gate(upper_left[0], upper_right[0]),
                    open_gate(upper_left[1], upper_right[1]),
                    open_gate(lower_left[0], lower_right[0]),
                    open_gate(lower_left[1], lower_right[1]),
                )
            return (
                activate(upper_left[0]),
                activate(upper_left[1]),
                activate(lower_left[0]),
                activate(lower_left[1]),
                activate(upper_right[0]),
                activate(upper_right[1]),
                activate(lower_right[0]),
                activate(lower_right[1]),
            )

        return finish

    finish = numbered(lang, config.accumulators, 8, finish_sixteen)
    return lang.namespace("finish", finish=finish, FinishAt=FinishAt, Factors=Factors)
