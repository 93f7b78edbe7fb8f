"""Contract under test: a mixture's layer on a GPU: right, moved, captured, compiled and
differentiated. All of it needs a GPU (``pytest --run-on cuda``) and torch."""

import copy

import pytest

import numba_marlin as nm

torch = pytest.importorskip("torch")
nmt = pytest.importorskip("numba_marlin.torch")

E, K, H, TOP = 8, 512, 256, 2


@pytest.fixture(autouse=True)
def need_gpu(run_on):
    if run_on != "cuda":
        pytest.skip("needs a GPU: run it with --run-on cuda")


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mixture(kind="int4", activation="silu"):
    options = {"group_size": 128} if kind == "int4" else {"format": kind}
    torch.manual_seed(0)
    router = torch.nn.Linear(K, E, bias=False)
    experts = nmt.Experts.from_float(
        drawn(E, K, 2 * H) / 16,
        drawn(E, H, K) / 16,
        activation=activation,
        gate_up_bias=drawn(E, 2 * H),
        down_bias=drawn(E, K),
        **options,
    )
    return nmt.Mixture(router, experts, TOP).half()


@pytest.mark.parametrize("kind", ("int4", "mxfp4", "nvfp4"))
@pytest.mark.parametrize("activation", ("silu", "swiglu-oai"))
@pytest.mark.parametrize("m", (1, 7, 300))
def test_it_is_moe_mlp_and_near_the_reference(kind, activation, m):
    net = mixture(kind, activation)
    there = copy.deepcopy(net).cuda()
    x = drawn(m, K).half()
    routing = nm.route(net.router(x), TOP, normalize=True)
    ids, weights = routing.ids, routing.weights.detach()
    with torch.no_grad():
        wanted = net.experts(x, ids, weights)
        found = there.experts(x.cuda(), ids.cuda(), weights.cuda())
        experts = there.experts
        same = nm.moe_mlp(
            x.cuda(),
            experts.gate_up.weight,
            experts.down.weight,
            nm.Routing.of(ids.cuda(), weights.cuda(), E),
            activation=activation,
            gate_up_bias=experts.gate_up.bias,
            down_bias=experts.down.bias,
        )
    assert torch.equal(found, same)
    operator = there.experts(x.cuda().requires_grad_(), ids.cuda(), weights.cuda())
    assert torch.equal(operator, found)
    # roundings of two products and an activation, to 16 bits
    assert (found.cpu().double() - wanted.double()).norm() < 2**-8 * wanted.double().norm()


def test_gradients_are_near_those_of_the_host():
    net, x = mixture(), drawn(9, K).half()
    found = []
    for device in ("cpu", "cuda"):
        own, mine = copy.deepcopy(net).to(device), x.detach().to(device).requires_grad_()
        own(mine).backward(drawn(9, K, seed=3).half().to(device))
        found.append([mine.grad, own.router.weight.grad, own.experts.gate_up.bias.grad])
    for host, device in zip(*found):
        assert (device.cpu().double() - host.double()).norm() < 2**-6 * host.double().norm()


def test_a_captured_and_a_compiled_layer():
    net, x = mixture().cuda().requires_grad_(False), drawn(4, K).half().cuda()
    wanted = net(x)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), wanted)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        net(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = net(x)
    other = drawn(4, K, seed=7).half().cuda()
    expected = net(other)
    x.copy_(other)
    graph.replay()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("name", ("mixtral", "qwen3_moe", "gpt_oss"))
def test_a_mixture_of_transformers_generates(tmp_path, name):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers' device_map")
    from tests.torch_room import models

    getattr(models, name)().save_pretrained(tmp_path / "f")
    options = models.MXFP4 if name == "gpt_oss" else models.GROUP
    loaded = nmt.from_pretrained(tmp_path / "f", nmt.Config(**options))
    before = models.logits(loaded)
    found = models.logits(loaded.cuda(), models.TOKENS.cuda()).cpu()
    assert (found - before).norm() < 2**-4 * before.norm()
    words = loaded.generate(models.TOKENS.cuda(), max_new_tokens=4, do_sample=False)
    assert words.shape == (1, 24)
