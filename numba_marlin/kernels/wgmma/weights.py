"""The weights of ``wgmma``, of every type: from a stage in shared memory to fragments.

Per k16 row, a lane 4g + t has of a strip of 16 columns those of columns g and g + 8: a word of
4-bit codes, or two words of 8-bit ones (``kernel`` has the formula). Words, scales, zero points and
fragments come in tuples with an element per strip of the warp. A scale, or zero point, is a pair in
32 bits: that of column g in the low half, that of column g + 8 in the high half. All arithmetic is
in 16 bits: expand, exactly; subtract the zero point, exact if it is an integer; multiply by the
scale. (FP4 has no zero points; its codes times scales: ``fp4``.)

``kernel``, Scales, says where a pair is: h = 0 is column g, h = 1 column g + 8. Of integer zero
points one word holds the pairs of several strips, and ``expand`` makes all of them at once: of 4
bits, shifted right by 4 first_strip, register r of the expanded word has nibbles r and r + 4, the
pair of strip first_strip + r; of 8 bits likewise, two strips to a word. (The order of scales per
column is that of the accumulators of ``mma``: ``columns``.)

Bank conflicts: ``shared``.
"""

from numba_marlin.kernels.dequantize.expand import expand_verbs
from numba_marlin.kernels.language.tuples import for_each, repeat, together
from numba_marlin.kernels.wgmma import fp4 as wgmma_fp4


