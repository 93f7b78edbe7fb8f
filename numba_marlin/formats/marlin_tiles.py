"""Columns of packed codes, moved as bytes: no code is unpacked.

In Marlin's order (``marlin_order``) a block of 16 x 64 codes is eight n8 tiles, 16 rows by
``TILE_N`` columns, and no byte holds codes of two: of 4-bit words, bytes 0 and 2 belong to one tile
and bytes 1 and 3 to the next; an 8-bit word belongs to one. So whatever begins and ends at
multiples of 8 columns is cut and joined by moving bytes, and at multiples of 64 by moving blocks as
they stand.

Words: int32 [k/16, n_packed * bits/2], C-contiguous. Results are new arrays, with columns up to the
next multiple of 64 that hold the code ``fill``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from numba_marlin.formats.marlin_order import BLOCK_N, TILE_N, TILES, code_order


@functools.cache
def tile_bytes(bits: int) -> np.ndarray:
    """int64 [8 tiles, bytes of a tile]: which bytes of a block, little-endian, are those of a tile,
    in an order that is the same for all tiles."""
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


def _from_tiles(tiles: np.ndarray, bits: int, fill: int) -> np.ndarray:
    """The inverse: words, completed to whole blocks."""
    rows, count, size = tiles.shape
    whole = np.full((rows, -(-count // TILES) * TILES, size), fill * (17 if bits == 4 else 1), "u1")
    whole[:, :count] = tiles
    back = np.argsort(tile_bytes(bits).ravel())
    blocks = np.take(whole.reshape(rows, -1, back.size), back, axis=2)
    return blocks.view("<i4").astype(np.int32, copy=False).reshape(rows, -1)


def whole_blocks(columns: range, n: int) -> bool:
    """Whether ``columns`` of n are blocks as they stand."""
    return columns.start % BLOCK_N == 0 and (columns.stop % BLOCK_N == 0 or columns.stop == n)


def take_columns(words: np.ndarray, bits: int, columns: range, n: int, fill: int) -> np.ndarray:
    """Words of these columns of n; both ends are multiples of 8."""
    first = columns.start // BLOCK_N
    blocks = _blocks(words, bits)[:, first : -(-columns.stop // BLOCK_N)]
    if whole_blocks(columns, n):
        return blocks.reshape(len(words), -1).copy()
    start = columns.start // TILE_N - first * TILES
    tiles = _to_tiles(np.ascontiguousarray(blocks), bits)
    return _from_tiles(tiles[:, start : start + len(columns) // TILE_N], bits, fill)


def join_columns(
    parts: Sequence[np.ndarray], bits: int, sizes: Sequence[int], fill: int
) -> np.ndarray:
    """Words of parts that have ``sizes`` columns each, multiples of 8, side by side."""
    if all(n % BLOCK_N == 0 for n in sizes[:-1]):
        return np.concatenate(parts, axis=1)
    tiles = [
        _to_tiles(_blocks(words, bits), bits)[:, : n // TILE_N] for words, n in zip(parts, sizes)
    ]
    return _from_tiles(np.concatenate(tiles, axis=1), bits, fill)
