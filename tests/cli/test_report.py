"""Contract under test: what a verb writes to a file is JSON that every reader takes, and is there
whole or not at all."""

import json
import sys

import pytest

from numba_marlin.cli import report
from numba_marlin.cli.report import Report, to_json, wrapped, write_atomically


def test_json_has_no_nan():
    assert json.loads(
        to_json({"a": [float("nan"), float("inf"), 1.5], "b": {"c": -float("inf")}})
    ) == {"a": [None, None, 1.5], "b": {"c": None}}


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "y.npy"
    target.write_bytes(b"old")

    def fail(file):
        file.write(b"half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        write_atomically(target, fail)
    assert target.read_bytes() == b"old" and list(tmp_path.iterdir()) == [target]


def test_a_file_is_replaced_whole(tmp_path):
    """Whoever has the old one open reads it to its end."""
    target = tmp_path / "y.npy"
    target.write_bytes(b"the old one")

    def write(file):
        file.write(b"new")
        assert target.read_bytes() == b"the old one"

    with target.open("rb", buffering=0) as reader:
        assert reader.read(3) == b"the"
        write_atomically(target, write)
        assert reader.read() == b" old one"
    assert target.read_bytes() == b"new" and list(tmp_path.iterdir()) == [target]
    (tmp_path / "plain").touch()
    assert target.stat().st_mode == (tmp_path / "plain").stat().st_mode, "for who may read others"


def test_what_is_for_people_is_not_in_the_json(capsys):
    for as_json in (False, True):
        said = Report("info", as_json)
        said.data["device"] = "H200"
        said.row("device", "H200")
        said.text("- words")
        said.finish(ok=True)
        out = capsys.readouterr().out
        if as_json:
            assert json.loads(out) == {
                "schema": "numba-marlin/info/1",
                "ok": True,
                "device": "H200",
            }
        else:
            assert out == f"{'device':<{report.LABEL_WIDTH}} H200\n- words\n"
    said.finish(ok=False, error="no GPU")
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["error"], found["device"]) == (False, "no GPU", "H200")


def test_further_lines_of_a_row_stand_under_its_text(capsys, monkeypatch):
    monkeypatch.setattr(report, "columns", lambda: 24)
    Report("info", False).row("a", "one two three four\nfive", width=9)
    assert capsys.readouterr().out == "a         one two three\n          four\n          five\n"


@pytest.mark.parametrize("terminal, width", [(20, 50), (50, 50), (80, 80), (120, 120), (200, 120)])
def test_text_is_as_wide_as_the_terminal_within_limits(monkeypatch, terminal, width):
    monkeypatch.setenv("COLUMNS", str(terminal))
    assert report.columns() == width


def test_lines_are_kept_and_points_stay_right_of_their_bullet():
    assert wrapped("", 50) == [""] and wrapped("a\n\nb", 50) == ["a", "", "b"]
    assert wrapped("  - one two three", 10) == ["  - one", "    two", "    three"]
    assert wrapped("  one two three", 10) == ["  one two", "  three"]
    assert wrapped("see /a/very/long-path/to/it", 10) == ["see", "/a/very/long-path/to/it"]


@pytest.mark.parametrize(
    "variables, terminal, coloured",
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_styles_are_for_terminals_that_have_them(monkeypatch, variables, terminal, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    assert report.styled("a", report.BOLD) == ("\x1b[1ma\x1b[0m" if coloured else "a")
    assert report.styled("a", "") == "a" and report.styled(" ", report.BOLD) == " "


def test_a_path_is_checked_before_any_work(tmp_path, monkeypatch):
    checked = report.check_output
    assert checked(None, (".npy",)) is None
    assert checked(str(tmp_path / "y.npy"), (".npy", ".npz")) == tmp_path / "y.npy"
    assert list(tmp_path.iterdir()) == []  # looking leaves nothing behind
    (tmp_path / "d.npy").mkdir()
    for name, message in (
        ("y.txt", "--out .*y.txt must end in .npy or .npz"),
        ("d.npy", "d.npy is a directory"),
        ("none/y.npy", "there is no directory .*none"),
    ):
        with pytest.raises(ValueError, match=message):
            checked(str(tmp_path / name), (".npy", ".npz"))

    def refuse(dir):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(report.tempfile, "mkstemp", refuse)
    with pytest.raises(ValueError, match=r"--html .* must be writable \(Permission denied\)"):
        checked(str(tmp_path / "y.html"), (".html",), "--html")
