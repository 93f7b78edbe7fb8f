"""Contract under test: ``nm.calibrate`` hears what every linear layer of a torch model was called
with, no more and no less, whatever layers share; the model is left as it was.

The reference keeps every input of every layer, by hooks of its own."""

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.calibration import NeverCalled
from numba_marlin.quantizers.hessian import Hessian

torch = pytest.importorskip("torch", reason="runs torch models")
nn = torch.nn


class Attention(nn.Module):
    """q, k, v share an input; o has its own; up and gate share; down."""

    def __init__(self, width=16):
        super().__init__()
        for name in ("q", "k", "v", "o", "gate", "up"):
            setattr(self, name, nn.Linear(width, width, bias=False))
        self.down = nn.Linear(width, width)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, scale=1.0):
        x = self.drop(x) * scale
        x = x + self.o(torch.tanh(self.q(x) + self.k(x)) * self.v(x))
        return x + self.down(torch.relu(self.gate(x)) * self.up(x))


def batches(number=3, width=16, rows=7, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn((2, rows, width), generator=random) for _ in range(number)]


def heard_by_hooks(model, calls):
    """layer -> Hessian of all that it was called with: every input is kept."""
    inputs, handles = {}, []
    for name, each in model.named_modules():
        if isinstance(each, nn.Linear):
            keep = inputs.setdefault(name, [])
            handles.append(
                each.register_forward_hook(
                    lambda module, args, out, keep=keep: keep.append(args[0].float().clone())
                )
            )
    model.eval()
    with torch.no_grad():
        for call in calls:
            call(model)
    for each in handles:
        each.remove()
    result = {}
    for name, kept in inputs.items():
        if kept:
            result[name] = Hessian(kept[0].shape[-1])
            for each in kept:
                result[name].add(each.numpy())
    return result


def same(found, expected):
    assert set(found) == set(expected)
    for name in expected:
        assert found[name].rows == expected[name].rows, name
        assert np.array_equal(found[name].mean(), expected[name].mean()), name
    return True


def groups(found):
    return sorted(tuple(sorted(each.layers)) for each in found.shared)


def test_every_layer_is_heard_and_those_with_one_input_share_a_hessian():
    torch.manual_seed(0)
    model, data = Attention(), batches()
    found = nm.calibrate(model, data)
    assert same(found, heard_by_hooks(model, [lambda m, x=x: m(x) for x in data]))
    assert groups(found) == [("down",), ("gate", "up"), ("k", "q", "v"), ("o",)]
    assert found["q"] is found["v"] and found["q"].rows == 3 * 14


def test_sums_of_shared_inputs_are_computed_once(monkeypatch):
    added, real = [], Hessian.add
    monkeypatch.setattr(Hessian, "add", lambda self, x: added.append(x.shape) or real(self, x))
    nm.calibrate(Attention(), batches(3))
    assert len(added) == 3 * 4


@pytest.mark.parametrize(
    "batch",
    [
        lambda x: x,
        lambda x: (x, 0.5),
        lambda x: [x, 0.5],
        lambda x: {"x": x, "scale": 0.5},
    ],
)
def test_batches_are_tensors_tuples_or_dicts(batch):
    torch.manual_seed(0)
    model, data = Attention(), batches()
    scale = 1.0 if torch.is_tensor(batch(data[0])) else 0.5
    found = nm.calibrate(model, (batch(x) for x in data))  # read once
    assert same(found, heard_by_hooks(model, [lambda m, x=x: m(x, scale) for x in data]))


def test_the_model_is_left_as_it_was():
    model = Attention()
    model.train()
    model.down.eval()
    model.q.weight.requires_grad_(True)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    nm.calibrate(model, batches(1))
    with pytest.raises(ValueError):
        nm.calibrate(model, [torch.full((1, 16), torch.nan)])
    assert model.training and model.q.training and not model.down.training
    assert all(not each._forward_pre_hooks for each in model.modules())
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())


def test_layers_may_be_chosen():
    model, data = Attention(), batches()
    whole = nm.calibrate(model, data)
    found = nm.calibrate(model, data, ["[qk]", "down"])
    assert sorted(found) == ["down", "k", "q"] and same(
        found, {name: whole[name] for name in found}
    )
    assert list(nm.calibrate(model, data, "o")) == ["o"]
    with pytest.raises(ValueError, match="layers holds no name, must hold one or more"):
        nm.calibrate(model, data, [])
    with pytest.raises(ValueError, match="'dawn' is no torch.nn.Linear of the model; did you mean"):
        nm.calibrate(model, data, ["q", "dawn"])


class Scripted(nn.Module):
    """Calls its layers as its input says: [(layer, input's number), ...]; "!" changes an input."""

    def __init__(self, layers="abc", width=8):
        super().__init__()
        for name in layers:
            setattr(self, name, nn.Linear(width, width))

    def forward(self, script, *inputs):
        inputs = [each.clone() for each in inputs]
        for name, number in script:
            if name == "!":
                inputs[number] += 1
            else:
                getattr(self, name)(inputs[number])


