"""Contract under test: the layer of a mixture of experts in torch gives what plain torch gives with
the dequantised weights, also compiled and differentiated. Skipped without torch."""

import io

import numpy as np
import pytest

import numba_marlin as nm

torch = pytest.importorskip("torch")
nmt = pytest.importorskip("numba_marlin.torch")
from torch.nn import functional  # noqa: E402  after the skip

from numba_marlin.torch import expert_operators as operators  # noqa: E402

E, K, H, TOP = 4, 64, 32, 2
KINDS = {"int4": {"group_size": 32}, "mxfp4": {"format": "mxfp4"}, "nvfp4": {"format": "nvfp4"}}


def tensor(*shape, dtype=torch.float16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def numbers():
    return tensor(E, K, 2 * H, dtype=torch.float32) / 8, tensor(E, H, K, dtype=torch.float32) / 8


def layer(kind="int4", bias=False, **options):
    biases = {"gate_up_bias": tensor(E, 2 * H), "down_bias": tensor(E, K)} if bias else {}
    return nmt.Experts.from_float(*numbers(), **biases, **KINDS[kind], **options)


def routed(m=6, seed=3):
    """Expert 3 has no token."""
    ids, weights = nm.route(tensor(m, E - 1, seed=seed), TOP).ids, torch.rand(m, TOP)
    return ids, weights


def plain(experts, x, ids, weights):
    """In float64, token after token."""
    w1, w2 = (
        [torch.from_numpy(nm.dequantize(each, "float64")) for each in bank.weight]
        for bank in (experts.gate_up, experts.down)
    )
    b1, b2 = (bank.bias for bank in (experts.gate_up, experts.down))
    rows = []
    for token, (chosen, shares) in enumerate(zip(ids.tolist(), weights.double())):
        total = 0
        for e, share in zip(chosen, shares):
            h = x[token].double() @ w1[e] + (0 if b1 is None else b1[e].double())
            gate, up = h.chunk(2)
            if experts.activation == "silu":
                h = functional.silu(gate) * up
            else:
                gate, up = gate.clamp(max=7), up.clamp(-7, 7)
                h = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            total = total + share * (h @ w2[e] + (0 if b2 is None else b2[e].double()))
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["silu", "swiglu-oai"])
def test_a_layer_gives_what_plain_torch_gives(kind, activation):
    experts, (ids, weights) = layer(kind, bias=kind == "mxfp4", activation=activation), routed()
    for dtype, eps in ((torch.float16, 2**-10), (torch.float64, 1e-12)):
        x = tensor(6, K, dtype=dtype)
        found, wanted = experts(x, ids, weights), plain(experts, x, ids, weights)
        assert found.dtype == dtype and found.shape == (6, K)
        # three roundings, to 16 bits
        assert (found - wanted).norm() < 2 * eps * wanted.norm()
    x = tensor(6, K)
    expected = nm.moe_mlp(
        x.numpy(),
        experts.gate_up.weight.to("cpu"),
        experts.down.weight.to("cpu"),
        nm.Routing.of(ids.numpy(), weights.numpy(), E),
        activation=activation,
        backend="reference",
        **{
            f"{name}_bias": each.bias.detach().numpy()
            for name, each in (("gate_up", experts.gate_up), ("down", experts.down))
            if each.bias is not None
        },
    )
    assert np.array_equal(experts(x, ids, weights).detach().numpy(), expected)
    assert experts(x[:0], ids[:0], weights[:0]).shape == (0, K)


@pytest.mark.thorough
def test_the_same_layer_on_the_machine():
    experts, (ids, weights), x = layer(), routed(), tensor(6, K)
    with nmt.cpu_backend("emulator"):
        found = experts(x, ids, weights)
    wanted = plain(experts, x, ids, weights)
    assert (found - wanted).norm() < 2**-9 * wanted.norm()


def given(experts, x, ids, weights):
    up, down = experts.gate_up, experts.down
    signatures = up.signature, down.signature
    tail = (experts.activation, False, 0, E)
    return (x, up.arrays, down.arrays, ids, weights, up.bias, down.bias, *signatures, *tail)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grad", [False, True])
