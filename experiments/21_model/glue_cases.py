"""What is asked of the glue in Triton, on the PTX machine (``on_machine``): results that are exact
where nothing is rounded, and under an elementwise bound with random numbers. Needs Triton, torch.

    for case in cases():
        worst = case.run(schedule)  # the largest error / its bound: at most 1 if right

A bound of 0 asks for equal numbers: their ratio is 0 or infinite. Whatever the machine finds wrong
(a race, memory read before griddepcontrol.wait) it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import attention
import gate
import join
import norm
import torch
import triton
import triton.language as tl
from decoder import attend, turn_and_keep
from on_machine import machined

UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}  # half of an ulp, relative
FP32 = 2.0**-24
LEAST_HALF = 2.0**-25  # half of the smallest float16


@dataclass(frozen=True)
class Case:
    kernel: str
    what: str
    m: int
    run: Callable[..., float]  # of a Schedule or None


def worst(found, expected, bound=0.0) -> float:
    """NaN counts as infinite."""
    error = (found.double() - expected.double()).abs()
    ratio = torch.where(error == 0, 0.0, error / bound)
    return float(ratio.nan_to_num(nan=float("inf"), posinf=float("inf")).max())


def random(*shape, dtype=torch.float16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# ---- norm, gate


def normed(row, weight):
    return row / (row.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def norm_bound(expected, dtype):
    """fp32: sums of 64 numbers a thread at most, and a tree over 256; then one rounding."""
    return expected.abs() * (UNIT[dtype] + 100 * FP32) + LEAST_HALF


def norm_case(rows: int, width: int, dtype, schedule=None) -> float:
    x, more, weight = (
        random(*shape, dtype=dtype, seed=seed)
        for seed, shape in enumerate(((rows, width), (rows, width), (width,)))
    )
    given = (x, more, weight)
    done = machined(
        lambda: (norm.norm(x, weight), norm.add_norm(x, more, weight)),
        given,
        ("weight",),
        schedule=schedule,
    )
    alone, (total, result) = done.returned
    added = (x.float() + more.float()).to(dtype)
    first, second = (normed(each.double(), weight.double()) for each in (x, added))
    return max(
        worst(total, added),
        worst(alone, first, norm_bound(first, dtype)),
        worst(result, second, norm_bound(second, dtype)),
    )


def gate_case(rows: int, width: int, dtype, schedule=None) -> float:
    both = random(rows, 2 * width, dtype=dtype) * 4
    done = machined(lambda: gate.gated(both), (both,), schedule=schedule)
    first, second = both.double().chunk(2, dim=-1)
    expected = first / (1 + (-first).exp()) * second
    # the exponential's argument is rounded: 40 at most, times 2**-24
    return worst(done.returned, expected, expected.abs() * (UNIT[dtype] + 60 * FP32) + LEAST_HALF)


# ---- attention

COMPLETE = ("kept", "position", "cos", "sin")


@dataclass(frozen=True)
class Sizes:
    batch: int
    heads: int
    kv: int
    length: int
    position: int


def attended(given: tuple, parts: bool, schedule):
    """-> (result, cache) by the machine; parts: whether the cache is split."""
    qkv, cos, sin, kept, position = given
    kept = kept.clone()
    attention.workspace.cache_clear()  # memory of another run
    blocks, attention.BLOCKS = attention.BLOCKS, attention.BLOCKS if parts else 1
    try:
        done = machined(
            lambda: attention.attention(qkv, cos, sin, kept, position),
            (qkv, cos, sin, kept, position),
            COMPLETE,
            schedule=schedule,
        )
        batch, heads, _ = qkv.shape
        kv = kept.shape[2] // 2
        pairs, group = batch * kv, heads // kv - 2
        splits = attention.splits_of(pairs, kept.shape[1])
        assert (splits > 1) == parts
        *_, arrived = attention.workspace(qkv.device, pairs, splits, group)
        assert not arrived.any(), "the next launch counts from zero"
    finally:
        attention.BLOCKS = blocks
        attention.workspace.cache_clear()
    return done.returned, kept


def picking(sizes: Sizes, parts: bool, schedule=None) -> float:
    """Each query is eight times one of its keys, turned back by a right angle, which is exact: all
    other weights vanish, and the result is that key's value bit for bit."""
    batch, heads, kv, length, at = vars(sizes).values()
    size = attention.SIZE
    generator = torch.Generator().manual_seed(1)
    keys = torch.randint(0, 2, (batch, length, kv, size), generator=generator) * 2.0 - 1
    values = torch.randint(-99, 100, (batch, length, kv, size), generator=generator).float()
    picked = torch.randint(0, length, (batch, heads), generator=generator)
    picked[0, -1] = at

    def back(turned):  # by a right angle: (-second, first) of what this returns is ``turned``
        first, second = turned.chunk(2, dim=-1)
        return torch.cat([second, -first], dim=-1)

    each = torch.arange(batch)[:, None].expand(batch, heads)
    of_head = (torch.arange(heads) % kv)[None].expand(batch, heads)
    queries = back(8 * keys[each, picked, of_head])
    qkv = torch.cat([queries, back(keys[:, at]), values[:, at]], dim=1).half()
    expected_cache = torch.cat([keys, values], dim=2).half()
    kept = expected_cache.clone()
    kept[:, at] = 1000.0  # what stands there must not be read
    angles = (torch.full((1, 1, size), value).half() for value in (0.0, 1.0))
    given = (qkv, *angles, kept, torch.tensor([at]))
    found, cache = attended(given, parts, schedule)
    expected = values[each, picked, of_head].reshape(batch, heads * size)
    return max(worst(found, expected), worst(cache, expected_cache))


