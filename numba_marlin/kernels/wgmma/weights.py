"""The weights of ``wgmma``, of every type: from a stage in shared memory to the registers of A
fragments.

A lane's share of 16 x 64 weights are four m64 blocks, 16 columns each: a word of 4-bit codes, or
two words of 8-bit ones, of columns g and g + 8 of the 16. Words, scales, zero points and fragments
come in tuples, with what a warp has of each of its m64 blocks; scale and zero point: that of column
g and, above it, that of column g + 8. The type of the codes decides what happens between, all of it
in 16 bits: expand, exactly; subtract the zero point, exact on the grid; multiply by the scale.

Lanes of 8-bit codes are 32 bytes apart, so that their 16-byte loads touch each bank twice: half the
speed of shared memory, which has time to spare.
"""

from numba_marlin.kernels.dequantize.expand import expand_verbs
from numba_marlin.kernels.language.tuples import for_each, repeat, together
from numba_marlin.kernels.wgmma import fp4 as wgmma_fp4


def weight_verbs(lang, config):
    """-> namespace of device functions: ``own_words(thread)``: where a lane's words begin in a row
    of a stage; ``load_words(address)``; ``no_scales()`` and ``load_scales(stage, row, thread) ->
    scales``; ``load_factors(stage, row, thread) -> factors`` of weights of the group that a k16 row
    of the stage belongs to; ``spread(words, factors, row) -> fragments``, row: the k16 row, 0 or 1,
    of the two that these factors are for at least; ``no_fragments()`` and
    ``keep_fragments(fragments, 0)``, which keeps them in their registers until there.
    """
    ptx, uint32 = lang.ptx, lang.uint32
    cfg = lang.constants(config)
    dtype, bits, zeros, words = config.dtype, config.bits, config.zeros, config.words
    # closure constants: what they choose between has different types
    block_scaled, grouped, four_bits = config.block_scaled, config.grouped, config.bits == 4
    scaled, zeroed, floating = config.scales_weights, zeros is not None, zeros == "float16"
    expand = expand_verbs(lang, dtype, bits, origin=1 << (bits - 1) if zeros is None else 0)
    expand_zeros = expand_verbs(lang, dtype, bits, origin=0)
    fp4 = wgmma_fp4.block_verbs(lang, config) if block_scaled else None
    if block_scaled:
        expand = fp4.expand
    times = {"float16": ptx.mul_f16x2, "bfloat16": ptx.mul_bf16x2}[dtype]
    keep_fragment = ptx.keep_u32(width=4)

    # of weights of an m64 block, for columns g and g + 8; 0 where there is none
    Factors = lang.record("Factors", "scale zero")
    Register = lang.record("Register", "word")

    # ---- words ----

    @lang.device
    def no_word():
        """A 0 of 32 bits: that is what a literal becomes in a record."""
        return Register(0).word

    @lang.device
    def own_words(thread):
        box, block = thread.block // cfg.w_blocks, thread.block % cfg.w_blocks
        if cfg.w_boxes == 1:
            box, block = 0, thread.block
        start = box * cfg.w_box_bytes + block * cfg.block_bytes
        lane = thread.lane * (cfg.block_bytes // 32)
        return cfg.weights_at + start + lane + thread.first_word * cfg.bits

    @lang.device
    def one_number(address):
        return (ptx.ld_shared_b32(address),)

    @lang.device
    def one_pair(address):
        return (ptx.ld_shared_v2_b32(address),)

    @lang.device
    def two_pairs(address):
        q = ptx.ld_shared_v4_b32(address)
        return (q[0], q[1]), (q[2], q[3])

    @lang.device
    def four_pairs(address):
        return two_pairs(address) + two_pairs(address + 16)

    numbers_of = {1: one_number, 2: ptx.ld_shared_v2_b32, 4: ptx.ld_shared_v4_b32}[words]
    load_words = numbers_of if four_bits else {1: one_pair, 2: two_pairs, 4: four_pairs}[words]

    # ---- scales and zero points ----

    @lang.device
    def numbers_of_group(address, thread):
        """What stands in the order of group scales, 128 bytes for 64 columns."""
        return numbers_of(
            address + (thread.block * 128 + thread.lane // 4 * 16 + thread.first_word * 4)
        )

    @lang.device
    def pair_of_columns(address):
        """One scale per column stands in another order: see ``columns``."""
        lower, upper = ptx.ld_shared_b16(address), ptx.ld_shared_b16(address + 4)
        return uint32(lower) | (uint32(upper) << 16)

    @lang.device
    def one_of_columns(address):
        return (pair_of_columns(address),)

    @lang.device
    def two_of_columns(address):
        return pair_of_columns(address), pair_of_columns(address + 8)

    @lang.device
    def four_of_columns(address):
        return two_of_columns(address) + two_of_columns(address + 64)

    columns_of = {1: one_of_columns, 2: two_of_columns, 4: four_of_columns}[words]

    @lang.device
    def load_scales(stage, row, thread):
        address = stage + (cfg.scales_at + row // cfg.factor_rows * cfg.s_next_row)
        if block_scaled:
            return fp4.load_scales(address, thread)
        if grouped:
            return numbers_of_group(address, thread)
        g, word = thread.lane // 4, thread.first_word
        first = word // 2 * 64 + word % 2 * 8 + g // 2 * 16 + g % 2 * 2
        return columns_of(address + thread.block * 128 + first)

    @lang.device
    def load_nibbles(address, thread):
        """Zero points of 4 bits: register r of the expanded word goes with m64 block r."""
        word = ptx.ld_shared_b32(address + thread.block * 32 + thread.lane // 4 * 4)
        return expand_zeros(word >> 4 * thread.first_word)[: cfg.words]

    @lang.device
    def load_bytes(address, thread):
        """Zero points of 8 bits: two registers a word."""
        word = ptx.ld_shared_b32(
            address + thread.block * 64 + thread.lane // 4 * 8 + thread.first_word // 2 * 4
        )
        return expand_zeros(word >> 8 * (thread.first_word % 2))[: cfg.words]

    @lang.device
    def load_all_bytes(address, thread):
        pair = ptx.ld_shared_v2_b32(address + thread.block * 64 + thread.lane // 4 * 8)
        return expand_zeros(pair[0]) + expand_zeros(pair[1])

    load_zeros = (
        numbers_of_group
        if floating
        else load_nibbles
        if four_bits
        else load_all_bytes
        if words == 4
        else load_bytes
    )
    nothing = repeat(lang, words, no_word)

    @lang.device
    def factors_of(scale, zero, where):
        return (Factors(scale[0], zero[0]),)

    all_factors = together(lang, words, 1, factors_of)

    @lang.device
    def load_factors(stage, row, thread):
        """-> Factors of each m64 block"""
        scales = load_scales(stage, row, thread) if scaled else nothing()
        zeros_at = stage + (cfg.zeros_at + row // cfg.factor_rows * cfg.z_row_bytes)
        points = load_zeros(zeros_at, thread) if zeroed else nothing()
        return all_factors(scales, points, 0)

    # ---- fragments ----

    # its zero points have more bits than it has: subtracted in fp32, and rounded once
    if floating and dtype == "bfloat16":
        low_zero, high_zero = ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high

        @lang.device
        def less(pair, zero):
            return ptx.cvt_rn_bf16x2_f32(
                ptx.cvt_f32_bf16_low(pair) - zero, ptx.cvt_f32_bf16_high(pair) - zero
            )

    else:
        low_zero, high_zero = ptx.both_low_f16x2, ptx.both_high_f16x2
        less = {"float16": ptx.sub_f16x2, "bfloat16": ptx.sub_bf16x2}[dtype]

    @lang.device
    def expand_block(word):
        """-> k and k + 8 of column g, of column g + 8"""
        return expand(word) if four_bits else expand(word[0]) + expand(word[1])

    @lang.device
    def fragment(word_of, factors_of_word, row):
        word, factors = word_of[0], factors_of_word[0]
        d0, d1, d2, d3 = expand_block(word)
        if zeroed:
            low_point, high_point = low_zero(factors.zero), high_zero(factors.zero)
            d0, d1 = less(d0, low_point), less(d1, low_point)
            d2, d3 = less(d2, high_point), less(d3, high_point)
        if scaled:
            pair = fp4.pair_of_row(factors.scale, row) if block_scaled else factors.scale
            low, high = ptx.both_low_f16x2(pair), ptx.both_high_f16x2(pair)
            return ((times(d0, low), times(d2, high), times(d1, low), times(d3, high)),)
        return ((d0, d2, d1, d3),)

    @lang.device
    def no_fragment():
        return no_word(), no_word(), no_word(), no_word()

    @lang.device
    def keep_one(fragments, where):
        keep_fragment(fragments[0])

    return lang.namespace(
        "weights",
        own_words=own_words,
        load_words=load_words,
        no_scales=nothing,
        load_scales=load_scales,
        load_factors=load_factors,
        spread=together(lang, words, 1, fragment),
        no_fragments=repeat(lang, words, no_fragment),
        keep_fragments=for_each(lang, words, 1, keep_one),
    )
