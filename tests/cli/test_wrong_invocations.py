"""Contract under test: a wrong command ends with its exit code (2: usage or bad input; 3: something
is missing here) and says on stderr, in at most LINES lines, what is wrong and what would be right.
It prints nothing else, writes nothing, and with ``--json`` says the same in its object.

One list, all verbs. What single verbs refuse beyond it is in their own modules."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numba_marlin.cli import main as cli
from numba_marlin.execution import driver
from numba_marlin.wording import printable
from tests.cli.wrong_commands import WRONG

ROOT = Path(__file__).parents[2]
LINES = 4  # of an error; the usage above it and progress do not count
SUFFIXES = ("npy", "npz", "json", "jsonl", "ptx", "safetensors")
PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry first(.param .u64 a) { ret; }
.visible .entry second(.param .u64 a) { ret; }
"""

# here there is neither a GPU nor its driver
MISSING = {
    "run --backend cuda",
    "explain --m 1 --n 64 --k 128 --autotune",
    "bench --m 1 --n 64 --k 128",
    "verify --hardware",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of what is no input: empty, text, bytes and directories under every name; and a
    matrix, a checkpoint and a .ptx file that are."""
    here = tmp_path_factory.mktemp("wrong")
    for suffix in ("txt", *SUFFIXES):
        (here / f"text.{suffix}").write_text("hello\n")
        (here / f"empty.{suffix}").write_bytes(b"")
        (here / f"binary.{suffix}").write_bytes(bytes(range(256)))
        (here / f"dir.{suffix}").mkdir()
    (here / "dir").mkdir()
    (here / "k.ptx").write_text(PTX)
    np.save(here / "w.npy", np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32))
    np.save(here / "x.npy", np.ones((4, 96), np.float32))
    np.save(here / "c.npy", np.ones((4, 128), np.float32))
    quantised = ["quantize", here / "w.npy", here / "q.safetensors", "--format", "gptq"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert cli.main([str(each) for each in [*quantised, "--group-size", 32]]) == 0
    return here


def contents(folder: Path) -> dict:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def ended(argv, capsys):
    """-> (exit code, stdout, lines of stderr without usage and progress)"""
    try:
        code = cli.main(argv)
    except SystemExit as stop:  # argparse
        code = stop.code
    out, err = capsys.readouterr()
    start = err.find("numba-marlin", err.find("usage:") + len("usage: numba-marlin"))
    lines = err[max(start, 0) :] if err.startswith("usage:") else err
    return code, out, [line for line in lines.splitlines() if not line.endswith(" ...")]


def test_every_verb_is_called_wrongly():
    called = [shlex.split(command)[0] for command, _ in WRONG]
    assert {verb: called.count(verb) for verb in cli.VERBS if called.count(verb) < 4} == {}
    assert len(WRONG) == len(set(WRONG)) > 60 and {command for command, _ in WRONG} > MISSING


def unquoted(text: str) -> str:
    """Without the quotes that the argparse of newer Pythons puts around numbers to choose from."""
    return re.sub(r"'(\d+)'", r"\1", text)


@pytest.mark.parametrize("command, said", WRONG, ids=[command for command, _ in WRONG])
def test_a_wrong_command_says_what_is_wrong(files, capsys, monkeypatch, command, said):
    monkeypatch.chdir(files)
    monkeypatch.setattr(
        driver, "probe", lambda: driver.Probe(False, "no NVIDIA driver on this machine")
    )
    before, argv = contents(files), shlex.split(command)
    code, out, err = ended(argv, capsys)
    assert code == (3 if command in MISSING else 2) and out == ""
    assert said in unquoted("\n".join(err)) and 1 <= len(err) <= LINES, err
    assert err[0].startswith("numba-marlin") and ": error: " in err[0]
    assert not any(word in "".join(err) for word in ("Traceback", "Errno", "\x1b", "error:  "))
    assert contents(files) == before
    if "--" not in argv:
        code_of_json, out, again = ended([*argv, "--json"], capsys)
        assert code_of_json == code and again == err or "required" in said
        # argparse's own refusals leave no object
        told = json.loads(out) if out else {"ok": False, "error": said}
        assert said in unquoted(printable(told["error"])) and told["ok"] is False
        assert contents(files) == before


# (what a shell runs, exit code, what stderr says)
SHELL = [
    ("inspect $'bad\\xff\\e[31m.safetensors'", 2, "bad\\udcff\\x1b[31m.safetensors: no such file"),
    ("run --input missing.npy >&-", 2, "missing.npy: no such file"),
    ("run --input missing.npy 2>&-", 2, ""),
    ("run --input missing.npy 2>/dev/full", 2, ""),
    ("run --input missing.npy --json >/dev/full", 2, "missing.npy: no such file"),
    ("dance 2>/dev/full", 2, ""),
    ("machine run k.ptx --entry first --args null 2>/dev/full >&-", 2, ""),
]


@pytest.mark.thorough
@pytest.mark.parametrize("command, code, said", SHELL, ids=[each[0] for each in SHELL])
def test_a_shell_is_told_too(files, command, code, said):
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m numba_marlin {command}"],
        capture_output=True,
        text=True,
        cwd=files,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == code and said in done.stderr and done.stdout == ""
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= LINES
