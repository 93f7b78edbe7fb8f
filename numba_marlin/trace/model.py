"""A small timing model: the time of the recorded fills and multiplications of a block with the
pipeline, and without it.

All of its rules: a copy lands LATENCY cycles after its issue, and not before all bytes issued
earlier have arrived at ``bytes_per_cycle`` (the device's bandwidth, shared by its SMs, at
``CLOCK``). Using a stage takes as many cycles as its warp instructions need from SM_SCHEDULERS
schedulers that issue one instruction per cycle each, or its tensor-core operations at
``flops_per_cycle``, whichever is more. With the pipeline, a fill is issued at the start of the
use during which the run issued it, but not before its stage is free; with a plain double buffer,
when the use before the last one is done; without either, after the use of the previous stage. The
model ignores caches, bank conflicts and clocks under load: it shows the benefit of overlap, not the
time of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numba_marlin.hardware.limits import SM_SCHEDULERS
from numba_marlin.trace.record import Trace
from numba_marlin.trace.stages import Fill, fills

LATENCY = 700  # cycles from issue to data, without load
CLOCK = 1.7e9  # cycles per second


@dataclass(frozen=True)
class Use:
    """The times of one use of a stage, in cycles."""

    tile: int | None
    issued: float
    landed: float
    begun: float
    done: float


@dataclass(frozen=True)
class Work:
    """The work of one use: bytes to load, warp instructions to issue, tensor-core operations;
    ``ahead``: the use during which its fill was issued, -1 if before the first; ``freed``: the last
    use of its stage before, -1 if there was none."""

    tile: int | None
    nbytes: int
    instructions: int
    flops: int
    ahead: int
    freed: int = -1


@dataclass(frozen=True)
class Rates:
    bytes_per_cycle: float
    flops_per_cycle: float


def rates(bandwidth: float, matrix_flops: float, sms: int) -> Rates:
    """The rates of one SM."""
    return Rates(bandwidth / sms / CLOCK, matrix_flops / sms / CLOCK)


def works(trace: Trace, block: int) -> list[Work]:
    """One ``Work`` per fill of a block that holds data and was read, in order. Its instructions are
    those of all warps between the first read of the fill and the first read of the next."""
    used = sorted(
        (fill for fill in fills(trace, block) if fill.read >= 0 and not fill.zeros),
        key=lambda fill: fill.read,
    )
    if not used:
        return []
    begins = [fill.read for fill in used]
    steps = np.concatenate(
        [trace.steps_of(block * trace.warps + warp) for warp in range(trace.warps)]
    )
    pcs = trace.step_pc[steps]
    flops = np.array(
        [row["tally"]["flops"] / max(row["tally"]["executed"], 1) for row in per_pc(trace)]
    )
    found = []
    for position, fill in enumerate(used):
        stop = (
            begins[position + 1]
            if position + 1 < len(used)
            else last_product(trace, steps, pcs, flops) + 1
        )
        inside = (steps >= fill.read) & (steps < stop)
        ahead = int(np.searchsorted(begins, fill.issued, side="right")) - 1
        found.append(
            Work(
                fill.tile,
                fill.nbytes,
                int(inside.sum()),
                int(flops[pcs[inside]].sum()),
                min(ahead, position - 1),
                max((at for at in range(position) if used[at].stage == fill.stage), default=-1),
            )
        )
    return found


def per_pc(trace: Trace) -> list[dict]:
    """One row of counts per instruction, zeros for those that did not run."""
    nothing = {"tally": {"flops": 0, "executed": 0}}
    known = {row["pc"]: row for row in trace.counts["instructions"]}
    return [known.get(pc, nothing) for pc in range(len(trace.instructions))]


def last_product(trace: Trace, steps: np.ndarray, pcs: np.ndarray, flops: np.ndarray) -> int:
    with_products = steps[flops[pcs] > 0]
    return int(with_products.max()) if len(with_products) else int(steps.max())


def cycles_of(work: Work, rates: Rates) -> float:
    return max(work.instructions / SM_SCHEDULERS, work.flops / rates.flops_per_cycle)


def with_pipeline(found: list[Work], rates: Rates) -> list[Use]:
    def issued_at(uses: list[Use]) -> float:
        work = found[len(uses)]
        issued = uses[work.ahead].begun if 0 <= work.ahead < len(uses) else 0.0
        return max(issued, uses[work.freed].done if work.freed >= 0 else 0.0)

    return in_turn(found, rates, issued_at)


def double_buffer(found: list[Work], rates: Rates) -> list[Use]:
    """The same fills and uses with two stages: a fill is issued when the use before the last one is
    done, which has freed its stage."""
    return in_turn(found, rates, lambda uses: uses[-2].done if len(uses) > 1 else 0.0)


def in_turn(found: list[Work], rates: Rates, issued_at: Callable[[list[Use]], float]) -> list[Use]:
    """The uses, one after the other; ``issued_at``: when the fill of the next one is issued, from
    the uses before it."""
    uses: list[Use] = []
    wire = 0.0  # when the bytes issued so far have come
    for work in found:
        issued = issued_at(uses)
        wire = max(wire, issued) + work.nbytes / rates.bytes_per_cycle
        landed = max(issued + LATENCY, wire)
        begun = max(landed, uses[-1].done if uses else 0.0)
        uses.append(Use(work.tile, issued, landed, begun, begun + cycles_of(work, rates)))
    return uses


def without_pipeline(found: list[Work], rates: Rates) -> list[Use]:
    uses: list[Use] = []
    for work in found:
        issued = uses[-1].done if uses else 0.0
        landed = issued + max(LATENCY, work.nbytes / rates.bytes_per_cycle)
        uses.append(Use(work.tile, issued, landed, landed, landed + cycles_of(work, rates)))
    return uses


__all__ = [
    "CLOCK",
    "LATENCY",
    "Fill",
    "Rates",
    "Use",
    "Work",
    "double_buffer",
    "rates",
    "with_pipeline",
    "without_pipeline",
    "works",
]
