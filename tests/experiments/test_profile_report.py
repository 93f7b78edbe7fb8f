"""Contract under test: the report of experiment 10 says of every cell how far its parts are from
the plain kernel's time, and hides none that is too far. The rows here are invented."""

import importlib.util
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "10_profile"


@pytest.fixture(scope="module")
def report():
    spec = importlib.util.spec_from_file_location("profile_report", FOLDER / "report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(kernel="ampere", us=10.0, parts=None, **more):
    parts = parts or {"launch": 1.0, "multiply": 8.0, "wait_copies": 1.5}
    return {
        "kernel": kernel,
        "m": 16,
        "n": 64,
        "k": 128,
        "us": us,
        "timeline_us": sum(parts.values()),
        "parts_us": parts,
        "light_us": 10.4,
        "detailed_us": 11.5,
        "ends_us": 10.1,
        "device": "a GPU",
        "driver": "1.0",
        "date": "2026-01-01",
        "commit": "abc",
    } | more


README = (
    "# x\n<!-- times: begin -->\nbygone\n<!-- times: end -->\nprose\n<!-- views: begin -->\n<!--"
    " views: end -->\nend\n"
)


def written(report, tmp_path, rows):
    results, readme = tmp_path / "results.jsonl", tmp_path / "README.md"
    results.write_text("".join(json.dumps(each) + "\n" for each in rows))
    readme.write_text(README)
    return report.write(results, readme, 0.10), readme.read_text()


def test_cells_within_the_tolerance_pass_and_are_bold(report, tmp_path):
    code, text = written(report, tmp_path, [row()])
    assert (
        code == 0
        and "**10.5 (+5.0%)**" in text
        and "In 1 of 1 cells" in text
        and "bygone" not in text
        and text.endswith("end\n")
        and "prose" in text
    )
    assert "| +1% |  |  | +4% | +15% |" in text


def test_parts_of_several_builds_are_shown_beside_those_of_one(report, tmp_path):
    new = row(
        us=30.0,
        parts={"multiply": 25.0, "wait_copies": 6.0},
        raw_parts_us={"multiply": 27.0, "wait_copies": 7.5},
        raw_timeline_us=34.5,
        work_us=31.2,
        finer_us={"wait_copies": 33.0, "wait_barrier": 31.5},
        light_us=34.8,
        ends_us=30.6,
        detailed_us=36.0,
    )
    code, text = written(
        report,
        tmp_path,
        [
            new,
            row(
                "naive",
                finer_us={},
                work_us=None,
                raw_timeline_us=10.5,
                raw_parts_us={"launch": 1.0, "multiply": 8.0, "wait_copies": 1.5},
            ),
        ],
    )
    assert code == 0 and "| **31.0 (+3.3%)** | +2% | +4% | +5% .. +10% | +16% | +20% |" in text
    assert (
        "| all at once: |  |  | 34.5 (+15.0%) |  |  |  |  |  |  | 27.0 | 7.5 |" in text
        and text.count("all at once:") == 1
    )


def test_a_cell_that_is_too_far_is_named(report, tmp_path):
    code, text = written(report, tmp_path, [row(), row("wgmma", parts={"multiply": 12.0})])
    assert (
        code == 1
        and "In 1 of 2 cells" in text
        and "wgmma m=16 (+20%)" in text
        and "| 12.0 (+20.0%) |" in text
    )


def test_the_last_row_of_a_cell_counts(report, tmp_path):
    code, text = written(report, tmp_path, [row(parts={"multiply": 20.0}), row()])
    assert code == 0 and "+100" not in text


def test_every_view_has_its_picture(report):
    assert {f"{view[0]}.png" for view in report.VIEWS} <= {path.name for path in FOLDER.iterdir()}
    assert (FOLDER / report.SAMPLE).exists()


def test_the_readme_is_what_the_recorded_rows_say(report):
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert (
        report.times(report.latest(FOLDER / "results.jsonl"), 0.10) in text
        and report.views() in text
    )