def test_torch_finds_nothing_wrong_with_the_operators(kind, grad):
    experts, (ids, weights) = layer(kind, bias=kind == "mxfp4"), routed()
    x = tensor(6, K).requires_grad_(grad)
    torch.library.opcheck(torch.ops.numba_marlin.moe_mlp.default, given(experts, x, ids, weights))
    up = experts.gate_up
    arguments = x, up.arrays, ids, weights, up.bias, up.signature, grad, False, 0, E
    torch.library.opcheck(torch.ops.numba_marlin.moe_matmul.default, arguments)


@pytest.mark.parametrize("activation", ["silu", "swiglu-oai"])
def test_gradients_are_those_of_plain_torch(activation):
    """The same sums in float64, but for the routing's weights, which kernels take in fp32."""
    experts, (ids, weights) = layer(bias=True, activation=activation).double(), routed()

    def gradients(call):
        x = tensor(6, K, dtype=torch.float64).requires_grad_()
        shares = weights.clone().requires_grad_()
        experts.zero_grad()
        call(x, ids, shares).backward(tensor(6, K, dtype=torch.float64, seed=9))
        biases = experts.gate_up.bias.grad, experts.down.bias.grad
        return [each.double().clone() for each in (x.grad, shares.grad, *biases)]

    found = gradients(experts)
    wanted = gradients(lambda *call: plain(experts, *call))
    for one, other in zip(found, wanted):
        assert other.any() and torch.allclose(one, other, rtol=1e-6, atol=1e-6)


def test_gradients_of_one_product():
    experts, (ids, weights) = layer(), routed()
    up = experts.gate_up
    for shape in ((6, K), (6, TOP, K)):
        x = tensor(*shape, dtype=torch.float64).requires_grad_()
        call = up.arrays, ids, weights, None, up.signature, False, False, 0, E
        y = torch.ops.numba_marlin.moe_matmul(x, *call)
        grad = tensor(6, TOP, 2 * H, dtype=torch.float64)
        y.backward(grad)
        w = [torch.from_numpy(nm.dequantize(each, "float64")) for each in up.weight]
        wanted = torch.stack(
            [torch.stack([g @ w[e].t() for g, e in zip(gs, es)]) for gs, es in zip(grad, ids)]
        )
        wanted = wanted.sum(1) if len(shape) == 2 else wanted
        assert torch.allclose(x.grad, wanted, rtol=1e-12)


def mixture(**options):
    router, shared = torch.nn.Linear(K, E, bias=False), torch.nn.Linear(K, K)
    return nmt.Mixture(router, layer(**options), TOP, shared=shared).half()


def test_a_mixture_is_a_router_experts_and_a_shared_expert():
    net, x = mixture(), tensor(2, 3, K)
    y = net(x)
    rows = x.reshape(-1, K)
    probabilities = net.router(rows).float().softmax(-1)
    best = probabilities.topk(TOP)
    shares = best.values / best.values.sum(-1, keepdim=True)
    wanted = plain(net.experts, rows, best.indices, shares) + net.shared(rows).double()
    assert y.shape == x.shape and (y.reshape(-1, K) - wanted).norm() < 2**-9 * wanted.norm()
    y.float().sum().backward()
    assert net.router.weight.grad.any() and net.shared.weight.grad.any()
    assert "top_k=2, normalize=True" in repr(net) and "PackedExperts of 4" in repr(net)


@pytest.mark.thorough
def test_torch_compile_breaks_no_graph():
    net, x = mixture(), tensor(5, K)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), net(x))
    one, other = (tensor(5, K).requires_grad_() for _ in range(2))
    net(one).sum().backward()
    compiled(other).sum().backward()
    assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_comes_back(kind):
    experts, (ids, weights), x = layer(kind, bias=True).half(), routed(), tensor(6, K)
    file = io.BytesIO()
    torch.save(experts.state_dict(), file)
    file.seek(0)
    up, down = (each.flip(0) for each in numbers())
    biases = {"gate_up_bias": torch.zeros(E, 2 * H), "down_bias": torch.zeros(E, K)}
    other = nmt.Experts.from_float(up, down, **biases, **KINDS[kind]).half()
    assert not torch.equal(other(x, ids, weights), experts(x, ids, weights))
    if kind == "nvfp4":  # the global scales are of each expert, and of its signature
        with pytest.raises(ValueError, match="must be of this layer's"):
            other.load_state_dict(torch.load(file))
        return
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x, ids, weights), experts(x, ids, weights))
    wide = nmt.Experts.from_float(
        tensor(E, K, 4 * H), tensor(E, 2 * H, K), **biases_of(2 * H), **KINDS[kind]
    )
    with pytest.raises((ValueError, RuntimeError), match="size mismatch|must be of this layer's"):
        wide.load_state_dict(experts.state_dict())


