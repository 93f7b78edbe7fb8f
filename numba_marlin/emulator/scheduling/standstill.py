"""The error message when no warp can go on: which warps wait where, and for which others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba_marlin.emulator.errors import Deadlock, DivergentCollective, describe_lanes, ranges
from numba_marlin.emulator.state.lanes import error_at, mask_lanes
from numba_marlin.emulator.state.paths import Bundle, Path
from numba_marlin.emulator.text.program import Instruction

if TYPE_CHECKING:
    from numba_marlin.emulator.scheduling.scheduler import Scheduler

SHOWN = 8  # of each kind of waiting


def at(scheduler: Scheduler, bundle: Bundle) -> Instruction:
    """Where a bundle stands."""
    return scheduler.execution.kernel.instructions[bundle.pc]


def stray(scheduler: Scheduler) -> DivergentCollective:
    """No warp can move, and some lanes wait at a collective for others of their warp that will not
    come: where most of them are."""
    parked = scheduler.gathering.parked
    key = max(parked, key=lambda each: scheduler.gathering.missing(each)[1].bit_count())
    path, here, missing = scheduler.gathering.missing(key)
    return error_at(
        DivergentCollective,
        f"reached without {describe_lanes(mask_lanes(missing))} of the warp; here are only",
        scheduler.execution.kernel.instructions[key[1]],
        scheduler.placement,
        path.warp,
        mask_lanes(here),
    )


def deadlock(scheduler: Scheduler, reason: str, path: Path, ins: Instruction) -> Deadlock:
    """A Deadlock for ``reason``, located at ``path`` and ``ins``, with a list of who waits and who
    runs in circles."""
    lines = [reason]
    for number, waiting, where in (
        scheduler.barriers.waiting()
        + scheduler.cluster_barriers.waiting()
        + scheduler.execution.warpgroups.waiting()
    )[:SHOWN]:
        slot, warp = divmod(waiting.warp, scheduler.placement.warps_per_block)
        block = scheduler.placement.block_of[slot]
        lines.append(
            f"block {block} warp {warp} waits at barrier {number}, line {where.line}: {where.text}"
        )
    for slot, warps, sentence in scheduler.execution.mbarriers.waiting()[:SHOWN]:
        who = f"warp {warps[0]} waits" if len(warps) == 1 else f"warps {ranges(warps)} wait"
        lines.append(f"block {scheduler.placement.block_of[slot]} {who} {sentence}")
    for key in list(scheduler.gathering.parked)[:SHOWN]:
        waiting, here, missing = scheduler.gathering.missing(key)
        slot, warp = divmod(waiting.warp, scheduler.placement.warps_per_block)
        where = scheduler.execution.kernel.instructions[key[1]]
        lines.append(
            f"block {scheduler.placement.block_of[slot]} warp {warp},"
            f" {describe_lanes(mask_lanes(here))} wait for {describe_lanes(mask_lanes(missing))} at"
            f" line {where.line}: {where.text}"
        )
    for bundle in list(scheduler.ready.values())[:SHOWN]:
        where = at(scheduler, bundle)
        lines.append(f"{len(bundle.paths)} warps run at line {where.line}: {where.text}")
    if scheduler.order:
        lines.append(
            f"{len(scheduler.order)} blocks have not started: all {scheduler.placement.slots}"
            " places are taken"
        )
    return error_at(
        Deadlock, "\n    ".join(lines), ins, scheduler.placement, path.warp, mask_lanes(path.mask)
    )
