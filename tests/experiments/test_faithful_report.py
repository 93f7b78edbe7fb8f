"""Contract under test: the report of experiment 01 shows the newest measured rows and nothing else,
in both READMEs. The rows here are invented."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "01_faithful"
SHAPES = {"small": (256, 512), "large": (1024, 2048)}
PUBLISHED = {"small": {1: 2.0, 16: 2.0}, "large": {}}


@pytest.fixture(scope="module")
def report():
    spec = importlib.util.spec_from_file_location("faithful_report", FOLDER / "report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(shape, m, us, **other):
    return {
        "kernel": "ampere",
        "compiler": "numba-cuda",
        "chosen": True,
        "shape": shape,
        "m": m,
        "us": us,
        "cublas_us": 30.0,
        "speedup": round(30 / us, 3),
        "tb_per_s": 1.0,
        "tflops": 10.0,
        "device": "GPU",
        "driver": "1",
        "versions": {"numba": "0"},
        "date": "2026-01-01",
        "commit": "abc",
        **other,
    }


ROWS = (
    row("small", 1, 99.0),
    row("small", 1, 10.0, marlin_cuda_us=12.0, marlin_cuda_relative_error=0.006),
    row("small", 1, 98.0, chosen=False),
    row("small", 1, 97.0, compiler="numba-cuda-mlir"),
    row("small", 16, 15.0),
    row("large", 1, 20.0),
)


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ROWS), encoding="utf-8")
    return path


def test_the_newest_chosen_row_of_the_default_compiler_counts(report, results):
    assert {cell: each["us"] for cell, each in report.newest(results).items()} == {
        ("small", 1): 10.0,
        ("small", 16): 15.0,
        ("large", 1): 20.0,
    }


def test_the_original_is_shown_as_measured_or_in_italics_or_not_at_all(report, results):
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in report.table(report.newest(results), SHAPES, PUBLISHED).splitlines()[2:]
    ]
    assert [each[:2] for each in cells] == [["256 x 512", "1"], ["", "16"], ["1024 x 2048", "1"]]
    assert [each[6:] for each in cells] == [
        ["**3.00**", "12.0 us", "2.50", "1.20"],
        ["**2.00**", "", "*2.00*", "1.00"],
        ["**1.50**", "", "", ""],
    ]


def test_the_summary_counts_cells_and_names_wrong_results(report, results):
    said = report.summary(report.newest(results), PUBLISHED)
    assert (
        "in 2 cells: faster in 1, within 1% in 1, slower in 0" in said
        and "small m=1 (6.0e-03)" in said
        and "Italics" in said
    )


def test_within_a_hundredth_is_neither_faster_nor_slower(report):
    times = {1: 10.2, 16: 10.05, 64: 9.95, 256: 9.8}
    found = {("small", m): row("small", m, 10.0, marlin_cuda_us=us) for m, us in times.items()}
    said = report.summary(found, PUBLISHED)
    assert "in 4 cells: faster in 1, within 1% in 2, slower in 1 " in said
    assert '("ours : its": 0.98 to 1.02' in said and "off by" not in said and "Italics" not in said


def test_an_error_at_the_limit_is_wrong(report):
    errors = {1: 1.9e-3, 16: 2e-3, 64: float("nan")}
    found = {
        ("small", m): row("small", m, 10.0, marlin_cuda_relative_error=error)
        for m, error in errors.items()
    }
    assert "in: small m=16 (2.0e-03), small m=64 (nan)." in report.summary(found, PUBLISHED)


@pytest.mark.parametrize("text", ["{1}{0}", "{0}{1}{1}", "{0}{0}{1}", "{0}", "{1}"])
def test_markers_must_stand_once_and_in_order(report, tmp_path, text):
    path = tmp_path / "README.md"
    path.write_text(text.format(*report.HERE_MARKERS), encoding="utf-8")
    with pytest.raises(ValueError, match="each once"):
        report.replace_between(path, report.HERE_MARKERS, "body")


def test_both_readmes_get_the_table_and_keep_the_rest(report, results, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "plot", lambda *arguments: None)
    own, project = tmp_path / "sub" / "README.md", tmp_path / "README.md"
    own.parent.mkdir()
    for path, (begin, end) in ((own, report.HERE_MARKERS), (project, report.PROJECT_MARKERS)):
        path.write_text(f"above\n{begin}\nold\n{end}\nbelow\n", encoding="utf-8")
    for _ in range(2):  # writing twice changes nothing
        report.report(results, own, project, own.parent / "speedup.png", SHAPES, PUBLISHED)
    for path, link in ((own, "(speedup.png)"), (project, "(sub/speedup.png)")):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("above\n") and text.endswith("\nbelow\n") and "old" not in text
        assert text.count("**3.00**") == 1 and link in text and "commit abc" in text


def test_a_file_without_its_markers_is_left_alone(report, tmp_path):
    path = tmp_path / "README.md"
    path.write_text("text", encoding="utf-8")
    with pytest.raises(ValueError, match="must hold <!-- results:begin -->"):
        report.replace_between(path, report.HERE_MARKERS, "body")
    assert path.read_text(encoding="utf-8") == "text"


def test_no_results_are_no_table(report, tmp_path):
    with pytest.raises(SystemExit, match="holds no results"):
        report.newest(tmp_path / "results.jsonl")


def test_the_plot_is_drawn(report, results, tmp_path):
    pytest.importorskip("matplotlib")
    report.plot(report.newest(results), SHAPES, PUBLISHED, tmp_path / "speedup.png")
    assert (tmp_path / "speedup.png").read_bytes().startswith(b"\x89PNG")


def test_the_projects_files_hold_the_markers(report):
    for path, markers in (
        (FOLDER / "README.md", report.HERE_MARKERS),
        (ROOT / "docs" / "performance.md", report.PROJECT_MARKERS),
    ):
        text = path.read_text(encoding="utf-8")
        assert [text.count(marker) for marker in markers] == [1, 1]
