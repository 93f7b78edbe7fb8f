"""Contract under test: ``from_pretrained`` gives transformers' model with our layers, whatever
format the files are of: its logits are those of the model that has the dequantised weights. What it
saves, it and others load with the same numbers. What cannot be loaded is refused by layer, value
and rule.

Skipped without transformers. Seen to pass with transformers 5.23, compressed-tensors 0.20.
"""

import json
import subprocess
import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers' device_map")
pytest.importorskip("ml_dtypes")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

import numba_marlin as nm  # noqa: E402
import numba_marlin.torch as nmt  # noqa: E402
import numba_marlin.torch.transformers as room  # noqa: E402
from numba_marlin.checkpoints import Checkpoint, CheckpointError  # noqa: E402
from numba_marlin.formats.files import find_stored  # noqa: E402

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 96}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
GROUP = {"group_size": 32}
NVFP4 = {"format": "nvfp4", "global_scale": 2.0**-15}  # its inverse is a float32 too
MXFP4 = {"format": "mxfp4"}
TOKENS = torch.arange(20)[None]


def of_type(model, dtype):
    """As transformers loads it: buffers, such as the rotations' frequencies, stay as they are."""
    for each in model.parameters():
        each.data = each.data.to(dtype)
    return model.eval()


def llama(dtype=torch.float16, **more):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**(SIZES | HEADS | more))
    return of_type(transformers.LlamaForCausalLM(config), dtype)


def qwen(**more):
    """Biases of q, k and v, which are not 0; the embedding is the head too."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(**SIZES, **HEADS, tie_word_embeddings=True, **more)
    model = of_type(transformers.Qwen2ForCausalLM(config), torch.float16)
    for name, each in model.named_parameters():
        if name.endswith(".bias"):
            each.data.normal_()
    return model


def quantised(model, ends=("_proj",), **options):
    """{name of a layer: its weight, quantised}"""
    return {
        name: nm.quantize(each.weight.detach().float().t().contiguous().numpy(), **options)
        for name, each in model.named_modules()
        if name.endswith(ends)
    }


def permuted(weights):
    """The weights with their rows in another order, as GPTQ in activation order leaves them."""
    rng = np.random.default_rng(0)
    return {
        name: replace(each, permutation=rng.permutation(each.k).astype(np.int32))
        for name, each in weights.items()
    }


def stored(path, model, weights, form="gptq", **options):
    """The directory of a model of which ``weights`` are quantised."""
    others = {
        name: each.detach().float().numpy().astype("float16")
        for name, each in model.state_dict().items()
        if name.removesuffix(".weight") not in weights
        and not (name == "lm_head.weight" and model.config.tie_word_embeddings)
    }
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    return nm.save_checkpoint(path, weights, form, others=others, config=config, **options)


class Dequantised(nn.Module):
    """A linear layer with a weight's numbers, which rounds once."""

    def __init__(self, weight, bias):
        super().__init__()
        self.w = torch.from_numpy(nm.dequantize(weight, "float64"))
        self.b = 0 if bias is None else bias.detach().double()

    def forward(self, x):
        return (x.double() @ self.w + self.b).to(x.dtype)


def logits(model, tokens=TOKENS):
    with torch.no_grad():
        return model(tokens).logits


def expected(model, weights):
    """The logits of a float model with the numbers of ``weights`` in the place of its own."""
    for name, weight in weights.items():
        bias = model.get_submodule(name).bias
        model.set_submodule(name, Dequantised(weight, bias))
    return logits(model)


def assert_near(found, wanted):
    """Each layer differs by one rounding at most; the last bit of some numbers."""
    error = (found.double() - wanted.double()).norm() / wanted.double().norm()
    assert error < 2 * torch.finfo(found.dtype).eps


