"""Contract under test: shared memory is drawn where the run's copies and stores went, byte for byte
and without overlap; and every probe of a level stands in the picture of memory, with its GPU."""

import pytest

from numba_marlin.data import measured
from numba_marlin.trace import pages
from numba_marlin.trace.pages import levels, memory, shared
from numba_marlin.trace.record import Trace
from numba_marlin.trace.traffic import copies
from numba_marlin.views import plain
from tests.trace.runs import recorded

HERE = pages.Choice()


def lanes_of(found):
    (drawn, *_) = shared.drawing(found, HERE)
    return {lane.label: lane.spans for lane in drawn.lanes}


@pytest.mark.parametrize("key", ["ampere", "buffered", "decode", "wgmma"])
def test_what_was_copied_is_drawn_once_and_inside_the_blocks_memory(key):
    found, _ = recorded(key)
    base, whole = found.header["launch"]["shared_base"], found.header["launch"]["shared_bytes"]
    drawn = set()
    for span in lanes_of(found)["copied here"]:
        taken = set(range(int(span.start), int(span.end)))
        assert taken and not taken & drawn
        drawn |= taken
    filled = {
        byte - base
        for copy in copies(found, 0)
        if copy.source >= 0
        for byte in range(copy.target, copy.target + copy.nbytes)
    }
    assert drawn == filled and max(drawn) < whole


def test_operands_of_a_stage_have_their_own_places():
    found, _ = recorded("buffered")
    assert {span.label for span in lanes_of(found)["copied here"]} == {
        f"{name} {stage}" for name in "ab" for stage in (0, 1)
    }


def test_a_copy_that_goes_elsewhere_is_drawn_elsewhere():
    found, _ = recorded("buffered")
    first = copies(found, 0)[0]
    moved = Trace(found.header, dict(found.arrays))
    rows = (moved.arrays["access_address"] == first.target).nonzero()
    moved.arrays["access_address"] = moved.arrays["access_address"].copy()
    moved.arrays["access_address"][rows] += 8192
    assert lanes_of(moved) != lanes_of(found)


def test_a_kernel_without_shared_memory_has_no_drawing():
    assert shared.drawing(recorded("naive")[0], HERE) == ()


def test_every_probe_of_a_level_stands_in_the_picture_of_memory():
    page = plain.render(pages.page(recorded("ampere")[0], HERE, ("memory",)))
    rows = measured("levels")
    assert rows and all(levels.words(row) in page for row in rows)
    assert {name for names in levels.LEVELS_OF.values() for name in names} == {
        row["level"] for row in rows
    }


def test_a_bar_is_as_long_as_what_was_measured():
    _, latency, rate = memory.section(recorded("ampere")[0], HERE).parts
    rows = measured("levels")
    waits = [(row["level"], row["cycles"]) for row in rows if row["unit"] == "cycles"]
    bars = {bar.label: bar.value for bar in latency.bars}
    assert set(bars) == dict(waits).keys() and set(bars.items()) <= set(waits)
    assert all(bars[level] <= cycles for level, cycles in waits)
    assert {(bar.label, bar.value) for bar in rate.bars} == {
        (row["level"], row["per_cycle_and_sm"]) for row in rows if row["unit"] == "bytes"
    }
