"""Registers over time: their values, what was computed from them, and from what.

``History(trace, warp)`` is that of one warp of the grid. A value is uint32 [32], one number per
lane; times are step numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.trace.record import Trace, remembered

TENSOR = ("mma", "wgmma.mma_async", "wmma.mma", "tcgen05.mma")


@dataclass(frozen=True)
class Made:
    """One link of a chain: ``register`` was written at ``step`` by the instruction at ``pc``;
    ``position``: its index among the registers that the instruction writes."""

    step: int
    pc: int
    register: str
    position: int


class History:
    def __init__(self, trace: Trace, warp: int) -> None:
        self.trace, self.warp = trace, warp
        self.steps, self.lanes = trace.steps_and_lanes(warp)
        rows = np.flatnonzero(trace.write_warp == warp)
        order = rows[np.lexsort((trace.write_step[rows], trace.write_register[rows]))]
        registers = trace.write_register[order]
        starts = (
            np.flatnonzero(np.r_[True, registers[1:] != registers[:-1]])
            if len(order)
            else np.zeros(0, int)
        )
        names = trace.header["registers"]
        self.rows = {
            names[int(registers[start])]: each
            for start, each in zip(starts, np.split(order, starts[1:]))
        }

    def written(self, name: str, before: int) -> int | None:
        """The row of the last write of a register at a step below ``before``."""
        rows = self.rows.get(name)
        if rows is None:
            return None
        at = int(np.searchsorted(self.trace.write_step[rows], before)) - 1
        return int(rows[at]) if at >= 0 else None

    def value(self, name: str, before: int) -> np.ndarray | None:
        """What a register held when step ``before`` began; None if no recorded instruction had
        written it."""
        row = self.written(name, before)
        return None if row is None else self.trace.write_value[row]

    def result(self, name: str, step: int) -> np.ndarray | None:
        """What a register held when ``step`` had ended."""
        return self.value(name, step + 1)

    def writer(self, name: str, before: int) -> int | None:
        """The step that wrote what a register holds when ``before`` begins."""
        row = self.written(name, before)
        return None if row is None else int(self.trace.write_step[row])

    def steps_with(self, *roots: str) -> np.ndarray:
        """Steps of this warp that ran an instruction of one of these opcodes."""
        pcs = [pc for pc, ins in enumerate(self.trace.instructions) if ins["root"] in roots]
        return self.steps[np.isin(self.trace.step_pc[self.steps], pcs)]

    def operands(self, step: int) -> list[str]:
        """The operands of a step's instruction, as the text has them, each vector as one operand:
        ["{%r1, %r2}", "%r3", "15"]."""
        return operands_of(self.trace.instructions[int(self.trace.step_pc[step])]["text"])

    def followed(
        self, start: int, register: str, lane: int, limit: int = 96, through_sums: bool = False
    ) -> tuple[list[Made], list[int]]:
        """What a lane computed from a register that ``start`` wrote, up to tensor cores and stores,
        and up to fp32 sums unless ``through_sums``: (links in order, steps that consumed it
        there)."""
        trace, tainted = self.trace, {register}
        links: list = []
        ends: list = []
        first = np.searchsorted(self.steps, start, side="right")
        for step in self.steps[first:][self.lanes[first:] >> lane & 1 == 1].tolist():
            pc = int(trace.step_pc[step])
            ins = trace.instructions[pc]
            if not tainted or len(links) >= limit:
                break
            fed = tainted & set(ins["reads"])
            if fed and (
                ins["root"] in TENSOR
                or ins["root"] in ("st", "stmatrix")
                or not through_sums
                and sums(ins)
            ):
                ends.append(step)
            elif fed:
                links += [
                    Made(step, pc, name, position) for position, name in enumerate(ins["writes"])
                ]
                tainted |= set(ins["writes"])
                continue
            tainted -= set(ins["writes"])
        return links, ends

    def wait_of(self, product: int) -> int | None:
        """The step of the first wait after which the wgmma of step ``product`` is complete: the
        first that allows no more pending groups than have been committed after the product's
        own."""
        trace, committed, group = self.trace, 0, None
        for step in self.steps_with(
            "wgmma.mma_async", "wgmma.commit_group", "wgmma.wait_group"
        ).tolist():
            root = trace.instructions[int(trace.step_pc[step])]["root"]
            if step == product:
                group = committed
            elif root == "wgmma.commit_group":
                committed += 1
            elif (
                root == "wgmma.wait_group"
                and group is not None
                and group < committed - int(self.operands(step)[0])
            ):
                return step
        return None

    def source(self, register: str, before: int, limit: int = 400) -> tuple[int, str] | None:
        """(step, register) of a load that a register's value came from through arithmetic and
        moves: the first that a breadth-first search going back finds."""
        queue = [(register, before)]
        seen: set = set()
        while queue and len(seen) < limit:
            name, at = queue.pop(0)
            step = self.writer(name, at)
            if step is None or (name, step) in seen:
                continue
            seen.add((name, step))
            ins = self.trace.instructions[int(self.trace.step_pc[step])]
            if ins["root"] in ("ld", "ldmatrix", "ldu"):
                if ins["kind"] in ("global", "shared"):
                    return step, name
                continue
            queue += [(each, step) for each in ins["reads"] if not each.startswith("%p")]
        return None


@remembered
def history_of(trace: Trace, warp: int) -> History:
    """The warp's ``History``, which is made once."""
    return History(trace, warp)


def sums(ins: dict) -> bool:
    """Whether an instruction adds to an fp32 accumulator."""
    return ins["kind"] == "fp32" and ins["root"] in ("fma", "add", "mad")


def operands_of(text: str) -> list[str]:
    """The operands of "lop3.b32 %r1, {%r2, %r3}, [%r4+8], 15;" -> ["%r1", "{%r2, %r3}", "[%r4+8]",
    "15"]"""
    body = text.split(None, 2 if text.startswith("@") else 1)[-1].rstrip("; ")
    found, depth, word = [], 0, ""
    for letter in body:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and not depth:
            found.append(word.strip())
            word = ""
        else:
            word += letter
    return found + ([word.strip()] if word.strip() else [])


def vector(operand: str) -> list[str]:
    """The registers of a vector "{%r1, %r2}", or of a single operand."""
    return [each.strip() for each in operand.strip("{}").split(",")]
