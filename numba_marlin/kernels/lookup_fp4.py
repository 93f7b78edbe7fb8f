"""Device verbs that find one number, one scale, one factor of block-scaled FP4: ``lookup``'s relatives, the closed forms of ``formats.fp4_words`` and ``fp4_marlin`` bit by bit.
"""

SIGNS_TAKEN, DIGITS_TAKEN, TAKEN_BY = 0x01010101, 0x70707070, 10
SCALE_PAIR = 0x7F80


def weight_verbs(lang, config):
    """-> (load_number, load_scale, load_factor), float32 each, of a column; their product is the weight. config: group_size, 16 or 32."""
    ptx, uint16, uint32, uint64 = lang.ptx, lang.uint16, lang.uint32, lang.uint64
    ROW_BLOCKS = config.group_size == 16
    LANE_WORDS = 4 if ROW_BLOCKS else 2  # of scales, for 32 rows

    @lang.device
    def float16_of(bits):
        return ptx.cvt_f32_f16(uint16(bits))

    @lang.device
    def load_number(b, k_row, k_inside, col, n_packed):
        """The code of W[16 * k_row + k_inside, col], times 2**-14: its place among words and codes is that of a Marlin nibble."""
        inside, tile = col % uint32(64), col % uint32(64) // uint32(8)
        lane = inside % uint32(8) * uint32(4) + k_inside % uint32(8) // uint32(2)
        place = col // uint32(64) * uint32(128) + lane * uint32(4) + tile // uint32(2)
        word = ptx.ld_global_b32(b + (uint64(k_row) * uint64(uint32(2) * n_packed) + uint64(place)) * uint64(4))
        plain = uint32(word ^ (uint32(word >> uint32(TAKEN_BY)) & uint32(SIGNS_TAKEN)) ^ (uint32(word << uint32(TAKEN_BY)) & uint32(DIGITS_TAKEN)))
        half, upper, lower_byte = k_inside % uint32(2), tile % uint32(2), k_inside // uint32(8)  # of the register: 2 upper + lower_byte
        sign = uint32(plain >> (uint32(16) * half + uint32(15) - uint32(8) * lower_byte - uint32(7) * upper)) & uint32(1)
        digits = uint32(plain >> (uint32(16) * half + uint32(9) - uint32(8) * lower_byte + uint32(3) * upper)) & uint32(7)
        return float16_of(uint32(sign << uint32(15)) | uint32(digits << uint32(9)))

    @lang.device
    def load_scale(scales, group, col, k):
        """In its unit. group: of the weight's rows, of which there are k."""
        inside = col % uint32(64)
        g, j, h = inside % uint32(8), inside // uint32(16), inside % uint32(16) // uint32(8)
        row, word, second = (group // uint32(2), j, group % uint32(2)) if ROW_BLOCKS else (group, j // uint32(2), j % uint32(2))
        place = (col // uint32(64) * ((k + uint32(31)) // uint32(32)) + row) * uint32(8 * LANE_WORDS) + g * uint32(LANE_WORDS) + word
        pairs = ptx.ld_global_b32(scales + uint64(place) * uint64(4))
        turned = uint32(pairs << uint32(8)) | uint32(pairs >> uint32(24))
        pair = turned if second == uint32(1) else pairs
        return float16_of(uint32(pair >> (uint32(16) * h)) & uint32(SCALE_PAIR))

    @lang.device
    def load_factor(factors, col):
        """What makes up for both units, and the global scale."""
        pair = ptx.ld_global_v2_f32(factors + uint64(col // uint32(16) * uint32(16) + col % uint32(8) * uint32(2)) * uint64(4))
        return pair[1] if col % uint32(16) >= uint32(8) else pair[0]

    return load_number, load_scale, load_factor
