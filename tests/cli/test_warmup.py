"""Contract under test: ``numba-marlin warmup`` compiles what a checkpoint's layers need, names the
layers that no kernel runs, and refuses wrong options and files in one line."""

import json
import os

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.cli.warmup import rows_of
from numba_marlin.execution import warmup
from numba_marlin.formats.files import STORED
from tests.checkpoints.models import OTHERS, small_model
from tests.cli.verbs import run, run_json
from tests.fake_compiler import fake_compiler

UP = "model.layers.0.mlp.up_proj"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # nobody waits for the disk
    found = fake_compiler(tmp_path, monkeypatch)
    yield found
    found.forget()


@pytest.fixture
def source(compiler, tmp_path):
    return nm.save_checkpoint(tmp_path / "model", small_model(3, "integer"), "gptq", others=OTHERS)


def test_layers_of_one_shape_need_a_kernel_once(capsys, compiler, source):
    code, data = run_json(capsys, "warmup", source, "--m", "1,2", "--device", "H200")
    assert code == 0 and data["ok"] and data["schema"] == "numba-marlin/warmup/1"
    assert (data["cached"], data["compiled"], data["failed"]) == (0, 2, 0)
    with_bias = {each["problems"][0]["bias"] for each in data["kernels"]}
    assert with_bias == {True, False}  # the first layer has one
    assert {each["problems"][0]["zeros"] for each in data["kernels"]} == {"integer"}
    assert len(compiler.built) == 2 == len(list(compiler.cache.glob("*.kernel")))
    code, data = run_json(capsys, "warmup", source, "--m", "1,2", "--device", "H200")
    assert code == 0 and (data["cached"], data["compiled"]) == (2, 0) and len(compiler.built) == 2


def test_people_get_a_table_and_progress_on_stderr(capsys, source, compiler):
    code, out, err = run(capsys, "warmup", source, "--m", "1-3", "--processes", "2")
    assert code == 0
    assert "layers     3 in" in out and "device     PTX machine (sm_90): no usable CUDA" in out
    assert " 1-3 " in out and "128 x 64, bias" in out and out.count(" compiled ") >= 2
    assert "2: 0 cached before, 2 compiled in" in out and str(compiler.cache) in out
    assert "compiling: 2 kernels in" in err and "compiling" not in out


@pytest.mark.parametrize("form", STORED)
def test_every_format_is_warmed_up_or_named_with_the_reason(capsys, compiler, tmp_path, form):
    from tests.formats.layers import random_layer

    stored = STORED[form]
    geometry = stored.test_geometries[0]
    weight = stored.read(random_layer(stored, geometry, 0))
    path = nm.save_checkpoint(tmp_path / "one", {"up": weight}, form)
    code, data = run_json(capsys, "warmup", path, "--m", "1", "--device", "H200")
    if stored.runs:
        assert code == 0 and data["compiled"] == 1 and data["refused"] == {}
        assert data["kernels"][0]["problems"][0]["k"] == geometry.k
    else:
        assert code == 1 and not data["ok"] and data["compiled"] == 0
        assert "no kernel multiplies weights of 8-bit floats" in data["refused"]["up"]


def test_a_layer_that_cannot_be_run_is_named_and_the_others_are_compiled(
    capsys, compiler, tmp_path
):
    odd = small_model(1, k=40, group=8)[UP]
    layers = small_model(2) | {f"odd.{number}": odd for number in range(5)}
    path = nm.save_checkpoint(tmp_path / "odd", layers, "gptq")
    code, out, _ = run(capsys, "warmup", path, "--m", "1", "--device", "H200")
    assert code == 1 and "1 compiled" in out
    said = " ".join(out.split())
    assert "cannot run odd.0, odd.1, odd.2, ... (5 layers): k=40 must be a positive mult" in said


def test_a_kernel_that_fails_is_exit_code_1_with_the_reason(capsys, compiler, source, monkeypatch):
    from numba_marlin.compiler import builder

    monkeypatch.setattr(builder, "_compile", lambda *arguments: 1 / 0)
    code, out, _ = run(capsys, "warmup", source, "--m", "1")
    assert code == 1 and "2 failed" in out and "failed     decode for sm_90a: division by" in out


