"""shfl, vote, match, redux, activemask, elect, movmatrix, bar.warp.sync: lanes of a warp that
exchange values.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-shfl-sync
Lanes named by a member mask must come together (DivergentCollective otherwise): this machine
reconverges at the immediate post-dominator, so they do in every program that does not rely on the
scheduler.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import DivergentCollective
from numba_marlin.emulator.instructions import allow, instruction, operands, unsupported
from numba_marlin.emulator.state import numerics
from numba_marlin.emulator.state.lanes import FULL, WARP, error_at
from numba_marlin.emulator.text.program import Immediate, Pair, Sink

LANE = np.arange(WARP)


def members(ins, lanes, mask, checks) -> None:
    """Raise DivergentCollective unless every live lane that ``mask`` (value per lane or constant)
    names is here, and names itself and the same others."""
    if lanes.full and np.all(np.equal(mask, FULL)):
        return
    masks = np.broadcast_to(mask, lanes.shape).astype(np.uint32)
    matrix, present, row = by_warp(lanes, masks)
    live = np.array(lanes.placement.live, np.uint64)[lanes.warps]
    asked = named(masks, lanes) & named(live[:, None] if lanes.full else live, lanes)
    missing = asked & ~spread(present, row, lanes)
    if missing.any():
        warp, _, at = lanes.first(missing.any(-1))
        raise error_at(
            DivergentCollective,
            f"member mask {masks[at]:#010x} names lanes that are elsewhere; missing are",
            ins,
            lanes.placement,
            warp,
            tuple(np.flatnonzero(missing[at]).tolist()),
        )
    alone = ~np.take_along_axis(
        named(masks, lanes), np.broadcast_to(coordinates(lanes)[1], lanes.shape)[..., None], -1
    )[..., 0]
    if alone.any():
        at = lanes.first(alone)[2]
        checks.report(
            "lane-outside-mask",
            lanes.fault(
                DivergentCollective,
                f"member mask {masks[at]:#010x} does not name the lanes that execute this: each"
                " must be in its own mask",
                ins,
                alone,
            ),
        )
    others = spread(matrix, row, lanes)
    differ = (asked & (others != masks[..., None])).any(-1)
    if differ.any():
        at = lanes.first(differ)[2]
        other = others[at][asked[at] & (others[at] != masks[at])][0]
        raise lanes.fault(
            DivergentCollective,
            f"member mask {masks[at]:#010x} of these lanes, and {other:#010x} of lanes that it"
            " names: lanes that meet must give the same mask",
            ins,
            differ,
        )


def coordinates(lanes):
    """(warp, lane) index arrays of ``lanes.shape``, or broadcasting to it."""
    return (lanes.warps[:, None], LANE[None, :]) if lanes.full else (lanes.warps, lanes.columns)


def by_warp(lanes, values):
    """Values per lane -> (matrix [warps, 32], which lanes are here, row of each lane)."""
    values = np.broadcast_to(values, lanes.shape)
    if lanes.full:
        return values, np.ones(lanes.shape, bool), np.arange(lanes.shape[0])[:, None]
    warps, row = np.unique(lanes.warps, return_inverse=True)
    matrix, present = np.zeros((len(warps), WARP), values.dtype), np.zeros((len(warps), WARP), bool)
    matrix[row, lanes.columns], present[row, lanes.columns] = values, True
    return matrix, present, row


def spread(matrix, row, lanes):
    """Per lane, the row of its warp: [*lanes.shape, 32]."""
    return np.broadcast_to(matrix[row], lanes.shape + (WARP,))


def named(mask, lanes):
    """Member masks per lane -> bool [*lanes.shape, 32]."""
    mask = np.broadcast_to(mask, lanes.shape)
    return (mask[..., None] >> LANE.astype(np.uint32) & 1).astype(bool)


def given(mask, lanes, source):
    """Whether lane ``source`` of each lane's warp is named by its ``mask``, and here."""
    if lanes.full and np.ndim(mask) == 0 and int(mask) == FULL:
        return np.True_
    _, present, row = by_warp(lanes, np.True_)
    members = named(mask, lanes) & spread(present, row, lanes)
    source = np.broadcast_to(source, lanes.shape)
    return np.take_along_axis(members, source[..., None], -1)[..., 0]


def with_mask(ins, count: int) -> list:
    """The operands of an instruction that has ``count`` with its member mask. Of old, without
    .sync, there is none, and all lanes that are here take part."""
    if ins.root.endswith(".sync"):
        return operands(ins, count)
    return [*operands(ins, count - 1), Immediate(FULL)]


