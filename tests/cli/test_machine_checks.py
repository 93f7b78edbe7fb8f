"""Contract under test: ``machine run`` looks for races wherever that is affordable, and says what
it looked for and what it did not."""

import pytest

from numba_marlin.emulator.ordering import affordable
from tests.cli.verbs import run, run_json
from tests.emulator.ptx_cases import frame
from tests.emulator.race_programs import ORDERED, RACING


@pytest.fixture
def command(tmp_path):
    """The command that runs a body; arguments behind it."""

    def made(body, *more, words=64):
        (tmp_path / "k.ptx").write_text(frame(body, 1))
        return (
            *("machine", "run", tmp_path / "k.ptx", "--block", 64),
            *("--args", f"out:i32[{words}]", *more),
        )

    return made


def test_a_race_is_found_by_default(command, capsys):
    code, out, error = run(capsys, *command(RACING))
    assert code == 1 and "Race" in error and "no hazard" not in out
    assert run(capsys, *command(RACING, "--races"))[0] == 1


def test_what_was_looked_for_is_said(command, capsys):
    code, out, _ = run(capsys, *command(ORDERED))
    said, left = (
        next(line for line in out.splitlines() if line.startswith(label))
        for label in ("looked for", "left out")
    )
    assert code == 0 and "races" in said and "races" not in left
    found = run_json(capsys, *command(ORDERED))[1]
    assert "races" in found["looked_for"] and found["left_out"]


def test_without_races_the_output_says_so(command, capsys):
    code, out, _ = run(capsys, *command(RACING, "--no-races"))
    left = out[out.index("left out") :]
    assert code == 0 and "races (--no-races" in left
    assert "races" not in out[out.index("looked for") : out.index("left out")]
    found = run_json(capsys, *command(RACING, "--no-races"))[1]
    assert "races" not in found["looked_for"]
    assert any("races" in each for each in found["left_out"])


def test_what_is_not_affordable_is_left_out_and_said(command, capsys, monkeypatch):
    monkeypatch.setattr(affordable, "MOST_BYTES", 1 << 16)
    code, out, _ = run(capsys, *command(ORDERED, words=1 << 16))
    left = " ".join(out[out.index("left out") :].split())
    assert code == 0 and "their records may take" in left and "--races" in left
    # who insists, gets it
    found = run_json(capsys, *command(ORDERED, "--races", words=1 << 16))[1]
    assert "races" in found["looked_for"]
