"""Runs of element-wise instructions of PTX, as Python that ``numba.njit`` compiles (compiled.py).

A function takes the numbers of warps and the register file: predicates, 32-bit registers as
integers and as float32, 64-bit ones, each [registers, warps, 32]. What is not named here ends a
run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from numba_marlin.emulator.text.program import Immediate, Instruction, Not, Register

INTEGERS = ("u32", "s32", "b32", "u64", "s64", "b64")
BINARY = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^"}
COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
FILE = {1: "p", 32: "r", 64: "q"}
KIND = {"u": "uint", "b": "uint", "s": "int"}


class Alone(Exception):
    """An instruction that no function takes."""


@dataclass(frozen=True)
class Run:
    """Instructions [start, stop) of those that it was made from, as lines of Python."""

    start: int
    stop: int
    lines: tuple[str, ...]
    read: frozenset[str]
    written: frozenset[str]

    def source(self) -> str:
        used = sorted(self.read | self.written)
        body = [f"{name} = {place(name)}" for name in used]
        body += [*self.lines, *(f"{place(name)} = {name}" for name in sorted(self.written))]
        inner = "".join(f"            {line}\n" for line in body)
        return (
            "def run(warps, p, r, f, q):\n    for w in warps:\n        for i in range(32):\n"
            + inner
        )


def place(name: str) -> str:
    return f"{name[0]}[{name[1:]}, w, i]"


def runs_of(instructions: Sequence[Instruction]) -> Iterator[Run]:
    run = Writer(0)
    for at, ins in enumerate(instructions):
        try:
            run.add(ins)
        except Alone:
            if at > run.start:
                yield run.done(at)
            run = Writer(at + 1)
            continue
    if len(instructions) > run.start:
        yield run.done(len(instructions))


class Writer:
    """Makes one run."""

    def __init__(self, start: int) -> None:
        self.start, self.lines = start, []
        self.read, self.written, self.floats, self.whole = set(), set(), set(), set()

    def done(self, stop: int) -> Run:
        return Run(
            self.start, stop, tuple(self.lines), frozenset(self.read), frozenset(self.written)
        )

    def name(self, register: Register, kind: str) -> str:
        if register.width not in FILE or (register.width == 1) != (kind == "pred"):
            raise Alone
        (self.floats if kind == "f32" else self.whole).add((register.width, register.index))
        if self.floats & self.whole:  # two views of one register
            raise Alone
        return f"{'f' if kind == 'f32' else FILE[register.width]}{register.index}"

    def value(self, operand, kind: str) -> str:
        if isinstance(operand, Not) and kind == "pred":
            return f"(not {self.value(operand.register, kind)})"
        if isinstance(operand, Immediate):
            if kind == "f32":
                return f"np.float32({float(operand.value)!r})"
            if kind == "pred":
                return str(bool(operand.value))
            return typed(str(int(operand.value) % (1 << int(kind[1:]))), kind, literal=True)
        if not isinstance(operand, Register):
            raise Alone
        name = self.name(operand, kind)
        self.read.add(name)
        return name if kind in ("pred", "f32") else typed(name, kind)

    def add(self, ins: Instruction) -> None:
        kept = (set(self.read), set(self.written), set(self.floats), set(self.whole))
        try:
            kind, text = self.expression(ins)
            if not isinstance(ins.operands[0], Register):
                raise Alone
            name = self.name(ins.operands[0], kind)
            line = f"{name} = {text if kind in ('pred', 'f32') else typed(text, 'u' + kind[1:])}"
            if ins.guard is not None:
                guard = self.value(ins.guard, "pred")
                line = f"if {'not ' if ins.guard_negated else ''}{guard}: {line}"
                self.read.add(name)
        except Alone:
            self.read, self.written, self.floats, self.whole = kept
            raise
        self.lines.append(line)
        self.written.add(name)

    def expression(self, ins: Instruction) -> tuple[str, str]:
        """(type of the result, its text)."""
        root, names = ins.root, [each for each in ins.modifiers if each not in ins.types]
        kinds = ins.types
        if not kinds:
            raise Alone
        kind, rest = kinds[-1], ins.operands[1:]
        if root == "setp" and names and names[0] in COMPARED and len(names) == 1:
            a, b = (self.value(each, kind) for each in rest)
            if len(rest) != 2 or kind not in (*INTEGERS, "f32"):
                raise Alone
            return "pred", f"({a} {COMPARED[names[0]]} {b})"
        if root == "cvt" and len(kinds) == 2 and not names and set(kinds) <= set(INTEGERS):
            return kinds[0], typed(self.value(rest[0], kinds[1]), kinds[0])
        if root == "mov" and not names and kind in (*INTEGERS, "f32", "pred"):
            return kind, self.value(rest[0], kind)
        if root == "selp" and not names and kind in (*INTEGERS, "f32"):
            a, b = (self.value(each, kind) for each in rest[:2])
            return kind, f"({a} if {self.value(rest[2], 'pred')} else {b})"
        if root in ("and", "or", "xor") and kind in (*INTEGERS, "pred"):
            a, b = (self.value(each, kind) for each in rest)
            return kind, f"({a} {BINARY[root]} {b})"
        if kind == "f32" and root in ("add", "sub", "mul") and set(names) <= {"rn"}:
            a, b = (self.value(each, kind) for each in rest)
            return kind, f"np.float32({a} {'*' if root == 'mul' else BINARY[root]} {b})"
        if kind == "f32" and root == "fma" and names == ["rn"]:
            return kind, f"fma({', '.join(self.value(each, kind) for each in rest)})"
        if kind not in INTEGERS:
            raise Alone
        return self.integer(ins, kind, names)

    def integer(self, ins: Instruction, kind: str, names: list[str]) -> tuple[str, str]:
        root, rest, bits = ins.root, ins.operands[1:], int(kind[1:])
        if root in ("add", "sub") and not names:
            a, b = (self.value(each, kind) for each in rest)
            return kind, typed(f"({a} {BINARY[root]} {b})", kind)
        if root in ("mul", "mad") and names == ["lo"]:
            a, b = (self.value(each, kind) for each in rest[:2])
            more = f" + {self.value(rest[2], kind)}" if root == "mad" else ""
            return kind, typed(f"({a} * {b}{more})", kind)
        if root == "mul" and names == ["wide"] and bits == 32:
            wide = f"{kind[0]}64"
            a, b = (typed(self.value(each, kind), wide) for each in rest)
            return wide, f"({a} * {b})"
        if root in ("shl", "shr") and not names:
            if root == "shr" and kind[0] == "s":
                raise Alone
            a, b = self.value(rest[0], kind), self.value(rest[1], "u32")
            text = f"{a} {'<<' if root == 'shl' else '>>'} {typed(b, kind)}"
            zero = typed("0", kind, literal=True)
            return kind, f"({typed(text, kind)} if {b} < {bits} else {zero})"
        raise Alone


def typed(text: str, kind: str, literal: bool = False) -> str:
    name = f"np.{KIND[kind[0]]}{kind[1:]}"
    if literal and kind[0] == "s":  # a number that may be too large for it
        return f"{name}(np.uint{kind[1:]}({text}))"
    return f"{name}({text})"
