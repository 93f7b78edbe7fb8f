"""Registers that wgmma works on behind the program's back: who may touch them when.

From issue to wait, the accumulators of a product belong to it, and its A registers, and that of its
metadata, may not change;
only further products of the same shape may add to the same accumulators. What ordinary instructions
wrote needs a wgmma.fence before a product takes it (check ``wgmma-fence``). Two things that the ISA
forbids are let pass because compilers do them and assemblers undo them: copying an A register (mov)
while a product reads it, and reading an accumulator between a wait and the next product without a
fence.

Only instructions that name such registers are looked at, so a kernel without wgmma pays nothing.
https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-fence,
-wgmma-wait-group
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from numba_marlin.emulator.checks import Checks
from numba_marlin.emulator.errors import RegisterHazard
from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.text.program import Address, Instruction, Pair, Register, Vector

PRODUCT = "wgmma.mma_async"
WIDTH = 32  # bits of all registers concerned


class WgmmaRegisters:
    """Arrays [register concerned, warp]: how many products in flight own it (``owned``) or read it
    (``lent``), and whether it was written since the last fence (``unfenced``)."""

    def __init__(self, warps: int, instructions: list[Instruction], checks: Checks) -> None:
        self.checks = checks
        products = [ins for ins in instructions if ins.root == PRODUCT]
        named = {
            r.index
            for ins in products
            for operand in (*ins.operands[:2], *metadata_of(ins))
            for r in registers_of(operand)
        }
        sources: dict[int, set[int]] = {}
        for target, source in filter(None, map(copied, instructions if named else ())):
            sources.setdefault(target.index, set()).add(source.index)
        left = list(named)
        while left:  # copies of copies, too: what is copied from a fenced register is fenced
            more = sources.get(left.pop(), set()) - named
            named |= more
            left += more
        self.rows = {index: row for row, index in enumerate(sorted(named))}
        self.names = {
            self.rows[r.index]: r.name
            for ins in (instructions if named else ())
            for o in ins.operands
            for r in registers_of(o)
            if r.index in self.rows
        }
        self.owned, self.lent = (np.zeros((len(self.rows), warps), np.int16) for _ in range(2))
        self.unfenced = np.zeros((len(self.rows), warps), bool)
        # set by Warpgroups: who has it, for messages
        self.user: Callable[[int, int], str] = lambda row, warp: ""

    def forget(self, warps: slice) -> None:
        self.owned[:, warps] = self.lent[:, warps] = 0
        self.unfenced[:, warps] = True

    def rows_of(self, operand) -> np.ndarray:
        return np.array([self.rows[r.index] for r in registers_of(operand)], np.intp)

    def fence(self, lanes: Lanes) -> None:
        self.unfenced[:, lanes.warps] = False

    def watched(self, step: Callable, ins: Instruction) -> Callable:
        """``step`` of an ordinary instruction, with checks if it names registers of wgmma."""
        if not self.rows or ins.root == PRODUCT:
            return step
        touched = sorted(
            {
                self.rows[r.index]
                for o in ins.operands
                for r in registers_of(o)
                if r.index in self.rows
            }
        )
        if not touched:
            return step
        target = ins.operands[0]
        written = sorted(
            {self.rows[r.index] for r in registers_of(target) if r.index in self.rows}
            if not isinstance(target, Address)
            else ()
        )
        touched, written = np.array(touched, np.intp), np.array(written, np.intp)
        copy = copied(ins)
        lent = touched if copy is None else written  # a copy may read what a product reads
        # where the copy's fencing comes from: every source of a concerned register is concerned
        sides = (
            tuple(self.rows[r.index] for r in copy) if copy is not None and len(written) else None
        )

        def run(lanes: Lanes) -> None:
            warps = lanes.warps
            self._require_idle(ins, lanes, touched, self.owned, "{} is an accumulator of")
            self._require_idle(ins, lanes, lent, self.lent, "{} is read by")
            step(lanes)
            if sides is not None:
                self.unfenced[sides[0], warps] = self.unfenced[sides[1], warps]
            elif len(written):
                self.unfenced[written[:, None], warps] = True

        return run

    def issue(
        self, ins: Instruction, lanes: Lanes, d: np.ndarray, a: np.ndarray, chained: np.ndarray
    ) -> None:
        """A product begins. ``chained`` [warps]: the products that own ``d`` have the same shape
        and registers."""
        warps = lanes.warps
        busy = (self.owned[d[:, None], warps] > 0) & ~chained
        self._raise_if(
            ins,
            lanes,
            d,
            busy,
            "{} is an accumulator of",
            " and belongs to another shape or order of registers",
        )
        self._require_idle(ins, lanes, a, self.owned, "{} is an accumulator of")
        self._require_idle(ins, lanes, d, self.lent, "{} is read by")
        for rows in (d, a):
            unfenced = self.unfenced[rows[:, None], warps]
            if unfenced.any():
                name, bad = self._first(lanes, rows, unfenced)
                said = (
                    f"{name} was written, or never fenced, since the last wgmma.fence of the warp"
                )
                self.checks.report("wgmma-fence", lanes.fault(RegisterHazard, said, ins, bad))
        self.owned[d[:, None], warps] += 1
        self.lent[a[:, None], warps] += 1

    def land(self, warps: slice, d: np.ndarray, a: np.ndarray) -> None:
        self.owned[d, warps] -= 1
        self.lent[a, warps] -= 1

    def _require_idle(self, ins, lanes, rows, users, sentence) -> None:
        if len(rows):
            self._raise_if(ins, lanes, rows, users[rows[:, None], lanes.warps] > 0, sentence)

    def _raise_if(self, ins, lanes, rows, busy, sentence, more="") -> None:
        if busy.any():
            name, bad = self._first(lanes, rows, busy)
            row = next(row for row in rows if self.names[row] == name)
            user = self.user(row, int(lanes.first(bad)[0]))
            raise lanes.fault(RegisterHazard, f"{sentence.format(name)} {user}{more}", ins, bad)

    def _first(self, lanes: Lanes, rows: np.ndarray, wrong: np.ndarray) -> tuple[str, np.ndarray]:
        """(name of the first register with a ``wrong`` [rows, warps] value, the lanes that have it
        wrong)."""
        row = int(np.argmax(wrong.any(axis=1)))
        bad = np.broadcast_to(wrong[row][:, None], lanes.shape) if lanes.full else wrong[row]
        return self.names[int(rows[row])], bad


def metadata_of(ins: Instruction) -> tuple:
    """The operand of a sparse product's metadata."""
    return ins.operands[3:4] if "sp" in ins.modifiers else ()


def registers_of(operand) -> Iterator[Register]:
    """The 32-bit registers that an operand names."""
    if isinstance(operand, Register):
        if operand.width == WIDTH:
            yield operand
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from registers_of(item)
    elif isinstance(operand, Pair):
        yield from registers_of(operand.first)
    elif isinstance(operand, Address):
        yield from registers_of(operand.base)


def copied(ins: Instruction) -> tuple[Register, Register] | None:
    """(target, source) of a plain copy between two 32-bit registers."""
    if ins.root != "mov" or ins.guard is not None or len(ins.operands) != 2:
        return None
    target, source = ins.operands
    both = (
        isinstance(target, Register)
        and isinstance(source, Register)
        and target.width == source.width == WIDTH
    )
    return (target, source) if both else None
