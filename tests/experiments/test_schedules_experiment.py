"""Contract under test: experiment 17 keeps the rows of other PTX when it writes, and its table
takes them only where the current PTX has none."""

import contextlib
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).resolve().parents[2] / "experiments" / "17_schedules"


@pytest.fixture
def run(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("schedules_run", HERE / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results.jsonl")
    monkeypatch.setattr(module, "judged_by", lambda small: f"now {small.label}")
    (tmp_path / "README.md").write_text("\n".join(module.MARKERS), encoding="utf-8")
    return module


def row(kernel, number, ptx, date="2026-01-01", seconds=1.0):
    return {
        "kernel": kernel,
        "number": number,
        "schedules": 100,
        "drawn": {"any": 100},
        "cpu_seconds": seconds,
        "ptx": ptx,
        "date": date,
        "cpu": "a CPU",
    }


def test_rows_of_other_ptx_stay(run, monkeypatch):
    kept = [
        row("general", 0, "an older one"),
        row("naive", 0, "an older one", "2026-01-02"),
        row("naive", 0, "the oldest"),
        row("no kernel any more", 0, "gone"),
    ]
    run.RESULTS.write_text("".join(json.dumps(each) + "\n" for each in kept), encoding="utf-8")

    @contextlib.contextmanager
    def pool(processes):
        made = ({**row(*each, ""), "cpu_seconds": 7.0} for each in (("naive", 0),))
        asked = []
        yield SimpleNamespace(imap_unordered=lambda work, wanted: (asked.extend(wanted), made)[1])
        assert asked == [("naive", 0)]  # the current one's is missing

    monkeypatch.setattr(
        run, "multiprocessing", SimpleNamespace(get_context=lambda kind: SimpleNamespace(Pool=pool))
    )
    monkeypatch.setattr(sys, "argv", ["run.py", "--schedules", "100", "--kernel", "naive"])
    run.main()
    rows = run.read()
    assert len(rows) == 5 and all(each in rows for each in kept)
    text = (run.HERE / "README.md").read_text(encoding="utf-8")
    (naive,) = (line for line in text.splitlines() if line.startswith("| naive |"))
    assert "| 100 |" in naive and naive.endswith("| 7 | current |")
    (general,) = (line for line in text.splitlines() if line.startswith("| general |"))
    assert general.endswith("| 1 | other |")
    assert text.startswith(run.MARKERS[0]) and "200 schedules" in text
    digest = run.shown(rows, "naive", "yet another")[0]["ptx"]
    assert digest.startswith("now")  # the one that was run last
