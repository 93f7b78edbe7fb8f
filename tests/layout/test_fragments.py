"""Contract under test: a Fragment is a bijection between (lane, element) and (row, col), as the PTX
ISA says."""

import numpy as np
import pytest

from numba_marlin.layout import fragments
from numba_marlin.layout.fragments import (
    FRAGMENTS,
    LDMATRIX_8X8,
    MMA_M16N8K16_A,
    MMA_M16N8K16_B,
    MMA_M16N8K16_C,
)

ALL = pytest.mark.parametrize("fragment", FRAGMENTS.values(), ids=FRAGMENTS)


@ALL
def test_every_element_is_held_exactly_once(fragment):
    held = sorted(
        fragment.coords(lane, element)
        for lane in range(fragments.LANES)
        for element in range(fragment.elements)
    )
    assert held == [(row, col) for row in range(fragment.rows) for col in range(fragment.cols)]


@ALL
def test_holder_inverts_coords(fragment):
    for lane in (0, 5, 31):
        for element in range(fragment.elements):
            assert fragment.holder(*fragment.coords(lane, element)) == (lane, element)


@ALL
def test_scatter_inverts_gather(fragment):
    matrix = np.random.default_rng(0).integers(0, 1 << 16, (3, fragment.rows, fragment.cols))
    held = fragment.gather(matrix)
    assert held.shape == (3, 32, fragment.elements)
    assert np.array_equal(fragment.scatter(held), matrix)
    row, col = fragment.coords(7, 1)
    assert held[2, 7, 1] == matrix[2, row, col]


@ALL
def test_transposed_reads_the_transposed_matrix(fragment):
    matrix = np.random.default_rng(1).integers(0, 1 << 16, (fragment.rows, fragment.cols))
    assert np.array_equal(fragment.transposed().gather(matrix.T), fragment.gather(matrix))


@pytest.mark.parametrize(
    ("fragment", "lane", "expected"),
    [
        # Read off the figures of the PTX ISA, not computed.
        (MMA_M16N8K16_A, 0, [(0, 0), (0, 1), (8, 0), (8, 1), (0, 8), (0, 9), (8, 8), (8, 9)]),
        (
            MMA_M16N8K16_A,
            31,
            [(7, 6), (7, 7), (15, 6), (15, 7), (7, 14), (7, 15), (15, 14), (15, 15)],
        ),
        (MMA_M16N8K16_B, 0, [(0, 0), (1, 0), (8, 0), (9, 0)]),
        (MMA_M16N8K16_B, 6, [(4, 1), (5, 1), (12, 1), (13, 1)]),
        (MMA_M16N8K16_C, 1, [(0, 2), (0, 3), (8, 2), (8, 3)]),
        (MMA_M16N8K16_C, 28, [(7, 0), (7, 1), (15, 0), (15, 1)]),
        (LDMATRIX_8X8, 5, [(1, 2), (1, 3)]),
    ],
)
def test_known_lanes_hold_what_the_isa_draws(fragment, lane, expected):
    assert [fragment.coords(lane, element) for element in range(fragment.elements)] == expected


def test_four_ldmatrix_quadrants_make_an_a_fragment():
    tile = np.arange(256).reshape(16, 16)
    quadrants = [tile[row : row + 8, col : col + 8] for col in (0, 8) for row in (0, 8)]
    loaded = np.concatenate([LDMATRIX_8X8.gather(quadrant) for quadrant in quadrants], axis=-1)
    assert np.array_equal(loaded, MMA_M16N8K16_A.gather(tile))


def test_transposed_ldmatrix_of_row_major_b_makes_a_b_fragment():
    tile = np.arange(128).reshape(16, 8)
    halves = [fragments.LDMATRIX_8X8_TRANS.gather(tile[row : row + 8]) for row in (0, 8)]
    assert np.array_equal(np.concatenate(halves, axis=-1), MMA_M16N8K16_B.gather(tile))


def test_accumulators_of_two_tiles_are_an_a_fragment():
    """Why one product can feed the next without shuffles: C of two n8 tiles is A of one k16
    step."""
    tile = np.arange(256).reshape(16, 16)
    two = np.concatenate(
        [MMA_M16N8K16_C.gather(tile[:, :8]), MMA_M16N8K16_C.gather(tile[:, 8:])], axis=-1
    )
    assert np.array_equal(two, MMA_M16N8K16_A.gather(tile))


def test_ldmatrix_addresses_name_every_row_once():
    pairs = {fragments.ldmatrix_address_row(lane, 4) for lane in range(32)}
    assert pairs == {(matrix, row) for matrix in range(4) for row in range(8)}
    assert fragments.ldmatrix_address_row(19, 2) == (0, 3)
    with pytest.raises(ValueError, match="matrices=3"):
        fragments.ldmatrix_address_row(0, 3)


def test_a_map_that_is_no_bijection_is_refused():
    with pytest.raises(ValueError, match="exactly once"):
        fragments.Fragment("broken", 8, 8, 2, 16, LDMATRIX_8X8.row_of, LDMATRIX_8X8.col_of * 0)
    with pytest.raises(ValueError, match="row_of.shape"):
        fragments.Fragment("broken", 8, 8, 2, 16, LDMATRIX_8X8.row_of[:16], LDMATRIX_8X8.col_of)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"matrix.shape=\(8, 16\)"):
        MMA_M16N8K16_B.gather(np.zeros((8, 16)))
    with pytest.raises(ValueError, match=r"fragment.shape=\(32, 3\)"):
        MMA_M16N8K16_B.scatter(np.zeros((32, 3)))
    with pytest.raises(ValueError, match=r"\(16, 0\)"):
        MMA_M16N8K16_B.holder(16, 0)


def test_maps_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        MMA_M16N8K16_A.row_of[0, 0] = 1
