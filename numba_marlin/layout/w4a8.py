"""How Marlin's 4-bit words become the 8-bit operand of ``mma`` and ``wgmma``, and in which order x
must lie for it.

An 8-bit product is 32 of k deep. Its A fragment (``fragments.MMA_M16N8K32_A``; of ``wgmma``,
``wgmma.A_BYTES``) has k contiguous in a lane's registers: byte b of registers 0 and 1 is k = 4t +
b, of registers 2 and 3 the same with 16 more; registers 0 and 2 are row g, 1 and 3 row g + 8. Word
j of lane 4g + t of a k16 row of Marlin's has other k for the same lane: 2t, 2t + 1, 2t + 8, 2t + 9
of columns 16j + g and 16j + g + 8 (``formats.marlin_order``). A sum does not depend on the order of
its terms, so the weights stay where they are, and x is stored in their order: position 4t + b of
each 16 of k holds k = ``K_ORDER[4t + b]``. Every code then is used by the lane that has it.

``halves`` is what a kernel computes, in the same instructions: 5 in int8 for the 8 weights of a
word, where 16-bit weights take 9 before they are scaled (``kernels.w4a8.elements`` has e4m3). With
a nibble c in the upper half of a byte and the highest bit flipped, the byte is 16 (c - 8) as a
signed number: symmetric weights need no correction for their offset, and the factor of 16 is left
to the scale, a power of two.
"""

from __future__ import annotations

import numpy as np

STEP = 16  # of k: x is permuted within so many
K_ORDER = np.array([2 * (at // 4) + (0, 1, 8, 9)[at % 4] for at in range(STEP)])
"""k, within each 16, of every position of a row of x as it is stored."""
K_ORDER.setflags(write=False)
_INVERSE = np.argsort(K_ORDER)

UPPER, LOWER, FLIP = 0xF0F0F0F0, 0x0F0F0F0F, 0x80808080
ALTERNATE = 0x8F8F0000  # bytes of odd k: 15 - c, with the sign bit, for c
EVEN_BYTES, ODD_BYTES = 0x6420, 0x7531  # selectors of prmt: of two words, the bytes of one column
UNIT = 16  # of the bytes that ``signed_words`` gives


def permuted(x: np.ndarray) -> np.ndarray:
    """[..., k] in the order of k -> in the order in which it is stored; k a multiple of 16."""
    return x.reshape(*x.shape[:-1], -1, STEP)[..., K_ORDER].reshape(x.shape)


def restored(x: np.ndarray) -> np.ndarray:
    """The inverse of ``permuted``."""
    return x.reshape(*x.shape[:-1], -1, STEP)[..., _INVERSE].reshape(x.shape)


def unsigned_words(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """uint32 words of Marlin's -> (lower, upper): their even and odd nibbles, a byte each."""
    return words & np.uint32(LOWER), (words >> np.uint32(4)) & np.uint32(LOWER)


def signed_words(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same as signed bytes 16 (c - 8)."""
    return (
        (words << np.uint32(4) & np.uint32(UPPER)) ^ np.uint32(FLIP),
        (words & np.uint32(UPPER)) ^ np.uint32(FLIP),
    )


def halves(lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(lower, upper) -> registers of columns 16j + g and 16j + g + 8, two ``prmt``: bytes of k 2t,
    2t + 1, 2t + 8, 2t + 9."""
    eight = np.stack([lower, upper], -1).view(np.uint8)  # bytes of lower, then of upper
    return _prmt(eight, EVEN_BYTES), _prmt(eight, ODD_BYTES)


def _prmt(eight: np.ndarray, selector: int) -> np.ndarray:
    """uint8 [..., 8] -> uint32 [...]: byte i is that which nibble i of ``selector`` names."""
    chosen = eight[..., [selector >> 4 * byte & 7 for byte in range(4)]]
    return np.ascontiguousarray(chosen).view(np.uint32)[..., 0]
