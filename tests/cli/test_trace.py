"""Contract under test: ``numba-marlin trace`` runs, shows, saves, opens and compares, with the exit
codes and the JSON of every verb."""

import json

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.formats.operands import to_weight
from numba_marlin.quantizers.operands import quantize_blocks
from tests.cli.verbs import run, run_json

SMALL = ("trace", "--m", 16, "--n", 256, "--k", 512)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(folder with run.npz, walk.html, run.json, out.json; what was printed)"""
    import contextlib
    import io

    from numba_marlin.cli import main as cli

    folder = tmp_path_factory.mktemp("trace")
    files = (
        "--save",
        folder / "run.npz",
        "--html",
        folder / "walk.html",
        "--perfetto",
        folder / "run.json",
        "--out",
        folder / "out.json",
    )
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.main([str(each) for each in (*SMALL, *files)]) == 0
    return folder, out.getvalue()


def test_a_walk_is_written_and_printed(saved, capsys):
    folder, out = saved
    said = out.split()  # a long path may take a line of its own
    assert [word for word in said if word.startswith(("wrote", "/"))] == [
        word
        for name in ("walk.html", "run.npz", "run.json")
        for word in ("wrote", f"{folder / name},")
    ]
    code, out, _ = run(capsys, "trace", "--open", folder / "run.npz")
    assert code == 0
    out = " ".join(out.split())  # lines break where the terminal ends
    for words in (
        "ampere, step by step",
        "Launch configuration [launch]",
        "Before the kernel: what the host does",
        "0 out of their error bounds",
        "more of 8 steps)",
        "--phase NAME shows every step",
    ):
        assert words in out
    html = (folder / "walk.html").read_text(encoding="utf-8")
    assert (
        html.startswith("<!doctype html>")
        and len(html) < 5_000_000
        and html.count("<section") == 12
    )
    assert json.loads((folder / "run.json").read_text())["traceEvents"]
    data = json.loads((folder / "out.json").read_text())
    assert (
        data["schema"] == "numba-marlin/trace/1"
        and data["ok"] is True
        and data["problem"]["k"] == 512
    )
    assert data["page"]["schema"] == "numba-marlin/page/1" and data["html"]["bytes"] == len(
        html.encode()
    )


def test_a_saved_run_is_opened_with_other_choices(saved, capsys):
    folder, _ = saved
    code, data = run_json(
        capsys,
        "trace",
        "--open",
        folder / "run.npz",
        "--phase",
        "unpack,fragments",
        "--block",
        2,
        "--warp",
        3,
        "--lane",
        21,
        "--step",
        2,
    )
    assert code == 0 and [section["key"] for section in data["page"]["sections"]] == [
        "unpack",
        "fragments",
    ]
    assert "block 2, warp 3, lane 21, product 2" in data["page"]["subtitle"]
    code, out, err = run(capsys, "trace", "--open", folder / "run.npz", "--phase", "unpack")
    assert code == 0 and "15/15 The result" in out and err == ""  # nothing ran


def test_a_run_is_compared_with_a_saved_one(saved, capsys):
    folder, _ = saved
    code, data = run_json(
        capsys, "trace", "--open", folder / "run.npz", "--compare", folder / "run.npz"
    )
    assert code == 0 and data["same"] is True
    code, data = run_json(capsys, *SMALL, "--seed", 1, "--compare", folder / "run.npz")
    said = json.dumps(data["page"])
    assert code == 0 and data["same"] is False and "operands differ too: a, b, scales" in said


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--lane", 32), "--lane 32 must be 0 to 31"),
        (("--warp", 8), "--warp 8 must be 0 to 7: ampere runs as 4 x 1 x 1 blocks of 8 warps"),
        (("--block", 4), "--block 4 must be 0 to 3"),
        (("--step", -1), "--step -1 must not be negative"),
        (("--phase", "speed"), "phase 'speed' must be one of idea"),
        (("--demo", "--m", 3), "omit --m"),
        (("--config", "stages"), "must be NAME=VALUE with one of blocks_per_sm"),
        (("--config", "stages=2"), "stages=2 must be at least 3"),
        (("--html", "walk.txt"), "--html walk.txt must end in .html"),
        (("--save", "run.json"), "--save run.json must end in .npz"),
        (("--open", __file__), "is not a trace that"),
        (("--device", "H300"), "device='H300' is not one of"),
        (("--kernel", "decode", "--group-size", 48), "group_size=48 must divide"),
        (("--weights", "mxfp8-e4m3"), "is for --kernel tcgen05"),
        (
            ("--kernel", "tcgen05", "--device", "H200"),
            "needs sm_100a, H200 is sm_90: choose B200",
        ),
        (
            ("--kernel", "block_mma", "--k", 100),
            "k=100 must be a multiple of 32 for block-scaled operands: 96 or 128",
        ),
        (("--kernel", "block_scaled", "--n", 100), "n=100 must be a multiple of 8"),
        (
            (
                "--kernel",
                "block_scaled",
                "--n",
                120,
                "--config",
                "result=nvfp4",
                "activation=gated_silu",
            ),
            "n=120 must be a multiple of 32 for result='nvfp4' and a gate: 96 or 128",
        ),
        (("--kernel", "block_scaled", "--weights", "int4"), "--weights int4 is for other kernels"),
        (
            ("--kernel", "block_mma", "--weights", "mxfp8-e4m3"),
            "mxfp8-e4m3 operands are not for block_mma, which multiplies nvfp4, mxfp4",
        ),
        (("--kernel", "tcgen05", "--group-size", 128), "--group-size 128 does not fit nvfp4"),
        (
            ("--kernel", "tcgen05", "--config", "tile_m=64"),
            "activation, bias, c_dtype, format, group_m, result, rounding, source, stages, tile_n",
        ),
        (
            ("--kernel", "tcgen05", "--warp", 8),
            "--warp 8 must be 0 to 7: tcgen05 runs as 2 x 1 x 1 blocks of 8 warps",
        ),
        (("--kernel", "block_mma", "--demo", "--n", 64), "omit --n"),
    ],
)
def test_wrong_usage_is_exit_code_2(capsys, arguments, message):
    code, out, err = run(capsys, "trace", *arguments)
    assert code == 2 and message in err and out == ""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint of two layers, NVFP4 as ModelOpt writes it."""
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("checkpoint") / "nvfp4"
    layers = {
        name: to_weight(quantize_blocks(random.standard_normal((n, 512)).astype(np.float32)))
        for name, n in (("mlp.up", 128), ("mlp.gate", 64))
    }
    nm.save_checkpoint(path, layers, "modelopt-nvfp4")
    return path


