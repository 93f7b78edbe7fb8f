"""Contract under test: ``from_pretrained`` gives transformers' mixtures of experts with our layers,
from per-expert and fused tensors, quantised or in float; and they are saved as others read them.

Skipped without transformers. Seen to pass with transformers 5.24, compressed-tensors 0.20.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers' device_map")
pytest.importorskip("ml_dtypes")

from safetensors.torch import load_file, save_file  # noqa: E402

import numba_marlin as nm  # noqa: E402
import numba_marlin.torch as nmt  # noqa: E402
from numba_marlin.formats.files import find_stored  # noqa: E402
from tests.torch_room.models import (  # noqa: E402
    GROUP,
    MIXTURE,
    MXFP4,
    NVFP4,
    gpt_oss,
    logits,
    mixtral,
    of_type,
    permuted,
    qwen3_moe,
)

LEAVES = {  # of gate, up and down in files
    "mixtral": ("model.layers.{}.block_sparse_moe.experts.{}.{}", ("w1", "w3", "w2")),
    "qwen3_moe": ("model.layers.{}.mlp.experts.{}.{}", ("gate_proj", "up_proj", "down_proj")),
}
MODELS = {"mixtral": mixtral, "qwen3_moe": qwen3_moe}
ONLY_EXPERTS = {"skip": ("lm_head", "*_proj")}


def files_of(model, path):
    """The model's own files, in float: {name: array}."""
    model.save_pretrained(path)
    return load_file(path / "model.safetensors")


def per_expert(model, path, **options):
    """(all tensors of the files but experts', {layer of an expert: its weight, quantised})"""
    tensors, weights = files_of(model, path), {}
    for name in [each for each in tensors if ".experts." in each]:
        w = tensors.pop(name).float().T.contiguous().numpy()
        weights[name.removesuffix(".weight")] = nm.quantize(w, **options)
    return {name: each.numpy() for name, each in tensors.items()}, weights


def directory(path, model, others, weights, form):
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    return nm.save_checkpoint(path, weights, form, others=others, config=config)


def with_numbers(model, weights):
    """The float model with the dequantised experts in the place of its own."""
    name, leaves = LEAVES[model.config.model_type]
    for number, block in enumerate(model.model.layers):
        experts = block.mlp.experts
        for e in range(experts.num_experts):
            gate, up, down = (
                torch.from_numpy(nm.dequantize(weights[name.format(number, e, leaf)], "float32")).T
                for leaf in leaves
            )
            experts.gate_up_proj.data[e] = torch.cat([gate, up]).to(experts.gate_up_proj.dtype)
            experts.down_proj.data[e] = down.to(experts.down_proj.dtype)
    return model


def error(found, wanted):
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def ours(model):
    return [name for name, each in model.named_modules() if isinstance(each, nmt.Experts)]


FORMS = {"gptq": GROUP, "awq": GROUP, "pack-quantized": GROUP, "nvfp4-pack-quantized": {}}


@pytest.mark.parametrize(
    "kind, form",
    [
        ("mixtral", "gptq"),
        ("qwen3_moe", "pack-quantized"),
        *[
            pytest.param(kind, form, marks=pytest.mark.thorough)
            for kind in MODELS
            for form in FORMS
            if (kind, form) not in (("mixtral", "gptq"), ("qwen3_moe", "pack-quantized"))
        ],
    ],
)
def test_experts_of_a_layer_each(tmp_path, kind, form):
    model = MODELS[kind]()
    options = NVFP4 if "nvfp4" in form else GROUP
    others, weights = per_expert(model, tmp_path / "f", **options)
    path = directory(tmp_path / "q", model, others, weights, form)
    loaded, report = nmt.from_pretrained(path, output_loading_info=True)
    assert not any(report.values())
    assert ours(loaded) == ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"]
    before = logits(model)
    found, wanted = logits(loaded), logits(with_numbers(model, nm.load_checkpoint(path)))
    # products between are rounded, here as there; before is 1e-2 from it
    assert error(found, wanted) < 2**-9 < error(before, wanted) / 4
    loaded.save_pretrained(tmp_path / "w")
    written, read = (nm.load_checkpoint(tmp_path / each) for each in ("w", "q"))
    assert set(written) == set(weights) and {e.form.name for e in written.layers.values()} == {form}
    assert not written.source.contradictions()
    for name in weights:
        assert np.array_equal(nm.dequantize(written[name]), nm.dequantize(read[name])), name
    assert torch.equal(logits(nmt.from_pretrained(tmp_path / "w")), found)


