"""Block-scaled FP4 in ``wgmma``: the scales of its m64 blocks, from a stage in shared memory.

``block_verbs(lang, config)`` -> namespace of device functions: ``expand``: see ``expand_fp4``;
``load_scales(address, thread) -> scales`` of the 32 rows of the weight whose scales begin at
``address`` (those of 64 columns and the two times 32 rows of a stage lie together), one for each
m64 block; ``pair_of_row(scale, row)``: the scales of columns g and g + 8 for the k16 row 0 or 1 of
them, to multiply registers by.
"""

from numba_marlin.kernels.dequantize.expand_fp4 import fp4_verbs


def block_verbs(lang, config):
    ptx = lang.ptx
    fp4, row_blocks = fp4_verbs(lang, config.dtype), config.group_blocks == 1
    LANE = 16 if row_blocks else 8  # bytes of a lane, its four column blocks together

    @lang.device
    def own_scales(address, thread):
        return address + (thread.block * (16 * LANE) + thread.lane // 4 * LANE)

    # Blocks of 16: a word for each column block, with a pair for each of two k16 rows, picked when
    # it is needed.

    @lang.device
    def one_word(address):
        return (ptx.ld_shared_b32(address),)

    words_of = {1: one_word, 2: ptx.ld_shared_v2_b32, 4: ptx.ld_shared_v4_b32}[config.words]

    @lang.device
    def load_words(address, thread):
        return words_of(own_scales(address, thread) + thread.first_word * 4)

    @lang.device
    def pair_of_word(word, row):
        return fp4.scale_pair(fp4.other_pair(word) if row == 1 else word)

    # Blocks of 32: a pair for each column block, two to a word, picked when it is loaded.

    @lang.device
    def both_pairs(word):
        word0, word1 = word, fp4.other_pair(word)
        return fp4.scale_pair(word0), fp4.scale_pair(word1)

    @lang.device
    def load_pair(address, thread):
        word = ptx.ld_shared_b32(own_scales(address, thread) + thread.first_word // 2 * 4)
        return (fp4.scale_pair(fp4.other_pair(word) if thread.first_word % 2 != 0 else word),)

    @lang.device
    def load_two_pairs(address, thread):
        return both_pairs(ptx.ld_shared_b32(own_scales(address, thread) + thread.first_word * 2))

    @lang.device
    def load_four_pairs(address, thread):
        words = ptx.ld_shared_v2_b32(own_scales(address, thread))
        return both_pairs(words[0]) + both_pairs(words[1])

    @lang.device
    def same_pair(pair, row):
        return pair

    load_pairs = {1: load_pair, 2: load_two_pairs, 4: load_four_pairs}[config.words]
    return lang.namespace(
        "fp4",
        expand=fp4.expand,
        load_scales=load_words if row_blocks else load_pairs,
        pair_of_row=pair_of_word if row_blocks else same_pair,
    )