def weight_verbs(lang, config):
    """-> namespace of device functions; k16_row: of a stage, 0 to 3.

    own_words(thread)                         where in a stage a lane's words of k16 row 0 begin
    load_words(address)                       a lane's words of a k16 row
    load_scales(stage, k16_row, thread)       pairs of scales
    load_scales_and_zeros (the same)          ScaleAndZero: pairs of both
    dequantise(words, scales_and_zeros, odd)  fragments. odd: 1 for k16 rows 1 and 3, else 0; FP4's
                                              groups of 16 are one k16 row, two to a scale row
    no_scales(), no_fragments()               zeros, to begin the loop with
    keep_fragments(fragments, 0)              an empty instruction that takes them as operands, so
                                              that their registers are used for nothing else before
                                              (``ptx/keep_u32.ptx``)
    """
    ptx, uint32 = lang.ptx, lang.uint32
    cfg = lang.constants(config)
    dtype, bits, zeros, strips = config.dtype, config.bits, config.zeros, config.strips
    # Plain constants, not ``cfg.NAME``: what they choose between has different types, and only a
    # branch on a plain constant is removed before types are inferred (``compiler.language``).
    block_scaled, grouped, four_bits = config.block_scaled, config.grouped, config.bits == 4
    scaled, zeroed, floating = config.scales_weights, zeros is not None, zeros == "float16"
    expand = expand_verbs(lang, dtype, bits, origin=1 << (bits - 1) if zeros is None else 0)
    expand_zeros = expand_verbs(lang, dtype, bits, origin=0)
    fp4 = wgmma_fp4.block_verbs(lang, config) if block_scaled else None
    if block_scaled:
        expand = fp4.expand
    times = {"float16": ptx.mul_f16x2, "bfloat16": ptx.mul_bf16x2}[dtype]
    keep_fragment = ptx.keep_u32(width=4)

    # of a strip: two pairs, for columns g and g + 8; 0 where there is none
    ScaleAndZero = lang.record("ScaleAndZero", "scale zero")
    Register = lang.record("Register", "word")

    # ---- words ----

    @lang.device
    def no_word():
        """A 0 of type uint32: in a tuple a literal would be an int of Numba's, in a record it
        becomes a uint32."""
        return Register(0).word

    @lang.device
    def own_words(thread):
        """A lane has ``lane_bytes`` in a panel's k16 row, 16 or 32: a word of each of its four
        strips, or two."""
        box, panel = thread.panel // cfg.w_panels, thread.panel % cfg.w_panels
        if cfg.w_boxes == 1:  # the same: a compiler does not know that panel < w_panels
            box, panel = 0, thread.panel
        start = box * cfg.w_box_bytes + panel * cfg.panel_bytes
        lane = thread.lane * cfg.lane_bytes
        return cfg.weights_at + start + lane + thread.first_strip * cfg.lane_strip_bytes

    @lang.device
    def one_word(address):
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

    word_per_strip = {1: one_word, 2: ptx.ld_shared_v2_b32, 4: ptx.ld_shared_v4_b32}[strips]
    load_words = word_per_strip if four_bits else {1: one_pair, 2: two_pairs, 4: four_pairs}[strips]

    # ---- scales and zero points ----

    @lang.device
    def pairs_of_group(address, thread):
        """Pairs in the order of group scales, 128 bytes per panel: from element 8g + 2 first_strip
        of the panel on."""
        return word_per_strip(
            address + (thread.panel * 128 + thread.lane // 4 * 16 + thread.first_strip * 4)
        )

    @lang.device
    def pair_of_columns(address):
        """Of one scale per column, the pair whose lower one is at ``address``, in bytes."""
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

    columns_of = {1: one_of_columns, 2: two_of_columns, 4: four_of_columns}[strips]

    @lang.device
    def load_scales(stage, k16_row, thread):
        address = stage + (cfg.scales_at + k16_row // cfg.k16_per_scale_row * cfg.s_next_row)
        if block_scaled:
            return fp4.load_scales(address, thread)
        if grouped:
            return pairs_of_group(address, thread)
        # bytes: twice the elements in ``kernel``, Scales
        g, strip = thread.lane // 4, thread.first_strip
        first = strip // 2 * 64 + strip % 2 * 8 + g // 2 * 16 + g % 2 * 2
        return columns_of(address + thread.panel * 128 + first)

    @lang.device
    def load_nibbles(address, thread):
        """Zero points of 4 bits."""
        word = ptx.ld_shared_b32(address + thread.panel * 32 + thread.lane // 4 * 4)
        return expand_zeros(word >> (4 * thread.first_strip))[: cfg.strips]

    @lang.device
    def load_bytes(address, thread):
        """Zero points of 8 bits, of one or two strips: both are in one word."""
        word = ptx.ld_shared_b32(
            address + thread.panel * 64 + thread.lane // 4 * 8 + thread.first_strip // 2 * 4
        )
        return expand_zeros(word >> (8 * (thread.first_strip % 2)))[: cfg.strips]

    @lang.device
    def load_all_bytes(address, thread):
        pair = ptx.ld_shared_v2_b32(address + thread.panel * 64 + thread.lane // 4 * 8)
        return expand_zeros(pair[0]) + expand_zeros(pair[1])

    load_zeros = (
        pairs_of_group
        if floating
        else load_nibbles
        if four_bits
        else load_all_bytes
        if strips == 4
        else load_bytes
    )
    nothing = repeat(lang, strips, no_word)

    @lang.device
    def scale_and_zero(scale, zero, where):
        return (ScaleAndZero(scale[0], zero[0]),)

    scales_and_zeros = together(lang, strips, 1, scale_and_zero)

    @lang.device
    def load_scales_and_zeros(stage, k16_row, thread):
        scales = load_scales(stage, k16_row, thread) if scaled else nothing()
        zeros_at = stage + (cfg.zeros_at + k16_row // cfg.k16_per_scale_row * cfg.z_row_bytes)
        points = load_zeros(zeros_at, thread) if zeroed else nothing()
        return scales_and_zeros(scales, points, 0)

    # ---- fragments ----

    # what ``subtract`` takes beside a pair of codes of one column: the zero point as fp32, for
    # bfloat16 codes with float16 zero points, which have more bits than bfloat16 has (subtracted in
    # fp32, and rounded once); else a pair, the same zero point in both halves
    if floating and dtype == "bfloat16":
        low_zero, high_zero = ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high

        @lang.device
        def subtract(pair, zero):
            return ptx.cvt_rn_bf16x2_f32(
                ptx.cvt_f32_bf16_low(pair) - zero, ptx.cvt_f32_bf16_high(pair) - zero
            )

    else:
        # (they move bits: bfloat16 too)
        low_zero, high_zero = ptx.both_low_f16x2, ptx.both_high_f16x2
        subtract = {"float16": ptx.sub_f16x2, "bfloat16": ptx.sub_bf16x2}[dtype]

    @lang.device
    def expand_strip(word):
        """-> d0 to d3: k = 2t, 2t + 1 of column g; these + 8; both again of column g + 8"""
        return expand(word) if four_bits else expand(word[0]) + expand(word[1])

    @lang.device
    def dequantise_strip(words, scales_and_zeros, odd):
        """-> the strip's fragment: d0, d2, d1, d3."""
        word, own = words[0], scales_and_zeros[0]
        d0, d1, d2, d3 = expand_strip(word)
        if zeroed:
            low_point, high_point = low_zero(own.zero), high_zero(own.zero)
            d0, d1 = subtract(d0, low_point), subtract(d1, low_point)
            d2, d3 = subtract(d2, high_point), subtract(d3, high_point)
        if scaled:
            pair = fp4.pair_of_row(own.scale, odd) if block_scaled else own.scale
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
        load_scales_and_zeros=load_scales_and_zeros,
        dequantise=together(lang, strips, 1, dequantise_strip),
        no_fragments=repeat(lang, strips, no_fragment),
        keep_fragments=for_each(lang, strips, 1, keep_one),
    )
