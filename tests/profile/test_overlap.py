"""Contract under test: how far a block's warps overlap counts time in which two kinds of work go
on, and no waiting; the page draws that share."""

import pytest

from numba_marlin.profile.lanes import overlap
from numba_marlin.profile.pages import time_views
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


def test_the_main_loop_is_from_the_first_product_to_the_last():
    """A warp that never multiplies, or once, has none."""
    warps = [
        [(0, 5, "setup"), (5, 10, "multiply"), (10, 12, "wait_copies"), (12, 20, "multiply")],
        [(0, 30, "copy")],
        [(0, 4, "multiply"), (4, 30, "write")],
    ]
    lanes = {"block": 7, "source": "measured", "warps": [{"spans": spans} for spans in warps]}
    (bars,) = time_views.main_loop(lanes)
    assert [(each.value, each.text) for each in bars.bars] == [(13, "87%"), (2, "13%")]
    assert "block 7" in bars.title and bars.source == "measured"
    assert time_views.main_loop(lanes | {"warps": lanes["warps"][1:]}) == ()


def test_the_main_loop_is_drawn():
    assert "The main loop of block" in section(data(), "timeline")
