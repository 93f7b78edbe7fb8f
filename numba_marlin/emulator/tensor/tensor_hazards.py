"""Who may touch which columns of tensor memory when: the order that the ISA gives to tcgen05
instructions, and nothing else.

tcgen05.mma and .cp of one thread finish when a commit behind them has arrived at its mbarrier; .ld
and .st of a warp when it has executed tcgen05.wait::ld or ::st. Until then no thread may touch what
they write, nor write what they read, with these exceptions: a product comes after the copies of its
thread, and after the thread's products with the same accumulator and shape. (A copy does not come
after a product. Scales that are fetched while a product may be reading the ones before need columns
of their own; kernels that reuse them rely on more than the ISA says.) What has finished must also
be told: a thread that waited for a .ld or .st executes tcgen05.fence::before_thread_sync before it
synchronises with other threads, a commit does so by itself; and a thread that learns of it executes
tcgen05.fence::after_thread_sync before it touches the columns. That the threads do synchronise in
between is not looked at.
https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-memory-consistency-model
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from numba_marlin.emulator.errors import TensorMemoryHazard
from numba_marlin.emulator.state.lanes import WARP, Lanes, Placement
from numba_marlin.emulator.text.program import Instruction
from numba_marlin.layout.tcgen05 import COLUMNS

Range = tuple[int, int]
OPEN, WAITED, ANNOUNCED = range(3)
NEVER = -1


@dataclass(eq=False)
class Use:
    """Of the columns in ranges ``reads`` and ``writes`` of a block's tensor memory by ``ins``
    ("mma", "cp", "ld" or "st"), issued by ``lane`` of ``warp``, or by the whole warp (lane NEVER).
    ``accumulator``: of a product, all that must be the same in a chain of them. ``stage``: OPEN
    until it has been waited for, ``time``: when it was announced.
    """

    ins: Instruction
    what: str
    warp: int
    lane: int
    reads: tuple[Range, ...] = ()
    writes: tuple[Range, ...] = ()
    accumulator: tuple = ()
    stage: int = OPEN
    time: int = NEVER

    @property
    def issuer(self) -> tuple[int, int]:
        return self.warp, self.lane


def meet(some: Iterable[Range], others: Iterable[Range]) -> Range | None:
    """Columns that are in a range of both; None if there are none."""
    found = [(max(a, c), min(b, d)) for a, b in some for c, d in others if max(a, c) < min(b, d)]
    return found[0] if found else None


def conflict(later: Use, earlier: Use) -> tuple[str, Range] | None:
    """(what the earlier one does to columns that ``later`` must not touch meanwhile, these
    columns)"""
    written = meet(later.reads + later.writes, earlier.writes)
    if written:
        return "writing", written
    read = meet(later.writes, earlier.reads)
    return ("reading", read) if read else None


def in_pipeline(earlier: Use, later: Use) -> bool:
    """Does the ISA keep the two in order by themselves?"""
    return later.what == "mma" and (
        earlier.what == "cp" or earlier.what == "mma" and earlier.accumulator == later.accumulator
    )


class TensorHazards:
    """``fenced`` [warp, lane]: when each thread last executed fence::after_thread_sync; ``done``
    [slot, way, (time, pc, warp, lane), column]: the last product or copy that has finished reading
    (0) or writing (1) a column; ``moves``: loads and stores of each slot.
    """

    def __init__(self, placement: Placement, instructions: list[Instruction], used: bool) -> None:
        self.placement, self.instructions, self.used = placement, instructions, used
        self.clock = 0
        self.fenced = np.full((placement.warps if used else 0, WARP), NEVER, np.int64)
        self.done = np.full((placement.slots if used else 0, 2, 4, COLUMNS), NEVER, np.int64)
        self.moves: list[list[Use]] = [[] for _ in range(placement.slots if used else 0)]

    def forget(self, warps: slice) -> None:
        if not self.used:
            return
        per_block = self.placement.warps_per_block
        self.fenced[warps] = NEVER
        for slot in range(warps.start // per_block, warps.stop // per_block):
            self.done[slot], self.moves[slot] = NEVER, []

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def check(self, use: Use, lanes: Lanes, flying: Sequence[Use]) -> None:
        """TensorMemoryHazard unless ``use`` may be issued while ``flying`` products and copies of
        its block are on their way. ``lanes``: those that issue it."""
        slot = use.warp // self.placement.warps_per_block
        fenced = int(self.fenced[lanes.sel].min())
        for other in reversed(flying):  # the latest is the one to name
            self._check_flying(use, other, lanes, fenced)
        if use.what != "dealloc":  # it is synchronous: what has finished is before it
            self._check_done(use, slot, lanes, fenced)
        for other in self.moves[slot]:
            self._check_move(use, other, lanes, fenced)

    def moved(self, use: Use) -> None:
        """A load or store has been issued; one of the same columns by the same warp that it
        replaces is forgotten."""
        slot = use.warp // self.placement.warps_per_block
        self.moves[slot] = [
            other
            for other in self.moves[slot]
            if (other.what, other.warp, other.reads, other.writes)
            != (use.what, use.warp, use.reads, use.writes)
        ]
        self.moves[slot].append(use)

    def finished(self, use: Use) -> None:
        """A product or copy is complete."""
        now, slot = self.tick(), use.warp // self.placement.warps_per_block
        for way, ranges in enumerate((use.reads, use.writes)):
            for start, stop in ranges:
                self.done[slot, way, :, start:stop] = np.array(
                    [now, use.ins.pc, use.warp, use.lane]
                )[:, None]
        self.moves[slot] = [
            other
            for other in self.moves[slot]
            if not all(
                any(a <= c and d <= b for a, b in use.writes) for c, d in other.reads + other.writes
            )
        ]

    def waited(self, warp: int, what: str) -> None:
        for use in self.moves[warp // self.placement.warps_per_block]:
            if use.warp == warp and use.what == what and use.stage == OPEN:
                use.stage = WAITED

    def before_sync(self, warp: int, flying: Iterable[Use]) -> None:
        """A fence::before_thread_sync by lanes of ``warp``: what it waited for, and what it has in
        flight, is announced."""
        now = self.tick()
        for use in self.moves[warp // self.placement.warps_per_block]:
            if use.warp == warp and use.stage == WAITED:
                use.stage, use.time = ANNOUNCED, now
        for use in flying:
            if use.warp == warp:
                use.time = now

    def after_sync(self, lanes: Lanes) -> None:
        self.fenced[lanes.sel] = self.tick()

    def freed(self, slot: int, start: int, stop: int) -> None:
        """Forget who used these columns."""
        self.done[slot, :, :, start:stop] = NEVER
        self.moves[slot] = [
            use for use in self.moves[slot] if not meet(use.reads + use.writes, ((start, stop),))
        ]

    def _check_flying(self, use: Use, other: Use, lanes: Lanes, fenced: int) -> None:
        found = conflict(use, other)
        if found and not (
            in_pipeline(other, use) and (use.issuer == other.issuer or NEVER < other.time < fenced)
        ):
            way, columns = found
            raise self._fault(
                use,
                other.ins,
                columns,
                lanes,
                f"may still be {way}: nobody has waited for an mbarrier of a tcgen05.commit"
                " behind it",
            )

    def _check_done(self, use: Use, slot: int, lanes: Lanes, fenced: int) -> None:
        # a read must come after writes, a write after reads, too
        for way, ranges in enumerate((use.writes, use.reads + use.writes)):
            for start, stop in ranges:
                time, pc, warp, lane = self.done[slot, way, :, start:stop]
                late = time > fenced
                if use.what == "mma":
                    late &= (warp != use.warp) | (lane != use.lane)
                if late.any():
                    at = int(np.argmax(late))
                    what = (
                        f"has {('read', 'written')[way]}: no tcgen05.fence::after_thread_sync by"
                        " this thread since"
                    )
                    raise self._fault(
                        use, self.instructions[pc[at]], (start + at, start + at + 1), lanes, what
                    )

    def _check_move(self, use: Use, other: Use, lanes: Lanes, fenced: int) -> None:
        found, quarters = (
            conflict(use, other),
            [each.warp % self.placement.warps_per_block % 4 for each in (use, other)],
        )
        if found is None or use.what in ("ld", "st") and quarters[0] != quarters[1]:
            return  # warps of different numbers modulo 4 touch different lanes
        (way, columns), within = found, other.warp % self.placement.warps_per_block
        if other.stage == OPEN:
            raise self._fault(
                use,
                other.ins,
                columns,
                lanes,
                f"of warp {within} may still be {way}: no tcgen05.wait::{other.what} by it since",
            )
        if use.issuer != other.issuer and use.what != "dealloc":
            if other.stage == WAITED:
                raise self._fault(
                    use,
                    other.ins,
                    columns,
                    lanes,
                    f"of warp {within} was {way}: no tcgen05.fence::before_thread_sync by it since",
                )
            if other.time > fenced:
                raise self._fault(
                    use,
                    other.ins,
                    columns,
                    lanes,
                    f"of warp {within} was {way}: no tcgen05.fence::after_thread_sync by this"
                    " thread since",
                )

    def _fault(
        self, use: Use, earlier: Instruction, columns: Range, lanes: Lanes, detail: str
    ) -> TensorMemoryHazard:
        start, stop = columns
        where = f"column {start}" if stop == start + 1 else f"columns {start} to {stop - 1}"
        return lanes.fault(
            TensorMemoryHazard,
            f"touches {where} of tensor memory, which the {earlier.root} at PTX line {earlier.line}"
            f" {detail}",
            use.ins,
        )
