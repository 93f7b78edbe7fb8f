"""Contract under test: what compute-sanitizer said is read and judged as
``experiments/sanitizer.py`` says, and the problems of experiments 02 and 23 cover what the
heuristics propose. The tools' words are invented."""

import importlib.util
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from numba_marlin.emulator.errors import OutOfBounds
from numba_marlin.execution import driver, gpu
from numba_marlin.execution.machine import set_up
from tests.kernels.harness import cases

ROOT = Path(__file__).resolve().parents[2] / "experiments"

RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at marlin_decode+0x100
=========     and Read access at marlin_decode+0x230 [248 hazards]
=========     and Read access at marlin_decode+0x240 [8 hazards]
=========
========= Warning: Race reported between Write access at marlin_decode+0x300
=========     and Read access at marlin_decode+0x230 [2 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
OPCODES = {0x100: "UBLKCP", 0x230: "LDS.128", 0x240: "LDSM.16.M88.4", 0x300: "STS"}


@pytest.fixture
def load(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    for name in ("sanitizer", "problems"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def module(path):
        name = f"tested_{path.replace('/', '_').removesuffix('.py')}"
        spec = importlib.util.spec_from_file_location(name, ROOT / path)
        found = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, found)  # dataclasses look their module up
        spec.loader.exec_module(found)
        return found

    return module


def row(**other):
    return {
        "errors": 0,
        "warnings": 0,
        "aside": 0,
        "launches": 2,
        "races": {},
        "planted": [{"what": "one", "kernel": "decode", "must": True, "found": 3, "ended": True}],
        **other,
    }


def test_summaries_of_every_tool_are_read(load):
    sanitizer = load("sanitizer.py")
    assert sanitizer.parse_summary(RACE) == (1, 1)
    assert sanitizer.parse_summary("========= ERROR SUMMARY: 12 errors") == (12, 0)
    assert sanitizer.parse_summary("killed after 40 s") is None


def test_races_of_asynchronous_copies_are_told_from_others(load):
    sanitizer = load("sanitizer.py")
    found = sanitizer.races(RACE, OPCODES)
    assert found == [
        ("Error", ("LDS.128", "LDSM.16.M88.4", "UBLKCP")),
        ("Warning", ("LDS.128", "STS")),
    ]
    assert [sanitizer.is_asynchronous(ends) for _, ends in found] == [True, False]
    assert not any(sanitizer.is_asynchronous(ends) for _, ends in sanitizer.races(RACE, {})), (
        "of unknown instructions nothing is excused"
    )


@pytest.mark.parametrize(
    "other, clean",
    (
        ({}, True),
        ({"aside": 4}, True),
        ({"errors": 1}, False),
        ({"warnings": 1}, False),
        ({"errors": None}, False),
        ({"launches": 0}, False),
        (
            {
                "planted": [
                    {"what": "one", "kernel": "decode", "must": True, "found": 0, "ended": True}
                ]
            },
            False,
        ),
        (
            {
                "planted": [
                    {"what": "one", "kernel": "decode", "must": False, "found": 0, "ended": True}
                ]
            },
            True,
        ),
    ),
)
def test_a_tool_is_clean_only_if_it_saw_what_it_must(load, other, clean):
    assert load("sanitizer.py").is_clean(row(**other)) is clean


def test_processes_add_up_and_one_that_did_not_end_is_no_zero(load):
    sanitizer = load("sanitizer.py")
    one = {
        "errors": 0,
        "warnings": 1,
        "aside": 2,
        "launches": 4,
        "races": {"Error: LDS and UBLKCP": 2},
        "seconds": 1.0,
    }
    total = sanitizer.add_up([one, one])
    assert (
        total["errors"],
        total["warnings"],
        total["aside"],
        total["launches"],
        total["races"],
    ) == (0, 2, 4, 8, {"Error: LDS and UBLKCP": 4})
    assert sanitizer.add_up([one, one | {"errors": None}])["errors"] is None


def test_the_section_says_what_was_found_and_what_was_not(load):
    sanitizer = load("sanitizer.py")
    planted = [
        {"what": "seen", "kernel": "decode", "must": True, "found": 3},
        {"what": "unseen", "kernel": "wgmma", "must": False, "found": 0},
        {"what": "lost", "kernel": "wgmma", "must": True, "found": 0},
    ]
    text = sanitizer.section(
        {
            "device": "some",
            "driver": "13.0",
            "date": "today",
            "commit": "abc",
            "versions": {"numba": "1"},
            "compilers": ["numba-cuda"],
            "problems": ["p"],
            "tools": {
                "racecheck": row(aside=2, races={"Error: LDS and UBLKCP": 2}, planted=planted)
            },
        }
    )
    assert (
        "| racecheck | 2 | 0 | 0 | 2 | **not clean** |" in text
        and "Error: LDS and UBLKCP (2)" in text
    )
    assert (
        "seen | 3 found |" in text
        and "unseen | not seen |" in text
        and "lost | **not found** |" in text
    )


def test_hopper_cases_cover_every_arrangement_in_both_types_and_every_way_to_share_tiles(load):
    suite = load("02_hopper/sanitize.py")
    for kernel in suite.CHOICES:
        cases = [case for case in suite.CASES if case.kernel == kernel]
        for number, sharings in enumerate(suite.by_arrangement(kernel, suite.WHOLE)):
            mine = cases[4 * number : 4 * number + 4]
            assert {case.config.dtype for case in mine} == {"float16", "bfloat16"} and mine[
                0
            ].config in sharings
            assert all(
                getattr(case.config, name, None) == getattr(sharings[0], name, None)
                for case in mine
                for name in suite.TILES_AND_WARPS
            )
            assert {case.m > suite.rows_of(case.config) for case in mine} == {True, False} and {
                case.config.bias for case in mine
            } == {True, False}
        assert len(cases) == 4 * (number + 1)
    assert {(case.config.split, case.config.parts > 1) for case in cases} == {
        (False, False),
        (True, False),
        (False, True),
    }
    indexes = [index for batch in suite.SUITE.batches for index in batch]
    assert sorted(indexes) == list(range(len(suite.CASES)))
    assert {(plant.tool, plant.case.kernel) for plant in suite.PLANTS if plant.must} == {
        (tool, kernel) for tool in suite.sanitizer.TOOLS for kernel in suite.CHOICES
    }


def test_a_launch_has_all_that_its_kernel_reads(load):
    suite = load("02_hopper/sanitize.py")
    for case in (suite.CASES[3], suite.CASES[-1], suite.IN_DECODE, suite.IN_WGMMA):
        launch = suite.sanitizer.Launch(case)
        addresses = {name: 4096 * (index + 1) for index, name in enumerate(launch.buffers)}
        encoded = []

        def encode(tensor_map, address, encoded=encoded):
            encoded.append(address)
            return bytes(128)

        arguments = launch.arguments(addresses, encode)
        assert len(arguments) == len(case.definition.parameters) and set(encoded) <= set(
            addresses.values()
        )
        assert launch.buffers["a"].shape == (
            case.m,
            case.k + case.padding,
        ) and launch.bias.shape == (case.n,)


@pytest.mark.thorough
def test_planted_edits_break_the_kernels_they_are_planted_in(load):
    """Those of one kernel: that there is something to edit. (Assembled, they were once.)"""
    suite = load("02_hopper/sanitize.py")
    ptx = suite.IN_DECODE.build("numba-cuda", "sm_90a").ptx
    edits = [plant.edit for plant in suite.PLANTS if plant.edit and plant.case is suite.IN_DECODE]
    assert len(edits) == 4 and all(edit(ptx) != ptx for edit in edits)


@pytest.mark.parametrize("experiment", ("01_faithful", "02_hopper", "23_w4a8"))
def test_the_readmes_hold_the_markers(load, experiment):
    text = (ROOT / experiment / "README.md").read_text(encoding="utf-8")
    assert [text.count(marker) for marker in load("sanitizer.py").MARKERS] == [1, 1]


# ---- W4A8


class Held:
    """In place of ``driver.DeviceArray``: memory of the host, whose address is its number."""

    made: list["Held"] = []

    def __init__(self, shape, dtype):
        self.array, self.address = np.full(shape, 0x55, dtype), len(self.made)
        self.made.append(self)

    @classmethod
    def from_host(cls, array):
        found = cls(array.shape, array.dtype)
        found.array[...] = array
        return found

    def fill_words(self, word):
        self.array.reshape(-1).view(np.uint8)[:] = np.resize(
            np.array([word], np.uint32).view(np.uint8), self.array.nbytes
        )

    def to_host(self):
        return self.array


@pytest.fixture
def on_machine(monkeypatch):
    """A launch on a GPU is one on the PTX machine."""
    monkeypatch.setattr(Held, "made", [])
    monkeypatch.setattr(driver, "DeviceArray", Held)
    monkeypatch.setattr(driver, "synchronize", lambda ordinal: None)
    monkeypatch.setattr(
        gpu, "arguments", lambda binding, addresses, ordinal: tuple(addresses.items())
    )

    def loaded(binding, ordinal):
        def launch(grid, arguments):
            given = {name: Held.made[address].array for name, address in arguments}
            set_up(binding, given=given).run()

        return launch

    monkeypatch.setattr(gpu, "loaded", loaded)


def test_w4a8_cases_cover_every_tile_of_either_type_and_all_groups(load):
    suite = load("23_w4a8/sanitize.py")
    kinds = ("int8", "fp8")
    for choose, kind in itertools.product((suite.many, suite.few), kinds):
        wanted = {
            arrangement
            for group_size in (128, 64, 32, -1)
            for arrangement in suite.proposed(choose, ((512, 512, group_size, None),), kind)
            if arrangement[-1] != "in parts" or arrangement[:-1] in suite.IN_PARTS
        }
        name = f"decode_{kind}" if choose is suite.few else f"wgmma_{kind}"
        mine = [case for case in suite.CASES if case.kernel == name]
        for arrangement in wanted:
            alike = [case for case in mine if suite.arrangement_of(case.config) == arrangement]
            assert {(case.config.dtype, case.config.bias) for case in alike} == {
                ("float16", False),
                ("bfloat16", True),
            }
            in_parts = arrangement[-1] == "in parts"
            assert {case.m > arrangement[0] for case in alike} == (
                {True} if in_parts else {True, False}
            )
        assert {case.group_size for case in mine} == {128, 64, 32, -1}
        assert {case.config.zeros for case in mine} == {None, "integer"}
        assert any(case.n % 64 and case.k % 128 for case in mine)
    types = {(case.config.kind, case.config.dtype) for case in suite.CASES if hasattr(case, "x")}
    assert types == {(kind, dtype) for kind in kinds for dtype in ("float16", "bfloat16")}
    indexes = [index for batch in suite.SUITE.batches for index in batch]
    assert sorted(indexes) == list(range(len(suite.CASES)))


def test_w4a8_every_tool_has_an_error_that_it_must_find(load):
    """But racecheck in ``wgmma_int8`` and ``wgmma_fp8``, whose warps share no memory that they
    store."""
    suite = load("23_w4a8/sanitize.py")
    kernels = {case.kernel for case in suite.CASES}
    assert len(kernels) == 6
    assert {(plant.tool, plant.case.kernel) for plant in suite.PLANTS if plant.must} == {
        (tool, kernel)
        for tool in suite.sanitizer.TOOLS
        for kernel in kernels
        if (tool, kernel[:5]) != ("racecheck", "wgmma")
    }


@pytest.mark.parametrize(
    "kernel",
    cases(
        (
            ("quantize_activations",),
            ("quantize_activations_with_offsets",),
            ("decode_int8",),
            ("decode_fp8",),
            ("wgmma_int8",),
            ("wgmma_fp8",),
        ),
        lambda kernel: kernel.startswith("quantize_activations"),
    ),
)
def test_w4a8_launches_are_right_and_what_is_too_short_is_left(load, on_machine, kernel):
    suite = load("23_w4a8/sanitize.py")
    for case in suite.CASES:
        if case.kernel == kernel and (not kernel.startswith("quantize") or case.m == 3):
            assert suite.run_case(case, case.build("numba-cuda", "sm_90a"))
    short = [plant for plant in suite.PLANTS if plant.short and plant.case.kernel == kernel]
    assert short
    for plant in short:
        with pytest.raises(OutOfBounds, match=rf"\b{plant.short}\b.* lie in no buffer"):
            suite.run_case(plant.case, plant.case.build("numba-cuda", "sm_90a"), plant)


@pytest.mark.thorough
def test_w4a8_planted_edits_break_the_kernels_they_are_planted_in(load):
    suite = load("23_w4a8/sanitize.py")
    for plant in suite.PLANTS:
        if plant.edit:
            compiled = plant.case.build("numba-cuda", "sm_90a")
            assert suite.sanitizer.edited(compiled, plant.edit).ptx != compiled.ptx
