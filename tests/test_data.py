"""Contract under test: what the package shows of the experiments ships with it, is what the
experiments recorded, and no module of the package reads experiments/."""

import ast
import importlib.util
from pathlib import Path

import pytest

import numba_marlin
from numba_marlin.data import measured

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(numba_marlin.__file__).parent


@pytest.fixture(scope="module")
def script():
    path = ROOT / "experiments" / "package_data.py"
    spec = importlib.util.spec_from_file_location("package_data", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_script_makes_of_the_experiments(script):
    """After an experiment has recorded anew: python experiments/package_data.py."""
    found = {path.name: path.read_text(encoding="utf-8") for path in script.TARGET.iterdir()}
    assert found == script.texts()


def test_a_file_that_is_not_what_the_script_makes_is_noticed(script, tmp_path, monkeypatch, capsys):
    for name, text in script.texts().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(script, "TARGET", tmp_path)
    monkeypatch.setattr("sys.argv", ["package_data.py", "--check"])
    assert script.main() == 0
    (tmp_path / "witness.jsonl").write_text("{}\n", encoding="utf-8")
    assert script.main() == 1 and "stale: witness.jsonl" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, least, needed",
    [
        ("weight_times", 100, {"kernel", "config", "m", "n", "k", "us", "device"}),
        ("ladder_times", 28, {"kernel", "config", "m", "n", "k", "us", "device", "date"}),
        (
            "block_times",
            100,
            {"kernel", "config", "m", "n", "k", "us", "cublas_us", "device", "date"},
        ),
        ("witness", 100, {"probe", "covers", "outcome", "device", "driver", "measured"}),
    ],
)
def test_every_row_has_what_is_shown(name, least, needed):
    assert len(measured(name)) >= least and all(needed <= set(row) for row in measured(name))


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="nothing.jsonl"):
        measured("nothing")


def test_no_module_of_the_package_builds_a_path_into_experiments():
    """Docstrings, help and messages may name an experiment; a string that is the folder's name is a
    path."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value.strip("/") != "experiments", f"{path}:{node.lineno}"
