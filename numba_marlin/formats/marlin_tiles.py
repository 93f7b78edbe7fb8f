"""Columns of packed codes, moved as bytes: no code is unpacked.

In Marlin's order (``marlin_order``) a block of 16 x 64 codes is eight n8 tiles, 16 rows by
``TILE_N`` columns, and no byte holds codes of two: of 4-bit words, bytes 0 and 2 belong to one tile
and bytes 1 and 3 to the next; an 8-bit word belongs to one. So whatever begins and ends at
multiples of 8 columns is cut and joined by moving bytes, and at multiples of 64 by moving blocks as
they stand.

Words: int32 [k/16, n_packed * bits/2], C-contiguous. Results are new arrays; columns are completed
to a multiple of 64 with the code ``fill``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from numba_marlin.formats.marlin_order import BLOCK_N, TILE_N, TILES, code_order


@functools.cache
def tile_bytes(bits: int) -> np.ndarray:
    """int64 [8 tiles, bytes of a tile]: which bytes of a block, little-endian, are those of a tile,
    in the order of their first codes, row by row of 8 columns."""
    order, per_byte = code_order(bits), 8 // bits
    tile, column = np.divmod(order.column.reshape(-1, per_byte), TILE_N)
    row = order.row.reshape(-1, per_byte)
    # by tile, then by the place in it of the first code of the byte
    places = np.lexsort((column[:, 0], row[:, 0], tile[:, 0])).reshape(TILES, -1)
    places.setflags(write=False)
    return places


def _blocks(words: np.ndarray, bits: int) -> np.ndarray:
    """Words as [k/16, n_packed/64, words of a block], in place."""
    return words.reshape(words.shape[0], -1, code_order(bits).block_words)


def _to_tiles(blocks: np.ndarray, bits: int) -> np.ndarray:
    """Blocks of words -> bytes of tiles, uint8 [k/16, tiles, bytes of a tile]."""
    moved = np.take(blocks.astype("<i4", copy=False).view(np.uint8), tile_bytes(bits), axis=2)
    return moved.reshape(blocks.shape[0], -1, moved.shape[3])


def any_bit(words: np.ndarray, bits: int, mask: int) -> np.ndarray:
    """bool [k/16, n_packed]: whether 16 rows of a column have a code with a bit of ``mask``."""
    tiles = _to_tiles(_blocks(words, bits), bits)
    found = tiles.reshape(*tiles.shape[:2], -1, TILE_N) & np.uint8(_in_byte(mask, bits))
    return found.any(axis=2).reshape(len(words), -1)


def _in_byte(code: int, bits: int) -> int:
    """A byte of nothing but this code."""
    return code << 4 | code if bits == 4 else code


def _from_tiles(tiles: np.ndarray, bits: int, fill: int) -> np.ndarray:
    """The inverse: words, completed to whole blocks."""
    rows, count, size = tiles.shape
    completed = rows, -(-count // TILES) * TILES, size
    whole = np.full(completed, _in_byte(fill, bits), np.uint8)
    whole[:, :count] = tiles
    back = np.argsort(tile_bytes(bits).ravel())
    blocks = np.take(whole.reshape(rows, -1, back.size), back, axis=2)
    return blocks.view("<i4").astype(np.int32, copy=False).reshape(rows, -1)


def are_blocks(columns: range, n: int) -> bool:
    """Whether ``columns`` of n are whole blocks."""
    return columns.start % BLOCK_N == 0 and (columns.stop % BLOCK_N == 0 or columns.stop == n)


def take_blocks(words: np.ndarray, bits: int, columns: range) -> np.ndarray:
    """Words of the blocks that these columns touch, as they stand."""
    first, last = columns.start // BLOCK_N, -(-columns.stop // BLOCK_N)
    return _blocks(words, bits)[:, first:last].reshape(len(words), -1).copy()


def take_columns(words: np.ndarray, bits: int, columns: range, fill: int) -> np.ndarray:
    """Words of these columns, both ends multiples of 8; beyond them, ``fill``."""
    blocks = _blocks(take_blocks(words, bits, columns), bits)
    start = columns.start % BLOCK_N // TILE_N
    tiles = _to_tiles(blocks, bits)[:, start : start + len(columns) // TILE_N]
    return _from_tiles(tiles, bits, fill)


def join_columns(
    parts: Sequence[np.ndarray], bits: int, sizes: Sequence[int], fill: int
) -> np.ndarray:
    """Words of parts that have ``sizes`` columns each, multiples of 8, side by side; beyond them,
    ``fill``."""
    tiles = [
        _to_tiles(_blocks(words, bits), bits)[:, : n // TILE_N] for words, n in zip(parts, sizes)
    ]
    return _from_tiles(np.concatenate(tiles, axis=1), bits, fill)
