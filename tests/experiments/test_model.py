"""Contract under test: the decoder of experiment 21 computes what it says, one rank's parts make up
the whole, its script runs every part on the CPU, and its report sets the newest rows beside goals
and predictions. Skipped without torch, but for predictions and report."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests import experiment_results

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "21_model"
# those of a run on the CPU, where peers are left out, which a row says
PARTS = {
    *("check", "decode", "prefill", "between", "host", "load", "seventy", "peer"),
    *("mixture", "mixture check"),
}


@pytest.fixture
def decoder(load):
    pytest.importorskip("torch")
    return load("decoder")


def float64_model(decoder, layers=2):
    import torch

    torch.manual_seed(0)
    place = decoder.Place("cpu", torch.float64)
    sizes = decoder.Shape("small", layers, 32, 4, 2, 48, 40)
    return decoder.random_decoder(sizes, decoder.half, place)


def test_a_step_goes_on_where_a_prefill_ends(decoder):
    """The logits of a prefill of all tokens are those of a prefill of all but one, and a step."""
    torch = pytest.importorskip("torch")
    model = float64_model(decoder)
    tokens = torch.randint(0, 40, (7,))
    with torch.no_grad():
        whole = model.prefill(tokens, model.cache(1, 7))
        cache = model.cache(1, 7)
        model.prefill(tokens[:6], cache)
        step = model.step(tokens[6:], cache, torch.tensor([6]))
    assert torch.allclose(step, whole, rtol=1e-9, atol=1e-9)


def test_a_query_head_reads_its_key_head(decoder):
    torch = pytest.importorskip("torch")
    heads, kv, size, length = 6, 2, 8, 5
    q = torch.randn(3, heads, size, dtype=torch.float64)
    kept = torch.randn(3, length, 2 * kv, size, dtype=torch.float64)
    found = decoder.attend(q, kept).view(3, heads, size)
    for head in range(heads):
        keys, values = kept[:, :, head % kv], kept[:, :, kv + head % kv]
        scores = torch.einsum("bd,bld->bl", q[:, head], keys) / math.sqrt(size)
        expected = torch.einsum("bl,bld->bd", scores.softmax(dim=1), values)
        assert torch.allclose(found[:, head], expected)


def test_a_layer_of_random_codes_is_about_as_large_as_a_dense_one(decoder):
    """Otherwise activations overflow fp16, or vanish, after some layers."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    x = torch.randn(64, 256)
    layer = decoder.four_bit(256, 128, decoder.Place("cpu", torch.float16))
    twin = decoder.dense_like(layer, torch.float32)
    assert 0.8 < float(twin(x).std()) < 1.3
    assert torch.allclose(layer(x.half()).float(), twin(x), atol=2e-2)


@pytest.mark.parametrize("ranks", (1, 2, 4))
def test_the_places_of_all_ranks_are_every_place_once(load, decoder, ranks):
    torch = pytest.importorskip("torch")
    seventy = load("seventy")
    shape = decoder.Shape("small", 2, 512, 8, 4, 1024, 512)
    linears = {**shape.linears(), "head": shape.output()}
    every = [seventy.own_places(shape, rank, ranks) for rank in range(ranks)]
    mine = {**shape.on(ranks).linears(), "head": shape.on(ranks).output()}
    for name, (k, n) in linears.items():
        for index, (size, own) in enumerate(zip((k, n), mine[name])):
            parts = [places[name][index] for places in every]
            if parts[0] is None:
                assert own == size
                continue
            assert {len(part) for part in parts} == {own}
            assert sorted(torch.cat(parts).tolist()) == list(range(size))


def run(*arguments):
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def check_rows(rows):
    for row in rows:
        assert {"part", "m", "device", "driver", "versions", "date", "commit"} <= set(row)
        if "us" in row:
            assert {"n", "k", "kernel", "us_spread", "rounds"} <= set(row) and row["us"] > 0


