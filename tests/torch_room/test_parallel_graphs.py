"""Contract under test: parallel layers in torch.compile and in CUDA graphs. Processes as in
test_parallel.py. Skipped without torch."""

import pytest

torch = pytest.importorskip("torch")
nmt = pytest.importorskip("numba_marlin.torch")
from torch import nn  # noqa: E402  after the skip

from tests.torch_room.layers import K, here, tensor, weight  # noqa: E402


def compiled():
    p = weight("ordered", K, 64)
    net = here(
        nn.Sequential(
            nmt.ColumnParallelLinear.from_packed(weight(k=64, n=K)),
            nn.ReLU(),
            nmt.RowParallelLinear.from_packed(p, tensor(64)),
        )
    )
    x = here(tensor(3, 64))
    with torch.no_grad():
        expected = net(x)
        found = torch.compile(net, fullgraph=True, backend="aot_eager")(x)
    whole = x.clone().requires_grad_()
    torch.compile(net, fullgraph=True, backend="aot_eager")(whole).sum().backward()
    plain = x.clone().requires_grad_()
    net(plain).sum().backward()
    return torch.equal(found, expected), torch.equal(whole.grad, plain.grad)


@pytest.mark.thorough
def test_torch_compile_breaks_no_graph(ranks):
    assert ranks(compiled) == [(True, True)] * ranks.world


def captured():
    """A pair of layers in a CUDA graph gives what it gives outside."""
    net = here(
        nn.Sequential(
            nmt.ColumnParallelLinear.from_packed(weight(k=64, n=K)),
            nmt.RowParallelLinear.from_packed(weight(k=K, n=64)),
        )
    )
    x = here(tensor(3, 64))
    with torch.no_grad():
        with torch.cuda.stream(torch.cuda.Stream()):
            net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # NCCL's own thread asks CUDA for its events meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            y = net(x)
        x.copy_(tensor(3, 64, seed=4))
        graph.replay()
        return torch.equal(y, net(x))


@pytest.mark.thorough
def test_a_cuda_graph_has_the_sums_too(ranks, run_on):
    if run_on != "cuda":
        pytest.skip("needs GPUs: run it with --run-on cuda")
    assert ranks(captured) == [True] * ranks.world
