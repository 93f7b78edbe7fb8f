"""Contract under test: an interrupted run keeps what it has, and only what measured the same thing
in the same place counts as there."""

import json
import sys

import pytest

from numba_marlin.bench import rows
from tests.bench.invented import row


def test_rows_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "r.jsonl"
    with rows.Recorder(path) as recorder:
        for m in (1, 16):
            recorder.write(row(m=m))
        # flushed before it is closed
        assert rows.read(path) == recorder.rows == [row(m=1), row(m=16)]


def test_no_path_keeps_rows_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with rows.Recorder(None) as recorder:
        recorder.write(row())
    assert recorder.rows == [row()] and not any(tmp_path.iterdir())


def test_what_is_there_is_known_and_what_differs_is_not(tmp_path):
    path = tmp_path / "r.jsonl"
    with rows.Recorder(path) as recorder:
        recorder.write(row(us=9.0))
        recorder.write(row(us=10.0))
    known = rows.Recorder(path)
    assert known.done(row(us=1.0, date="2027-01-01", commit="def"))["us"] == 10.0  # the newest
    for other in (
        {"m": 8},
        {"n": 64},
        {"k": 64},
        {"group_size": -1},
        {"dtype": "bfloat16"},
        {"bits": 8},
        {"zeros": "integer"},
        {"bias": True},
        {"kernel": "tiled"},
        {"config": {"stages": 5}},
        {"compiler": "numba-cuda-mlir"},
        {"device": "other"},
        {"driver": "2"},
        {"sources": "4567"},
    ):
        assert known.done(row(**other)) is None, other


def test_a_torn_last_line_is_dropped_and_the_file_goes_on(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(row(m=1)) + "\n" + json.dumps(row(m=16))[:40])
    assert [each["m"] for each in rows.read(path)] == [1]
    with rows.Recorder(path) as recorder:
        assert recorder.done(row(m=1)) and not recorder.done(row(m=16))
        recorder.write(row(m=64))
    assert [each["m"] for each in rows.read(path)] == [1, 64]


def test_a_last_line_without_its_newline_is_kept(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(row(m=1)) + "\n" + json.dumps(row(m=16)))
    with rows.Recorder(path) as recorder:
        recorder.write(row(m=64))
    assert [each["m"] for each in rows.read(path)] == [1, 16, 64]


def test_the_object_that_bench_prints_is_read_too(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(
        json.dumps(
            {"schema": "numba-marlin/bench/1", "ok": True, "rows": [row(m=1), row(m=2)]}, indent=2
        )
    )
    assert [each["m"] for each in rows.read(path)] == [1, 2]
    path.write_text(json.dumps(row(m=3)) + "\n")
    assert [each["m"] for each in rows.read(path)] == [3]


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"rows": 3}', "rows must be a list"),
        (
            '{"rows": [{"kernel": "a"}]}',
            "row 1: a row must have .*; m, n, k, group_size, us is missing",
        ),
        ("{}\n", "line 1: a row must have"),
        ("[1]\n", "line 1: a row must be a JSON object, not list"),
        ('not json\n{"a": 1}\n', "line 1: "),
        (json.dumps(row() | {"us": 0}) + "\n", "us=0 must be positive"),
    ],
)
def test_what_holds_no_rows_is_refused_with_its_place(tmp_path, text, message):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        rows.read(path)


def test_rows_of_older_experiments_fit_the_same_cells():
    old = {"kernel": "ampere", "m": 16, "n": 4096, "k": 4096, "group_size": 128, "us": 1.0}
    assert rows.cell(old) == rows.cell(row())


@pytest.mark.parametrize("us", ["Infinity", "NaN", "-1", "1" + 309 * "0", "true", '"1"'])
def test_a_time_is_a_finite_number(tmp_path, us):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(row(us=12345.0)).replace("12345.0,", us + ",") + "\n")
    with pytest.raises(ValueError, match="us=.* must be positive and finite"):
        rows.read(path)
    path.write_text(json.dumps(row() | {"us": sys.float_info.max}) + "\n")
    assert rows.read(path)[0]["us"] == sys.float_info.max