@pytest.mark.thorough
def test_block_scaled_operands_out_of_a_checkpoint_are_walked_through(checkpoint, tmp_path, capsys):
    """tcgen05: who does what is told by the verbs that its warps came to, on the page and in the
    timeline's file."""
    files = (
        "--save",
        tmp_path / "run.npz",
        "--perfetto",
        tmp_path / "run.json",
        "--html",
        tmp_path / "walk.html",
    )
    code, data = run_json(
        capsys,
        "trace",
        "--kernel",
        "tcgen05",
        "--input",
        checkpoint,
        "--tensor",
        "mlp.up.weight",
        "--m",
        72,
        "--block",
        0,
        *files,
    )
    assert code == 0 and data["problem"] == {
        **data["problem"],
        "m": 72,
        "n": 128,
        "k": 512,
        "format": "nvfp4",
        "bits": 4,
        "group_size": 16,
    }
    launch, timeline = (
        next(each for each in data["page"]["sections"] if each["key"] == key)
        for key in ("launch", "timeline")
    )
    assert [
        row[1].split(":")[0] for row in launch["parts"][0]["rows"] if row[0] in ("why", "")
    ] == ["1 tile of 128 x 128", "C is added, so that all roles have work"]
    roles = next(part for part in launch["parts"] if part["title"].startswith("The warps"))
    alone = ["main-loop load", "mma", "scheduler", "epilogue load"]
    assert [row[2] for row in roles["rows"]] == ["epilogue"] * 4 + alone
    first = timeline["parts"][0]
    assert first["title"] == "The roles of block 0, side by side" and [
        lane["label"] for lane in first["lanes"]
    ] == [
        "scheduler, warp 6",
        "main-loop load, warp 4",
        "epilogue load, warp 7",
        "mma, warp 5",
        "epilogue, warps 0-3",
    ]
    begin = [
        next(span["start"] for span in lane["spans"] if span["kind"] == lane["label"].split(",")[0])
        for lane in first["lanes"]
    ]
    assert begin[0] < begin[1] and any(
        span["kind"] == "waits" for span in first["lanes"][4]["spans"]
    )
    names = {
        each["tid"]: each["args"]["name"]
        for each in json.loads((tmp_path / "run.json").read_text())["traceEvents"]
        if each["name"] == "thread_name"
    }
    assert names == {
        **{warp: f"warp {warp}: epilogue" for warp in range(4)},
        **{4 + at: f"warp {4 + at}: {role}" for at, role in enumerate(alone)},
    }
    code, out, _ = run(
        capsys,
        "trace",
        "--open",
        tmp_path / "run.npz",
        "--phase",
        "fragments",
        "--lane",
        9,
        "--step",
        3,
    )
    assert (
        code == 0
        and "block 0, warp 5, lane 9, product 3" in " ".join(out.split())
        and "What the product adds to row 9" in out
    )
    code, _, err = run(capsys, "trace", "--open", tmp_path / "run.npz", "--device", "RTX 5090")
    assert code == 2 and "choose B200" in err


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kernel, roles",
    [
        (
            "block_scaled",
            {"scheduler", "main-loop load", "epilogue load", "expand", "mma, epilogue", "none"},
        ),
        ("block_mma", {"load", "mma, epilogue"}),
    ],
)
def test_every_role_of_a_demo_is_named(capsys, kernel, roles):
    code, data = run_json(
        capsys, "trace", "--demo", "--kernel", kernel, "--phase", "launch,timeline"
    )
    shown = next(
        part
        for part in data["page"]["sections"][0]["parts"]
        if part["title"].startswith("The warps")
    )
    assert code == 0 and {row[2] for row in shown["rows"]} == roles
    checked = next(
        row for row in data["page"]["sections"][0]["parts"][0]["rows"] if row[0] == "checked"
    )
    assert ": 0 out of their error bounds" in checked[1]


