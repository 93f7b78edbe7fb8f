"""Contract under test: ``--dtype``, ``--bits``, ``--zeros`` and ``--method`` mean on the command
line what they mean in Python, in every verb that has them."""

import json
import sys

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.cli.report import to_json
from tests.cli.verbs import run, run_json

TYPES = [
    (dtype, bits, zeros)
    for dtype in ("float16", "bfloat16")
    for bits in (4, 8)
    for zeros in ("none", "integer", "float16")
]


@pytest.mark.parametrize("dtype, bits, zeros", TYPES)
def test_explain_and_run_take_the_types_of_a_weight(capsys, tmp_path, dtype, bits, zeros):
    types = "--dtype", dtype, "--bits", bits, "--zeros", zeros
    sizes = "--m", 4, "--n", 64, "--k", 256
    kinds = {"dtype": dtype, "bits": bits, "zeros": None if zeros == "none" else zeros}
    kinds["scale_dtype"] = dtype
    _, found = run_json(capsys, "explain", *sizes, "--device", "H200", *types)
    assert found["problem"].items() >= kinds.items()
    expected = nm.explain(4, 64, 256, device="H200", **kinds).to_dict()
    assert found["candidates"] == json.loads(to_json(expected))["candidates"]
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    np.save(tmp_path / "w.npy", np.random.default_rng(3).uniform(1, 3, (256, 64)))
    argv = "--input", tmp_path / "w.npy", "--m", 4, "--backend", "reference", *types
    code, data = run_json(capsys, "run", *argv, "--save", tmp_path / "y.npy")
    assert code == 0 and data["check"]["ok"] and data["run"]["problem"].items() >= kinds.items()
    q = nm.quantize(np.load(tmp_path / "w.npy"), bits, symmetric=zeros == "none", scale_dtype=dtype)
    error = nm.dequantize(q, np.float64) - np.load(tmp_path / "w.npy")
    assert data["quantised"]["bits"] == bits and data["quantised"]["max_error"] == pytest.approx(
        np.abs(error).max(), rel=1e-3
    )
    assert np.load(tmp_path / "y.npy").dtype == ("float16" if dtype == "float16" else "float32")


@pytest.mark.parametrize(
    "types",
    [
        pytest.param(("bfloat16", 8, "none"), marks=pytest.mark.thorough),
        ("float16", 4, "float16"),
    ],
)
def test_run_multiplies_other_types_on_the_machine(capsys, types):
    if "bfloat16" in types:
        pytest.importorskip("ml_dtypes")
    argv = [each for pair in zip(("--dtype", "--bits", "--zeros"), types) for each in pair]
    sizes = "--m", 2, "--n", 64, "--k", 128, "--backend", "emulator"
    code, out, err = run(capsys, "run", *sizes, *argv)
    assert code == 0, err
    assert f"{types[1]} bits, {'float16 zero points, ' if 'float16' == types[2] else ''}" in out
    assert ("8 bits" in out) == (types[1] == 8)


@pytest.mark.parametrize("kernel", ["decode", "wgmma"])
def test_what_a_kernel_rounds_is_within_its_bound(capsys, kernel):
    """``wgmma`` rounds code - zero to 16 bits, ``decode`` does not: with one bound for both, right
    results of a scale per column were called wrong."""
    types = "--zeros", "float16", "--kernel", kernel, "--backend", "emulator"
    code, out, err = run(capsys, "run", "--m", 2, "--n", 128, "--k", 128, *types)
    assert code == 0 and "one scale per column" in out, err


def test_run_searches_scales(capsys):
    sizes = "--n", 64, "--k", 256, "--backend", "reference"
    found = {}
    for method in ("rtn", "mse"):
        _, data = run_json(capsys, "run", *sizes, "--method", method)
        found[method] = data["quantised"]["relative_rms_error"]
        assert data["quantised"]["method"] == method
    assert found["mse"] < found["rtn"]
    assert run(capsys, "run", *sizes, "--method", "gptq")[0] == 2


def test_bfloat16_without_its_library_is_exit_code_3(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    code, _, err = run(capsys, "run", "--dtype", "bfloat16", "--backend", "reference")
    assert code == 3 and "pip install ml_dtypes" in err and len(err.splitlines()) == 1


def test_a_result_of_block_scaled_operands_may_be_bfloat16(capsys, tmp_path):
    pytest.importorskip("ml_dtypes")
    sizes = "--m", 4, "--n", 32, "--k", 64, "--format", "nvfp4", "--dtype", "bfloat16"
    argv = *sizes, "--backend", "reference", "--save", tmp_path / "y.npy"
    code, data = run_json(capsys, "run", *argv)
    assert code == 0 and data["check"]["ok"] and data["run"]["problem"]["result"] == "bfloat16"
    assert np.load(tmp_path / "y.npy").dtype == np.float32
    code, data = run_json(capsys, "explain", "--device", "H200", *sizes)
    assert code == 0 and data["problem"]["result"] == "bfloat16"
