"""Contract under test: what bench refuses, resumes, records and shows. Times are invented by a
bench that measures nothing; instructions are counted for real."""

import json
import re

import pytest

from numba_marlin.bench import measure, peers, tune
from numba_marlin.bench.ceilings import Ceilings
from numba_marlin.bench.rows import read
from numba_marlin.cli import main as cli
from numba_marlin.execution import driver
from numba_marlin.hardware import devices
from tests.bench.invented import row as invented

CEILINGS = Ceilings(4e12, 7e14)


def run(capsys, *argv):
    """-> (exit code, stdout, stderr)"""
    try:
        code = cli.main([str(each) for each in argv])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


class FakeBench(measure.Bench):
    """As the real one, with data and times that cost nothing; ``asked``: (m, kernels) of each cell
    it was asked to time."""

    asked: list = []
    wrong_at: set = set()

    def __init__(self, settings):
        self.settings, self.device = settings, devices.device("H200")
        self.peers = peers.find_all(settings.peers)
        self.environment = {
            "device": "GPU",
            "driver": "1",
            "versions": {},
            "date": "2026-01-01",
            "commit": "abc",
            "sources": "0123",
        }
        self.watch = type(
            "Watch", (), {"missing": "clocks are not recorded: nvidia-ml-py is not installed"}
        )()

    def ceilings(self, dtype):
        return CEILINGS

    def cell(self, problem, candidates, chosen=None, label=""):
        self.asked.append((problem.m, tuple(each.kernel for each in candidates)))
        if problem.m in self.wrong_at:
            raise measure.WrongResult("kernel 'ampere': relative error 0.5 of its product")
        return [
            invented(m=problem.m, n=problem.n, k=problem.k, us=10.0 + position)
            | self.stub(problem, each)
            | {"chosen": each == chosen, "ceilings": CEILINGS.to_dict()}
            for position, each in enumerate(candidates)
        ] + [
            invented(m=problem.m, n=problem.n, k=problem.k, us=20.0) | stub | {"chosen": False}
            for stub in self.stubs(problem, ())
        ]


@pytest.fixture
def gpu(monkeypatch):
    """A GPU, as far as the verb can tell."""
    pytest.importorskip("rich")
    FakeBench.asked, FakeBench.wrong_at = [], set()
    monkeypatch.setattr(
        driver, "probe", lambda: driver.Probe(True, "", "13.0", (devices.device("H200"),))
    )
    monkeypatch.setattr(measure, "Bench", FakeBench)
    monkeypatch.setattr(
        "numba_marlin.bench.timing.torch_on_gpu",
        lambda: type("torch", (), {"cuda": type("cuda", (), {"OutOfMemoryError": MemoryError})}),
    )
    return FakeBench


SMALL = ("bench", "--k", 1024, "--n", "256,512", "--m", "1,16")


def test_without_a_gpu_it_is_exit_code_3_and_says_what_to_do(capsys, monkeypatch):
    monkeypatch.setattr(
        driver, "probe", lambda: driver.Probe(False, "no NVIDIA driver on this machine")
    )
    code, out, err = run(capsys, "bench")
    assert (
        code == 3
        and out == ""
        and "bench needs a GPU: no NVIDIA driver on this machine" in err
        and "--backend emulator" in err
    )
    code, out, _ = run(capsys, "bench", "--json")
    assert (
        code == 3
        and json.loads(out)["ok"] is False
        and json.loads(out)["schema"] == "numba-marlin/bench/1"
    )
    code, _, err = run(capsys, "bench", "--kernel", "best,warp")
    assert code == 2 and "kernel='best' must be one of general, naive" in err


def test_json_has_every_cell_and_stands_alone(capsys, gpu):
    code, out, err = run(capsys, *SMALL, "--json")
    data = json.loads(out)
    assert code == 0 and data["ok"] and data["schema"] == "numba-marlin/bench/1"
    assert [(each["k"], each["n"], each["m"]) for each in data["rows"]] == [
        (1024, 256, 1),
        (1024, 256, 16),
        (1024, 512, 1),
        (1024, 512, 16),
    ]
    assert (
        data["measured"] == 4
        and data["resumed"] == 0
        and data["failures"] == []
        and data["ceilings"]["source"] == "measured"
    )
    assert re.fullmatch(r"timing: 4 in .*", err.splitlines()[-1])


