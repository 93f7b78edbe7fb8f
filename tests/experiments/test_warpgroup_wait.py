"""Contract under test: the page of experiment 05 has what was measured of a wait of one warp, and
says what it says; the machine goes by it, in the probe's own kernels."""

import json
from types import SimpleNamespace

import pytest

from numba_marlin.emulator import Machine, Race
from tests.experiment_results import FOLDER, module

EXPERIMENT = "05_hardware"
SAVED = json.loads((FOLDER / EXPERIMENT / "warpgroup.json").read_text(encoding="utf-8"))


@pytest.fixture
def probe(monkeypatch):
    return module(EXPERIMENT, "warpgroup", monkeypatch)


def test_the_page_has_the_table(probe):
    page = (FOLDER / EXPERIMENT / "README.md").read_text(encoding="utf-8")
    assert probe.page(SAVED) in page, "run python experiments/05_hardware/warpgroup.py report"


def test_what_the_page_says():
    after = [row for row in SAVED["groups"] if not row["early"]]
    before = [row for row in SAVED["groups"] if row["early"]]
    assert not any(row["changed"] for row in after) and sum(row["launches"] for row in after) > 2000
    # the probe sees what comes too early
    assert all(row["changed"] for row in before if row["columns"] == 256 and row["nanoseconds"])
    waited = [row for row in after if row["kind"] == "8 in flight" and row["nanoseconds"] >= 20000]
    for row in waited:
        least, _ = row["waited_after_late_issued"]
        if row["place"] == "middle" and row["late"] == "another":
            assert least < -5000, "the others' wait ends before that warp has come to its products"
        else:
            assert least > 0, "the others' wait ends behind the late warp's last product"


def run(probe, shape, races):
    row = next(each for each in probe.settings_of(shape) if each["writers"].bit_count() == 1)
    kernel = shape.probe(1)
    buffers = kernel.buffers()
    buffers["settings"][:] = [row[name] for name in probe.SETTINGS]
    machine = Machine(kernel.text, races=races)
    there = [machine.memory.buffer(array, name=name) for name, array in buffers.items()]
    launch = SimpleNamespace(grid=1, block=kernel.block, shared_bytes=kernel.shared_bytes)
    machine.run("probe", args=[each.address for each in there], **vars(launch))
    return probe.judged(shape, row, buffers)


@pytest.mark.parametrize("place", ("fence", "wait"))
def test_the_machine_goes_by_it(probe, place):
    assert run(probe, probe.Shape(8, 1, False, place), races=True)["changed"] == 0
    with pytest.raises(Race, match="missing-wgmma-wait"):
        run(probe, probe.Shape(8, 1, False, place, early=True), races=True)
