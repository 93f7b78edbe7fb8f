"""A Llama-shaped decoder in plain torch, whose linear layers are whatever a *maker* makes: 16-bit
ones, ``numba_marlin.torch.Linear`` over random 4-bit codes, or torch's own INT4. Needs torch.

    model = random_decoder(LLAMA_8B, four_bit, Place("cuda", torch.float16))
    logits = model.step(tokens, model.cache(batch, context), position)   # one token a sequence
    logits = model.prefill(tokens, model.cache(1, context))              # of the last token

q, k and v are one layer, gate and up another, as ``nm.concat`` makes of a checkpoint's. Query head
h reads key head h % kv_heads (a checkpoint's order, h // (heads / kv_heads), is a permutation of
columns of q and rows of o): so what attention writes is what o reads, and nothing is copied.

``step`` writes its key and value at ``position``, which is a tensor, and attends to the whole
cache, whose length is fixed: a captured step costs what a sequence of that length costs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sizes import GROUP, Shape
from torch import Tensor, nn
from torch.nn import functional

import numba_marlin as nm
import numba_marlin.torch as nmt
from numba_marlin.formats.marlin import packed_columns

CODE_DEVIATION = math.sqrt((16**2 - 1) / 12)  # of codes that are uniform in 0 .. 15


@dataclass(frozen=True)
class Place:
    device: str
    dtype: torch.dtype


# ---- makers of linear layers: (k, n, place) -> module


def half(k: int, n: int, place: Place) -> nn.Module:
    """A torch.nn.Linear of random weights."""
    made = nn.utils.skip_init(nn.Linear, k, n, bias=False, device=place.device, dtype=place.dtype)
    made.weight.requires_grad_(False).normal_(0, k**-0.5)
    return made


def four_bit(k: int, n: int, place: Place) -> nn.Module:
    """A numba_marlin.torch.Linear of random codes and scales, made where they stay."""
    return nmt.Linear.from_packed(random_packed(k, n, place.device))


def random_packed(k: int, n: int, device: str) -> nm.PackedWeight:
    columns = packed_columns(n)
    words = torch.randint(-(2**31), 2**31, (k // 16, 2 * columns), dtype=torch.int32, device=device)
    scales = torch.rand((k // GROUP, columns), device=device) + 0.5
    scales = (scales / (CODE_DEVIATION * k**0.5)).half()
    return nm.PackedWeight("marlin", words, scales, 4, GROUP, k, n)


class TorchInt4(nn.Module):
    """torch's own INT4 product (``_weight_int4pack_mm``, the kernel that torchao's
    int4_weight_only calls), of random codes. bfloat16 only, and CUDA."""

    TILES = 8

    def __init__(self, k: int, n: int, place: Place):
        super().__init__()
        tiles = self.TILES
        shape = (n // 8, k // (tiles * 16), 32, tiles // 2)
        self.words = torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device=place.device)
        scales = (torch.rand((k // GROUP, n, 1), device=place.device) + 0.5) / (
            CODE_DEVIATION * k**0.5
        )
        self.scales = torch.cat([scales, torch.zeros_like(scales)], dim=2).to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return torch._weight_int4pack_mm(x, self.words, GROUP, self.scales)


def dense_like(layer: nn.Module, dtype: torch.dtype) -> nn.Linear:
    """A torch.nn.Linear of the numbers of any linear layer."""
    if isinstance(layer, nmt.Linear):
        weight = nmt.dequantize(layer.weight).t().to(dtype).contiguous()
    else:
        weight = layer.weight.to(dtype)
    made = nn.utils.skip_init(nn.Linear, *weight.t().shape, bias=False, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


# ---- what lies between the linear layers


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, 1e-5)


def add_norm(x: Tensor, more: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    x = x + more
    return x, norm(x, weight)


def turned(qk: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding; cos, sin [tokens, 1, head]."""
    first, second = qk.chunk(2, dim=-1)
    return qk * cos + torch.cat([-second, first], dim=-1) * sin


