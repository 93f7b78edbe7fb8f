"""A Llama-shaped decoder in plain torch, whose linear layers are whatever a *maker* makes: 16-bit
ones, ``numba_marlin.torch.Linear`` over random 4-bit codes, or another project's (``peers``). Needs
torch.

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
from collections.abc import Callable
from dataclasses import dataclass

import torch
from peers import random_scales
from sizes import GROUP, Shape
from torch import Tensor, nn
from torch.nn import functional

import numba_marlin as nm
import numba_marlin.torch as nmt
from numba_marlin.formats.marlin import packed_columns


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
    dtype = torch.bfloat16 if place.dtype == torch.bfloat16 else torch.float16
    return nmt.Linear.from_packed(random_packed(k, n, place.device, dtype))


def random_packed(
    k: int, n: int, device: str, dtype: torch.dtype = torch.float16
) -> nm.PackedWeight:
    """Of codes 1 to 15, a mean of 8, which stands for 0: with code 0 too all columns would have a
    mean in common, which every product makes larger, and roundings with it (seen: errors of logits
    between 1e-4 and 1e-2)."""
    columns = packed_columns(n)
    words = torch.randint(-(2**31), 2**31, (k // 16, 2 * columns), dtype=torch.int32, device=device)
    zero = ~(words | words >> 1 | words >> 2 | words >> 3) & 0x11111111
    words |= zero << 3
    scales = random_scales(k, columns, device).to(dtype)
    return nm.PackedWeight("marlin", words, scales, 4, GROUP, k, n)


def dense_like(layer: nn.Module, dtype: torch.dtype) -> nn.Linear:
    """A torch.nn.Linear of the numbers of any linear layer."""
    if isinstance(layer, nmt.Linear):
        weight = nmt.dequantize(layer.weight, layer.scales.dtype).t().to(dtype).contiguous()
    else:
        weight = layer.weight.to(dtype)
    bias = None if layer.bias is None else layer.bias.to(dtype)
    made = nn.utils.skip_init(nn.Linear, *weight.t().shape, bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias, requires_grad=False)
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


def attend(q: Tensor, kept: Tensor) -> Tensor:
    """One token a sequence over its whole cache. q [batch, heads, head] -> [batch, heads * head]"""
    batch, heads, size = q.shape
    kv = kept.shape[2] // 2
    keys, values = kept[:, :, :kv].transpose(1, 2), kept[:, :, kv:].transpose(1, 2)
    # the heads that read one key head are rows of one query: h = row * kv + key head
    rows = q.reshape(batch, heads // kv, kv, size).transpose(1, 2)
    found = functional.scaled_dot_product_attention(rows, keys, values)
    return found.transpose(1, 2).reshape(batch, heads * size)


@dataclass(frozen=True)
class Glue:
    """The functions between linear layers, of a step or a prefill; attention is of a step:
    (qkv, cos, sin, kept, position) -> [batch, heads * head]."""

    name: str
    norm: Callable
    add_norm: Callable
    turned: Callable
    attention: Callable
    gated: Callable


def glue_of(name: str, change: Callable = lambda function: function) -> Glue:
    """Each function by itself, changed."""
    turn = change(turn_and_keep)

    def attention(qkv, cos, sin, kept, position):
        return attend(turn(qkv, cos, sin, kept, position), kept)

    return Glue(name, change(norm), change(add_norm), change(turned), attention, change(gated))


PLAIN = glue_of("plain")


@functools.cache
def compiled_glue(pdl: bool = False) -> Glue:
    """By torch.compile. pdl: its kernels wait for the launch before themselves and let the next
    begin early (programmatic dependent launch), as the 4-bit kernels do: a product behind one of
    them then fills its ring while that one still runs."""
    options = {"triton.enable_pdl": True} if pdl else None
    return glue_of("pdl" if pdl else "compiled", functools.partial(compiled, options=options))


def compiled(function: Callable, options: dict | None = None) -> Callable:
    torch._dynamo.config.recompile_limit = 256  # a version for each batch and type
    torch._dynamo.config.accumulated_recompile_limit = 1024
    return torch.compile(function, dynamic=False, options=options)


def glue_named(name: str) -> Glue:
    """plain, compiled, pdl or fused; ImportError for the last without Triton."""
    if name == "plain":
        return PLAIN
    if name != "fused":
        return compiled_glue(name == "pdl")
    from fused import fused_glue

    return fused_glue()


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

    def mlp(self, h: Tensor, glue: Glue) -> Tensor:
        return self.down(glue.gated(self.gate_up(h)))


def same(x: Tensor) -> Tensor:
    return x


class Decoder(nn.Module):
    """blocks may hold one Block, or what is used like one, several times. reduce: applied to what o
    and down return, gather: to logits; of a decoder that is divided over ranks, the sum over them
    and all their columns. join: in place of reduce and the glue's ``add_norm``, both in one."""

    def __init__(self, shape: Shape, blocks: list[Block], embedding: Tensor, head: nn.Module):
        super().__init__()
        self.shape, self.blocks = shape, blocks
        self.embedding, self.head = embedding, head
        self.last_norm = torch.ones(shape.hidden, dtype=embedding.dtype, device=embedding.device)
        self.glue, self.reduce, self.gather = PLAIN, same, same
        self.join: Callable | None = None
        self.cos, self.sin = _angles(shape.head, 4096, embedding)

    def cache(self, batch: int, context: int) -> list[Tensor]:
        """Random keys and values of every layer, [batch, context, 2 kv heads, head]."""
        shape = (batch, context, 2 * self.shape.own_kv_heads, self.shape.head)
        first = self.embedding
        return [torch.randn(shape, dtype=first.dtype, device=first.device) for _ in self.blocks]

    def step(self, tokens: Tensor, cache: list[Tensor], position: Tensor) -> Tensor:
        """The next token's logits [batch, vocabulary]; tokens [batch], position int64 [1]."""
        return self.logits(*self.body(self.embedding[tokens], cache, position))

    def body(
        self, x: Tensor, cache: list[Tensor], position: Tensor, more: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """All blocks, on [batch, hidden] and what is to be added to it first; the last sum is left
        to ``logits``."""
        cos, sin = self.cos[position], self.sin[position]

        def attention(qkv: Tensor, layer: int) -> Tensor:
            return self.glue.attention(qkv, cos, sin, cache[layer], position)

        return self._blocks(x, attention, more)

    def prefill(self, tokens: Tensor, cache: list[Tensor]) -> Tensor:
        """The logits [1, vocabulary] after the last token of one sequence; tokens [length]."""
        x, more = self.prefill_body(self.embedding[tokens], cache)
        return self.logits(x[-1:], more[-1:])

    def prefill_body(
        self, x: Tensor, cache: list[Tensor], more: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As ``body``, on a sequence [length, hidden]."""
        length, heads, kv = len(x), self.shape.own_heads, self.shape.own_kv_heads
        cos, sin = self.cos[:length], self.sin[:length]

        def attention(qkv: Tensor, layer: int) -> Tensor:
            qk = self.glue.turned(qkv[:, : heads + kv], cos, sin)
            k, v = qk[:, heads:], qkv[:, heads + kv :]
            kept = cache[layer]
            kept[0, :length, :kv], kept[0, :length, kv:] = k, v
            return attend_causally(qk[:, :heads], k, v)

        return self._blocks(x, attention, more)

    def _blocks(
        self, x: Tensor, attention: Callable, more: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        glue = self.glue
        for number, block in enumerate(self.blocks):
            if more is None:
                h = glue.norm(x, block.before_attention)
            else:
                x, h = self.add_norm(x, more, block.before_attention)
            qkv = block.qkv(h).view(len(h), -1, self.shape.head)
            x, h = self.add_norm(x, block.o(attention(qkv, number)), block.before_mlp)
            more = block.mlp(h, glue)
        return x, more

    def logits(self, x: Tensor, more: Tensor) -> Tensor:
        _, h = self.add_norm(x, more, self.last_norm)
        return self.gather(self.head(h))

    def add_norm(self, x: Tensor, more: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        if self.join is not None:
            return self.join(x, more, weight)
        return self.glue.add_norm(x, self.reduce(more), weight)

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
