"""cp.async.bulk and cp.async.bulk.tensor: what each lane's copy moves; ``asynchronous.bulk`` says
when.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor

Plain copies between global and shared memory, and tiles of 1 to 5 dimensions, loads to several
blocks of a cluster at once too, and spans from block to block; im2col is refused by name.
``reduce_copy`` has the reductions.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.asynchronous.mbarriers import BYTES
from numba_marlin.emulator.asynchronous.tensor_copies import box_of, map_at, plain
from numba_marlin.emulator.errors import BarrierMisuse, Misaligned, OutOfBounds
from numba_marlin.emulator.instructions import allow, instruction, operands, unsupported
from numba_marlin.emulator.text.program import Vector

UNIT = 16  # bytes: all addresses and sizes are multiples
TO_SHARED = ("global", "mbarrier::complete_tx::bytes")
TO_GLOBAL = ("global", "shared::cta", "bulk_group")
BETWEEN_BLOCKS = ("shared::cluster", "shared::cta", "mbarrier::complete_tx::bytes")
MULTICAST = "multicast::cluster"


def direction(ins, *more: str) -> str:
    """ "load" or "store", from the modifiers, of which ``more`` are allowed besides."""
    allow(ins, *TO_GLOBAL, *TO_SHARED, "shared::cluster", "L2::cache_hint", MULTICAST, *more)
    ways = tuple(mod for mod in ins.modifiers if mod not in ("L2::cache_hint", MULTICAST, *more))
    if ways == TO_GLOBAL and MULTICAST not in ins.modifiers:
        return "store"
    if ways in (("shared::cluster", *TO_SHARED), ("shared::cta", *TO_SHARED)):
        return "load"
    raise unsupported(
        ins,
        f"{'.'.join(ways)} is not .shared::cluster.{'.'.join(TO_SHARED)} or .{'.'.join(TO_GLOBAL)}",
    )


def without_hint(ins, *counts: int) -> list:
    """The operands, as many as one of ``counts`` (and the mask of a multicast), less the cache
    policy."""
    hinted = "L2::cache_hint" in ins.modifiers
    given = list(
        operands(ins, *(count + (MULTICAST in ins.modifiers) + hinted for count in counts))
    )
    return given[:-1] if hinted else given


def receivers(ins, m, given: list):
    """Function: lanes -> mask of the cluster's blocks that a load goes to, per lane; 0: the one
    that its address says."""
    if MULTICAST not in ins.modifiers:
        return lambda lanes: np.zeros(lanes.shape, np.int64)
    source = m.source(ins, given.pop(), "u16")

    def masks(lanes):
        mask = np.broadcast_to(source[lanes.sel], lanes.shape).astype(np.int64)
        bad = (mask == 0) | (mask >> m.cluster.size != 0)
        if bad.any():
            raise lanes.fault(
                OutOfBounds,
                f"mask {mask[bad][0]:#x} must name some of the {m.cluster.size} blocks of the"
                " cluster",
                ins,
                bad,
            )
        return mask

    return masks


def positions(ins, m, operand, nbytes, kind=""):
    """Function: lanes -> where, in units of ``nbytes``, addresses lie in the shared array."""
    at, space = (
        m.address(ins, operand),
        ("shared::cluster" if "shared::cluster" in ins.modifiers else "shared"),
    )
    return lambda lanes: m.memory.locate_own(ins, lanes, space, at(lanes), nbytes, kind)


def one_by_one(lanes):
    """(index of a value, the lane alone)"""
    for index in np.ndindex(*lanes.shape):
        here = np.zeros(lanes.shape, bool)
        here[index] = True
        lane = lanes.narrow(here)
        yield index, lane


def require_span(ins, m, lane, start: int, nbytes: int) -> None:
    own = m.memory.shared
    if start % own.stride + nbytes > own.size:
        raise lane.fault(
            OutOfBounds,
            f"{nbytes} bytes at {own.describe(start % own.stride)}: the shared memory has"
            f" {own.size} bytes",
            ins,
        )


def load(ins, m, lane, start: int, nbytes: int, word: int, mask: int, fetch, there: tuple) -> None:
    require_span(ins, m, lane, start, nbytes)
    stride = m.memory.shared.stride
    slot, size = start // stride, m.cluster.size
    if slot != word * BYTES // stride:
        raise lane.fault(
            BarrierMisuse,
            "the mbarrier must be in the shared memory of the block that the bytes go to",
            ins,
        )
    for target in [slot // size * size + rank for rank in range(size) if mask >> rank & 1] or [
        slot
    ]:
        barrier = word + (target - slot) * (stride // BYTES)
        m.mbarriers.require_fenced(ins, lane, np.array([barrier]))
        m.bulk.load(ins, lane, start + (target - slot) * stride, nbytes, barrier, fetch, there)


def store(ins, m, lane, start: int, nbytes: int, put, there: tuple) -> None:
    require_span(ins, m, lane, start, nbytes)
    m.memory.require_span_valid(ins, lane, start, start + nbytes)
    m.bulk.store(ins, lane, start, nbytes, put, there)


def sizes_of(ins, lanes, sizes, where) -> np.ndarray:
    """Bytes of each lane's copy; Misaligned unless they and the global addresses ``where`` are
    multiples of 16."""
    size = np.broadcast_to(sizes[lanes.sel], lanes.shape).astype(np.int64)
    bad = (size % UNIT != 0) | (where % UNIT != 0)
    if bad.any():
        first = lanes.first(bad)[2]
        raise lanes.fault(
            Misaligned,
            f"{size[first]} bytes at global address {where[first]:#x}: both must be multiples of"
            f" {UNIT}",
            ins,
            bad,
        )
    return size


@instruction("cp.async.bulk")
def bulk(ins, m):
    """cp.async.bulk.shared::cluster.global...[dst], [src], size, [mbar]{, mask};
    cp.async.bulk.global.shared::cta.bulk_group [dst], [src], size"""
    if ins.modifiers == BETWEEN_BLOCKS:
        return between_blocks(ins, m)
    loads = direction(ins) == "load"
    given = without_hint(ins, 4 if loads else 3)
    masks = receivers(ins, m, given)
    shared, there = (given[0], given[1]) if loads else (given[1], given[0])
    at, place = m.address(ins, there), positions(ins, m, shared, UNIT)
    sizes, barriers = (
        m.source(ins, given[2], "u32"),
        (positions(ins, m, given[3], BYTES, "mbarrier") if loads else None),
    )

    def step(lanes):
        starts, where = place(lanes) * UNIT, at(lanes)
        size = sizes_of(ins, lanes, sizes, where)
        if loads:
            words, mask = barriers(lanes), masks(lanes)
        for index, lane in one_by_one(lanes):
            fetch, put = plain(
                ins, m.memory.globals, lane, int(where[index]), int(size[index]), writes=not loads
            )
            far = where[index].reshape(1), int(size[index])
            m.memory.announce(
                "bulk-read" if loads else "bulk-write",
                "global",
                ins,
                lane,
                where[index].reshape(1),
                int(size[index]),
            )
            if loads:
                load(
                    ins,
                    m,
                    lane,
                    int(starts[index]),
                    int(size[index]),
                    int(words[index]),
                    int(mask[index]),
                    fetch,
                    far,
                )
            else:
                store(ins, m, lane, int(starts[index]), int(size[index]), put, far)

    return step


def between_blocks(ins, m):
    """cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [dst], [src], size,
    [mbar]: from this block's shared memory to that of a block of the cluster. That the source stays
    as it is until the copy has landed is the program's affair: it is read then."""
    target, origin, nbytes, barrier = operands(ins, 4)
    place, source = positions(ins, m, target, UNIT), m.address(ins, origin)
    sizes, barriers = m.source(ins, nbytes, "u32"), positions(ins, m, barrier, BYTES, "mbarrier")
    own = m.memory.shared

    def step(lanes):
        starts, words, where = place(lanes) * UNIT, barriers(lanes), source(lanes)
        size = sizes_of(ins, lanes, sizes, where)
        first = m.memory.locate_own(ins, lanes, "shared", where, UNIT, "") * UNIT
        for index, lane in one_by_one(lanes):
            start, count = int(first[index]), int(size[index])
            require_span(ins, m, lane, start, count)
            m.memory.require_span_valid(ins, lane, start, start + count)
            m.proxy.require(ins, lane, start, start + count)

            def fetch(start=start, count=count):
                return own.data[start : start + count].copy()

            nowhere = np.zeros(1, np.int64), 0
            load(ins, m, lane, int(starts[index]), count, int(words[index]), 0, fetch, nowhere)

    return step