@pytest.mark.thorough
def test_every_part_runs_on_the_cpu_and_is_reported(load, tmp_path):
    pytest.importorskip("torch")
    run("--tiny", "--glue", "plain", "--out", str(tmp_path))
    rows = experiment_results.rows(tmp_path)
    check_rows(rows)
    parts = {row["part"] for row in rows}
    assert parts - {"glue"} == PARTS
    report = load("report")
    said = report.results(rows)
    for part in ("tiny decode", "tiny prefill", "nmt.Linear", "gptq", "1 GPU"):
        assert part in said
    assert "replayed steps equal to eager ones: 2 of 2" in said


@pytest.mark.thorough
def test_two_ranks_give_the_logits_of_one(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    options = ("--reduce", "NCCL", "--batches", "2", "--out", str(tmp_path))
    run("--tiny", "--parts", "seventy", "--gpus", "2", "--glue", "plain", *options)
    rows = experiment_results.rows(tmp_path)
    check_rows(rows)
    (checked,) = (row for row in rows if row["part"] == "check")
    assert checked["relative_error"] < checked["bound"]
    assert {row["where"] for row in rows if row["part"] == "seventy"} == {
        "1 GPU",
        "2 GPUs, NCCL",
    }


# ---- without torch


def test_a_floor_is_the_bytes(load):
    prediction, sizes = load("prediction"), load("sizes")
    shape = sizes.LLAMA_8B
    weights = sum(k * n for k, n in shape.linears().values())
    assert weights == 4096 * 6144 + 4096 * 4096 + 4096 * 28672 + 14336 * 4096
    nbytes = 2 * (32 * weights + 4096 * 128256)
    found = prediction.step(shape, 1, 0, "fp16")
    assert nbytes / prediction.READ == pytest.approx(found.floor, rel=1e-3)
    for m in (1, 4, 16, 64):
        for kind in ("fp16", "int4"):
            each = prediction.step(shape, m, 256, kind)
            assert 0 < each.floor < each.expected
            shared = prediction.divided(shape.on(2), m, 256, kind, "NCCL")
            assert shared.floor < 0.51 * each.floor + 1e-6 * 32


def test_what_the_readme_predicts_is_what_the_script_predicts(load):
    report = load("report")
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    begin, end = report.PREDICTED
    assert text.split(begin)[1].split(end)[0].strip() == report.predicted()


def step_row(us, speedup=None, **other):
    more = {} if speedup is None else {"speedup": speedup}
    return {
        "part": "decode",
        "shape": "8B",
        "contender": "int4",
        "glue": "compiled",
        "m": 1,
        "context": 256,
        "us": us,
        "us_spread": [us - 1, us + 1],
        "tokens_per_s": 1e6 / us,
        "device": "invented",
        "driver": "1",
        "versions": {"python": "3"},
        "date": "2026-01-01",
        "commit": "abc",
        **more,
        **other,
    }


def test_the_newest_row_is_set_beside_its_goal(load, tmp_path):
    report = load("report")
    rows = [
        step_row(9000.0, 0.5),
        step_row(1700.0, 2.75),
        step_row(4675.0, contender="fp16"),
        step_row(2600.0, 1.9, m=16),
        step_row(1.0) | {"part": "ceilings", "read_bytes": 4.4e12, "matrix_flops": 7.6e14},
    ]
    said = report.results(rows)
    assert "4.40 TB/s read, 760 TFLOP/s" in said
    assert "9.00" not in said and "| **2.75** (2.6) |" in said and "| 1.90 (2.2) |" in said

    more = tmp_path / "more"
    more.mkdir()
    (more / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    markers = "\n".join((*report.PREDICTED, *report.RESULTS))
    (tmp_path / "README.md").write_text(f"before\n{markers}\nafter\n", encoding="utf-8")
    report.main(tmp_path, more)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert said in text and report.predicted() in text
    assert report.read(tmp_path / "results.jsonl") == rows
