"""Contract under test: a quantised Linear is a module like any other, and a model is quantised as a
whole or not at all. Skipped without torch."""

import copy

import numpy as np
import pytest

import numba_marlin as nm

torch = pytest.importorskip("torch")
nmt = pytest.importorskip("numba_marlin.torch")
from torch import nn  # noqa: E402  after the skip

OPTIONS = {"group_size": 32}


def linear(k=64, n=72, bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Linear(k, n, bias=bias).to(dtype)


def model():
    torch.manual_seed(1)
    return nn.ModuleDict(
        {
            "first": nn.Linear(64, 128),
            "norm": nn.LayerNorm(128),
            "inner": nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 64, bias=False)),
            "lm_head": nn.Linear(64, 40),
        }
    )


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
def test_from_linear_is_quantize_and_pack(dtype):
    pytest.importorskip("ml_dtypes")
    layer = linear(dtype=dtype)
    made = nmt.Linear.from_linear(layer, **OPTIONS)
    q = nm.quantize(layer.weight.detach().float().t().contiguous().numpy(), **OPTIONS)
    assert np.array_equal(nm.unpack(made.weight).codes, q.codes)
    assert torch.equal(made.bias, layer.bias)
    x = torch.randn(2, 3, 64).to(dtype)
    y = made(x)
    assert y.shape == (2, 3, 72) and y.dtype == dtype
    dense = x @ torch.from_numpy(nm.dequantize(q, "float32")).to(dtype) + layer.bias
    assert torch.allclose(y, dense, rtol=2e-2, atol=2e-2)


def test_a_state_dict_comes_back():
    made, other = (nmt.Linear.from_linear(linear(), **OPTIONS) for _ in range(2))
    with torch.no_grad():
        other.qweight.zero_()
        other.bias.zero_()
    other.load_state_dict(made.state_dict())
    assert torch.equal(other.qweight, made.qweight) and torch.equal(other.bias, made.bias)
    narrower = nmt.Linear.from_linear(linear(), group_size=64)
    with pytest.raises((ValueError, RuntimeError), match="group_size|size mismatch"):
        narrower.load_state_dict(made.state_dict())


def test_the_state_goes_through_a_file_without_pickled_code(tmp_path):
    made = nmt.Linear.from_linear(linear(), **OPTIONS)
    torch.save(made.state_dict(), tmp_path / "layer.pt")
    state = torch.load(tmp_path / "layer.pt", weights_only=True)
    other = copy.deepcopy(made)
    other.load_state_dict(state)
    assert other.signature == made.signature


def test_half_changes_no_scales():
    pytest.importorskip("ml_dtypes")
    q = nm.quantize(np.random.default_rng(0).standard_normal((64, 64)), group_size=32)
    scales = torch.from_numpy(q.scales).bfloat16()
    p = nm.pack(q)
    from dataclasses import replace

    packed = replace(p, qweight=torch.from_numpy(p.qweight), scales=scales)
    layer = nmt.Linear.from_packed(packed, torch.zeros(64)).half()
    assert layer.scales.dtype == torch.bfloat16 and layer.bias.dtype == torch.float16
    assert layer.weight.scale_dtype == "bfloat16"


def test_autocast_multiplies_in_its_type():
    pytest.importorskip("ml_dtypes")
    layer, x = nmt.Linear.from_linear(linear(), **OPTIONS), torch.randn(2, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, layer.bfloat16()(x.bfloat16()))


def test_it_says_what_it_is():
    said = repr(nmt.Linear.from_linear(linear(), **OPTIONS))
    for word in ("k=64, n=72", "4 bits", "groups of 32", "on the host", "bias"):
        assert word in said


def test_gradients_reach_what_is_trained_around_it():
    """LoRA: the base is frozen, two thin matrices are not."""
    base = nmt.Linear.from_linear(linear(bias=False), **OPTIONS)
    down, up = nn.Linear(64, 4, bias=False), nn.Linear(4, 72, bias=False)
    before = nn.Linear(64, 64)
    hidden = before(torch.randn(3, 64))
    (base(hidden) + up(down(hidden))).square().sum().backward()
    for layer in (before, down, up):
        assert layer.weight.grad.abs().sum() > 0
    assert not list(base.parameters())


