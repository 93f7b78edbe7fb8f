"""Contract under test: ``from_pretrained`` gives transformers' model with our layers, whatever
format the files are of: its logits are those of the model that has the dequantised weights; and a
model in float becomes what ``quantize_`` makes of it.

Skipped without transformers. Seen to pass with transformers 5.23.
"""

import json
import subprocess
import sys
import weakref
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers' device_map")
pytest.importorskip("ml_dtypes")

from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402

import numba_marlin as nm  # noqa: E402
import numba_marlin.torch as nmt  # noqa: E402
import numba_marlin.torch.transformers as room  # noqa: E402
from numba_marlin.checkpoints import Checkpoint  # noqa: E402
from tests.torch_room.models import (  # noqa: E402
    GROUP,
    HEADS,
    MXFP4,
    NVFP4,
    SIZES,
    TOKENS,
    assert_near,
    expected,
    llama,
    logits,
    of_type,
    permuted,
    quantised,
    qwen,
    stored,
)

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


@pytest.mark.parametrize("at_once", (1, 3))
def test_calls_in_turn_are_not_further_ahead_than_asked(at_once):
    begun, taken = [], []

    def call(number):
        begun.append(number)
        return number

    for number in room.in_turn([partial(call, each) for each in range(7)], at_once):
        taken.append(number)
        assert len(begun) <= len(taken) + at_once - 1
    assert taken == list(range(7)) == sorted(begun)


def test_a_call_in_turn_that_fails_ends_them():
    def call(number):
        if number == 2:
            raise ValueError("layer 2")
        return number

    found = room.in_turn([partial(call, each) for each in range(9)], 3)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ValueError, match="layer 2"):
        next(found)


@pytest.mark.parametrize("options", (GROUP, GROUP | {"symmetric": False}, NVFP4))
def test_layers_packed_on_a_gpu_are_those_packed_here(options, tmp_path, run_on):
    if run_on != "cuda":
        pytest.skip("needs a GPU: run it with --run-on cuda")
    model = llama()
    name = "modelopt-nvfp4" if options is NVFP4 else "gptq"
    path = stored(tmp_path / "m", model, quantised(model, **options), name)
    here, there = nmt.from_pretrained(path), nmt.from_pretrained(path, device_map="cuda")
    layers = dict(there.named_modules())
    for layer, each in here.named_modules():
        if isinstance(each, nmt.Linear):
            assert layers[layer].weight.place == "cuda:0"
            for key, tensor in each.state_dict().items():
                assert torch.equal(tensor, layers[layer].state_dict()[key].cpu()), (layer, key)


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
