"""Contract under test: a model's directory is quantised into one that a loader finds complete: the
matrices the right way round, what stays in float listed, the small files beside them."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

import numba_marlin as nm
from tests.cli.verbs import run_json

K, N = 128, 64
MATRICES = {"up": (N, K), "down": (K, N), "square": (K, K), "router": (8, K)}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def model(tmp_path, config, biases=(), stored="[n, k]"):
    """A directory as transformers writes it -> (its path, its tensors)."""
    random, directory = np.random.default_rng(0), tmp_path / "model"
    directory.mkdir()
    tensors = {}
    for name, (n, k) in MATRICES.items():
        w = random.standard_normal((n, k) if stored == "[n, k]" else (k, n))
        tensors[f"block.{name}.weight"] = (0.02 * w).astype(np.float16)
        if name in biases:
            tensors[f"block.{name}.bias"] = np.zeros(n, np.float16)
    tensors["norm.weight"] = np.ones(K, np.float16)
    tensors["patches.weight"] = np.ones((4, 3, 2, 2), np.float16)
    save_file(tensors, directory / "model.safetensors")
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "generation_config.json", "chat_template.jinja"):
        (directory / name).write_text('{"of": "the model"}')
    return directory, tensors


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.mark.parametrize(
    ("config", "biases", "options", "stored", "because"),
    [
        (LLAMA, (), (), "[n, k]", "config.json (architectures LlamaForCausalLM)"),
        (LLAMA, ("up",), (), "[n, k]", "LlamaForCausalLM) and a bias of 64"),
        (None, ("up",), (), "[n, k]", "a bias of 64"),
        (None, ("up",), (), "[k, n]", "a bias of 64"),
        (None, (), ("--transpose",), "[n, k]", "--transpose"),
        (None, (), ("--no-transpose",), "[k, n]", "--no-transpose"),
        (LLAMA, ("up",), ("--no-transpose",), "[k, n]", "--no-transpose and a bias of 64"),
    ],
)
def test_which_way_a_matrix_lies_is_inferred_and_said(
    capsys, tmp_path, config, biases, options, stored, because
):
    directory, tensors = model(tmp_path, config, biases, stored)
    code, data = run_json(
        capsys, "quantize", directory, tmp_path / "q", "--tensor", "*.up.weight", *options
    )
    assert code == 0, data
    said = data["stored"]["block.up"]
    assert said["as"] == stored and said["because"].endswith(because)
    w = tensors["block.up.weight"]
    expected = nm.quantize(w.T if stored == "[n, k]" else w)
    found = nm.load_checkpoint(tmp_path / "q")["block.up"]
    assert np.array_equal(nm.dequantize(found), nm.dequantize(expected))


def test_square_matrices_go_by_the_directory(capsys, tmp_path):
    directory, tensors = model(tmp_path, LLAMA, ("square",))
    assert run_json(capsys, "quantize", directory, tmp_path / "q", "--tensor", "*.square.*")[0] == 0
    found = nm.load_checkpoint(tmp_path / "q")["block.square"]
    expected = nm.quantize(tensors["block.square.weight"].T)
    assert np.array_equal(nm.dequantize(found), nm.dequantize(expected))


@pytest.mark.parametrize(
    ("config", "biases", "options", "stored", "message"),
    [
        # GPT-2 is such a model
        (LLAMA, ("up",), (), "[k, n]", "is [n, k] by config.json (architectures Llama"),
        (LLAMA, ("up",), (), "[k, n]", "[k, n] by a bias of 64: say --no-transpose"),
        (None, ("up",), ("--no-transpose",), "[n, k]", "[k, n] by --no-transpose, [n, k] by a"),
        (LLAMA, ("up",), ("--transpose",), "[k, n]", "by a bias of 64: one of them is wrong"),
        (None, (), (), "[n, k]", "nothing says which way it lies; say --transpose"),
        ({"architectures": []}, (), (), "[n, k]", "nothing says which way it lies"),
        ({"architectures": "x"}, (), (), "[n, k]", "nothing says which way it lies"),
        (None, ("square",), (), "[n, k]", "nothing says which way it lies"),
    ],
)
def test_what_is_not_clear_is_refused(capsys, tmp_path, config, biases, options, stored, message):
    directory, _ = model(tmp_path, config, biases, stored)
    pattern = "*.square.weight" if "square" in biases else "*.up.weight"
    code, data = run_json(
        capsys, "quantize", directory, tmp_path / "q", "--tensor", pattern, *options
    )
    assert code == 2 and message in data["error"], data
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_square_matrix_is_not_taken_for_another_than_its_neighbours(capsys, tmp_path):
    """GPT-2's config.json has architectures, its layers are [k, n], the square ones too."""
    directory, tensors = model(tmp_path, LLAMA, ("up",), "[k, n]")
    argv = ["quantize", directory, tmp_path / "q", "--tensor", "*.square.weight"]
    code, data = run_json(capsys, *argv)
    assert code == 2 and "[k, n] by the bias of block.up.weight: say --no-tr" in data["error"]
    assert run_json(capsys, *argv, "--no-transpose")[0] == 0
    found = nm.load_checkpoint(tmp_path / "q")["block.square"]
    expected = nm.quantize(tensors["block.square.weight"])
    assert np.array_equal(nm.dequantize(found), nm.dequantize(expected))


