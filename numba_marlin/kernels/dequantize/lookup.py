"""Device verbs that find one weight, one scale, one zero point in Marlin's order: the closed forms
of ``formats.marlin_order``, for a kernel that is there to be understood (``general``, whose
docstring has the same formulas read the other way, from the place to k and n).
``half_verbs`` reads and writes numbers of the 16-bit float types.

A *piece* is 16 rows by 64 columns of W: 1024 codes, side by side in a row of b. (``marlin_order``
calls it a block.) Its 64 columns are 8 *tiles* of 8, each multiplied by one ``mma.m16n8k16``, whose
B fragment has in lane 4 g + t the codes of column g of the tile and of rows 2 t, 2 t + 1, 2 t + 8
and 2 t + 9. A lane's words are side by side: 4 of 8 codes (two tiles each), or 8 of 4 codes.
"""

MIDDLE = {4: 8, 8: 128}  # the zero point of symmetric weights


def half_verbs(lang, dtype):
    """-> (load(address, index) -> float32, store(address, index, float32)) of 16-bit floats."""
    ptx, uint16, uint32, uint64 = lang.ptx, lang.uint16, lang.uint32, lang.uint64

    @lang.device
    def load_float16(address, index):
        return ptx.cvt_f32_f16(ptx.ld_global_b16(address + uint64(index) * 2))

    @lang.device
    def store_float16(address, index, value):
        ptx.st_global_b16(address + uint64(index) * 2, ptx.cvt_rn_f16_f32(value))

    @lang.device
    def load_bfloat16(address, index):
        return ptx.cvt_f32_bf16_low(uint32(ptx.ld_global_b16(address + uint64(index) * 2)))

    @lang.device
    def store_bfloat16(address, index, value):
        ptx.st_global_b16(address + uint64(index) * 2, uint16(ptx.cvt_rn_bf16x2_f32(value, value)))

    return (load_float16, store_float16) if dtype == "float16" else (load_bfloat16, store_bfloat16)


def weight_verbs(lang, config):
    """-> (load_code, load_scale, load_zero), float32 each, of a column. config: bits, zeros,
    scale_dtype and group_size as ``general`` has them."""
    ptx, uint64, int32, float32 = lang.ptx, lang.uint64, lang.int32, lang.float32
    bits, zeros, per_column = config.bits, config.zeros, config.group_size == -1
    words_per_lane = bits  # of a piece: 4 words of 8 codes, or 8 words of 4 codes
    last_code = (1 << bits) - 1
    middle = MIDDLE[bits]
    load_scale_value, _ = half_verbs(lang, config.scale_dtype)
    load_zero_value, _ = half_verbs(lang, "float16")

    @lang.device
    def extract(address, word, number):
        """Code ``number`` of a word: ``bits`` bits, from bit bits * number on."""
        # a code is below 256, so as int32 it is the same number: that conversion is used
        return float32(int32(ptx.ld_global_b32(address + word * 4) >> (bits * number) & last_code))

    @lang.device
    def load_code(b, k16_row, k_inside, col, n_packed):
        """The code of W[16 * k16_row + k_inside, col]."""
        inside, tile = col % 64, col % 64 // 8
        lane = inside % 8 * 4 + k_inside % 8 // 2
        if bits == 4:  # a word serves two tiles
            number = 4 * (k_inside % 2) + 2 * (tile % 2) + k_inside // 8
            lane_word = tile // 2
        else:
            number = 2 * (k_inside % 2) + k_inside // 8
            lane_word = tile
        word = col // 64 * (32 * words_per_lane) + lane * words_per_lane + lane_word
        return extract(b, uint64(k16_row) * (bits // 2 * n_packed) + word, number)

    @lang.device
    def load_scale(scales, group, col, n_packed, k):
        """Of a group, beside each other: those of column g of the 8 tiles, which a lane multiplies
        its weights by. Of a column (group 0): those that a lane of the fast kernels multiplies its
        sums by, columns 2 t and 2 t + 1 of 4 tiles. k is not used; ``lookup_fp4`` needs it."""
        inside = col % (32 if per_column else 64)
        if per_column:
            position = 8 * (inside % 8 // 2) + 2 * (inside // 8) + inside % 2
        else:
            position = 8 * (inside % 8) + inside // 8
        return load_scale_value(scales, uint64(group) * n_packed + (col - inside + position))

    @lang.device
    def load_zero(address, group, col, n_packed):
        """Beside each other: those of column g of the 8 tiles, as floats; or packed, so that each
        register of the dequantised word holds those of two neighbouring tiles."""
        inside, tile = col % 64, col % 64 // 8
        if zeros is None:
            return float32(middle)
        if zeros == "float16":
            return load_zero_value(
                address,
                uint64(group) * n_packed + (col - inside + 8 * (inside % 8) + tile),
            )
        row = uint64(group) * (n_packed // (32 // bits))
        if bits == 4:
            word, number = inside % 8, tile // 2 + 4 * (tile % 2)
        else:
            word = 2 * (inside % 8) + tile // 4
            number = tile % 4 // 2 + 2 * (tile % 2)
        return extract(address, row + (col // 64 * (2 * bits) + word), number)

    return load_code, load_scale, load_zero
