"""Contract under test: ncu's table of a run becomes a row for each cell, our launch beside
those of cuBLAS, and the page says what the rows say."""

import pytest

from tests import experiment_results


@pytest.fixture
def counters(monkeypatch):
    return experiment_results.module("25_every_cell", "counters", monkeypatch)


def table(counters, launches):
    """As ``ncu --csv --page raw`` writes it: a column for each metric, a row of units."""
    head = ["ID", "Kernel Name", *counters.METRICS, "device__attribute_chip"]
    lines = [head, ["", "", *("" for _ in counters.METRICS), ""]]
    for number, (name, us) in enumerate(launches):
        values = [f"{us * 1000:,.0f}", *(f"{10 + i}" for i in range(1, len(counters.METRICS)))]
        lines.append([str(number), name, *values, "n/a"])
    text = "\n".join(",".join(f'"{each}"' for each in line) for line in lines)
    return f"==PROF== Connected to process 1\n{text}\n"


def test_our_launch_begins_a_cell_and_cublas_may_have_several(counters, tmp_path):
    path = tmp_path / "ncu.csv"
    launches = [("marlin_wgmma", 17.5), ("nvjet_a(x)", 9.0), ("splitK_b(x)", 3.0)]
    launches += [("marlin_wgmma", 1234.0), ("nvjet_c", 1000.0)]
    path.write_text(table(counters, launches), encoding="utf-8")
    cells = counters.by_cell(counters.kernels_of(path))
    assert [(ours[0], [each[0] for each in theirs]) for ours, theirs in cells] == [
        ("marlin_wgmma", ["nvjet_a(x)", "splitK_b(x)"]),
        ("marlin_wgmma", ["nvjet_c"]),
    ]
    first = counters.together(cells[0][1])
    assert first["entry"] == "nvjet_a" and first["launches"] == 2
    assert first[counters.TIME] == 12_000  # of both, in ns
    assert counters.together([cells[1][0]])[counters.TIME] == 1_234_000


def test_a_file_without_a_table_is_refused(counters, tmp_path):
    path = tmp_path / "ncu.csv"
    path.write_text("==ERROR== ERR_NVGPUCTRPERM\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no table: ==ERROR== ERR_NVGPUCTRPERM"):
        counters.kernels_of(path)


def test_the_page_has_a_line_for_each_cell_that_was_counted(counters, monkeypatch, tmp_path):
    page = (counters.HERE / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(page, encoding="utf-8")
    monkeypatch.setattr(counters, "HERE", tmp_path)
    counters.write_report(None)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == page
    below = page.partition(counters.MARKERS[0])[2].splitlines()
    rows = [line for line in below if " x " in line][1:]  # its head is one
    assert len(rows) == sum(1 for _ in counters.ROWS.open(encoding="utf-8"))


def test_what_is_not_known_leaves_its_place_empty(counters):
    row = {"k": 8, "n": 16, "m": 64, "kernel": "wgmma", "config": {"tile_m": 64}}
    known = {counters.TIME: 2000.0, counters.INSTRUCTIONS: 10.0}
    line = counters.line_of(row | {"ours": known, "cublas": known | {counters.TENSOR: 50.4}})
    assert line[:6] == ["8 x 16", "64", "2.0", "1.00", "", "50%"]
    assert len(line) == len(counters.HEADER)