def attending(sizes: Sizes, parts: bool, dtype, schedule=None) -> float:
    batch, heads, kv, length, at = vars(sizes).values()
    size, unit = attention.SIZE, UNIT[dtype]
    qkv = random(batch, heads + 2 * kv, size, dtype=dtype)
    kept = random(batch, length, 2 * kv, size, dtype=dtype, seed=1)
    angles = random(1, 1, size // 2, dtype=torch.float32, seed=2).repeat(1, 1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    position = torch.tensor([at])
    found, cache = attended((qkv, cos, sin, kept, position), parts, schedule)
    exact = kept.double()
    q = turn_and_keep(qkv.double(), cos.double(), sin.double(), exact, position)
    expected = attend(q, exact)
    # of a score: q and the new key are rounded, 128 products added up in fp32
    keys, values = (
        each.repeat(1, 1, heads // kv, 1) for each in exact.split(kv, dim=2)
    )  # head h reads h % kv
    scores = torch.einsum("bhd,blhd->bhl", q, keys) / size**0.5
    sums = torch.einsum("bhd,blhd->bhl", q.abs(), keys.abs()) / size**0.5
    off = float((sums * (2 * unit + (size + 8) * FP32)).max())
    weights = scores.softmax(dim=-1)
    relative = torch.tensor(2 * off).expm1().item() + unit + 2 * (length + 64) * FP32
    bound = torch.einsum("bhl,blhd->bhd", weights, values.abs()) * relative
    bound += LEAST_HALF * values.abs().sum(1)  # weights below the smallest float16
    bound = bound.reshape(expected.shape) + unit * expected.abs()
    row = exact.clone()
    row[:, at] = exact[:, at].abs() * (unit + 4 * FP32) + 2 * FP32
    fresh = torch.zeros(exact.shape, dtype=torch.bool)
    fresh[:, at] = True
    return max(
        worst(found, expected, bound),
        worst(cache[fresh], exact[fresh], row[fresh] + 1e-12),
        worst(cache[~fresh], kept[~fresh]),
    )


# ---- join


@dataclass(frozen=True)
class Ranks:
    """Inboxes of several ranks in one memory."""

    inbox: join.Inbox
    memory: tuple  # whose contents count
    tables: tuple


def ranks_of(world: int, width: int) -> Ranks:
    shapes = join.shapes(world, width)
    inboxes = [torch.full(shapes[0], float("nan")).half() for _ in range(world)]
    flags = [torch.zeros(shapes[1], dtype=torch.int32) for _ in range(world)]
    tables = [torch.zeros(world, dtype=torch.int64) for _ in range(2)]
    calls = torch.zeros(world, join.MOST_ROWS, dtype=torch.int32)
    return Ranks(
        join.Inbox(0, world, *tables, calls),
        (*inboxes, *flags, *tables, calls),
        tuple(zip(tables, (inboxes, flags))),
    )


def joining(world: int, rows: int, width: int, schedule=None) -> float:
    """Three launches in a row, the ranks of each at once."""
    ranks, weight = ranks_of(world, width), random(width)
    x = random(1, rows, width, seed=1).repeat(world, 1, 1)
    parts = [random(world, rows, width, seed=seed) for seed in (2, 3, 4)]

    def call():
        found, last = [], x
        for each in parts:
            last, result = ranks.inbox.join(last, each, weight)
            found.append((last, result))
        return found

    done = machined(call, (x, weight, *parts, *ranks.memory), ("weight",), ranks.tables, schedule)
    counted = ranks.inbox.calls[:, :rows]
    ratio, last = worst(counted, torch.full(counted.shape, len(parts))), x[0]
    for (total, result), each in zip(done.returned, parts):
        last = (last.float() + in_order(each)).half()
        expected = normed(last.double(), weight.double())
        ratio = max(ratio, worst(total, last.expand(total.shape)))
        ratio = max(ratio, worst(result, result[:1].expand(result.shape)))
        ratio = max(ratio, worst(result[0], expected, norm_bound(expected, torch.float16)))
    return ratio


def in_order(parts):
    """The sum [rows, width] fp32 of all ranks' parts, first to last."""
    total = torch.zeros(parts.shape[1:])
    for each in parts:
        total += each.float()
    return total


@triton.jit
def rounds_kernel(
    partials,  # [CALLS, WORLD, rows, WIDTH]; sums likewise, fp32
    sums,
    inboxes,
    flags,
    CALLS: tl.constexpr,
    MOST: tl.constexpr,
    WORLD: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Calls in a row without an end of a launch between them: ranks get out of step."""
    tl.inline_asm_elementwise(
        "griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
    row, rank, column = tl.program_id(0), tl.program_id(1), tl.arange(0, WIDTH)
    for call in range(CALLS):
        place = ((call * WORLD + rank) * tl.num_programs(0) + row) * WIDTH + column
        mine = tl.load(partials + place)
        found = join.exchange(mine, inboxes, flags, rank, row, call + 1, MOST, WORLD, WIDTH)
        tl.store(sums + place, found)


def out_of_step(world: int, rows: int, width: int, schedule=None) -> float:
    calls, ranks = 5, ranks_of(world, width)
    parts = random(calls, world, rows, width, seed=5)
    sums = torch.empty(parts.shape)

    def call():
        rounds_kernel[(rows, world)](
            parts,
            sums,
            ranks.inbox.inboxes,
            ranks.inbox.flags,
            CALLS=calls,
            MOST=join.MOST_ROWS,
            WORLD=world,
            WIDTH=width,
            num_warps=2,
            launch_pdl=True,
        )

    machined(call, (parts, *ranks.memory), (), ranks.tables, schedule)
    return max(worst(found, in_order(each).expand(found.shape)) for found, each in zip(sums, parts))


# ---- all of them


def cases() -> Iterator[Case]:
    """The first of each kernel tells most."""
    half, brain = UNIT
    yield Case("norm", "random, float16", 3, partial(norm_case, 3, 512, half))
    yield Case("norm", "random, bfloat16", 2, partial(norm_case, 2, 4096, brain))
    yield Case("gate", "random, float16", 2, partial(gate_case, 2, 1320, half))
    yield Case("gate", "random, bfloat16", 1, partial(gate_case, 1, 1320, brain))
    few, many = Sizes(1, 8, 2, 200, 130), Sizes(2, 16, 2, 72, 71)
    yield Case("attention", "picked, in parts", 1, partial(picking, few, True))
    yield Case("attention", "picked, whole", 2, partial(picking, many, False))
    yield Case("attention", "random, in parts", 1, partial(attending, few, True, half))
    yield Case("attention", "random, whole", 2, partial(attending, many, False, half))
    yield Case("attention", "random, bfloat16", 1, partial(attending, few, True, brain))
    yield Case("join", "two ranks, three launches", 2, partial(joining, 2, 2, 256))
    yield Case("join", "three ranks, three launches", 1, partial(joining, 3, 1, 256))
    yield Case("join", "two ranks, out of step", 2, partial(out_of_step, 2, 2, 64))
    yield Case("join", "four ranks, out of step", 1, partial(out_of_step, 4, 1, 64))
