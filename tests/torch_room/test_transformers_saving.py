"""Contract under test: what ``save_pretrained`` writes of a model with our layers, we and others
load with the same numbers.

Skipped without transformers. Seen to pass with transformers 5.23, compressed-tensors 0.20, and
GPTQModel 7.7 with optimum 2.3.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers' device_map")
pytest.importorskip("ml_dtypes")

from safetensors.torch import load_file  # noqa: E402

import numba_marlin as nm  # noqa: E402
import numba_marlin.torch as nmt  # noqa: E402
from tests.torch_room.models import (  # noqa: E402
    GROUP,
    MXFP4,
    NVFP4,
    llama,
    logits,
    permuted,
    quantised,
    qwen,
    stored,
)


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
