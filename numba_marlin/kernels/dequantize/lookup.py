"""Device verbs that find one weight, one scale, one zero point in Marlin's order: the closed forms
of ``formats.marlin_order``, for a kernel that wants to understand rather than to be fast.
``half_verbs`` reads and writes numbers of the 16-bit float types.
"""

MIDDLE = {4: 8, 8: 128}  # the zero point of symmetric weights


def half_verbs(lang, dtype):
    """-> (load(address, index) -> float32, store(address, index, float32)) of 16-bit floats."""
    ptx, uint16, uint32, uint64 = lang.ptx, lang.uint16, lang.uint32, lang.uint64

    @lang.device
    def load_float16(address, index):
        return ptx.cvt_f32_f16(ptx.ld_global_b16(address + uint64(index) * uint64(2)))

    @lang.device
    def store_float16(address, index, value):
        ptx.st_global_b16(address + uint64(index) * uint64(2), ptx.cvt_rn_f16_f32(value))

    @lang.device
    def load_bfloat16(address, index):
        return ptx.cvt_f32_bf16_low(uint32(ptx.ld_global_b16(address + uint64(index) * uint64(2))))

    @lang.device
    def store_bfloat16(address, index, value):
        ptx.st_global_b16(
            address + uint64(index) * uint64(2), uint16(ptx.cvt_rn_bf16x2_f32(value, value))
        )

    return (load_float16, store_float16) if dtype == "float16" else (load_bfloat16, store_bfloat16)


def weight_verbs(lang, config):
    """-> (load_code, load_scale, load_zero), float32 each, of a column. config: bits, zeros,
    scale_dtype and group_size as ``naive`` has them."""
    ptx, uint32, uint64, int32, float32 = (
        lang.ptx,
        lang.uint32,
        lang.uint64,
        lang.int32,
        lang.float32,
    )
    bits, zeros, per_column = config.bits, config.zeros, config.group_size == -1
    words_per_lane = bits  # of a block of 16 x 64: 4 with 8 codes, or 8 with 4 codes
    last_code = (1 << bits) - 1
    middle = MIDDLE[bits]
    load_scale_value = half_verbs(lang, config.scale_dtype)[0]
    load_zero_value = half_verbs(lang, "float16")[0]

    @lang.device
    def extract(address, word, number):
        """Code ``number`` of a word."""
        return float32(
            int32(
                ptx.ld_global_b32(address + word * uint64(4)) >> (uint32(bits) * number)
                & uint32(last_code)
            )
        )

    @lang.device
    def load_code(b, k_row, k_inside, col, n_packed):
        """The code of W[16 * k_row + k_inside, col]: its lane holds 2 rows side by side, of each
        half of the 16, in one column of each n8 tile."""
        inside, tile = col % uint32(64), col % uint32(64) // uint32(8)
        lane = inside % uint32(8) * uint32(4) + k_inside % uint32(8) // uint32(2)
        if bits == 4:  # a word serves two tiles
            number = (
                uint32(4) * (k_inside % uint32(2))
                + uint32(2) * (tile % uint32(2))
                + k_inside // uint32(8)
            )
            tile = tile // uint32(2)
        else:
            number = uint32(2) * (k_inside % uint32(2)) + k_inside // uint32(8)
        word = (
            col // uint32(64) * uint32(32 * words_per_lane) + lane * uint32(words_per_lane) + tile
        )
        return extract(
            b, uint64(k_row) * uint64(uint32(bits // 2) * n_packed) + uint64(word), number
        )

    @lang.device
    def load_scale(scales, group, col, n_packed):
        inside = col % uint32(32 if per_column else 64)
        if per_column:
            position = (
                uint32(8) * (inside % uint32(8) // uint32(2))
                + uint32(2) * (inside // uint32(8))
                + inside % uint32(2)
            )
        else:
            position = uint32(8) * (inside % uint32(8)) + inside // uint32(8)
        return load_scale_value(
            scales, uint64(group) * uint64(n_packed) + uint64(col - inside + position)
        )

    @lang.device
    def load_zero(address, group, col, n_packed):
        """Beside each other stand those of the 8 tiles, as floats or packed so that a dequantised
        register holds two neighbours."""
        inside, tile = col % uint32(64), col % uint32(64) // uint32(8)
        if zeros is None:
            return float32(middle)
        if zeros == "float16":
            return load_zero_value(
                address,
                uint64(group) * uint64(n_packed)
                + uint64(col - inside + uint32(8) * (inside % uint32(8)) + tile),
            )
        row = uint64(group) * uint64(n_packed // uint32(32 // bits))
        if bits == 4:
            word, number = inside % uint32(8), tile // uint32(2) + uint32(4) * (tile % uint32(2))
        else:
            word = uint32(2) * (inside % uint32(8)) + tile // uint32(4)
            number = tile % uint32(4) // uint32(2) + uint32(2) * (tile % uint32(2))
        return extract(address, row + uint64(col // uint32(64) * uint32(2 * bits) + word), number)

    return load_code, load_scale, load_zero
