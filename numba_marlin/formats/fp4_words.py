"""How block-scaled FP4 stands in 32-bit words, so that a kernel takes it out with shifts and masks alone. Pure bits; ``fp4_marlin`` has the matrices.

Codes. A word has the eight codes that Marlin's word of the same place has (``marlin_order``: nibble p is half p // 4 of register p % 4), with their bits
turned. An e2m1 code s e e m *is* the 16-bit float with s on top and e e m across the border of exponent and significand, subnormal codes being
subnormal numbers: float16 has e e m in bits 11 to 9 and the number is code * 2**-14, bfloat16 in bits 8 to 6 and it is code * 2**-126. So no table and no
multiplication: bits only have to get to their places. Two codes share a byte, bits 7 and 3 to 1 the one, 0 and 6 to 4 the other; upper bytes of a half
are registers 0 and 2, lower bytes 1 and 3:

    plain word       bit of its byte    7   6   5   4   3   2   1   0
    byte 1, 3        register           0   2   2   2   0   0   0   2        of the word's lower, upper half
    byte 0, 2        register           1   3   3   3   1   1   1   3
                     bit of the code    s   e   e   m   e   e   m   s

    registers of float16:    w & 0x8e008e00,  (w << 8) & 0x8e008e00,  and of v, bytes of registers 2 and 3 that look like those of 0 and 1:  v & 0xff00ff00,  (v << 8) & 0xff00ff00

v of the plain word would be ``(w >> 3) & 0x0e0e0e0e | (w << 7) & 0x80808080``: two shifts and two instructions. One ``lop3`` does it if what it
takes too much is taken off again before: ``v = (w >> 3 ^ w << 7) & 0x8e8e8e8e`` of the word ``w = plain ^ w >> 10 & 0x01010101 ^ w << 10 & 0x70707070``,
which can be solved byte after byte. That is the word that is stored: eight instructions for eight codes, one less than Marlin's integers take.

Scales. A scale is kept as the eight bits of a float16 that are neither its sign nor its lowest seven (e5m3), in units that make all of them normal. Those of columns g and g + 8 of
16 are wanted side by side, as float16 (bits 14 to 7 of either half), so two such pairs make a word: ``w & 0x7f807f80`` is one, and the same of the word rotated by 8
bits is the other. bfloat16's: the pair three bits further down, ``| 0x70007000``, is scale * 2**112; not so the scale 0, which belongs to codes that are 0 or -0 (``fp4_marlin``).
"""

from __future__ import annotations

import numpy as np

UPPER_CODES, ALL_CODES, UPPER_BYTES = 0x8E008E00, 0x8E8E8E8E, 0xFF00FF00  # masks of a word: where a code's bits are
SIGNS_TAKEN, DIGITS_TAKEN, TAKEN_BY = 0x01010101, 0x70707070, 10
SCALE_PAIR = 0x7F807F80
WIDE_SCALE_PAIR, WIDE_EXPONENT = 0x0FF00FF0, 0x70007000
CODE_UNIT = 14  # a float16 register is code * 2**-14; a bfloat16 one, multiplied by its scale, is too

_HALVES = 0x00010001
PLACES = ((12, 9), (4, 1), (5, 12), (-3, 4))  # of a register's sign and lower bits: to the left from bits 3 and 2 to 0 of a half


def _moved(words: np.ndarray, left: int) -> np.ndarray:
    return words << np.uint32(left) if left >= 0 else words >> np.uint32(-left)


def _taken(words: np.ndarray) -> np.ndarray:
    by = np.uint32(TAKEN_BY)
    return words >> by & np.uint32(SIGNS_TAKEN) ^ words << by & np.uint32(DIGITS_TAKEN)


def turn_codes(words: np.ndarray) -> np.ndarray:
    """uint32, any shape, eight codes as Marlin packs nibbles -> uint32, the same codes as they are stored."""
    plain = np.zeros_like(words)
    for register, (sign, digits) in enumerate(PLACES):
        pair = words >> np.uint32(4 * register)
        plain |= _moved(pair & np.uint32(8 * _HALVES), sign) | _moved(pair & np.uint32(7 * _HALVES), digits)
    stored = plain
    for _ in range(4):  # a byte depends on the ones beside it
        stored = plain ^ _taken(stored)
    return stored


def unturn_codes(words: np.ndarray) -> np.ndarray:
    """The inverse of ``turn_codes``."""
    plain = words ^ _taken(words)
    result = np.zeros_like(words)
    for register, (sign, digits) in enumerate(PLACES):
        pair = _moved(plain, -sign) & np.uint32(8 * _HALVES) | _moved(plain, -digits) & np.uint32(7 * _HALVES)
        result |= pair << np.uint32(4 * register)
    return result


def scale_words(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """uint8 [..., 2] each, the scales of columns g and g + 8 -> uint32 [...]: the pair that is taken out as it stands, and the one that is rotated first."""
    return _pair(first) | _rotated(_pair(second), -8)


def unscale_words(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of ``scale_words``."""
    return _unpair(words), _unpair(_rotated(words, 8))


def _pair(scales: np.ndarray) -> np.ndarray:
    scales = scales.astype(np.uint32)
    return scales[..., 0] << np.uint32(7) | scales[..., 1] << np.uint32(23)


def _unpair(words: np.ndarray) -> np.ndarray:
    return np.stack([words >> np.uint32(7), words >> np.uint32(23)], axis=-1).astype(np.uint8)


def _rotated(words: np.ndarray, left: int) -> np.ndarray:
    return words << np.uint32(left % 32) | words >> np.uint32(-left % 32)
