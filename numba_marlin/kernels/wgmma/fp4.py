"""Block-scaled FP4 in ``wgmma``: scales, from a stage in shared memory. What the format calls a
block is a scale group here: 16 or 32 rows of one column.

A stage has two scale rows, of 32 rows of W each, [panels][2][8 g][LANE_BYTES]: what the four lanes
of a g need. Groups of 16: LANE_BYTES = 16, word j is that of strip j, with two pairs (columns g and
g + 8), for the first 16 of the 32 rows of W and for the other 16. Groups of 32: LANE_BYTES = 8,
word j // 2 has the pairs of strips j = 0 and 1, or 2 and 3. The first pair of a word is bits 14 to
7 (of column g) and 30 to 23 (g + 8), eight bits of a float16 each; the second is where the first
is when the word is rotated left by 8: bits 6 to 0 and 31 (g), and 22 to 15 (g + 8). Which bits of a
word a code is: ``kernel``.

Units. In 16 bits a code is its number * 2^-14 (float16) or * 2^-126 (bfloat16), its scale is the
stored one, or that * 2^112: in either type a weight is number * stored scale * 2^-14. The column's
factor, global scale * 2^14 / (stored scale / block's scale), undoes both units. That is 2^7 times
the global scale where scales are e4m3, which are stored * 2^7 (e8m0: ``formats.fp4_marlin``).

``block_verbs(lang, config)`` -> namespace of device functions: ``expand``: see ``expand_fp4``;
``load_scales(address, thread) -> scales`` of the row of scales that begins at ``address``, one for
each strip; ``pair_of_row(scale, odd)``: the pair to multiply registers by, odd: of the second k16
row of the 32 rows.
"""

from numba_marlin.kernels.dequantize.expand_fp4 import fp4_verbs


def block_verbs(lang, config):
    ptx = lang.ptx
    fp4, row_blocks = fp4_verbs(lang, config.dtype), config.group_blocks == 1
    LANE_BYTES = 16 if row_blocks else 8

    @lang.device
    def own_scales(address, thread):
        return address + (thread.panel * (2 * 8 * LANE_BYTES) + thread.lane // 4 * LANE_BYTES)

    # Groups of 16: a word for each strip, with a pair for each of two k16 rows, picked when it is
    # needed.

    @lang.device
    def one_word(address):
        return (ptx.ld_shared_b32(address),)

    words_of = {1: one_word, 2: ptx.ld_shared_v2_b32, 4: ptx.ld_shared_v4_b32}[config.strips]

    @lang.device
    def load_words(address, thread):
        return words_of(own_scales(address, thread) + thread.first_strip * 4)

    @lang.device
    def pair_of_word(word, odd):
        return fp4.scale_pair(fp4.other_pair(word) if odd == 1 else word)

    # Groups of 32: a pair for each strip, two to a word, picked when it is loaded.

    @lang.device
    def both_pairs(word):
        word0, word1 = word, fp4.other_pair(word)
        return fp4.scale_pair(word0), fp4.scale_pair(word1)

    @lang.device
    def load_pair(address, thread):
        word = ptx.ld_shared_b32(own_scales(address, thread) + thread.first_strip // 2 * 4)
        return (fp4.scale_pair(fp4.other_pair(word) if thread.first_strip % 2 != 0 else word),)

    @lang.device
    def load_two_pairs(address, thread):
        return both_pairs(ptx.ld_shared_b32(own_scales(address, thread) + thread.first_strip * 2))

    @lang.device
    def load_four_pairs(address, thread):
        words = ptx.ld_shared_v2_b32(own_scales(address, thread))
        return both_pairs(words[0]) + both_pairs(words[1])

    @lang.device
    def same_pair(pair, odd):
        return pair

    load_pairs = {1: load_pair, 2: load_two_pairs, 4: load_four_pairs}[config.strips]
    return lang.namespace(
        "fp4",
        expand=fp4.expand,
        load_scales=load_words if row_blocks else load_pairs,
        pair_of_row=pair_of_word if row_blocks else same_pair,
    )
