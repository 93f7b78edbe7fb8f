"""Contract under test: docs/audit.md. Its counts are those of its rows; a row that says "there"
or "partly" names what shows it, one that says "partly" or "missing" why, and what would finish it;
commands parse and print their sections, and what is linked exists."""

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from numba_marlin.cli import main as cli

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
INTRODUCTION, *PARTS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
VERDICTS = ("there", "partly", "missing")
ITEM = re.compile(r"^\| (.+?) \| (\w+) \| (.*?) \| ?(.*?) \|$", re.MULTILINE)
ROWS = [row for part in PARTS for row in ITEM.findall(part)]
SHOWN = "\n".join(row[2] for row in ROWS)
# not what stands in a link: [`path`](../path)
COMMANDS = sorted(set(re.findall(r"\[`[^`]*`\]|`([^`]*)`", SHOWN)) - {""})
FINISH = "To finish: "
LATER = sorted({each for row in ROWS for each in re.findall(r"`(\w+ --[^`]*)`", row[3])})
RECORDED = re.compile(r"trace .*--phase (\w+)$|profile .*--view (\w+)$")


def test_the_counts_are_those_of_the_rows():
    summary = re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", INTRODUCTION, re.M)
    assert [each[0] for each in summary] == [part.partition("\n")[0] for part in PARTS]
    for (_, *numbers), part in zip(summary, PARTS):
        found = ITEM.findall(part)
        assert len(found) == part.count("\n| ") - 1  # but the head: no row has another form
        verdicts = Counter(row[1] for row in found)
        assert [*map(int, numbers)] == [len(found), *(verdicts[each] for each in VERDICTS)]


def _wrong(row):
    item, verdict, shown, note = row
    return (
        verdict not in VERDICTS
        or len(item.split()) > 12  # a quotation is short
        or bool(shown) != (verdict != "missing")
        or (verdict == "there") == (FINISH in note)
        or (verdict != "there" and min(len(each.split()) for each in note.split(FINISH)) < 2)
    )


def test_a_row_says_what_shows_it_or_why_not():
    assert not list(filter(_wrong, ROWS))
    for row in (
        ("it", "there", "", ""),
        ("it", "partly", "`trace`", ""),
        ("it", "partly", "`trace`", "nobody wants it"),
        ("it", "partly", "`trace`", "nobody wants it. To finish: "),
        ("it", "partly", "`trace`", "To finish: a wish for it"),
        ("it", "there", "`trace`", "but slow. To finish: a faster one"),
        ("it", "missing", "", "no"),
        ("it", "missing", "`trace`", "nobody wants it. To finish: nothing can"),
        ("it", "works", "`trace`", ""),
    ):
        assert _wrong(row)


@pytest.mark.parametrize("command", COMMANDS + LATER)
def test_a_command_parses(command):
    if command.endswith("--help"):
        assert command.split()[0] in cli.VERBS
    else:
        cli.parser().parse_args(shlex.split(command))


def test_commands_that_need_a_gpu_are_among_them():
    assert sum("--backend cuda" in each or each.startswith("bench") for each in LATER) >= 3


def test_what_is_linked_exists():
    targets = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert len(targets) > 140
    for target in targets:
        path, _, place = target.partition("#")
        page = ROOT / "docs" / path
        assert page.exists(), target
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M) if place else ()
        names = [re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings]
        assert not place or place in names, target


def _prints_its_section(command, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.main(shlex.split(command)) == 0
    name = next(filter(None, RECORDED.search(command).groups()))
    printed = capsys.readouterr().out
    assert re.search(rf"^.* \[{name}\]$\n^─+$", printed, re.M), printed[:300]


KEPT = [each for each in COMMANDS if each.startswith("profile --open") and "--view" in each]


@pytest.mark.parametrize("command", KEPT)
def test_a_kept_profile_has_its_section(command, capsys, monkeypatch):
    _prints_its_section(command, capsys, monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize("command", [c for c in COMMANDS if RECORDED.search(c) and c not in KEPT])
def test_a_command_prints_its_section(command, capsys, monkeypatch):
    _prints_its_section(command, capsys, monkeypatch)


def test_the_commands_are_many():
    assert sum(bool(RECORDED.search(each)) for each in COMMANDS) > 30 and len(ROWS) == 352 + 16