SCRIPTS = {
    "always together": [["a0", "b0"], ["a0", "b0"]],
    "together, then not": [["a0", "b0"], ["a0", "b1"], ["a0", "b0"]],
    "the second is left out": [["a0", "b0"], ["a0"], ["a0", "b0"]],
    "the second is left out at last": [["a0", "b0"], ["a0"]],
    "the first is left out": [["a0", "b0"], ["b0"], ["a0", "b0"]],
    "the second comes later": [["a0"], ["a0", "b0"]],
    "both come later": [["c0"], ["c0", "a1", "b1"], ["a0", "b0", "c0"]],
    "in the other order": [["a0", "b0"], ["b0", "a0"]],
    "twice each": [["a0", "b0", "a1", "b1"], ["a0", "b0", "a1", "b1"]],
    "first one twice, then the other": [["a0", "b0"], ["a0", "a1", "b0", "b1"]],
    "the same input twice": [["a0", "a0", "b0", "b0"], ["a0", "b0", "a0", "b0"]],
    "the first twice at first": [["a0", "a0", "b0"], ["a0", "b0"]],
    "changed between them": [["a0", "!0", "b0"], ["a0", "!0", "b0"]],
    "changed between them later": [["a0", "b0"], ["a0", "!0", "b0"], ["a0", "b0"]],
    "changed before the other is missed": [["a0", "b0"], ["a0", "!0", "c0"], ["a0", "b0"]],
    "three part in two ways": [["a0", "b0", "c0"], ["a0", "b0", "c1"], ["a0", "b1", "c1"]],
    "all part at once": [["a0", "b0", "c0"], ["a0", "b1", "c2"], ["a0", "b0", "c0"]],
}


TOGETHER = {"always together", "both come later", "in the other order", "twice each"}


def play(script, seed):
    random = torch.Generator().manual_seed(seed)
    calls = [(each[0], int(each[1])) for each in script]
    return (calls, *(torch.randn((5, 8), generator=random) for _ in range(3)))


@pytest.mark.parametrize("case", SCRIPTS)
def test_whatever_layers_share_each_has_what_it_was_called_with(case):
    scripts = SCRIPTS[case]
    used = {call[0] for script in scripts for call in script} - {"!"}
    model = Scripted(sorted(used))
    data = [play(script, seed) for seed, script in enumerate(scripts)]
    found = nm.calibrate(model, data)
    assert same(found, heard_by_hooks(model, [lambda m, x=x: m(*x) for x in data]))
    assert (found["a"] is found["b"]) == (case in TOGETHER)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_layers_share_at_random(seed):
    random = np.random.default_rng(seed)
    scripts = []
    for _ in range(6):
        script = [
            f"{'aabbcc!'[random.integers(7)]}{random.integers(3)}"
            for _ in range(random.integers(1, 9))
        ]
        scripts.append(script if seed % 2 else [*script, "a0", "b0", "c0"])
    scripts.append(["a0", "b0", "c0"])
    model = Scripted("abc")
    data = [play(script, seed) for seed, script in enumerate(scripts)]
    found = nm.calibrate(model, data)
    assert same(found, heard_by_hooks(model, [lambda m, x=x: m(*x) for x in data]))


def test_a_tensor_that_is_gone_is_not_taken_for_its_successor():
    """Its memory, and perhaps its id, are those of the next."""

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(20)])

        def forward(self, x):
            for number, layer in enumerate(self.layers):
                layer(x * (number + 1))

    model, data = Chain(), batches(2, 8)
    found = nm.calibrate(model, data)
    assert len(found.shared) == 20
    assert same(found, heard_by_hooks(model, [lambda m, x=x: m(x) for x in data]))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_models_of_any_float_type(kind):
    dtype = getattr(torch, kind)
    model, x = nn.Sequential(nn.Linear(8, 8)).to(dtype), batches(1, 8)[0].to(dtype)
    found = nm.calibrate(model, [x])
    expected = Hessian(8).add(x.double().numpy())
    assert np.array_equal(found["0"].mean(), expected.mean())


def test_inference_mode_changes_nothing():
    torch.manual_seed(0)
    model, data = Attention(), batches()
    expected = nm.calibrate(model, data)
    with torch.inference_mode():
        found = nm.calibrate(model, data)
    assert same(found, expected) and groups(found) == groups(expected)


def test_an_input_by_keyword_and_no_gradients():
    class Keyword(nn.Linear):
        pass

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = Keyword(8, 8)

        def forward(self, x):
            y = self.a(input=x)
            assert not y.requires_grad
            return y

    x = batches(1, 8)[0]
    found = nm.calibrate(Model(), [x])
    assert np.array_equal(found["a"].mean(), Hessian(8).add(x.numpy()).mean())


