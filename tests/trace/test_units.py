"""Contract under test: the timeline by unit shows for each unit just the steps in which the block
issued to it."""

import pytest

from numba_marlin.trace.pages import timeline
from tests.trace.runs import recorded

ROOTS = {  # by the name of the instruction, where the page goes by its class
    "asynchronous copies": ("cp.async",),
    "loads of shared memory": ("ldmatrix", "ld.shared"),
    "tensor cores": ("mma",),
}


@pytest.mark.parametrize("name", ["ampere", pytest.param("buffered", marks=pytest.mark.thorough)])
def test_a_unit_is_drawn_when_it_is_issued_to(name):
    found, *_ = recorded(name)
    drawn = timeline.units(found, block=1)
    columns = min(timeline.COLUMNS, found.steps)
    lanes = {lane.label: lane for lane in drawn.lanes}
    assert list(lanes) == list(dict.fromkeys(timeline.UNITS.values()))
    for label, roots in ROOTS.items():
        expected = set()
        for warp in range(found.warps, 2 * found.warps):
            for step in found.steps_of(warp).tolist():
                words = found.instructions[found.step_pc[step]]["text"].split(None, 1)[0]
                if words.startswith(roots) and ".wait_" not in words and ".commit" not in words:
                    expected.add(step * columns // found.steps)
        width = found.steps / columns
        shown = {
            column
            for span in lanes[label].spans
            for column in range(round(span.start / width), round(span.end / width))
        }
        assert shown == expected and shown, label


def test_addresses_and_waits_are_no_units_work():
    for kind, root, unit in (
        ("integer", "mad", None),
        ("sync", "cp.async", None),
        ("shared", "st.shared", None),
        ("copy", "createpolicy", None),
        ("copy", "cp.async.bulk", "asynchronous copies"),
        ("shared", "ldmatrix", "loads of shared memory"),
        ("logic", "lop3", "logic, fp16, conversions"),
        ("fp16", "fma", "logic, fp16, conversions"),
    ):
        assert timeline.unit_of({"kind": kind, "root": root}) == unit
