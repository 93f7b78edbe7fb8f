"""The main loop of ``decode_int8``: what a consumer warp does with a stage.

``multiply_verbs(lang, config, ring)`` -> namespace, as ``kernels.decode.multiply`` has it. Of the
``Registers`` of a lane two are used: ``acc``, fp32, and ``products``, int32, here called *sums*,
both [16-column block][n8 block][4]: those of a scale group, or of the warp's part of a stage,
promoted to ``acc`` at its end.

A pair, two k16 rows, is the 32 of k of one ``mma.sync.m16n8k32``: registers 0 and 1 of its A are
columns g and g + 8 of a word of the first row, 2 and 3 those of the second (``layout.w4a8``). B is
32 bytes of a row of x, 16 from each: ``ldmatrix.x2``, of bytes as of halves. What is loaded while
what is multiplied is left to the assembler.

**Exactness.** |sums| is at most 16 * 8 * 127 * 128 < 2**22 for a group of 128, and 4 times as much
for a part of a stage of 512 where columns have one scale: below 2**24, so that fp32 has it exactly.
"""

from numba_marlin.kernels.decode.fetch import fetch_verbs
from numba_marlin.kernels.decode.multiply import REGISTERS, place_of_pair, release_verb, stage_verb
from numba_marlin.kernels.decode.weights import weight_verbs
from numba_marlin.kernels.w4a8.elements import int8_byte_verbs
from numba_marlin.layout.w4a8 import EVEN_BYTES, ODD_BYTES