@instruction("cp.async.bulk.prefetch")
def prefetch(ins, m):
    """#...-cp-async-bulk-prefetch: there are no caches here, so the addresses are all that can be
    wrong."""
    allow(ins, "L2", "global", "L2::cache_hint")
    if ins.modifiers[:2] != ("L2", "global"):
        raise unsupported(ins, "only .L2.global is defined")
    address, nbytes = without_hint(ins, 2)
    at, sizes = m.address(ins, address), m.source(ins, nbytes, "u32")

    def step(lanes):
        where = at(lanes)
        size = sizes_of(ins, lanes, sizes, where)
        for index, lane in one_by_one(lanes):
            plain(ins, m.memory.globals, lane, int(where[index]), int(size[index]), writes=False)

    return step


@instruction("cp.async.bulk.prefetch.tensor")
def prefetch_tensor(ins, m):
    """#...-cp-async-bulk-prefetch-tensor: the map and its box are all that can be wrong."""
    ranks = {f"{rank}d": rank for rank in range(1, 6)}
    allow(ins, *ranks, "L2", "global", "tile", "L2::cache_hint")
    rank = ranks.get(ins.modifiers[0], 0)
    there = without_hint(ins, 1)[0]
    if not isinstance(there.index, Vector) or len(there.index.items) != rank:
        raise unsupported(ins, "names a dimension .1d to .5d, and as many coordinates")
    maps = m.address(ins, there)

    def step(lanes):
        where = maps(lanes)
        for index, lane in one_by_one(lanes):
            map_at(ins, m, lane, int(where[index]))

    return step


