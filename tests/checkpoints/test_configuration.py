"""Contract under test: what a configuration says of the layers, field by field as the libraries
that read it take them (their names and values; ``test_transformers`` loads such directories), and
which format is read out of one."""

import json

import pytest

from numba_marlin.checkpoints import companions
from numba_marlin.checkpoints.configuration import quantization_of, stated_format
from numba_marlin.checkpoints.errors import CheckpointError
from numba_marlin.checkpoints.shards import into_shards, shard_names
from numba_marlin.checkpoints.source import Source


def layer(name="model.layers.0.up", **other):
    usual = {"bits": 4, "group": 128, "symmetric": True, "permuted": False, "columns": 1}
    return usual | {"name": name} | other


def said(form, *layers, floats=()):
    found = quantization_of([{"layers": list(layers), "floats": list(floats)}], form, [])
    assert found.pop("quantized_by").startswith("numba_marlin ")
    return found


def weights(form, *layers):
    return said(form, *layers)["config_groups"]["group_0"]["weights"]


ASYMMETRIC, PERMUTED = layer("a", symmetric=False), layer("b", permuted=True)


def test_gptq_says_whether_any_layer_is_permuted_and_all_are_symmetric():
    for form in ("gptq", "gptq_v2"):
        found = said(form, layer())
        assert (found["quant_method"], found["checkpoint_format"]) == ("gptq", form)
        assert (found["bits"], found["group_size"]) == (4, 128)
        assert (found["sym"], found["desc_act"]) == (True, False)
        found = said(form, layer(), ASYMMETRIC, PERMUTED)
        assert (found["sym"], found["desc_act"]) == (False, True)


def test_marlins_formats_say_what_their_readers_look_for():
    found = said("marlin", layer())
    assert (found["quant_method"], found["checkpoint_format"]) == ("gptq", "marlin")
    assert (found["is_marlin_format"], found["sym"], found["desc_act"]) == (True, True, False)
    for symmetric in (True, False):
        found = said("vllm-marlin", layer(symmetric=symmetric))
        assert (found["quant_method"], found["version"]) == ("awq", "marlin")
        assert found["zero_point"] is not symmetric
    found = said("awq", layer())
    assert (found["quant_method"], found["version"], found["zero_point"]) == ("awq", "gemm", True)


def test_packed_layers_say_their_order_and_their_groups():
    assert weights("pack-quantized", layer()) == {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "dynamic": False,
        "strategy": "group",
        "group_size": 128,
    }
    assert weights("pack-quantized", layer(), PERMUTED)["actorder"] == "group"
    assert weights("pack-quantized", ASYMMETRIC)["symmetric"] is False
    channel = weights("pack-quantized", layer(group=-1))
    assert channel["strategy"] == "channel" and "group_size" not in channel
    found = weights("nvfp4-pack-quantized", layer(group=16))
    assert (found["type"], found["strategy"], found["group_size"]) == ("float", "tensor_group", 16)
    found = said("pack-quantized", layer(), floats=["model.gate"])
    assert (found["quant_method"], found["format"]) == ("compressed-tensors", "pack-quantized")
    assert found["quantization_status"] == "compressed" and "model.gate" in found["ignore"]


@pytest.mark.parametrize(
    "group, columns, strategy", [(-1, -1, "tensor"), (-1, 1, "channel"), (128, 128, "block")]
)
def test_scales_of_fp8_are_of_a_tensor_a_channel_or_a_block(group, columns, strategy):
    found = weights("fp8", layer(bits=8, group=group, columns=columns))
    assert (found["strategy"], found["type"], found["num_bits"]) == (strategy, "float", 8)
    assert found.get("block_structure") == ([128, 128] if strategy == "block" else None)
    assert said("fp8", layer(bits=8, group=group, columns=columns))["format"] == "float-quantized"
    block = said("fp8-block", layer(bits=8, group=128))
    assert (block["quant_method"], block["weight_block_size"]) == ("fp8", [128, 128])


def test_layers_that_differ_are_said_to_and_the_most_common_kind_is_told():
    found = said("gptq", layer("a", group=64), layer("b"), layer("c"))
    assert (found["group_size"], found["mixed"]) == (128, True)
    assert "mixed" not in said("gptq", layer("a"), layer("b"))
    assert quantization_of([{"layers": [], "floats": ["head"]}], "gptq", []) == {}


@pytest.mark.parametrize(
    "quantization, form",
    [
        ({"quant_method": "awq", "version": "marlin"}, "vllm-marlin"),
        ({"quant_method": "awq", "version": "gemm"}, "awq"),
        ({"quant_method": "awq"}, "awq"),
        ({"quant_method": "gptq", "version": "marlin"}, "gptq"),
        ({"quant_method": "gptq", "checkpoint_format": "gptq_v2"}, "gptq_v2"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "pack-quantized"),
        ({"quant_method": "gptq", "checkpoint_format": ["gptq_v2"]}, "gptq"),
        ({"quant_method": "bitsandbytes"}, None),
        ({}, None),
    ],
)
def test_the_format_that_a_configuration_names(quantization, form):
    assert stated_format(quantization) == form


def test_a_shard_may_be_full_to_the_last_byte():
    assert into_shards({"a": 60, "b": 40, "c": 1}, 100) == [["a", "b"], ["c"]]
    assert into_shards({"a": 60, "b": 41}, 100) == [["a"], ["b"]]
    assert into_shards({"a": 500, "b": 1}, 100) == [["a"], ["b"]]  # at least one in each
    assert into_shards({"a": 60, "b": 60, "c": 40}, 100) == [["a"], ["b", "c"]]
    assert shard_names(1) == ["model.safetensors"]
    assert shard_names(2)[1] == "model-00002-of-00002.safetensors"


def test_a_small_file_has_at_most_so_many_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(companions, "_LIMIT", 100)
    source, target = tmp_path / "source", tmp_path / "target"
    for each in (source, target):
        each.mkdir()
    for name, nbytes in (("full.json", 100), ("large.json", 101), ("weights.bin", 1)):
        (source / name).write_bytes(b"x" * nbytes)
    companions.copy_small_files(source, target)
    assert {each.name: each.stat().st_size for each in target.iterdir()} == {"full.json": 100}


def test_modelopt_is_told_its_algorithm_and_its_exceptions():
    found = said("modelopt-nvfp4", layer(group=16), floats=["model.gate"])
    assert (found["quant_method"], found["quant_algo"]) == ("modelopt", "NVFP4")
    assert found["group_size"] == 16 and "model.gate" in found["ignore"]


@pytest.mark.parametrize("weight_map", [{}, [], None, "model.safetensors"])
def test_an_index_of_nothing_is_refused(tmp_path, weight_map):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="weight_map must be an object, tensor -> file"):
        Source(tmp_path)
