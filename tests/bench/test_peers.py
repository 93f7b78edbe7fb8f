"""Contract under test: a peer is found by name, is given the weight that our kernels read, and is
timed only if every copy of it, and its replayed graph, computes the product. No GPU: tensors lie on
the host, timers are invented."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from numba_marlin.bench import measure, operands, peers
from numba_marlin.bench.ceilings import Ceilings
from numba_marlin.formats import marlin
from numba_marlin.formats.types import QuantizedWeight
from numba_marlin.hardware import devices
from numba_marlin.heuristics import Problem, rank
from numba_marlin.quantizers.dequantize import dequantize

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
__version__ = "1.5"

def right(weight):
    zeros = 2 ** (weight.bits - 1) if weight.zeros is None else weight.zeros.float()
    scales = weight.scales.float()
    if weight.zeros is not None:
        zeros = zeros.repeat_interleave(weight.group_size, 0)
    scales = scales.repeat_interleave(weight.group_size, 0)
    w = ((weight.codes.float() - zeros) * scales).to(weight.dtype)
    def launch(x, out):
        sums = x.float() @ w.float()
        out.copy_(sums if weight.bias is None else sums + weight.bias.float())
    return launch
"""


@pytest.fixture
def torch(monkeypatch):
    torch = pytest.importorskip("torch")
    host = SimpleNamespace(
        **{name: getattr(torch, name) for name in ("arange", "empty", "from_numpy", "uint8")},
        int32=torch.int32,
        cuda=SimpleNamespace(
            OutOfMemoryError=MemoryError,
            Event=lambda: SimpleNamespace(record=lambda: None),
            empty_cache=lambda: None,
        ),
    )
    for module in (measure, operands, peers):
        monkeypatch.setattr(module, "torch_on_gpu", lambda: host)
    monkeypatch.setattr(measure, "wait", lambda event: None)
    monkeypatch.setattr(
        "numba_marlin.bench.contenders.torch_on_gpu",
        lambda: SimpleNamespace(empty=lambda shape, dtype, device: torch.empty(shape, dtype=dtype)),
    )
    return torch


def weights_of(torch, copies=2, **kinds):
    """(Weights on the host in as many copies, the QuantizedWeight that they hold)"""
    problem = Problem(1, 72, 256, **kinds)
    generator = np.random.default_rng(5)
    of_groups, top = (problem.groups, problem.n), 1 << problem.bits
    zeros = {
        None: None,
        "integer": generator.integers(0, top, of_groups).astype(np.uint8),
        "float16": (generator.random(of_groups) * top).astype(np.float16),
    }[problem.zeros]
    weight = QuantizedWeight(
        generator.integers(0, top, (problem.k, problem.n)).astype(np.uint8),
        (generator.random(of_groups) * 0.02 + 0.005).astype(np.float16),
        zeros,
        problem.bits,
        problem.group_size,
    )
    packed = marlin.pack(weight)
    held = {
        name: None if each is None else torch.from_numpy(np.ascontiguousarray(each))
        for name, each in (("scales", packed.scales), ("zeros", packed.zeros))
    }
    words = torch.from_numpy(packed.qweight)
    return (
        operands.Weights(
            problem,
            [words] * copies,
            held["scales"],
            held["zeros"],
            None,
            [torch.from_numpy(dequantize(weight, np.float64).astype(np.float16))],
            [held["scales"]] * copies,
        ),
        weight,
    )


def batch_of(torch, weights, m=3):
    x = torch.randn((m, weights.problem.k)).half()
    columns = torch.arange(weights.problem.n)
    return operands.Batch(x, columns, x.float() @ weights.dense[0].float())


def in_file(tmp_path, text, name="peer_file.py"):
    (tmp_path / name).write_text(text)
    return f"{tmp_path / name}:{{}}".format


KINDS = (
    {},
    {"group_size": -1},
    {"bits": 8},
    {"zeros": "integer"},
    {"zeros": "integer", "bits": 8, "group_size": 64},
    {"zeros": "float16"},
)


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_a_peer_is_given_the_weight_that_the_kernels_read(torch, kinds):
    """As ``formats.marlin`` packed it on the host."""
    weights, weight = weights_of(torch, **kinds)
    found = peers.plain(weights)
    assert (found.codes.numpy() == weight.codes).all()
    assert (found.scales.numpy() == weight.scales).all()
    assert (found.zeros is None) == (weight.zeros is None)
    if weight.zeros is not None:
        assert (found.zeros.numpy() == weight.zeros).all()
    assert (found.k, found.n) == (256, 72) and found.dtype == torch.float16
    assert found.group_size == (256 if kinds.get("group_size") == -1 else weight.group_size)