@pytest.mark.parametrize("kind", [*MODELS, "gpt_oss"])
def test_a_float_mixture_is_quantised_while_it_is_loaded(tmp_path, kind):
    """Of files with a tensor for each expert, and with one for all: the same as by hand."""
    model = {**MODELS, "gpt_oss": gpt_oss}[kind]()
    model.save_pretrained(tmp_path / "f")
    loaded = nmt.from_pretrained(tmp_path / "f", nmt.Config(**ONLY_EXPERTS, **GROUP))
    assert len(ours(loaded)) == 2 and not any(
        isinstance(each, nmt.Linear) for each in loaded.modules()
    )
    own, experts = model.model.layers[1].mlp.experts, loaded.model.layers[1].mlp.experts
    gate_up, down = own.gate_up_proj.data, own.down_proj.data
    if kind == "gpt_oss":
        gate_up = torch.cat([gate_up[:, :, ::2], gate_up[:, :, 1::2]], dim=2)
        bias = own.gate_up_proj_bias.data
        assert torch.equal(experts.gate_up.bias, torch.cat([bias[:, ::2], bias[:, 1::2]], dim=1))
        assert torch.equal(experts.down.bias, own.down_proj_bias)
        assert experts.activation == "swiglu-oai"
    else:
        gate_up, down = gate_up.mT, down.mT
    by_hand = nmt.Experts.from_float(gate_up, down, **GROUP)
    for bank in ("gate_up", "down"):
        for one, other in zip(getattr(experts, bank).arrays, getattr(by_hand, bank).arrays):
            assert torch.equal(one, other)


