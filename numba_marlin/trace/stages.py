"""The pipeline of a block: when each stage of shared memory was filled, from where, and when it was
read, from recorded addresses and the addresses of the stages.

A trace's header has the addresses of the stages: about["stages"], [stage][part] of byte ranges
[start, stop) in shared memory, empty for a kernel without a ring, which
``kernels.language.about`` derives from the kernel's declaration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.trace.record import KINDS, SPACES, Trace, remembered
from numba_marlin.trace.traffic import Copy, copies

READS = tuple(KINDS.index(kind) for kind in ("load", "ldmatrix"))
STORES = tuple(KINDS.index(kind) for kind in ("store", "stmatrix"))
SHARED = SPACES.index("shared")


@dataclass(frozen=True)
class Fill:
    """One filling of a stage: steps of its first and last issue, of the last landing (-1: never
    waited for), of the first and last read (-1: never). ``tile``: least k of the weights in it,
    None for zeros or where no weights came; ``nbytes`` from global memory.
    """

    stage: int
    number: int
    issued: int
    issued_last: int
    landed: int
    read: int
    read_last: int
    tile: int | None
    nbytes: int

    @property
    def zeros(self) -> bool:
        return not self.nbytes


@remembered
def fills(trace: Trace, block: int) -> list[Fill]:
    """All fillings of all stages of a block, in the order of their issue."""
    ranges = trace.about.get("stages") or []
    reads, stores = shared_reads(trace, block), addresses_of(trace, block, STORES)
    found = []
    foreign = other_uses(trace, block)
    stores += [(copy.step, copy.target) for copy in copies(trace, block) if copy.pc in foreign]
    for stage, parts in enumerate(ranges):
        mine = [
            copy
            for copy in copies(trace, block)
            if copy.pc not in foreign and any(start <= copy.target < stop for start, stop in parts)
        ]
        for number, group in enumerate(rounds(mine)):
            found.append((stage, number, group))
    order = sorted(found, key=lambda each: each[2][0].step)
    following = {(stage, number): group[0].step for stage, number, group in order}
    result = []
    for stage, number, group in order:
        landed = max((copy.landed for copy in group), default=-1)
        limit = following.get((stage, number + 1), trace.steps)
        # who stores there has another use for the memory: sums, the result
        limit = min(
            [
                limit,
                *(
                    step
                    for step, address in stores
                    if step > landed
                    and any(start <= address < stop for start, stop in ranges[stage])
                ),
            ]
        )
        inside = (
            [
                step
                for step, address in reads
                if landed <= step < limit
                and any(start <= address < stop for start, stop in ranges[stage])
            ]
            if landed >= 0
            else []
        )
        sources = [copy for copy in group if copy.source >= 0]
        result.append(
            Fill(
                stage,
                number,
                group[0].step,
                group[-1].step,
                landed,
                min(inside, default=-1),
                max(inside, default=-1),
                least_k(trace, sources),
                sum(copy.nbytes for copy in sources),
            )
        )
    return result


def other_uses(trace: Trace, block: int) -> set[int]:
    """Instructions that copy what the run itself wrote, such as partial sums: no operand's tile
    comes with them, although they may reuse the memory of a stage."""
    names = {each["name"] for each in trace.counts["buffers"] if each["writes"]["bytes"]}
    written = [each for each in trace.header["buffers"] if each["name"] in names]
    return {
        copy.pc
        for copy in copies(trace, block)
        if any(0 <= copy.source - each["address"] < each["nbytes"] for each in written)
    }


def rounds(mine: list[Copy]) -> list[list[Copy]]:
    """The copies into one stage, split into fills: a new one begins where a byte is written
    again."""
    found: list[list[Copy]] = []
    seen: set[int] = set()
    for copy in mine:
        if not found or copy.target in seen:
            found.append([])
            seen = set()
        found[-1].append(copy)
        seen.add(copy.target)
    return found


def shared_reads(trace: Trace, block: int) -> list[tuple[int, int]]:
    """(step, least address) of every read of shared memory by a warp of the block, including those
    of tensor cores."""
    rows = np.flatnonzero(trace.tile_warp // trace.warps == block)
    return sorted(
        addresses_of(trace, block, READS)
        + list(zip(trace.tile_step[rows].tolist(), trace.tile_address[rows].tolist()))
    )


def addresses_of(trace: Trace, block: int, kinds: tuple[int, ...]) -> list[tuple[int, int]]:
    """(step, least address) of accesses of some kinds to the shared memory of a block."""
    rows = np.flatnonzero(
        (trace.access_warp // trace.warps == block)
        & np.isin(trace.access_kind, kinds)
        & (trace.access_space == SHARED)
    )
    address = np.where(
        trace.access_address[rows] < 0, np.iinfo(np.int64).max, trace.access_address[rows]
    ).min(axis=1)
    return list(zip(trace.access_step[rows].tolist(), address.tolist()))


def least_k(trace: Trace, sources: list[Copy]) -> int | None:
    b = trace.buffer("b")
    if b is None or len(b["shape"]) < 2:
        return None
    if trace.block_scaled:  # B [n, k], codes side by side
        columns = [
            (copy.source - b["address"]) % b["shape"][1]
            for copy in sources
            if b["address"] <= copy.source < b["address"] + b["nbytes"]
        ]
        return min(columns) * 8 // trace.about["problem"]["bits"] if columns else None
    rows = [
        (copy.source - b["address"]) // (4 * b["shape"][-1]) % b["shape"][-2]
        for copy in sources
        if b["address"] <= copy.source < b["address"] + b["nbytes"]
    ]
    return 16 * min(rows) if rows else None
