"""Contract under test: ``nm.load_experts`` reads fused tensors of all experts as the libraries that
wrote them do, and says which layer breaks which rule."""

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.formats.floats import round_to
from numba_marlin.quantizers.dequantize import as_quantized

pytest.importorskip("ml_dtypes")
safetensors = pytest.importorskip("safetensors.numpy")

E, K, H = 3, 64, 96
NAME = "model.layers.0.mlp.experts"
RNG = np.random.default_rng(5)
# of e2m1, by its code
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
VALUES = np.concatenate([VALUES, -VALUES])


def mxfp4(k, n):
    """(blocks, scales) of gpt-oss."""
    blocks = RNG.integers(0, 256, (E, n, k // 32, 16), dtype=np.uint8)
    return blocks, RNG.integers(120, 126, (E, n, k // 32), dtype=np.uint8)


def numbers(blocks, scales):
    """[E, k, n], as ``convert_moe_packed_tensors`` of transformers has them: the low nibble first,
    times 2 ** (scale - 127), transposed."""
    values = np.empty((*blocks.shape[:-1], 32))
    values[..., 0::2], values[..., 1::2] = VALUES[blocks & 15], VALUES[blocks >> 4]
    values *= 2.0 ** (scales[..., None].astype(int) - 127)
    return values.reshape(E, blocks.shape[1], -1).transpose(0, 2, 1)


def gpt_oss():
    tensors = {}
    for part, k, n in (("gate_up_proj", K, 2 * H), ("down_proj", H, K)):
        tensors[f"{NAME}.{part}_blocks"], tensors[f"{NAME}.{part}_scales"] = mxfp4(k, n)
        bias = RNG.standard_normal((E, n)).astype(np.float32)
        tensors[f"{NAME}.{part}_bias"] = round_to(bias, "bfloat16")
    return tensors


def saved(tmp_path, tensors):
    path = tmp_path / "model.safetensors"
    safetensors.save_file(
        {name: np.ascontiguousarray(each) for name, each in tensors.items()}, path
    )
    return nm.load_checkpoint(path)


def values_of(experts):
    return np.stack([nm.dequantize(as_quantized(each), np.float64) for each in experts])


@pytest.mark.parametrize("from_file", (True, False))
def test_mxfp4_of_gpt_oss_is_read_with_gate_s_columns_before_up_s(tmp_path, from_file):
    tensors = gpt_oss()
    given = saved(tmp_path, tensors) if from_file else tensors
    gate_up, bias = nm.load_experts(given, f"{NAME}.gate_up_proj", return_bias=True)
    wanted = numbers(*(tensors[f"{NAME}.gate_up_proj_{each}"] for each in ("blocks", "scales")))
    assert gate_up.shape == (E, K, 2 * H)
    found = values_of(gate_up)
    assert np.array_equal(found[:, :, :H], wanted[:, :, 0::2])
    assert np.array_equal(found[:, :, H:], wanted[:, :, 1::2])
    of_file = tensors[f"{NAME}.gate_up_proj_bias"].astype(np.float32)
    wanted = np.concatenate([of_file[:, 0::2], of_file[:, 1::2]], axis=1).astype(np.float16)
    assert bias.dtype == np.float16 and np.array_equal(bias, wanted)
    down = nm.load_experts(given, f"{NAME}.down_proj")  # whose columns stay
    wanted = numbers(*(tensors[f"{NAME}.down_proj_{each}"] for each in ("blocks", "scales")))
    assert np.array_equal(values_of(down), wanted)


def test_a_layer_of_gpt_oss_is_what_its_model_computes():
    """``GptOssExperts`` of transformers, in float64."""
    tensors = gpt_oss()
    x = RNG.standard_normal((4, K)).astype(np.float16)
    routing = nm.route(RNG.standard_normal((4, E)).astype(np.float32), 2, normalize=True)
    wanted = np.zeros((4, K))
    whole = {
        part: numbers(tensors[f"{NAME}.{part}_blocks"], tensors[f"{NAME}.{part}_scales"])
        for part in ("gate_up_proj", "down_proj")
    }
    biases = {part: tensors[f"{NAME}.{part}_bias"].astype(np.float64) for part in whole}
    for token, (ids, weights) in enumerate(zip(routing.ids, routing.weights)):
        for expert, weight in zip(ids, weights):
            both = x[token] @ whole["gate_up_proj"][expert] + biases["gate_up_proj"][expert]
            gate, up = np.minimum(both[0::2], 7), np.clip(both[1::2], -7, 7)
            hidden = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
            row = hidden @ whole["down_proj"][expert] + biases["down_proj"][expert]
            wanted[token] += weight * row
    gate_up, gate_up_bias = nm.load_experts(tensors, f"{NAME}.gate_up_proj", return_bias=True)
    down, down_bias = nm.load_experts(tensors, f"{NAME}.down_proj", return_bias=True)
    options = {"gate_up_bias": gate_up_bias, "down_bias": down_bias, "backend": "reference"}
    y = nm.moe_mlp(x, gate_up, down, routing, activation="swiglu-oai", **options)
    assert np.abs(y - wanted).max() <= 4e-3 * np.abs(wanted).max()


@pytest.mark.thorough
def test_transformers_reads_the_same_numbers():
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("transformers.integrations.mxfp4")
    tensors = gpt_oss()
    parts = [tensors[f"{NAME}.down_proj_{each}"] for each in ("blocks", "scales")]
    theirs = module.convert_moe_packed_tensors(*map(torch.from_numpy, parts), dtype=torch.float32)
    assert np.array_equal(theirs.double().numpy(), numbers(*parts))


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("transposed", (False, True))
def test_fused_floats_are_quantised_expert_by_expert(tmp_path, transposed, interleaved):
    weights = RNG.standard_normal((E, K, 2 * H)).astype(np.float32)
    stored = weights if transposed else weights.transpose(0, 2, 1)
    checkpoint = saved(tmp_path, {f"{NAME}.gate_up_proj": stored})
    options = {"transposed": transposed, "interleaved": interleaved, "group_size": 32}
    found = nm.load_experts(checkpoint, f"{NAME}.gate_up_proj", **options)
    order = np.r_[0 : 2 * H : 2, 1 : 2 * H : 2] if interleaved else np.arange(2 * H)
    for expert, each in enumerate(found):
        wanted = nm.pack(nm.quantize(weights[expert][:, order], group_size=32))
        assert np.array_equal(each.qweight, wanted.qweight)
        assert np.array_equal(each.scales, wanted.scales)


@pytest.mark.parametrize("names", (("gate_proj", "up_proj"), ("w1", "w3")))
def test_float_layers_one_by_one_are_quantised_too(tmp_path, names):
    """Of Qwen3-MoE and of Mixtral, [n, k] each."""
    weights = {
        f"{NAME}.{expert}.{name}.weight": RNG.standard_normal((H, K)).astype(np.float32)
        for expert in range(E)
        for name in names
    }
    checkpoint = saved(tmp_path, weights)
    found = nm.load_experts(checkpoint, *(f"{NAME}.{{}}.{name}" for name in names), group_size=32)
    assert found.shape == (E, K, 2 * H)
    for expert, each in enumerate(found):
        parts = [weights[f"{NAME}.{expert}.{name}.weight"].T for name in names]
        whole = nm.quantize(np.concatenate(parts, axis=1), group_size=32)
        assert np.array_equal(each.qweight, nm.pack(whole).qweight)
    del weights[f"{NAME}.1.{names[1]}.weight"]
    with pytest.raises(KeyError, match=rf"no layer '{NAME}.1.{names[1]}' in the checkpoint"):
        nm.load_experts(weights, *(f"{NAME}.{{}}.{name}" for name in names))


GATE_UP = f"{NAME}.gate_up_proj"


@pytest.mark.parametrize(
    "change, options, error, match",
    (
        ({"_scales": None}, {}, KeyError, f"no tensor '{GATE_UP}_scales' in the checkpoint"),
        (
            {"_scales": np.zeros((E, 2 * H, 3), np.uint8)},
            {},
            ValueError,
            rf"tensor '{GATE_UP}_scales' has shape .* must be \(E, n, k/32\)=\(3, 192, 2\)",
        ),
        (
            {"_blocks": np.zeros((E, 2 * H, 2, 8), np.uint8)},
            {},
            ValueError,
            rf"tensor '{GATE_UP}_blocks' has shape .* must be \(E, n, k/32, 16\)",
        ),
        (
            {"_blocks": np.zeros((E, 2 * H, 2, 16), np.int8)},
            {},
            ValueError,
            f"tensor '{GATE_UP}_blocks' is int8, must be uint8",
        ),
        (
            {"_scales": np.full((E, 2 * H, 2), 255, np.uint8)},
            {},
            ValueError,
            f"layer '{GATE_UP}', expert 0: scales.*=255 must be finite",
        ),
        ({}, {"group_size": 32}, ValueError, f"layer '{GATE_UP}': quantization .* it is MXFP4"),
        (
            {"_bias": np.zeros((E, 7), np.float32)},
            {"return_bias": True},
            ValueError,
            rf"tensor '{GATE_UP}_bias' has shape \(3, 7\), must be \(E, n\)=\(3, 192\)",
        ),
        ({"_bias": None}, {"return_bias": True}, KeyError, f"no tensor '{GATE_UP}_bias'"),
        ({"_blocks": None}, {}, KeyError, f"no tensor '{GATE_UP}_blocks' or '{GATE_UP}'"),
        (
            {"_blocks": None, "": np.zeros((E, 2 * H, K), np.float32)},
            {"group_size": 48},
            ValueError,
            f"layer '{GATE_UP}', expert 0: .*group_size=48",
        ),
        (
            {"_blocks": None, "": np.zeros((2 * H, K), np.float32)},
            {},
            ValueError,
            rf"tensor '{GATE_UP}' has shape \(192, 64\), must be \(E, n, k\)",
        ),
    ),
)
def test_what_does_not_go_together_names_the_layer_and_the_rule(change, options, error, match):
    tensors = gpt_oss()
    for last, array in change.items():
        tensors.pop(GATE_UP + last, None)
        if array is not None:
            tensors[GATE_UP + last] = array
    with pytest.raises(error, match=match):
        nm.load_experts(tensors, GATE_UP, **options)


def test_a_fused_tensor_stands_alone():
    with pytest.raises(ValueError, match="must have one {}, .* or stand alone"):
        nm.load_experts(gpt_oss(), GATE_UP, f"{NAME}.down_proj")
    with pytest.raises(ValueError, match="return_bias must be left out: .* is no fused tensor"):
        nm.load_experts(gpt_oss(), f"{NAME}.{{}}.w1", return_bias=True)
