"""Contract under test: NVFP4, MXFP4 and FP8 as ModelOpt's tensors hold them are read here, give its
numbers, and are written here in the same bytes.

Skipped where it is not installed. Seen to pass with nvidia-modelopt 0.47 and torch 2.13 for the
CPU. MXFP4 goes to files in compressed-tensors' spelling: the same bytes under other names.
"""

import numpy as np
import pytest

import numba_marlin as nm
from tests.formats import public_layers

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
qtensor = pytest.importorskip("modelopt.torch.quantization.qtensor", exc_type=ImportError)
K, N = 256, 192


def random_weight():
    """[n, k], with blocks of very different sizes and one of zeros."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn((N, K), generator=generator) * torch.exp2(
        torch.randint(-4, 3, (N, K // 16), generator=generator)
    ).repeat_interleave(16, dim=1)
    weight[5, 32:64] = 0
    return weight


@pytest.mark.parametrize("factor", [None, 2.0**-8], ids=["its own factor", "a power of two"])
def test_nvfp4(tmp_path, factor):
    """The library rounds scale * factor to float32 and then the product, so that its numbers may be
    one rounding away; by a power of two nothing rounds."""
    packed, scale, factor = qtensor.NVFP4QTensor.quantize(
        random_weight(), 16, weights_scaling_factor_2=factor and torch.tensor(factor)
    )
    numbers = packed.dequantize(
        torch.float32, scale=scale, double_scale=factor, block_sizes={-1: 16}
    ).T
    tensors = {
        "weight": packed._quantized_data,
        "weight_scale": scale,
        "weight_scale_2": factor,
        "input_scale": torch.tensor(0.25),
    }
    weight = public_layers.as_checkpoint(
        tmp_path / "theirs", tensors, quant_method="modelopt", quant_algo="NVFP4", group_size=16
    )
    assert (
        weight.global_scale == float(factor)
        and weight.input_scale == 0.25
        and len(np.unique(weight.codes)) == 16
    )
    if float(factor) == 2.0**-8:
        public_layers.assert_same_numbers(weight, numbers, np.float32)
    else:
        np.testing.assert_allclose(
            nm.dequantize(weight, np.float64), numbers.numpy(), rtol=2.0**-23, atol=0
        )
    public_layers.assert_written_alike(tmp_path / "theirs", weight, "modelopt-nvfp4")


def test_mxfp4(tmp_path):
    packed, scale = qtensor.MXFP4QTensor.quantize(random_weight(), 32)
    numbers = packed.dequantize(torch.float32, scale=scale, block_sizes={-1: 32}).T
    tensors = {"weight_packed": packed._quantized_data, "weight_scale": scale.reshape(N, K // 32)}
    weight = public_layers.as_checkpoint(
        tmp_path / "theirs",
        tensors,
        quant_method="compressed-tensors",
        format="mxfp4-pack-quantized",
    )
    public_layers.assert_same_numbers(weight, numbers, np.float32)
    public_layers.assert_written_alike(tmp_path / "theirs", weight, "mxfp4-pack-quantized")


@pytest.mark.parametrize("kind", ["tensor", "channel", "block"])
def test_fp8(tmp_path, kind):
    weight = random_weight()
    blocks = {-1: 128, -2: 128} if kind == "block" else None
    packed, scale = qtensor.FP8QTensor.quantize(
        weight, axis=0 if kind == "channel" else None, block_sizes=blocks
    )
    numbers = packed.dequantize(torch.float32, scale=scale, block_sizes=blocks).T
    tensors = {
        "weight": packed._quantized_data,
        "weight_scale": scale.reshape(1) if kind == "tensor" else scale,
    }
    ours = public_layers.as_checkpoint(
        tmp_path / "theirs", tensors, quant_method="modelopt", quant_algo="FP8"
    )
    assert ours.block == {"tensor": (K, N), "channel": (K, 1), "block": (128, 128)}[kind]
    public_layers.assert_same_numbers(ours, numbers, np.float32)
    public_layers.assert_written_alike(tmp_path / "theirs", ours, "fp8")
