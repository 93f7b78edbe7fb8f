"""From a stage's words to A fragments, for every integer type of weight that ``decode`` takes.

``weight_verbs(lang, config)`` -> namespace of device functions, and the length of the array
``zeros_or_scales``: integer zero points here, scales in ``fp4``, whose namespace has the same
names. registers, slot, buffer, of_pair: see ``multiply``; j: which 16 of the 64 columns; half:
which 8 of those. ``unpack_zeros`` fetches and unpacks a group's integer zero points;
``block_scales_of_pair`` and ``block_scales_of_row`` are for FP4 and do nothing here.

A lane's share of a k16 row and 64 columns is ``row_words`` words. Those of 16-column block j are
word j, or, of 8-bit codes, words 2j and 2j + 1. Lane 4g + t holds W[k, n] of these 16 x 64

- as nibble p of word j:     k = 2t + p // 4 + 8 (p % 2),  n = 16j + g + 8 (p // 2 % 2)
- as byte p of word 2j + h:  k = 2t + p // 2 + 8 (p % 2),  n = 16j + g + 8h

with p from 0 to 7 (nibbles) or 0 to 3 (bytes), counted from the lowest bits, and h 0 or 1. In
global memory, b int32 [k/16, n_packed bits/2], that word of k16 row R and 64 columns number B is

- 4 bits: element R * 2 n_packed + 128 B + 4 (4g + t) + j
- 8 bits: element R * 4 n_packed + 256 B + 8 (4g + t) + 2j + h

and there k and n count from 16 R and 64 B. ``expand`` makes registers of two weights, W[k, n] and
W[k + 1, n]: those of a 4-bit word j are for (k, n) = (2t, g), (2t + 8, g), (2t, g + 8) and (2t + 8,
g + 8) of 16-column block j, those of an 8-bit word for both k and one n. The A fragment has both n
of one k before those of the other: ``fragment`` returns them in that order.

A lane of 8-bit codes has 32 bytes, two loads of 16. If all lanes loaded their lower half first,
lanes 0 and 4 would want the same bank. So lanes of odd g begin with their upper half: the 8 lanes
of a phase then touch all 32 banks once. They pick the words that are meant when they expand them,
which is 8 instructions per k16 row (two selects for each j); the row's 1024 bytes take twice as
long to arrive as those of 4 bits. (Counted, not timed.)
"""

from numba_marlin.kernels.decode.zero_points import zero_point_verbs
from numba_marlin.kernels.dequantize.expand import expand_verbs
from numba_marlin.kernels.dequantize.lookup import MIDDLE


def weight_verbs(lang, config):
    code_verbs = zero_point_verbs if config.zeros == "integer" else symmetric_verbs
    codes = code_verbs(lang, config)
    by_bits = {4: nibble_verbs, 8: byte_verbs}[config.bits](lang, codes)

    @lang.device
    def no_scales_of_pair(scales, buffer, address):
        pass

    @lang.device
    def no_scales_of_row(scales, row, address):
        pass

    return lang.namespace(
        "weights",
        zeros_or_scales_length=codes.registers,
        reads_upper_first=by_bits.reads_upper_first,
        fetch_words=by_bits.fetch_words,
        unpack_zeros=codes.unpack_zeros,
        block_scales_of_pair=no_scales_of_pair,
        block_scales_of_row=no_scales_of_row,
        fragment=by_bits.fragment,
    )


def symmetric_verbs(lang, config):
    """Codes minus the middle of their range (8 or 128), or, where ``promote`` subtracts float16
    zero points, minus nothing."""
    origin = 0 if config.zeros == "float16" else MIDDLE[config.bits]
    expand_word = expand_verbs(lang, config.product_dtype, config.bits, origin)

    @lang.device
    def expand(word, zeros, j, half):
        return expand_word(word)

    @lang.device
    def no_zeros(zeros, address):
        pass

    return lang.namespace("codes", registers=1, expand=expand, unpack_zeros=no_zeros)


def nibble_verbs(lang, codes):
    """4-bit codes: four words per lane and k16 row."""
    ptx = lang.ptx

    @lang.device
    def reads_upper_first(lane):
        return False

    @lang.device
    def fetch_words(words, start, address, second_address):
        """A lane's words of a k16 row, to words[start] and after."""
        q = ptx.ld_shared_v4_b32(address)
        for j in range(4):
            words[start + j] = q[j]

    @lang.device
    def fragment(registers, slot, j, of_pair):
        """16-column block j of a k16 row, as the A fragment of the transposed product."""
        w = codes.expand(registers.words[4 * slot + j], registers.zeros_or_scales, j, 0)
        return w[0], w[2], w[1], w[3]

    return lang.namespace(
        "nibbles", reads_upper_first=reads_upper_first, fetch_words=fetch_words, fragment=fragment
    )


def byte_verbs(lang, codes):
    """8-bit codes: eight words per lane and k16 row."""
    ptx = lang.ptx

    @lang.device
    def reads_upper_first(lane):
        """Whether a lane begins with the upper half of its words."""
        return lane // 4 % 2 != 0

    @lang.device
    def fetch_words(words, start, address, second_address):
        """A lane's words of a k16 row, to words[start] and after; second_address: of the half that
        is fetched second. So the first four are the upper half where ``reads_upper_first``."""
        q = ptx.ld_shared_v4_b32(address)
        for j in range(4):
            words[start + j] = q[j]
        q = ptx.ld_shared_v4_b32(second_address)
        for j in range(4):
            words[start + 4 + j] = q[j]

    @lang.device
    def fragment(registers, slot, j, of_pair):
        """16-column block j of a k16 row, as the A fragment of the transposed product."""
        words, zeros = registers.words, registers.zeros_or_scales
        # where words 2j and 2j + 1 are, if the lower half was fetched first, and if the upper one
        one, other = 8 * slot + 2 * j, 8 * slot + (2 * j + 4) % 8
        low_word = words[other] if registers.upper_first else words[one]
        high_word = words[other + 1] if registers.upper_first else words[one + 1]
        low, high = codes.expand(low_word, zeros, j, 0), codes.expand(high_word, zeros, j, 1)
        return low[0], high[0], low[1], high[1]

    return lang.namespace(
        "bytes", reads_upper_first=reads_upper_first, fetch_words=fetch_words, fragment=fragment
    )
