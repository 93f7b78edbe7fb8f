"""Weights that are not interleaved. Each 16 rows by 64 columns stay side by side, as two rows of 64
words; a word has 8 codes of one column, k upwards from its lowest bits."""

import numpy as np

from numba_marlin.formats.marlin_order import BLOCK_K, BLOCK_N, code_order

BITS, CODES = 4, 8  # of a code; of a word


def places() -> tuple[np.ndarray, np.ndarray]:
    """(word, code) of Marlin's block, [128, 8] each, for word and code of a plain one."""
    marlin = np.empty(BLOCK_K * BLOCK_N, np.int64)
    marlin[code_order(BITS).perm] = np.arange(marlin.size)  # place of flat position 64 * k + n
    by_k = marlin.reshape(BLOCK_K // CODES, CODES, BLOCK_N)
    return divmod(by_k.transpose(0, 2, 1).reshape(-1, CODES), CODES)


def plain_words(packed):
    """Marlin's int32 [k / 16, 2 n] -> the same codes in plain order, same shape; NumPy or torch."""
    like = getattr(packed, "new_tensor", lambda index: np.asarray(index, packed.dtype))
    words, codes = places()
    blocks = packed.reshape(-1, len(words))
    found = blocks * 0
    for code in range(CODES):
        shifts = like(BITS * codes[:, code])
        found |= (blocks[:, words[:, code]] >> shifts & 15) << BITS * code
    return found.reshape(packed.shape)