@instruction("shfl.sync", "shfl")
def shfl(ins, m):
    """#data-movement-and-conversion-instructions-shfl-sync: d|p, a, b, c, membermask;
    #data-movement-and-conversion-instructions-shfl-deprecated"""
    allow(ins, "up", "down", "bfly", "idx")
    result, *rest = with_mask(ins, 5)
    first, second = (result.first, result.second) if isinstance(result, Pair) else (result, Sink())
    d, p = m.destination(ins, first, "b32"), m.destination(ins, second, "pred")
    a, b, c, mask = (m.source(ins, operand, "u32") for operand in rest)
    mode = ins.modifiers[0]
    if mode not in ("up", "down", "bfly", "idx"):
        raise unsupported(ins, f"mode .{mode}")

    def step(lanes):
        s = lanes.sel
        if ins.root.endswith(".sync"):
            members(ins, lanes, mask[s], m.checks)
        warp, lane = coordinates(lanes)
        by, clamp = np.asarray(b[s]).astype(np.int64) & 31, np.asarray(c[s]).astype(np.int64)
        segment, clamp = clamp >> 8 & 31, clamp & 31
        low = lane & segment
        high = low | (clamp & ~segment)
        if mode == "up":
            source = lane - by
            inside = source >= high
        else:
            source = {"down": lane + by, "bfly": lane ^ by, "idx": low | (by & ~segment)}[mode]
            inside = source <= high
        source = np.where(inside, source, lane)
        if m.undefined is not None:
            m.undefined.shuffled(ins, lanes, source, given(mask[s], lanes, source))
        d[s], p[s] = (
            a[np.broadcast_arrays(warp, source)[0], source],
            np.broadcast_to(inside, lanes.shape),
        )

    return step


@instruction("vote.sync", "vote")
def vote(ins, m):
    """#parallel-synchronization-and-communication-instructions-vote-sync,
    #parallel-synchronization-and-communication-instructions-vote-deprecated"""
    allow(ins, "all", "any", "uni", "ballot")
    mode = ins.modifiers[0]
    target, predicate, mask = with_mask(ins, 3)
    d = m.destination(ins, target, "b32" if mode == "ballot" else "pred")
    p, mask = m.source(ins, predicate, "pred"), m.source(ins, mask, "u32")

    def step(lanes):
        s = lanes.sel
        if ins.root.endswith(".sync"):
            members(ins, lanes, mask[s], m.checks)
        votes, present, row = by_warp(lanes, p[s])
        asked = named(mask[s], lanes) & spread(present, row, lanes)
        votes = spread(votes, row, lanes)
        yes = asked & votes
        if mode == "ballot":
            d[s] = (yes.astype(np.uint64) << LANE.astype(np.uint64)).sum(axis=-1).astype(np.uint32)
        elif mode == "any":
            d[s] = yes.any(axis=-1)
        else:
            everyone = (votes | ~asked).all(axis=-1)
            d[s] = everyone if mode == "all" else everyone | ~yes.any(axis=-1)

    return step


@instruction("activemask")
def activemask(ins, m):
    """#parallel-synchronization-and-communication-instructions-activemask"""
    allow(ins)
    d = m.destination(ins, operands(ins, 1)[0], "b32")

    def step(lanes):
        _, present, row = by_warp(lanes, np.True_)
        masks = np.packbits(present, axis=1, bitorder="little").view("<u4")[:, 0]
        d[lanes.sel] = np.broadcast_to(masks[row], lanes.shape)

    return step


@instruction("match.any.sync", "match.all.sync")
def match(ins, m):
    """#parallel-synchronization-and-communication-instructions-match-sync"""
    allow(ins)
    kind = ins.types[-1]
    result, value, mask = operands(ins, 3)
    first, second = (result.first, result.second) if isinstance(result, Pair) else (result, Sink())
    d, p = m.destination(ins, first, "b32"), m.destination(ins, second, "pred")
    a, mask = m.source(ins, value, kind), m.source(ins, mask, "u32")
    everyone = "all" in ins.root

    def step(lanes):
        s = lanes.sel
        members(ins, lanes, mask[s], m.checks)
        mine = np.broadcast_to(a[s], lanes.shape)
        values, present, row = by_warp(lanes, mine)
        asked = named(mask[s], lanes) & spread(present, row, lanes)
        same = asked & (spread(values, row, lanes) == mine[..., None])
        bits = (same.astype(np.uint64) << LANE.astype(np.uint64)).sum(axis=-1).astype(np.uint32)
        if everyone:
            agree = (same == asked).all(axis=-1)
            d[s], p[s] = np.where(agree, bits, np.uint32(0)), agree
        else:
            d[s] = bits

    return step


REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@instruction("redux.sync")
def redux(ins, m):
    """#parallel-synchronization-and-communication-instructions-redux-sync"""
    name, kind = ins.modifiers[0], ins.types[-1]
    if kind == "f32":
        return redux_floats(ins, m, name)
    allow(ins, *REDUCTIONS)
    if name not in REDUCTIONS or kind not in ("u32", "s32", "b32"):
        raise unsupported(ins, f"{name} of {kind} is not defined")
    d, a, mask = m.bind(ins, kind, kind, "u32")
    function = REDUCTIONS[name]
    dtype = m.dtype(kind)
    neutral = {"min": np.iinfo(dtype).max, "max": np.iinfo(dtype).min, "and": ~dtype(0)}.get(
        name, 0
    )

    def step(lanes):
        s = lanes.sel
        members(ins, lanes, mask[s], m.checks)
        values, present, row = by_warp(lanes, a[s])
        asked = named(mask[s], lanes) & spread(present, row, lanes)
        chosen = np.where(asked, spread(values, row, lanes), dtype(neutral))
        d[s] = function.reduce(chosen, axis=-1, dtype=dtype)

    return step


def redux_floats(ins, m, name: str):
    """min and max of float32 (sm_100): of the sizes with .abs; NaN wins with .NaN, and else counts
    only where there is nothing else. -0 is below +0, so the comparison is one of integers."""
    allow(ins, "min", "max", "abs", "NaN")
    if name not in ("min", "max"):
        raise unsupported(ins, "of f32 there are .min and .max")
    d, a, mask = m.bind(ins, "f32", "f32", "u32")
    sizes, propagate = "abs" in ins.modifiers, "NaN" in ins.modifiers
    low = name == "min"
    neutral = np.uint32(0xFFFFFFFF if low else 0)
    sign = np.uint32(1 << 31)

    def step(lanes):
        s = lanes.sel
        members(ins, lanes, mask[s], m.checks)
        values, present, row = by_warp(lanes, np.abs(a[s]) if sizes else a[s])
        asked = named(mask[s], lanes) & spread(present, row, lanes)
        values = spread(values, row, lanes)
        bits = np.ascontiguousarray(values).view(np.uint32)
        rank = np.where(bits & sign, ~bits, bits | sign)
        nan = asked & (values != values)
        found = np.where(asked & ~nan, rank, neutral)
        found = found.min(axis=-1) if low else found.max(axis=-1)
        result = np.where(found & sign, found ^ sign, ~found).view(np.float32)
        nothing = nan.any(axis=-1) if propagate else (nan == asked).all(axis=-1)
        d[s] = np.where(nothing, numerics.NAN32, result)

    return step


@instruction("movmatrix")
def movmatrix(ins, m):
    """#warp-level-matrix-instructions-movmatrix: an 8 x 8 matrix of 16 bits, of which lane i holds
    elements 2 * (i % 4) and the next of row i // 4, transposed."""
    if ins.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise unsupported(ins, "must be .sync.aligned.m8n8.trans.b16")
    d, a = m.bind(ins, "b32", "b32")

    def step(lanes):
        lanes.require_whole_warps(ins, "movmatrix")
        s = lanes.sel
        words = np.ascontiguousarray(np.broadcast_to(a[s], lanes.shape)).reshape(-1, WARP)
        turned = words.view(np.uint16).reshape(-1, 8, 8).swapaxes(1, 2)
        words = np.ascontiguousarray(turned).reshape(-1, 2 * WARP).view(np.uint32)
        d[s] = words.reshape(lanes.shape)

    return step


@instruction("elect.sync")
def elect(ins, m):
    """#parallel-synchronization-and-communication-instructions-elect-sync: the lowest lane of the
    mask that has not exited is elected."""
    allow(ins)
    result, mask = operands(ins, 2)
    if not isinstance(result, Pair):
        raise unsupported(ins, "needs d|p")
    d, p = m.destination(ins, result.first, "b32"), m.destination(ins, result.second, "pred")
    mask = m.source(ins, mask, "u32")

    def step(lanes):
        s = lanes.sel
        members(ins, lanes, mask[s], m.checks)
        _, present, row = by_warp(lanes, np.True_)
        leader = (named(mask[s], lanes) & spread(present, row, lanes)).argmax(axis=-1)
        d[s], p[s] = leader.astype(np.uint32), leader == coordinates(lanes)[1]

    return step


@instruction("bar.warp.sync")
def warp_barrier(ins, m):
    """#parallel-synchronization-and-communication-instructions-bar-warp-sync"""
    allow(ins)
    mask = m.source(ins, operands(ins, 1)[0], "u32")

    def step(lanes):
        members(ins, lanes, mask[lanes.sel], m.checks)
        if m.races is not None:
            m.races.warp_barrier(lanes)

    return step
