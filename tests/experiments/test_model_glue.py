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


def test_a_step_launches_four_kernels_a_layer_and_a_norm(cases):
    """As the decoder calls them; with ``join`` as many, and no other norm than the first."""
    import torch

    decoder, fused, join, launches = (
        importlib.import_module(name) for name in ("decoder", "fused", "join", "triton_launches")
    )
    shape = decoder.Shape("small", 2, 256, 2, 1, 512, 64)
    model = decoder.random_decoder(
        shape, decoder.half, decoder.Place("cpu", torch.float16)
    ).with_glue(fused.fused_glue())
    tables = [torch.zeros(2, dtype=torch.int64) for _ in range(2)]
    calls = torch.zeros(1, join.MOST_ROWS, dtype=torch.int32)
    cache, position = model.cache(3, 70), torch.tensor([69])
    for joined, norms, joins in ((None, 5, 0), (join.Inbox(0, 2, *tables, calls).join, 1, 4)):
        model.join = joined
        with torch.no_grad(), launches.recording("sm_90") as recorded:
            assert model.step(torch.tensor([1, 2, 3]), cache, position).shape == (3, 64)
        names = [kernel.metadata.name for kernel, *_ in recorded]
        expected = {"add_norm_kernel": norms, "attention_kernel": 2, "gate_kernel": 2}
        expected |= {"join_kernel": joins} if joins else {}
        assert {name: names.count(name) for name in names} == expected
        assert all(kernel.metadata.launch_pdl for kernel, *_ in recorded)
