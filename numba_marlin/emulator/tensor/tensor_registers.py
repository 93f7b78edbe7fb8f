"""Registers that tcgen05.ld fills behind the program's back: nothing may touch them before the
warp's tcgen05.wait::ld.

PTX ISA lists tcgen05.ld among the asynchronous instructions, whose completion tcgen05.wait::ld
waits for; what it says of registers that later instructions depend on is not enough to do without.
So the machine gives them their values at once, and refuses any earlier use than every reading
of it allows. Only instructions that name such registers are looked at, so a kernel without
tcgen05.ld pays nothing.
https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-wait
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numba_marlin.emulator.errors import RegisterHazard
from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.tensor.wgmma_registers import registers_of
from numba_marlin.emulator.text.program import Instruction

LOAD, WAIT = "tcgen05.ld", "tcgen05.wait::ld"
NOBODY = -1


class TensorRegisters:
    """``filler`` [register that some tcgen05.ld fills, warp]: the pc of the one on its way to it,
    NOBODY if there is none."""

    def __init__(self, warps: int, instructions: list[Instruction]) -> None:
        self.instructions = instructions
        filled = sorted(
            {
                register.index
                for ins in instructions
                if ins.root == LOAD
                for operand in ins.operands[:1]
                for register in registers_of(operand)
            }
        )
        self.rows = {index: row for row, index in enumerate(filled)}
        self.filler = np.full((len(self.rows), warps), NOBODY, np.int64)

    def forget(self, warps: slice) -> None:
        self.filler[:, warps] = NOBODY

    def waited(self, warps: np.ndarray) -> None:
        self.filler[:, warps] = NOBODY

    def watched(self, step: Callable, ins: Instruction) -> Callable:
        """``step`` of ``ins``, with a look at the registers that it names; of a tcgen05.ld, with a
        note of those that it fills."""
        if not self.rows:
            return step
        named = {
            self.rows[register.index]: register.name
            for operand in ins.operands
            for register in registers_of(operand)
            if register.index in self.rows
        }
        if not named:
            return step
        rows = np.array(sorted(named), np.intp)
        filled = (
            np.array(
                [self.rows[register.index] for register in registers_of(ins.operands[0])], np.intp
            )
            if ins.root == LOAD
            else None
        )

        def run(lanes: Lanes) -> None:
            busy = self.filler[rows[:, None], lanes.warps] != NOBODY
            if busy.any():
                row, column = (int(each[0]) for each in np.nonzero(busy))
                load = self.instructions[self.filler[rows[row], lanes.warps[column]]]
                bad = np.zeros(lanes.shape, bool)
                bad[column] = True
                raise lanes.fault(
                    RegisterHazard,
                    f"{named[int(rows[row])]} is filled by the {LOAD} at PTX line {load.line}: no"
                    f" {WAIT} by the warp since",
                    ins,
                    bad,
                )
            step(lanes)
            if filled is not None:
                self.filler[filled[:, None], lanes.warps] = ins.pc

        return run
