"""Contract under test: torch loses nothing silently. A product has no gradient, and is no operator
that torch.compile knows: both are said at once."""

import functools
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.api import checks
from numba_marlin.execution import arrays
from numba_marlin.execution.readers import Torch
from tests.api.block_operands import A, B

P = nm.pack(nm.quantize(np.random.default_rng(0).standard_normal((64, 64)), group_size=32))


@functools.cache
def real_torch():
    return pytest.importorskip("torch")


class Tensor:
    """A stand-in: as much of a tensor on the CPU as is read before it is refused."""

    __module__ = "torch"
    device = types.SimpleNamespace(type="cpu", index=None)

    def __init__(self, values, requires_grad=True):
        self.values, self.requires_grad = values, requires_grad
        self.dtype, self.shape = f"torch.{values.dtype}", values.shape

    def detach(self):
        return Tensor(self.values, False)

    def numpy(self):
        return self.values

    def data_ptr(self):
        return self.values.ctypes.data


def torch_that_records(monkeypatch, records):
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    monkeypatch.setitem(
        sys.modules, "torch", types.SimpleNamespace(is_grad_enabled=lambda: records)
    )


def call(argument, tensor):
    x = np.ones((1, 64), np.float16)
    if argument == "c":
        return nm.block_scaled_matmul(A, B, c=tensor, beta=1.0, backend="reference")
    return nm.matmul(**{"x": x, "p": P, "backend": "reference"} | {argument: tensor})


SHAPES = {"x": (1, 64), "bias": (64,), "out": (1, 64), "c": (A.shape[0], B.shape[0])}


@pytest.mark.parametrize("argument", SHAPES)
def test_a_tensor_that_requires_a_gradient_is_refused_by_name(argument, monkeypatch):
    torch_that_records(monkeypatch, True)
    tensor = Tensor(np.ones(SHAPES[argument], np.float16))
    with pytest.raises(ValueError, match=rf"{argument} requires a gradient.*{argument}.detach"):
        call(argument, tensor)
    checks.check_no_gradient(argument, arrays.view(argument, tensor.detach()))
    torch_that_records(monkeypatch, False)  # torch.no_grad()
    checks.check_no_gradient(argument, arrays.view(argument, tensor))


def test_a_repeated_call_loses_no_gradient_either():
    reader = Torch.__new__(Torch)
    required, other = Tensor(np.ones(1, np.float16)), Tensor(np.ones(1, np.float16), False)
    reader.records_gradients = lambda: True
    assert reader.loses_gradient(required) and not reader.loses_gradient(other)
    reader.records_gradients = lambda: False
    assert not reader.loses_gradient(required)


def test_under_torch_compile_the_error_says_so_at_once(monkeypatch):
    callbacks = iter((None, False, object()))
    frames = types.SimpleNamespace(get_eval_frame_callback=lambda: next(callbacks))
    dynamo = types.SimpleNamespace(eval_frame=frames)
    monkeypatch.setitem(
        sys.modules, "torch", types.SimpleNamespace(_C=types.SimpleNamespace(_dynamo=dynamo))
    )
    monkeypatch.setitem(sys.modules, "torch._dynamo", types.SimpleNamespace())
    x = np.ones((1, 64), np.float16)
    for _ in range(2):  # nothing is being compiled
        assert nm.matmul(x, P, "reference").shape == (1, 64)
    with pytest.raises(nm.errors.CapabilityMissing, match=r"torch\.compiler\.disable"):
        nm.matmul(x, P, "reference")


def test_gradients_of_real_tensors():
    torch = real_torch()
    x = torch.ones((1, 64), dtype=torch.float16, requires_grad=True)
    with pytest.raises(ValueError, match="x requires a gradient"):
        nm.matmul(x, P, "reference")
    expected = nm.matmul(x.detach(), P, "reference")
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert torch.equal(nm.matmul(x, P, "reference"), expected)


@pytest.mark.parametrize("product", ("matmul", "block_scaled_matmul"))
def test_real_torch_compile(product):
    torch = real_torch()
    x = torch.ones((1, 64), dtype=torch.float16)
    a, b = (
        replace(each, data=torch.tensor(each.data), scales=torch.tensor(each.scales))
        for each in (A, B)
    )

    def model(function, x):
        if product == "matmul":
            return function(2 * x, P, "reference")
        return function(a, b, bias=torch.ones(B.shape[0]) * x[0, 0], backend="reference")

    function = getattr(nm, product)
    with pytest.raises(Exception, match=r"torch\.compiler\.disable"):
        torch.compile(functools.partial(model, function), backend="eager")(x)
    outside = functools.partial(model, torch.compiler.disable(function))
    got = torch.compile(outside, backend="eager")(x)
    assert np.array_equal(np.asarray(got), np.asarray(model(function, x)))
