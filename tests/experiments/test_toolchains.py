"""Contract under test: the page of experiment 34 has the tables of its results and says what they
say; a right, a wrong, a racing and an unreadable case are told apart; the tensor maps of the CuTe
DSL's host code are read."""

import importlib
import sys

import numpy as np
import pytest

from numba_marlin.layout import tensor_map as maps
from numba_marlin.layout.tensor_map import TensorMap
from tests.emulator.ptx_cases import frame
from tests.experiment_results import FOLDER, module, rows

EXPERIMENT = "34_toolchains"
ROWS = rows(EXPERIMENT)
ADD = """mul.wide.u32 %rd1, %t, 4; add.u64 %rd2, %rd1, %p0; ld.global.u32 %r1, [%rd2];
add.u32 %r1, %r1, 1; add.u64 %rd3, %rd1, %p1; st.global.u32 [%rd3], %r1;"""


def test_the_page_has_the_tables(monkeypatch):
    report = module(EXPERIMENT, "report", monkeypatch)
    page = (FOLDER / EXPERIMENT / "README.md").read_text(encoding="utf-8")
    made = report.tables(report.rows_of(FOLDER / EXPERIMENT / "results.jsonl"))
    assert made in page, "run python experiments/34_toolchains/run.py report"


def test_what_the_page_says_of_all():
    others = [row for row in ROWS if row["outcome"] != "right"]
    assert {row["outcome"] for row in others} <= {"report", "refused"}
    assert all(row["without"] == "right" for row in others if row["outcome"] == "report")
    named = {row["case"].partition(":")[0] for row in others}
    assert named == {"atomics", "sqrt, fp64"}
    assert len({row["toolchain"] for row in ROWS}) == 6


@pytest.fixture
def harness(monkeypatch):
    """Imports a module of the experiment under its own name, as pickled cases want it."""
    names = [path.stem for path in (FOLDER / EXPERIMENT).glob("*.py")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(FOLDER / EXPERIMENT)
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def judged(tmp_path, harness, body: str, expected) -> dict:
    recording = harness("recording")
    case = recording.Case("none", "case", "sm_90")
    x, y = np.arange(64, dtype=np.uint32), recording.poisoned(64, np.uint32)
    addresses = [case.put(x), case.put(y)]
    case.launch(frame(body, 2), "k", (1, 1, 1), (64, 1, 1), addresses)
    case.expect(y, expected)
    case.write(tmp_path)
    (path,) = tmp_path.glob("*.case")
    return harness("judge").judge(path, 60)


@pytest.mark.parametrize(
    "body, add, outcome",
    [
        (ADD, 1, "right"),
        (ADD, 2, "wrong"),
        (ADD.replace("add.u64 %rd3, %rd1, %p1;", "mov.u64 %rd3, %p1;"), 1, "report"),
        (ADD.replace("add.u32", "sum.u32"), 1, "refused"),
    ],
)
def test_cases_are_told_apart(tmp_path, harness, body, add, outcome):
    row = judged(tmp_path, harness, body, np.arange(64) + add)
    assert row["outcome"] == outcome, row
    if outcome == "wrong":
        assert row["wrong"] == 64 and "[0] is 1, expected 2" in row["said"]
    if outcome == "report":
        assert row["without"] == "wrong" and row["check"]


def test_tensor_maps_of_the_hardware_are_read(harness):
    """Words of a map that the DSL wrote for a float16 tensor [2, 128, 96] and a box of [1, 32, 64],
    swizzled by 128 bytes."""
    kit = harness("cute_kit")
    words = [0x10000, 7, 0x46322, 12, 1536, 0, 0, 0, 95, 127, 1, 0, 0, 63 << 24, 31, 0]
    found = np.array(words, np.uint32).tobytes() + b"\x5a" * 64
    decoded, address = maps.decode(kit.own_map(found))
    assert address == 0x7_0001_0000
    assert decoded == TensorMap("float16", (2, 128, 96), (24576, 192, 2), (1, 32, 64), 128)
