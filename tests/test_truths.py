"""Contract under test: what docs/truths.md calls true is what its examples print.

After a change of the sources: ``python .ci/update_readme.py truths``. Every figure of a column
"true" stands in the example below it, and every example is executed, on its own.
"""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "truths.md").read_text(encoding="utf-8")
FIRST, *SECTIONS = re.split(r"^### ", PAGE, flags=re.MULTILINE)
TITLES = [section.partition("\n")[0] for section in SECTIONS]
FENCE = re.compile(r"^```pycon\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\|---\|---\|\n\| (.*?) \| (.*?) \|$", re.MULTILINE)
# what has digits and is a name: of a type, shape, instruction, kind or GPU
NAME = re.compile(r"`[^`]*`|\b[A-Za-z]+\d\w*|\b\d+-bit\b|\]\([^)]*\)")
NUMBER = re.compile(r"(?<![\w.])(?:0x[0-9A-F]+|\d[\d,]*(?:\.\d+)?)(?!\w)")


@pytest.fixture(scope="module")
def sessions():
    spec = importlib.util.spec_from_file_location("updating", ROOT / ".ci" / "update_readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def missing(section):
    """Figures of the column "true" that the example neither takes nor prints."""
    ((_, true),) = ROW.findall(section)
    said = {each.rstrip(",") for each in NUMBER.findall(NAME.sub("", true))}
    shown = "\n".join(FENCE.findall(section))
    there = set(re.findall(r"0x[0-9A-F]+|\d[\d,]*\d|\d", shown)) | set(
        re.findall(r"\d+\.\d+", shown)
    )
    return said - there


def example(sessions, section, monkeypatch):
    monkeypatch.chdir(ROOT)
    names = {}
    for setup in FENCE.findall(FIRST):
        sessions.session(setup, names)
    (lines,) = FENCE.findall(section)
    return lines, sessions.session(lines, names)


@pytest.mark.parametrize("section", SECTIONS, ids=TITLES)
def test_an_example_prints_what_is_shown(section, sessions, monkeypatch):
    if "assemble(" in section:
        pytest.importorskip("numba_cuda", reason="no CUDA compiler is installed")
    shown, printed = example(sessions, section, monkeypatch)
    assert printed == shown, "run python .ci/update_readme.py truths"


@pytest.mark.parametrize("section", SECTIONS, ids=TITLES)
def test_every_figure_stands_in_the_example(section):
    assert not missing(section)


def test_another_figure_is_noticed():
    section = SECTIONS[TITLES.index("Traffic")]
    assert missing(section.replace("Blocks ask for 72 MiB", "Blocks ask for 73 MiB")) == {"73"}
    assert not missing(section)


def test_another_output_is_noticed(sessions, monkeypatch):
    section = SECTIONS[TITLES.index("Scales")]
    shown, printed = example(sessions, section.replace("4.5)", "4.6)"), monkeypatch)
    assert printed != shown and printed.replace("4.5)", "4.6)") == shown


def test_an_error_of_an_example_is_printed(sessions):
    names = {}
    assert sessions.session(">>> raise ValueError('no')\n", names).endswith("ValueError: no\n")
    with pytest.raises(ZeroDivisionError):
        sessions.session(">>> 1 / 0\n", names)


def test_the_page_has_claims_of_each_kind():
    assert len(SECTIONS) >= 19
    for group in ("Packed weights", "Tensor cores and registers", "TMA", "NVFP4"):
        assert f"\n## {group}\n" in PAGE
