"""Contract under test: how each layer is stored, by a configuration alone or by the files' headers,
and what is refused."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.checkpoints.scheme import Scheme, Schemes
from numba_marlin.formats.files import find_stored

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
AWQ = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}
Q = "model.layers.0.self_attn.q_proj"
QKV = [Q.replace("q_proj", f"{each}_proj") for each in "qkv"]


def compressed(targets=("Linear",), weights=(), **more):
    usual = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
    group = {"targets": list(targets), "weights": usual | {"group_size": 128} | dict(weights)}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
    } | more


@pytest.mark.parametrize(
    "stated, scheme",
    (
        (GPTQ, Scheme("gptq", 4, 128, index="g_idx", ordered=True)),
        (GPTQ | {"desc_act": False}, Scheme("gptq", 4, 128, index="g_idx")),
        (GPTQ | {"group_size": -1}, Scheme("gptq", 4, -1, index="g_idx")),
        (
            GPTQ | {"checkpoint_format": "gptq_v2", "bits": 8},
            Scheme("gptq_v2", 8, 128, index="g_idx", ordered=True),
        ),
        (AWQ, Scheme("awq", 4, 64)),
        (compressed(), Scheme("pack-quantized", 4, 128, zeros=False)),
        (
            compressed(weights={"actorder": "group", "symmetric": False}),
            Scheme("pack-quantized", 4, 128, True, "weight_g_idx", True),
        ),
        (compressed(weights={"actorder": "static"}), Scheme("pack-quantized", 4, 128, False)),
        (
            compressed(weights={"strategy": "channel", "num_bits": 8}),
            Scheme("pack-quantized", 8, -1, zeros=False),
        ),
    ),
)
def test_what_a_configuration_says(stated, scheme):
    assert Schemes(stated).of(Q) == scheme


def test_files_beside_the_weights_do_not_name_their_method():
    for stated in (GPTQ, AWQ):
        unnamed = {key: value for key, value in stated.items() if key != "quant_method"}
        assert Schemes(unnamed).of(Q) == Schemes(stated).of(Q)
        assert Schemes(unnamed).method == stated["quant_method"]


def test_rules_for_some_layers():
    dynamic = {
        "-:.*gate": {},
        "+:.*v_proj": {"bits": 8, "group_size": 32},
        ".*down": {"desc_act": False},
    }
    schemes = Schemes(GPTQ | {"dynamic": dynamic})
    assert schemes.of("a.gate") is None
    assert (schemes.of("a.v_proj").bits, schemes.of("a.v_proj").group) == (8, 32)
    assert schemes.of("a.q_proj").ordered and not schemes.of("a.down").ordered
    two = compressed(["re:.*v_proj"], {"num_bits": 8}, ignore=["lm_head", "re:.*gate$"])
    two["config_groups"]["group_1"] = compressed(["Linear"])["config_groups"]["group_0"]
    two["config_groups"]["group_2"] = compressed(["a.b.c"], {"group_size": 32})["config_groups"][
        "group_0"
    ]
    schemes = Schemes(two)
    assert [schemes.of(each).bits for each in ("a.v_proj", "a.q_proj")] == [8, 4]
    assert (schemes.of("a.b.c").group, schemes.of("a.b.cd").group) == (32, 128)
    assert schemes.of("lm_head") is None and schemes.of("a.gate") is None
    schemes = Schemes(AWQ | {"modules_to_not_convert": ["lm_head", "visual"]})
    assert schemes.of("model.visual.blocks.0.up") is None and schemes.of("model.visuals.up")


def test_fused_layers_are_stored_alike():
    schemes = Schemes(GPTQ | {"dynamic": {"+:.*v_proj": {"bits": 8}, "-:.*float": {}}})
    assert schemes.of_fused("a.qk", ["a.q_proj", "a.k_proj"]).bits == 4
    assert schemes.of_fused("a.f", ["a.float0", "a.float1"]) is None
    with pytest.raises(
        ValueError, match="layer 'a.qkv' is .*: a.q_proj is gptq of 4 bits.*, a.v_proj is .* 8 bits"
    ):
        schemes.of_fused("a.qkv", ["a.q_proj", "a.v_proj"])
    with pytest.raises(ValueError, match="a.q_proj is gptq of 4 bits.*, a.float is in float"):
        schemes.of_fused("a.qf", ["a.q_proj", "a.float"])
    ordered = Schemes(GPTQ | {"dynamic": {"+:.*v_proj": {"desc_act": False}}})
    assert ordered.of_fused("a.vq", ["a.v_proj", "a.q_proj"]).ordered


@pytest.mark.parametrize(
    "stated, said",
    (
        (
            {"quant_method": "fp8"},
            "quant_method='fp8' must be one of gptq, awq, compressed-tensors",
        ),
        ({}, "quant_method=None must be"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format='marlin' must be 'gptq'"),
        (GPTQ | {"bits": 3}, "codes of 3 bits must have 4 or 8"),
        (GPTQ | {"group_size": 0}, "group_size=0 must be a positive number, or -1"),
        (GPTQ | {"dynamic": {"+:.*a": {"bits": 2}}}, r"dynamic\['\+:\.\*a'\]: codes of 2 bits"),
        ({"quant_method": "gptq", "bits": 4}, "quantization_config has no group_size"),
        (AWQ | {"version": "gemv"}, "version='gemv' must be 'gemm'"),
        (AWQ | {"w_bit": 8}, "codes of 8 bits must have 4 in AWQ"),
        (compressed(format="float-quantized"), "format='float-quantized' of type='int' must be"),
        (compressed(weights={"type": "float"}), "type='float' must be"),
        (compressed(weights={"strategy": "tensor"}), "strategy='tensor' must be 'channel' or"),
        (compressed(weights={"group_size": None}), "group_size=None must be a positive"),
        (compressed(["LlamaAttention"]), "target 'LlamaAttention' must be 'Linear'"),
        (compressed(config_groups={}), "config_groups must have at least one group"),
        (compressed(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme must be empty"),
    ),
)
def test_what_is_not_read_is_refused(stated, said):
    with pytest.raises(ValueError, match=said):
        Schemes(stated)


def test_quantised_activations_are_refused():
    stated = compressed()
    stated["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8}
    with pytest.raises(ValueError, match=r"config_groups\['group_0'\]: activations must not be"):
        Schemes(stated)


def stored(path, form="gptq", order=None, **options):
    """A directory of three layers, of which the last is in float."""
    w = np.random.default_rng(0).standard_normal((64, 32), np.float32)
    q = nm.quantize(w, **({"group_size": 16} | options))
    others = {f"{QKV[2]}.weight": w.T.astype(np.float16)}
    weights = {QKV[0]: q, QKV[1]: q if order is None else replace(q, permutation=order)}
    nm.save_checkpoint(path, weights, form, others=others, config={"model_type": "llama"})
    said = json.loads((path / "config.json").read_text())["quantization_config"]
    return said, nm.load_checkpoint(path)


def test_headers_decide(tmp_path):
    """The configuration speaks of other groups, of an order, and knows of no layer in float."""
    said, checkpoint = stored(tmp_path / "a")
    said = said | {"group_size": 128, "desc_act": True, "dynamic": {}, "modules_to_not_convert": []}
    schemes = pickle.loads(pickle.dumps(Schemes(said, checkpoint)))
    assert schemes.of(QKV[0]) == Scheme("gptq", 4, 16, index="g_idx", scale_dtype="float16", k=64)
    assert schemes.of(QKV[2]) is None and schemes.of("lm_head") is None
    assert schemes.any_within("model.layers.0") and not schemes.any_within("model.layers.1")
    schemes.rename(lambda name: name.replace("model.", "language."))
    assert schemes.of(QKV[0].replace("model.", "language.")) and schemes.of(QKV[0]) is None


@pytest.mark.parametrize("form", ("gptq", "pack-quantized"))
def test_the_index_itself_says_whether_a_layer_is_ordered(tmp_path, form):
    order = np.random.default_rng(0).permutation(64).astype(np.int32)
    said, checkpoint = stored(tmp_path / "a", form, order)
    schemes = Schemes(said | {"desc_act": False}, checkpoint)
    assert [schemes.of(each).ordered for each in QKV[:2]] == [False, True]
    fused = schemes.of_fused("model.layers.0.self_attn.qk", QKV[:2])
    assert fused.ordered and fused.index == schemes.of(QKV[1]).index


def test_an_index_out_of_range_is_refused_by_name(tmp_path):
    said, checkpoint = stored(tmp_path / "a")
    array = checkpoint.source.array
    broken = np.full(64, 7, np.int32)
    checkpoint.source.array = lambda name: broken if name.endswith("g_idx") else array(name)
    with pytest.raises(ValueError, match=f"layer '{QKV[0]}': g_idx must be in 0..3"):
        Schemes(said, checkpoint)


def test_a_layer_of_another_format_is_refused_by_name(tmp_path):
    codes, scale = np.full((32, 16), 0x38, np.uint8), np.ones(1, np.float32)
    weight = find_stored("fp8").read({"weight": codes, "weight_scale": scale})
    nm.save_checkpoint(tmp_path / "a", {Q: weight}, "fp8")
    with pytest.raises(ValueError, match=f"layer '{Q}': format 'fp8' must be one of gptq"):
        Schemes(compressed(), nm.load_checkpoint(tmp_path / "a"))
