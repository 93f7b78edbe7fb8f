"""Blocks with a mixture of experts: packed ones, of random codes, and the same in float.

What a block computes is a ``decoder.Block``'s, with ``numba_marlin.torch.Mixture`` in place of the
mlp: a router, and experts that are ``numba_marlin.torch.Experts`` or ``FloatExperts``.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from decoder import (
    Decoder,
    Glue,
    Place,
    compiled,
    dense_like,
    four_bit,
    random_packed,
    same,
)
from sizes import MixtureShape
from torch import Tensor, nn

import numba_marlin as nm
import numba_marlin.torch as nmt
from numba_marlin.formats import PackedBlocks
from numba_marlin.torch.expert_numbers import gated

E2M1_DEVIATION = math.sqrt(sum(x * x for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)


# ---- experts


def random_int4(experts: int, k: int, n: int, device: str) -> nm.PackedExperts:
    made = [random_packed(k, n, device, torch.bfloat16) for _ in range(experts)]
    arrays = {
        name: torch.stack([getattr(each, name) for each in made]) for name in ("qweight", "scales")
    }
    facts = {name: getattr(made[0], name) for name in ("layout", "bits", "group_size", "k", "n")}
    return nm.PackedExperts(arrays, nm.PackedWeight, (facts,) * experts)


def random_mxfp4(experts: int, k: int, n: int, device: str) -> nm.PackedExperts:
    """Random codes; scales are two powers of two at random, the same for all experts. Products are
    about as large as x."""
    rng = np.random.default_rng(k + n)
    codes = rng.integers(0, 16, (k, n), np.uint8)
    scale = 127 - round(math.log2(E2M1_DEVIATION * k**0.5))
    scales = rng.integers(scale - 1, scale + 1, (k // 32, n), np.uint8)
    one = nm.pack(nm.BlockWeight(codes, "e2m1", scales, "e8m0", (32, 1)), dtype="bfloat16")
    shape = (experts, *one.qweight.shape)
    arrays = {
        "qweight": torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device=device),
        "scales": torch.from_numpy(one.scales).to(device)[None].repeat(experts, 1, 1),
        "factors": torch.from_numpy(one.factors).to(device)[None].repeat(experts, 1),
    }
    names = ("layout", "group_size", "k", "n", "scale_grid", "dtype")
    facts = {name: getattr(one, name) for name in names}
    return nm.PackedExperts(arrays, PackedBlocks, (facts,) * experts)


def grouped(rows: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """rows [pairs, k], in the order of experts, times their weights [E, k, n]: by one kernel, or
    expert by expert where that is not there, which waits for the device."""
    if rows.dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm"):
        return torch._grouped_mm(rows, weights, offs=offsets[1:])
    ends = offsets.tolist()
    return torch.cat([rows[a:b] @ w for a, b, w in zip(ends, ends[1:], weights)])


def activated(rows: Tensor, bias: Tensor | None, owners: Tensor, activation: str) -> Tensor:
    """owners: the expert of each row."""
    return gated(rows if bias is None else rows + bias[owners], activation)


def summed(rows: Tensor, bias: Tensor | None, owners: Tensor, places: Tensor, weights: Tensor):
    """Of a token's rows, times weights [m, top_k]; places: where the row of each pair is."""
    rows = rows if bias is None else rows + bias[owners]
    each = rows[places].view(*weights.shape, -1)
    return (weights[:, :, None] * each).sum(1).to(rows.dtype)