CASES = [
    *[(form, GROUP, False) for form in ("gptq", "awq", "pack-quantized")],
    ("gptq", GROUP, True),
    ("pack-quantized", GROUP, True),
    ("nvfp4-pack-quantized", NVFP4, False),
    ("mxfp4-pack-quantized", MXFP4, False),
]
MORE_CASES = [
    ("gptq_v2", GROUP | {"symmetric": False}, True),
    ("gptq", GROUP | {"symmetric": False, "bits": 8}, False),
    ("gptq", {"group_size": -1}, False),
    ("awq", GROUP | {"symmetric": False}, False),
    ("pack-quantized", GROUP | {"symmetric": False}, False),
    ("marlin", {"group_size": -1}, False),
    ("vllm-marlin", GROUP, False),
    ("modelopt-nvfp4", NVFP4, False),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("form", "options", "act_order"),
    [*CASES, *[pytest.param(*each, marks=pytest.mark.thorough) for each in MORE_CASES]],
)
def test_logits_are_those_of_the_dequantised_weights(tmp_path, form, options, act_order):
    model = llama(num_key_value_heads=4 if "marlin" in form else 2)  # Marlin's blocks of 64 columns
    weights = quantised(model, **options)
    weights = permuted(weights) if act_order else weights
    path = stored(tmp_path / "q", model, weights, form)
    loaded, report = nmt.from_pretrained(path, device_map="cpu", output_loading_info=True)
    assert not any(report.values())
    layers = {name for name, each in loaded.named_modules() if isinstance(each, nmt.Linear)}
    assert layers == set(weights) and type(loaded.lm_head) is nn.Linear
    assert not loaded.training and not any(each.training for each in loaded.modules())
    found, before = logits(loaded), logits(model)
    wanted = expected(model, nm.load_checkpoint(path))
    assert_near(found, wanted)
    assert (found - before).norm() > 8 * (found - wanted).norm()


def test_generate(tmp_path):
    model = llama(initializer_range=0.5)
    weights = quantised(model, **GROUP)
    loaded = nmt.from_pretrained(stored(tmp_path / "q", model, weights))
    start = torch.arange(5)[None]
    before = model.generate(start, max_new_tokens=4, do_sample=False)
    expected(model, weights)
    words = loaded.generate(start, max_new_tokens=4, do_sample=False)
    assert torch.equal(words, model.generate(start, max_new_tokens=4, do_sample=False))
    assert words.shape == (1, 9) and not torch.equal(words, before)


def test_biases_and_tied_embeddings(tmp_path):
    model = qwen()
    weights = quantised(model, **GROUP)
    loaded = nmt.from_pretrained(stored(tmp_path / "q", model, weights))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert_near(logits(loaded), expected(model, weights))


@pytest.mark.parametrize("tied", [False, True])
def test_a_quantised_head(tmp_path, tied):
    """Beside an embedding that config.json says it shares: then it no longer does."""
    model = llama(tie_word_embeddings=tied)
    weights = quantised(model, ("_proj", "lm_head"), **GROUP)
    loaded = nmt.from_pretrained(stored(tmp_path / "q", model, weights))
    assert isinstance(loaded.lm_head, nmt.Linear) and not loaded.config.tie_word_embeddings
    found = logits(loaded)
    assert_near(found, expected(model, weights))
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(nmt.from_pretrained(tmp_path / "again")), found)


