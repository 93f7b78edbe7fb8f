"""Contract under test: the report of experiment 10 says of every cell how far its parts are from
the plain kernel's time, and hides none that is too far. The rows here are invented."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from numba_marlin.kernels import registry

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
    " views: end -->\n<!-- kept: begin -->\n<!-- kept: end -->\nend\n"
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


@pytest.fixture(scope="module")
def kept():
    spec = importlib.util.spec_from_file_location("kept_profiles", FOLDER / "kept.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_kept_profile_is_of_a_kernel_that_there_is(kept):
    assert {"naive", "tiled", "ampere", "decode", "wgmma"} <= set(kept.PRODUCTS)
    assert all(registry.is_kernel(name) for name in kept.PRODUCTS)


def test_a_kept_profile_is_thinned_and_still_shows_its_busiest_warp(kept):
    data = json.loads((FOLDER / "h200_ampere.json").read_text())
    more = json.loads(json.dumps(data["lanes"]["warps"]))
    data["lanes"]["warps"] += more
    data["lanes"]["warps"][-1]["totals"]["multiply"] = 1e9
    thin = kept.lighter(data)
    assert len(thin["lanes"]["warps"]) == kept.WARPS + 1 < len(data["lanes"]["warps"])
    assert thin["lanes"]["warps"][-1] == data["lanes"]["warps"][-1]
    assert {**thin, "lanes": 0} == {**data, "lanes": 0}
    assert len(json.dumps(thin, separators=(",", ":"))) < kept.MOST_BYTES


def test_what_no_gpu_measured_is_named_so_and_not_kept_beside_what_one_did(kept):
    data = {"device": {"name": "NVIDIA H200"}, "measured": True, "kernel": "decode"}
    assert kept.file_of(data) == "h200_decode.json"
    assert kept.file_of(data | {"measured": False}) == "counted_h200_decode.json"
    given = SimpleNamespace(kernels="", device="H200", tried=False, out=str(kept.HERE))
    with pytest.raises(SystemExit, match="name --out"):
        kept.keep(given)
    with pytest.raises(SystemExit, match="--kernels none must be among"):
        kept.keep(SimpleNamespace(kernels="none", device="", tried=False, out="."))


def test_a_kernel_that_fails_leaves_the_others(kept, tmp_path, monkeypatch, capsys):
    sample = json.loads((FOLDER / "h200_ampere.json").read_text())

    def run(command, **options):
        kernel = command[command.index("--kernel") + 1]
        if kernel == "tiled":
            return SimpleNamespace(returncode=3, stderr="something\nno GPU\n")
        path = Path(command[command.index("--save") + 1])
        path.write_text(json.dumps(sample | {"kernel": kernel}))
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(kept.subprocess, "run", run)
    args = SimpleNamespace(kernels="tiled,ampere", device="", tried=True, out=str(tmp_path))
    assert kept.keep(args) == 1
    assert "tiled: exit code 3: no GPU" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["h200_ampere.json"]
    assert kept.table(tmp_path).splitlines()[-1].startswith("| ampere | 16 | 8192 x 8192 |")
    monkeypatch.setattr(kept, "MOST_BYTES", 1000)
    assert kept.keep(args) == 1 and "1,000 at most" in capsys.readouterr().out
