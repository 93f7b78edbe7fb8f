"""Contract under test: calibration data give every method the error of its outputs, may be kept as
Hessians and used again to the same bytes, and are refused by layer and rule where they do not fit.
"""

import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

import numba_marlin as nm
from tests.cli.verbs import run, run_json

K, N = 128, 64


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A model of two layers, inputs of both, and one matrix."""
    random = np.random.default_rng(0)
    mix = random.standard_normal((K, K)) * np.arange(1, K + 1)[:, None] ** -0.7
    x = {
        name: (random.standard_normal((rows, K)) @ mix).astype(np.float32)
        for name, rows in (("a.q", 300), ("a.o", 200))
    }
    w = {name: (0.02 * random.standard_normal((K, N))).astype(np.float32) for name in x}
    save_file({f"{name}.weight": each for name, each in w.items()}, tmp_path / "m.safetensors")
    save_file(x, tmp_path / "x.safetensors")
    np.save(tmp_path / "w.npy", w["a.q"])
    np.save(tmp_path / "x.npy", x["a.q"])
    monkeypatch.chdir(tmp_path)
    return w, x


MODEL = ("m.safetensors", "--tensor", "*.weight", "--no-transpose")
WITH_INPUTS = (*MODEL, "--calib", "x.safetensors")


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--method", "rtn"], {}),
        (["--method", "mse", "--asymmetric", "--format", "gptq"], dict(symmetric=False)),
        (["--method", "gptq", "--no-clip"], dict(clip=False)),
        (["--format", "nvfp4-pack-quantized"], dict(format="nvfp4")),
    ],
)
def test_every_method_says_the_error_of_the_outputs(capsys, files, options, arguments):
    method = options[1] if options[0] == "--method" else "rtn"
    code, data = run_json(
        capsys, "quantize", *MODEL[:1], "out", *MODEL[1:], "--calib", "x.safetensors", *options
    )
    assert code == 0
    for name, w in files[0].items():
        x = files[1][name]
        given = {"calibration": x} if method == "gptq" else {}
        q = nm.dequantize(nm.quantize(w, method=method, **given, **arguments), np.float64)
        x = x.astype(np.float64)
        expected = np.linalg.norm(x @ (q - w)) / np.linalg.norm(x @ w)
        said = data["layers"][name]
        assert said["relative_output_error"] == pytest.approx(expected, rel=1e-4)
        assert said["calibration_rows"] == len(x)


def test_hessians_are_kept_and_give_the_same_bytes(capsys, files, tmp_path):
    gptq = ("--tensor", "*.weight", "--no-transpose", "--method", "gptq", "--no-clip")
    argv = ("quantize", "m.safetensors")
    inputs = ("--calib", "x.safetensors")
    assert run_json(capsys, *argv, "plain.safetensors", *gptq, *inputs)[0] == 0
    code, data = run_json(
        capsys, *argv, "kept.safetensors", *gptq, *inputs, "--hessians", "h.safetensors"
    )
    assert code == 0 and data["hessians"] == "h.safetensors"
    found = nm.load_hessians("h.safetensors")
    for name, x in files[1].items():
        assert np.array_equal(found[name].mean(), nm.Hessian(K).add(x).mean())
    (tmp_path / "x.safetensors").unlink()  # not needed any more
    code, data = run_json(capsys, *argv, "again.safetensors", *gptq, "--hessians", "h.safetensors")
    assert code == 0 and data["layers"]["a.q"]["calibration_rows"] == 300
    plain, kept, again = (
        (tmp_path / f"{name}.safetensors").read_bytes() for name in ("plain", "kept", "again")
    )
    assert plain == kept == again


def test_methods_are_compared_in_one_table_and_nothing_is_written(capsys, files, tmp_path):
    w, x = files
    there = sorted(each.name for each in tmp_path.iterdir())
    chosen = ("--methods", "rtn,mse,gptq,nvfp4", "--group-size", 32, "--no-clip")
    code, data = run_json(capsys, "methods", *WITH_INPUTS, *chosen)
    assert code == 0 and data["schema"] == "numba-marlin/methods/1"
    expected = nm.compare_methods(
        w,
        {name: nm.Hessian(K).add(each) for name, each in x.items()},
        {
            "rtn": {"group_size": 32},
            "mse": {"method": "mse", "group_size": 32},
            "gptq": {"method": "gptq", "group_size": 32, "clip": False},
            "nvfp4": {"format": "nvfp4"},
        },
    )
    assert data["layers"] == {name: expected.to_dict()["layers"][name] for name in data["layers"]}
    assert set(data["layers"]) == set(w) and data["means"] == pytest.approx(expected.means)
    assert data["means"]["gptq"] < 0.7 * data["means"]["rtn"]
    code, out, _ = run(capsys, "methods", *WITH_INPUTS, *chosen)
    assert code == 0
    for line in str(expected).splitlines():
        if line.startswith("a."):
            assert line in out
    assert out.splitlines()[-1].split()[0] == "mean"
    assert sorted(each.name for each in tmp_path.iterdir()) == there


def test_a_matrix_has_a_row_of_its_own(capsys, files):
    code, out, _ = run(capsys, "methods", "w.npy", "--calib", "x.npy", "--methods", "rtn")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == [
        *("error", "layer", "weight")
    ]


def test_too_few_rows_are_said(capsys, files):
    np.save("few.npy", files[1]["a.q"][:100])
    code, out, _ = run(capsys, "methods", "w.npy", "--calib", "few.npy", "--methods", "rtn")
    assert code == 0 and "1 of 1 layers have fewer rows of inputs than k (weight: 100 of 128)" in (
        " ".join(out.split())
    )
    code, data = run_json(capsys, "methods", *WITH_INPUTS, "--methods", "rtn")
    assert code == 0 and data["fewer_rows_than_k"] == []


def kept(name, hessians):
    nm.save_hessians(name, hessians)
    return ("--hessians", name)


@pytest.mark.parametrize("verb", ["quantize", "methods"])
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            lambda: kept("h.safetensors", {"a.q": nm.Hessian(K).add(np.ones((1, K), np.float32))}),
            "h.safetensors contains no Hessian for 1 of 2 layers: a.o; it contains a.q",
        ),
        (
            lambda: kept(
                "h.safetensors",
                dict.fromkeys(["a.q", "a.o"], nm.Hessian(64).add(np.ones((1, 64), np.float32))),
            ),
            "layer 'a.o': a Hessian of k=64, must be k=128, the weight's rows",
        ),
        (lambda: ("--hessians", "x.safetensors"), "x.safetensors: holds no Hessians"),
        (lambda: ("--hessians", "gone.safetensors"), "gone.safetensors: No such file"),
        (
            lambda: ("--calib", "x.safetensors", "--hessians", "x.safetensors"),
            "--hessians x.safetensors exists: leave out --calib to use",
        ),
        (
            lambda: ("--calib", "x.safetensors", "--hessians", "h.npz"),
            "--hessians h.npz must end in .safetensors",
        ),
        (
            lambda: ("--calib", "x.safetensors", "--hessians", "gone/h.safetensors"),
            "there is no directory gone",
        ),
        (
            lambda: (
                "--calib",
                kept("h.safetensors", {"a.q": nm.Hessian(8).add(np.ones((1, 8), np.float32))})[1],
            ),
            "--calib h.safetensors holds Hessians, not inputs: say --hessians h.safetensors",
        ),
        (lambda: ("--calib", "x.csv"), "--calib x.csv: no such file"),
        (lambda: ("--calib", "."), "--calib .: is not a regular file"),
        (lambda: ("--calib", "x.bin"), "must be a .npy or .safetensors file of inputs, or a"),
        (
            lambda: ("--calib", "bad.safetensors"),
            "a.q: calibration: x[3, 5]=nan must be finite",
        ),
    ],
)
def test_calibration_that_does_not_fit_is_refused_by_name(
    capsys, files, tmp_path, verb, argv, message
):
    bad = {name: each.copy() for name, each in files[1].items()}
    bad["a.q"][3, 5] = np.nan
    save_file(bad, "bad.safetensors")
    (tmp_path / "x.bin").touch()
    options = argv()
    there = sorted(each.name for each in tmp_path.iterdir())
    target = ("out",) if verb == "quantize" else ()
    code, data = run_json(capsys, verb, *MODEL[:1], *target, *MODEL[1:], *options)
    assert code == 2 and message in data["error"], data["error"]
    assert sorted(each.name for each in tmp_path.iterdir()) == there


@pytest.mark.parametrize("target", ["q.safetensors", "./q.safetensors"])
def test_hessians_are_not_written_to_the_target(capsys, files, tmp_path, target):
    there = sorted(each.name for each in tmp_path.iterdir())
    argv = ("quantize", "w.npy", "q.safetensors", "--calib", "x.npy", "--hessians", target)
    code, data = run_json(capsys, *argv)
    assert code == 2 and "is DST: choose another name" in data["error"], data
    assert sorted(each.name for each in tmp_path.iterdir()) == there


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the outputs need inputs: --calib FILE"),
        (
            ["--methods", "rtn,gtpq"],
            "'gtpq' must be one of rtn, mse, gptq, nvfp4, mxfp4, once; did",
        ),
        (["--methods", "rtn,rtn"], "'rtn' must be one of rtn, mse, gptq, nvfp4, mxfp4, once"),
        (["--methods", "rtn", "--damping", 0.1], "--damping is for gptq, add it to --methods"),
        (["--methods", "nvfp4", "--bits", 8], "--bits is for rtn, mse, gptq"),
        (["--methods", "mxfp4", "--asymmetric"], "--asymmetric is for rtn, mse, gptq"),
        (["--calib", "x.safetensors", "--group-size", 96], "layer 'a.o', rtn: group_size=96 must"),
    ],
)
def test_methods_that_cannot_be_compared_are_refused(capsys, files, options, message):
    code, data = run_json(capsys, "methods", *MODEL, *options)
    assert code == 2 and message in data["error"], data["error"]


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_texts_need_transformers_and_say_so(capsys, files, tmp_path, monkeypatch, missing):
    (tmp_path / "texts.txt").write_text("a text\n")
    code, data = run_json(capsys, "methods", *MODEL, "--calib", "texts.txt")
    assert code == 2 and "SRC must be a directory with config.json and a tok" in data["error"]
    (tmp_path / "model").mkdir()
    (tmp_path / "m.safetensors").rename(tmp_path / "model" / "m.safetensors")
    argv = ("methods", "model", *MODEL[1:], "--calib", "texts.txt")
    monkeypatch.setitem(sys.modules, missing, None)  # as if it were not installed
    code, data = run_json(capsys, *argv)
    assert code == 3 and "pip install torch transformers" in data["error"]
    assert "--hessians FILE" in data["error"]
    (tmp_path / "texts.txt").write_text("\n \n")
    assert "contains no text" in run_json(capsys, *argv)[1]["error"]
    (tmp_path / "texts.txt").write_bytes(b"\xff\xfe")
    assert "must be a text in UTF-8" in run_json(capsys, *argv)[1]["error"]