def test_some_layers_and_a_part_of_the_model(tmp_path):
    model = llama()
    weights = quantised(model, ("0.mlp.up_proj", "lm_head"), **GROUP)
    path = stored(tmp_path / "q", model, weights, "pack-quantized")
    inner = nmt.from_pretrained(path, auto_class=transformers.AutoModel)
    assert type(inner) is transformers.LlamaModel
    expected(model, weights)
    with torch.no_grad():
        wanted, found = (each(TOKENS).last_hidden_state for each in (model.model, inner))
    assert_near(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("options", [GROUP, NVFP4], ids=["int4", "nvfp4"])
def test_a_float_model_is_quantised_while_it_is_loaded(tmp_path, options, dtype):
    llama(dtype).save_pretrained(tmp_path / "f")
    config = nmt.Config(skip=["lm_head", "*.1.mlp.*"], **options)
    automatic = transformers.AutoModelForCausalLM
    loaded = automatic.from_pretrained(tmp_path / "f", quantization_config=config)
    model = nmt.quantize_(llama(dtype), skip=["lm_head", "*.1.mlp.*"], **options)
    ours, theirs = loaded.state_dict(), model.state_dict()
    assert set(ours) == set(theirs)
    for name in theirs:  # what is saved of NVFP4 has the inverse of the global scale
        if not (name.endswith("_extra_state") and options is NVFP4):
            assert torch.equal(ours[name], theirs[name]), name
    assert type(loaded.model.layers[1].mlp.up_proj) is nn.Linear
    assert torch.equal(logits(loaded), logits(model.eval()))


def test_a_shared_weight_stays_in_float_and_skip_may_be_empty(tmp_path):
    qwen().save_pretrained(tmp_path / "tied")
    tied = nmt.from_pretrained(tmp_path / "tied", nmt.Config(skip=(), **GROUP))
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    llama().save_pretrained(tmp_path / "not")
    assert isinstance(
        nmt.from_pretrained(tmp_path / "not", nmt.Config(skip=(), **GROUP)).lm_head, nmt.Linear
    )


@pytest.mark.thorough
def test_names_that_transformers_changes(tmp_path):
    """LLaVA's files have other names than its modules; of the modules, some are quantised."""
    text = transformers.LlamaConfig(**SIZES, **HEADS)
    layers = {key: SIZES[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    sight = transformers.CLIPVisionConfig(
        **layers, num_attention_heads=4, image_size=32, patch_size=16
    )
    config = transformers.LlavaConfig(text_config=text, vision_config=sight)
    of_type(transformers.LlavaForConditionalGeneration(config), torch.float16).save_pretrained(
        tmp_path / "f"
    )
    source = nm.load_checkpoint(tmp_path / "f")
    arrays = {name: source.tensor(name) for name in source.others}
    quantise = [name for name in arrays if "language_model" in name and "_proj" in name]
    assert not any(name.startswith("model.") for name in arrays)
    weights = {
        name.removesuffix(".weight"): nm.quantize(np.ascontiguousarray(arrays.pop(name).T), **GROUP)
        for name in quantise
    }
    path = nm.save_checkpoint(
        tmp_path / "q", weights, "awq", others=arrays, config=source.source.config
    )
    automatic = {"auto_class": transformers.AutoModelForImageTextToText}
    loaded, report = nmt.from_pretrained(path, **automatic, output_loading_info=True)
    assert not any(report.values())
    assert sum(isinstance(each, nmt.Linear) for each in loaded.modules()) == len(weights) == 14
    loaded.save_pretrained(tmp_path / "w")
    written = nm.load_checkpoint(tmp_path / "w")
    for name, weight in weights.items():
        assert np.array_equal(nm.dequantize(written[name]), nm.dequantize(weight))
    again = nmt.from_pretrained(tmp_path / "w", **automatic)
    assert torch.equal(logits(again), logits(loaded))


def test_experts_stay_in_float(tmp_path):
    """In transformers they are one parameter, not linear layers: files where they are quantised are
    refused."""
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SIZES, **HEADS, num_local_experts=2)
    model = of_type(transformers.MixtralForCausalLM(config), torch.float16)
    model.save_pretrained(tmp_path / "f")
    loaded = nmt.from_pretrained(tmp_path / "f", nmt.Config(**GROUP))
    assert isinstance(loaded.model.layers[0].self_attn.q_proj, nmt.Linear)
    experts = "model.layers.0.mlp.experts.gate_up_proj"
    assert torch.equal(loaded.get_parameter(experts), model.get_parameter(experts))
    expert = "model.layers.1.block_sparse_moe.experts.0.w1"
    weights = {expert: nm.quantize(np.ones((64, 128)), **GROUP)}
    with pytest.raises(ValueError, match=rf"layer '{expert}': .*part of another parameter"):
        nmt.from_pretrained(stored(tmp_path / "q", model, weights))


def test_weights_that_are_in_no_file_are_quantised_once_they_are_loaded(tmp_path):
    """A pickle, which is not opened here."""
    model = llama()
    model.save_pretrained(tmp_path / "f")
    state = load_file(tmp_path / "f" / "model.safetensors")
    torch.save(state, tmp_path / "f" / "pytorch_model.bin")
    (tmp_path / "f" / "model.safetensors").unlink()
    loaded = nmt.from_pretrained(tmp_path / "f", nmt.Config(**GROUP))
    assert torch.equal(logits(loaded), logits(nmt.quantize_(model, **GROUP).eval()))


@pytest.mark.thorough
def test_gptq_with_hessians_of_a_file(tmp_path):
    pytest.importorskip("scipy")
    model = llama()
    model.save_pretrained(tmp_path / "f")
    hessians = nm.calibrate(model, [TOKENS])
    nm.save_hessians(tmp_path / "h.safetensors", hessians)
    options = GROUP | {"act_order": True, "method": "gptq"}
    config = nmt.Config(hessians=tmp_path / "h.safetensors", **options)
    loaded = nmt.from_pretrained(tmp_path / "f", config)
    assert loaded.model.layers[0].mlp.up_proj.permutation is not None
    model = nmt.quantize_(model, hessians=hessians, **options)
    assert torch.equal(logits(loaded), logits(model.eval()))
    one = {name: each for name, each in hessians.items() if name.endswith("0.mlp.up_proj")}
    nm.save_hessians(tmp_path / "one.safetensors", one)
    config = nmt.Config("gptq", hessians=tmp_path / "one.safetensors", **GROUP)
    with pytest.raises(ValueError, match="'model.layers.0.*' has no Hessian: .*one.safetensors"):
        nmt.from_pretrained(tmp_path / "f", config)


def test_one_layer_is_in_memory_beside_the_model(tmp_path, monkeypatch):
    model = llama()
    path = stored(tmp_path / "q", model, quantised(model, **GROUP))
    model.save_pretrained(tmp_path / "f")
    read = []

    def once(real):
        def reading(checkpoint, name):
            found = real(checkpoint, name)
            if name.endswith(("_proj", "_proj.weight")):
                left = [each for each, alive in read if alive() is not None]
                assert not left, f"{left} are still there when {name} is read"
                read.append((name, weakref.ref(getattr(found, "codes", found))))
            return found

        return reading

    monkeypatch.setattr(Checkpoint, "__getitem__", once(Checkpoint.__getitem__))
    monkeypatch.setattr(Checkpoint, "tensor", once(Checkpoint.tensor))
    nmt.from_pretrained(path)
    assert len(read) == 14
    nmt.from_pretrained(tmp_path / "f", nmt.Config(**GROUP))
    assert len(read) == 28


# ---- saving


@pytest.mark.parametrize(
    ("form", "save_format", "act_order"),
    [
        ("gptq", None, True),
        ("awq", "pack-quantized", False),
        ("pack-quantized", "gptq", True),
        ("nvfp4-pack-quantized", None, False),
        ("mxfp4-pack-quantized", None, False),
    ],
)
def test_what_is_saved_is_loaded_bit_for_bit(tmp_path, form, save_format, act_order):
    model = qwen()
    options = {"nvfp4": NVFP4, "mxfp4": MXFP4}.get(form.partition("-")[0], GROUP)
    weights = quantised(model, **options)
    weights = permuted(weights) if act_order else weights
    path = stored(tmp_path / "q", model, weights, form)
    loaded = nmt.from_pretrained(path, nmt.Config(save_format=save_format))
    loaded.save_pretrained(tmp_path / "w", max_shard_size="40KB")
    assert len(list((tmp_path / "w").glob("*.safetensors"))) > 1
    written = nm.load_checkpoint(tmp_path / "w")
    assert {each.form.name for each in written.layers.values()} == {save_format or form}
    assert not written.source.contradictions()
    for name, weight in weights.items():
        found, wanted = (nm.dequantize(each, "float64") for each in (written[name], weight))
        assert np.array_equal(found, wanted)
    again = nmt.from_pretrained(tmp_path / "w")
    assert torch.equal(logits(again), logits(loaded))
    again.save_pretrained(tmp_path / "w2", max_shard_size="40KB")
    for file in (tmp_path / "w").iterdir():
        first, second = (tmp_path / each / file.name for each in ("w", "w2"))
        if file.suffix == ".safetensors":
            first, second = load_file(first), load_file(second)
            assert set(first) == set(second)
            for name in first:
                assert torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8))
        else:
            assert first.read_text() == second.read_text()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [GROUP, {"format": "nvfp4"}, MXFP4], ids=str)
