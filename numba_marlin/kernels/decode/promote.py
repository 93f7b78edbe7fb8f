"""What becomes of a group's accumulators in ``decode`` before they are added to those of the tile:
they are rid of float16 zero points, and multiplied by the group's scales.

Scales multiply accumulators, not weights: products with codes, which are exact, add up in fp32
first, and there are fewer multiplies: one per accumulator and group. ``config.promoted`` is False
where there is nothing to do: per-column scales, which the epilogue applies, and FP4, whose scales
multiply weights (``fp4``). Then products add up in the tile's accumulators at once.

``promotion_verbs(lang, config, at)`` -> namespace:

``fetch_terms(pointers, group)``    -> Terms(scales, zeros) of a group, for ``promote``; group:
                                    counted as for ``fetch.fetch_zeros``
``promote(registers, terms)``       adds registers.products to registers.acc
``add_x_first``, ``add_x``          (registers, slot): the sums of x over a k16 row, which float16
                                    zero points multiply; the first one starts them anew. In fact
                                    minus the sums, ``minus_x``

float16 zero points lie between codes, and code - zero is in no 16-bit type. But over a group

    sum x (code - zero) = sum x code - zero * sum x

so weights are the bare codes, and the second term is taken off their sums in fp32. (With the middle
of their range subtracted from codes, as without zero points, it would have to be subtracted from
zero points too: 8 instructions more.) ``mma.sync`` makes the sums of x, as products with a matrix
of -1, which leaves them in the lanes that want them, with the sign that a fused multiply-add wants:
products + zero * (minus the sum).

A lane's scales of a group are 16 bytes at g, float16 zero points likewise: word j has those of
columns 16j + g (low half) and 16j + g + 8 (high half). In Marlin's order a scale of column n of 64
is number 8 (n % 8) + n // 8.
"""

from numba_marlin.kernels.dequantize.expand import pair as twice


def promotion_verbs(lang, config, at):
    if not config.promoted:
        return _nothing(lang)
    ptx, cfg = lang.ptx, lang.constants(config)
    # four words each: those of the lane's 8 columns, two per 16-column block, side by side; or 0,
    # where there are none
    Terms = lang.record("Terms", "scales zeros")
    offset = offset_verbs(lang, config) if config.zeros == "float16" else _no_offset(lang)
    add_group = (scaled_sum if config.grouped else plain_sum)(lang, config)

    @lang.device
    def words_of_scales(pointers, group):
        return ptx.ld_shared_v4_b32(pointers[at.scales] + group * cfg.scale_pitch)

    @lang.device
    def words_of_zeros(pointers, group):
        return ptx.ld_shared_v4_b32(pointers[at.zeros] + group * cfg.zero_pitch)

    @lang.device
    def no_words(pointers, group):
        return 0

    scale_words = words_of_scales if config.grouped else no_words
    zero_words = words_of_zeros if config.zeros == "float16" else no_words

    @lang.device
    def fetch_terms(pointers, group):
        return Terms(scale_words(pointers, group), zero_words(pointers, group))

    @lang.device
    def promote(registers, terms):
        offset.subtract(registers, terms.zeros)
        add_group(registers.acc, registers.products, terms.scales)

    return lang.namespace(
        "promotion",
        fetch_terms=fetch_terms,
        promote=promote,
        add_x_first=offset.add_x_first,
        add_x=offset.add_x,
    )


def scaled_sum(lang, config):
    """-> device function (acc, products, scales): acc += products * scales of their columns."""
    ptx, cfg = lang.ptx, lang.constants(config)
    low_scale, high_scale = {
        "float16": (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high),
        "bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high),
    }[config.scale_dtype]

    @lang.device
    def add_scaled(acc, products, scales):
        for j in range(4):
            low, high = low_scale(scales[j]), high_scale(scales[j])
            for n8 in range(cfg.n8_blocks):
                o = 4 * (cfg.n8_blocks * j + n8)
                acc[o] = ptx.fma_rn_f32(products[o], low, acc[o])
                acc[o + 1] = ptx.fma_rn_f32(products[o + 1], low, acc[o + 1])
                acc[o + 2] = ptx.fma_rn_f32(products[o + 2], high, acc[o + 2])
                acc[o + 3] = ptx.fma_rn_f32(products[o + 3], high, acc[o + 3])

    return add_scaled


