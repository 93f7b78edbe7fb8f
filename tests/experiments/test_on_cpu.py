"""Contract under test: the page of experiment 24 has the tables of its results, and the outcome
of a test is what it says it is."""

import json
import unittest
from pathlib import Path

import pytest

from tests.experiment_results import FOLDER, module, rows

EXPERIMENT = "24_on_cpu"
PAGE = (Path(FOLDER) / EXPERIMENT / "README.md").read_text(encoding="utf-8")


def test_the_page_has_the_tables(monkeypatch):
    run = module(EXPERIMENT, "run", monkeypatch)
    assert run.table() in PAGE, "run python experiments/24_on_cpu/run.py table"


def test_every_module_has_its_counts():
    for row in rows(EXPERIMENT):
        bad = row["refuse"] + row["report"] + row["fail"]
        assert len(row["said"]) <= bad and (bad == 0) == (not row["said"]), row["module"]


class Sample(unittest.TestCase):
    def test_pass(self):
        pass

    def test_skip(self):
        self.skipTest("why not")

    def test_fail(self):
        self.fail("no")

    def test_refuse(self):
        raise RuntimeError("CUDA_ERROR_NOT_SUPPORTED: without a GPU")

    def test_report(self):
        raise type("KernelError", (RuntimeError,), {})("Race in kernel k")

    def test_fail_worst_of_parts(self):
        for kind in ("NOT_SUPPORTED", "wrong"):
            with self.subTest(kind):
                raise RuntimeError(f"CUDA_ERROR_{kind}")


Sample.__test__ = False  # for the runner below, not for pytest


def test_an_outcome_is_one_of_five(monkeypatch, capsys):
    pytest.importorskip("numba_marlin.on_cpu")
    one_module = module(EXPERIMENT, "one_module", monkeypatch)
    unittest.defaultTestLoader.loadTestsFromTestCase(Sample).run(one_module.Outcomes())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 6
    for line in lines:
        assert line["test"].rpartition(".test_")[2].split("_")[0] == line["outcome"]