def test_compressed_tensors_loads_what_is_saved(tmp_path, options):
    """Our logits are those of its dequantised model, but for the roundings of torch's product."""
    pytest.importorskip("compressed_tensors")
    qwen().save_pretrained(tmp_path / "f")
    ours = nmt.from_pretrained(tmp_path / "f", nmt.Config(**options))
    ours.save_pretrained(tmp_path / "w")
    config = transformers.utils.quantization_config.CompressedTensorsConfig(dequantize=True)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "w", quantization_config=config, output_loading_info=True
    )
    assert not any(report.values())
    weights = nm.load_checkpoint(tmp_path / "w")
    for name in weights:
        found = theirs.get_submodule(name).weight.detach().double().numpy().T
        rounded = nm.dequantize(weights[name], "float16" if "format" not in options else "float64")
        assert np.allclose(found, rounded.astype(float), rtol=2**-8, atol=0), name
    assert (logits(theirs) - logits(ours)).norm() < 1e-2 * logits(ours).norm()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_gptqmodel_loads_what_is_saved(tmp_path):
    for library in ("optimum", "gptqmodel"):
        pytest.importorskip(library, reason="transformers loads GPTQ with its help")
    qwen().save_pretrained(tmp_path / "f")
    ours = nmt.from_pretrained(tmp_path / "f", nmt.Config(save_format="gptq", **GROUP))
    ours.save_pretrained(tmp_path / "w")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "w", quantization_config=transformers.GPTQConfig(bits=4, backend="torch")
    )
    assert (logits(theirs) - logits(ours)).norm() < 1e-2 * logits(ours).norm()


