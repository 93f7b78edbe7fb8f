"""Contract under test: experts over the ranks of a group are the whole ones, and the same on all
ranks. Processes as in test_parallel.py, and four. Skipped without torch."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nmt = pytest.importorskip("numba_marlin.torch")
from torch import nn  # noqa: E402  after the skip

from tests.torch_room.layers import here, numbers, rank, tensor  # noqa: E402

E, K, H, TOP = 12, 64, 192, 3


class Block(nn.Module):
    def __init__(self, bias, kind):
        super().__init__()
        w = tensor(E, K, 2 * H, dtype=torch.float32), tensor(E, H, K, dtype=torch.float32)
        more = {"gate_up_bias": tensor(E, 2 * H), "down_bias": tensor(E, K)} if bias else {}
        options = {"group_size": 32} if kind == "int4" else {"format": kind}
        experts = nmt.Experts.from_float(*(each / 8 for each in w), **more, **options)
        torch.manual_seed(0)
        self.mlp = nmt.Mixture(nn.Linear(K, E, bias=False), experts, TOP)

    def forward(self, x):
        return self.mlp(x)


def block(bias=False, kind="int4"):
    return Block(bias, kind).double()


PLANS = {each: {"mlp.experts": each} for each in ("experts", "experts_colwise")}


@pytest.mark.parametrize("style", PLANS)
def test_a_group_of_one_has_all_of_them(alone, style):
    net, x = block(bias=True), tensor(5, K, dtype=torch.float64)
    before = net(x)
    nmt.parallelize_(net, PLANS[style])
    assert isinstance(net.mlp.experts, nmt.ParallelExperts) and torch.equal(net(x), before)
    with pytest.raises(ValueError, match="it is a ParallelExperts already, must be a whole layer"):
        nmt.parallelize_(net, PLANS[style])


def test_what_cannot_be_divided_leaves_the_model_as_it_was(alone):
    for plan, sizes, kind, message in (
        ({"mlp.router": "experts"}, {}, TypeError, "layer 'mlp.router': .*must be a .*Experts"),
        ({"mlp.experts": "colwise"}, {}, TypeError, "layer 'mlp.experts': .*must be a .*Linear"),
        (PLANS["experts"], {"experts": (6, 6)}, ValueError, r"'mlp.experts': sizes=\(6, 6\) must"),
    ):
        net = block()
        before = dict(net.named_modules())
        with pytest.raises(kind, match=message):
            nmt.parallelize_(net, plan, sizes=sizes)
        after = dict(net.named_modules())
        assert before.keys() == after.keys() and all(before[n] is after[n] for n in before)
    net = block(bias=True)
    net.mlp.experts.down.to("meta")
    with pytest.raises(ValueError, match="layer 'mlp.experts': down.qweight is on meta, must"):
        nmt.parallelize_(net, PLANS["experts"])


def whole_and_divided(style, bias, kind, sizes):
    """-> (results and gradients of the whole block, of the divided one; bytes; a refused state)"""
    net = here(block(bias, kind))
    divided = nmt.parallelize_(copy.deepcopy(net), PLANS[style], sizes=sizes)
    found = []
    for each in (net, divided):
        x = here(tensor(7, K, dtype=torch.float64)).requires_grad_()
        y = each(x)
        y.backward(here(tensor(7, K, dtype=torch.float64, seed=2)))
        found.append([numbers(z) for z in (y, x.grad, each.mlp.router.weight.grad)])
    held = [sum(each.nbytes for each in model.buffers()) for model in (net, divided)]
    state = divided.state_dict()
    key = "mlp.experts.down._extra_state"
    text = bytes(state[key].tolist()).decode().replace(f"rank {rank()} of", "rank 7 of")
    state[key] = torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8)
    try:
        divided.load_state_dict(state)
        said = "loaded"
    except ValueError as error:
        said = str(error)
    return found, held, said


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", (2, 3, 4), indirect=True)
@pytest.mark.parametrize(
    "style, bias, kind, equal",
    [
        ("experts", True, "int4", True),
        ("experts", False, "mxfp4", False),
        ("experts_colwise", True, "int4", True),
        ("experts_colwise", False, "mxfp4", False),
    ],
)
def test_the_ranks_sum_is_the_whole(ranks, style, bias, kind, equal, run_on):
    if run_on == "cuda":
        pytest.skip("in float64, on the CPU")
    sizes, world = None, ranks.world
    if not equal:
        whole, step = (E, 1) if style == "experts" else (H, 32)
        rest = [step] * (world - 1)
        sizes = {"experts": (whole - sum(rest), *rest)}
    answers = ranks(whole_and_divided, style, bias, kind, sizes)
    for (whole, divided), (all_bytes, own_bytes), said in answers:
        for one, other, first in zip(whole, divided, answers[0][0][1]):
            # shares of experts are fp32, sums of a few hundred terms float64
            assert np.allclose(other, one, rtol=1e-6, atol=1e-6 * np.abs(one).max())
            assert np.array_equal(other, first)
        if equal and style == "experts":
            assert own_bytes < 1.05 * all_bytes / world
        assert "rank 7 of" in said and "must be of this layer's" in said


def transformers_mixture(sizes):
    import transformers

    from tests.torch_room.models import MIXTURE

    torch.manual_seed(0)
    config = transformers.MixtralConfig(**MIXTURE, num_local_experts=4)
    net = transformers.MixtralForCausalLM(config).eval()
    for each in net.model.layers:
        own = each.mlp.experts
        gate_up, down = own.gate_up_proj.data.mT, own.down_proj.data.mT
        each.mlp.experts = nmt.Experts.from_float(gate_up, down, group_size=32)
    nmt.quantize_(net, group_size=32)
    tokens = torch.arange(8)[None]
    found = []
    for plan in (None, nmt.MIXTURE_PLAN):
        if plan:
            nmt.parallelize_(net, plan)
        with torch.no_grad():
            found.append(numbers(net(tokens).logits))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", (2,), indirect=True)
def test_a_model_of_transformers_by_the_plan(ranks, run_on):
    pytest.importorskip("transformers")
    if run_on == "cuda":
        pytest.skip("in float32, on the CPU")
    for whole, divided in ranks(transformers_mixture, None):
        assert np.abs(whole - divided).max() < 1e-5 * np.abs(whole).max()
