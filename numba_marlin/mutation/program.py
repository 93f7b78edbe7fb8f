"""The one kernel of a PTX text as the machine decodes it, every instruction with its place in the
text."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from numba_marlin.emulator.instructions import root_of
from numba_marlin.emulator.text.lexer import tokenize
from numba_marlin.emulator.text.parser import parse
from numba_marlin.emulator.text.program import Instruction, Kernel, Register

OPENING, CLOSING = "{[(", "}])"


class Program:
    """``kernel``: decoded; ``spans[pc]``: (start, stop) of an instruction in ``ptx``, its guard and
    its semicolon with it; ``numbers[pc]``: how many instructions with the same opcode stand before
    it. ValueError unless the text has exactly one entry.
    """

    def __init__(self, ptx: str) -> None:
        self.ptx = ptx
        kernels = parse(ptx, root_of).kernels
        if len(kernels) != 1:
            raise ValueError(
                f"the text has {len(kernels)} entries ({', '.join(kernels) or 'none'}), must"
                " have one"
            )
        self.kernel: Kernel = next(iter(kernels.values()))
        self.instructions = self.kernel.instructions

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        tokens, at, found = tokenize(self.ptx), 0, []
        while not (tokens[at].text == ".entry" and tokens[at + 1].text == self.kernel.name):
            at += 1
        for ins in self.instructions:
            first = "@" if ins.guard is not None else ins.opcode
            while not (tokens[at].text == first and tokens[at].line == ins.line):
                at += 1
            start = tokens[at].start
            while tokens[at].text != ";":
                at += 1
            found.append((start, tokens[at].end))
        return found

    @cached_property
    def numbers(self) -> list[int]:
        seen: Counter[str] = Counter()
        found = []
        for ins in self.instructions:
            found.append(seen[ins.opcode])
            seen[ins.opcode] += 1
        return found

    @cached_property
    def writers(self) -> dict[Register, list[Instruction]]:
        """Instructions by the registers that stand first among their operands: what they write."""
        found: dict[Register, list[Instruction]] = {}
        for ins in self.instructions:
            for register in registers(ins.operands[:1]):
                found.setdefault(register, []).append(ins)
        return found

    def origins(self, *operands) -> set[Instruction]:
        """Every instruction that a value of ``operands`` may have come through, predicates and what
        memory gave apart."""
        found: set[Instruction] = set()
        wanted = list(registers(operands))
        while wanted:
            for ins in self.writers.get(wanted.pop(), ()):
                if ins not in found and ins.root not in ("ld", "ldu", "atom"):
                    found.add(ins)
                    wanted += [
                        register for register in registers(ins.operands[1:]) if register.width > 1
                    ]
        return found


def registers(operands) -> list[Register]:
    """All of ``operands``, those inside of vectors, addresses and pairs with them."""
    found = []
    for operand in operands:
        if isinstance(operand, Register):
            found.append(operand)
        elif operand is not None:
            parts = [
                getattr(operand, name, None)
                for name in ("base", "index", "register", "first", "second")
            ]
            found += registers(
                [*getattr(operand, "items", ()), *(part for part in parts if part is not None)]
            )
    return found


def operand_texts(ins: Instruction) -> list[str]:
    """As they are written: "cp.async ... [%r1], [%rd2], 16, %r3;" -> ["[%r1]", "[%rd2]", "16",
    "%r3"]."""
    text = ins.text.split(ins.opcode, 1)[1].rstrip(";").strip()
    found, depth = [""], 0
    for character in text:
        depth += (character in OPENING) - (character in CLOSING)
        if character == "," and not depth:
            found.append("")
        else:
            found[-1] += character
    return [each.strip() for each in found if each.strip()]
