"""What several test modules of one experiment share."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "03_tma"


@pytest.fixture(scope="module")
def experiment():
    """The experiment's modules by name, imported as its run.py imports them."""
    names = (
        "loader_config",
        "stripes",
        "kernels",
        "relayout",
        "variants",
        "faithful",
        "count",
        "cells",
        "report",
        "run",
    )
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    path = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path[:] = path
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(others)


@pytest.fixture
def load(request, monkeypatch):
    """Imports a module of the experiment in the test's FOLDER, forgotten after the test."""
    folder = request.module.FOLDER
    names = [each.stem for each in folder.glob("*.py")]
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    for each in names:
        monkeypatch.delitem(sys.modules, each, raising=False)
    yield importlib.import_module
    for each in names:
        sys.modules.pop(each, None)
