"""Tensor memory: 128 lanes by 512 columns of 32 bits for every resident block, and who has
allocated which columns.

A block is taken to be alone on its SM: an allocation that does not fit beside those of its own
block would never return. Cells begin unwritten, also when columns change hands. What may
touch them when is said in ``tensor_hazards``.
https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-memory,
#tcgen05-instructions-tcgen05-alloc-dealloc-relinquish-alloc-permit
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.emulator.errors import Deadlock, TensorMemoryMisuse, UninitializedRead
from numba_marlin.emulator.state.lanes import WARP, Lanes, Placement, error_at
from numba_marlin.emulator.text.program import Instruction
from numba_marlin.layout.tcgen05 import COLUMNS, LANES, LEAST_COLUMNS

POISON = 0xA5A5A5A5


@dataclass(frozen=True)
class Allocation:
    """Columns [start, stop) of a block, taken by ``ins`` of ``warp``."""

    start: int
    stop: int
    ins: Instruction
    warp: int


class TensorMemory:
    """``data`` uint32 and ``written`` bool [slot, lane, column]; nothing unless the kernel uses
    it."""

    def __init__(self, placement: Placement, instructions: list[Instruction]) -> None:
        self.placement = placement
        self.used = any(ins.root.startswith("tcgen05") for ins in instructions)
        slots = placement.slots if self.used else 0
        shape = slots, LANES, COLUMNS
        self.data, self.written = np.full(shape, POISON, np.uint32), np.zeros(shape, bool)
        self.allocations: list[list[Allocation]] = [[] for _ in range(slots)]
        self.latest: list[Allocation | None] = [None] * slots
        self.relinquished: list[Instruction | None] = [None] * slots

    def forget(self, slots: slice) -> None:
        """New blocks move in."""
        if self.used:
            self.data[slots], self.written[slots] = POISON, False
            for slot in range(slots.start, slots.stop):
                self.allocations[slot], self.latest[slot], self.relinquished[slot] = [], None, None

    def allocate(self, ins: Instruction, lanes: Lanes, warp: int, columns: int) -> int:
        """-> first column"""
        slot = warp // self.placement.warps_per_block
        self._require_count(ins, lanes, columns)
        given_up, before = self.relinquished[slot], self.latest[slot]
        if given_up is not None:
            raise lanes.fault(
                TensorMemoryMisuse,
                f"allocates after the tcgen05.relinquish_alloc_permit at PTX line {given_up.line}",
                ins,
            )
        if before is not None and columns > before.stop - before.start:
            raise lanes.fault(
                TensorMemoryMisuse,
                f"allocates {columns} columns after the {before.stop - before.start} of PTX line"
                f" {before.ins.line}: the number must not increase",
                ins,
            )
        free = np.ones(COLUMNS, bool)
        for each in self.allocations[slot]:
            free[each.start : each.stop] = False
        start = next(
            (
                at
                for at in range(0, COLUMNS - columns + 1, columns)
                if free[at : at + columns].all()
            ),
            None,
        )
        if start is None:
            held = ", ".join(f"{each.start}-{each.stop - 1}" for each in self.allocations[slot])
            raise lanes.fault(
                Deadlock,
                f"waits for {columns} columns of tensor memory for ever: the block itself holds"
                f" {held} of {COLUMNS}",
                ins,
            )
        self.latest[slot] = Allocation(start, start + columns, ins, warp)
        self.allocations[slot].append(self.latest[slot])
        return start

    def free(
        self, ins: Instruction, lanes: Lanes, warp: int, lane: int, column: int, columns: int
    ) -> Allocation:
        slot = warp // self.placement.warps_per_block
        self._require_count(ins, lanes, columns)
        found = next(
            (
                each
                for each in self.allocations[slot]
                if (each.start, each.stop) == (column, column + columns)
            ),
            None,
        )
        if found is None or lane:
            raise lanes.fault(
                TensorMemoryMisuse,
                f"gives back {columns} columns at lane {lane}, column {column}, which no"
                f" tcgen05.alloc took as such: {self._held(slot)}",
                ins,
            )
        self.allocations[slot].remove(found)
        self.written[slot, :, column : column + columns] = False
        self.data[slot, :, column : column + columns] = POISON
        return found

    def relinquish(self, ins: Instruction, warp: int) -> None:
        self.relinquished[warp // self.placement.warps_per_block] = ins

    def require_allocated(
        self, ins: Instruction, lanes: Lanes, slot: int, start: int, stop: int
    ) -> None:
        if not any(each.start <= start and stop <= each.stop for each in self.allocations[slot]):
            raise lanes.fault(
                TensorMemoryMisuse,
                f"columns {start} to {stop - 1} of tensor memory are not allocated as a whole:"
                f" {self._held(slot)}",
                ins,
            )

    def require_written(
        self, ins: Instruction, lanes: Lanes, slot: int, rows, columns, what: str
    ) -> None:
        """UninitializedRead unless all of cells [rows, columns] (what NumPy indexes with) hold
        something."""
        written = self.written[slot][rows, columns]
        if not written.all():
            raise lanes.fault(
                UninitializedRead,
                f"reads {what}, of which nothing has written {int((~written).sum())} of"
                f" {written.size} cells of tensor memory",
                ins,
            )

    def block_ended(self, slot: int) -> None:
        for left in self.allocations[slot] if self.used else ():
            raise error_at(
                TensorMemoryMisuse,
                f"the block ended, and columns {left.start} to {left.stop - 1} of tensor memory"
                " were never given back: no tcgen05.dealloc",
                left.ins,
                self.placement,
                left.warp,
                tuple(range(WARP)),
            )

    def _held(self, slot: int) -> str:
        held = ", ".join(
            f"columns {each.start} to {each.stop - 1} (PTX line {each.ins.line})"
            for each in self.allocations[slot]
        )
        return f"the block holds {held}" if held else "the block holds none"

    def _require_count(self, ins: Instruction, lanes: Lanes, columns: int) -> None:
        if columns & columns - 1 or not LEAST_COLUMNS <= columns <= COLUMNS:
            raise lanes.fault(
                TensorMemoryMisuse,
                f"{columns} columns must be a power of two from {LEAST_COLUMNS} to {COLUMNS}",
                ins,
            )
