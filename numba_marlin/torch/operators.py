"""The operators ``numba_marlin::matmul`` and ``numba_marlin::dequantize``.

A torch operator takes tensors and numbers, so a packed weight is passed as its arrays and a
*signature*, a string that has all the rest (layout, sizes, bits, groups). Nothing is kept between
two calls but the launch for their shapes: addresses are passed anew each time, so the tensors of a
weight may be moved, overwritten or freed.

The gradient with respect to x is ``grad @ W^T``, with W dequantised for it; the weight has none.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from numba_marlin import api
from numba_marlin.api.matmul import multiply
from numba_marlin.execution import repeat
from numba_marlin.execution.residence import tensor_of
from numba_marlin.formats import PackedBlocks, PackedWeight
from numba_marlin.formats.residence import ARRAYS, arrays_of, place_of
from numba_marlin.quantizers.dequantize import dequantize as dequantize_on_host

_HALF = (torch.float16, torch.bfloat16)
_STRIP = 1024  # rows of W that the CUDA form of ``dequantize`` makes at a time
_CPU_BACKENDS = ("reference", "emulator")
_cpu_backend = "reference"

_WEIGHT = "Tensor qweight, Tensor scales, Tensor? zeros, Tensor? factors, Tensor? permutation"
torch.library.define(
    "numba_marlin::matmul",
    f"(Tensor x, {_WEIGHT}, Tensor? bias, str signature, bool batch_invariant,"
    " int? whole_n=None) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)
torch.library.define(
    "numba_marlin::dequantize",
    f"({_WEIGHT}, str signature, ScalarType dtype) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)


@contextlib.contextmanager
def cpu_backend(name: str):
    """Inside, products of tensors on the CPU run on ``name``: "reference", the float64 product
    rounded once (the default), or "emulator", the compiled kernel on the PTX machine. For all
    threads. ValueError for another name."""
    global _cpu_backend
    if name not in _CPU_BACKENDS:
        raise ValueError(f"name={name!r} must be one of {', '.join(_CPU_BACKENDS)}")
    before, _cpu_backend = _cpu_backend, name
    try:
        yield
    finally:
        _cpu_backend = before


def current_cpu_backend() -> str:
    return _cpu_backend


# ---- a weight as tensors and a signature


@dataclass(frozen=True)
class Signature:
    """What a packed weight is besides its arrays. kind: the class's name; numbers: the fields that
    are no arrays."""

    kind: str
    numbers: tuple[tuple[str, object], ...]

    def __getattr__(self, name):
        try:
            return dict(self.numbers)[name]
        except KeyError:
            raise AttributeError(name) from None

    def weight(self, arrays: dict[str, Tensor]) -> PackedWeight | PackedBlocks:
        kind = {each.__name__: each for each in (PackedWeight, PackedBlocks)}[self.kind]
        return kind(**dict(self.numbers), **arrays)


def signature_of(p: PackedWeight | PackedBlocks) -> str:
    """All of a packed weight but its arrays, as text that ``parsed`` reads."""
    numbers = {each.name: getattr(p, each.name) for each in fields(p) if each.name not in ARRAYS}
    return f"{type(p).__name__} {numbers!r}"


@functools.lru_cache(maxsize=4096)
def parsed(signature: str) -> Signature:
    """The Signature that ``signature_of`` wrote. ValueError for any other text."""
    import ast

    kind, _, numbers = signature.partition(" ")
    try:
        found = ast.literal_eval(numbers)
        if kind not in (PackedWeight.__name__, PackedBlocks.__name__):
            raise ValueError(kind)
        return Signature(kind, tuple(found.items()))
    except (ValueError, SyntaxError, AttributeError) as error:
        raise ValueError(
            f"signature={signature!r} must come from numba_marlin.torch.operators.signature_of"
        ) from error


class _Owner:
    """Whom ``repeat`` keeps the launches of a signature for."""


@functools.lru_cache(maxsize=4096)
def _owner(signature: str, choice: tuple, present: tuple[bool, ...]) -> _Owner:
    return _Owner()


# ---- implementations


def _weight(x, signature: str, qweight, scales, zeros, factors) -> PackedWeight | PackedBlocks:
    """The weight, its rows as they are stored. ValueError unless it is where x is: a copy would be
    a second weight in memory that nobody sees."""
    if qweight.device != x.device:
        raise ValueError(f"p is on {qweight.device}, must be where x is: {x.device}")
    named = {"qweight": qweight, "scales": scales, "zeros": zeros, "factors": factors}
    there = {name: each for name, each in named.items() if each is not None}
    return parsed(signature).weight(there)


@torch.library.impl("numba_marlin::matmul", "CUDA")
def _matmul_cuda(
    x, qweight, scales, zeros, factors, permutation, bias, signature, batch_invariant, whole_n=None
):
    if x.shape[0] == 0:
        return x.new_empty(0, parsed(signature).n)
    if permutation is not None:
        x = x.index_select(1, permutation)
    given = (x, qweight, scales, zeros, factors, bias if bias is None else bias.detach())
    present = tuple(each is not None for each in given)
    inputs = tuple(each for each in given if each is not None)
    owner = _owner(signature, (batch_invariant, whole_n), present)
    found = repeat.again_operands(owner, inputs, ())
    if found is not None:
        return found[0]["c"]
    outcome = multiply(
        x.detach(),
        _weight(x, signature, qweight, scales, zeros, factors),
        bias=given[-1],
        batch_invariant=batch_invariant,
        whole_n=whole_n,
    )
    if outcome.prepared is not None:
        names = ("a", "b", "scales", "zeros", "factors", "bias")
        named = {name: each for name, each in zip(names, given) if each is not None}
        repeat.remember_operands(owner, named, (), outcome.prepared, x.get_device(), keeps=())
    return outcome.results["c"]


@torch.library.impl("numba_marlin::matmul", "CPU")
def _matmul_cpu(
    x, qweight, scales, zeros, factors, permutation, bias, signature, batch_invariant, whole_n=None
):
    if x.shape[0] == 0:
        return x.new_empty(0, parsed(signature).n)
    if permutation is not None:
        x = x.index_select(1, permutation)
    weight = _weight(x, signature, qweight, scales, zeros, factors)
    if x.dtype not in _HALF:  # as the dequantised layer would multiply
        w = tensor_of(dequantize_on_host(weight, "float64"))
        product = x.double() @ w
        return (product if bias is None else product + bias.double()).to(x.dtype)
    bias = None if bias is None else bias.detach()
    outcome = multiply(
        x.detach(),
        weight,
        _cpu_backend,
        bias=bias,
        batch_invariant=batch_invariant,
        whole_n=whole_n,
    )
    return outcome.results["c"]


@torch.library.register_fake("numba_marlin::matmul")
def _matmul_shape(
    x, qweight, scales, zeros, factors, permutation, bias, signature, batch_invariant, whole_n=None
):
    found = parsed(signature)
    torch._check(x.dim() == 2, lambda: f"x.shape={tuple(x.shape)} must have 2 dimensions (m, k)")
    torch._check(
        x.shape[1] == found.k,
        lambda: f"x.shape={tuple(x.shape)} must be (m, k) with k={found.k}, the weight's",
    )
    return x.new_empty(x.shape[0], found.n)


def _setup_context(ctx, inputs, output):
    _, *weight, bias, signature, _, _ = inputs
    ctx.save_for_backward(*weight)
    ctx.signature, ctx.has_bias = signature, bias is not None


def _backward(ctx, grad):
    """Of x: ``grad @ W^T``. W is dequantised for it and not kept: it takes 4 times the memory."""
    of_x = of_bias = None
    if ctx.needs_input_grad[0]:
        w = torch.ops.numba_marlin.dequantize(*ctx.saved_tensors, ctx.signature, grad.dtype)
        of_x = grad @ w.t()
    if ctx.has_bias and ctx.needs_input_grad[6]:
        of_bias = grad.sum(0)
    return of_x, None, None, None, None, None, of_bias, None, None, None


torch.library.register_autograd("numba_marlin::matmul", _backward, setup_context=_setup_context)


@torch.library.impl("numba_marlin::dequantize", "CPU")
def _dequantize_cpu(qweight, scales, zeros, factors, permutation, signature, dtype):
    weight = _weight(qweight, signature, qweight, scales, zeros, factors)
    if permutation is not None:
        weight = replace(weight, permutation=permutation)
    return tensor_of(dequantize_on_host(weight, str(dtype).removeprefix("torch.")))


@torch.library.impl("numba_marlin::dequantize", "CUDA")
def _dequantize_cuda(qweight, scales, zeros, factors, permutation, signature, dtype):
    """By the kernel itself: the product of the unit matrix and W is W, exactly, since every sum has
    one term that is not 0. A strip of rows at a time."""
    found = parsed(signature)
    half = getattr(torch, dict(found.numbers).get("dtype", "float16"))
    if dtype == torch.bfloat16 and found.kind == PackedWeight.__name__:
        half = torch.bfloat16
    result = qweight.new_empty((found.k, found.n), dtype=dtype)
    for first in range(0, found.k, _STRIP):
        rows = min(_STRIP, found.k - first)
        unit = qweight.new_zeros((rows, found.k), dtype=half)
        unit.diagonal(first).fill_(1)
        strip = torch.ops.numba_marlin.matmul(
            unit, qweight, scales, zeros, factors, None, None, signature, False
        )
        result[first : first + rows] = strip.to(dtype)
    if permutation is None:
        return result
    # row i of what is stored is row permutation[i] of the weight
    return result.index_select(0, torch.argsort(permutation))


@torch.library.register_fake("numba_marlin::dequantize")
def _dequantize_shape(qweight, scales, zeros, factors, permutation, signature, dtype):
    found = parsed(signature)
    return qweight.new_empty((found.k, found.n), dtype=dtype)


# ---- for callers who have a weight


def tensors_of(p: PackedWeight | PackedBlocks) -> tuple[Tensor | None, ...]:
    """The arrays of a packed weight as tensors, in the order of the operators' arguments, where
    they are."""
    found = arrays_of(p)
    return tuple(tensor_over(found[name]) if name in found else None for name in ARRAYS)


def tensor_over(array) -> Tensor:
    """A tensor over the same memory; a copy if NumPy may not write to it (a checkpoint's)."""
    if isinstance(array, Tensor):
        return array
    if torch.compiler.is_compiling():
        raise TypeError(
            f"under torch.compile a weight's arrays must be tensors, not a {type(array).__name__}:"
            " pass p.to('cpu', 'torch') or p.to('cuda', 'torch'), made outside"
        )
    if not isinstance(array, np.ndarray):
        return torch.as_tensor(array, device=place_of(array))
    return tensor_of(array)


def is_plain_call(x: Tensor, bias: Tensor | None) -> bool:
    """Whether nothing but the result is wanted of a product on a GPU: no gradient, no trace, no
    transform, none of which sees a call that does not go through torch's dispatcher."""
    return (
        type(x) is Tensor
        and x.is_cuda
        and not torch.compiler.is_compiling()
        and not (
            torch.is_grad_enabled()
            and (x.requires_grad or (bias is not None and bias.requires_grad))
        )
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def matmul(
    x: Tensor, p: PackedWeight | PackedBlocks, bias: Tensor | None = None, *, batch_invariant=False
) -> Tensor:
    """x [..., k] @ weight [k, n] (+ bias [n]) -> [..., n], as a torch operator.

    x: float16 or bfloat16, on a GPU or the CPU; on the CPU also float32 and float64, which the
        dequantised weight multiplies.
    p: a packed weight whose arrays are where x is (``p.to``); under torch.compile they must be
        tensors (``p.to("cuda", "torch")``).
    bias: of x's type and place.

    Differentiable with respect to x and bias. torch.compile, torch.export and CUDA graphs go
    through it. Errors as of ``numba_marlin.matmul``.
    """
    # a weight on the host is refused below, not copied
    if is_plain_call(x, bias) and getattr(p.qweight, "is_cuda", False) and x.dim() == 2 and len(x):
        return api.matmul(x, p, bias=bias, batch_invariant=batch_invariant)
    y = torch.ops.numba_marlin.matmul(
        x.reshape(-1, x.shape[-1]), *tensors_of(p), bias, signature_of(p), batch_invariant
    )
    return y.reshape(*x.shape[:-1], p.n)


def dequantize(p: PackedWeight | PackedBlocks, dtype: torch.dtype = torch.float16) -> Tensor:
    """The numbers of a packed weight, [k, n] of ``dtype``, where its arrays are. On a GPU they are
    those that kernels multiply, of 16 bits."""
    return torch.ops.numba_marlin.dequantize(*tensors_of(p), signature_of(p), dtype)
