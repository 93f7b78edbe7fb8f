"""Contract under test: after ``take_over`` transformers' own call gives a model with our layers;
undone, it is as before. Skipped without transformers."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers' device_map")
pytest.importorskip("ml_dtypes")
from transformers.quantizers import auto  # noqa: E402

import numba_marlin.torch as nmt  # noqa: E402
from tests.torch_room.models import GROUP, llama, logits, quantised, stored  # noqa: E402

REGISTERED = auto.AUTO_QUANTIZATION_CONFIG_MAPPING
AUTOMATIC = transformers.AutoModelForCausalLM
assert nmt.Config  # registers its own name


@pytest.mark.parametrize(
    "form, method",
    [("gptq", "gptq"), ("awq", "awq"), ("pack-quantized", "compressed-tensors")],
)
def test_transformers_own_call_gives_our_layers(tmp_path, form, method):
    model = llama()
    path = stored(tmp_path / "q", model, quantised(model, **GROUP), form)
    before = dict(REGISTERED)
    with nmt.take_over(method) as taken:
        assert method in repr(taken)
        loaded = AUTOMATIC.from_pretrained(path)
        assert sum(isinstance(each, nmt.Linear) for each in loaded.modules()) == 14
    assert before == REGISTERED and "undone" in repr(taken)
    assert torch.equal(logits(loaded), logits(nmt.from_pretrained(path)))
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(nmt.from_pretrained(tmp_path / "again")), logits(loaded))


def test_it_is_undone_once_and_taken_once():
    before = dict(REGISTERED)
    taken = nmt.take_over()
    with pytest.raises(ValueError, match="method 'awq' is taken over already: undo"):
        nmt.take_over("awq")
    taken.undo()
    taken.undo()
    assert before == REGISTERED
    with pytest.raises(ValueError, match="method 'bitsandbytes' must be one of gptq, awq"):
        nmt.take_over("gptq", "bitsandbytes")
    with pytest.raises(ValueError, match="method 'gptq' is taken over already"):
        nmt.take_over("gptq", "gptq")
    assert before == REGISTERED


def test_a_configuration_that_is_passed_is_not_ours():
    passed = transformers.AwqConfig()
    with nmt.take_over("awq"):
        found = auto.AUTO_QUANTIZER_MAPPING["awq"]
        assert found.__name__ == "AwqQuantizer" and passed.quant_method == "awq"
