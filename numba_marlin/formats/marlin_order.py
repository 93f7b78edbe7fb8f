"""The order of codes, scales and zero points in Marlin's words: permutations derived from the
fragment maps of ``mma.m16n8k16`` (PTX ISA, "Matrix fragments for mma.m16n8k16").

Codes. The weight is cut into blocks of 16 rows (k) by 64 columns (n). A lane's share of a block is
contiguous: 4 words of 8 codes, or 8 words of 4 codes of 8 bits, and word i of it belongs to the
i-th n8 tiles of the block, as many as it has codes for: a tile's B fragment is 2 registers x 2
halves = 4 codes. The order of codes in the word follows from how they are dequantised. Of 4-bit
codes, ``lop3`` picks with 0x000f000f nibbles 0 and 4 into the halves of one f16x2 register, with
0x00f000f0 nibbles 1 and 5 into the next, and after a shift by 8 nibbles 2, 6 and 3, 7 into the last
two. Of 8-bit codes, ``prmt`` puts bytes 0 and 2 into the halves of one register and bytes 1 and 3
into those of the next. So, with R registers per word, code ``p`` is half ``p // R`` of register
``p % R``, and registers (0, 1) are the fragment of the first tile, (2, 3) that of the second. No
code ever moves between the halves of a register. In closed form, for lane 4 g + t:

    4 bits: word 4 lane + j, nibble p:      k = 2 t + (p >> 2) + 8 (p & 1)
                                            n = 16 j + g + 8 ((p >> 1) & 1)
    8 bits: word 8 lane + 2 j + h, byte p:  k = 2 t + (p >> 1) + 8 (p & 1)
                                            n = 16 j + g + 8 h

Scales of groups are applied to the weights: a lane needs the scales of the columns of its 8 B
fragments, and reads them as 16 contiguous bytes: number 8 g + i of 64 columns belongs to column g +
8 i. A scale per column is applied to the accumulators instead, so its order is that of the columns
of the C fragments of four n8 tiles, again 16 contiguous bytes.

Zero points are applied where the scales of groups are, even if there is only one group. As float16
they stand in the order of group scales. On the grid, the 8 zero points of a lane's columns g + 8 i
are packed as codes are, in the order in which one dequantised word gives them in pairs of
neighbouring tiles, so that register r goes with the r-th pair of scales:

    4 bits: word g,      nibble p:  i = 2 (p & 3) + (p >> 2)
    8 bits: word 2 g + h,  byte p:  i = 4 h + 2 (p & 1) + (p >> 1)
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from numba_marlin.layout.fragments import LANES, MMA_M16N8K16_B, MMA_M16N8K16_C

BLOCK_K = MMA_M16N8K16_B.rows
BLOCK_N = 64
TILE_N = MMA_M16N8K16_B.cols
TILES = BLOCK_N // TILE_N


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class CodeOrder:
    """Where codes of ``bits`` bits stand in a block; ``code_order`` makes it.

    ``row`` and ``column``, int64 [block_words, codes_per_word]: k and n inside the block of code p
    of word w. ``perm``, int64 [1024]: flat position ``codes_per_word * word + code`` of a block <-
    flat position ``64 * k + n``. ``zeros_perm``, int64 [64]: packed[c] = plain[zeros_perm[c]]
    inside every 64 columns, c counting codes, word after word.
    """

    bits: int
    row: np.ndarray
    column: np.ndarray
    zeros_perm: np.ndarray

    @property
    def codes_per_word(self) -> int:
        return 32 // self.bits

    @property
    def block_words(self) -> int:
        return self.row.shape[0]

    @property
    def perm(self) -> np.ndarray:
        return (self.row * BLOCK_N + self.column).ravel()


def code_source(code: int, bits: int) -> tuple[int, int]:
    """(n8 tile of the word, element of its B fragment) of code number ``code`` of a word, given the
    dequantisation above."""
    registers_of_word = 16 // bits
    half, register_of_word = divmod(code, registers_of_word)
    tile, register_of_fragment = divmod(register_of_word, MMA_M16N8K16_B.registers)
    return tile, 2 * register_of_fragment + half


@functools.cache
def code_order(bits: int) -> CodeOrder:
    """The order of 4- or 8-bit codes."""
    codes = 32 // bits
    tiles_per_word = codes // MMA_M16N8K16_B.elements
    words_per_lane = TILES // tiles_per_word
    row = np.empty((LANES, words_per_lane, codes), dtype=np.int64)
    column = np.empty_like(row)
    for word in range(words_per_lane):
        for code in range(codes):
            tile, element = code_source(code, bits)
            row[:, word, code] = MMA_M16N8K16_B.row_of[:, element]
            column[:, word, code] = (tiles_per_word * word + tile) * TILE_N + MMA_M16N8K16_B.col_of[
                :, element
            ]
    row, column = (_frozen(each.reshape(LANES * words_per_lane, codes)) for each in (row, column))
    return CodeOrder(bits, row, column, _frozen(_derive_zeros_perm(codes)))


def _lanes_by_column() -> list[int]:
    """Per column of an n8 tile, the first of the lanes that hold it in a B fragment: 0, 4, 8,
    ..."""
    return [int(np.argmax(MMA_M16N8K16_B.col_of[:, 0] == column)) for column in range(TILE_N)]


def _derive_group_scale_perm() -> np.ndarray:
    """Scales of the columns of a lane's 8 B fragments, side by side; lanes that share columns share
    them."""
    return np.array(
        [
            tile * TILE_N + MMA_M16N8K16_B.col_of[lane, 0]
            for lane in _lanes_by_column()
            for tile in range(TILES)
        ]
    )


def _derive_zeros_perm(codes: int) -> np.ndarray:
    """The same, each lane's 8 in words of ``codes`` whose registers, once dequantised, hold
    neighbours."""
    registers = codes // 2
    neighbours = [
        word * codes + 2 * (code % registers) + code // registers
        for word in range(TILES // codes)
        for code in range(codes)
    ]
    return _derive_group_scale_perm().reshape(TILE_N, TILES)[:, neighbours].ravel()


def _derive_column_scale_perm() -> np.ndarray:
    """Scales of the columns of a lane's C fragments in four n8 tiles, side by side. Lanes 0-3 hold
    one row."""
    lanes, tiles, elements = range(4), range(4), range(2)
    return np.array(
        [
            tile * TILE_N + MMA_M16N8K16_C.col_of[lane, element]
            for lane in lanes
            for tile in tiles
            for element in elements
        ]
    )


GROUP_SCALE_PERM = _frozen(_derive_group_scale_perm())
"""packed[c] = plain[GROUP_SCALE_PERM[c]] inside every 64 columns."""

COLUMN_SCALE_PERM = _frozen(_derive_column_scale_perm())
"""packed[c] = plain[COLUMN_SCALE_PERM[c]] inside every 32 columns, for one scale per column."""


def locate(k_index: int, n_index: int, bits: int = 4) -> tuple[int, int, int]:
    """(row, column, code of the word) of ``qweight`` that holds the code of W[k_index, n_index]."""
    order = code_order(bits)
    position = int(np.argmax(order.perm == k_index % BLOCK_K * BLOCK_N + n_index % BLOCK_N))
    word, code = divmod(position, order.codes_per_word)
    return k_index // BLOCK_K, n_index // BLOCK_N * order.block_words + word, code
