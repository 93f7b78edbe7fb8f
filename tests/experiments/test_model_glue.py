"""Contract under test: the glue of experiment 21 that is written in Triton gives what it says, on
the PTX machine, which looks for races, in several orders. Skipped without Triton and torch."""

import importlib
import sys
from pathlib import Path

import pytest

from numba_marlin.emulator import Race, Schedule
from numba_marlin.emulator.scheduling.schedules import OF_WARPS

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "21_model"
# by default, of each kernel
TELLING = ("random, float16", "picked, in parts", "two ranks, out of step")


@pytest.fixture(scope="module")
def cases():
    for package in ("torch", "triton"):
        pytest.importorskip(package)
    names = [each.stem for each in FOLDER.glob("*.py")]
    before = {name: sys.modules.pop(name, None) for name in names}
    path = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    yield {(each.kernel, each.what): each for each in importlib.import_module("glue_cases").cases()}
    sys.path[:] = path
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


KERNELS = ("norm", "gate", "attention", "join")


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_is_right_and_races_with_nobody(cases, kernel):
    found = [case for (name, what), case in cases.items() if name == kernel and what in TELLING]
    assert found
    for case in found:
        for schedule in (None, Schedule(1, "reverse")):
            assert case.run(schedule) <= 1, (case.what, schedule)


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", KERNELS)
def test_so_it_is_in_every_order(cases, kernel):
    for (name, what), case in cases.items():
        if name == kernel:
            for order in OF_WARPS:
                assert case.run(Schedule(2, order)) <= 1, (what, order)


def test_what_a_launch_reads_before_it_waits_must_be_complete(cases):
    """A weight that the launch before may still write is found, so the wait is looked at."""
    import torch

    norm, on_machine = (importlib.import_module(name) for name in ("norm", "on_machine"))
    x, weight = torch.ones(1, 256).half(), torch.ones(256).half()
    given = (x, weight)
    on_machine.machined(lambda: norm.norm(x, weight), given, ("weight",))
    with pytest.raises(Race, match="kernel before"):
        on_machine.machined(lambda: norm.norm(x, weight), given)