@pytest.mark.parametrize(
    ("form", "key"),
    [
        ("pack-quantized", "ignore"),
        ("gptq", "modules_to_not_convert"),
        ("awq", "modules_to_not_convert"),
        ("nvfp4-pack-quantized", "ignore"),
        ("mxfp4-pack-quantized", "ignore"),
        ("modelopt-nvfp4", "ignore"),
    ],
)
def test_the_directory_is_complete(capsys, tmp_path, form, key):
    directory, _ = model(tmp_path, LLAMA)
    options = [] if "fp4" in form else ["--group-size", "64"]
    options += ["--asymmetric"] if form == "awq" else []
    code, _ = run_json(
        capsys,
        "quantize",
        directory,
        tmp_path / "q",
        "--tensor",
        "*.up.weight",
        "--tensor",
        "*.down.weight",
        "--format",
        form,
        *options,
    )
    assert code == 0
    said = json.loads((tmp_path / "q" / "config.json").read_text())
    assert said["model_type"] == "llama"
    excepted = said["quantization_config"][key]
    assert {"block.square", "block.router", "patches", "lm_head"} <= set(excepted)
    assert not {"block.up", "block.down", "norm"} & set(excepted)
    for name in ("tokenizer.json", "generation_config.json", "chat_template.jinja"):
        assert (tmp_path / "q" / name).read_text() == '{"of": "the model"}'


def test_one_file_has_no_small_files_beside_it(capsys, tmp_path):
    directory, _ = model(tmp_path, LLAMA)
    target = tmp_path / "q.safetensors"
    assert run_json(capsys, "quantize", directory, target, "--tensor", "*.up.weight")[0] == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model", "q.safetensors"]


def test_memory_holds_one_tensor_at_a_time(tmp_path, monkeypatch):
    """Of a model of ten equal matrices, nine of which are copied."""
    import argparse
    import tracemalloc

    from numba_marlin.cli.float_source import float_source
    from numba_marlin.cli.report import Report

    w = np.ones((1024, 1024), np.float32)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    save_file({f"{number}.weight": w for number in range(10)}, tmp_path / "model.safetensors")
    args = argparse.Namespace(source=str(tmp_path), tensor=["0.weight"], transpose=None)
    tracemalloc.start()
    source = float_source(args, Report("quantize", as_json=True))
    assert len(source.others) == 9 and source.shapes == {"0": (1024, 1024)}
    for name in source.others:
        assert np.array_equal(source.others[name], w)
    assert tracemalloc.get_traced_memory()[1] < 2 * w.nbytes
    tracemalloc.stop()


def test_a_pattern_leaves_tables_that_are_looked_up_in_float(capsys, tmp_path):
    """Loaders quantise linear layers only: of a quantised embedding they find no weight, and give
    it random numbers. Its name in full is obeyed."""
    directory, tensors = model(tmp_path, LLAMA)
    tables = ["model.embed_tokens.weight", "transformer.wte.weight"]
    tensors |= {name: np.ones((64, K), np.float16) for name in tables}
    save_file(tensors, directory / "model.safetensors")
    patterns = ["--tensor", "[mt]*", "--tensor", "*.up.weight"]
    code, data = run_json(capsys, "quantize", directory, tmp_path / "q", *patterns)
    assert code == 0 and data["embeddings"] == tables
    assert set(tables) <= set(data["copied"]) and list(data["layers"]) == ["block.up"]
    code, data = run_json(capsys, "quantize", directory, tmp_path / "e", "--tensor", tables[0])
    assert code == 0 and list(data["layers"]) == ["model.embed_tokens"]
    code, data = run_json(capsys, "quantize", directory, tmp_path / "n", "--tensor", "*embed_tok*")
    assert code == 2 and "model.embed_tokens.weight" in data["error"]
