"""Contract under test: the swizzled activation tile is written and read without bank conflicts, and
loses nothing."""

import numpy as np
import pytest

from numba_marlin.layout.fragments import ldmatrix_address_row
from numba_marlin.layout.swizzle import CHUNK_BYTES, bank_conflicts, swizzle

CHUNKS_PER_ROW = (8, 16, 32)
M_BLOCKS = (1, 2, 3, 4)


def plain(row, chunk, chunks_per_row):
    return row * chunks_per_row + chunk


def write_conflicts(place, rows, chunks_per_row):
    """cp.async: consecutive threads take consecutive chunks along the rows."""
    index = np.arange(rows * chunks_per_row)
    addresses = CHUNK_BYTES * place(index // chunks_per_row, index % chunks_per_row, chunks_per_row)
    return sum(bank_conflicts(warp) for warp in addresses.reshape(-1, 32))


def read_conflicts(place, rows, chunks_per_row):
    """ldmatrix.x4 of every 16 x 16 quarter of the tile: matrices are rows 0-7, 8-15, then the next
    chunk's."""
    total = 0
    for first_row in range(0, rows, 16):
        for first_chunk in range(0, chunks_per_row, 2):
            addresses = []
            for lane in range(32):
                matrix, row = ldmatrix_address_row(lane, 4)
                at = place(
                    first_row + 8 * (matrix % 2) + row, first_chunk + matrix // 2, chunks_per_row
                )
                addresses.append(CHUNK_BYTES * at)
            total += bank_conflicts(np.array(addresses))
    return total


@pytest.mark.parametrize("chunks_per_row", CHUNKS_PER_ROW)
@pytest.mark.parametrize("m_blocks", M_BLOCKS)
def test_swizzled_tile_is_free_of_conflicts(chunks_per_row, m_blocks):
    assert write_conflicts(swizzle, 16 * m_blocks, chunks_per_row) == 0
    assert read_conflicts(swizzle, 16 * m_blocks, chunks_per_row) == 0


@pytest.mark.parametrize("chunks_per_row", CHUNKS_PER_ROW)
def test_plain_tile_would_conflict(chunks_per_row):
    """Shows that the counter can fail: 8 rows in the same banks take 7 extra passes."""
    assert read_conflicts(plain, 16, chunks_per_row) == chunks_per_row // 2 * 4 * 7


@pytest.mark.parametrize("chunks_per_row", CHUNKS_PER_ROW)
def test_swizzle_is_bijective_and_stays_in_its_row(chunks_per_row):
    row, chunk = np.divmod(np.arange(64 * chunks_per_row), chunks_per_row)
    at = swizzle(row, chunk, chunks_per_row)
    assert np.array_equal(np.sort(at), np.arange(64 * chunks_per_row))
    assert np.array_equal(at // chunks_per_row, row)
    assert at[5] == swizzle(int(row[5]), int(chunk[5]), chunks_per_row)


def test_counter_knows_shared_words_and_access_sizes():
    lanes = np.arange(32)
    assert bank_conflicts(np.zeros(32, dtype=int)) == 0
    assert bank_conflicts(4 * lanes, 4) == 0
    assert bank_conflicts(8 * lanes, 4) == 1
    assert bank_conflicts(128 * lanes, 4) == 31
    assert bank_conflicts(8 * lanes, 8) == 0
    assert bank_conflicts(128 * lanes, 8) == 2 * 15


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="chunks_per_row=4"):
        swizzle(0, 0, 4)
    with pytest.raises(ValueError, match="access_bytes=2"):
        bank_conflicts(np.arange(32), 2)
    with pytest.raises(ValueError, match="5 addresses"):
        bank_conflicts(16 * np.arange(5))
    with pytest.raises(ValueError, match="address 8"):
        bank_conflicts(8 * np.arange(8))
