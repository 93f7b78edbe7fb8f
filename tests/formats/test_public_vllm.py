"""Contract under test: the layouts of vLLM's kernels, as vLLM's own Python code makes them, are
read here, give its numbers, and are written here in the same words.

On a GPU vLLM repacks with CUDA code; what is called here is what its tests hold that code against
(``marlin_utils_test``, ``quant_utils``). Skipped where vLLM is not installed or does not start.
Seen to pass with vllm 0.33 and torch 2.13 for the CPU (``pip install --no-deps``, and about twenty
packages it imports).
"""

import numpy as np
import pytest

import numba_marlin as nm
from tests.formats import public_layers

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
utils = pytest.importorskip(
    "vllm.model_executor.layers.quantization.utils.marlin_utils_test", exc_type=ImportError
)
from vllm.model_executor.layers.quantization.utils import quant_utils  # noqa: E402
from vllm.scalar_type import scalar_types  # noqa: E402

SYMMETRIC = {4: scalar_types.uint4b8, 8: scalar_types.uint8b128}
K, N = 256, 128


def random_weight(dtype):
    return (torch.randn((K, N), generator=torch.Generator().manual_seed(1)) * 0.2).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128, -1])
def test_marlin_layout(tmp_path, bits, group, dtype):
    numbers, qweight, scales = utils.marlin_quantize(random_weight(dtype), SYMMETRIC[bits], group)
    weight = public_layers.as_checkpoint(
        tmp_path / "theirs",
        {"qweight": qweight, "scales": scales},
        quant_method="awq",
        version="marlin",
        bits=bits,
    )
    assert (weight.bits, weight.group_size, weight.zeros) == (bits, group, None)
    public_layers.assert_same_numbers(weight, numbers, str(dtype).removeprefix("torch."))
    public_layers.assert_written_alike(tmp_path / "theirs", weight, "vllm-marlin")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 128, -1])
def test_marlin_layout_with_zero_points(tmp_path, bits, group):
    numbers, qweight, scales, zeros = utils.awq_marlin_quantize(
        random_weight(torch.float16), {4: scalar_types.uint4, 8: scalar_types.uint8}[bits], group
    )
    tensors = {"qweight": qweight, "scales": scales, "qzeros": zeros}
    weight = public_layers.as_checkpoint(
        tmp_path / "theirs", tensors, quant_method="awq", version="marlin", bits=bits
    )
    assert nm.unpack(weight).zeros_kind == "integer"
    public_layers.assert_same_numbers(weight, numbers)
    public_layers.assert_written_alike(tmp_path / "theirs", weight, "vllm-marlin")


@pytest.mark.parametrize("form", ["gptq_v2", "awq"])
def test_layouts_before_repacking(tmp_path, form):
    """What vLLM's tests hand to its repacking kernels, and what comes out of those, are the same
    weight here."""
    drawn = public_layers.draw(K, N, 4, 64, symmetric=False, smallest_zero=0)
    codes, zeros = torch.from_numpy(drawn.codes.astype(np.int32)), drawn.zeros.to(torch.int32)
    pack = quant_utils.gptq_pack if form == "gptq_v2" else quant_utils.awq_pack
    pack_zeros = quant_utils.pack_cols if form == "gptq_v2" else quant_utils.awq_pack
    tensors = {
        "qweight": pack(codes, 4, K, N),
        "qzeros": pack_zeros(zeros, 4, len(zeros), N),
        "scales": drawn.scales,
    }
    tensors |= {"g_idx": drawn.g_idx} if form == "gptq_v2" else {}
    weight = public_layers.as_checkpoint(
        tmp_path / "theirs",
        tensors,
        quant_method=form.partition("_")[0],
        checkpoint_format=form,
        bits=4,
    )
    public_layers.assert_written_alike(tmp_path / "theirs", weight, form)
    repacked = {
        "qweight": utils.marlin_weights(codes, K, N, 4, utils.get_weight_perm(4)),
        "scales": utils.marlin_permute_scales(drawn.scales, K, N, 64),
        "qzeros": utils.marlin_zero_points(zeros, len(zeros), N, 4),
    }
    again = nm.unpack(
        public_layers.as_checkpoint(
            tmp_path / "repacked", repacked, quant_method="awq", version="marlin", bits=4
        )
    )
    assert (
        np.array_equal(again.codes, weight.codes)
        and np.array_equal(again.zeros, weight.zeros)
        and np.array_equal(again.scales, weight.scales)
    )
