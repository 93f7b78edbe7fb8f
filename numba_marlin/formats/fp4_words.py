"""The encoding of block-scaled FP4 in 32-bit words, from which a kernel extracts codes and scales
with shifts and masks alone. This module maps words; ``fp4_marlin`` maps matrices.

**Codes.** A word holds the same eight codes as Marlin's word at the same place (``marlin_order``:
nibble p is half p // 4 of register p % 4), with their bits permuted and combined. The bits s e e m
of an e2m1 code (sign, exponent, mantissa) can be used directly as bits of a 16-bit float: s is the
sign bit, and e e m are the lowest bits of the exponent and the highest bit of the significand. In
float16, e e m are bits 11 to 9 and the number is code * 2**-14; in bfloat16 they are bits 8 to 6
and the number is code * 2**-126. Subnormal codes give subnormal numbers. So dequantisation needs
neither a table nor a multiplication: it only moves bits.

Moving them from nibbles takes 15 instructions per word, because the signs and the other bits of
each register are shifted and masked separately. To extract whole codes with one mask, four shifted
copies of its bit positions must tile 16 bits, but no four translates of {0, 1, 2, 6} or of
{0, 1, 2, 9} do so mod 16. Instead, one ``lop3`` combines two shifted words by exclusive or before
it masks them, and the packed word is chosen so that the unwanted bits cancel. Register r is

    (exclusive or of w shifted left by each of SHIFTS[dtype][r]) & MASKS[dtype]

where a negative shift goes to the right and fills with zeros. This is a bijection of 32 bits, and
``turn_codes`` is its inverse. It takes 8 instructions to float16 (the last two registers share
some: they use other bytes of the same combination) and 9 to bfloat16; Marlin's integers take 9 and
11. The price is that each type of activations needs its own encoding.

**Scales.** A scale is stored as eight bits of a float16 (e5m3), without its sign and its lowest
seven bits, in units in which all scales are normal numbers. A kernel needs the scales of columns g
and g + 8 of 16 side by side as float16, in bits 14 to 7 of each half. So a word holds two such
pairs: ``w & 0x7f807f80`` is one, and the same of the word rotated by 8 bits is the other. For
bfloat16, the pair shifted right by three bits, ``| 0x70007000``, is scale * 2**112. This is wrong
for the scale 0, but its codes are all 0 or -0 (``fp4_marlin``).
"""

from __future__ import annotations

import functools

import numpy as np

# bits of the two codes in a register
MASKS = {"float16": 0x8E008E00, "bfloat16": 0x81C081C0}
SHIFTS = {"float16": ((0,), (8,), (-3, 7), (5, 15)), "bfloat16": ((0,), (3,), (-3, 1), (2, 6))}
SCALE_PAIR = 0x7F807F80
WIDE_SCALE_PAIR, WIDE_EXPONENT = 0x0FF00FF0, 0x70007000
# A float16 register is code * 2**-14; so is a bfloat16 register multiplied by its scale.
CODE_UNIT = 14

_LOWEST = {"float16": 9, "bfloat16": 6}  # lowest bit of e e m in a half


def shifted(words: np.ndarray, left: int) -> np.ndarray:
    """Shift uint32 words to the left; to the right if ``left`` is negative."""
    return words << np.uint32(left) if left >= 0 else words >> np.uint32(-left)


def expand(words: np.ndarray, dtype: str) -> np.ndarray:
    """Compute what a kernel computes: stored words, uint32 [...], -> registers, uint32 [..., 4],
    each with two numbers of type ``dtype``."""
    registers = [
        functools.reduce(np.bitwise_xor, [shifted(words, left) for left in shifts])
        & np.uint32(MASKS[dtype])
        for shifts in SHIFTS[dtype]
    ]
    return np.stack(registers, axis=-1)


def _nibbles(registers: np.ndarray, dtype: str) -> np.ndarray:
    """Registers, uint32 [..., 4], -> words, uint32 [...], of eight codes in Marlin's order of
    nibbles."""
    words = np.zeros(registers.shape[:-1], np.uint32)
    for number in range(4):
        register = registers[..., number]
        pair = register >> np.uint32(15 - 3) & np.uint32(0x00080008) | register >> np.uint32(
            _LOWEST[dtype]
        ) & np.uint32(0x00070007)
        words |= pair << np.uint32(4 * number)
    return words


def unturn_codes(words: np.ndarray, dtype: str) -> np.ndarray:
    """Stored words for activations of ``dtype``, uint32 of any shape, -> words of the same codes in
    Marlin's order of nibbles. Raises ValueError unless dtype is "float16" or "bfloat16"."""
    return _mapped(words, _byte_tables(dtype, False))


def turn_codes(words: np.ndarray, dtype: str) -> np.ndarray:
    """The inverse of ``unturn_codes``."""
    return _mapped(words, byte_tables(dtype))


def byte_tables(dtype: str) -> np.ndarray:
    """Return tables for ``turn_codes``, uint32 [4, 256]: the stored word is the exclusive or of the
    four entries for the bytes of a word of nibbles."""
    return _byte_tables(dtype, True)


@functools.cache
def _byte_tables(dtype: str, turn: bool) -> np.ndarray:
    if dtype not in MASKS:
        raise ValueError(f"dtype={dtype!r} must be one of {', '.join(MASKS)}")
    # columns of a matrix over GF(2): images of single bits
    columns = [
        int(each)
        for each in _nibbles(expand(np.uint32(1) << np.arange(32, dtype=np.uint32), dtype), dtype)
    ]
    columns = _inverted(columns) if turn else columns
    values = np.arange(256)
    tables = np.zeros((4, 256), np.uint32)
    for bit, column in enumerate(columns):
        tables[bit // 8] ^= np.where(values >> bit % 8 & 1, np.uint32(column), np.uint32(0)).astype(
            np.uint32
        )
    tables.setflags(write=False)
    return tables


def _inverted(columns: list[int]) -> list[int]:
    """Invert a matrix over GF(2), whose columns are words, by Gauss-Jordan elimination. Raises
    ValueError if it is singular."""
    # pairs (image, source)
    rest = [(column, 1 << number) for number, column in enumerate(columns)]
    for bit in range(32):
        pivot = next((number for number in range(bit, 32) if rest[number][0] >> bit & 1), None)
        if pivot is None:
            raise ValueError("the matrix is singular: the registers do not determine the word")
        rest[bit], rest[pivot] = rest[pivot], rest[bit]
        rest = [
            (
                (image ^ rest[bit][0], source ^ rest[bit][1])
                if number != bit and image >> bit & 1
                else (image, source)
            )
            for number, (image, source) in enumerate(rest)
        ]
    return [source for _, source in rest]


def _mapped(words: np.ndarray, tables: np.ndarray) -> np.ndarray:
    result = tables[0][words & np.uint32(255)]
    for byte in range(1, 4):
        result ^= tables[byte][words >> np.uint32(8 * byte) & np.uint32(255)]
    return result


def scale_words(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Two pairs of scales, uint8 [..., 2] each, for columns g and g + 8, -> words, uint32 [...].
    first: the pair that a kernel extracts directly; second: the pair that it extracts after a
    rotation."""
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
