"""Contract under test: compare reads what bench writes, shows a verdict a cell, and exits with 1
where something got slower."""

import json

import pytest

from numba_marlin.cli import bench_view
from numba_marlin.cli import main as cli
from tests.bench.invented import row


@pytest.fixture
def files(tmp_path):
    a, b = tmp_path / "a.jsonl", tmp_path / "b.json"
    a.write_text("".join(json.dumps(row(m=m)) + "\n" for m in (1, 16, 64, 256, 1024)))
    after = [
        row(m=1, us=8.0, kernel="decode"),
        row(m=16, us=10.02, spread=0.02),
        row(m=64, us=12.0),
        row(m=256, us=9.0, spread=3.0),
        row(m=4096),
    ]
    b.write_text(json.dumps({"schema": "numba-marlin/bench/1", "ok": True, "rows": after}))
    return a, b


def run(capsys, *argv):
    code = cli.main(["compare", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_shared_cell_has_a_verdict(capsys, files, tmp_path):
    code, out, _ = run(capsys, *files, "--json", "--out", tmp_path / "c.json")
    data = json.loads(out)
    assert code == 1 and data["ok"] is False and data["schema"] == "numba-marlin/compare/1"
    assert [(each["m"], each["verdict"]) for each in data["cells"]] == [
        (1, "faster"),
        (16, "same"),
        (64, "slower"),
        (256, "ambiguous"),
    ]
    assert data["counts"] == {"faster": 1, "slower": 1, "same": 1, "ambiguous": 1} and (
        data["only_a"],
        data["only_b"],
    ) == (1, 1)
    assert data["cells"][0]["change"] == -0.2 and data["cells"][0]["b"]["kernel"] == "decode"
    assert json.loads((tmp_path / "c.json").read_text()) == data


def test_people_get_a_table_and_a_summary(capsys, files):
    code, out, _ = run(capsys, *files)
    words = " ".join(out.split())
    assert (
        code == 1
        and "ampere > decode" in words
        and "1 faster, 1 slower, 1 same, 1 ambiguous" in words
        and words.count("1 only in") == 2
    )
    assert (
        next(line for line in out.splitlines() if "slower" in line and "64" in line).split()[-1]
        == "slower"
    )


def test_names_of_kernels_are_shown_as_they_are(capsys, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(row(m=1, kernel="[/b]\x1b[31m")) + "\n")
    code, out, _ = run(capsys, tmp_path / "a.jsonl", tmp_path / "a.jsonl")
    assert code == 0 and "[/b]\\x1b[31m" in out and "\x1b" not in out


def test_of_very_many_lines_the_first_are_shown(capsys, monkeypatch):
    monkeypatch.setattr(bench_view, "MOST_LINES", 3)
    bench_view.print_table(["a"], [[f"line{i}"] for i in range(3)], 1)
    assert "more lines" not in capsys.readouterr().out
    bench_view.print_table(["a"], [[f"line{i}"] for i in range(1005)], 1, styles=["dim"] * 1005)
    out = capsys.readouterr().out
    assert "line2" in out and "line3" not in out and "... and 1,002 more lines" in out


def test_nothing_slower_is_exit_code_0(capsys, files):
    assert run(capsys, files[0], files[0])[0] == 0
    assert run(capsys, *files, "--tolerance", 25)[0] == 0


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a, b: (a, "nothing.json"), "nothing.json: no such file"),
        (lambda a, b: (a, b, "--tolerance", -1), "--tolerance -1.0 must be"),
        (lambda a, b: (a, b, "--out", "x.txt"), "--out x.txt must end in .json"),
        (lambda a, b: (a, b, "--out", b), "the result would take its place"),
    ],
)
def test_bad_input_is_exit_code_2(capsys, files, change, message):
    code, out, err = run(capsys, *change(*files))
    assert code == 2 and out == "" and message in err and len(err.splitlines()) == 1


def test_files_that_hold_no_rows_are_refused(capsys, files, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    code, _, err = run(capsys, files[0], empty)
    assert code == 2 and f"{empty} holds no measurement" in err


HOSTILE = (0, 0.0, -1, True, 10**400, 1e-320, 1e308, "", "1", [], [0, 0], [0, 1], [1, 2, 3], ["a"])


# where the most goes wrong; the other fields, and speed-ups, are thorough cases
TELLING = {("us", "us_spread"), ("us", "m"), ("us", "clocks"), ("speedup", "speedup_spread")}


@pytest.mark.parametrize(
    "by, field",
    [
        pytest.param(by, field, marks=[] if (by, field) in TELLING else [pytest.mark.thorough])
        for by in ("us", "speedup")
        for field in sorted(row())
    ],
)
def test_a_row_of_any_contents_is_compared_or_refused_by_its_place(capsys, tmp_path, by, field):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text(json.dumps(row()) + "\n")
    for value in (*HOSTILE, None, {}, {"a": 1}, float("nan"), float("inf"), [None, None], [2, 1]):
        bad.write_text(json.dumps(row(m=1)) + "\n" + json.dumps({**row(), field: value}) + "\n")
        for files in ((good, bad), (bad, bad)):
            code, out, err = run(capsys, *files, "--by", by)
            assert code in (0, 1, 2) and len(err.splitlines()) == (code == 2)
            if code == 2 and "no cell in common" not in err and "has none" not in err:
                assert f"{bad}, line 2: {field}=" in err, (field, value)


@pytest.mark.parametrize("by", ["us", "speedup"])
def test_spreads_of_zero_are_refused(capsys, files, tmp_path, by):
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({**row(m=1), f"{by}_spread": [0, 0]}))
    code, out, err = run(capsys, files[0], other, "--by", by)
    assert code == 2 and out == ""
    assert f"{other}, line 1: {by}_spread=[0, 0] must be two positive numbers" in err


@pytest.mark.parametrize(
    "content, message",
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"\n", "nested too deeply"),
        (b"\x93NUMPY", "must be a text file of JSON"),
        (b"hello", "holds no measurement"),
        (json.dumps({**row(m=1), "clocks": "high"}).encode(), "clocks='high' must be an object"),
    ],
)
def test_files_of_another_kind_are_refused(capsys, files, tmp_path, content, message):
    other = tmp_path / "other.jsonl"
    other.write_bytes(content)
    code, _, err = run(capsys, files[0], other)
    assert code == 2 and message in err and str(other) in err and len(err.splitlines()) == 1