def test_the_type_of_activations_is_that_of_the_model(capsys, compiler, source):
    def types(*options):
        _, data = run_json(capsys, "warmup", source, "--m", "1", "--device", "H200", *options)
        return {each["problems"][0]["dtype"] for each in data["kernels"]}

    assert types() == {"float16"}
    for field in ("torch_dtype", "dtype"):
        (source / "config.json").write_text(json.dumps({field: "bfloat16"}))
        assert types() == {"bfloat16"}
    assert types("--dtype", "float16") == {"float16"}
    for odd in ("float32", None, 5, ["bfloat16"], {}):
        (source / "config.json").write_text(json.dumps({"torch_dtype": odd}))
        assert types() == {"float16"}


def test_rows_are_numbers_and_ranges():
    assert rows_of("1, 8,16-18") == [1, 8, 16, 17, 18] and rows_of("5-5") == [5]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--m", "0"], "--m 0 must go up, from 1 to 2147483647"),
        (["--m", "8-1"], "--m 8-1 must go up, from 1"),
        (["--m", "1-2147483648"], "--m 1-2147483648 must go up, from 1 to 2147483647"),
        (["--m", "1-2147483647"], "--m 1-2147483647 must have at most 65536 values"),
        (["--m", "1-65536,70000"], "m must have at most 65536 values"),
        (["--m", "1-40000"], "2 different problems and 40000 values of m must be at most 65536"),
        (["--m", "x"], "--m x must be numbers and ranges with commas"),
        (["--m", ""], "--m: must not be empty"),
        (["--m", "1-2-3"], "--m 1-2-3 must be numbers"),
        (["--m", "-1"], "must be numbers and ranges"),
        (["--device", "H20"], "device='H20' is not one of"),
        (["--processes", "0"], "--processes 0 must be at least 1"),
        (["--processes", "-3"], "--processes -3 must be at least 1"),
        (["--processes", "two"], "invalid int value: 'two'"),
        (["--dtype", "int8"], "invalid choice: 'int8'"),
        (["--proceses", "2"], "did you mean '--processes'?"),
    ],
)
def test_wrong_options_are_one_line_and_nothing_is_compiled(
    capsys, compiler, source, options, message
):
    code, out, err = run(capsys, "warmup", source, *options)
    assert code == 2 and out == "" and compiler.built == [] and "Traceback" not in err
    (line,) = [each for each in err.splitlines() if "error: " in each]
    assert line.startswith("numba-marlin warmup: error: ") and message in line


def test_a_checkpoint_without_quantised_layers_is_an_error(capsys, compiler, tmp_path):
    from safetensors.numpy import save_file

    save_file({"a.weight": np.zeros((4, 4), np.float32)}, tmp_path / "plain.safetensors")
    code, out, err = run(capsys, "warmup", tmp_path / "plain.safetensors")
    assert code == 2 and out == "" and "no quantised layer of a known format" in err
    code, _, err = run(capsys, "warmup", tmp_path / "nothing")
    assert code == 2 and "no such file or directory" in err


def test_a_file_that_shrinks_before_zero_points_are_read_is_an_error(
    capsys, compiler, source, monkeypatch
):
    (file,) = source.glob("*.safetensors")
    from numba_marlin.checkpoints import Checkpoint

    real = Checkpoint.__init__

    def then_cut(self, *arguments):
        real(self, *arguments)
        with open(file, "r+b") as opened:
            opened.truncate(100)

    monkeypatch.setattr(Checkpoint, "__init__", then_cut)
    code, out, err = run(capsys, "warmup", source)
    assert code == 2 and out == "" and str(file) in err and compiler.built == []


def test_a_cache_that_cannot_be_written_is_exit_code_3(capsys, compiler, source, monkeypatch):
    monkeypatch.setattr(warmup, "cache_directory", lambda: None)
    code, data = run_json(capsys, "warmup", source, "--m", "1")
    assert code == 3 and "set NUMBA_MARLIN_CACHE" in data["error"] and compiler.built == []


def test_an_interruption_is_exit_code_130(capsys, compiler, source, monkeypatch):
    def interrupted(jobs, processes):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(warmup, "compile_in_processes", interrupted)
    code, out, err = run(capsys, "warmup", source, "--m", "1")
    assert code == 130 and "numba-marlin: interrupted" in err and "Traceback" not in err


def test_names_of_hostile_layers_are_printed_as_escapes(capsys, compiler, tmp_path):
    odd = small_model(1, k=40, group=8)[UP]
    path = nm.save_checkpoint(tmp_path / "odd", {"a\x1b[31mred": odd}, "gptq")
    code, out, err = run(capsys, "warmup", path, "--m", "1", "--device", "H200")
    assert code == 1 and "\x1b" not in out + err and "a\\x1b[31mred" in out