# ---- a model


def test_every_linear_layer_but_those_skipped_is_replaced():
    net, seen = model(), []
    done = nmt.quantize_(net, progress=lambda *told: seen.append(told), **OPTIONS)
    assert done is net
    kinds = {name: type(layer).__module__ for name, layer in net.named_modules()}
    assert kinds["first"] == kinds["inner.0"] == kinds["inner.2"] == "numba_marlin.torch.linear"
    assert kinds["lm_head"] == "torch.nn.modules.linear"
    assert seen == [(1, 3, "first"), (2, 3, "inner.0"), (3, 3, "inner.2")]


def test_patterns_name_whole_names_and_last_parts():
    net = nmt.quantize_(model(), skip=["inner.*", "lm_head"], **OPTIONS)
    assert isinstance(net["first"], nmt.Linear) and type(net["inner"][0]) is nn.Linear


def test_a_shared_weight_stays_shared():
    net = model()
    net["again"] = net["first"]
    net["tied"] = nn.Linear(64, 128)
    net["tied"].weight = net["first"].weight
    nmt.quantize_(net, **OPTIONS)
    assert net["again"] is net["first"] and net["tied"].qweight is net["first"].qweight
    # the bias of each is its own
    assert not torch.equal(net["tied"].bias, net["first"].bias)


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda net: setattr(net["inner"], "2", nn.Linear(64, 20)), "layer 'inner.2': n=20"),
        (lambda net: net["inner"][0].weight.data.fill_(float("nan")), "layer 'inner.0'"),
        (lambda net: net["inner"][0].to("meta"), "layer 'inner.0': linear.weight is on the meta"),
    ],
)
def test_a_layer_that_cannot_be_packed_leaves_the_model_as_it_was(spoil, message):
    net = model()
    spoil(net)
    before = dict(net.named_modules())
    with pytest.raises(ValueError, match=message):
        nmt.quantize_(net, **OPTIONS)
    after = dict(net.named_modules())
    assert before.keys() == after.keys() and all(before[name] is after[name] for name in before)


def test_gptq_takes_the_hessians_of_calibrate():
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))
    batches = [torch.randn(128, 64) @ torch.randn(64, 64) for _ in range(2)]
    plain = nmt.quantize_(copy.deepcopy(net), **OPTIONS)
    hessians = nm.calibrate(net, batches)
    fitted = nmt.quantize_(copy.deepcopy(net), method="gptq", hessians=hessians, **OPTIONS)
    error = [float((each(batches[0]) - net(batches[0])).norm()) for each in (fitted, plain)]
    assert error[0] < error[1]


def test_nothing_to_quantise_is_said():
    with pytest.raises(ValueError, match="has no torch.nn.Linear beyond skip"):
        nmt.quantize_(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match="cannot be replaced in place"):
        nmt.quantize_(linear(), **OPTIONS)
    with pytest.raises(ValueError, match="layer 'first' has no Hessian"):
        nmt.quantize_(model(), method="gptq", hessians={}, **OPTIONS)


def test_gptq_with_hessians_is_that_of_each_layer():
    pytest.importorskip("scipy")
    net, inputs = model(), torch.randn(64, 64)
    hessians = nm.calibrate(net["inner"][2], [inputs])
    hessian = next(iter(hessians.values()))
    kept = net["inner"][2].weight.detach().t().contiguous().numpy()
    nmt.quantize_(
        net,
        "gptq",
        ["first", "0", "lm_head"],
        hessians={"inner.2": hessian},
        act_order=True,
        **OPTIONS,
    )
    expected = nm.quantize(kept, method="gptq", calibration=hessian, act_order=True, **OPTIONS)
    found = nm.unpack(net["inner"][2].weight)
    assert np.array_equal(found.codes, expected.codes)
    assert np.array_equal(found.permutation, expected.permutation)
