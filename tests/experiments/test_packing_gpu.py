"""Contract under test: the page of experiment 22 says what its rows say, and what it cannot exceed
follows from counts."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from numba_marlin.hardware import devices

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "22_packing_gpu"
ENVIRONMENT = {"device": "X", "driver": "1", "versions": {}, "date": "2026-01-01", "commit": "c"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("packing_gpu", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "README.md").write_text((FOLDER / "README.md").read_text(encoding="utf-8"))
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results.jsonl")
    return module


def test_the_page_has_every_cell_and_the_verdict(run, tmp_path):
    def rows(us):
        for bits in run.BITS:
            for k, n in run.SHAPES:
                for name in ("pack", "unpack", "copy"):
                    yield run.row_of(name, bits, k, n, [us, us], ENVIRONMENT, of_copy=0.87)
                for order in run.streams():
                    config = {"order": order}
                    yield run.row_of(
                        "read_words", bits, k, n, [us] * 2, ENVIRONMENT, of_copy=0.9, config=config
                    )
        config = {"call": "nm.pack(q, place)"}
        yield run.row_of("nm.pack(q, place)", 4, 16, 64, [2e3] * 2, ENVIRONMENT, config=config)

    for us, said in ((1.0, "is reached in every row"), (1e6, "is missed in 40 measurements")):
        run.RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows(us)))
        run.report(SimpleNamespace())
        page = (tmp_path / "README.md").read_text(encoding="utf-8")
        assert f"The target, 1 TB/s of codes, {said}" in page
    assert "| 4 | 4096 x 4096 | 1000000.0 | 0.00 |  | 0.87 |" in page
    assert "| `nm.pack(q, place)` | 2.0 | 0.0 |" in page


@pytest.mark.thorough
def test_memory_is_the_limit_not_instructions(run):
    """Bytes of a code and of its part of a word, over the bandwidth of the data sheet."""
    h200 = devices.device("H200")
    for name in ("pack", "unpack"):
        assert run.limit(name, 4, h200) == pytest.approx(h200.bandwidth_bytes / 1.5)
        assert run.limit(name, 8, h200) == pytest.approx(h200.bandwidth_bytes / 2)