def test_a_run_goes_on_where_it_stopped(capsys, gpu, tmp_path):
    out_file = tmp_path / "r.jsonl"
    run(capsys, "bench", "--k", 1024, "--n", 256, "--m", "1,16", "--save", out_file)
    gpu.asked.clear()
    code, out, _ = run(capsys, *SMALL, "--save", out_file, "--json")
    data = json.loads(out)
    assert (
        code == 0
        and [m for m, _ in gpu.asked] == [1, 16]
        and (data["measured"], data["resumed"]) == (2, 2)
        and len(data["rows"]) == 4
    )
    assert len(read(out_file)) == 4
    gpu.asked.clear()
    code, out, _ = run(capsys, *SMALL, "--save", out_file, "--json")
    assert (
        gpu.asked == [] and json.loads(out)["ceilings"] is None and json.loads(out)["resumed"] == 4
    )
    run(capsys, *SMALL, "--save", out_file, "--again")
    assert len(gpu.asked) == 4 and len(read(out_file)) == 8


def test_the_table_shows_every_row(capsys, gpu, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = run(capsys, *SMALL, "--kernel", "all")
    lines = [line.split() for line in out.splitlines()]
    assert (
        code == 0
        and sum("naive" in line for line in lines) == 4
        and "ceilings" in out
        and "clocks are not recorded" in out
    )
    assert max(map(len, out.splitlines())) <= 100
    first = next(line for line in lines if line[:3] == ["1024", "x", "256"])
    assert first[3:6] == ["1", "decode", "10.00"] and "3.00" in first


@pytest.mark.parametrize("width", [50, 72, 120])
def test_a_narrow_terminal_costs_columns_but_never_digits(capsys, gpu, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = run(capsys, "bench", "--k", 28672, "--n", 57344, "--m", 16384)
    (line,) = (line.split() for line in out.splitlines() if "57344" in line)
    assert (
        code == 0
        and line[:6] == ["28672", "x", "57344", "16384", "wgmma", "10.00"]
        and line[-1] == "50%"
    )
    assert (len(line) == 12) == (width == 120) and max(map(len, out.splitlines())) <= max(width, 57)


def test_kernels_by_name_are_timed_together_and_the_choice_is_marked(capsys, gpu):
    code, out, _ = run(
        capsys,
        "bench",
        "--k",
        1024,
        "--n",
        256,
        "--m",
        16,
        "--kernel",
        "tiled, naive,tiled",
        "--json",
    )
    assert (
        code == 0
        and gpu.asked == [(16, ("tiled", "naive"))]
        and not any(each["chosen"] for each in json.loads(out)["rows"])
    )


def test_a_peer_is_a_row_of_each_cell_and_resumes_with_them(capsys, gpu, tmp_path):
    (tmp_path / "own.py").write_text("def mine(weight):\n    return print\n")
    save = ("--save", tmp_path / "r.jsonl", "--json")
    code, out, _ = run(capsys, *SMALL, *save)
    peer = ("--peer", f"{tmp_path / 'own.py'}:mine", "--peer", "none")
    code, out, _ = run(capsys, *SMALL, *peer, *save)
    data = json.loads(out)
    assert code == 0 and data["measured"] == 8  # no cell had the peer
    assert sum(each["kernel"] == "mine" for each in data["rows"]) == 4
    gpu.asked.clear()
    code, out, _ = run(capsys, *SMALL, *peer, *save)
    assert gpu.asked == [] and json.loads(out)["resumed"] == 8


def test_a_peer_that_fails_is_exit_code_1(capsys, gpu, monkeypatch):
    def failed(*arguments):
        raise peers.PeerFailed("mine", "raises TypeError: bf16 only at k=1, n=2: mend it")

    monkeypatch.setattr(gpu, "cell", failed)
    code, out, _ = run(capsys, *SMALL, "--json")
    data = json.loads(out)
    assert code == 1 and len(data["failures"]) == 4 and data["failures"][0]["wrong"]
    assert data["failures"][0]["error"].startswith("peer 'mine' raises TypeError")


def test_a_wrong_result_is_no_time_and_exit_code_1(capsys, gpu, tmp_path):
    gpu.wrong_at = {16}
    code, out, _ = run(capsys, *SMALL, "--save", tmp_path / "r.jsonl")
    assert (
        code == 1
        and "wrong" in out
        and "relative error 0.5" in out
        and [each["m"] for each in read(tmp_path / "r.jsonl")] == [1, 1]
    )


def test_what_does_not_fit_is_a_labelled_line_and_no_failure(capsys, gpu, monkeypatch):
    def full(*arguments):
        raise MemoryError("CUDA out of memory. Tried to allocate a lot")

    monkeypatch.setattr(gpu, "cell", full)
    code, out, _ = run(capsys, *SMALL, "--json")
    data = json.loads(out)
    assert (
        code == 0
        and data["rows"] == []
        and len(data["failures"]) == 4
        and "out of memory" in data["failures"][0]["error"]
    )


def test_autotune_reports_its_winners(capsys, gpu, monkeypatch):
    dropped = []

    def tuned(bench, problem):
        from numba_marlin.heuristics import rank

        ranked = rank(problem, bench.device)
        dropped.append(ranked[2].kernel)
        rows = bench.cell(problem, ranked[:2], ranked[0])
        return tune.Tuning(
            problem, tuple(rows), rows[1], ranked[1], ((ranked[2], "hopeless"),), None
        )

    monkeypatch.setattr(tune, "tune", tuned)
    code, out, _ = run(capsys, "bench", "--k", 1024, "--n", 256, "--m", 16, "--autotune", "--json")
    (winner,) = json.loads(out)["winners"]
    assert (
        code == 0
        and winner["us"] == 11.0
        and winner["heuristics"] is False
        and winner["dropped"] == [{"kernel": dropped[0], "why": "hopeless"}]
    )


def test_shapes_are_listed(capsys):
    code, out, _ = run(capsys, "bench", "--shapes", "list", "--json")
    data = json.loads(out)
    assert (
        code == 0
        and {"layer": "llama-3-8b down", "k": 14336, "n": 4096} in data["shapes"]["llama-3-8b"]
    )


def test_instructions_are_counted_without_a_gpu(capsys):
    code, out, _ = run(
        capsys,
        "bench",
        "--backend",
        "emulator",
        "--k",
        256,
        "--n",
        64,
        "--m",
        "1,2",
        "--kernel",
        "naive",
        "--json",
    )
    rows = json.loads(out)["rows"]
    assert (
        code == 0
        and [each["kind"] for each in rows] == ["counted"] * 2
        and all(each["instructions"] > 1000 and "us" not in each for each in rows)
    )


def test_block_scaled_weights_are_counted_too(capsys):
    code, out, _ = run(
        capsys,
        "bench",
        "--backend",
        "emulator",
        "--k",
        64,
        "--n",
        64,
        "--m",
        1,
        "--kernel",
        "general",
        "--codes",
        "e2m1",
        "--group-size",
        16,
        "--json",
    )
    row = json.loads(out)["rows"][0]
    assert (
        code == 0
        and (row["codes"], row["group_size"], row["scale_dtype"]) == ("e2m1", 16, "e5m3")
        and row["instructions"] > 0
    )


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--rounds", 0], "--rounds 0 must be at least 1"),
        (["--n", 64], "--n and --k belong together"),
        (["--k", 64], "--n and --k belong together"),
        (["--n", 64, "--k", 64, "--shapes", "ideal"], "not both"),
        (["--n", 64, "--k", "x"], "--k x: 'x' is not an integer"),
        (["--m", "0"], "--m 0: 0 must be at least 1"),
        (["--shapes", "gpt-9"], "shape 'gpt-9' must be KxN, MODEL/tpN or one of"),
        (["--autotune", "--kernel", "all"], "--kernel all has no effect"),
        (["--save", "r.json"], "--save r.json must end in .jsonl"),
        (["--plot", "r.txt"], "--plot r.txt must end in .png"),
        (["--backend", "emulator"], "--backend emulator needs --n and --k"),
        (
            ["--backend", "emulator", "--n", 64, "--k", 64, "--save", "r.jsonl"],
            "--save needs times",
        ),
        (["--backend", "emulator", "--n", 64, "--k", 64, "--bias"], "counts float16 products"),
        (["--k", 1000, "--n", 64], "k=1000 must be a positive multiple of 16"),
    ],
)
def test_bad_values_are_exit_code_2_and_one_line(capsys, monkeypatch, argv, message):
    monkeypatch.setattr(
        driver, "probe", lambda: driver.Probe(False, "no NVIDIA driver on this machine")
    )
    code, out, err = run(
        capsys, "bench", *(["--group-size", -1] if "1000" in map(str, argv) else []), *argv
    )
    assert code == 2 and out == "" and message in err and len(err.splitlines()) == 1


def test_a_kernel_that_is_none_is_refused_before_anything_is_timed(capsys, gpu):
    code, _, err = run(capsys, *SMALL, "--kernel", "warp-drive")
    assert code == 2 and "'warp-drive'" in err and gpu.asked == []


def test_products_of_two_block_scaled_operands_are_counted_too(capsys):
    given = ("--k", 64, "--n", 32, "--m", "4,65", "--format", "nvfp4", "--json")
    code, out, _ = run(capsys, "bench", "--backend", "emulator", *given)
    rows = json.loads(out)["rows"]
    assert code == 0 and [each["kernel"] for each in rows] == ["block_decode", "block_scaled"]
    assert all(each["format"] == "nvfp4" and each["instructions"] > 1000 for each in rows)
    code, out, _ = run(capsys, "bench", "--backend", "emulator", "--group-size", 128, *given)
    assert code == 2 and "group_size=128 must be 16, the block of nvfp4" in out
    code, out, _ = run(capsys, "bench", "--bits", 8, *given)
    assert code == 2 and "leave out --bits" in json.loads(out)["error"]
