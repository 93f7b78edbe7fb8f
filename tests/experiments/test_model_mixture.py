"""Contract under test: the blocks with a mixture of experts of experiment 21 compute what they say,
packed and in float, a wrong one is found, and its part runs on the CPU and is reported. Skipped
without torch, but for predictions and report."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import experiment_results

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "21_model"
OPTIONS = SimpleNamespace(device="cpu", context=8, tokens=40, batches=[3])
SHAPES = (0, 1)  # of TINY_MIXTURES


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    with found.no_grad():
        yield found


def packed_blocks(load, torch, number, layers=1):
    place, shape = load("decoder").Place("cpu", torch.bfloat16), load("sizes").TINY_MIXTURES[number]
    experts = load("experts")
    return experts.of_blocks(shape, [experts.random_block(shape, place) for _ in range(layers)])


def token_by_token(torch, experts, x, ids, weights):
    """What ``FloatExperts`` says that it computes."""
    rows = []
    for token, (chosen, shares) in enumerate(zip(ids.tolist(), weights)):
        total = 0
        for e, share in zip(chosen, shares):
            gate, up = (x[token] @ experts.gate_up[e] + experts.gate_up_bias[e]).chunk(2)
            if experts.activation == "silu":
                hidden = torch.nn.functional.silu(gate) * up
            else:
                gate, up = gate.clamp(max=7), up.clamp(-7, 7)
                hidden = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            total = total + share * (hidden @ experts.down[e] + experts.down_bias[e])
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("activation", ("silu", "swiglu-oai"))
def test_experts_in_float_give_what_a_loop_over_tokens_gives(load, torch, activation):
    """One expert has no token."""
    numbers = {"dtype": torch.float64}
    gate_up, down = torch.randn(4, 12, 20, **numbers), torch.randn(4, 10, 12, **numbers)
    biases = torch.randn(4, 20, **numbers), torch.randn(4, 12, **numbers)
    experts = load("experts").FloatExperts(gate_up, down, activation, biases)
    x, weights = torch.randn(7, 12, **numbers), torch.rand(7, 2)
    ids = torch.stack([torch.randperm(3)[:2] for _ in range(7)])
    expected = token_by_token(torch, experts, x, ids, weights)
    assert torch.allclose(experts(x, ids, weights), expected, rtol=1e-9, atol=1e-9)


def test_grouped_products_are_those_of_a_loop(load, torch):
    grouped = load("experts").grouped
    x, w = torch.randn(9, 32), torch.randn(3, 32, 16)
    offsets = torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    expected = torch.cat([x[:4] @ w[0], x[4:] @ w[2]])
    assert torch.allclose(grouped(x, w, offsets), expected, atol=1e-5)
    found = grouped(x.bfloat16(), w.bfloat16(), offsets)
    assert found.dtype == torch.bfloat16 and torch.allclose(found.float(), expected, atol=0.3)


@pytest.mark.parametrize("number", SHAPES)
def test_random_experts_give_about_as_large_numbers_as_they_get(load, torch, number):
    model = packed_blocks(load, torch, number)
    experts = load("experts").float_experts(model.blocks[0].mixture.experts, torch.float32)
    for weights in (experts.gate_up, experts.down):
        x = torch.randn(64, weights.shape[1])
        assert 0.7 < float((x @ weights).std()) < 1.4
        assert float(weights[0].sub(weights[1]).abs().max()) > 0


@pytest.mark.parametrize("number", SHAPES)
def test_a_block_that_is_wrong_is_found(load, torch, number):
    """Experts that took each other's place, and, where there are any, a bias that is missing."""
    mixture, plain = load("mixture"), load("decoder").PLAIN
    packed = packed_blocks(load, torch, number)
    twins = [load("experts").float_twin(packed, each) for each in (torch.bfloat16, torch.float32)]
    kind = packed.shape.kind
    models = {mixture.FLOAT: twins[0], kind: packed}

    def errors(m):
        return mixture.errors_of(OPTIONS, models, twins[1], plain, m)

    for m in mixture.sizes(OPTIONS):
        assert max(errors(m).values()) < mixture.LARGEST_ERROR
        assert mixture.is_replayed(OPTIONS, packed, m)
    ours, theirs = packed.blocks[0].mixture.experts, twins[0].blocks[0].mixture.experts
    theirs.down = theirs.down.flip(0)
    assert errors(3)[mixture.FLOAT] > mixture.LARGEST_ERROR > errors(3)[kind]
    if packed.shape.biases:
        ours.down.bias.zero_()
    else:
        ours.gate_up.qweight.copy_(ours.gate_up.qweight.flip(0))
    assert errors(3)[kind] > mixture.LARGEST_ERROR


