"""Contract under test: what AutoGPTQ and GPTQModel pack is read here, gives the numbers that they
give, and is written here in the same words.

Skipped where they are not installed. Seen to pass with auto-gptq 0.7.1, gptqmodel 7.7.0 and torch
2.13 for the CPU (``pip install --no-deps``: both ask for more than packing needs). AutoGPTQ cannot
write a zero point of 0 in version 1 (-1 fills the whole word), so none is drawn; it reads one back
as 2**bits in one of its modules and as 0 in another.
"""

from types import SimpleNamespace

import numpy as np
import pytest

import numba_marlin as nm
from tests.formats import public_layers

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
K, N = 128, 64
CASES = [
    (bits, symmetric, group, order)
    for bits in (2, 3, 4, 8)
    for symmetric in (True, False)
    for group, order in ((32, False), (32, True), (None, False))
]


@pytest.mark.parametrize(("bits", "symmetric", "group", "order"), CASES)
def test_auto_gptq(tmp_path, bits, symmetric, group, order):
    pytest.importorskip("transformers")
    public_layers.without_init("auto_gptq")
    from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear

    drawn = public_layers.draw(K, N, bits, group, symmetric, order)
    layer = QuantLinear(bits, group or -1, K, N, bias=False, weight_dtype=torch.float32)
    layer.pack(
        drawn.linear, drawn.scales.float().T, drawn.zeros.float().T, drawn.g_idx if order else None
    )
    numbers = layer(torch.eye(K))
    tensors = layer.state_dict() | {"scales": layer.scales.half()}
    weight = public_layers.as_checkpoint(
        tmp_path / "theirs",
        tensors,
        quant_method="gptq",
        checkpoint_format="gptq",
        bits=bits,
        group_size=group or -1,
    )
    assert (weight.bits, weight.symmetric, weight.group_size, weight.permutation is not None) == (
        bits,
        symmetric,
        group or -1,
        order,
    )
    public_layers.assert_same_numbers(weight, numbers, np.float64)
    public_layers.assert_written_alike(tmp_path / "theirs", weight, "gptq")


@pytest.mark.parametrize("group", [128, None])
def test_auto_gptq_marlin(tmp_path, group, monkeypatch):
    """Its packing is NumPy's; its constructor asks what the GPU can do, so here one says that it is
    Ampere."""
    pytest.importorskip("transformers")
    public_layers.without_init("auto_gptq")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    from auto_gptq.nn_modules.qlinear.qlinear_marlin import QuantLinear

    drawn = public_layers.draw(256, 256, 4, group, symmetric=True, dtype=torch.float16)
    layer = QuantLinear(4, group or 256, 256, 256, bias=False)
    layer.pack(drawn.linear, drawn.scales.T)
    weight = public_layers.as_checkpoint(
        tmp_path / "theirs",
        layer.state_dict(),
        quant_method="gptq",
        checkpoint_format="marlin",
        bits=4,
        group_size=group or -1,
    )
    assert np.array_equal(nm.unpack(weight).codes, drawn.codes)
    public_layers.assert_same_numbers(weight, drawn.linear.weight.T)
    public_layers.assert_written_alike(tmp_path / "theirs", weight, "marlin")


@pytest.mark.parametrize(("bits", "symmetric", "group", "order"), CASES)
@pytest.mark.parametrize("version", ["gptq_v2", "gptq"])
def test_gptqmodel(tmp_path, bits, symmetric, group, order, version):
    pytest.importorskip("gptqmodel")
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils import model as conversions

    drawn = public_layers.draw(
        K, N, bits, group, symmetric, order, smallest_zero=1 if version == "gptq" else 0
    )
    layer = TorchLinear(
        bits=bits,
        group_size=group or -1,
        sym=symmetric,
        desc_act=order,
        in_features=K,
        out_features=N,
        register_buffers=True,
    )
    layer.pack_original(drawn.linear, drawn.scales.float().T, drawn.zeros.float().T, drawn.g_idx)
    layer.post_init()
    numbers = layer.dequantize_weight()
    if version == "gptq":
        conversions.convert_gptq_v2_to_v1_format_module(
            layer, SimpleNamespace(bits=bits, pack_dtype=torch.int32)
        )
    tensors = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales", "g_idx")}
    weight = public_layers.as_checkpoint(
        tmp_path / "theirs",
        tensors,
        quant_method="gptq",
        checkpoint_format=version,
        bits=bits,
        group_size=group or -1,
    )
    assert (weight.bits, weight.symmetric, weight.group_size, weight.permutation is not None) == (
        bits,
        symmetric,
        group or -1,
        order,
    )
    public_layers.assert_same_numbers(weight, numbers)
    public_layers.assert_written_alike(tmp_path / "theirs", weight, version)
