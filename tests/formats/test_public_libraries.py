"""Contract under test: what compressed-tensors itself writes is read here, what is written here it
reads, and both give the same numbers.

Skipped where compressed-tensors (and torch, which it needs) is not installed: neither is a
requirement of this package. Seen to pass with version 0.20.

Its neighbours ask the same of AutoGPTQ and GPTQModel (``test_public_gptq``), AutoAWQ
(``test_public_awq``), vLLM (``test_public_vllm``) and ModelOpt (``test_public_modelopt``). Others
on PyPI have no layout of their own here: optimum packs with GPTQModel, llm-compressor with
compressed-tensors, torchao's int4 layouts are none of ours. vLLM's repacking on a GPU and
GPTQModel's Marlin are CUDA code: their results are those of the Python code tested here. DeepSeek's
fp8-block has no library: its README is the definition.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("compressed_tensors")
pytest.importorskip("ml_dtypes")

from compressed_tensors.compressors import BaseCompressor  # noqa: E402
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import numba_marlin as nm  # noqa: E402

K, N = 128, 48


def scheme(**args):
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))


def layer_file(path, name, state, arguments):
    """What the library makes of ``state`` in a file -> (our weight, the library's numbers [k,
    n])"""
    compressor = BaseCompressor.get_value_from_registry(name)
    compressed = compressor.compress(state, scheme(**arguments))
    save_file({f"layer.{key}": value.contiguous() for key, value in compressed.items()}, path)
    numbers = compressor.decompress(dict(compressed), scheme(**arguments))["weight"]
    return nm.load_checkpoint(path)["layer"], numbers.to(torch.float64).numpy().T


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, None])
def test_pack_quantized(tmp_path, bits, symmetric, group):
    generator = torch.Generator().manual_seed(bits)
    groups = K // group if group else 1
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    scale = torch.rand((N, groups), generator=generator).to(torch.bfloat16) * 0.1 + 0.01
    zero = (
        None
        if symmetric
        else torch.randint(low, high + 1, (N, groups), generator=generator, dtype=torch.int8)
    )
    arguments = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "group" if group else "channel",
    } | ({"group_size": group} if group else {})
    weight = (torch.randn((N, K), generator=generator) * 0.2).to(torch.bfloat16)
    state = {"weight": weight, "weight_scale": scale} | (
        {} if zero is None else {"weight_zero_point": zero}
    )
    ours, theirs = layer_file(tmp_path / "layer.safetensors", "pack-quantized", state, arguments)
    assert ours.bits == bits and ours.symmetric == symmetric and ours.group_size == (group or -1)
    assert np.array_equal(nm.dequantize(ours, "bfloat16").astype(np.float64), theirs)
    nm.save_checkpoint(tmp_path / "ours.safetensors", {"layer": ours}, "pack-quantized")
    left, right = (
        load_file(tmp_path / "layer.safetensors"),
        load_file(tmp_path / "ours.safetensors"),
    )
    assert set(left) == set(right) and all(torch.equal(left[key], right[key]) for key in left), (
        "the same file, tensor by tensor"
    )


@pytest.mark.parametrize(
    ("name", "group"), [("nvfp4-pack-quantized", 16), ("mxfp4-pack-quantized", 32)]
)
def test_fp4(tmp_path, name, group):
    generator = torch.Generator().manual_seed(group)
    arguments = {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "group_size": group,
        "strategy": "tensor_group" if group == 16 else "group",
    }
    weight = torch.randn((N, K), generator=generator).to(torch.bfloat16)
    if group == 16:
        # a power of two: the library divides scales by it in floating point
        factor = torch.tensor([64.0])
        scale = (
            (torch.rand((N, K // group), generator=generator) * 100 + 1)
            .to(torch.float8_e4m3fn)
            .to(torch.float32)
        )
        state = {"weight": weight, "weight_scale": scale, "weight_global_scale": factor}
    else:
        state = {
            "weight": weight,
            "weight_scale": torch.exp2(
                torch.randint(-6, 3, (N, K // group), generator=generator).to(torch.float32)
            ),
        }
    ours, theirs = layer_file(tmp_path / "layer.safetensors", name, state, arguments)
    assert np.array_equal(nm.dequantize(ours, np.float64), theirs)
    assert len(np.unique(ours.codes)) > 8
    nm.save_checkpoint(tmp_path / "ours.safetensors", {"layer": ours}, name)
    left, right = (
        load_file(tmp_path / "layer.safetensors"),
        load_file(tmp_path / "ours.safetensors"),
    )
    assert set(left) == set(right) and all(torch.equal(left[key], right[key]) for key in left)