def biases_of(h):
    return {"gate_up_bias": torch.zeros(E, 2 * h), "down_bias": torch.zeros(E, K)}


def test_experts_of_other_ranks_add_nothing():
    """Expert parallelism: the sum of the ranks' results is the whole layer's."""
    experts, (ids, weights), x = layer(bias=True), routed(), tensor(6, K, dtype=torch.float64)
    total = 0
    for first in (0, 3):
        count = 3 if first == 0 else 1
        up, down = (each.weight.taken(first, count) for each in (experts.gate_up, experts.down))
        these = slice(first, first + count)
        biases = [each.bias[these].detach() for each in (experts.gate_up, experts.down)]
        part = nmt.Experts(up, down, gate_up_bias=biases[0], down_bias=biases[1])
        part.first, part.whole = first, E
        total = total + part(x, ids, weights)
    assert torch.allclose(total, experts(x, ids, weights), rtol=1e-6)


def test_wrong_arguments_are_refused_by_name():
    experts, (ids, weights), x = layer(), routed(), tensor(6, K)
    up, down = experts.gate_up.weight, experts.down.weight
    with pytest.raises(TypeError, match="gate_up is a Tensor, must be a PackedExperts"):
        nmt.Experts(numbers()[0], down)
    with pytest.raises(ValueError, match="activation='gelu' must be one of silu, swiglu-oai"):
        nmt.Experts(up, down, activation="gelu")
    with pytest.raises(ValueError, match=r"down.shape=\(4, 64, 64\) must be \(E, h, k\)"):
        nmt.Experts(up, up)
    with pytest.raises(ValueError, match=r"bias.shape=\(4, 8\) must be \(experts, n\)=\(4, 64\)"):
        nmt.Experts(up, down, down_bias=torch.zeros(4, 8))
    with pytest.raises(ValueError, match=r"down\[2\]: .*"):
        bad = numbers()[1]
        bad[2, 0, 0] = torch.nan
        nmt.Experts.from_float(numbers()[0], bad, group_size=32)
    with pytest.raises(ValueError, match=r"gate_up is torch.float32 \(4, 64\), must be floats"):
        nmt.Experts.from_float(numbers()[0][:, :, 0], numbers()[1], group_size=32)
    with pytest.raises(ValueError, match=r"ids\[0\] names expert 1 twice"):
        experts(x, torch.ones_like(ids), weights)
    with pytest.raises(ValueError, match="must come from .*expert_operators.signature_of"):
        operators.parsed("PackedExperts os.system('x')")
    with pytest.raises(TypeError, match="Mixture takes no topk"):
        nmt.Mixture(torch.nn.Linear(K, E), experts, TOP, topk=2)
    with pytest.raises(ValueError, match="top_k=5 must be 1 to 4"):
        nmt.Mixture(torch.nn.Linear(K, E), experts, 5)


def test_no_token_at_all_goes_forward_and_back():
    """As on a rank whose experts' tokens are elsewhere."""
    experts = layer(bias=True)
    mixture = nmt.Mixture(torch.nn.Linear(K, E), experts, TOP)
    for shape in ((0, K), (2, 0, K)):
        x = torch.zeros(shape, requires_grad=True)
        y = mixture(x)
        assert y.shape == shape
        mixture.zero_grad()
        y.sum().backward()
        assert x.grad.shape == shape
        assert not any(each.grad.any() for each in mixture.parameters())


def test_a_second_derivative_is_refused_and_not_left_out():
    experts, (ids, weights) = layer().double(), routed()
    x = tensor(6, K, dtype=torch.float64).requires_grad_()
    y = experts(x, ids, weights).square()
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
