"""Block-scaled FP4 in ``decode``: from a stage's words and scales to A fragments, exact weights but
for powers of two.

``weight_verbs(lang, config)`` -> the namespace that ``weights`` has for integers, with words of
scales in ``zeros_or_scales``. ``buffer`` and ``of_pair``: see ``multiply``. An FP4 block is the 16
or 32 weights of one column that share a scale.

Codes: e2m1, in the places of Marlin's nibbles, the bits of a word turned so that they need no table
(``formats.fp4_words``; ``dequantize.expand_fp4`` takes them out). Scales: 8 bits that are bits 14
to 7 of a float16. In global memory and in a stage, the scales of 64 columns and 32 rows of W (a
pair) are words [g][i]. FP4 blocks of 16: i = 0 to 3, a word has those of columns 16i + g and
16i + g + 8, of the first k16 row and then of the second. Blocks of 32: i = 0 and 1, a word has
those of columns 32i + g and 32i + g + 8, then those of the two columns 16 further.

``block_scales_of_pair(scales, buffer, address)``: a lane's words of scales for a pair.
``block_scales_of_row(scales, row, address)``: for a row that comes alone, as if it were the first
of its pair.

Scales multiply weights, not accumulators: an FP4 block is one k16 row, or two. To scale its
accumulators takes 16 instructions per n8 block; to scale its weights takes 16 per k16 row for any
number of rows of x, and no second set of accumulators. (With blocks of 16 and batch=8 it comes out
level.)
"""

from numba_marlin.kernels.dequantize.expand_fp4 import fp4_verbs


def weight_verbs(lang, config):
    ptx = lang.ptx
    numbers = fp4_verbs(lang, config.dtype)
    scales_verbs = {1: scales_of_16, 2: scales_of_32}[config.group_blocks](lang, numbers)
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
        """Column block j of a k16 row, as the A fragment of the transposed product."""
        w = numbers.expand(registers.words[4 * slot + j])
        scales = scales_verbs.word_of(registers.zeros_or_scales, slot // 2, j, of_pair)
        pair = numbers.scale_pair(scales)
        low, high = ptx.both_low_f16x2(pair), ptx.both_high_f16x2(pair)
        return times(w[0], low), times(w[2], high), times(w[1], low), times(w[3], high)

    return lang.namespace(
        "weights",
        zeros_or_scales_length=scales_verbs.registers,
        reads_upper_first=reads_upper_first,
        fetch_words=fetch_words,
        unpack_zeros=no_zeros,
        block_scales_of_pair=scales_verbs.block_scales_of_pair,
        block_scales_of_row=scales_verbs.block_scales_of_row,
        fragment=fragment,
    )


def scales_of_16(lang, numbers):
    """Blocks of 16: a word of scales has a pair for either k16 row, four words per pair of rows.
    ``word_of``: the word whose first pair is that of column block j."""
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
    """Blocks of 32: a word of scales has the pairs of two column blocks, for both k16 rows."""
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
