"""Contract under test: the example of the fuzzing kit works as its README says."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[2] / "experiments" / "08_fuzz_your_own"


@pytest.fixture(scope="module")
def run():
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("fuzz_your_own_run", HERE / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


@pytest.mark.parametrize(
    "target",
    ("packing", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("kernel", "ring"))),
)
def test_the_toy_is_sound_and_its_bug_is_found(run, target):
    assert run.search(target, False)[0] is None
    assert run.search(target, True)[0] is not None


def test_the_table_says_what_was_found(run):
    row = {
        "target": "packing",
        "bug": None,
        "found": 0,
        "searches": 3,
        "median_calls": 300.0,
        "median_seconds": 0.1,
        "says": None,
        "date": "2026-01-01",
        "commit": "abc",
        "versions": {"hypothesis": "6"},
    }
    text = run.table([row, row | {"bug": "a bug", "found": 3, "says": "code [2, 0]"}])
    assert (
        "| packing | none | 0 of 3 | 300 | 0.10 |  |" in text
        and "| packing | a bug | 3 of 3 | 300 | 0.10 | `code [2, 0]` |" in text
    )
