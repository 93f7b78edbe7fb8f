"""The weights of the Hopper kernel (``wgmma``): from a stage in shared memory to the registers of A
fragments, for every type.

A lane's share of 16 x 64 weights are four m64 blocks, 16 columns each: a word of 4-bit codes, or
two words of 8-bit ones, of columns g and g + 8 of the 16. ``words``, ``scales``, ``zeros``,
``fragments``: tuples of what a warp has of each of its m64 blocks; scale and zero point: that of
column g and, above it, that of column g + 8. The type of the codes decides what happens between,
all of it in 16 bits: expand, exactly; subtract the zero point, exact on the grid; multiply by the
scale.

Lanes of 8-bit codes are 32 bytes apart, so that their 16-byte loads touch each bank twice: half the
speed of shared memory, which has time to spare.
"""

from types import SimpleNamespace

from numba_marlin.kernels.dequantize.expand import expand_verbs
from numba_marlin.kernels.language.tuples import for_each, repeat, together
from numba_marlin.kernels.wgmma import fp4 as wgmma_fp4


def weight_verbs(lang, config):
    """-> namespace of device functions: ``own_words(lane_place)``: where a lane's words begin in a
    row of a stage; ``load_words(address)``; ``no_scales()`` and ``load_scales(stage, row,
    lane_place) -> scales``; ``load_factors(stage, row, lane_place) -> factors`` of weights of the
    group that a k16 row of the stage belongs to; ``spread(words, factors, row) -> fragments``, row:
    the k16 row, 0 or 1, of the two that these factors are for at least; ``no_fragments()`` and
    ``keep_fragments(fragments, 0)``, which keeps them in their registers until there.
    """
    ptx, uint32 = lang.ptx, lang.uint32
    dtype, bits, zeros, WORDS = config.dtype, config.bits, config.zeros, config.words
    expand, expand_zeros = (
        expand_verbs(lang, dtype, bits, origin=1 << (bits - 1) if zeros is None else 0),
        expand_verbs(lang, dtype, bits, origin=0),
    )
    block_scaled = config.block_scaled
    if block_scaled:
        blocks = wgmma_fp4.block_verbs(lang, config)
        expand, load_block_scales, pair_of_row = (
            blocks.expand,
            blocks.load_scales,
            blocks.pair_of_row,
        )
    times = {"float16": ptx.mul_f16x2, "bfloat16": ptx.mul_bf16x2}[dtype]
    scaled, zeroed, grouped, floating = (
        config.scales_weights,
        zeros is not None,
        config.grouped,
        zeros == "float16",
    )
    GROUP_ROWS = config.scale_blocks if grouped else 4
    BLOCK, BOX, BLOCKS_PER_BOX, BOXES = (
        config.block_bytes,
        config.w_box_bytes,
        config.w_box_columns // 64,
        config.w_boxes,
    )
    W_SHARED, S_SHARED, Z_SHARED, Z_ROW = (
        config.x_stage_bytes,
        config.s_shared,
        config.z_shared,
        config.z_row_bytes,
    )
    S_ROW = 4 * config.scale_words if block_scaled else config.s_row_bytes
    keep_fragment = ptx.keep_u32(width=4)
    load_one, load_two, load_four = ptx.ld_shared_b32, ptx.ld_shared_v2_b32, ptx.ld_shared_v4_b32

    # ---- words ----

    @lang.device
    def own_words(lane_place):
        block = lane_place[3]
        start = (
            block * uint32(BLOCK)
            if BOXES == 1
            else block // uint32(BLOCKS_PER_BOX) * uint32(BOX)
            + block % uint32(BLOCKS_PER_BOX) * uint32(BLOCK)
        )
        return (
            uint32(W_SHARED)
            + start
            + lane_place[4] * uint32(BLOCK // 32)
            + lane_place[2] * uint32(bits)
        )

    @lang.device
    def one_number(address):
        return (load_one(address),)

    @lang.device
    def one_pair(address):
        return (load_two(address),)

    @lang.device
    def two_pairs(address):
        q = load_four(address)
        return (q[0], q[1]), (q[2], q[3])

    @lang.device
    def four_pairs(address):
        return two_pairs(address) + two_pairs(address + uint32(16))

    numbers_of = {1: one_number, 2: load_two, 4: load_four}[WORDS]
    load_words = numbers_of if bits == 4 else {1: one_pair, 2: two_pairs, 4: four_pairs}[WORDS]

    # ---- scales and zero points ----

    @lang.device
    def numbers_of_group(address, lane_place):
        """What stands in the order of group scales, 128 bytes for 64 columns."""
        return numbers_of(
            address
            + (
                lane_place[3] * uint32(128)
                + lane_place[4] // uint32(4) * uint32(16)
                + lane_place[2] * uint32(4)
            )
        )

    @lang.device
    def pair_of_columns(address):
        """One scale a column stands in another order: see wgmma_columns."""
        return uint32(ptx.ld_shared_b16(address)) | uint32(
            uint32(ptx.ld_shared_b16(address + uint32(4))) << uint32(16)
        )

    @lang.device
    def two_of_columns(address):
        return pair_of_columns(address), pair_of_columns(address + uint32(8))

    columns_of = {
        1: lang.device(lambda address: (pair_of_columns(address),)),
        2: two_of_columns,
        4: lang.device(
            lambda address: two_of_columns(address) + two_of_columns(address + uint32(64))
        ),
    }[WORDS]

    @lang.device
    def load_scales(stage, row, lane_place):
        address = stage + uint32(S_SHARED + row // GROUP_ROWS * S_ROW)
        if block_scaled:
            return load_block_scales(address, lane_place)
        if grouped:
            return numbers_of_group(address, lane_place)
        g = uint32(lane_place[4] // uint32(4))
        first = uint32(
            lane_place[2] // uint32(2) * uint32(64)
            + lane_place[2] % uint32(2) * uint32(8)
            + g // uint32(2) * uint32(16)
            + g % uint32(2) * uint32(2)
        )
        return columns_of(address + lane_place[3] * uint32(128) + first)

    @lang.device
    def load_nibbles(address, lane_place):
        """Zero points of 4 bits: register r of the expanded word goes with m64 block r."""
        word = load_one(
            address + lane_place[3] * uint32(32) + lane_place[4] // uint32(4) * uint32(4)
        )
        return expand_zeros(word >> uint32(uint32(4) * lane_place[2]))[:WORDS]

    @lang.device
    def load_bytes(address, lane_place):
        """Zero points of 8 bits: two registers a word."""
        place = (
            address
            + lane_place[3] * uint32(64)
            + lane_place[4] // uint32(4) * uint32(8)
            + lane_place[2] // uint32(2) * uint32(4)
        )
        return expand_zeros(
            load_one(place) >> uint32(uint32(8) * uint32(lane_place[2] % uint32(2)))
        )[:WORDS]

    @lang.device
    def load_all_bytes(address, lane_place):
        words = load_two(
            address + lane_place[3] * uint32(64) + lane_place[4] // uint32(4) * uint32(8)
        )
        return expand_zeros(words[0]) + expand_zeros(words[1])

    load_zeros = (
        numbers_of_group
        if floating
        else load_nibbles
        if bits == 4
        else load_all_bytes
        if WORDS == 4
        else load_bytes
    )
    nothing = repeat(lang, WORDS, lang.device(lambda: uint32(0)))

    @lang.device
    def load_factors(stage, row, lane_place):
        """-> for each m64 block (scale, zero point), 0 where there is none"""
        scales = load_scales(stage, row, lane_place) if scaled else nothing()
        points = (
            load_zeros(stage + uint32(Z_SHARED + row // GROUP_ROWS * Z_ROW), lane_place)
            if zeroed
            else nothing()
        )
        return both(scales, points, uint32(0))

    both = together(lang, WORDS, 1, lang.device(lambda scale, zero, where: ((scale[0], zero[0]),)))

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
        low_zero, high_zero, less = (
            ptx.both_low_f16x2,
            ptx.both_high_f16x2,
            {"float16": ptx.sub_f16x2, "bfloat16": ptx.sub_bf16x2}[dtype],
        )

    @lang.device
    def expand_block(words):
        """-> k and k + 8 of column g, of column g + 8"""
        return expand(words) if bits == 4 else expand(words[0]) + expand(words[1])

    @lang.device
    def fragment(words, factors, where):
        d0, d1, d2, d3 = expand_block(words[0])
        if zeroed:
            low_point, high_point = low_zero(factors[0][1]), high_zero(factors[0][1])
            d0, d1, d2, d3 = (
                less(d0, low_point),
                less(d1, low_point),
                less(d2, high_point),
                less(d3, high_point),
            )
        if scaled:
            pair = pair_of_row(factors[0][0], where) if block_scaled else factors[0][0]
            low, high = ptx.both_low_f16x2(pair), ptx.both_high_f16x2(pair)
            return ((times(d0, low), times(d2, high), times(d1, low), times(d3, high)),)
        return ((d0, d2, d1, d3),)

    no_fragments = repeat(
        lang, WORDS, lang.device(lambda: (uint32(0), uint32(0), uint32(0), uint32(0)))
    )
    keep_fragments = for_each(lang, WORDS, 1, lang.device(lambda one, where: keep_fragment(one[0])))

    return SimpleNamespace(
        own_words=own_words,
        load_words=load_words,
        no_scales=nothing,
        load_scales=load_scales,
        load_factors=load_factors,
        spread=together(lang, WORDS, 1, fragment),
        no_fragments=no_fragments,
        keep_fragments=keep_fragments,
    )
