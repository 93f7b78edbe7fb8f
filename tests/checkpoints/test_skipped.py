"""Contract under test: a configuration lists every module that is left in float, and what the
source's said; no entry of it means a quantised layer."""

import json
import re

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.checkpoints import convert, skipped
from tests.checkpoints.models import small_model

LAYER = "model.layers.1.mlp.gate_proj"
FLOATS = {
    "model.layers.1.mlp.gate.weight": (8, 4),  # a prefix of the layer's name
    "gate_proj.weight": (8, 4),  # a suffix of it
    "tower.pooler.dense.weight": (4, 4),
    "patches.weight": (4, 3, 2, 2),
}
NO_MODULES = {
    "model.norm.weight": np.ones(4, np.float16),
    "model.positions": np.ones((4, 4), np.float16),
    "table.weight": np.ones((4, 4), np.int32),
}
MODULES = {name.removesuffix(".weight") for name in FLOATS}
FORMATS = ("gptq", "gptq_v2", "marlin", "awq", "vllm-marlin", "pack-quantized", "fp8-block")


def save(path, form, config=None):
    others = {name: np.ones(shape, np.float16) for name, shape in FLOATS.items()} | NO_MODULES
    weight = next(iter(small_model(1).values()))
    return nm.save_checkpoint(path, {LAYER: weight}, form, others=others, config=config)


def quantization(path):
    return json.loads((path / "config.json").read_text())["quantization_config"]


def names(said):
    """The plain names of a configuration's list, patterns of a whole name included."""
    return {each for each in skipped.said(said) if not each.startswith("re:")}


def is_converted(name, patterns):
    """transformers' rule, in the wider form of its versions before 5."""
    return not any(re.match(each, name) or name.endswith(each) for each in patterns)


@pytest.mark.parametrize("form", FORMATS[:-1])
def test_every_module_in_float_is_listed(tmp_path, form):
    said = quantization(save(tmp_path / "m", form))
    assert MODULES | {"lm_head"} <= names(said)
    assert not {LAYER, "model.norm", "table", "model"} & names(said)
    patterns = said.get("modules_to_not_convert")
    if patterns is not None:
        assert is_converted(LAYER, patterns)
        assert not any(is_converted(name, patterns) for name in MODULES)
    dynamic = [each.removeprefix("-:") for each in said.get("dynamic", ())]
    if said["quant_method"] in ("gptq", "awq"):
        assert not any(re.match(each, LAYER) for each in dynamic)
        assert all(any(re.match(each, name) for each in dynamic) for name in MODULES)


def test_a_head_that_is_quantised_is_not_listed(tmp_path):
    weight = next(iter(small_model(1).values()))
    path = nm.save_checkpoint(tmp_path / "m", {"lm_head": weight}, "pack-quantized")
    assert "lm_head" not in quantization(path)["ignore"]


@pytest.mark.parametrize(
    ("config", "kept", "pattern"),
    [
        (
            {"quant_method": "compressed-tensors", "ignore": ["score", "re:.*router$"]},
            "score",
            ".*router$",
        ),
        ({"quant_method": "awq", "modules_to_not_convert": ["score", ".*router$"]}, "score", None),
        ({"quant_method": "fp8", "ignored_layers": ["score"]}, "score", None),
        ({"quant_method": "gptq", "dynamic": {"-:^score$": {}, "+:x": {"bits": 8}}}, "score", None),
        ({"quant_method": "modelopt", "exclude_modules": ["score", "vision*"]}, "score", None),
    ],
)
def test_what_the_source_said_is_kept(tmp_path, config, kept, pattern):
    source = save(tmp_path / "source", "gptq")
    whole = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(
        json.dumps(whole | {"quantization_config": {"checkpoint_format": "gptq"} | config})
    )
    for form in ("gptq_v2", "awq", "pack-quantized"):
        said = quantization(convert(source, tmp_path / form, form))
        assert {kept} | MODULES <= names(said)
        if pattern is not None:
            assert "re:" + pattern in skipped.said(said)


def test_lists_go_round_the_notations_and_do_not_grow(tmp_path):
    before = save(tmp_path / "0", "gptq")
    for number, form in enumerate(("awq", "pack-quantized", "vllm-marlin", "gptq"), 1):
        before = convert(before, tmp_path / str(number), form)
    assert quantization(before) == quantization(tmp_path / "0")