def test_what_no_peer_is_given_is_refused():
    with pytest.raises(ValueError, match="integer codes: leave out the peer"):
        peers.check_problem(Problem(1, 64, 64, 16, codes="e2m1", scale_dtype="e5m3"))
    peers.check_problem(Problem(1, 64, 64))


def test_a_peer_is_found_in_a_file_and_in_a_module(tmp_path, monkeypatch):
    spell = in_file(tmp_path, GOOD)
    found = peers.find(spell("right"))
    assert (found.name, found.version) == ("right", "1.5")
    assert found.fields == {
        "compiler": None,
        "peer": "peer_file.py:right",
        "peer_version": "1.5",
    }
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert peers.find("peer_file:right").name == "right"
    finally:
        sys.modules.pop("peer_file", None)


@pytest.mark.parametrize(
    "text, message",
    [
        ("cubla", "must be cublas, none, FILE.py:FUNCTION or MODULE:FUNCTION"),
        (":f", "must be cublas"),
        ("{file}:not a name", "must be cublas"),
        ("missing.py:f", "no such file: missing.py"),
        ("no_such_module:f", "cannot be imported: ModuleNotFoundError: No module named"),
        ("{file}:righ", "defines no function 'righ'; did you mean 'right'?"),
        ("{file}:__version__", "defines no function '__version__'"),
        ("{file}:decode", "'decode' names a kernel of this package: rename it"),
        ("{broken}:f", "cannot be imported: SyntaxError"),
    ],
)
def test_what_is_no_peer_is_refused_in_words(tmp_path, text, message):
    (tmp_path / "broken.py").write_text("def f(:")
    (tmp_path / "file.py").write_text(GOOD)
    places = {"file": tmp_path / "file.py", "broken": tmp_path / "broken.py"}
    with pytest.raises(ValueError) as caught:
        peers.find(text.format(**places))
    assert message in str(caught.value)


def test_two_peers_of_one_name_are_refused(tmp_path):
    texts = [in_file(tmp_path, GOOD, name)("right") for name in ("a.py", "b.py")]
    with pytest.raises(ValueError, match="two peers are called 'right'"):
        peers.find_all(texts)


class Timer:
    """Replays what would be captured: ``launch`` unless the peer launches elsewhere."""

    def __init__(self, launch, target_us, least):
        self.launch, self.launches = launch, least
        launch(0)

    def replay(self, during=None):
        self.launch(0)
        return 5.0


@pytest.fixture
def bench(torch, tmp_path, monkeypatch):
    """make(text of a file, names of its peers) -> a Bench of a weight on the host, whose own
    candidate computes the product, too."""

    def make(text, *names):
        weights, _ = weights_of(torch)
        spell = in_file(tmp_path, text)
        made = measure.Bench.__new__(measure.Bench)
        made.settings = measure.Settings(
            rounds=2, cublas=False, peers=tuple(map(spell, names)), settle_seconds=0.5
        )
        made.peers = peers.find_all(made.settings.peers)
        made.device, made.environment = devices.device("H200"), {"device": "GPU"}
        made.settled = []
        made.watch = SimpleNamespace(
            settle=made.settled.append, clear=list, sample=None, summary=lambda: None
        )
        made.ceilings = lambda dtype: Ceilings(4e12, 7e14)
        made._held = {replace(weights.problem, m=1): measure.Held(weights)}
        made.contender = lambda problem, candidate, weights, batch: peers.contender(
            replace(made.peers[0], name=candidate.kernel),
            [lambda x, out: out.copy_(x.float() @ weights.dense[0].float())],
            weights,
            batch,
        )
        made._described = lambda entrant, chosen: {"kernel": entrant.name, **entrant.fields}
        return made

    monkeypatch.setattr(measure, "GraphTimer", Timer)
    monkeypatch.setattr(operands, "random_batch", lambda weights, m: batch_of(torch, weights, m))
    return make


def cell(bench, **more):
    problem = Problem(3, 72, 256)
    return bench.cell(problem, rank(problem, bench.device)[:1], **more)


def test_a_peer_is_timed_in_the_rounds_of_the_cell(bench):
    made = bench(GOOD, "right")
    (_, row) = cell(made)
    assert row["kernel"] == "right" and row["us"] == 5.0 and row["peer_version"] == "1.5"
    assert row["relative_error"] < 2e-3 and made.settled == [0.5]
    assert [each["kernel"] for each in cell(made, without=("right",))] != ["right"]
    assert len(cell(made, without=("right",))) == 1


