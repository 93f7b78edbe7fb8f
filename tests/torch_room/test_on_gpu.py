"""Contract under test: the operators on a GPU: right, repeated, moved, captured, compiled and
differentiated. All of it needs a GPU (``pytest --run-on cuda``) and torch."""

import copy
from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm

torch = pytest.importorskip("torch")
nmt = pytest.importorskip("numba_marlin.torch")
from torch import nn  # noqa: E402  after the skip

from numba_marlin.execution import packing, repeat  # noqa: E402
from numba_marlin.kernels.packing import PACK  # noqa: E402

K, N = 512, 264
KINDS = ("int4", "int8", "zeros", "ordered", "nvfp4", "mxfp4")


@pytest.fixture(autouse=True)
def need_gpu(run_on):
    if run_on != "cuda":
        pytest.skip("needs a GPU: run it with --run-on cuda")


def weight(kind="int4", seed=5):
    w = np.random.default_rng(seed).standard_normal((K, N), np.float32)
    if kind in ("nvfp4", "mxfp4"):
        return nm.pack(nm.quantize(w, format=kind))
    bits, symmetric = (8 if kind == "int8" else 4), kind != "zeros"
    q = nm.quantize(w, bits=bits, group_size=128, symmetric=symmetric)
    if kind == "ordered":
        q = replace(q, permutation=np.random.default_rng(1).permutation(K).astype(np.int32))
    return nm.pack(q)


def x_of(m=3, dtype=torch.float16, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn((m, K), generator=g).to(dtype).cuda()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", (1, 3, 200))
def test_a_product_is_that_of_matmul(kind, m):
    p, x = weight(kind), x_of(m)
    there, bias = p.to("cuda", "torch"), torch.arange(N, device="cuda").half()
    expected = nm.matmul(x, p, bias=bias)
    for _ in range(3):
        assert torch.equal(nmt.matmul(x, there, bias), expected)
    assert torch.equal(nmt.matmul(x, there), nm.matmul(x, p))
    assert nmt.matmul(x[:0], there).shape == (0, N)


def test_a_launch_is_repeated_for_other_memory():
    """What is kept of a call is its launch; all addresses are passed anew."""
    first, second = (weight(seed=seed).to("cuda", "torch") for seed in (1, 2))
    x, y = x_of(seed=1), x_of(seed=2)
    nmt.matmul(x, first)
    kept = len(repeat._calls)
    for p in (first, second):
        for each in (x, y):
            assert torch.equal(nmt.matmul(each, p), nm.matmul(each, p.to("cpu")))
    assert len(repeat._calls) <= kept + 2  # those of nm.matmul's two weights


def test_no_weight_is_kept_alive():
    p = weight().to("cuda", "torch")
    x = x_of()
    nmt.matmul(x, p)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    del p
    assert torch.cuda.memory_allocated() < before - K * N // 4


def test_places_that_differ_are_refused():
    p, x = weight(), x_of()
    with pytest.raises(ValueError, match="p is on cpu, must be where x is: cuda:0"):
        nmt.matmul(x, p)
    with pytest.raises(ValueError, match="p is on cuda:0, must be where x is: cpu"):
        nmt.matmul(x.cpu(), p.to("cuda", "torch"))


@pytest.mark.parametrize("kind", KINDS)
def test_dequantize_is_what_the_kernels_multiply(kind):
    p = weight(kind)
    found = nmt.dequantize(p.to("cuda", "torch"))
    assert np.array_equal(found.cpu().numpy(), nm.dequantize(p, "float16"))


def test_the_gradient_of_x():
    p = weight().to("cuda", "torch")
    x = x_of().requires_grad_()
    grad = torch.randn(3, N, device="cuda").half()
    nmt.matmul(x, p).backward(grad)
    assert torch.equal(x.grad, grad @ nmt.dequantize(p).t())


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(K, 1024), nn.GELU(), nn.Linear(1024, K, bias=False))