def test_the_sums_may_lie_on_disk(tmp_path):
    model, data = Attention(), batches()
    found = nm.calibrate(model, data, spill=tmp_path)
    assert same(found, dict(nm.calibrate(model, data)))
    for each in found.values():
        base = each._sum
        while not isinstance(base, np.memmap):
            base = base.base
    assert list(tmp_path.iterdir()) == []
    again = nm.load_hessians(nm.save_hessians(tmp_path / "h.safetensors", found))
    assert same(again, dict(found)) and groups(again) == groups(found)


@pytest.mark.thorough
def test_a_calibrated_model_is_quantised_better():
    torch.manual_seed(0)
    model = Attention(64)
    mix = torch.randn((64, 64)) * torch.arange(1, 65).float()[:, None] ** -1.0
    data = [x @ mix for x in batches(8, 64, 32)]
    found = nm.calibrate(model, data)
    shown = nm.compare_methods(model, found, group_size=32)
    assert sorted(shown.errors) == sorted(found)
    for name, errors in shown.errors.items():
        assert errors["gptq"] < min(errors["rtn"], errors["mse"]), name
        w = getattr(model, name).weight.detach().numpy().T
        q = nm.quantize(w, group_size=32, method="gptq", calibration=found[name])
        assert errors["gptq"] == found[name].output_error(w, q)
    assert shown.means["gptq"] < 0.7 * shown.means["rtn"]
    with pytest.raises(KeyError, match="the model has no layer 'Q', which has a Hessian"):
        nm.compare_methods(model, {"Q": found["q"]})


def test_layers_that_no_batch_reached_are_named_and_nothing_else_is_lost():
    model, data = Scripted("abc"), [play(["a0"], 0), play(["a1"], 1)]
    with pytest.raises(
        NeverCalled, match=r"layer 'b' and 1 more: called with no inputs in 2 batches, .*layers="
    ) as caught:
        nm.calibrate(model, data)
    assert caught.value.layers == ["b", "c"] and isinstance(caught.value, ValueError)
    assert same(caught.value.hessians, dict(nm.calibrate(model, data, ["a"])))
    empty = [(play(["b0"], 0)[0], torch.zeros((0, 8)))]
    with pytest.raises(NeverCalled, match=r"layer 'b': called with no inputs in 1 batch,"):
        nm.calibrate(model, empty, ["b"])


def on_two_devices():
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, device="meta"))


@pytest.mark.parametrize(
    ("model", "data", "error", "message"),
    [
        (lambda: "llama", [], TypeError, "model is a str, must be a torch.nn.Module"),
        (lambda: nn.ReLU(), [], ValueError, "model is a ReLU without any torch.nn.Linear"),
        (
            lambda: torch.compile(Attention()),
            batches(1),
            TypeError,
            "model is compiled by torch.compile, must be the model itself: model._orig_mod",
        ),
        (
            on_two_devices,
            batches(1, 8),
            ValueError,
            "on 2 devices, '0.weight' on cpu and '1.weight' on meta: must be on one",
        ),
        (
            lambda: nn.Sequential(nn.Linear(8, 8, device="meta")),
            batches(1, 8),
            ValueError,
            "without values: '0.weight' is on meta",
        ),
        (Attention, [], ValueError, "batches holds no batch"),
        (Attention, batches(1)[0], TypeError, r"batches is a Tensor, must be an iterable"),
        (Attention, {"x": 1}, TypeError, "batches is a dict, must be an iterable"),
        (Attention, 7, TypeError, "batches is a int, must be an iterable"),
        (Attention, [batches(1)[0], "text"], TypeError, r"batches\[1\] is a str, must be a tensor"),
        # NumPy's arrays have a device too
        (Attention, [np.ones((4, 8))], TypeError, r"batches\[0\] is a ndarray, must be a tensor"),
        (
            lambda: nn.Sequential(nn.Linear(8, 8)),
            [torch.ones((4, 8)), torch.tensor([[0.0] * 8, [0.0] * 5 + [torch.nan] + [0.0] * 2])],
            ValueError,
            r"batches\[1\]: layer '0': calibration: x\[1, 5\]=nan must be finite",
        ),
        (
            Attention,
            [torch.full((1, 16), torch.inf)],
            ValueError,
            r"batches\[0\]: layer 'q': calibration: x\[0, 0\]=inf must be finite",
        ),
        (
            lambda: nn.Sequential(nn.Linear(8, 8)),
            [torch.ones((4, 7))],
            ValueError,
            r"batches\[0\]: layer '0': calibration: x.shape=\(4, 7\) must end in k=8",
        ),
        (
            lambda: nn.Sequential(nn.Linear(8, 8)),
            [torch.ones((4, 8), dtype=torch.int64)],
            TypeError,
            r"batches\[0\]: layer '0': calibration: x.dtype=int64 must be float16",
        ),
    ],
)
def test_what_cannot_be_calibrated_is_named(model, data, error, message):
    with pytest.raises(error, match=message):
        nm.calibrate(model(), data)
