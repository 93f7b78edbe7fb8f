"""Block-scaled FP4 in the decode kernel (``decode``): from a stage's words and scales to A
fragments, exact weights but for powers of two.

``weight_verbs(lang, config)`` -> the namespace that ``decode_weights`` has for integers, with words
of scales in the place of zero points. ``half``: which of two pairs of k16 rows, ``of_pair``: which
row of it. ``fetch_block_scales(scales, half, address)``: a lane's words of scales for a pair;
``turn_block_scales(scales, row)``: for a row that comes alone: as if it were the first of its pair.

Scales multiply weights, not sums: a block has but one k16 row, or two, and to scale its sums takes
an instruction for each of 16 accumulators and each 8 rows of x, where weights take 16 for any
number of them, and need no second set of accumulators. (The sums of 8 rows would have come out
level.)
"""

from types import SimpleNamespace

from numba_marlin.kernels.dequantize.expand_fp4 import fp4_verbs


def weight_verbs(lang, config):
    ptx, uint32 = lang.ptx, lang.uint32
    fp4 = fp4_verbs(lang, config.dtype)
    expand, other_pair, scale_pair = fp4.expand, fp4.other_pair, fp4.scale_pair
    times = {"float16": ptx.mul_f16x2, "bfloat16": ptx.mul_bf16x2}[config.dtype]
    # whether a word of scales has a pair for either k16 row, or pairs of two column blocks
    ROW_BLOCKS = config.group_blocks == 1
    SCALE_WORDS = 4 if ROW_BLOCKS else 2

    @lang.device
    def upper_first(lane):
        return False

    @lang.device
    def fetch_words(words, at, address, other):
        q = ptx.ld_shared_v4_b32(address)
        for j in range(4):
            words[at + j] = q[j]

    @lang.device
    def fetch_block_scales(scales, half, address):
        at = SCALE_WORDS * half
        if ROW_BLOCKS:
            q = ptx.ld_shared_v4_b32(address)
            for i in range(4):
                scales[at + i] = q[i]
        else:
            q = ptx.ld_shared_v2_b32(address)
            scales[at], scales[at + 1] = q[0], q[1]

    @lang.device
    def turn_block_scales(scales, row):
        if ROW_BLOCKS:
            for i in range(4):
                scales[i] = other_pair(scales[i]) if row % uint32(2) != uint32(0) else scales[i]

    @lang.device
    def pair_of(scales, half, j, of_pair):
        word, second = (
            (SCALE_WORDS * half + j, of_pair == 1)
            if ROW_BLOCKS
            else (SCALE_WORDS * half + j // 2, j % 2 == 1)
        )
        return scale_pair(other_pair(scales[word]) if second else scales[word])

    @lang.device
    def fragment(words, at, j, scales, upper_first, half, of_pair):
        """Column block j of a k16 row whose words begin at ``at``, as the A fragment of the
        transposed product."""
        w, pair = expand(words[at + j]), pair_of(scales, half, j, of_pair)
        low, high = ptx.both_low_f16x2(pair), ptx.both_high_f16x2(pair)
        return times(w[0], low), times(w[2], high), times(w[1], low), times(w[3], high)

    return SimpleNamespace(
        words=4,
        zero_registers=2 * SCALE_WORDS,
        upper_first=upper_first,
        fetch_words=fetch_words,
        fetch_block_scales=fetch_block_scales,
        turn_block_scales=turn_block_scales,
        fragment=fragment,
    )