def turn_and_keep(qkv: Tensor, cos: Tensor, sin: Tensor, kept: Tensor, position: Tensor) -> Tensor:
    """Turn q and k, write k and v of one token a sequence into a layer's cache; return q.
    qkv [batch, heads + 2 kv, head], kept [batch, length, 2 kv, head]."""
    kv = kept.shape[2] // 2
    queries = qkv.shape[1] - 2 * kv
    qk = turned(qkv[:, : queries + kv], cos, sin)
    new = torch.cat([qk[:, queries:], qkv[:, queries + kv :]], dim=1)
    kept.index_copy_(1, position, new[:, None])
    return qk[:, :queries]


def gated(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=-1)
    return functional.silu(gate) * up


@dataclass(frozen=True)
class Glue:
    """The functions between linear layers: as torch runs them, or compiled, each by itself, by
    torch.compile."""

    name: str
    norm: Callable
    add_norm: Callable
    turned: Callable
    turn_and_keep: Callable
    gated: Callable


FUNCTIONS = (norm, add_norm, turned, turn_and_keep, gated)
PLAIN = Glue("plain", *FUNCTIONS)


@functools.cache
def compiled_glue(pdl: bool = False) -> Glue:
    """pdl: its kernels wait for the launch before themselves and let the next begin early
    (programmatic dependent launch), as the 4-bit kernels do: a product behind one of them then
    fills its ring while that one still runs."""
    torch._dynamo.config.recompile_limit = 256  # a version for each batch and type
    torch._dynamo.config.accumulated_recompile_limit = 1024
    options = {"triton.enable_pdl": True} if pdl else None
    each = (torch.compile(function, dynamic=False, options=options) for function in FUNCTIONS)
    return Glue("pdl" if pdl else "compiled", *each)