@pytest.mark.thorough
def test_results_that_are_block_scaled_are_checked_too(capsys):
    code, data = run_json(
        capsys,
        "trace",
        "--kernel",
        "block_scaled",
        "--m",
        8,
        "--n",
        128,
        "--k",
        256,
        "--config",
        "result=nvfp4",
        "activation=gated_silu",
        "bias=true",
        "--phase",
        "launch",
    )
    assert code == 0 and any(
        row[0] == "checked" and row[1].startswith("512 outputs")
        for row in data["page"]["sections"][0]["parts"][0]["rows"]
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--kernel", "block_mma", "--tensor", "mlp"), "--tensor mlp is not in"),
        (
            (
                "--kernel",
                "block_mma",
            ),
            "holds 2 quantised layers; choose one with --tensor: mlp.gate, mlp.up",
        ),
        (
            ("--tensor", "mlp.up", "--weights", "nvfp4"),
            "--weights is for weights that are quantised here",
        ),
        (("--tensor", "mlp.up", "--transpose"), "--transpose is for plain matrices"),
        (
            ("--tensor", "mlp.up", "--kernel", "ampere"),
            "kernel 'ampere' does not take codes=e2m1; kernels that do: general, decode, wgmma",
        ),
    ],
)
def test_a_checkpoint_says_what_it_holds(checkpoint, capsys, arguments, message):
    code, out, err = run(capsys, "trace", "--input", checkpoint, *arguments)
    assert code == 2 and message in err and out == ""


def test_integers_are_no_operand_of_a_block_scaled_kernel(tmp_path, capsys):
    nm.save_checkpoint(
        tmp_path / "gptq",
        {
            "layer": nm.quantize(
                np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32)
            )
        },
        "gptq",
    )
    code, _, err = run(capsys, "trace", "--kernel", "block_scaled", "--input", tmp_path / "gptq")
    assert code == 2 and "is not a block-scaled layer" in err and "--kernel ampere" in err
