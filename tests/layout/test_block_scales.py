"""Contract under test: the 128x4 order of scales loses nothing, is what its consumers read, and
refuses what does not fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_marlin.layout.block_scales import (
    LANE_BYTES,
    LANES,
    TILE_BLOCKS,
    TILE_BYTES,
    TILE_ROWS,
    from_tiles,
    place,
    tiled_bytes,
    to_tiles,
)

SIZES = st.integers(1, 300)


@given(rows=SIZES, blocks=st.integers(1, 21), seed=st.integers(0, 99))
def test_every_scale_has_its_own_byte_and_comes_back(rows, blocks, seed):
    scales = np.random.default_rng(seed).integers(0, 256, (rows, blocks), dtype=np.uint8)
    tiled = to_tiles(scales)
    assert tiled.shape == (tiled_bytes(rows, blocks),) and np.array_equal(
        from_tiles(tiled, rows, blocks), scales
    )
    row, block = np.indices(scales.shape)
    places = place(row, block, blocks)
    assert len(np.unique(places)) == scales.size and np.array_equal(tiled[places], scales)
    assert np.delete(tiled, places.reshape(-1)).sum() == 0, "what completes a tile must be zeros"


def test_whole_tiles_are_a_permutation():
    rows, blocks = 2 * TILE_ROWS, 3 * TILE_BLOCKS
    row, block = np.indices((rows, blocks))
    assert np.array_equal(np.sort(place(row, block, blocks).reshape(-1)), np.arange(rows * blocks))


def test_each_lane_of_tensor_memory_gets_the_rows_of_its_number():
    """tcgen05.cp.32x128b moves 16 bytes to each of 32 lanes: lane l must have rows l, 32 + l, 64 +
    l, 96 + l, four scales each."""
    row, block = np.indices((TILE_ROWS, TILE_BLOCKS))
    lanes = np.empty((LANES, LANE_BYTES), object)
    lanes.reshape(-1)[place(row, block, TILE_BLOCKS).reshape(-1)] = [
        (r, b) for r, b in zip(row.reshape(-1), block.reshape(-1))
    ]
    for lane in range(LANES):
        assert list(lanes[lane]) == [(lane + 32 * part, b) for part in range(4) for b in range(4)]


def test_the_order_that_cublas_documents():
    """outer % 32 * 16 + outer / 32 * 4 + inner in a tile; tiles along k first."""
    for row, block, blocks, expected in (
        (0, 0, 4, 0),
        (0, 3, 4, 3),
        (1, 0, 4, 16),
        (32, 0, 4, 4),
        (127, 3, 4, 511),
        (0, 4, 8, TILE_BYTES),
        (128, 0, 8, 2 * TILE_BYTES),
        (130, 5, 9, 4 * TILE_BYTES + 33),
    ):
        assert place(row, block, blocks) == expected


def test_what_does_not_fit():
    with pytest.raises(ValueError, match="must be at least 1"):
        tiled_bytes(0, 4)
    with pytest.raises(ValueError, match="of one byte each"):
        to_tiles(np.zeros((4, 4), np.float32))
    with pytest.raises(ValueError, match="512 bytes must be 1024"):
        from_tiles(np.zeros(512, np.uint8), 129, 4)