def plain_sum(lang, config):
    """-> device function (acc, products, scales): acc += products."""
    cfg = lang.constants(config)

    @lang.device
    def add(acc, products, scales):
        for i in range(cfg.accumulators):
            acc[i] += products[i]

    return add


def offset_verbs(lang, config):
    """float16 zero points. registers.minus_x: minus the sums of x, [n8 block][4]. The first two
    are those of the lane's rows of x, 2t and 2t + 1; the others are the same again."""
    ptx, float32, cfg = lang.ptx, lang.float32, lang.constants(config)
    multiply_accumulate = {
        "float16": ptx.mma_m16n8k16_f32_f16,
        "bfloat16": ptx.mma_m16n8k16_f32_bf16,
    }[config.dtype]
    low_zero, high_zero = ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high
    minus_one = twice(-1, config.dtype)

    @lang.device
    def add_x_of_n8(registers, slot, n8, addend):
        x, minus_x = registers.x, registers.minus_x
        o = cfg.x_words_per_n8 * n8 + 2 * slot
        minus_ones = (minus_one, minus_one, minus_one, minus_one)
        d = multiply_accumulate(minus_ones, (x[o], x[o + 1]), addend)
        for r in range(4):
            minus_x[4 * n8 + r] = d[r]

    @lang.device
    def add_x_first(registers, slot):
        for n8 in range(cfg.n8_blocks):
            add_x_of_n8(registers, slot, n8, (float32(0), float32(0), float32(0), float32(0)))

    @lang.device
    def add_x(registers, slot):
        minus_x = registers.minus_x
        for n8 in range(cfg.n8_blocks):
            o = 4 * n8
            add_x_of_n8(
                registers, slot, n8, (minus_x[o], minus_x[o + 1], minus_x[o + 2], minus_x[o + 3])
            )

    @lang.device
    def subtract(registers, zeros):
        """Takes zero points times sums of x off ``products``, for the 8 columns of this lane, which
        Marlin's order puts side by side. The sums are negative, so it adds."""
        products, minus_x = registers.products, registers.minus_x
        for j in range(4):
            low, high = low_zero(zeros[j]), high_zero(zeros[j])
            for n8 in range(cfg.n8_blocks):
                o = 4 * (cfg.n8_blocks * j + n8)
                products[o] = ptx.fma_rn_f32(minus_x[4 * n8], low, products[o])
                products[o + 1] = ptx.fma_rn_f32(minus_x[4 * n8 + 1], low, products[o + 1])
                products[o + 2] = ptx.fma_rn_f32(minus_x[4 * n8], high, products[o + 2])
                products[o + 3] = ptx.fma_rn_f32(minus_x[4 * n8 + 1], high, products[o + 3])

    return lang.namespace("offset", subtract=subtract, add_x_first=add_x_first, add_x=add_x)


def _no_offset(lang):
    @lang.device
    def subtract(registers, zeros):
        pass

    @lang.device
    def add_x(registers, slot):
        pass

    return lang.namespace("offset", subtract=subtract, add_x_first=add_x, add_x=add_x)


def _nothing(lang):
    @lang.device
    def fetch_terms(pointers, group):
        return 0

    @lang.device
    def promote(registers, terms):
        pass

    @lang.device
    def add_x(registers, slot):
        pass

    return lang.namespace(
        "promotion", fetch_terms=fetch_terms, promote=promote, add_x_first=add_x, add_x=add_x
    )