@pytest.mark.parametrize(
    ("floats", "layers", "said"),
    [
        # all linear modules of the blocks are quantised, and the embedding and head lie outside
        (["lm_head", "model.embed_tokens"], ["model.layers.0.mlp.up", "model.layers.1.mlp.up"], []),
        (["model.layers.0.attn.q"], ["model.layers.0.mlp.up"], [["mlp.up"]]),
        (["model.layers.1.mlp.up"], ["model.layers.0.mlp.up"], [["model.layers.0.mlp.up"]]),
        # "up" is the end of both names
        (["m.layers.0.gate_up"], ["m.layers.0.up"], [["m.layers.0.up"]]),
        (["tower.layers.0.up", "re:m.layers.0.q"], ["m.layers.0.up"], []),
        (["m.layers.0.q"], ["m.layers.0.up", "lm_head"], [["lm_head", "up"]]),
    ],
)
def test_layers_of_blocks_that_are_partly_quantised_are_named(floats, layers, said):
    """optimum's rule: of the linear modules of the blocks, those whose names end with a name of
    ``modules_in_block_to_quantize``; all if it is absent."""
    found = skipped.as_modules_in_block(floats, layers)
    assert found == said
    ends = tuple(sum(found, []))
    assert not ends or all(each.endswith(ends) for each in layers)
    assert not any(each.endswith(ends) for each in floats if ends)


@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_a_partly_quantised_block_is_told_to_optimum(tmp_path, form):
    said = quantization(save(tmp_path / "m", form))
    assert said["modules_in_block_to_quantize"] == [["mlp.gate_proj"]]
    whole = nm.save_checkpoint(
        tmp_path / "whole", {LAYER: next(iter(small_model(1).values()))}, form
    )
    assert "modules_in_block_to_quantize" not in quantization(whole)


def test_wildcards_are_those_of_modelopt():
    said = skipped.said({"quant_method": "modelopt", "ignore": ["vision*", "*.head", "lm_head"]})
    assert said == [r"re:vision.*$", r"re:.*\.head$", "lm_head"]
    assert skipped.as_wildcards(said) == ["*.head", "lm_head", "vision*"]
    assert skipped.as_wildcards([r"re:(a|b)+"]) == [], "no wildcard says this"


@pytest.mark.parametrize("value", [None, 5, "lm_head", {"a": 1}, [5, None, ["x"]]])
def test_lists_of_odd_types_say_nothing(value):
    assert skipped.said({"ignore": value, "modules_to_not_convert": value}) == []
    assert skipped.said({"dynamic": value}) == []


def test_patterns_of_the_source_are_copied_and_never_run(tmp_path):
    """Some take centuries: ``(a+)+$`` beside a name of many letters a."""
    weight = next(iter(small_model(1).values()))
    said = {"quant_method": "awq", "modules_to_not_convert": ["(a+)+$", "("]}
    path = nm.save_checkpoint(
        tmp_path / "m", {"a" * 60 + "!": weight}, "awq", config={"quantization_config": said}
    )
    assert {"(a+)+$", "("} <= set(quantization(path)["modules_to_not_convert"])


def test_a_nested_statement_does_not_outlive_the_conversion(tmp_path):
    """Models of several parts have it in text_config."""
    said = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
    config = {"text_config": {"hidden_size": 4, "quantization_config": said}}
    path = save(tmp_path / "m", "gptq", config)
    assert json.loads((path / "config.json").read_text())["text_config"] == {"hidden_size": 4}
    assert {layer.form.name for layer in nm.load_checkpoint(path).layers.values()} == {"gptq"}


@pytest.mark.parametrize("target", ["m", "m.safetensors"])
def test_long_names_fit_in_the_header(tmp_path, target):
    name, odd = "a" * 20_000, '\u00e9"\\' * 3_000
    others = {f"{each}.weight": np.ones((2, 2), np.float16) for each in (name, odd)}
    weight = next(iter(small_model(1).values()))
    said = {"quant_method": "awq", "modules_to_not_convert": ["b" * 30_000]}
    path = nm.save_checkpoint(
        tmp_path / target,
        {"x" * 9_000: weight},
        "awq",
        others=others,
        config={"quantization_config": said},
    )
    assert set(nm.load_checkpoint(path).others) == set(others)