@instruction("cp.async.bulk.tensor")
def tensor(ins, m):
    """cp.async.bulk.tensor.Nd.shared::cluster.global.tile...[dst], [map, {x, y}], [mbar];
    .global.shared::cta.tile.bulk_group [map, {x, y}], [src]"""
    ranks = {f"{rank}d": rank for rank in range(1, 6)}
    loads = direction(ins, *ranks, "tile") == "load"
    rank = ranks.get(ins.modifiers[0])
    if rank is None:
        raise unsupported(ins, "must name a dimension .1d to .5d first")
    given = without_hint(ins, 3 if loads else 2)
    masks = receivers(ins, m, given)
    shared, there = (given[0], given[1]) if loads else (given[1], given[0])
    if not isinstance(there.index, Vector) or len(there.index.items) != rank:
        raise unsupported(ins, f"needs [map, {{coordinates}}] with {rank} of them")
    map_at, place = m.address(ins, there), positions(ins, m, shared, UNIT)
    coordinates = [m.source(ins, item, "s32") for item in there.index.items]
    barriers = positions(ins, m, given[2], BYTES, "mbarrier") if loads else None

    def step(lanes):
        starts, maps = place(lanes) * UNIT, map_at(lanes)
        first = [np.broadcast_to(source[lanes.sel], lanes.shape) for source in coordinates]
        if loads:
            words, mask = barriers(lanes), masks(lanes)
        for index, lane in one_by_one(lanes):
            # x, the innermost, comes first in PTX and last in NumPy
            at = tuple(int(values[index]) for values in reversed(first))
            start = int(starts[index])
            nbytes, fetch, put, far = box_of(
                ins, m, lane, int(maps[index]), at, start, writes=not loads
            )
            if loads:
                load(ins, m, lane, start, nbytes, int(words[index]), int(mask[index]), fetch, far)
            else:
                store(ins, m, lane, start, nbytes, put, far)

    return step


@instruction("cp.async.bulk.commit_group")
def commit_group(ins, m):
    """#...-cp-async-bulk-commit-group"""
    allow(ins)
    operands(ins, 0)
    return lambda lanes: m.bulk.commit(ins, lanes)


@instruction("cp.async.bulk.wait_group")
def wait_group(ins, m):
    """#...-cp-async-bulk-wait-group: all but the N most recent groups of the thread are complete;
    .read: have read their sources."""
    allow(ins, "read")
    operands(ins, 1)
    latest, read = m.immediate(ins, 0), "read" in ins.modifiers
    if latest < 0:
        raise unsupported(ins, f"{latest} groups must not be negative")
    return lambda lanes: m.bulk.wait_group(ins, lanes, latest, read)
