"""Contract under test: ``numba-marlin quantize`` writes what ``nm.quantize`` says, says what it
did, and refuses what it cannot do before it writes anything."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import numba_marlin as nm
from numba_marlin.checkpoints import load_checkpoint
from numba_marlin.cli import main as cli


def run(capsys, *argv):
    """-> (exit code, the JSON object, stderr)"""
    code = cli.main(["quantize", *map(str, argv), "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


@pytest.fixture
def files(tmp_path):
    """A matrix, inputs of it, and a model of two layers with inputs of both."""
    random = np.random.default_rng(0)
    w, x = (
        0.02 * random.standard_normal((256, 64)),
        (random.standard_normal((500, 256)) @ random.standard_normal((256, 256)) / 16),
    )
    np.save(tmp_path / "w.npy", w.astype(np.float32))
    np.save(tmp_path / "x.npy", x.astype(np.float16).reshape(5, 100, 256))
    model = {
        "a.q.weight": w.T.astype(np.float16),
        "a.o.weight": 2 * w.T.astype(np.float32),
        "a.norm.weight": np.ones(256, np.float16),
        "embedding.weight": w.astype(np.float32),
    }
    save_file(
        {name: np.ascontiguousarray(each) for name, each in model.items()},
        tmp_path / "model.safetensors",
    )
    save_file(
        {"a.q": x.astype(np.float16), "a.o": x[:300].astype(np.float32)},
        tmp_path / "inputs.safetensors",
    )
    return tmp_path


def same(found, expected):
    return all(
        np.array_equal(getattr(found, name), getattr(expected, name))
        for name in ("codes", "scales")
    ) and np.array_equal(found.permutation, expected.permutation)


@pytest.mark.parametrize("method", ["rtn", "mse", "gptq"])
def test_a_matrix_comes_out_as_the_function_has_it(capsys, files, method):
    out = files / "q.safetensors"
    calibration = ["--calib", files / "x.npy"] if method == "gptq" else []
    code, data, err = run(
        capsys,
        files / "w.npy",
        out,
        "--method",
        method,
        "--group-size",
        64,
        "--out",
        files / "said.json",
        *calibration,
    )
    assert code == 0 and data["schema"] == "numba-marlin/quantize/1" and data["ok"] is True
    options = {"calibration": np.load(files / "x.npy")} if method == "gptq" else {}
    expected = nm.quantize(np.load(files / "w.npy"), group_size=64, method=method, **options)
    assert same(nm.unpack(load_checkpoint(out)["weight"]), expected)
    layer = data["layers"]["weight"]
    assert (layer["k"], layer["n"], layer["bits"], layer["group_size"]) == (
        256,
        64,
        4,
        64,
    ) and 0.05 < layer["relative_error"] < 0.2
    assert ("relative_output_error" in layer) == (method == "gptq") and layer.get(
        "relative_output_error", 0
    ) < layer["relative_error"] + 0.1
    assert json.loads((files / "said.json").read_text()) == data
    assert "quantising" in err and data["bytes"] == out.stat().st_size


def test_layers_of_a_model_are_chosen_by_name_and_the_rest_is_copied(capsys, files):
    out = files / "model-int4"
    code, data, _ = run(
        capsys,
        files / "model.safetensors",
        out,
        "--tensor",
        "a.?.weight",
        "--transpose",
        "--method",
        "gptq",
        "--calib",
        files / "inputs.safetensors",
        "--act-order",
        "--format",
        "gptq",
        "--asymmetric",
        "--damping",
        0.05,
    )
    assert (
        code == 0
        and sorted(data["layers"]) == ["a.o", "a.q"]
        and data["copied"] == ["a.norm.weight", "embedding.weight"]
    )
    checkpoint = load_checkpoint(out)
    model, inputs = load_file(files / "model.safetensors"), load_file(files / "inputs.safetensors")
    for name in ("a.q", "a.o"):
        expected = nm.quantize(
            model[f"{name}.weight"].T,
            symmetric=False,
            method="gptq",
            calibration=inputs[name],
            act_order=True,
            damping=0.05,
        )
        # rows of a group come back in their own order
        assert np.array_equal(nm.dequantize(checkpoint[name]), nm.dequantize(expected))
        assert data["layers"][name]["calibration_rows"] == len(inputs[name])
    assert np.array_equal(checkpoint.tensor("embedding.weight"), model["embedding.weight"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["w.npy", "q.safetensors", "--method", "gptq"], "--method gptq needs --calib"),
        (["w.npy", "q.safetensors", "--calib", "x.npy"], "--calib is for --method gptq"),
        (["w.npy", "q.safetensors", "--no-clip"], "--no-clip is for --method gptq"),
        (["w.npy", "x.npy"], "x.npy exists"),
        (["gone.npy", "q.safetensors"], "SRC .*no such file"),
        (["gone.safetensors", "q.safetensors"], "no such file"),
        (
            ["model.safetensors", "q.safetensors"],
            "contains 3 matrices of floats; choose with --tensor",
        ),
        (
            ["model.safetensors", "q.safetensors", "--tensor", "a.q.weight", "--tensor", "b*"],
            r"--tensor b\*: no matrix of floats",
        ),
        (["w.npy", "q.safetensors", "--tensor", "a"], "--tensor is for .safetensors"),
        (
            ["w.npy", "q.safetensors", "--method", "gptq", "--calib", "w.npy"],
            r"weight: calibration: x.shape=\(256, 64\) must end in k=256",
        ),
        (
            ["w.npy", "q.safetensors", "--method", "gptq", "--calib", "gone.npy"],
            "--calib .*no such file",
        ),
        (
            ["w.npy", "q.safetensors", "--method", "gptq", "--calib", "x.npy", "--act-order"],
            "cannot hold layer 'weight' as it is",
        ),
        (["w.npy", "q.safetensors", "--bits", "8"], "weight .256 x 64.: .*bits"),
        (
            ["w.npy", "q.safetensors", "--group-size", "96"],
            "weight .256 x 64.: group_size=96 must divide k=256",
        ),
        (
            [
                "model.safetensors",
                "q.safetensors",
                "--tensor",
                "a.*.weight",
                "--transpose",
                "--method",
                "gptq",
                "--calib",
                "x.npy",
            ],
            "for one layer; 2 layers need",
        ),
        (
            [
                "model.safetensors",
                "q.safetensors",
                "--tensor",
                "*",
                "--transpose",
                "--method",
                "gptq",
                "--calib",
                "inputs.safetensors",
            ],
            "no inputs for 1 of 3 layers: embedding",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(capsys, files, argv, message):
    there = sorted(path.name for path in files.iterdir())
    paths = [
        files / each if each.rpartition(".")[2] in ("npy", "safetensors") else each for each in argv
    ]
    code, data, err = run(capsys, *paths)
    assert code == 2 and data["ok"] is False and re.search(message, data["error"]), data["error"]
    assert "quantising" not in err or "calibration" in message
    assert sorted(path.name for path in files.iterdir()) == there


def test_rows_for_people(capsys, files):
    assert cli.main(["quantize", str(files / "w.npy"), str(files / "q.safetensors")]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line[0] != " "] == ["layer", "wrote"]
