"""Glue between products, in Triton: rotary embedding, the cache's new rows, and attention of one
token a sequence over its whole cache, in one kernel.

qkv       [batch, heads + 2 kv, 128] float16 or bfloat16, as all that follow: what the product gives
cos, sin  [1, 1, 128], of ``position``
kept      [batch, length, 2 kv, 128]: keys, then values; this token's are written at ``position``,
          and read from qkv
position  int64 [1], below length
result    [batch, heads * 128]

Query head h reads key head h % kv (``decoder``); the heads of one key head are rows of one product,
16 at most. q and k are turned in fp32 and rounded; probabilities are rounded too. Scores and sums
are fp32, the result is rounded once.

A block has a key head of a sequence and, where there are few of those, one of several parts of the
cache. Parts are left in a workspace, and the block that comes last adds them up in their order.
Position, angles and the first ``CHUNK`` rows of a part are read before ``griddepcontrol.wait``:
``fused`` says why that is right.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

SIZE = 128  # of a head
CHUNK = 64  # rows of the cache at once
ROWS = 16  # of queries, of which heads / kv are some: the least that a product on tensor cores has
WARPS = 4
BLOCKS = 132  # that splitting along the cache aims at
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def turn(place, column, cos, sin, mask, SIZE: tl.constexpr):
    """A head at ``place`` [..., SIZE], turned; fp32. column: 0 to SIZE - 1."""
    half: tl.constexpr = SIZE // 2
    other = tl.where(column < half, column + half, column - half)
    sign = tl.where(column < half, -1.0, 1.0)
    first = tl.load(place + column, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(place + other, mask=mask, other=0.0).to(tl.float32)
    return first * cos + sign * second * sin


@triton.jit
def attention_kernel(
    qkv,
    cos,
    sin,
    kept,
    position,
    result,
    sums,  # fp32 [batch, kv, splits, heads / kv, SIZE]
    weights,  # fp32 [batch, kv, splits, 2, heads / kv]: the largest score, the sum of weights
    arrived,  # int32 [batch, kv], zero before and after
    length,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNKS: tl.constexpr,  # of a part
    SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
):
    gdc_launch_dependents()
    split, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column, row = tl.arange(0, SIZE), tl.arange(0, ROWS)
    own_row = row < HEADS // KV
    at = tl.load(position).to(tl.int32)
    angle_cos = tl.load(cos + column).to(tl.float32)
    angle_sin = tl.load(sin + column).to(tl.float32)
    begin = split * (CHUNKS * CHUNK)
    cache = kept + (sequence * length).to(tl.int64) * (2 * KV * SIZE) + head * SIZE
    place = begin + tl.arange(0, CHUNK)
    there = ((place < length) & (place != at))[:, None]
    keys = cache + place[:, None] * (2 * KV * SIZE) + column[None, :]
    k = tl.load(keys, mask=there, other=0.0)
    v = tl.load(keys + KV * SIZE, mask=there, other=0.0)

    gdc_wait()
    given = qkv + sequence * ((HEADS + 2 * KV) * SIZE)
    q = turn(
        given + (row * KV + head)[:, None] * SIZE,
        column[None, :],
        angle_cos[None, :],
        angle_sin[None, :],
        own_row[:, None],
        SIZE,
    ).to(qkv.dtype.element_ty)
    new_k = turn(given + (HEADS + head) * SIZE, column, angle_cos, angle_sin, column < SIZE, SIZE)
    new_k = new_k.to(qkv.dtype.element_ty)
    new_v = tl.load(given + (HEADS + KV + head) * SIZE + column)
    mine = (column < SIZE) & (at >= begin) & (at < begin + CHUNKS * CHUNK)
    tl.store(cache + at * (2 * KV * SIZE) + column, new_k, mask=mine)
    tl.store(cache + at * (2 * KV * SIZE) + KV * SIZE + column, new_v, mask=mine)

    most = tl.full([ROWS], -float("inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, SIZE], tl.float32)
    for number in range(CHUNKS):
        place = begin + number * CHUNK + tl.arange(0, CHUNK)
        new = (place == at)[:, None]
        k = tl.where(new, new_k[None, :], k)
        v = tl.where(new, new_v[None, :], v)
        scores = tl.dot(q, tl.trans(k)) * (LOG2_E / tl.sqrt(1.0 * SIZE))
        scores = tl.where((place < length)[None, :], scores, -float("inf"))
        # a part may lie behind the cache's end; then nothing has weight
        higher = tl.maximum(tl.maximum(most, tl.max(scores, 1)), -1e30)
        faded = tl.exp2(most - higher)
        each = tl.exp2(scores - higher[:, None])
        weight = weight * faded + tl.sum(each, 1)
        found = found * faded[:, None] + tl.dot(each.to(qkv.dtype.element_ty), v)
        most = higher
        following = place + CHUNK
        there = ((following < length) & (following != at) & (number + 1 < CHUNKS))[:, None]
        keys += CHUNK * (2 * KV * SIZE)
        k = tl.load(keys, mask=there, other=0.0)
        v = tl.load(keys + KV * SIZE, mask=there, other=0.0)

    out = result + (sequence * HEADS + row * KV + head)[:, None] * SIZE + column[None, :]
    if SPLITS == 1:
        tl.store(out, (found / weight[:, None]).to(qkv.dtype.element_ty), mask=own_row[:, None])
    else:
        group: tl.constexpr = HEADS // KV
        pair = sequence * KV + head
        part = sums + (pair * SPLITS * group + row)[:, None] * SIZE + column[None, :]
        said = weights + pair * SPLITS * 2 * group + row
        tl.store(part + split * (group * SIZE), found, mask=own_row[:, None])
        tl.store(said + split * (2 * group), most, mask=own_row)
        tl.store(said + split * (2 * group) + group, weight, mask=own_row)
        tl.debug_barrier()  # every thread's part, before one thread says that it is there
        if tl.atomic_add(arrived + pair, 1, sem="acq_rel") == SPLITS - 1:
            most = tl.full([ROWS], -float("inf"), tl.float32)
            for other in range(SPLITS):
                most = tl.maximum(
                    most, tl.load(said + other * (2 * group), mask=own_row, other=0.0)
                )
            weight = tl.zeros([ROWS], tl.float32)
            found = tl.zeros([ROWS, SIZE], tl.float32)
            for other in range(SPLITS):
                faded = tl.exp2(tl.load(said + other * (2 * group), mask=own_row, other=0.0) - most)
                weight += faded * tl.load(
                    said + other * (2 * group) + group, mask=own_row, other=1.0
                )
                found += faded[:, None] * tl.load(
                    part + other * (group * SIZE), mask=own_row[:, None], other=0.0
                )
            tl.store(out, (found / weight[:, None]).to(qkv.dtype.element_ty), mask=own_row[:, None])
            tl.store(arrived + pair, 0)


def splits_of(pairs: int, length: int) -> int:
    """Parts that a cache is read in, so that there are about ``BLOCKS`` of them."""
    return max(1, min(BLOCKS // pairs, triton.cdiv(length, CHUNK)))


@functools.cache
def workspace(device: torch.device, pairs: int, splits: int, group: int):
    """(sums, weights, arrived), kept: launches on one stream use them in turn."""
    sums = torch.empty(pairs * splits * group * SIZE, device=device)
    weights = torch.empty(pairs * splits * 2 * group, device=device)
    return sums, weights, torch.zeros(pairs, dtype=torch.int32, device=device)


def attention(qkv, cos, sin, kept, position):
    """ValueError for heads of another size or more than 16 of them to a key head."""
    batch, heads, size = qkv.shape
    length, kv = kept.shape[1], kept.shape[2] // 2
    heads -= 2 * kv
    if size != SIZE or heads % kv or heads // kv > ROWS:
        raise ValueError(
            f"heads={heads} of {size} to kv={kv} must be of {SIZE}, a multiple of kv, at most"
            f" {ROWS} times as many"
        )
    splits = splits_of(batch * kv, length)
    result = qkv.new_empty((batch, heads * SIZE))
    attention_kernel[(splits, kv, batch)](
        qkv,
        cos,
        sin,
        kept,
        position,
        result,
        *workspace(qkv.device, batch * kv, splits, heads // kv),
        length,
        HEADS=heads,
        KV=kv,
        SPLITS=splits,
        CHUNKS=triton.cdiv(triton.cdiv(length, CHUNK), splits),
        SIZE=SIZE,
        CHUNK=CHUNK,
        ROWS=ROWS,
        num_warps=WARPS,
        launch_pdl=True,
    )
    return result
