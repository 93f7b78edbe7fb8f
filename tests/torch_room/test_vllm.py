"""Contract under test: the plugin in vLLM's own hands: found by its entry point, chosen by
``--quantization``, loaded by vLLM's model loader, its products the float64 ones.

On a CPU; no server has run it. Skipped where vLLM is not installed or does not start. Seen to pass
with vllm 0.32 and torch 2.13 for the CPU (without torchvision, torchaudio and torchcodec, whose
wheels are for CUDA).
"""

import configparser
import importlib.util
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
pytest.importorskip("transformers")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed", allow_module_level=True)

from tests.torch_room.layers import product, tensor  # noqa: E402

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).resolve().parents[2]


def test_vllm_finds_it_by_its_entry_point(vllm, plugin, tmp_path, monkeypatch):
    """As in an environment where the package is installed; a process may load plugins twice."""
    import vllm.model_executor.layers.quantization as quantization
    from vllm import plugins

    monkeypatch.setattr(quantization, "_CUSTOMIZED_METHOD_TO_QUANT_CONFIG", {})
    quantization.QUANTIZATION_METHODS.remove(plugin.METHOD)
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    said = config["options.entry_points"][plugins.DEFAULT_PLUGINS_GROUP].strip()
    site = tmp_path / "numba_marlin-0.dist-info"
    site.mkdir()
    (site / "entry_points.txt").write_text(f"[{plugins.DEFAULT_PLUGINS_GROUP}]\n{said}\n")
    (site / "METADATA").write_text("Name: numba_marlin\nVersion: 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        monkeypatch.setattr(plugins, "plugins_loaded", False)
        plugins.load_general_plugins()
    assert quantization.get_quantization_config("numba_marlin") is plugin.Config
    assert quantization.QUANTIZATION_METHODS.count("numba_marlin") == 1


# ---- a directory, as a server reads it

KINDS = {
    "gptq": ("gptq", {}),
    "gptq, in order": ("gptq", {"order": True}),
    "gptq, zero points": ("gptq_v2", {"symmetric": False}),
    "gptq, 8 bits, per column": ("gptq", {"bits": 8, "group_size": -1}),
    "awq": ("awq", {"symmetric": False}),
    "compressed": ("pack-quantized", {}),
    "compressed, in order": ("pack-quantized", {"order": True, "symmetric": False}),
}


def directory(path, kind, ends=("_proj",), **more):
    """-> the weights by layer, and the float model"""
    from tests.torch_room import models

    form, options = KINDS[kind]
    options = {"group_size": 16} | options
    ordered = options.pop("order", False)
    model = models.llama(**more)
    weights = models.quantised(model, ends, **options)
    if ordered:
        weights = {name: in_order(each) for name, each in weights.items()}
    models.stored(path, model, weights, form)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    return weights, model


def in_order(q, seed=0):
    """Layers of the same input have the same order, as GPTQ leaves them."""
    order = np.random.default_rng(seed + q.k).permutation(q.k).astype(np.int32)
    return replace(q, permutation=order)


BLOCK = "model.layers.1."
FUSED = {
    "self_attn.qkv_proj": [f"self_attn.{each}_proj" for each in "qkv"],
    "self_attn.o_proj": ["self_attn.o_proj"],
    "mlp.gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"],
    "mlp.down_proj": ["mlp.down_proj"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_out_of_a_directory(vllm, plugin, tmp_path, kind):
    dtype = "bfloat16" if kind == "compressed" else "float16"
    weights, _ = directory(tmp_path / "m", kind)
    config = vllm.engine_config(tmp_path / "m", dtype=dtype)
    assert config.model_config.quantization == plugin.METHOD
    pickle.loads(pickle.dumps(config.quant_config))  # for its workers
    model = vllm.loaded_model(config)
    for fused, parts in FUSED.items():
        layer = model.get_submodule(BLOCK + fused)
        assert type(layer.quant_method) is plugin.LinearMethod and len(layer.packed) == 1
        assert not dict(layer.named_parameters()), "the stored tensors are gone"
        taken = [weights[BLOCK + each] for each in parts]
        x = tensor(3, taken[0].k, dtype=getattr(torch, dtype))
        y, _ = layer(x)
        assert torch.equal(y, product(x, *taken)), fused


def test_the_logits_of_a_model(vllm, plugin, tmp_path):
    """Beside vLLM's own model in float16 with the same numbers, which are rounded once more."""
    import numba_marlin as nm

    weights, floats = directory(tmp_path / "m", "gptq, in order")
    for name, q in weights.items():
        w = nm.dequantize(q, "float16").T
        floats.get_submodule(name).weight.data = torch.from_numpy(np.ascontiguousarray(w))
    floats.save_pretrained(tmp_path / "f")
    config = vllm.engine_config(tmp_path / "m")
    found = vllm.logits(vllm.loaded_model(config), config)
    config = vllm.engine_config(tmp_path / "f", quantization=None)
    wanted = vllm.logits(vllm.loaded_model(config), config)
    error = (found.double() - wanted.double()).norm() / wanted.double().norm()
    assert error < 2 * torch.finfo(torch.float16).eps


def test_layers_in_float_are_left_to_vllm(vllm, plugin, tmp_path):
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    ends = ("0.mlp.down_proj", "1.mlp.gate_proj", "1.mlp.up_proj")
    _, floats = directory(tmp_path / "m", "gptq", ends)
    model = vllm.loaded_model(vllm.engine_config(tmp_path / "m"))
    ours = {
        name
        for name, each in model.named_modules()
        if isinstance(getattr(each, "quant_method", None), plugin.LinearMethod)
    }
    assert ours == {"model.layers.0.mlp.down_proj", "model.layers.1.mlp.gate_up_proj"}
    layer = model.get_submodule("model.layers.1.mlp.down_proj")
    assert type(layer.quant_method) is UnquantizedLinearMethod
    x = tensor(3, 128)
    y, _ = layer(x)
    torch.testing.assert_close(y, floats.get_submodule("model.layers.1.mlp.down_proj")(x))


def test_a_directory_as_autogptq_wrote_it(vllm, plugin, tmp_path):
    """Its configuration is in a file of its own, and names no method."""
    weights, _ = directory(tmp_path / "m", "gptq, in order")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    said = config.pop("quantization_config")
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    names = ("bits", "group_size", "desc_act", "sym")
    said = {name: said[name] for name in names}
    (tmp_path / "m" / "quantize_config.json").write_text(json.dumps(said))
    model = vllm.loaded_model(vllm.engine_config(tmp_path / "m"))
    x = tensor(3, 128)
    y, _ = model.get_submodule(f"{BLOCK}mlp.down_proj")(x)
    assert torch.equal(y, product(x, weights[f"{BLOCK}mlp.down_proj"]))


def test_two_ranks_gather_x_and_add_up(vllm, tmp_path):
    """Two processes, in vLLM's own tensor-parallel group."""
    import numba_marlin as nm

    w = np.random.default_rng(0).standard_normal((256, 64), np.float32)
    q = in_order(nm.quantize(w, group_size=32))
    nm.save_checkpoint(tmp_path / "m", {"l.0.down_proj": q}, "gptq", config={"model_type": "llama"})
    command = [sys.executable, "-m", "tests.torch_room.engine_rank"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), str(tmp_path / "m")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=200)[0].split() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks)
    assert all(float(words[-1]) < 1e-9 for words in said)


