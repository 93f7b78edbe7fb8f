"""Device verbs that find one number, one scale, one factor of block-scaled FP4: ``lookup``'s
relatives, the closed forms of ``formats.fp4_marlin``."""

from numba_marlin.kernels.dequantize.expand_fp4 import fp4_verbs


def weight_verbs(lang, config):
    """-> (load_number, load_scale, load_factor), float32 each, of a column; their product is the
    weight. config: dtype and group_size, 16 or 32."""
    ptx, uint64 = lang.ptx, lang.uint64
    ROW_BLOCKS = config.group_size == 16
    LANE_WORDS = 4 if ROW_BLOCKS else 2  # of scales, for 32 rows
    fp4 = fp4_verbs(lang, config.dtype)
    low, high = {
        "float16": (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high),
        "bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high),
    }[config.dtype]

    @lang.device
    def load_number(b, k_row, k_inside, col, n_packed):
        """The code of W[16 * k_row + k_inside, col], in its type's unit: its place among words and
        registers is that of a Marlin nibble."""
        tile = col % 64 // 8
        lane = col % 8 * 4 + k_inside % 8 // 2
        place = col // 64 * 128 + lane * 4 + tile // 2
        registers = fp4.expand(ptx.ld_global_b32(b + (uint64(k_row) * (2 * n_packed) + place) * 4))
        first, second = (
            (registers[2], registers[3]) if tile % 2 == 1 else (registers[0], registers[1])
        )
        register = second if k_inside >= 8 else first
        return high(register) if k_inside % 2 == 1 else low(register)

    @lang.device
    def load_scale(scales, group, col, k):
        """In its type's unit. group: of the weight's rows, of which there are k."""
        inside = col % 64
        g, j = inside % 8, inside // 16
        row, word, second = (group // 2, j, group % 2) if ROW_BLOCKS else (group, j // 2, j % 2)
        place = (col // 64 * ((k + 31) // 32) + row) * (8 * LANE_WORDS) + g * LANE_WORDS + word
        pairs = ptx.ld_global_b32(scales + uint64(place) * 4)
        pair = fp4.scale_pair(fp4.other_pair(pairs) if second == 1 else pairs)
        return high(pair) if col % 16 >= 8 else low(pair)

    @lang.device
    def load_factor(factors, col):
        """What makes up for both units, and the global scale."""
        pair = ptx.ld_global_v2_f32(factors + uint64(col // 16 * 16 + col % 8 * 2) * 4)
        return pair[1] if col % 16 >= 8 else pair[0]

    return load_number, load_scale, load_factor
