"""Contract under test: ``--json``, ``--out`` and ``--seed`` mean the same in every verb, or are
absent."""

import json

import pytest

from numba_marlin.cli import main as cli
from tests.cli.verbs import run, run_json
from tests.pages import TEXT


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_shows_examples_and_every_common_option(capsys, verb):
    code, out, _ = run(capsys, verb, "--help")
    assert code == 0 and f"numba-marlin {verb}" in out.partition("examples:")[2]
    assert "--json" in out and " ".join(out.split()).count(
        "--out FILE.json also write the JSON object to this file"
    )
    # a verb that draws nothing at random has no seed
    drawn = verb in (
        "run",
        "explain",
        "bench",
        "machine",
        "trace",
        "unpack",
        "profile",
        "watch",
        "judge",
    )
    assert ("--seed S" in out) == drawn
    _, _, err = run(capsys, verb, "--seed", "x")
    assert ("invalid int value: 'x'" in err) == drawn


@pytest.mark.parametrize("verb", cli.VERBS)
def test_the_readme_lists_every_verb(verb):
    assert f"\n| `numba-marlin {verb}" in TEXT


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--backend", "reference", "--n", 64, "--k", 128],
        ["bench", "--shapes", "list"],
        ["info"],
        ["explain", "--m", 1, "--n", 64, "--k", 128, "--device", "H200"],
        ["unpack"],
    ],
)
def test_out_is_the_json_object_in_a_file(capsys, tmp_path, argv):
    code, data = run_json(capsys, *argv, "--out", tmp_path / "said.json")
    found = json.loads((tmp_path / "said.json").read_text())
    assert code == 0 and found["schema"] == f"numba-marlin/{argv[0]}/1" and found == data
    code, _, err = run(capsys, *argv, "--out", tmp_path / "said.txt")
    assert code == 2 and "said.txt must end in .json" in err and not err.startswith("quantising")
