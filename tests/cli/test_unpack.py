"""Contract under test: ``numba-marlin unpack`` finds a weight's bits in files and in random layers,
in the terminal, as HTML and as JSON."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.cli.main import main
from numba_marlin.profile.sources.words import Layer


def run_json(capsys, *arguments):
    code = main(["unpack", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def checkpoint(tmp_path):
    weight = nm.quantize(
        np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32), group_size=32
    )
    nm.save_checkpoint(tmp_path / "model", {"a.b": weight}, "gptq")
    return tmp_path / "model", weight


def test_a_weight_of_a_checkpoint_is_found(capsys, checkpoint):
    path, weight = checkpoint
    code, found = run_json(capsys, str(path), "--layer", "a.b", "--k", "21", "--n", "7")
    field = next(each for each in found["words"][0]["codes"] if each["k"] == 21)
    assert (
        code == 0
        and found["ok"]
        and found["schema"] == "numba-marlin/unpack/1"
        and found["format"] == "gptq"
    )
    assert field["code"] == weight.codes[21, 7] and field["value"] == pytest.approx(
        float(nm.dequantize(weight)[21, 7]), rel=1e-3
    )
    assert found["words"][0]["value"] >> field["low"] & 15 == field["code"]


def test_the_page_shows_words_on_the_terminal_or_as_html(capsys, tmp_path):
    target = tmp_path / "words.html"
    argv = ["unpack", "--format", "marlin", "--word", "0,37", "--words", "2"]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "B[0, 37]" in shown and "B[0, 38]" in shown and "register of B" in shown
    assert main([*argv, "--html", str(target)]) == 0
    assert "B[0, 37]" in target.read_text(encoding="utf-8")
    # a long path may take a line of its own
    said = capsys.readouterr().out.split()
    assert said == ["wrote", f"{target},", f"{target.stat().st_size:,}", "bytes"]


def test_a_failed_check_is_printed_also_beside_a_file(capsys, tmp_path, monkeypatch):
    def damaged(self, *place, found=Layer.word):
        word = found(self, *place)
        return replace(word, fields=tuple(replace(each, agrees=False) for each in word.fields))

    monkeypatch.setattr(Layer, "word", damaged)
    argv = ["unpack", "--format", "marlin", "--html", str(tmp_path / "words.html")]
    assert main(argv) == 1
    assert "B[0, 0]" in capsys.readouterr().out


def test_names_that_the_terminal_or_utf8_has_no_characters_for(tmp_path):
    source, page = tmp_path / "\u00e9\udcff.safetensors", tmp_path / "page.html"
    nm.save_checkpoint(source, {"layer": nm.quantize(np.ones((128, 64), np.float32))})
    shown = []
    for to_file in ([], ["--html", str(page)]):
        done = subprocess.run(
            [sys.executable, "-m", "numba_marlin", "unpack", str(source), *to_file],
            capture_output=True,
            # wide: a long folder's name would break the line
            env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "120"},
        )
        assert done.returncode == 0 and done.stderr == b""
        shown.append(done.stdout)
    # wherever the line breaks, which depends on how long the temporary directory's name is
    assert b"\\xe9\\udcff.safetensors: layer" in b" ".join(shown[0].split())
    assert "\u00e9\\udcff.safetensors: layer" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--k", "3"], "--k and --n go together"),
        (["--word", "1"], "must be ROW,COLUMN"),
        (["--word", "0,0", "--k", "1", "--n", "1"], "exclude each other"),
        (["--layer", "x"], "needs SRC"),
        (["--format", "nothing"], "must be one of"),
        (["--word", "99,0"], "must be within B"),
        (["--view", "moon"], "is not one of"),
        (["--words", "0"], "at least 1"),
        (["--tensor", "nope"], "--tensor nope must be one that holds packed codes: B"),
        (["--tensor", "s"], "packed codes: B"),
        (["--word", "\u00b2,0"], "must be ROW,COLUMN"),
    ],
)
def test_bad_input_says_what_to_do(capsys, arguments, message):
    assert main(["unpack", *arguments]) == 2
    assert message in capsys.readouterr().err
