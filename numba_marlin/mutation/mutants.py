"""PTX text -> every mutant of it: the same text with one guard deleted or weakened.

A mutant is named after what it does, not after its line: ``kind/opcode/number/change``, the number
counting the kernel's instructions of that opcode. So its name outlives what the compiler does to
registers and lines, and ``skeleton`` says whether all names still mean the same: it is a digest of
the order in which a kernel's accesses, copies, synchronisations and branches stand, and of nothing
else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from numba_marlin.mutation import flow, rules
from numba_marlin.mutation.program import Program


@dataclass(frozen=True)
class Mutant:
    """kind: of ``rules.KINDS``; opcode: of the instruction that is no longer what it was, number:
    which of them; change: in words; line: 1-based, in the intact text; original, mutated: text
    there; start, stop: what of the intact text is replaced."""

    kind: str
    opcode: str
    number: int
    change: str
    line: int
    original: str
    mutated: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.opcode}/{self.number}/{self.change}"

    def apply(self, ptx: str) -> str:
        """``ptx``, the intact text, mutated."""
        return f"{ptx[: self.start]}{self.mutated or ';'}{ptx[self.stop :]}"


def mutants(ptx: str) -> tuple[Mutant, ...]:
    """Of the one kernel in ``ptx``, in the order of its text. ValueError if there is not exactly
    one; PtxSyntaxError, UnknownInstruction for other texts."""
    program = Program(ptx)
    found = [(ins, change) for ins in program.instructions for change in rules.changes(ins)]
    found += list(flow.changes(program))
    made = []
    for ins, (kind, change, text) in sorted(found, key=lambda each: each[0].pc):
        start, stop = program.spans[ins.pc]
        made.append(
            Mutant(
                kind,
                ins.opcode,
                program.numbers[ins.pc],
                change,
                ins.line,
                ins.text,
                text,
                start,
                stop,
            )
        )
    return tuple(made)


def skeleton(ptx: str) -> str:
    """12 hex digits: two texts have the same if their accesses, copies, synchronisations and
    branches have the same opcodes in the same order. Arithmetic may differ, and what registers and
    labels are called."""
    opcodes = [
        ins.opcode for ins in Program(ptx).instructions if ins.root == "bra" or flow.touches(ins)
    ]
    return hashlib.sha256("\n".join(opcodes).encode()).hexdigest()[:12]
