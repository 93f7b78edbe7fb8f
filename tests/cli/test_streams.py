"""Contract under test: a reader that stops, a full disk and closed streams end the command in
words, and with its exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from numba_marlin.cli import main as cli


def test_a_reader_that_stops_is_no_error():
    command = (
        f"{sys.executable} -m numba_marlin explain --m 16 --n 8192 --k 8192 | head -n 0; echo"
        " ${PIPESTATUS[0]}"
    )
    for _ in range(3):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        # 0: everything fitted into the pipe first
        assert done.stderr == "" and done.stdout.strip() in ("0", "141")


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="a device that is always full is Linux's"
)
def test_a_full_disk_leaves_one_line_and_the_exit_code():
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{sys.executable} -m numba_marlin compare nothing nothing --json > /dev/full; echo $?",
        ],
        capture_output=True,
        text=True,
    )
    assert (
        done.stdout.strip() == "2"
        and len(done.stderr.splitlines()) == 1
        and "error: " in done.stderr
    )


@pytest.mark.parametrize("closed", ("stdout", "stderr"))
def test_closed_streams_are_no_error(capsys, monkeypatch, closed):
    with monkeypatch.context() as changed:
        changed.setattr(sys, closed, None)
        assert cli.main(["run", "--backend", "reference", "--n", "64", "--k", "128", "--json"]) == 0
    captured = capsys.readouterr()
    assert (captured.out == "") == (closed == "stdout") and (
        closed == "stdout" or json.loads(captured.out)["ok"]
    )