@pytest.mark.thorough
@pytest.mark.parametrize("number", SHAPES)
def test_a_block_on_the_machine_gives_what_the_reference_gives(load, torch, number):
    from numba_marlin.torch import operators

    mixture, whole = load("mixture"), load("whole")
    model = packed_blocks(load, torch, number)
    held = mixture.given(OPTIONS, model, 3)
    expected = mixture.called(model, held)
    with operators.cpu_backend("emulator"):
        found = mixture.called(model, held)
    for one, other in zip(found, expected):
        assert whole.relative(one, other) < mixture.LARGEST_ERROR


def test_calls_take_turns(load, torch):
    """A graph is tried twice before it is captured, also where there is one call."""
    mixture, model = load("mixture"), packed_blocks(load, torch, 1)
    for calls in (1, 2):
        held = mixture.given(OPTIONS, model, 3, calls)
        (first, _), (other, _) = (mixture.called(model, held, call) for call in range(2))
        assert torch.equal(first, other) == (calls == 1)
        assert torch.equal(first, mixture.called(model, held, calls)[0])


def test_what_is_touched_is_counted(load, torch):
    mixture = load("mixture")
    model = packed_blocks(load, torch, 1)
    held = mixture.given(OPTIONS, model, 1, calls=2)
    assert mixture.touched(model, held) == model.shape.top_k
    model.blocks[0].mixture.router.weight.zero_()  # all go where the bias is largest
    assert mixture.touched(model, mixture.given(OPTIONS, model, 40)) == model.shape.top_k


@pytest.mark.thorough
def test_the_part_runs_on_the_cpu_and_is_reported(load, torch, tmp_path):
    arguments = ("--tiny", "--parts", "warmup,mixture", "--glue", "plain", "--out", str(tmp_path))
    for more in ((), ("--resume",)):  # all is there then
        done = subprocess.run(
            [sys.executable, str(FOLDER / "run.py"), *arguments, *more],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-2000:]
    rows = experiment_results.rows(tmp_path)
    timed = [row for row in rows if row["part"] == "mixture"]
    assert len(timed) == 2 * 2 * 3  # shapes, contenders, numbers of tokens
    assert {row["contender"] for row in timed} == {"bf16", "int4", "mxfp4"}
    kernels = {"qkv", "o", "router", "gate_up", "down"}
    assert all(set(row["kernel"]) == kernels and row["us"] > 0 for row in timed)
    said = load("report").results(rows)
    assert "6 cases" in said and "replayed calls equal to eager ones: 6 of 6" in said
    assert "| tiny gpt-oss prefill | 24 |" in said


# ---- without torch


def test_the_shapes_are_those_of_the_models(load):
    mixtral, gpt_oss = load("sizes").MIXTURES
    assert mixtral.linears() == {"qkv": (4096, 6144), "o": (4096, 4096)}
    assert mixtral.products() == {"gate_up": (4096, 28672), "down": (14336, 4096)}
    assert gpt_oss.linears() == {"qkv": (2880, 5120), "o": (4096, 2880)}
    assert gpt_oss.products() == {"gate_up": (2880, 5760), "down": (2880, 2880)}
    assert (mixtral.group, gpt_oss.group) == (128, 32)


def test_a_block_is_expected_to_take_longer_than_its_bytes_and_operations(load):
    prediction, sizes = load("prediction"), load("sizes")
    for shape in sizes.MIXTURES:
        for m, what in ((1, "decode"), (16, "decode"), (64, "decode"), (2048, "prefill")):
            context = 2048 if what == "prefill" else 256
            dense, packed = (
                prediction.mixture(shape, m, context, kind, what) for kind in ("bf16", shape.kind)
            )
            assert 0 < packed.floor < packed.expected < dense.expected
            assert packed.floor <= dense.floor < dense.expected
        assert prediction.mixture(replace(shape, name="other"), 1, 256, "bf16", "decode") is None
    # 4 experts of 3 x 2880 x 2880 numbers in 4 bits, and a scale of 8 for 32 of them
    (_, gpt_oss) = sizes.MIXTURES
    nbytes = 4 * 3 * 2880 * 2880 * (4 + 8 / 32) / 8
    found = prediction.experts_floor(gpt_oss, 1, "mxfp4")
    assert found == pytest.approx(nbytes / prediction.READ)


def test_times_of_experts_are_those_measured_or_between_them(load):
    prediction, (mixtral, _) = load("prediction"), load("sizes").MIXTURES
    at = [prediction.experts_seconds(mixtral, m, "int4") * 1e6 for m in (1, 1024, 2048, 4096)]
    assert at[0] == pytest.approx(38.3 + 28.0)
    assert at[2] == pytest.approx(at[1] + (at[3] - at[1]) / 3)
