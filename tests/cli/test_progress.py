"""Contract under test: long work shows on stderr how far it is: a bar on a terminal, elsewhere one
line at the end and one a minute. stdout has nothing of it, and loses nothing to it."""

import json
import re
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from numba_marlin import wording
from numba_marlin.cli import progress
from numba_marlin.cli.report import Report
from numba_marlin.emulator import Machine
from tests.cli.verbs import run

LOOP = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry loop()
{
    .reg .b32 %r<2>;
    .reg .pred %p<2>;
    mov.u32 %r1, 0;
again:
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 1000;
    @%p1 bra again;
    ret;
}
"""
LOOP_INSTRUCTIONS = 2 + 3 * 1000  # of a warp


@pytest.fixture
def model(tmp_path):
    """A file of three layers."""
    random = np.random.default_rng(0)
    layers = {f"{name}.weight": random.standard_normal((128, 64)) for name in ("a", "b", "c")}
    save_file(
        {name: w.astype(np.float32) for name, w in layers.items()}, tmp_path / "m.safetensors"
    )
    return tmp_path / "m.safetensors"


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress, "DRAWN", 0)
    return lambda: monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)


@pytest.fixture
def clock(monkeypatch):
    """Time goes on when the test says so: clock[0], in seconds."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def quantize(capsys, model, *more):
    options = ("--tensor", "*.weight", "--no-transpose", "--method", "rtn", *more)
    return run(capsys, "quantize", model, model.parent / "q.safetensors", *options)


def test_without_a_terminal_all_layers_are_one_line(capsys, model):
    code, out, err = quantize(capsys, model)
    (line,) = err.splitlines()
    assert code == 0 and out.count("\nlayer ") == 3
    assert line.startswith("quantising: 24,576 weights in ") and line.endswith(" s")


def test_a_bar_on_stderr_takes_nothing_from_stdout(capsys, model, terminal):
    terminal()
    code, out, err = quantize(capsys, model)
    assert code == 0 and [out.count(f"\nlayer      {name}, ") for name in "abc"] == [1, 1, 1]
    assert "\x1b" not in out and "layer  " not in err
    assert "0 of 24,576 weights" in err and "24,576 of 24,576 weights" in err
    assert "c (3 of 3)" in err


def test_a_bar_is_not_in_the_json(capsys, model, terminal, tmp_path):
    terminal()
    code, out, _ = quantize(capsys, model, "--json", "--out", tmp_path / "o.json")
    assert code == 0 and list(json.loads(out)["layers"]) == ["a", "b", "c"]
    assert json.loads((tmp_path / "o.json").read_text()) == json.loads(out)


def test_a_terminal_that_moves_no_cursor_gets_lines(capsys, model, terminal, monkeypatch):
    terminal()
    monkeypatch.setenv("TERM", "dumb")
    _, _, err = quantize(capsys, model)
    assert "\x1b" not in err and len(err.splitlines()) == 1


def test_without_a_terminal_there_is_a_line_a_minute(capsys, clock):
    with progress.bar("reading", "weights") as advance:
        for second in range(150):
            clock[0] = second
            advance(second * 1e5, 3e7, "\x1blayer")
    assert capsys.readouterr().err.splitlines() == [
        "reading: 6 of 30 million weights, 4 min left: \\x1blayer",
        "reading: 12 of 30 million weights, 3 min left: \\x1blayer",
        "reading: 14.9 million weights in 2 min",
    ]


def test_numbers_and_times_have_three_digits_or_so():
    assert [wording.number(each) for each in (0, 99_999, 1.234e6, 3.4e9)] == [
        "0",
        "99,999",
        "1.23 million",
        "3,400 million",
    ]
    assert [wording.duration(each) for each in (0.04, 9.94, 9.96, 99, 101, 5999, 6000)] == [
        "0.0 s",
        "9.9 s",
        "10 s",
        "99 s",
        "2 min",
        "100 min",
        "1.67 h",
    ]


