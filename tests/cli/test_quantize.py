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
from numba_marlin.cli import quantize
from numba_marlin.formats.files import STORED, find_stored
from numba_marlin.formats.operands import BLOCK_FORMATS

BLOCKS = {name: form.numbers for name, form in STORED.items() if form.numbers in BLOCK_FORMATS}


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
    np.save(tmp_path / "odd.npy", np.ones((48, 8), np.float32))
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


def test_the_formats_are_those_that_hold_what_quantize_makes():
    assert set(quantize.FORMATS) == {name for name, form in STORED.items() if form.numbers}
    w = np.random.default_rng(0).standard_normal((256, 128))
    made = {name: nm.quantize(w, format=name) for name in BLOCK_FORMATS}
    made["integer"] = nm.quantize(w)
    for form in STORED.values():
        fits = set()
        for name, weight in made.items():
            try:
                form.write(weight, allow_loss=True)
            except ValueError:
                continue
            fits.add(name)
        assert fits == {form.numbers} - {""}, form.name


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("target", ["q.safetensors", "q"])
def test_a_matrix_becomes_block_scaled_floats(capsys, files, name, target):
    code, data, _ = run(capsys, files / "w.npy", files / target, "--format", name)
    assert code == 0 and data["format"] == name
    w, form = np.load(files / "w.npy"), BLOCK_FORMATS[BLOCKS[name]]
    expected = nm.quantize(w, format=form.name)
    found = load_checkpoint(files / target)["weight"]
    assert np.array_equal(found.codes, expected.codes)
    assert np.array_equal(found.scales, expected.scales)
    # the global scale of some formats divides: it is then the inverse that the codes were made with
    np.testing.assert_allclose(
        nm.dequantize(found, np.float64), nm.dequantize(expected, np.float64), rtol=2**-23
    )
    layer, error = data["layers"]["weight"], nm.dequantize(found, np.float64) - w
    assert (layer["bits"], layer["group_size"]) == (4, form.block)
    assert layer["relative_error"] == pytest.approx(
        np.linalg.norm(error) / np.linalg.norm(w), rel=1e-3
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_layers_of_a_model_become_block_scaled_floats(capsys, files, name):
    block = BLOCK_FORMATS[BLOCKS[name]].block
    same_sizes = "--bits", 4, "--group-size", block  # what the format has may be said
    argv = "--tensor", "a.?.weight", "--transpose", "--format", name, *same_sizes
    code, data, _ = run(capsys, files / "model.safetensors", files / "out", *argv)
    assert code == 0 and sorted(data["layers"]) == ["a.o", "a.q"]
    checkpoint, model = load_checkpoint(files / "out"), load_file(files / "model.safetensors")
    assert {layer.form.name for layer in checkpoint.layers.values()} == {name}
    for layer in checkpoint.layers:
        expected = nm.quantize(model[f"{layer}.weight"].T, format=BLOCKS[name])
        assert np.array_equal(checkpoint[layer].codes, expected.codes)
    assert np.array_equal(checkpoint.tensor("embedding.weight"), model["embedding.weight"])


@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e38])
def test_a_global_scale_at_the_ends_of_its_range(capsys, tmp_path, scale):
    np.save(tmp_path / "w.npy", np.full((32, 8), scale, np.float32))
    argv = tmp_path / "w.npy", tmp_path / "q.safetensors", "--format", "nvfp4-pack-quantized"
    code, data, _ = run(capsys, *argv)
    assert code == 0
    found = nm.dequantize(load_checkpoint(tmp_path / "q.safetensors")["weight"], np.float64)
    expected = nm.quantize(np.load(tmp_path / "w.npy"), format="nvfp4")
    np.testing.assert_allclose(found, nm.dequantize(expected, np.float64), rtol=2**-22)
    lost = scale and abs(found[0, 0] / np.float64(np.float32(scale)) - 1)
    assert data["layers"]["weight"]["relative_error"] == pytest.approx(lost, abs=1e-6)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--method", "mse"], ["--method mse"]),
        (["--method", "gptq", "--calib", "x.npy"], ["--method gptq"]),
        (["--calib", "x.npy", "--damping", 0.5, "--act-order"], ["--damping", "--act-order"]),
        (["--bits", 8], ["--bits 8"]),
        (["--group-size", 128], ["--group-size 128"]),
        (["--group-size", -1, "--asymmetric"], ["--group-size -1", "--asymmetric"]),
    ],
)
def test_what_does_not_go_with_block_scaled_floats_is_named(capsys, files, name, options, named):
    there = sorted(files.iterdir())
    argv = files / "w.npy", files / "q.safetensors", "--format", name, *options
    code, data, err = run(capsys, *argv)
    assert code == 2 and f"--format {name}" in data["error"], data["error"]
    said, _, rest = data["error"].partition(": leave out ")
    form = find_stored(name)
    assert rest == " and ".join(named) and str(BLOCK_FORMATS[form.numbers].block) in said
    assert sorted(files.iterdir()) == there and "quantising" not in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["odd.npy", "q.safetensors", "--format", "mxfp4-pack-quantized"],
            r"weight .48 x 8.: .*48 must be a multiple of 32",
        ),
        (["w.npy", "q.safetensors", "--method", "gptq"], "--method gptq needs --calib"),
        (["w.npy", "q.safetensors", "--damping", "0.1"], "--damping is for --method gptq"),
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
                "embedding.weight",
                "--transpose",
                "--method",
                "gptq",
                "--calib",
                "inputs.safetensors",
            ],
            "no inputs for 1 of 1 layers: embedding",
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