def test_a_format_that_cannot_hold_the_weights_saves_nothing(tmp_path):
    model = llama()
    path = stored(tmp_path / "q", model, permuted(quantised(model, **GROUP)))
    loaded = nmt.from_pretrained(path, nmt.Config(save_format="awq"))
    with pytest.raises(ValueError, match=r"layer 'model.layers.0.*_proj'.*"):
        loaded.save_pretrained(tmp_path / "w")
    assert not list((tmp_path / "w").iterdir())


# ---- what transformers does with the registered quantizer


@pytest.mark.filterwarnings("ignore")
def test_transformers_own_call(tmp_path):
    """It takes our configuration where it knows no method for config.json's, and otherwise insists
    on that method's class: ``from_pretrained`` is for that."""
    automatic, model = transformers.AutoModelForCausalLM, llama()
    path = stored(tmp_path / "m", model, quantised(model, **NVFP4), "modelopt-nvfp4")
    loaded = automatic.from_pretrained(path, quantization_config=nmt.Config())
    assert torch.equal(logits(loaded), logits(nmt.from_pretrained(path)))
    path = stored(tmp_path / "q", model, quantised(model, **GROUP))
    with pytest.raises(ValueError, match="quantized with GPTQConfig but you are passing a Config"):
        automatic.from_pretrained(path, quantization_config=nmt.Config())


def test_the_configuration_is_one_of_transformers():
    config = nmt.Config("mse", "lm_head", bits=8, **GROUP)
    again = transformers.quantizers.AutoQuantizationConfig.from_dict(
        json.loads(config.to_json_string())
    )
    assert type(again) is nmt.Config and again.to_dict() == config.to_dict()
    assert again.options == {"bits": 8, **GROUP} and again.skip == ["lm_head"]
    with pytest.raises(ValueError, match="format='gptqq' must be one of"):
        nmt.Config(save_format="gptqq")


def test_a_place_that_waits_counts_as_its_layer():
    """For ``device_map="auto"``; and accelerate's hook goes along when the layer comes."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module
    from transformers.integrations.accelerate import compute_module_sizes

    linear = nn.Linear(64, 64, bias=False)
    model = nn.ModuleDict({"a": room.Awaited(linear, lambda: None, 2304, [])})
    sizes, _ = compute_module_sizes(model, room.Quantizer(nmt.Config()))
    assert sizes["a"] == 2304
    hook = AlignDevicesHook(execution_device="cpu", io_same_device=True)
    before = add_hook_to_module(nn.Linear(64, 64), hook)
    made = room._with_hook(nmt.Linear.from_linear(linear, **GROUP), before)
    assert made._hf_hook is hook and made(torch.ones(1, 64)).shape == (1, 64)


# ---- bad input


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
    with pytest.raises(TypeError, match="layer 'model.layers.0.*' takes no bitz"):
        nmt.from_pretrained(tmp_path / "f", nmt.Config(bitz=4))


def test_layers_of_several_formats_are_saved_in_the_one_that_is_named(tmp_path):
    quantizer = room.Quantizer(nmt.Config())
    quantizer.read_from = {"gptq", "awq"}
    with pytest.raises(ValueError, match=r"formats awq, gptq: name the one to save"):
        quantizer.get_state_dict_and_metadata(llama())


@pytest.mark.thorough
def test_transformers_is_imported_when_it_is_named():
    statement = """
import sys
import numba_marlin.torch as nmt
assert "transformers" not in sys.modules
sys.modules["transformers"] = None
try:
    nmt.Config
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True)
    assert "numba_marlin.torch.Config needs transformers: pip install" in done.stdout, done.stderr
