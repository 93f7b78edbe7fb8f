"""Contract under test: the page of experiment 26 says what its rows say, and every cell has a
configuration and an expected time."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "26_experts"
ENVIRONMENT = {"device": "X", "driver": "1", "versions": {}, "date": "2026-01-01", "commit": "c"}
US = {"moe": 100.0, "moe_wgmma": 125.0, "loop": 250.0, "grouped": 300.0, "humming": 200.0}
SUMMED_US = {"grouped + sum": 320.0, "humming + sum": 215.0}  # of "down"
CELLS = "| 64 | 7.5 | 100.0 | 125.0 | 250.0 | 300.0 | 200.0 |"


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in (
        "layers",
        "entrants",
        "eight_bits",
    ):  # other experiments have modules of such names
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    spec = importlib.util.spec_from_file_location("experts", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "README.md").write_text((FOLDER / "README.md").read_text(encoding="utf-8"))
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results.jsonl")
    yield module
    for name in ("layers", "entrants", "eight_bits"):
        sys.modules.pop(name, None)


def test_the_page_has_every_cell_that_was_measured(run, tmp_path):
    with run.RESULTS.open("w") as out:
        for model, product, problem in run.cells(run.MODELS, [64]):
            for name, us in (US | (SUMMED_US if problem.combine else {})).items():
                config = run.configurations(problem, False).get(name)
                row = run.row_of(
                    name, config, model.name, product, problem, 7.5, [us] * 3, ENVIRONMENT
                )
                out.write(json.dumps(row) + "\n")
    run.report(SimpleNamespace())
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert page.count(CELLS) == 2 * len(run.MODELS)
    # 7.5 experts of 2880 columns of 1440 bytes and 90 scales each, in 100 us
    assert f"| gpt-oss-120b down {CELLS} 320.0 | 215.0 | 350 |" in page
    assert page.count(f"{CELLS}  |  |") == len(run.MODELS)  # gate_up has no sum
    assert "Not measured yet" not in page.partition("<!-- eight bits: begin -->")[0]


def test_the_page_has_the_cells_of_8_bits(run, tmp_path):
    with run.RESULTS.open("w") as out:
        for model, product, problem in run.cells(run.MODELS, [64]):
            eight = run.eight_bits.problem_of(problem, "int8")
            assert (eight is None) == (model.hidden % 128 > 0)  # gpt-oss
            if eight is None:
                continue
            config = run.eight_bits.config_of(eight)
            for name in ("moe_wgmma_int8", "quantise + moe_wgmma_int8"):
                row = run.row_of(
                    name, config, model.name, product, eight, 7.5, [50.0] * 3, ENVIRONMENT
                )
                out.write(json.dumps(row | {"kernel": name}) + "\n")
    run.report(SimpleNamespace())
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if "| 64 |  |  | 50.0 | 50.0 |  |  |" in line]
    assert len(lines) == 2 * 4


def test_every_cell_has_configurations_and_an_expected_time(run, capsys):
    for _, _, problem in run.cells(run.MODELS, run.TOKENS):
        found = run.configurations(problem, sweep=True)
        assert found["moe"].batch in (8, 16) and len(set(found.values())) == len(found)
        assert ("moe_wgmma" in found) == (problem.m * problem.top_k >= 8 * problem.experts)
        assert run.expected_us(problem) > 6
    run.main(["expect", "--m", "1,64"])
    assert capsys.readouterr().out.count(" us  ") == 2 * 2 * len(run.MODELS)


def test_a_token_touches_its_experts_and_many_touch_all(run):
    problem = run.MODELS[0].products(1)["down"]
    assert run.expected_touched(problem) == pytest.approx(problem.top_k)
    many = run.MODELS[0].products(4096)["down"]
    assert run.expected_touched(many) == pytest.approx(many.experts)


def test_cells_that_are_there_are_skipped(run, tmp_path):
    """Those with rows of every kernel of ours, of the same sources."""
    (model, product, problem), other = list(run.cells(run.MODELS, [1024]))[:2]
    environment = ENVIRONMENT | {"sources": "s"}
    with run.RESULTS.open("w") as out:
        for name in run.OURS:
            config = run.configurations(problem, False)[name]
            row = run.row_of(name, config, model.name, product, problem, 8, [9.0] * 3, environment)
            out.write(json.dumps(row) + "\n")
    there = run.kernels_of_cells({run.RESULTS, tmp_path / "none.jsonl"}, "s")
    assert run.is_there(there, model, product, problem) and not run.is_there(there, *other)
    there = run.kernels_of_cells({run.RESULTS}, "other")
    assert not run.is_there(there, model, product, problem)
