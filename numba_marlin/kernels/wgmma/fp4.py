"""Block-scaled FP4 in the Hopper kernel (``wgmma``): the scales of its m64 blocks, from a stage in
shared memory.

``block_verbs(lang, config)`` -> namespace of device functions: ``expand``: see ``expand_fp4``;
``load_scales(address, lane_place) -> scales`` of the 32 rows of the weight whose scales begin at
``address`` (those of 64 columns and the two times 32 rows of a stage lie together), one for each
m64 block; ``pair_of_row(scale, row)``: the scales of columns g and g + 8 for the k16 row 0 or 1 of
them, to multiply registers by.
"""

from types import SimpleNamespace

from numba_marlin.kernels.dequantize.expand_fp4 import fp4_verbs


def block_verbs(lang, config):
    ptx, uint32 = lang.ptx, lang.uint32
    fp4, WORDS, ROW_BLOCKS = fp4_verbs(lang, config.dtype), config.words, config.group_blocks == 1
    other_pair, scale_pair = fp4.other_pair, fp4.scale_pair
    LANE = 16 if ROW_BLOCKS else 8  # bytes of a lane, its four column blocks together
    load_one, load_two, load_four = ptx.ld_shared_b32, ptx.ld_shared_v2_b32, ptx.ld_shared_v4_b32

    @lang.device
    def own_scales(address, lane_place):
        return address + (
            lane_place[3] * uint32(16 * LANE) + lane_place[4] // uint32(4) * uint32(LANE)
        )

    # Blocks of 16: a word for each column block, with a pair for each of two k16 rows, picked when
    # it is needed.

    @lang.device
    def one_word(address):
        return (load_one(address),)

    words_of = {1: one_word, 2: load_two, 4: load_four}[WORDS]

    @lang.device
    def load_words(address, lane_place):
        return words_of(own_scales(address, lane_place) + lane_place[2] * uint32(4))

    @lang.device
    def pair_of_word(word, row):
        return scale_pair(other_pair(word) if row == uint32(1) else word)

    # Blocks of 32: a pair for each column block, two to a word, picked when it is loaded.

    @lang.device
    def both_pairs(word):
        return scale_pair(word), scale_pair(other_pair(word))

    @lang.device
    def load_pair(address, lane_place):
        word = load_one(own_scales(address, lane_place) + lane_place[2] // uint32(2) * uint32(4))
        return (scale_pair(other_pair(word) if lane_place[2] % uint32(2) != uint32(0) else word),)

    @lang.device
    def load_two_pairs(address, lane_place):
        return both_pairs(load_one(own_scales(address, lane_place) + lane_place[2] * uint32(2)))

    @lang.device
    def load_four_pairs(address, lane_place):
        words = load_two(own_scales(address, lane_place))
        return both_pairs(words[0]) + both_pairs(words[1])

    @lang.device
    def same_pair(pair, row):
        return pair

    load_pairs = {1: load_pair, 2: load_two_pairs, 4: load_four_pairs}[WORDS]
    return SimpleNamespace(
        expand=fp4.expand,
        load_scales=load_words if ROW_BLOCKS else load_pairs,
        pair_of_row=pair_of_word if ROW_BLOCKS else same_pair,
    )
