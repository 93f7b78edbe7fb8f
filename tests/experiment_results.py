"""For tests of what is said of experiments: their results, and their own modules."""

import importlib.util
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "experiments"


def rows(experiment, file="results.jsonl"):
    """The objects of a file of results, oldest first."""
    text = (FOLDER / experiment / file).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def module(experiment, name, monkeypatch):
    """An experiment's module, beside which its others lie; they leave no trace in sys.modules."""
    folder = FOLDER / experiment
    others = {each.stem for each in folder.glob("*.py")}
    monkeypatch.setattr(sys, "path", [str(folder), str(FOLDER), *sys.path])
    for each in others:
        monkeypatch.delitem(sys.modules, each, raising=False)
    spec = importlib.util.spec_from_file_location(f"{name}_of_{experiment}", folder / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    for each in others:
        sys.modules.pop(each, None)
    return found