def test_gpt_oss_in_its_own_blocks(tmp_path):
    """Saved by us, read by transformers' own loader: the same numbers."""
    model = gpt_oss()
    model.save_pretrained(tmp_path / "f")
    made = nmt.from_pretrained(tmp_path / "f", nmt.Config(**ONLY_EXPERTS, **MXFP4))
    made.save_pretrained(tmp_path / "q")
    tensors = load_file(tmp_path / "q" / "model.safetensors")
    experts = "model.layers.0.mlp.experts"
    assert tensors[f"{experts}.gate_up_proj_blocks"].shape == (4, 256, 2, 16)
    assert tensors[f"{experts}.down_proj_scales"].shape == (4, 64, 4)
    loaded, report = nmt.from_pretrained(tmp_path / "q", output_loading_info=True)
    assert not any(report.values()) and len(ours(loaded)) == 2
    assert torch.equal(logits(loaded), logits(made))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "q", quantization_config=transformers.Mxfp4Config(dequantize=True)
    )
    own = theirs.get_parameter(f"{experts}.gate_up_proj").float()
    for e, weight in enumerate(loaded.get_submodule(experts).gate_up.weight):
        w = torch.from_numpy(nm.dequantize(weight, "float32"))
        assert torch.equal(own[e][:, ::2], w[:, :128]) and torch.equal(own[e][:, 1::2], w[:, 128:])
    assert error(logits(loaded), logits(theirs)) < 2**-6 < error(logits(model), logits(theirs)) / 4


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_blocks_are_packed_as_a_layer_for_each_expert_is(tmp_path, dtype):
    """Every code, in files whose columns take turns: the bytes of compressed-tensors' MXFP4."""
    gpt_oss().save_pretrained(tmp_path / "f")
    nmt.from_pretrained(tmp_path / "f", nmt.Config(**ONLY_EXPERTS, **MXFP4)).save_pretrained(
        tmp_path / "q"
    )
    file = tmp_path / "q" / "model.safetensors"
    tensors, rng = load_file(file), np.random.default_rng(2)
    for name in sorted(each for each in tensors if each.endswith(("_blocks", "_scales"))):
        low, high = (0, 256) if name.endswith("_blocks") else (110, 130)
        drawn = rng.integers(low, high, tensors[name].shape, dtype=np.uint8)
        tensors[name] = torch.from_numpy(drawn)
    save_file(tensors, file, {"format": "pt"})
    loaded = nmt.from_pretrained(tmp_path / "q", dtype=getattr(torch, dtype))
    name = "model.layers.1.mlp.experts"
    for matrix, bank in (("gate_up_proj", "gate_up"), ("down_proj", "down")):
        found = getattr(loaded.get_submodule(name), bank)
        blocks, scales, bias = (
            tensors[f"{name}.{matrix}_{kind}"] for kind in ("blocks", "scales", "bias")
        )
        order = np.arange(blocks.shape[1])
        if bank == "gate_up":
            order = np.concatenate([order[::2], order[1::2]])
        assert torch.equal(found.bias, bias[:, order].to(found.bias.dtype))
        for e, weight in enumerate(found.weight):
            arrays = {
                "weight_packed": blocks[e].flatten(1)[order].numpy(),
                "weight_scale": scales[e][order].numpy(),
            }
            wanted = nm.pack(find_stored("mxfp4-pack-quantized").read(arrays), dtype=dtype)
            for array in ("qweight", "scales", "factors"):
                assert np.array_equal(getattr(weight, array), getattr(wanted, array)), array
            assert weight.dtype == dtype and weight.global_scale == wanted.global_scale


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MODELS)
def test_compressed_tensors_loads_what_is_saved(tmp_path, kind):
    pytest.importorskip("compressed_tensors")
    MODELS[kind]().save_pretrained(tmp_path / "f")
    made = nmt.from_pretrained(tmp_path / "f", nmt.Config(**GROUP))
    made.save_pretrained(tmp_path / "w")
    config = transformers.utils.quantization_config.CompressedTensorsConfig(dequantize=True)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "w", quantization_config=config, output_loading_info=True
    )
    assert not any(report.values())
    assert error(logits(theirs), logits(made)) < 1e-2


@pytest.mark.thorough
def test_experts_that_all_tokens_share_are_linear_layers(tmp_path):
    """DeepSeek-V3: a router of sigmoids, groups, and a first layer without experts."""
    torch.manual_seed(0)
    sizes = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}
    sizes |= {"qk_nope_head_dim": 16, "n_routed_experts": 4, "n_group": 2, "topk_group": 1}
    sizes |= {"moe_intermediate_size": 64, "first_k_dense_replace": 1, "n_shared_experts": 1}
    config = transformers.DeepseekV3Config(**(MIXTURE | sizes | {"num_key_value_heads": 4}))
    model = of_type(transformers.DeepseekV3ForCausalLM(config), torch.float16)
    model.save_pretrained(tmp_path / "f")
    loaded = nmt.from_pretrained(tmp_path / "f", nmt.Config(**GROUP))
    assert ours(loaded) == ["model.layers.1.mlp.experts"]
    assert isinstance(loaded.model.layers[1].mlp.shared_experts.up_proj, nmt.Linear)
    assert error(logits(loaded), logits(model)) < 0.2


def test_a_pickle_and_a_mixture_that_is_skipped(tmp_path):
    model = mixtral()
    tensors = files_of(model, tmp_path / "f")
    config = nmt.Config(skip=("lm_head", "experts"), **GROUP)
    loaded = nmt.from_pretrained(tmp_path / "f", config)
    assert not ours(loaded) and isinstance(loaded.model.layers[0].self_attn.q_proj, nmt.Linear)
    safe = nmt.from_pretrained(tmp_path / "f", nmt.Config(**GROUP))
    torch.save(tensors, tmp_path / "f" / "pytorch_model.bin")
    (tmp_path / "f" / "model.safetensors").unlink()
    loaded = nmt.from_pretrained(tmp_path / "f", nmt.Config(**GROUP))
    assert len(ours(loaded)) == 2 and torch.equal(logits(loaded), logits(safe))