def test_a_model_is_moved_compiled_and_captured():
    net = nmt.quantize_(model(), group_size=128).half().cuda()
    x = x_of(16)
    with torch.no_grad():
        expected = net(x)
        assert torch.allclose(expected.cpu().float(), net.cpu().float()(x.cpu().float()), atol=0.02)
        net = net.half().cuda()
        assert torch.equal(net(x), expected)
        compiled = torch.compile(net, fullgraph=True)
        assert torch.allclose(compiled(x), expected, rtol=1e-2, atol=1e-2)
        with torch.cuda.stream(torch.cuda.Stream()):
            net(x)
        torch.cuda.synchronize()
        graph, given = torch.cuda.CUDAGraph(), x.clone()
        with torch.cuda.graph(graph):
            y = net(given)
        given.copy_(x_of(16, seed=4))
        graph.replay()
        assert torch.equal(y, net(given))


def test_compiled_for_lower_overhead():
    net = copy.deepcopy(nmt.quantize_(model(), group_size=128)).half().cuda()
    compiled = torch.compile(net, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for seed in range(4):
            x = x_of(4, seed=seed)
            assert torch.allclose(compiled(x), net(x), rtol=1e-2, atol=1e-2)


def test_a_call_beside_the_dispatcher_is_the_operators():
    """The way of a call without gradients: same bits, and other memory of the weight is noticed."""
    for kind in KINDS:
        layer = nmt.Linear.from_packed(weight(kind).to("cuda", "torch"), torch.ones(N))
        layer = layer.cuda().half()
        for shape in ((3, K), (2, 5, K), (0, K), (1, 0, K)):
            x = torch.randn(shape, device="cuda").half()
            through = layer(x.clone().requires_grad_())
            with torch.no_grad():
                for _ in range(2):
                    y = layer(x)
                    assert torch.equal(y, through) and y.shape == (*shape[:-1], N), (kind, shape)
    x = x_of()
    layer = nmt.Linear.from_packed(weight().to("cuda", "torch"))
    with torch.no_grad():
        layer(x)
        layer.load_state_dict(nmt.Linear.from_packed(weight(seed=8)).state_dict())
        assert torch.equal(layer(x), nm.matmul(x, weight(seed=8)))
        layer.qweight = weight(seed=9).to("cuda", "torch").qweight
        layer.scales = weight(seed=9).to("cuda", "torch").scales
        assert torch.equal(layer(x), nm.matmul(x, weight(seed=9)))
        other = copy.deepcopy(layer)
        other.qweight.zero_()
        assert torch.equal(layer(x), nm.matmul(x, weight(seed=9)))
        before = torch.cuda.memory_allocated()
        layer.cpu()
        other.cpu()
        assert torch.cuda.memory_allocated() < before


def test_transforms_see_the_product():
    from torch.func import vmap

    layer = nmt.Linear.from_packed(weight().to("cuda", "torch"))
    with torch.no_grad():
        x = torch.randn(4, 3, K, device="cuda").half()
        assert torch.equal(torch.stack([layer(each) for each in x]), layer(x))
        try:
            found = vmap(layer)(x)
        except RuntimeError as error:  # no batching rule: said, and nothing wrong is computed
            assert "vmap" in str(error) or "Batching" in str(error)
        else:
            assert torch.equal(found, layer(x))


def test_autocast_multiplies_in_16_bits():
    layer = nmt.Linear.from_linear(nn.Linear(K, N), group_size=128).cuda()
    x = torch.randn(2, K, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        assert layer(x).dtype == torch.float16
    with pytest.raises(TypeError, match="x.dtype=float32 must be float16 or bfloat16"):
        layer(x)


def test_operators_pass_torchs_own_check():
    from numba_marlin.torch import operators

    for kind in ("int4", "ordered", "nvfp4"):
        p = weight(kind).to("cuda", "torch")
        given = (x_of(), *operators.tensors_of(p), None, operators.signature_of(p), False)
        torch.library.opcheck(torch.ops.numba_marlin.matmul.default, given)


def test_a_layer_on_a_gpu_is_packed_there(monkeypatch):
    ran, real = [], packing.enqueue
    monkeypatch.setattr(packing, "enqueue", lambda *given: (ran.append(given[0]), real(*given)))
    layer = nn.Linear(1024, 1032, dtype=torch.float16)
    here = nmt.Linear.from_linear(layer)
    assert not ran
    there = nmt.Linear.from_linear(layer.cuda())
    assert ran == [PACK] and there.qweight.device.type == "cuda"
    for name, tensor in here.state_dict().items():
        assert torch.equal(there.state_dict()[name].cpu(), tensor), name
