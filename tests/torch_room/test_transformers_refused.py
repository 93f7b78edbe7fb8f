"""Contract under test: what ``from_pretrained`` cannot load it refuses, by layer, value and rule.

Skipped without transformers.
"""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers' device_map")
pytest.importorskip("ml_dtypes")

from safetensors.torch import load_file, save_file  # noqa: E402

import numba_marlin as nm  # noqa: E402
import numba_marlin.torch as nmt  # noqa: E402
import numba_marlin.torch.transformers as room  # noqa: E402
from numba_marlin.checkpoints import CheckpointError  # noqa: E402
from numba_marlin.formats.files import find_stored  # noqa: E402
from tests.torch_room.models import (  # noqa: E402
    GROUP,
    MXFP4,
    llama,
    quantised,
    qwen,
    stored,
)


def altered(path, name, change):
    file = path / "model.safetensors"
    tensors = load_file(file)
    changed = change(tensors.pop(name))
    save_file(tensors if changed is None else tensors | {name: changed}, file, {"format": "pt"})


def number(value):
    def put(tensor):
        tensor[0, 0] = value
        return tensor

    return put


UP = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scales_that_are_no_numbers(tmp_path, value):
    model = llama()
    path = stored(tmp_path / "q", model, quantised(model, **GROUP))
    altered(path, f"{UP}.scales", number(value))
    with pytest.raises(ValueError, match=rf"layer '{UP}'.*scales"):
        nmt.from_pretrained(path)


def test_a_tensor_of_a_layer_is_missing(tmp_path):
    model = llama()
    path = stored(tmp_path / "q", model, quantised(model, **GROUP))
    altered(path, f"{UP}.scales", lambda _: None)
    with pytest.raises(CheckpointError, match=rf"{UP}.*others of it are missing"):
        nmt.from_pretrained(path)


def test_a_shard_is_missing(tmp_path):
    model = llama()
    path = stored(tmp_path / "q", model, quantised(model, **GROUP), shard_bytes=40_000)
    lost = sorted(path.glob("model-*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(CheckpointError, match=f"{lost.name}' is missing"):
        nmt.from_pretrained(path)


def test_a_bias_is_missing(tmp_path):
    model = qwen()
    path = stored(tmp_path / "q", model, quantised(model, **GROUP))
    altered(path, "model.layers.1.self_attn.q_proj.bias", lambda _: None)
    with pytest.raises(ValueError, match=r"'model.layers.1.self_attn.q_proj'.* has a bias"):
        nmt.from_pretrained(path)


def test_a_checkpoint_of_another_model(tmp_path):
    model = llama()
    wide = quantised(llama(intermediate_size=256), ("mlp.up_proj",), **GROUP)
    path = stored(tmp_path / "wide", model, wide)
    with pytest.raises(ValueError, match=r"\[k, n\] is \[64, 256\] .* must be .* \[64, 128\]"):
        nmt.from_pretrained(path)
    other = {f"other.{name}": each for name, each in wide.items()}
    with pytest.raises(ValueError, match=r"none of its 2 quantised layers .* of LlamaForCausalLM"):
        nmt.from_pretrained(stored(tmp_path / "other", model, other))
    table = {"model.embed_tokens": nm.quantize(np.ones((64, 96)), **GROUP)}
    with pytest.raises(ValueError, match="'model.embed_tokens' is Embedding, must be Linear"):
        nmt.from_pretrained(stored(tmp_path / "table", model, table))


def test_numbers_that_no_kernel_multiplies(tmp_path):
    codes, scale = np.full((128, 64), 0x38, np.uint8), np.ones(1, np.float32)
    weight = find_stored("fp8").read({"weight": codes, "weight_scale": scale})
    path = stored(tmp_path / "q", llama(), {UP: weight}, "fp8")
    with pytest.raises(
        ValueError, match=rf"layer '{UP}': no kernel multiplies weights of 8-bit floats"
    ):
        nmt.from_pretrained(path)


def test_layers_that_cannot_be_packed(tmp_path):
    llama(vocab_size=100).save_pretrained(tmp_path / "f")
    with pytest.raises(ValueError, match=r"'lm_head': \[k, n\] is \[64, 100\], .* 16 and 8"):
        nmt.from_pretrained(tmp_path / "f", nmt.Config(skip=(), **GROUP))
    with pytest.raises(ValueError, match=r"layer 'model.layers.0.*group_size=48"):
        nmt.from_pretrained(tmp_path / "f", nmt.Config(group_size=48))
    altered(tmp_path / "f", f"{UP}.weight", number(float("nan")))
    with pytest.raises(ValueError, match=rf"layer '{UP}'"):
        nmt.from_pretrained(tmp_path / "f", nmt.Config(**GROUP))
    with pytest.raises(ValueError, match=r"skip=\['\*'\]: there is nothing to quantise"):
        nmt.from_pretrained(tmp_path / "f", nmt.Config(skip="*"))


@pytest.mark.parametrize(
    "device_map", [{"model": "cpu", "lm_head": "disk"}, {"model": 0, "lm_head": "cpu"}]
)
def test_packed_layers_are_not_offloaded(tmp_path, device_map):
    llama().save_pretrained(tmp_path / "f")
    with pytest.raises(ValueError, match="device_map has .*: a packed layer is multiplied where"):
        nmt.from_pretrained(tmp_path / "f", nmt.Config(**GROUP), device_map=device_map)


def test_a_pickle_of_quantised_layers_is_refused(tmp_path):
    model = llama()
    path = stored(tmp_path / "q", model, quantised(model, **GROUP))
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"read from .safetensors files; there is pytorch_model"):
        nmt.from_pretrained(path)


def test_files_that_are_not_what_config_json_says(tmp_path):
    llama().save_pretrained(tmp_path / "f")
    altered(tmp_path / "f", f"{UP}.weight", lambda tensor: tensor.to(torch.uint8))
    with pytest.raises(ValueError, match=rf"layer '{UP}': .* is uint8 \(128, 64\), must be floats"):
        nmt.from_pretrained(tmp_path / "f", nmt.Config(**GROUP))
    said = json.loads((tmp_path / "f" / "config.json").read_text())
    said["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "f" / "config.json").write_text(json.dumps(said))
    with pytest.raises(ValueError, match="says that it is quantised, but it holds no quantised"):
        nmt.from_pretrained(tmp_path / "f")


def test_configurations_that_contradict_themselves(tmp_path):
    llama().save_pretrained(tmp_path / "f")
    with pytest.raises(TypeError, match="quantization_config is a dict, must be a numba_marlin"):
        nmt.from_pretrained(tmp_path / "f", {"bits": 4})
    config = nmt.Config(save_format="gptq", **MXFP4)
    with pytest.raises(ValueError, match="save_format='gptq' holds no numbers of format='mxfp4'"):
        nmt.from_pretrained(tmp_path / "f", config)
    with pytest.raises(ValueError, match="format='mxfp8-e4m3' must be None, 'nvfp4' or 'mxfp4'"):
        nmt.from_pretrained(tmp_path / "f", nmt.Config(format="mxfp8-e4m3"))
    with pytest.raises(TypeError, match="layer 'model.layers.0.*' takes no bitz"):
        nmt.from_pretrained(tmp_path / "f", nmt.Config(bitz=4))


def test_layers_of_several_formats_are_saved_in_the_one_that_is_named(tmp_path):
    quantizer = room.Quantizer(nmt.Config())
    quantizer.read_from = {"gptq", "awq"}
    with pytest.raises(ValueError, match=r"formats awq, gptq: name the one to save"):
        quantizer.get_state_dict_and_metadata(llama())
