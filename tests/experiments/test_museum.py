"""Contract under test: every exhibit of the museum is found for what it is, at the line that its
page shows, and its fix is clean; the page is that of the sources."""

import os
import re
import sys

import pytest

from numba_marlin.emulator.checks import CHECKS
from tests.experiment_results import FOLDER, module

pytest.importorskip("numba_cuda", reason="numba-cuda comes with numba-marlin[cu13]")
EXPERIMENT = "27_museum"
FILES = sorted((FOLDER / EXPERIMENT / "exhibits").glob("*.py"))
PAGE = (FOLDER.parent / "docs" / "museum.md").read_text(encoding="utf-8")
*SECTIONS, SANITIZED = PAGE.split("\n## ")[1:]


@pytest.fixture
def run(monkeypatch):
    return module(EXPERIMENT, "run", monkeypatch)


def test_there_are_twelve_and_each_has_its_section():
    assert len(FILES) >= 12
    assert [section.partition(".")[0] for section in SECTIONS] == [
        str(number) for number in range(1, len(FILES) + 1)
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_page_shows_the_source(run, file):
    shown = run.exhibit(file)
    section = SECTIONS[FILES.index(file)]
    again = "\n".join(run.source(shown, "broken"))
    assert section.startswith(f"{FILES.index(file) + 1}. {shown.title}\n"), "run.py page"
    assert f"```python\n{again}\n```" in section and run.fix(shown) in section, "run.py page"
    assert shown.KIND in {*CHECKS, "race"} and f"```text\n{shown.KIND}: " in section
    assert shown.ISSUES and all(run.issue(each) in section for each in shown.ISSUES)
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", each) for each in shown.ISSUES)
    line = int(re.search(rf"  (?:then )?{file.name}, line (\d+): ", section)[1])
    text = file.read_text(encoding="utf-8").splitlines()[line - 1].strip()
    assert f"{file.name}, line {line}: {text}" in section, "run.py page"
    assert text in again


@pytest.mark.thorough
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_broken_one_is_found_and_the_fixed_one_is_clean(run, file):
    shown, section = run.exhibit(file), SECTIONS[FILES.index(file)]
    found = run.verdict(shown, "broken")
    first = run.defect(found)
    assert found.kinds == (shown.KIND,) and found.complete
    assert f"{file.name}, line {first.where.line}: {first.where.source}" in section
    assert first.where.block is not None and first.where.thread is not None
    fixed = run.verdict(shown, "fixed")
    assert fixed.passed and fixed.complete, fixed.kinds
    assert fixed.runs >= 5 * len(fixed.cases)


RACECHECK = "========= RACECHECK SUMMARY: {} hazards displayed ({} errors, {} warnings)"
ERRORS = "========= ERROR SUMMARY: {} errors"
RACE = """========= Error: Race reported between Write access at broken+0x100 in 02.py:30
=========     and Read access at broken+0x230 [248 hazards]
"""
INVALID = "========= Invalid __global__ write of size 4 bytes\n=========     at broken+0x40\n"
BARRIER = "========= Barrier error detected. Divergent thread(s) in block.\n"


@pytest.mark.parametrize(
    "output, said",
    [
        ("launched\n" + RACECHECK.format(0, 0, 0), "nothing"),
        ("launched 1 fixed\n" + ERRORS.format(0), "nothing"),
        (
            RACE * 2 + "launched\n" + RACECHECK.format(3, 2, 1),
            "2 errors, 1 warnings: Race reported between Write access",
        ),
        (
            INVALID + ERRORS.format(7),
            "7 errors: Invalid __global__ write of size 4 bytes",
        ),
        (
            BARRIER + "launched x\n" + ERRORS.format(32),
            "32 errors: Barrier error detected. Divergent thread(s) in block",
        ),
        ("no module", "the launch failed"),
        ("launched 01_guard broken", "no summary"),
        (RACE + "\nkilled after 90 s\n", "no end"),
    ],
)
def test_what_the_tools_say_is_read(run, output, said):
    assert run.told(output.replace("launched", "launched 01_guard broken")) == said


def test_the_page_says_what_the_tools_said(run):
    assert SANITIZED.startswith("What compute-sanitizer says\n")
    assert run.sanitizer_table() in SANITIZED, "run.py table"


STAND_IN = """#!{python}
import subprocess, sys
if "--version" in sys.argv:
    print("NVIDIA (R) Compute Sanitizer Version 0000.0.0 (stand-in)")
    raise SystemExit
tool = sys.argv[sys.argv.index("--tool") + 1]
kernel = sys.argv[-1]
if kernel == "broken":
    print("========= Invalid __global__ write of size 4 bytes")
print("launched", sys.argv[-2], kernel)
print("========= ERROR SUMMARY: %d errors" % (kernel == "broken"))
"""


def test_one_command_runs_all_and_writes_rows_and_the_table(run, monkeypatch, tmp_path):
    """With a stand-in for the tool and the driver."""
    from types import SimpleNamespace

    from numba_marlin.execution import driver

    tool = tmp_path / "compute-sanitizer"
    tool.write_text(STAND_IN.format(python=sys.executable), encoding="utf-8")
    tool.chmod(0o755)
    page = tmp_path / "museum.md"
    page.write_text(PAGE, encoding="utf-8")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(run, "RESULTS", tmp_path / "sanitizer.jsonl")
    monkeypatch.setattr(run, "PAGE", page)
    monkeypatch.setattr(driver, "describe", lambda number: SimpleNamespace(name="a GPU"))
    monkeypatch.setattr(driver, "probe", lambda: SimpleNamespace(driver_version="0"))
    monkeypatch.setattr(run, "exhibits", lambda: FILES[:2])
    run.sanitize(["memcheck", "synccheck"], 30, 2, tmp_path / "logs")
    rows = run.sanitized()
    assert len(rows) == 8 and {row["kernel"] for row in rows} == {"broken", "fixed"}
    assert rows[0]["found"] == ["Invalid __global__ write of size 4 bytes"]
    assert len(list((tmp_path / "logs").iterdir())) == 8
    text = page.read_text(encoding="utf-8")
    assert "not run yet | not run yet | 1 error: Invalid `__global__` write" in text
    assert text.count("a GPU, driver 0, compute-sanitizer 0000.0.0") == 1
