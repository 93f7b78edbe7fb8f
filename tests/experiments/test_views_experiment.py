"""Contract under test: the table of pictures names sections and steps that a walk has, and its
pictures are there."""

import importlib.util
import sys
from pathlib import Path

import pytest

from numba_marlin.trace.pages import SECTIONS

HERE = Path(__file__).resolve().parents[2] / "experiments" / "09_views"


@pytest.fixture(scope="module")
def run():
    sys.path.insert(0, str(HERE))
    try:
        spec = importlib.util.spec_from_file_location("views_run", HERE / "run.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(HERE))
    return module


def test_every_picture_has_its_command_and_its_file(run):
    assert {view[4] for view in run.VIEWS} == set(SECTIONS)
    assert len({view[0] for view in run.VIEWS}) == len(run.VIEWS)
    for view in run.VIEWS:
        assert 1_000 < (HERE / f"{view[0]}.png").stat().st_size < 150_000, view[0]


def test_the_readme_has_the_table(run):
    text = (HERE / "README.md").read_text(encoding="utf-8")
    assert run.table() in text, "run python experiments/09_views/run.py --table"
