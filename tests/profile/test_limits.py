"""Contract under test: the limits in what a profile says of its numbers, where one more or one less
decides."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from numba_marlin.emulator.instructions import HANDLERS
from numba_marlin.emulator.text.program import Instruction
from numba_marlin.profile import lanes
from numba_marlin.profile.instrument.records import LAUNCH, Recording
from numba_marlin.profile.sources import model, rules
from numba_marlin.profile.sources.access import way
from tests.profile.built import H200, counted, data


def finding(rule, **changes):
    some = data()
    some["time"]["fitted"] = True  # no lower bound, of whose shares nothing follows
    for name, value in changes.items():
        place, _, key = name.partition("__")
        some[place][key] = value
    return rule(some)


@pytest.mark.parametrize(
    "tail, launch, said",
    [
        (20.0, 10.0, "unequal length"),
        (10.0, 20.0, "too short to fill"),
        (15.0, 15.0, "too short to fill"),
    ],
)
def test_the_longer_of_launch_and_tail_is_what_is_told(tail, launch, said):
    us = {"multiply": 70.0, "tail": tail, "launch": launch}
    assert said in finding(rules.launch_and_tail, parts__us=us).text


def test_a_wait_that_is_missing_is_no_wait():
    tail, launch = (
        finding(rules.launch_and_tail, parts__us={"multiply": 0.5, name: 0.5})
        for name in ("tail", "launch")
    )
    assert "unequal length" in tail.text and "too short to fill" in launch.text


def test_launch_and_tail_may_take_15_percent():
    for us, said in ((15.0, False), (15.5, True)):
        parts = {"multiply": 100.0 - us, "tail": us}
        assert (finding(rules.launch_and_tail, parts__us=parts) is not None) == said


def test_an_access_of_one_percent_of_the_sectors_is_too_few_to_be_the_worst():
    rows = [
        {"opcode": "ld", "verb": "fetch", "sectors": 9900, "needed": 5000},
        {"opcode": "st", "verb": "finish", "sectors": 100, "needed": 0},
    ]
    some = data() | {"accesses": rows}
    some["counts"]["coalescing"] = 50.0
    assert "worst: ld of fetch, 51%" in rules.coalescing(some).text
    rows[0]["sectors"], rows[1]["sectors"] = 9899, 101
    assert "worst: st of finish, 0%" in rules.coalescing(some).text


def test_a_lower_bound_is_the_longer_of_work_and_memory_and_a_launch():
    """Of a kernel that nobody predicts; a prediction stands as it is."""
    found = counted()
    unknown = replace(found, candidate=replace(found.candidate, figures={}))
    slow = replace(H200, bandwidth_bytes=1e9)
    memory = found.problem.least_bytes / 1e9 * 1e6
    assert model.model(unknown, slow).us == pytest.approx(memory + model.LAUNCH_US)
    bound = model.model(unknown, replace(H200, bandwidth_bytes=None))
    work = sum(us for name, us in bound.parts.items() if name not in (LAUNCH, model.LATENCY))
    assert bound.us == pytest.approx(work + model.LAUNCH_US) and not bound.fitted
    figures = {"predicted_us": 123.0}
    told = model.model(replace(found, candidate=replace(found.candidate, figures=figures)), H200)
    assert told.us == 123.0 == pytest.approx(sum(told.parts.values())) and told.fitted


@pytest.mark.parametrize(
    "opcode, expected",
    [
        ("cp.async.cg.shared.global", ("global", "shared")),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", ("global", "shared")),
        ("cp.async.bulk.global.shared::cta.bulk_group", ("shared", "global")),
        ("cp.async.bulk.commit_group", None),
        ("cp.async.bulk.prefetch.L2.global", None),
        ("st.shared.b32", ("registers", "shared")),
        ("ld.global.b32", ("global", "registers")),
        ("red.global.add.u32", ("registers", "global")),
        ("red.shared.add.u32", ("registers", "shared")),
    ],
)
def test_where_an_instruction_moves_bytes(opcode, expected):
    assert way(parsed(opcode)) == expected


def parsed(opcode):
    root = next(opcode[:i] for i in range(len(opcode), 0, -1) if opcode[:i] in HANDLERS)
    modifiers = tuple(opcode[len(root) :].strip(".").split("."))
    return Instruction(0, 1, opcode, opcode, root, modifiers, ())


def recording(blocks, start=0.0, sections=((0, 1),) * 2):
    """A recording of a warp a block."""
    count = len(blocks)
    begin = start + 100.0 * np.arange(count)[:, None] + np.array([0.0, 10.0])
    return Recording(
        block=np.array(blocks),
        warp=np.arange(count),
        smid=10 + np.arange(count),
        start_ns=begin[:, 0],
        end_ns=begin[:, 0] + 50.0,
        section=np.array([sections[0]] * count, np.int8),
        begin_ns=begin,
        clipped=0,
    )


def test_of_a_gpu_the_last_launch_and_its_middle_block_are_drawn():
    launches = [recording([6, 7, 8, 9]), recording([3, 4, 5, 6], 1000.0)]
    found = lanes.lanes(None, SimpleNamespace(recordings=launches))
    assert (found["block"], found["sm"], found["unit"]) == (5, 12, "us")
    (warp,) = found["warps"]  # in us, from the start of the block
    assert [span[:2] for span in warp["spans"]] == [[0.0, 0.01], [0.01, 0.05]]
    found = lanes.lanes(SimpleNamespace(recording=recording([4, 0, 2])), None)
    assert (found["block"], found["sm"]) == (0, 11)  # of the machine, block 0, in instructions
    assert [span[:2] for span in found["warps"][0]["spans"]] == [[0.0, 10.0], [10.0, 50.0]]
