"""Contract under test: what ``quantize`` and ``convert`` make of a model's directory, transformers
loads whole: no parameter missing, none unexpected, every number as it was written.

Skipped where transformers, torch and compressed-tensors are not installed: none is a requirement of
this package. Seen to pass with transformers 5.23 and compressed-tensors 0.20.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")
pytest.importorskip("ml_dtypes")

import numba_marlin as nm  # noqa: E402
from numba_marlin.cli import main as cli  # noqa: E402

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 96}
ATTENTION = {"num_attention_heads": 4, "max_position_embeddings": 32}


def llama(tied):
    config = transformers.LlamaConfig(
        **SIZES, **ATTENTION, num_key_value_heads=2, tie_word_embeddings=tied
    )
    return transformers.LlamaForCausalLM(config), ["*_proj.weight"]


def bert():
    """A head of another name shares the embedding's weight."""
    config = transformers.BertConfig(**SIZES, **ATTENTION)
    return transformers.BertForMaskedLM(config), ["*.attention.self.*.weight"]


def classifier():
    config = transformers.BertConfig(**SIZES, **ATTENTION)
    return transformers.BertForSequenceClassification(config), ["*.attention.self.*.weight"]


def clip():
    """A text model and a vision tower, of which one is quantised."""
    layers = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = transformers.CLIPConfig(
        text_config=layers | {"num_attention_heads": 4, "vocab_size": 96, "projection_dim": 32},
        vision_config=layers | {"num_attention_heads": 4, "image_size": 32, "patch_size": 16},
        projection_dim=32,
    )
    return transformers.CLIPModel(config), ["text_model.encoder.*.fc?.weight", "text_model*_proj*"]


MODELS = {
    "llama": lambda: llama(False),
    "llama-tied": lambda: llama(True),
    "bert": bert,
    "classifier": classifier,
    "clip": clip,
}


@pytest.mark.parametrize("via", ["quantize", "convert"])
@pytest.mark.parametrize("name", MODELS)
def test_transformers_loads_it_whole(tmp_path, name, via):
    torch.manual_seed(0)
    model, patterns = MODELS[name]()
    source, target = tmp_path / "source", tmp_path / "target"
    model.to(torch.float16).save_pretrained(source)
    form = "pack-quantized" if via == "quantize" else "gptq"
    patterns = [each for pattern in patterns for each in ("--tensor", pattern)]
    argv = ["quantize", source, target, *patterns, "--format", form, "--group-size", "32"]
    assert cli.main([str(each) for each in argv]) == 0
    if via == "convert":
        written, target = target, tmp_path / "converted"
        argv = ["convert", written, target, "--to", "pack-quantized"]
        assert cli.main([str(each) for each in argv]) == 0
    loaded, report = type(model).from_pretrained(target, output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    written = nm.load_checkpoint(target).source
    found = {name: each.detach() for name, each in loaded.state_dict().items()}
    assert sum(name.endswith(".weight_packed") for name in found) == len(nm.load_checkpoint(target))
    before = model.state_dict()
    for name, values in found.items():
        if name in written.entries:
            assert np.array_equal(values.numpy(), written.array(name)), name
        else:
            assert torch.equal(values, before[name]), name
