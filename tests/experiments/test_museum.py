"""Contract under test: every exhibit of the museum is found for what it is, at the line that its
page shows, and its fix is clean; the page is that of the sources."""

import re

import pytest

from numba_marlin.emulator.checks import CHECKS
from tests.experiment_results import FOLDER, module

pytest.importorskip("numba_cuda", reason="numba-cuda comes with numba-marlin[cu13]")
EXPERIMENT = "27_museum"
FILES = sorted((FOLDER / EXPERIMENT / "exhibits").glob("*.py"))
PAGE = (FOLDER.parent / "docs" / "museum.md").read_text(encoding="utf-8")
SECTIONS = PAGE.split("\n## ")[1:]


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


def test_what_racecheck_says_is_read(run):
    summary = "RACECHECK SUMMARY: {} hazards displayed ({} errors, {} warnings)"
    for counts, said in (((3, 2, 1), "2 errors, 1 warnings"), ((0, 0, 0), "nothing")):
        output = "launched 01_guard broken\n========= " + summary.format(*counts)
        assert run._told(run.parse_summary(output), output) == said
    assert run._told(None, "no module") == "the launch failed"
