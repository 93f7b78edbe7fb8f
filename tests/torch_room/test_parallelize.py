"""Contract under test: a model is divided by its plan, on all ranks or on none, and gives what the
whole one gives. Processes as in test_parallel.py. Skipped without torch."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nmt = pytest.importorskip("numba_marlin.torch")
import torch.distributed as dist  # noqa: E402  after the skip
from torch import nn  # noqa: E402

from numba_marlin.torch import collectives, parallel  # noqa: E402
from tests.torch_room.layers import here, numbers, rank, tensor, weight  # noqa: E402

# ---- a plan, in one process


class Attention(nn.Module):
    """Of two heads or more, with more queries than keys, as wide as its layers say."""

    head_dim = 16

    def __init__(self, hidden, heads, kv_heads, bias):
        super().__init__()
        width = self.head_dim
        self.q_proj = nn.Linear(hidden, heads * width, bias=bias)
        self.k_proj = nn.Linear(hidden, kv_heads * width, bias=bias)
        self.v_proj = nn.Linear(hidden, kv_heads * width, bias=bias)
        self.o_proj = nn.Linear(heads * width, hidden, bias=bias)

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head_dim)).transpose(-2, -3)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (each.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for each in (k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(-2, -3).flatten(-2))


class Mlp(nn.Module):
    def __init__(self, hidden, inner, bias):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Decoder(nn.Module):
    def __init__(self, hidden=96, inner=192, bias=False):
        super().__init__()
        self.self_attn, self.mlp = Attention(hidden, 12, 6, bias), Mlp(hidden, inner, bias)
        self.before, self.between = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, x):
        x = x + self.self_attn(self.before(x))
        return x + self.mlp(self.between(x))


def block(layers=1, seed=0, dtype=torch.float32, **sizes):
    torch.manual_seed(seed)
    net = nn.Sequential(*(Decoder(**sizes) for _ in range(layers)))
    return nmt.quantize_(net, group_size=32).to(dtype)


def test_the_plan_replaces_what_it_names_and_nothing_else(alone):
    net = block(2)
    x, kinds = tensor(1, 5, 96, dtype=torch.float32), {}
    before = net(x)
    net[0].mlp.up_proj.batch_invariant = True
    assert nmt.parallelize_(net) is net
    for name, layer in net.named_modules():
        kinds.setdefault(type(layer).__name__, []).append(name.rpartition(".")[2])
    assert sorted(kinds["RowParallelLinear"]) == ["down_proj"] * 2 + ["o_proj"] * 2
    assert len(kinds["ColumnParallelLinear"]) == 10 and "Linear" not in kinds
    assert torch.equal(net(x), before)
    assert [each.mlp.up_proj.batch_invariant for each in net] == [True, False]


def test_a_shared_layer_stays_shared(alone):
    net = block(2)
    net[1].mlp.up_proj = net[0].mlp.up_proj
    nmt.parallelize_(net)
    assert net[1].mlp.up_proj is net[0].mlp.up_proj


def spoiled(change):
    net = block(2)
    change(net)
    return net


@pytest.mark.parametrize(
    "change, options, kind, message",
    [
        (
            lambda net: setattr(net[1].mlp, "down_proj", nn.Linear(192, 96)),
            {},
            TypeError,
            "layer '1.mlp.down_proj': it is a torch.nn.*Linear, must be a .*: call quantize_",
        ),
        (
            lambda net: setattr(
                net[1].mlp, "up_proj", nmt.ColumnParallelLinear.from_packed(weight())
            ),
            {},
            ValueError,
            "layer '1.mlp.up_proj': it is a ColumnParallelLinear already",
        ),
        (
            lambda net: net[1].mlp.down_proj.to("meta"),
            {},
            ValueError,
            "layer '1.mlp.down_proj': qweight is on meta, must be on the CPU or a GPU",
        ),
        (
            lambda net: setattr(net[1].mlp, "up_proj", net[1].mlp.down_proj),
            {},
            ValueError,
            "layer '1.mlp.down_proj': it is layer '1.mlp.up_proj' too|layer '1.mlp.up_proj': it is",
        ),
        (None, {"plan": {"mlp.up": "colwise"}}, ValueError, r"plan\['mlp.up'\] matches no layer"),
        (
            None,
            {"plan": {"q_proj": "columns"}},
            ValueError,
            r"plan\['q_proj'\]='columns' must be one of colwise, colwise_gather_output, rowwise",
        ),
        (
            None,
            {"plan": {"*_proj": "colwise", "o_proj": "rowwise"}},
            ValueError,
            r"layer '0.self_attn.o_proj' matches plan\['\*_proj'\] and plan\['o_proj'\]",
        ),
        (None, {"plan": {}}, ValueError, "plan={} names no layer"),
        (None, {"plan": "llama"}, TypeError, "plan is a str, must be"),
        (
            None,
            {"sizes": {"down_proj": (96, 96)}},
            ValueError,
            r"layer '0.mlp.down_proj': sizes=\(96, 96\) must be world=1 numbers",
        ),
        (None, {"sizes": {"lm_head": (8,)}}, ValueError, r"sizes\['lm_head'\] matches no layer"),
    ],
)
def test_what_cannot_be_divided_leaves_the_model_as_it_was(alone, change, options, kind, message):
    net = spoiled(change or (lambda net: None))
    before = dict(net.named_modules())
    with pytest.raises(kind, match=message):
        nmt.parallelize_(net, **options)
    after = dict(net.named_modules())
    assert before.keys() == after.keys() and all(before[name] is after[name] for name in before)


# ---- several processes


def whole_and_divided(dtype, bias, plan, sizes):
    """-> (result of the whole model, of the divided one; sums over ranks; bytes of both)"""
    net = here(block(2, dtype=dtype, bias=bias))
    x = here(tensor(2, 5, 96, dtype=dtype))
    divided = nmt.parallelize_(copy.deepcopy(net), **plan, sizes=sizes)
    sums, plain = [], collectives.all_sum

    def counted(*arguments):
        sums.append(arguments)
        return plain(*arguments)

    parallel.all_sum = counted
    try:
        with torch.no_grad():
            found = net(x), divided(x)
    finally:
        parallel.all_sum = plain
    held = [sum(each.nbytes for each in model.buffers()) for model in (net, divided)]
    return [numbers(y.double()) for y in found], len(sums), held


@pytest.mark.thorough
@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("equal", (True, False))
def test_a_decoder_by_its_plan_has_two_sums_a_layer(ranks, bias, equal, run_on):
    dtype = torch.float16 if run_on == "cuda" else torch.float64
    sizes = None
    if not equal:
        cut = (64, 128) if ranks.world == 2 else (96, 32, 64)
        sizes = {f"mlp.{name}_proj": cut for name in ("gate", "up", "down")}
    answers = ranks(whole_and_divided, dtype, bias, {}, sizes)
    divided = answers[0][0][1]
    for (whole, mine), sums, (all_bytes, own_bytes) in answers:
        assert np.array_equal(mine, divided) and sums == 4
        # float64: of a few hundred terms of size 1; fp16: 11 bits, through two layers
        assert np.abs(mine - whole).max() < (0.05 if run_on == "cuda" else 1e-12)
        if equal:
            assert own_bytes < 1.2 * all_bytes / ranks.world  # columns come in 64


def transformers_model(dtype):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=6,
    )
    net = transformers.LlamaForCausalLM(config).to(dtype).eval()
    return nmt.quantize_(net, group_size=32)


def generated(dtype):
    net, tokens = here(transformers_model(dtype)), here(torch.arange(8)[None])
    both = []
    for plan in (None, net.config.base_model_tp_plan):
        if plan:
            nmt.parallelize_(net, plan)
        with torch.no_grad():
            logits = net(tokens).logits
            more = net.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0)
        both.append((numbers(logits.double()), more.tolist()))
    return both


@pytest.mark.thorough
def test_a_model_of_transformers_by_its_own_plan(ranks, run_on):
    pytest.importorskip("transformers")
    dtype = torch.float16 if run_on == "cuda" else torch.float64
    answers = ranks(generated, dtype)
    (_, first) = answers[0]
    for (logits, tokens), (own, own_tokens) in answers:
        assert np.array_equal(own, first[0]) and own_tokens == first[1]
        assert np.abs(own - logits).max() < (0.05 if run_on == "cuda" else 1e-9)
        if run_on != "cuda":
            assert own_tokens == tokens


def refusal(seed_of_last, spoil_last, options):
    """What parallelize_ says where the last rank has another model -> (message, whether the model
    is what it was)"""
    last = rank() == dist.get_world_size() - 1
    net = here(block(seed=seed_of_last if last else 0))
    if last and spoil_last == "layer":
        net[0].mlp.down_proj = here(nn.Linear(192, 96))
    if last and spoil_last == "style":
        options = options | {"plan": {"mlp.up_proj": "rowwise_split_input"}}
    before = dict(net.named_modules())
    try:
        nmt.parallelize_(net, **options)
        message = "done"
    except (TypeError, ValueError) as error:
        message = f"{type(error).__name__}: {error}"
    after = dict(net.named_modules())
    same = before.keys() == after.keys() and all(before[name] is after[name] for name in before)
    return message, same


@pytest.mark.thorough
@pytest.mark.parametrize(
    "seed, spoil, options, message",
    [
        (0, "layer", {}, "layer '0.mlp.down_proj': it is a torch.nn"),
        (1, None, {}, "layer '0.self_attn.q_proj': rank {last} has checksum="),
        (0, "style", {"plan": {"mlp.up_proj": "colwise"}}, "rank {last} has style='rowwise_split"),
        (
            0,
            None,
            {"plan": {"mlp.up_proj": "colwise"}, "sizes": {"up_proj": (192,)}},
            "layer '0.mlp.up_proj': sizes=(192,) must be world={world} numbers",
        ),
        (
            0,
            None,
            {"sizes": {"k_proj": (40, 56, 0)}},
            "layer '0.self_attn.k_proj': ",
        ),
    ],
)
def test_what_one_rank_cannot_do_none_does(ranks, seed, spoil, options, message):
    if "k_proj" in options.get("sizes", ()):
        sizes = (40, 56) if ranks.world == 2 else (40, 24, 32)
        options, message = {"sizes": {"k_proj": sizes}}, message + "n=96 in world={world} parts"
    for said, same in ranks(refusal, seed, spoil, options):
        assert message.format(last=ranks.world - 1, world=ranks.world) in said and same