# ---- what is refused


def test_files_that_lack_a_part_of_an_expert(tmp_path):
    model = mixtral()
    others, weights = per_expert(model, tmp_path / "f", **GROUP)
    name = "model.layers.1.block_sparse_moe.experts.3.w3"
    weight = weights.pop(name)
    path = directory(tmp_path / "q", model, others, weights, "gptq")
    with pytest.raises(ValueError, match=r"'model.layers.1.mlp.experts': of expert 3, part 1 of g"):
        nmt.from_pretrained(path)
    wide = nm.quantize(np.ones((64, 256), np.float32), **GROUP)
    path = directory(tmp_path / "wide", model, others, weights | {name: wide}, "gptq")
    with pytest.raises(ValueError, match=rf"layer '{name}': \[k, n\] is \[64, 256\] .*64, 128\]"):
        nmt.from_pretrained(path)
    ordered = weights | permuted({name: weight})
    path = directory(tmp_path / "ordered", model, others, ordered, "gptq")
    with pytest.raises(
        ValueError, match=rf"layer 'model.layers.1.mlp.experts': '{name}' is in act"
    ):
        nmt.from_pretrained(path)


def test_blocks_of_another_shape(tmp_path):
    gpt_oss().save_pretrained(tmp_path / "f")
    made = nmt.from_pretrained(tmp_path / "f", nmt.Config(**ONLY_EXPERTS, **MXFP4))
    made.save_pretrained(tmp_path / "q")
    file = tmp_path / "q" / "model.safetensors"
    tensors, name = load_file(file), "model.layers.1.mlp.experts.down_proj_scales"
    scales = tensors.pop(name)
    for changed, said in ((None, "missing"), (scales[:, :8].clone(), r"uint8 \(4, 8, 4\)")):
        more = {} if changed is None else {name: changed}
        save_file(tensors | more, file, {"format": "pt"})
        with pytest.raises(ValueError, match=rf"{name}' is {said}, must be uint8 \(4, 64, 4\)"):
            nmt.from_pretrained(tmp_path / "q")
    bias = "model.layers.1.mlp.experts.down_proj_bias"
    save_file({k: v for k, v in tensors.items() if k != bias} | {name: scales}, file)
    with pytest.raises(ValueError, match="experts': the model's has a down_proj_bias, the check"):
        nmt.from_pretrained(tmp_path / "q")


def test_what_gpt_oss_files_cannot_hold_is_not_saved(tmp_path):
    gpt_oss().save_pretrained(tmp_path / "f")
    whole = nmt.from_pretrained(tmp_path / "f", nmt.Config(**MXFP4))
    with pytest.raises(ValueError, match=r"q_proj' is quantised too, .*leave all but experts"):
        whole.save_pretrained(tmp_path / "w")
    integers = nmt.from_pretrained(tmp_path / "f", nmt.Config(**ONLY_EXPERTS, **GROUP))
    with pytest.raises(ValueError, match=r"0.mlp.experts': .* holds 'mxfp4-pack-quantized' alone"):
        integers.save_pretrained(tmp_path / "w")


def test_another_activation_stays_in_float_and_is_not_guessed(tmp_path, caplog):
    model = mixtral(hidden_act="gelu")
    others, weights = per_expert(model, tmp_path / "f", **GROUP)
    loaded = nmt.from_pretrained(tmp_path / "f", nmt.Config(**GROUP))
    assert not ours(loaded) and "an activation that is none of silu, swiglu-oai" in caplog.text
    path = directory(tmp_path / "q", model, others, weights, "gptq")
    with pytest.raises(ValueError, match=r"layer 'model.layers.0.mlp.experts': .*an activation"):
        nmt.from_pretrained(path)