def test_a_peer_may_return_its_result(bench):
    text = f"{GOOD}def own(weight):\n    at = right(weight)\n"
    made = bench(f"{text}    return lambda x, out: at(x, like := out * 0) or like\n", "own")
    assert cell(made)[1]["relative_error"] < 2e-3
    wrong = bench(f"{text}    return lambda x, out: at(x, out) or out * 0\n", "own")
    with pytest.raises(measure.WrongResult, match="copy 0 .* relative error 1"):
        cell(wrong)


def test_a_peer_prepares_each_copy_once_whatever_m_is(bench, tmp_path):
    text = (
        GOOD + "calls = []\ndef counted(weight):\n    calls.append(1)\n    return right(weight)\n"
    )
    made = bench(text, "counted")
    cell(made)
    cell(made)
    assert len(made.peers[0].function.__globals__["calls"]) == 2  # copies


WRONG = {
    "unwritten": (
        "return lambda x, out: (out[:-1].zero_(), None)[1]",
        "copy 0 .* relative error nan",
    ),
    "shifted": (
        "return lambda x, out, at=right(weight): (at(x, out), out.copy_(out.roll(1, 1)))[1]",
        "copy 0 of the weight, at m=3: relative error 1",
    ),
    "second": (
        "weight_calls.append(1)\n"
        "    if len(weight_calls) > 1: return lambda x, out: out.zero_()\n"
        "    return right(weight)",
        "copy 1 of the weight, at m=3: relative error 1",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_peer_is_not_timed(bench, name):
    body, message = WRONG[name]
    text = f"{GOOD}\nweight_calls = []\ndef {name}(weight):\n    {body}\n"
    with pytest.raises(measure.WrongResult, match=message):
        cell(bench(text, name))


def test_a_peer_that_is_not_in_its_graph_is_not_timed(bench, monkeypatch):
    """As one that launches on a stream of its own."""
    made = bench(GOOD, "right")
    monkeypatch.setattr(Timer, "replay", lambda self, during=None: 0.1)
    with pytest.raises(measure.WrongResult, match="when its CUDA graph is replayed .*current_str"):
        cell(made)


FAILS = {
    "raises": ("raise TypeError('bf16 only')", "raises TypeError: bf16 only at k=256, n=72: mend"),
    "transposed": (
        "return lambda x, out: x @ weight.dense[:, :8]",
        r"returns torch.float16 \[3, 8\] at m=3, n=72, k=256: return None, or .* \[3, 72\]",
    ),
    "number": ("return lambda x, out: 5", r"returns int \[\] at m=3"),
    "nothing": ("return None", "returns NoneType at k=256, n=72: return launch"),
    "same": ("return print", "returns the same launch twice .* clone the weight"),
    "late": ("return lambda x, out: {}['m']", "raises KeyError: 'm' at m=3, n=72, k=256: mend"),
}


@pytest.mark.parametrize("name", FAILS)
def test_a_peer_that_fails_is_named(bench, name):
    body, message = FAILS[name]
    made = bench(f"def {name}(weight):\n    {body}\n", name)
    with pytest.raises(peers.PeerFailed, match=f"peer '{name}' {message}") as caught:
        cell(made)
    assert caught.value.name == name


def test_what_cannot_be_captured_is_said(bench, monkeypatch):
    made = bench(GOOD, "right")

    def capture(launch, target_us, least):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(measure, "GraphTimer", capture)
    with pytest.raises(peers.PeerFailed, match=r"\(operation not permitted .* capturing\): launch"):
        cell(made)


def test_stubs_tell_the_rows_of_a_cell(bench):
    made = bench(GOOD, "right")
    problem = Problem(3, 72, 256)
    candidates = rank(problem, made.device)[:2]
    found = made.stubs(problem, candidates)
    assert [each["kernel"] for each in found] == [*(each.kernel for each in candidates), "right"]
    from numba_marlin.bench.rows import identity

    row = cell(made)[-1]
    assert identity(found[-1]) == identity(row | {"config": None})


def test_only_as_many_weights_are_kept_as_asked_for(bench, torch, monkeypatch):
    made = bench(GOOD, "right")
    monkeypatch.setattr(operands, "random_weights", lambda problem: problem)
    made.settings = replace(made.settings, kept=2)
    for n in (64, 128, 192):
        made.weights(Problem(4, n, 256))
    assert [each.n for each in made._held] == [128, 192]


def test_the_example_of_the_page_is_a_peer(bench):
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    example = text.split("<!-- example:peer -->\n```python\n")[1].split("```")[0]
    made = bench(example, "unpacked")
    assert cell(made)[1]["relative_error"] < 2e-3
    weight = replace(peers.plain(made.weights(Problem(1, 72, 256))), bits=8)
    with pytest.raises(ValueError, match="made for symmetric INT4"):
        made.peers[0].function(weight)
