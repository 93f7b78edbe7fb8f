"""Where the scales of block-scaled matrices lie: the 128x4 order that block-scaled tensor cores
read.

Plain scales are [rows, blocks], a byte each: those of a row, along k, one after the other.
Blackwell's tensor cores read them tile by tile, ``TILE_ROWS`` rows by ``TILE_BLOCKS`` blocks, 512
bytes that lie in one piece. ``tcgen05.cp.32x128b.warpx4`` moves a tile to tensor memory as it lies,
16 bytes to each of 32 lanes: lane l has rows l, 32 + l, 64 + l and 96 + l, four bytes each, which
are the row's scales for one step of k (64 numbers of NVFP4, 128 of MXFP4 and MXFP8). So, inside a
tile,

    place(row, block) = 16 (row mod 32) + 4 (row div 32) + block

and tiles follow each other along k, then along the rows. Rows are completed to a multiple of 128
and blocks to one of 4, with zero bytes.

A tile's row is a word of four bytes in every reading, so a Hopper kernel can take the scales of a
row's step with one load, and those of a tile's step with one copy of 512 bytes.

PTX ISA, "tcgen05 block scaling: scale factor layouts"; cuBLAS, "1D block scaling factors layout"
(the same order under another name).
"""

from __future__ import annotations

import numpy as np

from numba_marlin.layout.tensor_map import TensorMap

TILE_ROWS, TILE_BLOCKS = 128, 4
TILE_BYTES = TILE_ROWS * TILE_BLOCKS
LANES = 32
LANE_BYTES = 16  # of tensor memory's 32 lanes
MAP_ELEMENT_BYTES = 8  # of ``tensor_map``: a box of at most 256 elements then holds four tiles
TILE_MAP_WIDTH = TILE_BYTES // MAP_ELEMENT_BYTES  # of a tile, in elements of ``tensor_map``


def tiles(rows: int, blocks: int) -> tuple[int, int]:
    """(tiles along the rows, tiles along k) of scales [rows, blocks]."""
    if rows < 1 or blocks < 1:
        raise ValueError(f"rows={rows} and blocks={blocks} must be at least 1")
    return -(-rows // TILE_ROWS), -(-blocks // TILE_BLOCKS)


def tiled_bytes(rows: int, blocks: int) -> int:
    """Bytes that scales [rows, blocks] take in 128x4 order, completed tiles included."""
    row_tiles, block_tiles = tiles(rows, blocks)
    return row_tiles * block_tiles * TILE_BYTES


def place(row, block, blocks: int):
    """Byte of the scale of ``block`` (along k, of ``blocks``) in ``row``; ints or int arrays."""
    across = tiles(1, blocks)[1]
    tile = row // TILE_ROWS * across + block // TILE_BLOCKS
    inside = row % TILE_ROWS
    return (
        tile * TILE_BYTES
        + inside % LANES * LANE_BYTES
        + inside // LANES * TILE_BLOCKS
        + block % TILE_BLOCKS
    )


def tensor_map(rows: int, blocks: int, box: tuple[int, int]) -> TensorMap:
    """Of scales [rows, blocks] in 128x4 order, as rows of tiles, each TILE_MAP_WIDTH numbers of 8
    bytes; ``box``: (tiles along the rows, tiles along k) that a copy brings. A copy's coordinates
    are x in these numbers, y in tiles."""
    (row_tiles, block_tiles), (box_rows, box_tiles) = tiles(rows, blocks), box
    return TensorMap(
        "uint64",
        (row_tiles, block_tiles * TILE_MAP_WIDTH),
        (block_tiles * TILE_BYTES, MAP_ELEMENT_BYTES),
        (box_rows, box_tiles * TILE_MAP_WIDTH),
        l2_promotion=256,
    )


def to_tiles(scales: np.ndarray) -> np.ndarray:
    """scales [rows, blocks], elements of one byte -> [tiled_bytes] in 128x4 order, zeros where
    there is no scale."""
    rows, blocks = _plain(scales)
    row_tiles, block_tiles = tiles(rows, blocks)
    whole = np.zeros((row_tiles * TILE_ROWS, block_tiles * TILE_BLOCKS), scales.dtype)
    whole[:rows, :blocks] = scales
    split = whole.reshape(row_tiles, TILE_ROWS // LANES, LANES, block_tiles, TILE_BLOCKS)
    return np.ascontiguousarray(split.transpose(0, 3, 2, 1, 4)).reshape(-1)


def from_tiles(tiled: np.ndarray, rows: int, blocks: int) -> np.ndarray:
    """The inverse of ``to_tiles``: [rows, blocks]."""
    if tiled.size != tiled_bytes(rows, blocks):
        raise ValueError(
            f"{tiled.size} bytes must be {tiled_bytes(rows, blocks)}: scales {rows} x {blocks} in"
            f" tiles of {TILE_ROWS} x {TILE_BLOCKS}"
        )
    row_tiles, block_tiles = tiles(rows, blocks)
    split = tiled.reshape(row_tiles, block_tiles, LANES, TILE_ROWS // LANES, TILE_BLOCKS).transpose(
        0, 3, 2, 1, 4
    )
    return np.ascontiguousarray(
        split.reshape(row_tiles * TILE_ROWS, block_tiles * TILE_BLOCKS)[:rows, :blocks]
    )


def _plain(scales: np.ndarray) -> tuple[int, int]:
    if scales.ndim != 2 or scales.dtype.itemsize != 1:
        raise ValueError(
            f"scales are {scales.dtype}{list(scales.shape)}, must be [rows, blocks] of one byte"
            " each"
        )
    return scales.shape
