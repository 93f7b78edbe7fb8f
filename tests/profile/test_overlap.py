"""Contract under test: how far a block's warps overlap counts time in which two kinds of work go
on, and no waiting; the page draws that share."""

import pytest

from numba_marlin.profile.lanes import overlap
from tests.profile.built import data, section

CASES = [  # warps, busy, together
    ([[(0, 10, "multiply")]], 10, 0),
    ([[(0, 10, "multiply")], [(0, 10, "multiply")]], 10, 0),
    ([[(0, 10, "multiply")], [(5, 15, "copy")]], 15, 5),
    ([[(0, 10, "multiply")], [(0, 10, "wait_copies")]], 10, 0),
    ([[(0, 4, "copy"), (4, 8, "multiply")], [(20, 30, "write")]], 18, 0),
    ([[(0, 4, "copy")], [(2, 6, "multiply")], [(3, 5, "write")]], 6, 3),
    ([], 0, 0),
]


@pytest.mark.parametrize("warps, busy, together", CASES)
def test_two_kinds_of_work_at_once_overlap(warps, busy, together):
    assert overlap(warps) == {"busy": busy, "together": together}


def test_the_share_is_drawn():
    found = data()
    assert 0 <= found["lanes"]["overlap"]["together"] <= found["lanes"]["overlap"]["busy"]
    found["lanes"]["overlap"] = {"busy": 200.0, "together": 136.0}
    assert "68%" in section(found, "timeline")
    del found["lanes"]["overlap"]
    assert "that overlap" not in section(found, "timeline")
