"""Block-scaled FP4 in ``decode``: from a stage's words and scales to A fragments, weights that are
exact but for a factor per column.

``weight_verbs(lang, config)`` -> the namespace that ``weights`` has for integers, with words of
scales in ``zeros_or_scales``. ``slot``, ``buffer`` and ``of_pair``: see ``multiply``. A *scale
block* is the 16 or 32 weights of one column that share a scale; a *pair* alone is two k16 rows, as
in ``kernel``; a *scale pair* is the scales of columns g and g + 8 of 16, in the halves of a word.

**Codes** are e2m1. A word has the eight elements that Marlin's word of nibbles at the same place
has (``weights`` has its place in b): ``dequantize.expand_fp4`` makes four registers of it, and
register r (0 to 3) of word j has in its low half (h = 0) and high half (h = 1)

    k = 2t + h + 8 (r % 2),  n = 16j + g + 8 (r // 2)

as nibble r + 4h of an integer word would. But the word has no nibbles: a register is the exclusive
or of the word, shifted in one or two ways, under a mask, so that codes need no table. The mask has
the four bits of a code where a 16-bit float of ``dtype`` has its sign, the end of its exponent and
the beginning of its significand: bits 15 and 11 to 9 of each half for float16, 15 and 8 to 6 for
bfloat16. The shifts are in ``dequantize.expand_fp4``, and the word was permuted to suit them
(``formats.fp4_words``). They are others for either type, so **b is packed for one dtype** of x: the
same weight has other words for float16 and for bfloat16.

**Scales** are 8 bits, bits 14 to 7 of a float16 (5 of exponent, 3 of significand, no sign). A word
has two scale pairs. The first stands in bits 14 to 7 (column g) and 30 to 23 (g + 8); the second
stands there after the word is rotated left by 8 (``other_pair``). In global memory and in a stage,
the scales of 64 columns and 32 rows of W (a pair) are words [g][i]:

- scale blocks of 16: i = 0 to 3. Columns 16i + g and 16i + g + 8; the first scale pair is of the
  first k16 row, the second of the second.
- scale blocks of 32: i = 0 and 1. The first scale pair is of columns 32i + g and 32i + g + 8, the
  second of the two columns 16 further, both for 32 rows.

**Units.** A fragment's element is code * scale * 2**-14, exactly, as the format stores the scale
(that is in a unit of its own). The parameter ``factors`` has for each column what makes up for both
units, a power of two, times the weight's global scale: the epilogue multiplies fp32 accumulators by
it (``output.multiply_columns``).

``block_scales_of_pair(scales, buffer, address)``: fetches a lane's words of scales for a pair.
``block_scales_of_row(scales, row, address)``: for a row that comes alone, as if it were the first
of its pair.

Scales multiply weights, not accumulators: a scale block is one k16 row deep, or two. To scale its
accumulators takes 16 instructions per n8 block; to scale its weights takes 16 per k16 row for any
number of rows of x, and no second set of accumulators. (With scale blocks of 16 and batch=8 it
comes out level.)
"""

from numba_marlin.kernels.dequantize.expand_fp4 import fp4_verbs


def weight_verbs(lang, config):
    ptx = lang.ptx
    numbers = fp4_verbs(lang, config.dtype)
    scale_verbs = {1: scales_of_16, 2: scales_of_32}[config.group_blocks](lang, numbers)
    times = {"float16": ptx.mul_f16x2, "bfloat16": ptx.mul_bf16x2}[config.dtype]

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
    def no_zeros(scales, address):
        pass

    @lang.device
    def fragment(registers, slot, j, of_pair):
        """16-column block j of a k16 row, as the A fragment of the transposed product."""
        w = numbers.expand(registers.words[4 * slot + j])
        scales = scale_verbs.word_of(registers.zeros_or_scales, slot // 2, j, of_pair)
        scale_pair = numbers.scale_pair(scales)
        low, high = ptx.both_low_f16x2(scale_pair), ptx.both_high_f16x2(scale_pair)
        return times(w[0], low), times(w[2], high), times(w[1], low), times(w[3], high)

    return lang.namespace(
        "weights",
        zeros_or_scales_length=scale_verbs.registers,
        reads_upper_first=reads_upper_first,
        fetch_words=fetch_words,
        unpack_zeros=no_zeros,
        block_scales_of_pair=scale_verbs.block_scales_of_pair,
        block_scales_of_row=scale_verbs.block_scales_of_row,
        fragment=fragment,
    )


def scales_of_16(lang, numbers):
    """Scale blocks of 16: a word has a scale pair for either k16 row; four words per lane and pair
    of rows. ``word_of``: the word whose first scale pair is that of 16-column block j."""
    ptx = lang.ptx

    @lang.device
    def block_scales_of_pair(scales, buffer, address):
        q = ptx.ld_shared_v4_b32(address)
        for j in range(4):
            scales[4 * buffer + j] = q[j]

    @lang.device
    def block_scales_of_row(scales, row, address):
        block_scales_of_pair(scales, 0, address)
        for j in range(4):
            scales[j] = numbers.other_pair(scales[j]) if row % 2 != 0 else scales[j]

    @lang.device
    def word_of(scales, buffer, j, of_pair):
        word = scales[4 * buffer + j]
        return numbers.other_pair(word) if of_pair == 1 else word

    return lang.namespace(
        "scales",
        registers=8,
        block_scales_of_pair=block_scales_of_pair,
        block_scales_of_row=block_scales_of_row,
        word_of=word_of,
    )


def scales_of_32(lang, numbers):
    """Scale blocks of 32: a word has the scale pairs of two 16-column blocks, for both k16 rows."""
    ptx = lang.ptx

    @lang.device
    def block_scales_of_pair(scales, buffer, address):
        q = ptx.ld_shared_v2_b32(address)
        for i in range(2):
            scales[2 * buffer + i] = q[i]

    @lang.device
    def block_scales_of_row(scales, row, address):
        block_scales_of_pair(scales, 0, address)

    @lang.device
    def word_of(scales, buffer, j, of_pair):
        word = scales[2 * buffer + j // 2]
        return numbers.other_pair(word) if j % 2 == 1 else word

    return lang.namespace(
        "scales",
        registers=4,
        block_scales_of_pair=block_scales_of_pair,
        block_scales_of_row=block_scales_of_row,
        word_of=word_of,
    )