def multiply_verbs(lang, config, ring):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, int32, float32 = lang.uint32, lang.int32, lang.float32
    cfg = lang.constants(config)
    zeroed, grouped = config.zeros is not None, config.grouped
    weights = weight_verbs(lang, config)
    fetch = fetch_verbs(lang, config, weights)
    at = fetch.at
    done_with_stage = release_verb(lang, ring)
    of_bytes = int8_byte_verbs(lang, zeroed)
    even, odd = ptx.prmt_b32(selector=EVEN_BYTES), ptx.prmt_b32(selector=ODD_BYTES)
    low_of, high_of = {
        "float16": (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high),
        "bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high),
    }[config.dtype]
    Registers = lang.record("Registers", REGISTERS)
    # a word of type uint32
    Register = lang.record("Register", "word")

    @lang.device
    def nothing():
        return Register(0).word

    @lang.device
    def words_of(pointers, row):
        return ptx.ld_shared_v4_b32(pointers[at.weights] + row * cfg.weight_pitch)

    @lang.device
    def points_of(pointers, group):
        """The zero points of the lane's columns, those of word j at nibbles j and j + 4."""
        if zeroed:
            return ptx.ld_shared_b32(pointers[at.zeros] + group * cfg.zero_pitch)
        return nothing()

    @lang.device
    def columns_of(word, zeros):
        lower, upper = of_bytes.bytes_of(word, zeros)
        return even(lower, upper), odd(lower, upper)

    def product_verb(replaces):
        """-> device function (sums, fragment, b, o): into, or added to, four sums from o on."""

        @lang.device
        def product(sums, fragment, b, o):
            if replaces:
                before = int32(0), int32(0), int32(0), int32(0)
            else:
                before = sums[o], sums[o + 1], sums[o + 2], sums[o + 3]
            d = ptx.mma_m16n8k32_s32_s8_s8(fragment, b, before)
            for r in range(4):
                sums[o + r] = d[r]

        return product

    def pair_verb(replaces):
        """-> device function: pair ``number`` of the warp's, all rows of x."""
        product = product_verb(replaces)

        @lang.device
        def multiply_pair(registers, pointers, points, number):
            first, second = words_of(pointers, 2 * number), words_of(pointers, 2 * number + 1)
            x = cuda.local.array(cfg.x_words, uint32)
            for n8 in range(cfg.n8_blocks):
                b = ptx.ldmatrix_x2(pointers[at.x + n8] + number * (2 * cfg.x_row_bytes))
                x[2 * n8] = b[0]
                x[2 * n8 + 1] = b[1]
            for j in range(4):
                zeros = of_bytes.zeros_of(points >> (4 * j))
                d0, d1 = columns_of(first[j], zeros)
                d2, d3 = columns_of(second[j], zeros)
                for n8 in range(cfg.n8_blocks):
                    o = 4 * (cfg.n8_blocks * j + n8)
                    product(registers.products, (d0, d1, d2, d3), (x[2 * n8], x[2 * n8 + 1]), o)

        return multiply_pair

    multiply_first, multiply_next, product_of_row = (
        pair_verb(replaces=True),
        pair_verb(replaces=False),
        product_verb(replaces=True),
    )

    @lang.device
    def multiply_row(registers, pointers, points, row):
        """A k16 row that comes alone: the other half of the product is of zeros."""
        words = words_of(pointers, row)
        for j in range(4):
            d0, d1 = columns_of(words[j], of_bytes.zeros_of(points >> (4 * j)))
            for n8 in range(cfg.n8_blocks):
                b = ptx.ldmatrix_x1(pointers[at.x + n8] + row * cfg.x_row_bytes)
                o = 4 * (cfg.n8_blocks * j + n8)
                product_of_row(
                    registers.products, (d0, d1, nothing(), nothing()), (uint32(b), nothing()), o
                )

    # ---- promotion

    @lang.device
    def promote_group(registers, pointers, group):
        acc, sums = registers.acc, registers.products
        scales = ptx.ld_shared_v4_b32(pointers[at.scales] + group * cfg.scale_pitch)
        for j in range(4):
            low, high = low_of(scales[j]), high_of(scales[j])
            for n8 in range(cfg.n8_blocks):
                o = 4 * (cfg.n8_blocks * j + n8)
                acc[o] = ptx.fma_rn_f32(of_bytes.as_float(sums[o]), low, acc[o])
                acc[o + 1] = ptx.fma_rn_f32(of_bytes.as_float(sums[o + 1]), low, acc[o + 1])
                acc[o + 2] = ptx.fma_rn_f32(of_bytes.as_float(sums[o + 2]), high, acc[o + 2])
                acc[o + 3] = ptx.fma_rn_f32(of_bytes.as_float(sums[o + 3]), high, acc[o + 3])

    @lang.device
    def promote_columns(registers, pointers, group):
        for i in range(cfg.accumulators):
            registers.acc[i] += float32(registers.products[i])

    promote = promote_group if grouped else promote_columns

    # ---- a stage

    @lang.device
    def no_pair_left(registers, pointers, shared, place, lane, points):
        pass

    def pairs_from(number):
        """-> device function: pair ``number``, then all after it, unrolled as in
        ``kernels.decode.multiply.double_buffered``."""
        group, begins, ends, last = place_of_pair(config, number)
        following_pairs = no_pair_left if last else pairs_from(number + 1)
        multiply = multiply_first if begins else multiply_next

        @lang.device
        def multiply_pairs(registers, pointers, shared, place, lane, points):
            if begins:
                points = points_of(pointers, group)
            multiply(registers, pointers, points, number)
            if ends:
                promote(registers, pointers, group)
            if last:
                done_with_stage(shared, place, lane)
            following_pairs(registers, pointers, shared, place, lane, points)

        return multiply_pairs

    all_pairs = pairs_from(0)

    @lang.device
    def multiply_full(registers, pointers, shared, place, lane):
        all_pairs(registers, pointers, shared, place, lane, nothing())

    @lang.device
    def multiply_tail(registers, pointers, k16_rows):
        row = 0
        while row < k16_rows:
            group = row // cfg.k16_rows_per_sum
            multiply_row(registers, pointers, points_of(pointers, group), row)
            promote(registers, pointers, group)
            row += 1

    return lang.namespace(
        "multiply",
        Registers=Registers,
        stage_offsets=fetch.stage_offsets,
        multiply_stage=stage_verb(lang, config, at, multiply_full, multiply_tail, done_with_stage),
        done_with_stage=done_with_stage,
        reads_upper_first=weights.reads_upper_first,
        products_length=config.accumulators,
        zeros_or_scales_length=1,
        minus_x_length=1,
        offsets_length=at.length,
    )