def attend(q: Tensor, kept: Tensor) -> Tensor:
    """One token a sequence over its whole cache. q [batch, heads, head] -> [batch, heads * head]"""
    batch, heads, size = q.shape
    kv = kept.shape[2] // 2
    keys, values = kept[:, :, :kv].transpose(1, 2), kept[:, :, kv:].transpose(1, 2)
    # the heads that read one key head are rows of one query: h = row * kv + key head
    rows = q.reshape(batch, heads // kv, kv, size).transpose(1, 2)
    found = functional.scaled_dot_product_attention(rows, keys, values)
    return found.transpose(1, 2).reshape(batch, heads * size)


def attend_causally(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One sequence over itself. q [tokens, heads, head], k, v [tokens, kv, head]"""
    tokens, heads, size = q.shape
    repeats = heads // k.shape[1]
    k, v = (each.repeat(1, repeats, 1) for each in (k, v))
    q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
    found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return found[0].transpose(0, 1).reshape(tokens, heads * size)


# ---- the model


class Block(nn.Module):
    def __init__(self, linears: dict[str, nn.Module], norms: tuple[Tensor, Tensor]):
        super().__init__()
        self.qkv, self.o = linears["qkv"], linears["o"]
        self.gate_up, self.down = linears["gate_up"], linears["down"]
        self.before_attention, self.before_mlp = norms


def same(x: Tensor) -> Tensor:
    return x


class Decoder(nn.Module):
    """blocks may hold one Block several times. reduce: applied to what o and down return, gather:
    to logits; of a decoder that is divided over ranks, the sum over them and all their columns."""

    def __init__(self, shape: Shape, blocks: list[Block], embedding: Tensor, head: nn.Module):
        super().__init__()
        self.shape, self.blocks = shape, blocks
        self.embedding, self.head = embedding, head
        self.last_norm = torch.ones(shape.hidden, dtype=embedding.dtype, device=embedding.device)
        self.glue, self.reduce, self.gather = PLAIN, same, same
        self.cos, self.sin = _angles(shape.head, 4096, embedding)

    def cache(self, batch: int, context: int) -> list[Tensor]:
        """Random keys and values of every layer, [batch, context, 2 kv heads, head]."""
        shape = (batch, context, 2 * self.shape.own_kv_heads, self.shape.head)
        first = self.embedding
        return [torch.randn(shape, dtype=first.dtype, device=first.device) for _ in self.blocks]

    def step(self, tokens: Tensor, cache: list[Tensor], position: Tensor) -> Tensor:
        """The next token's logits [batch, vocabulary]; tokens [batch], position int64 [1]."""
        return self.logits(*self.body(self.embedding[tokens], cache, position))

    def body(self, x: Tensor, cache: list[Tensor], position: Tensor) -> tuple[Tensor, Tensor]:
        """All blocks, on [batch, hidden]; the last sum is left to ``logits``."""
        cos, sin = self.cos[position], self.sin[position]

        def attention(qkv: Tensor, layer: int) -> Tensor:
            kept = cache[layer]
            return attend(self.glue.turn_and_keep(qkv, cos, sin, kept, position), kept)

        return self._blocks(x, attention)

    def prefill(self, tokens: Tensor, cache: list[Tensor]) -> Tensor:
        """The logits [1, vocabulary] after the last token of one sequence; tokens [length]."""
        length, heads, kv = len(tokens), self.shape.own_heads, self.shape.own_kv_heads
        cos, sin = self.cos[:length], self.sin[:length]

        def attention(qkv: Tensor, layer: int) -> Tensor:
            qk = self.glue.turned(qkv[:, : heads + kv], cos, sin)
            k, v = qk[:, heads:], qkv[:, heads + kv :]
            kept = cache[layer]
            kept[0, :length, :kv], kept[0, :length, kv:] = k, v
            return attend_causally(qk[:, :heads], k, v)

        x, more = self._blocks(self.embedding[tokens], attention)
        return self.logits(x[-1:], more[-1:])

    def _blocks(self, x: Tensor, attention: Callable) -> tuple[Tensor, Tensor]:
        glue, more = self.glue, None
        for number, block in enumerate(self.blocks):
            if more is None:
                h = glue.norm(x, block.before_attention)
            else:
                x, h = glue.add_norm(x, more, block.before_attention)
            qkv = block.qkv(h).view(len(h), -1, self.shape.head)
            more = self.reduce(block.o(attention(qkv, number)))
            x, h = glue.add_norm(x, more, block.before_mlp)
            more = self.reduce(block.down(glue.gated(block.gate_up(h))))
        return x, more

    def logits(self, x: Tensor, more: Tensor) -> Tensor:
        _, h = self.glue.add_norm(x, more, self.last_norm)
        return self.gather(self.head(h))

    def with_glue(self, glue: Glue) -> Decoder:
        self.glue = glue
        return self


def _angles(size: int, positions: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, 1, size]."""
    speeds = 500000.0 ** (-torch.arange(0, size, 2, device=like.device).float() / size)
    angles = torch.arange(positions, device=like.device).float()[:, None, None] * speeds
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def random_decoder(
    shape: Shape, make: Callable, place: Place, layers: int | None = None, head: Callable = None
) -> Decoder:
    """A decoder of random weights. layers: how many of them (default: all); head: maker of the
    layer of logits (default: ``make``)."""
    blocks = []
    for _ in range(layers or shape.layers):
        linears = {name: make(k, n, place) for name, (k, n) in shape.linears().items()}
        norms = [torch.rand(shape.hidden, device=place.device) + 0.5 for _ in range(2)]
        blocks.append(Block(linears, tuple(each.to(place.dtype) for each in norms)))
    embedding = torch.randn(
        (shape.vocabulary, shape.hidden), dtype=place.dtype, device=place.device
    )
    return Decoder(shape, blocks, embedding, (head or make)(*shape.output(), place))


def dense_twin(model: Decoder, dtype: torch.dtype) -> Decoder:
    """The same decoder with all numbers in ``dtype`` and dequantised weights."""
    blocks = [
        Block(
            {name: dense_like(getattr(block, name), dtype) for name in model.shape.linears()},
            (block.before_attention.to(dtype), block.before_mlp.to(dtype)),
        )
        for block in model.blocks
    ]
    return Decoder(model.shape, blocks, model.embedding.to(dtype), dense_like(model.head, dtype))
