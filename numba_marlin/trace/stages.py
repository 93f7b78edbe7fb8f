"""The pipeline of a block: which stage of shared memory was filled when, from where, and read when.
From recorded addresses and where the stages lie.

``ranges_of(kernel, config, shared_base)``: byte ranges [start, stop) in shared memory of each
stage, of a kernel of this package by its configuration's own numbers; () for one without a ring.
They go into a trace's header (about["stages"]), so that ``fills`` needs no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES
from numba_marlin.trace.record import KINDS, SPACES, Trace, remembered
from numba_marlin.trace.traffic import Copy, copies

READS = tuple(KINDS.index(kind) for kind in ("load", "ldmatrix"))
STORES = tuple(KINDS.index(kind) for kind in ("store", "stmatrix"))
SHARED = SPACES.index("shared")
ALIGNMENT = SWIZZLE_PATTERN_BYTES  # kernels with swizzled tiles round the start of their ring up
ALIGNED = ("wgmma", "block_scaled", "block_decode", "tcgen05", "block_mma")


def ranges_of(kernel: str, config, shared_base: int) -> list[list[list[int]]]:
    """[stage][part] of [start, stop), shared addresses."""
    if kernel == "ampere":
        b_base, s_base = (
            shared_base + config.stages * config.a_stage_bytes,
            shared_base + config.shared_bytes - config.stages * config.s_stage_bytes,
        )
        parts = [
            (shared_base, config.a_stage_bytes),
            (b_base, config.b_stage_bytes),
            (s_base, config.s_stage_bytes),
        ]
        return [
            [[base + stage * size, base + (stage + 1) * size] for base, size in parts]
            for stage in range(config.stages)
        ]
    base = -(-shared_base // ALIGNMENT) * ALIGNMENT if kernel in ALIGNED else shared_base
    if kernel in ("decode", "wgmma"):
        return [
            [[base + stage * config.stage_bytes, base + (stage + 1) * config.stage_bytes]]
            for stage in range(config.stages)
        ]
    if kernel in ALIGNED:  # A, B and their scales
        pitch, end = (
            -(-config.stage_bytes // ALIGNMENT) * ALIGNMENT,
            getattr(config, "copied_bytes", config.stage_bytes),
        )
        edges = (
            0,
            *sorted(
                getattr(config, name)
                for name in ("a_shared", "b_shared", "sfa_shared", "sfb_shared")
                if hasattr(config, name)
            ),
            end,
        )
        return [
            [
                [base + stage * pitch + start, base + stage * pitch + stop]
                for start, stop in pairwise(edges)
            ]
            for stage in range(config.stages)
        ]
    return []


def rings_of(kernel: str, config, shared_base: int) -> list[list]:
    """[name, shared address of its first mbarrier, stages] of the rings through which roles of a
    kernel hand things to each other (``kernels.pipeline``: a full and an empty barrier a stage)."""
    base = -(-shared_base // ALIGNMENT) * ALIGNMENT
    places = {
        "block_scaled": (
            ("packed stages", "barriers_shared", "stages"),
            ("B as halves", "expanded_barriers", "expanded_stages"),
            ("tile numbers", "tile_barriers", None),
            ("C", "source_barriers", None),
        ),
        "tcgen05": (
            ("stages", "load_barriers", "stages"),
            ("tiles of sums", "sum_barriers", "accumulators"),
        ),
        **dict.fromkeys(("block_mma", "block_decode"), (("stages", "barriers_shared", "stages"),)),
    }.get(kernel, ())
    return [
        [name, base + getattr(config, first), 1 if count is None else getattr(config, count)]
        for name, first, count in places
    ]


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
    for stage, parts in enumerate(ranges):
        mine = [
            copy
            for copy in copies(trace, block)
            if any(start <= copy.target < stop for start, stop in parts)
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


def rounds(mine: list[Copy]) -> list[list[Copy]]:
    """Copies into one stage, cut where a byte is filled anew."""
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
    """(step, least address) of every read of shared memory by a warp of the block, tensor cores'
    own included."""
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
    if b is None or len(b["shape"]) != 2:
        return None
    if trace.block_scaled:  # B [n, k], codes side by side
        columns = [
            (copy.source - b["address"]) % b["shape"][1]
            for copy in sources
            if b["address"] <= copy.source < b["address"] + b["nbytes"]
        ]
        return min(columns) * 8 // trace.about["problem"]["bits"] if columns else None
    rows = [
        (copy.source - b["address"]) // (4 * b["shape"][1])
        for copy in sources
        if b["address"] <= copy.source < b["address"] + b["nbytes"]
    ]
    return 16 * min(rows) if rows else None