def test_rows_are_printed_where_no_bar_is(capsys, terminal):
    """stop and start of the bar show and hide the cursor."""
    terminal()
    report = Report("run", False)
    for write in (lambda: report.row("label", "words"), lambda: report.text("words")):
        with progress.bar("reading"):
            capsys.readouterr()
            write()
            out, err = capsys.readouterr()
        assert "words\n" in out and err.index("\x1b[?25h") < err.index("\x1b[?25l")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("a " + 20 * "very " + "long matter", r"a very \.\., 5 of 65 million warp instructions"),
        ("tracing", "tracing, 5 of 65 million warp instructions"),
    ],
)
def test_a_bar_fits_a_terminal_of_80_columns(capsys, terminal, monkeypatch, what, words):
    """The picture, how much and the time left are there, whatever is said beside them."""
    monkeypatch.setenv("COLUMNS", "80")
    terminal()
    with progress.bar(what, "warp instructions") as advance:
        for done in range(6):
            advance(done * 1e6, 65e6, "model.layers.0")
    text = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", capsys.readouterr().err)
    pictures = [each.rstrip() for each in re.split(r"[\r\n]+", text) if each.strip()]
    assert max(map(len, pictures)) <= 80
    times = r"\d:\d\d:\d\d (\d:\d\d:\d\d|-:--:--)"
    assert re.search(f"━ {times} {words}$", pictures[-1]), pictures[-1]


def test_a_long_name_shows_its_end(capsys, terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    terminal()
    with progress.bar("reading", "bytes") as advance:
        advance(1 << 20, 1 << 30, "model.language_model.layers.10.mlp.up_proj")
    assert "reading, 1 MiB of 1 GiB, ..rs.10.mlp.up_proj" in capsys.readouterr().err


def test_work_that_fails_is_not_said_to_be_done(capsys):
    with pytest.raises(ValueError), progress.bar("reading"):
        raise ValueError
    assert capsys.readouterr().err == ""


def test_a_bar_leaves_the_terminal_while_something_is_printed(capsys, terminal):
    terminal()
    with progress.bar("reading") as advance:
        advance(1, 2, "")
        capsys.readouterr()
        with progress.aside():
            cleared = capsys.readouterr().err
            assert cleared.endswith("\x1b[2K"), "the line of the bar is empty, the cursor in it"
        advance(2, 2, "")
    assert "reading" in capsys.readouterr().err, "the bar is back"


def test_the_machine_says_how_many_instructions_it_has_executed(capsys):
    """Of every run within, also of one that somebody else starts, and not of later ones."""
    machine = Machine(LOOP)
    with progress.machine_bar("looping", 4 * LOOP_INSTRUCTIONS):
        for _ in range(2):
            assert machine.run(block=32).instructions == LOOP_INSTRUCTIONS
        machine.run(block=64)
    machine.run()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"looping: {4 * LOOP_INSTRUCTIONS:,} warp instructions in ")


def test_more_instructions_than_expected_have_no_time_left(capsys, clock):
    """An estimate that was too low is no total any more."""
    with progress.machine_bar("looping", LOOP_INSTRUCTIONS / 2):
        from numba_marlin.emulator.state.listener import watcher

        for second, done in ((60, 500), (120, LOOP_INSTRUCTIONS)):
            clock[0] = second
            watcher()(done)
    first, second, _ = capsys.readouterr().err.splitlines()
    assert first == "looping: 500 of 1,501 warp instructions, 2 min left"
    assert second == f"looping: {LOOP_INSTRUCTIONS:,} warp instructions"


@pytest.mark.parametrize(
    "width, said",
    [
        (30, "packing, 1 of 2, a.weight.long"),
        (29, "packing, 1 of 2, ..eight.long"),
        (28, "packing, 1 of 2, ..ight.long"),
    ],
)
def test_a_name_is_whole_where_it_just_fits(width, said):
    assert progress._line("packing", "1 of 2", "a.weight.long", width) == said
