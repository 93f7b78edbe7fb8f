"""Contract under test: ``numba-marlin trace`` runs, shows, saves, opens and compares, with the exit codes and the JSON of every verb."""

import json

import pytest

from tests.cli.test_cli import run, run_json

SMALL = ("trace", "--m", 16, "--n", 256, "--k", 512)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(folder with run.npz, walk.html, run.json, out.json; what was printed)"""
    import contextlib
    import io

    from numba_marlin.cli import main as cli

    folder = tmp_path_factory.mktemp("trace")
    files = ("--save", folder / "run.npz", "--html", folder / "walk.html", "--perfetto", folder / "run.json", "--out", folder / "out.json")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.main([str(each) for each in (*SMALL, *files)]) == 0
    return folder, out.getvalue()


def test_a_walk_is_printed_and_written(saved):
    folder, out = saved[0], " ".join(saved[1].split())  # lines break where the terminal ends
    for words in ("ampere, step by step", "Launch configuration [launch]", "0 out of their error bounds", "more of 8 steps)", "--phase NAME shows every step"):
        assert words in out
    html = (folder / "walk.html").read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>") and len(html) < 5_000_000 and html.count("<section") == 10
    assert json.loads((folder / "run.json").read_text())["traceEvents"]
    data = json.loads((folder / "out.json").read_text())
    assert data["schema"] == "numba-marlin/trace/1" and data["ok"] is True and data["problem"]["k"] == 512
    assert data["page"]["schema"] == "numba-marlin/page/1" and data["html"]["bytes"] == len(html.encode())


def test_a_saved_run_is_opened_with_other_choices(saved, capsys):
    folder, _ = saved
    code, data = run_json(capsys, "trace", "--open", folder / "run.npz", "--phase", "unpack,fragments", "--block", 2, "--warp", 3, "--lane", 21, "--step", 2)
    assert code == 0 and [section["key"] for section in data["page"]["sections"]] == ["unpack", "fragments"]
    assert "block 2, warp 3, lane 21, product 2" in data["page"]["subtitle"]
    code, out, err = run(capsys, "trace", "--open", folder / "run.npz", "--phase", "unpack")
    assert code == 0 and "15/15 What it has become" in out and err == ""  # nothing ran


def test_a_run_is_compared_with_a_saved_one(saved, capsys):
    folder, _ = saved
    code, data = run_json(capsys, "trace", "--open", folder / "run.npz", "--compare", folder / "run.npz")
    assert code == 0 and data["same"] is True
    code, data = run_json(capsys, *SMALL, "--seed", 1, "--compare", folder / "run.npz")
    said = json.dumps(data["page"])
    assert code == 0 and data["same"] is False and "operands differ too: a, b, scales" in said


@pytest.mark.parametrize("arguments, message", [
    (("--lane", 32), "--lane 32 must be 0 to 31"),
    (("--warp", 8), "--warp 8 must be 0 to 7: ampere runs as 4 x 1 x 1 blocks of 8 warps"),
    (("--block", 4), "--block 4 must be 0 to 3"),
    (("--step", -1), "--step -1 must not be negative"),
    (("--phase", "speed"), "phase 'speed' must be one of launch"),
    (("--demo", "--m", 3), "leave out --m"),
    (("--config", "stages"), "must be NAME=VALUE with one of blocks_per_sm"),
    (("--config", "stages=2"), "stages=2 must be at least 3"),
    (("--html", "walk.txt"), "--html walk.txt must end in .html"),
    (("--save", "run.json"), "--save run.json must end in .npz"),
    (("--open", __file__), "is not a trace that"),
    (("--device", "H300"), "device='H300' is not one of"),
    (("--kernel", "decode", "--group-size", 48), "group_size=48 must divide"),
])  # fmt: skip
def test_wrong_usage_is_exit_code_2(capsys, arguments, message):
    code, out, err = run(capsys, "trace", *arguments)
    assert code == 2 and message in err and out == ""