def test_nothing_changes_for_who_does_not_name_it(vllm, plugin, tmp_path):
    directory(tmp_path / "m", "gptq, in order")
    with pytest.raises(ValueError, match="desc_act=True.*no longer supported"):
        vllm.engine_config(tmp_path / "m", quantization=None)
    stated = {"quant_method": "gptq"}
    take = plugin.Config.override_quantization_method
    assert take(stated, "numba_marlin") == "numba_marlin"
    assert take(stated, None) is take(stated, "gptq") is None
    assert take({"quant_method": "fp8"}, "numba_marlin") is None
    assert take(None, "numba_marlin") is None


def test_a_method_that_is_not_read_is_refused_by_vllm(vllm, plugin, tmp_path):
    directory(tmp_path / "m", "gptq")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"\(fp8\) does not match .*\(numba_marlin\)"):
        vllm.engine_config(tmp_path / "m")


def test_a_layer_that_the_files_lack_in_part_is_refused_by_name(vllm, plugin, tmp_path):
    """Before a model is made: what one asks of the directory is in its headers."""
    from safetensors.torch import load_file, save_file

    directory(tmp_path / "m", "gptq")
    file = tmp_path / "m" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.scales"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ValueError, match="model.layers.1.mlp.up_proj.*others of it are missing"):
        vllm.engine_config(tmp_path / "m")


def test_quantised_heads_and_embeddings_are_refused_by_name(vllm, plugin, tmp_path):
    directory(tmp_path / "m", "gptq", ("_proj", "lm_head"))
    with pytest.raises(ValueError, match="layer 'lm_head' is quantised, .* in float only"):
        vllm.loaded_model(vllm.engine_config(tmp_path / "m"))
