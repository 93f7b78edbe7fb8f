"""Contract under test: what AutoAWQ packs, for its "gemm" and its "marlin" kernels, is read here,
gives its numbers, and is written here in the same words.

Skipped where it is not installed. Seen to pass with autoawq 0.2.9 and torch 2.13 for the CPU (``pip
install --no-deps``). Its "gemv" layouts are none of ours.
"""

import numpy as np
import pytest

import numba_marlin as nm
from tests.formats import public_layers

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
pytest.importorskip("transformers")
K, N = 128, 64


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 128, None])
def test_gemm(tmp_path, group, symmetric):
    public_layers.without_init("awq")
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    drawn = public_layers.draw(K, N, 4, group, symmetric, smallest_zero=0)
    layer = WQLinear_GEMM.from_linear(
        drawn.linear, 4, group or K, scales=drawn.scales.float(), zeros=drawn.zeros
    )
    numbers = dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, 4, group or K)
    weight = public_layers.as_checkpoint(
        tmp_path / "theirs",
        layer.state_dict(),
        quant_method="awq",
        version="gemm",
        bits=4,
        group_size=group or -1,
    )
    assert np.array_equal(weight.codes, drawn.codes) and weight.symmetric == symmetric
    public_layers.assert_same_numbers(weight, numbers)
    public_layers.assert_written_alike(tmp_path / "theirs", weight, "awq")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", [128, None])
def test_marlin(tmp_path, group):
    public_layers.without_init("awq")
    from awq.modules.linear.marlin import WQLinear_Marlin

    drawn = public_layers.draw(256, 256, 4, group, symmetric=True, dtype=torch.float16)
    layer = WQLinear_Marlin.from_linear(drawn.linear, 4, group or 256, scales=drawn.scales.T)
    weight = public_layers.as_checkpoint(
        tmp_path / "theirs",
        layer.state_dict(),
        quant_method="awq",
        version="marlin",
        bits=4,
        group_size=group or -1,
    )
    assert np.array_equal(nm.unpack(weight).codes, drawn.codes)
    public_layers.assert_same_numbers(weight, drawn.linear.weight.T)
    public_layers.assert_written_alike(tmp_path / "theirs", weight, "vllm-marlin")
