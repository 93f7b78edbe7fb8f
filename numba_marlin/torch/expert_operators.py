"""The operators ``numba_marlin::moe_matmul`` and ``numba_marlin::moe_mlp``: products of a mixture
of experts, as ``numba_marlin.moe_matmul`` and ``moe_mlp``.

Experts are passed as their arrays and a signature, as ``operators`` does it for one weight; a
routing as its ids and weights [m, top_k]. ``first`` and ``whole`` are of expert parallelism: the
experts given are numbers first .. first + E - 1 of ``whole``, and pairs of others add nothing.

Gradients reach x, the routing's weights and the biases; packed weights have none. Each expert is
dequantised for them, one at a time, and each product is calculated again. They are operators too
(``..._backward``), so that torch.compile goes through them; on a GPU they wait until the host knows
how many rows each expert has. There is no second derivative: asking for it is an error.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from numba_marlin.api.experts import moe_matmul, moe_mlp
from numba_marlin.formats import PackedBlocks, PackedWeight
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.formats.routing import Routing
from numba_marlin.torch import operators
from numba_marlin.torch.expert_numbers import dequantised, gradients

ARRAYS = ("qweight", "scales", "zeros", "factors")  # no activation order: PackedExperts has none
ACTIVATIONS = ("silu", "swiglu-oai")
_KINDS = {each.__name__: each for each in (PackedWeight, PackedBlocks)}
_HALF = (torch.float16, torch.bfloat16)

_MATMUL = (
    "(Tensor x, Tensor[] experts, Tensor ids, Tensor weights, Tensor? bias, str signature,"
    " bool combine, bool batch_invariant, int first, int whole)"
)
_MLP = (
    "(Tensor x, Tensor[] gate_up, Tensor[] down, Tensor ids, Tensor weights,"
    " Tensor? gate_up_bias, Tensor? down_bias, str gate_up_signature, str down_signature,"
    " str activation, bool batch_invariant, int first, int whole)"
)
for _name, _arguments in (("moe_matmul", _MATMUL), ("moe_mlp", _MLP)):
    torch.library.define(
        f"numba_marlin::{_name}", f"{_arguments} -> Tensor", tags=torch.Tag.pt2_compliant_tag
    )
    torch.library.define(
        f"numba_marlin::{_name}_backward",
        f"(Tensor grad, {_arguments[1:]} -> Tensor[]",
        tags=torch.Tag.pt2_compliant_tag,
    )


# ---- experts as tensors and a signature


def signature_of(experts: PackedExperts) -> str:
    """All of them but their arrays, as text that ``parsed`` reads. What all share stands once."""
    shared = {
        name: value
        for name, value in experts.facts[0].items()
        if all(each[name] == value for each in experts.facts)
    }
    own = [{name: each[name] for name in each if name not in shared} for each in experts.facts]
    if not any(own):
        own = len(own)
    return f"PackedExperts {experts.kind.__name__} {(tuple(_held(experts)), shared, own)!r}"


@dataclass(frozen=True)
class Signature:
    """What packed experts are besides their arrays."""

    kind: type
    arrays: tuple[str, ...]
    facts: tuple[dict, ...]

    @property
    def experts(self) -> int:
        return len(self.facts)

    @property
    def k(self) -> int:
        return self.facts[0]["k"]

    @property
    def n(self) -> int:
        return self.facts[0]["n"]

    def weights(self, arrays: Sequence[Tensor]) -> PackedExperts:
        """arrays: those named, in their order."""
        return PackedExperts(dict(zip(self.arrays, arrays)), self.kind, self.facts)


@functools.lru_cache(maxsize=4096)
def parsed(signature: str) -> Signature:
    """The Signature that ``signature_of`` wrote. ValueError for any other text."""
    try:
        name, kind, rest = signature.split(" ", 2)
        arrays, shared, own = ast.literal_eval(rest)
        if name != "PackedExperts":
            raise ValueError(name)
        own = [{} for _ in range(own)] if isinstance(own, int) else own
        return Signature(_KINDS[kind], arrays, tuple({**shared, **each} for each in own))
    except (ValueError, SyntaxError, KeyError, TypeError) as error:
        raise ValueError(
            f"signature={signature!r} must come from"
            " numba_marlin.torch.expert_operators.signature_of"
        ) from error


def _held(experts: PackedExperts) -> list[str]:
    return [name for name in ARRAYS if name in experts.arrays]


def tensors_of(experts: PackedExperts) -> list[Tensor]:
    """The arrays of experts as tensors, as the signature names them, where they are."""
    return [operators.tensor_over(experts.arrays[name]) for name in _held(experts)]


# ---- forward


def _routing(ids: Tensor, weights: Tensor, first: int, whole: int, experts: int) -> Routing:
    """On the CPU as arrays of NumPy, whose numbers are checked."""
    ids, weights = ids.detach(), weights.detach()
    if ids.device.type == "cpu":
        routing = Routing.of(ids.numpy(), weights.float().numpy(), whole)
    else:
        routing = Routing.of(ids, weights, whole)
    return routing if experts == whole else routing.local(first, experts)


def _on_device(x: Tensor, routing: Routing) -> Routing:
    """As tensors where x is."""
    arrays = (routing.ids, routing.weights, routing.pairs, routing.offsets)
    ids, weights, pairs, offsets = (torch.as_tensor(each, device=x.device) for each in arrays)
    return Routing(ids, weights, pairs, offsets, routing.complete)


def _experts(name: str, x: Tensor, arrays, signature: str) -> PackedExperts:
    """ValueError unless they are where x is: a copy would be a second one that nobody sees."""
    if arrays[0].device != x.device:
        raise ValueError(f"{name} are on {arrays[0].device}, must be where x is: {x.device}")
    return parsed(signature).weights(arrays)


def _bias(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()


def _call(x: Tensor) -> tuple[Tensor, dict]:
    backend = "cuda" if x.is_cuda else operators.current_cpu_backend()
    return x.detach(), {"backend": backend}


def _moe_matmul(x, experts, ids, weights, bias, signature, combine, batch_invariant, first, whole):
    held = _experts("experts", x, experts, signature)
    if x.shape[0] == 0:
        return _matmul_shape(
            x, experts, ids, weights, bias, signature, combine, batch_invariant, first, whole
        )
    routing = _on_device(x, _routing(ids, weights, first, whole, len(held)))
    if x.dtype not in _HALF and not x.is_cuda:
        return dequantised(x, [(held, _bias(bias))], None, routing, combine)
    x, options = _call(x)
    return moe_matmul(
        x,
        held,
        routing,
        bias=_bias(bias),
        combine=combine,
        batch_invariant=batch_invariant,
        **options,
    )


def _moe_mlp(
    x,
    gate_up,
    down,
    ids,
    weights,
    gate_up_bias,
    down_bias,
    gate_up_signature,
    down_signature,
    activation,
    batch_invariant,
    first,
    whole,
):
    first_held = _experts("gate_up", x, gate_up, gate_up_signature)
    second_held = _experts("down", x, down, down_signature)
    if x.shape[0] == 0:
        return x.new_empty(x.shape)
    routing = _on_device(x, _routing(ids, weights, first, whole, len(first_held)))
    biases = _bias(gate_up_bias), _bias(down_bias)
    if x.dtype not in _HALF and not x.is_cuda:
        products = list(zip((first_held, second_held), biases))
        return dequantised(x, products, activation, routing, True)
    x, options = _call(x)
    return moe_mlp(
        x,
        first_held,
        second_held,
        routing,
        activation=activation,
        gate_up_bias=biases[0],
        down_bias=biases[1],
        batch_invariant=batch_invariant,
        **options,
    )


def _matmul_shape(
    x, experts, ids, weights, bias, signature, combine, batch_invariant, first, whole
):
    found = parsed(signature)
    _check_shapes(x, ids, weights, found, first, whole)
    n = found.n
    return x.new_empty((ids.shape[0], n) if combine else (*ids.shape, n))


def _mlp_shape(
    x,
    gate_up,
    down,
    ids,
    weights,
    gate_up_bias,
    down_bias,
    gate_up_signature,
    down_signature,
    activation,
    batch_invariant,
    first,
    whole,
):
    _check_shapes(x, ids, weights, parsed(gate_up_signature), first, whole)
    return x.new_empty((x.shape[0], parsed(down_signature).n))


def _check_shapes(x, ids, weights, found: Signature, first: int, whole: int) -> None:
    torch._check(
        x.shape[-1] == found.k,
        lambda: f"x.shape={tuple(x.shape)} must end in k={found.k}, the experts'",
    )
    torch._check(
        ids.dim() == 2 and ids.shape[0] == x.shape[0] and weights.shape == ids.shape,
        lambda: (
            f"ids.shape={tuple(ids.shape)} and weights.shape={tuple(weights.shape)} must be"
            f" (m, top_k) with x's m={x.shape[0]}"
        ),
    )
    torch._check(
        0 <= first and first + found.experts <= whole,
        lambda: f"experts {first} to {first + found.experts - 1} must be among 0 to {whole - 1}",
    )


# ---- backward


def _matmul_backward(
    grad, x, experts, ids, weights, bias, signature, combine, batch_invariant, first, whole
):
    if x.shape[0] == 0:
        return _like(x, weights, bias)
    held = _experts("experts", x, experts, signature)
    routing = _on_device(x, _routing(ids, weights, first, whole, len(held)))
    found = gradients(grad, x, [(held, bias)], None, routing, combine)
    return _as_given(found, weights)


def _mlp_backward(
    grad,
    x,
    gate_up,
    down,
    ids,
    weights,
    gate_up_bias,
    down_bias,
    gate_up_signature,
    down_signature,
    activation,
    batch_invariant,
    first,
    whole,
):
    if x.shape[0] == 0:
        return _like(x, weights, gate_up_bias, down_bias)
    held = _experts("gate_up", x, gate_up, gate_up_signature)
    second = _experts("down", x, down, down_signature)
    routing = _on_device(x, _routing(ids, weights, first, whole, len(held)))
    products = [(held, gate_up_bias), (second, down_bias)]
    return _as_given(gradients(grad, x, products, activation, routing, True), weights)


def _as_given(found: list[Tensor], weights: Tensor) -> list[Tensor]:
    of_x, of_weights, *of_biases = found
    return [of_x, of_weights.to(weights.dtype), *of_biases]


def _like(x, weights, *biases) -> list[Tensor]:
    """What no token gives."""
    given = [x.new_zeros(0) if bias is None else torch.zeros_like(bias) for bias in biases]
    return [torch.zeros_like(x), torch.zeros_like(weights), *given]


# ---- what torch is told


def _refuse_graph() -> None:
    if torch.is_grad_enabled():
        raise NotImplementedError("experts have no second derivative: leave out create_graph=True")


def _setup_matmul(ctx, inputs, output):
    x, experts, ids, weights, bias, *rest = inputs
    ctx.save_for_backward(x, ids, weights, bias, *experts)
    ctx.rest = rest


def _backward_of_matmul(ctx, grad):
    _refuse_graph()
    x, ids, weights, bias, *experts = ctx.saved_tensors
    of_x, of_weights, of_bias = torch.ops.numba_marlin.moe_matmul_backward(
        grad, x, experts, ids, weights, bias, *ctx.rest
    )
    nothing = [None] * len(experts)
    of_bias = None if bias is None else of_bias
    return of_x, nothing, None, of_weights, of_bias, None, None, None, None, None


def _setup_mlp(ctx, inputs, output):
    x, gate_up, down, ids, weights, gate_up_bias, down_bias, *rest = inputs
    ctx.save_for_backward(x, ids, weights, gate_up_bias, down_bias, *gate_up, *down)
    ctx.split, ctx.rest = len(gate_up), rest


def _backward_of_mlp(ctx, grad):
    _refuse_graph()
    x, ids, weights, gate_up_bias, down_bias, *both = ctx.saved_tensors
    gate_up, down = both[: ctx.split], both[ctx.split :]
    of_x, of_weights, of_first, of_second = torch.ops.numba_marlin.moe_mlp_backward(
        grad, x, gate_up, down, ids, weights, gate_up_bias, down_bias, *ctx.rest
    )
    return (
        of_x,
        [None] * len(gate_up),
        [None] * len(down),
        None,
        of_weights,
        None if gate_up_bias is None else of_first,
        None if down_bias is None else of_second,
        *[None] * len(ctx.rest),
    )


for _name, _kernel in (
    ("moe_matmul", _moe_matmul),
    ("moe_mlp", _moe_mlp),
    ("moe_matmul_backward", _matmul_backward),
    ("moe_mlp_backward", _mlp_backward),
):
    torch.library.impl(f"numba_marlin::{_name}", ("CPU", "CUDA"), _kernel)
torch.library.register_fake("numba_marlin::moe_matmul", _matmul_shape)
torch.library.register_fake("numba_marlin::moe_mlp", _mlp_shape)
torch.library.register_fake(
    "numba_marlin::moe_matmul_backward",
    lambda grad, x, experts, ids, weights, bias, *rest: _like(x, weights, bias),
)
torch.library.register_fake(
    "numba_marlin::moe_mlp_backward",
    lambda grad, x, gate_up, down, ids, weights, gate_up_bias, down_bias, *rest: _like(
        x, weights, gate_up_bias, down_bias
    ),
)
torch.library.register_autograd(
    "numba_marlin::moe_matmul", _backward_of_matmul, setup_context=_setup_matmul
)
torch.library.register_autograd("numba_marlin::moe_mlp", _backward_of_mlp, setup_context=_setup_mlp)
