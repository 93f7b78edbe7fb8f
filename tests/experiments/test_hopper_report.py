"""Contract under test: the report of experiment 02 sets the newest measured rows beside their
goals, in both READMEs. The rows here are invented."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tests.bench.invented import row

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "02_hopper"
GOALS = {(4096, 8192): {1: (3.0, 2.0), 64: (2.0, None)}, (8192, 512): {1: (2.5, 2.0)}}


def load(name):
    spec = importlib.util.spec_from_file_location(f"hopper_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report():
    return load("report")


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return load("run")


def cell(m, us, **other):
    return row(k=4096, n=8192, m=m, us=us, **other)


ROWS = (
    cell(1, 99.0),
    cell(1, 10.0, kernel="decode"),
    cell(1, 15.0, chosen=False),
    cell(1, 1.0, chosen=False, kernel="tiled"),
    cell(1, 12.0, chosen=False, kernel="marlin_cuda"),
    cell(64, 20.0),
    cell(64, 1.0, group_size=-1),
    cell(64, 1.0, dtype="bfloat16"),
    cell(2, 1.0),
    row(k=64, n=64, m=1),
)


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ROWS), encoding="utf-8")
    return path


def test_the_newest_choice_counts_and_what_was_timed_beside_it(report, results):
    found = report.newest(results, GOALS)
    assert {name: each["us"] for name, each in found[4096, 8192][1].items()} == {
        "ours": 10.0,
        "ampere": 15.0,
        "marlin_cuda": 12.0,
    }
    assert {name: each["us"] for name, each in found[4096, 8192][64].items()} == {
        "ours": 20.0,
        "ampere": 20.0,
    }
    assert set(found[4096, 8192]) == {1, 64} and found[8192, 512] == {}


def test_every_goal_is_shown_reached_missed_or_not_measured(report, results):
    lines = report.overview(report.newest(results, GOALS), GOALS).splitlines()
    assert lines[0] == "| k x n | m=1 | m=64 |"
    assert lines[2:] == [
        "| 4096 x 8192 | **3.00** (3.00) | 1.50 (2.00) |",
        "| 8192 x 512 | not measured (2.50) |  |",
    ]


def test_details_have_a_line_for_each_measured_cell(report, results):
    lines = [
        [each.strip() for each in line.strip("|").split("|")]
        for line in report.details(report.newest(results, GOALS), GOALS).splitlines()[2:]
    ]
    assert [each[:3] for each in lines] == [["4096 x 8192", "1", "decode"], ["", "64", "ampere"]]
    assert [each[9:] for each in lines] == [
        ["30.00", "**3.00**", "3.00", "2.00", "2.00", "2.50"],
        ["30.00", "**1.50**", "2.00", "", "1.50", ""],
    ]


def test_the_summary_counts_and_names_what_is_short(report, results):
    said = report.summary(report.newest(results, GOALS), GOALS)
    assert (
        "reached in 1 of 2 cells measured (1 are not measured)" in said
        and "ahead in 1 of 1 cells (1.50 to 1.50" in said
    )
    assert "Short of it: 4096 x 8192 m=64 (1.50 of 2.00, 50% of the limit)." in said


def test_ahead_is_what_is_faster_by_any_amount(report):
    speeds = {1: 1.9, 16: 2.0, 64: 2.1, 256: 4.0}
    found = {(4096, 8192): {m: {"ours": {"speedup": each}} for m, each in speeds.items()}}
    goals = {(4096, 8192): {m: (1.0, 2.0) for m in speeds}}
    assert "ahead in 2 of 4 cells (0.95 to 2.00 times" in report.summary(found, goals)


def test_the_limit_is_said_as_measured_from_least_to_most(report):
    def found(*reads):
        ceilings = [{"read_bytes": each, "matrix_flops": 7.04e14} for each in reads]
        return {(1, 2): {m: {"ours": {"ceilings": each}} for m, each in enumerate(ceilings)}}

    assert "the bytes over 4.00 to 4.25 TB/s" in report.ceilings(found(4.1e12, 4.25e12, 4e12))
    assert "the bytes over 4.10 TB/s (" in report.ceilings(found(4.1e12, 4.1001e12))
    assert "the operations over 704 TFLOP/s (" in report.ceilings(found(4e12))


def test_a_goal_is_reached_to_its_own_rounding(report):
    assert report.reached({"speedup": 2.99}, 3.0) and not report.reached({"speedup": 2.98}, 3.0)


def test_both_readmes_get_the_table_and_keep_the_rest(report, results, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "plot", lambda *arguments: None)
    monkeypatch.setattr(report, "draw", lambda *arguments: None)
    own, project = tmp_path / "sub" / "README.md", tmp_path / "README.md"
    own.parent.mkdir()
    for path, (begin, end) in ((own, report.HERE_MARKERS), (project, report.PROJECT_MARKERS)):
        path.write_text(f"above\n{begin}\nold\n{end}\nbelow\n", encoding="utf-8")
    for _ in range(2):  # writing twice changes nothing
        report.write(
            results, own, project, own.parent / "speedup.png", own.parent / "roofline.png", GOALS
        )
    for path, link in ((own, "(speedup.png)"), (project, "(sub/speedup.png)")):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("above\n") and text.endswith("\nbelow\n") and "old" not in text
        assert text.count("**3.00** (3.00)") == 1 and link in text and "commit abc" in text
    assert "reads" not in project.read_text() and "4.00 TB/s" in own.read_text()


def test_plots_are_drawn(report, results, tmp_path):
    pytest.importorskip("matplotlib")
    report.plot(report.newest(results, GOALS), GOALS, tmp_path / "speedup.png")
    assert (tmp_path / "speedup.png").read_bytes().startswith(b"\x89PNG")


def test_no_results_are_no_table(report, tmp_path):
    with pytest.raises(SystemExit, match="holds no results"):
        report.newest(tmp_path / "results.jsonl", GOALS)


def test_the_projects_files_hold_the_markers(report):
    for path, markers in (
        (FOLDER / "README.md", report.HERE_MARKERS),
        (ROOT / "docs" / "performance.md", report.PROJECT_MARKERS),
    ):
        text = path.read_text(encoding="utf-8")
        assert [text.count(marker) for marker in markers] == [1, 1]


def test_every_cell_with_a_goal_is_measured_by_default(run):
    wanted = list(run.cells(list(run.NAMES.values()), run.BATCHES))
    assert len(wanted) == sum(map(len, run.GOALS.values())) == 38
    assert list(run.cells(["ideal"], (16, 1024))) == [("ideal", 16, 33792, 135168)]
    with pytest.raises(SystemExit, match="'nothing' must be one of ideal"):
        list(run.cells(["nothing"], (1,)))
