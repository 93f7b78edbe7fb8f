"""Device verbs that find one code, one scale, one factor of block-scaled FP4: ``lookup``'s
relatives, the closed forms of ``formats.fp4_marlin``. The docstring of ``general`` has the layout,
``expand_fp4`` the bits of a word."""

from numba_marlin.kernels.dequantize.expand_fp4 import fp4_verbs


def weight_verbs(lang, config):
    """-> (load_code, load_scale, load_factor), which return float32: their product is the weight.
    config: dtype and group_size, 16 or 32."""
    ptx, uint64 = lang.ptx, lang.uint64
    groups_of_16 = config.group_size == 16
    # words of scales for 32 rows of W and, of 64 columns, the 8 that have the same col % 8
    column_words = 4 if groups_of_16 else 2
    fp4 = fp4_verbs(lang, config.dtype)
    low, high = {
        "float16": (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high),
        "bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high),
    }[config.dtype]

    @lang.device
    def load_code(b, k16_row, k_inside, col, n_packed):
        """The number that the code of W[16 * k16_row + k_inside, col] stands for, times 2**-14
        (float16) or 2**-126 (bfloat16). Its word, and its register and half in the dequantised
        word, are those of a 4-bit code of Marlin (``lookup``)."""
        tile = col % 64 // 8
        lane = col % 8 * 4 + k_inside % 8 // 2
        place = col // 64 * 128 + lane * 4 + tile // 2
        word = uint64(k16_row) * (2 * n_packed) + place
        registers = fp4.expand(ptx.ld_global_b32(b + word * 4))
        first, second = (
            (registers[2], registers[3]) if tile % 2 == 1 else (registers[0], registers[1])
        )
        register = second if k_inside >= 8 else first
        return high(register) if k_inside % 2 == 1 else low(register)

    @lang.device
    def load_scale(scales, group, col, n_packed, k):
        """As it is stored (float16), or that times 2**112 (bfloat16). k: rows of W, from which
        follow the rows of scales, each of 32 rows of W. n_packed is not used."""
        inside = col % 64
        g, j = inside % 8, inside // 16  # j: of the four 16 columns of 64
        # a word has two pairs: of group_size 16, of two groups; else of two of the 16 columns
        row, word, second = (group // 2, j, group % 2) if groups_of_16 else (group, j // 2, j % 2)
        place = (col // 64 * ((k + 31) // 32) + row) * (8 * column_words) + g * column_words + word
        pairs = ptx.ld_global_b32(scales + uint64(place) * 4)
        pair = fp4.scale_pair(fp4.other_pair(pairs) if second == 1 else pairs)
        return high(pair) if col % 16 >= 8 else low(pair)

    @lang.device
    def load_factor(factors, col):
        """The global scale, times what undoes both units."""
        pair = ptx.ld_global_v2_f32(factors + uint64(col // 16 * 16 + col % 8 * 2) * 4)
        return pair[1] if col % 16 >= 8 else pair[0]

    return load_code, load_scale, load_factor
