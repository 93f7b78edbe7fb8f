"""How block-scaled FP4 stands in 32-bit words, so that a kernel takes it out with shifts and masks
alone. Pure bits; ``fp4_marlin`` has the matrices.

Codes. A word has the eight codes that Marlin's word of the same place has (``marlin_order``: nibble
p is half p // 4 of register p % 4), with their bits turned. An e2m1 code s e e m *is* the 16-bit
float with s on top and e e m across the border of exponent and significand, subnormal codes being
subnormal numbers: float16 has e e m in bits 11 to 9 and the number is code * 2**-14, bfloat16 in
bits 8 to 6 and it is code * 2**-126. So no table and no multiplication: bits only have to get to
their places. From nibbles that takes 15 instructions per word: signs and the rest of each register
are shifted and masked apart. A mask that takes whole codes wants them where their places, shifted,
do not overlap, and four such sets of places do not tile 16 bits (no four translates of {0, 1, 2, 6}
or of {0, 1, 2, 9} do, mod 16). But one ``lop3`` adds two shifted words, bit by bit, before it masks
them; what that takes too much is taken off when a word is packed. So register r is

    (sum mod 2 of w shifted by each of SHIFTS[dtype][r]) & MASKS[dtype]         negative: to the
        right, with zeros

which is a bijection of 32 bits; ``turn_codes`` is its inverse. Eight instructions to float16 (the
last two registers share theirs: the sum's other bytes), nine to bfloat16; Marlin's integers take 9
and 11. The price is an order for each type of activations.

Scales. A scale is kept as the eight bits of a float16 that are neither its sign nor its lowest
seven (e5m3), in units that make all of them normal. Those of columns g and g + 8 of 16 are wanted
side by side, as float16 (bits 14 to 7 of either half), so two such pairs make a word: ``w &
0x7f807f80`` is one, and the same of the word rotated by 8 bits is the other. bfloat16's: the pair
three bits further down, ``| 0x70007000``, is scale * 2**112; not so the scale 0, which belongs to
codes that are 0 or -0 (``fp4_marlin``).
"""

from __future__ import annotations

import functools

import numpy as np

# of a register: where the bits of its two codes are
MASKS = {"float16": 0x8E008E00, "bfloat16": 0x81C081C0}
SHIFTS = {"float16": ((0,), (8,), (-3, 7), (5, 15)), "bfloat16": ((0,), (3,), (-3, 1), (2, 6))}
SCALE_PAIR = 0x7F807F80
WIDE_SCALE_PAIR, WIDE_EXPONENT = 0x0FF00FF0, 0x70007000
# a float16 register is code * 2**-14; a bfloat16 one, multiplied by its scale, is too
CODE_UNIT = 14

_LOWEST = {"float16": 9, "bfloat16": 6}  # bit of e e m in a half


def shifted(words: np.ndarray, left: int) -> np.ndarray:
    """uint32, to the right where ``left`` is negative."""
    return words << np.uint32(left) if left >= 0 else words >> np.uint32(-left)


def expand(words: np.ndarray, dtype: str) -> np.ndarray:
    """uint32 [...] as they are stored -> registers [..., 4] of two numbers of ``dtype``: what a
    kernel does."""
    registers = [
        functools.reduce(np.bitwise_xor, [shifted(words, left) for left in shifts])
        & np.uint32(MASKS[dtype])
        for shifts in SHIFTS[dtype]
    ]
    return np.stack(registers, axis=-1)


def _nibbles(registers: np.ndarray, dtype: str) -> np.ndarray:
    """Registers [..., 4] -> words [...] of eight codes as Marlin packs nibbles."""
    words = np.zeros(registers.shape[:-1], np.uint32)
    for number in range(4):
        register = registers[..., number]
        pair = register >> np.uint32(15 - 3) & np.uint32(0x00080008) | register >> np.uint32(
            _LOWEST[dtype]
        ) & np.uint32(0x00070007)
        words |= pair << np.uint32(4 * number)
    return words


def unturn_codes(words: np.ndarray, dtype: str) -> np.ndarray:
    """uint32, any shape, eight codes as they are stored for activations of ``dtype`` -> uint32, the
    same codes as Marlin packs nibbles."""
    return _mapped(words, _byte_tables(dtype, False))


def turn_codes(words: np.ndarray, dtype: str) -> np.ndarray:
    """The inverse of ``unturn_codes``."""
    return _mapped(words, byte_tables(dtype))


def byte_tables(dtype: str) -> np.ndarray:
    """uint32 [4, 256]: what each byte of a word of nibbles adds, mod 2, to the word that is
    stored."""
    return _byte_tables(dtype, True)


@functools.cache
def _byte_tables(dtype: str, turn: bool) -> np.ndarray:
    if dtype not in MASKS:
        raise ValueError(f"dtype={dtype!r} must be one of {', '.join(MASKS)}")
    # of a matrix over GF(2): images of single bits
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
    """Of a matrix over GF(2), its columns as words, the inverse's (Gauss and Jordan); ValueError if
    there is none."""
    # (image, what it is the image of)
    rest = [(column, 1 << number) for number, column in enumerate(columns)]
    for bit in range(32):
        pivot = next((number for number in range(bit, 32) if rest[number][0] >> bit & 1), None)
        if pivot is None:
            raise ValueError("the registers do not say all of the word")
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
    """uint8 [..., 2] each, the scales of columns g and g + 8 -> uint32 [...]: the pair that is
    taken out as it stands, and the one that is rotated first."""
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
