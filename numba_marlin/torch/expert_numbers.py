"""Products of a mixture of experts in plain torch, of dequantised weights: what the operators of
``expert_operators`` are on the CPU for types of more than 16 bits, and their gradients.

One expert is dequantised at a time. A product is a (PackedExperts, bias [E, n] or None); a list of
two is a layer, with an activation between them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from numba_marlin.formats.routing import Routing
from numba_marlin.torch import operators


def gated(rows: Tensor, activation: str) -> Tensor:
    """[..., 2 h] -> [..., h]: ``reference.experts.activate``, in fp32 or more."""
    gate, up = rows.to(torch.promote_types(rows.dtype, torch.float32)).chunk(2, dim=-1)
    if activation == "silu":
        return (torch.nn.functional.silu(gate) * up).to(rows.dtype)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (gate * torch.sigmoid(1.702 * gate) * (up + 1)).to(rows.dtype)


def _of_expert(rows: Tensor, numbers, biases, activation: str | None) -> Tensor:
    """The products of rows with one expert's dequantised weights."""
    for number, (w, bias) in enumerate(zip(numbers, biases)):
        rows = rows @ w if bias is None else rows @ w + bias.to(rows.dtype)
        if number == 0 and activation is not None:
            rows = gated(rows, activation)
    return rows


def _turns(x: Tensor, products, routing: Routing, dtype: torch.dtype):
    """(expert, its pairs, the rows of x that they multiply, its weights dequantised) of each expert
    with rows."""
    flat, offsets = x.reshape(-1, x.shape[-1]), routing.offsets.tolist()
    for expert, (begin, end) in enumerate(zip(offsets, offsets[1:])):
        if begin == end:
            continue
        pairs = routing.pairs[begin:end].long()
        rows = pairs // routing.top_k if x.dim() == 2 else pairs
        numbers = [operators.dequantize(held[expert], dtype) for held, _ in products]
        yield expert, pairs, flat[rows].to(dtype), numbers


def dequantised(x, products, activation, routing: Routing, combine: bool) -> Tensor:
    """In float64, rounded once to x's type."""
    n = products[-1][0].n
    result = x.new_zeros((routing.m * routing.top_k, n), dtype=torch.float64)
    for expert, pairs, rows, numbers in _turns(x, products, routing, torch.float64):
        biases = [None if bias is None else bias[expert] for _, bias in products]
        result[pairs] = _of_expert(rows, numbers, biases, activation)
    result = result.view(routing.m, routing.top_k, n)
    if combine:
        result = (routing.weights.double()[:, :, None] * result).sum(1)
    return result.to(x.dtype)


def gradients(grad, x, products, activation, routing: Routing, combine: bool) -> list[Tensor]:
    """[of x, of the routing's weights, of each product's bias; empty where there is none]."""
    dtype = x.dtype if x.is_cuda or x.dtype in (torch.float32, torch.float64) else torch.float32
    pairs_all = routing.m * routing.top_k
    of_x = x.new_zeros((pairs_all, x.shape[-1]), dtype=torch.promote_types(dtype, torch.float32))
    of_weights = torch.zeros_like(routing.weights).view(-1)
    of_biases = [x.new_zeros(0) if bias is None else torch.zeros_like(bias) for _, bias in products]
    flat = grad if combine else grad.reshape(pairs_all, -1)
    for expert, pairs, rows, numbers in _turns(x, products, routing, dtype):
        g = flat[pairs // routing.top_k if combine else pairs].to(dtype)
        with torch.enable_grad():
            rows = rows.requires_grad_()
            biases = [
                None if bias is None else bias[expert].detach().to(dtype).requires_grad_()
                for _, bias in products
            ]
            y = _of_expert(rows, numbers, biases, activation)
        if combine:
            of_weights[pairs] = (g.to(of_x.dtype) * y.detach()).sum(-1).to(of_weights.dtype)
            g = g * routing.weights.view(-1)[pairs, None].to(dtype)
        leaves = [rows, *(each for each in biases if each is not None)]
        found = list(torch.autograd.grad(y, leaves, g))
        of_x[pairs] = found.pop(0).to(of_x.dtype)
        for held, bias in zip(of_biases, biases):
            if bias is not None:
                held[expert] = found.pop(0).to(held.dtype)
    if x.dim() == 2:  # a token's rows, one for each of its experts
        of_x = of_x.view(routing.m, routing.top_k, -1).sum(1)
    return [of_x.to(x.dtype).view(x.shape), of_weights.view(routing.weights.shape), *of_biases]