class FloatExperts(nn.Module):
    """``nmt.Experts`` in float. What lies around the products is compiled, on a GPU, whatever the
    glue is. gate_up [E, k, 2 h], down [E, h, k], biases as theirs."""

    def __init__(self, gate_up: Tensor, down: Tensor, activation: str, biases=(None, None)):
        super().__init__()
        self.gate_up, self.down, self.activation = gate_up, down, activation
        self.gate_up_bias, self.down_bias = biases
        change = compiled if gate_up.is_cuda and gate_up.dtype == torch.bfloat16 else same
        self.activated, self.summed = change(activated), change(summed)

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        routing = nm.Routing.of(ids, weights, len(self.gate_up))
        pairs = routing.pairs.long()
        owners = routing.ids.view(-1)[pairs]
        rows = grouped(x[pairs // routing.top_k], self.gate_up, routing.offsets)
        rows = self.activated(rows, self.gate_up_bias, owners, self.activation)
        rows = grouped(rows, self.down, routing.offsets)
        places = torch.empty_like(pairs)
        places[pairs] = torch.arange(len(pairs), device=x.device)
        return self.summed(rows, self.down_bias, owners, places, routing.weights)


def float_experts(experts: nmt.Experts, dtype: torch.dtype) -> FloatExperts:
    """Of their dequantised weights."""

    def numbers(layer) -> Tensor:
        weight = layer.weight
        count, k, n = weight.shape
        found = torch.empty((count, n, k), dtype=dtype, device=layer.qweight.device)
        for mine, each in zip(found, weight):
            mine.copy_(nmt.dequantize(each, torch.bfloat16).t())
        return found.transpose(1, 2)

    both = experts.gate_up, experts.down
    biases = [None if each.bias is None else each.bias.to(dtype) for each in both]
    return FloatExperts(*map(numbers, both), experts.activation, biases)


# ---- blocks


class MixtureBlock(nn.Module):
    """Used as a ``decoder.Block``."""

    def __init__(self, linears: dict[str, nn.Module], norms: tuple[Tensor, Tensor], mixture):
        super().__init__()
        self.qkv, self.o, self.mixture = linears["qkv"], linears["o"], mixture
        self.before_attention, self.before_mlp = norms

    def mlp(self, h: Tensor, glue: Glue) -> Tensor:
        return self.mixture(h)


def random_linear(k: int, n: int, place: Place, bias: bool) -> nn.Linear:
    made = nn.Linear(k, n, bias=bias, device=place.device, dtype=place.dtype)
    made.requires_grad_(False).weight.normal_(0, k**-0.5)
    return made


def random_block(shape: MixtureShape, place: Place) -> MixtureBlock:
    """In the format of the shape."""
    dense = partial(random_linear, place=place, bias=shape.biases)
    make = partial(four_bit, place=place) if shape.kind == "int4" else dense
    packed = {"int4": random_int4, "mxfp4": random_mxfp4}[shape.kind]
    products = shape.products()
    weights = {name: packed(shape.experts, *products[name], place.device) for name in products}
    biases = {
        f"{name}_bias": torch.randn((shape.experts, n), dtype=place.dtype, device=place.device)
        for name, (_, n) in products.items()
        if shape.biases
    }
    experts = nmt.Experts(**weights, activation=shape.activation, **biases)
    norms = [torch.rand(shape.hidden, device=place.device) + 0.5 for _ in range(2)]
    return MixtureBlock(
        {name: make(k, n) for name, (k, n) in shape.linears().items()},
        tuple(each.to(place.dtype) for each in norms),
        nmt.Mixture(dense(shape.hidden, shape.experts), experts, shape.top_k),
    )


def of_blocks(shape: MixtureShape, blocks: list[MixtureBlock]) -> Decoder:
    """Without embedding and logits."""
    like = blocks[0].before_mlp
    return Decoder(shape, blocks, like.new_empty((0, shape.hidden)), nn.Identity())


def float_twin(model: Decoder, dtype: torch.dtype) -> Decoder:
    """The same decoder in ``dtype`` with dequantised weights."""

    def twin(block: MixtureBlock) -> MixtureBlock:
        mixture = block.mixture
        return MixtureBlock(
            {name: dense_like(getattr(block, name), dtype) for name in ("qkv", "o")},
            (block.before_attention.to(dtype), block.before_mlp.to(dtype)),
            nmt.Mixture(
                dense_like(mixture.router, dtype),
                float_experts(mixture.experts, dtype),
                mixture.top_k,
            ),
        )

    return of_blocks(model.shape, [twin(block) for block in model.blocks])
