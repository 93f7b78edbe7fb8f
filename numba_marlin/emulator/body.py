"""The statements of a kernel's body -> instructions, registers, labels and variables of the Kernel.

``{ ... }``, as in inline asm, opens a scope with its own registers and labels; registers of sibling scopes share places in
the register file. Names are resolved here, labels to pcs once the body is complete.

https://docs.nvidia.com/cuda/parallel-thread-execution/#instructions
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from numba_marlin.emulator.errors import UnknownInstruction
from numba_marlin.emulator.lexer import SPACES, Token, literal
from numba_marlin.emulator.program import (
    TYPE_BITS,
    Address,
    Immediate,
    Instruction,
    Kernel,
    Not,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

if TYPE_CHECKING:
    from numba_marlin.emulator.parser import Parser

# Opcodes whose last operand is a label of the program.
BRANCHES = {"bra"}
SPECIAL_NAMES = {
    f"%{name}"
    for name in ("laneid warpid nwarpid smid nsmid gridid clock clock_hi clock64 globaltimer globaltimer_lo globaltimer_hi "
                 "lanemask_eq lanemask_le lanemask_lt lanemask_ge lanemask_gt dynamic_smem_size total_smem_size").split()
} | {f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"}  # fmt: skip


class Scope:
    """Names of one ``{ }`` level. ``labels`` maps to pcs."""

    def __init__(self, outer: Optional["Scope"] = None) -> None:
        self.outer, self.registers, self.labels = outer, {}, {}

    def find(self, table: str, name: str):
        scope = self
        while scope is not None:
            found = getattr(scope, table).get(name)
            if found is not None:
                return found
            scope = scope.outer
        return None


class Body:
    """The statements of one kernel."""

    def __init__(self, parser: Parser, kernel: Kernel) -> None:
        self.p, self.kernel = parser, kernel
        self.scope = Scope()
        self.in_use: dict[int, int] = {}  # width -> registers of the open scopes
        self.pending: list[tuple[dict, Scope, str | None, Token]] = []

    def parse(self) -> None:
        p, outer = self.p, []
        while True:
            word = p.peek()
            if word == "}" and not outer:
                p.next()
                break
            if word == "{":
                p.next()
                outer.append((self.scope, dict(self.in_use)))
                self.scope = Scope(self.scope)
            elif word == "}":
                p.next()
                self.scope, self.in_use = outer.pop()
            elif word == ";":
                p.next()
            elif word == ".reg":
                self.registers()
            elif word in SPACES:
                self.kernel.variables += p.variables()
            elif word == ".pragma":
                p.skip_until(";")
            elif word in (".loc", ".file"):
                p.skip_line()
            elif p.peek(1) == ":" and p.tokens[p.at].kind == "name":
                token = p.next()
                p.next()
                if token.text in self.scope.labels:
                    p.fail(f"label {token.text} is declared twice", token)
                self.scope.labels[token.text] = len(self.pending)
            elif word.startswith("."):
                p.fail(f"unknown directive {word!r} in {self.kernel.name}")
            else:
                self.instruction()
        self.resolve()

    def registers(self) -> None:
        p = self.p
        p.next()
        kind = p.next().text[1:]
        if kind not in TYPE_BITS:
            p.fail(f"registers of type {kind!r} are not supported")
        width = max(16, TYPE_BITS[kind]) if kind != "pred" else TYPE_BITS[kind]
        while True:
            name = p.next().text
            names = [name]
            if p.take("<"):
                names = [f"{name}{i}" for i in range(p.integer())]
                p.expect(">")
            for each in names:
                index = self.in_use.get(width, 0)
                self.in_use[width] = index + 1
                self.scope.registers[each] = Register(each, width, index)
                self.kernel.registers[width] = max(self.kernel.registers.get(width, 0), index + 1)
            if not p.take(","):
                break
        p.expect(";")

    def instruction(self) -> None:
        p = self.p
        if not p.peek():
            p.next()  # raises: the text is over
        first = p.tokens[p.at]
        guard, negated = None, False
        if p.take("@"):
            negated = p.take("!")
            guard = self.name(p.next())
            if not isinstance(guard, Register) or guard.width != TYPE_BITS["pred"]:
                p.fail("a guard must be a predicate register", first)
        token = p.next()
        opcode = token.text
        root = p.root_of(opcode) if token.kind == "name" else None
        if root is None:
            p.fail(f"unknown instruction {opcode!r}", token, UnknownInstruction)
        label, operands = None, []
        if root in BRANCHES:
            label = p.next().text
        elif p.peek() != ";":
            operands.append(self.operand())
            while p.take(","):
                operands.append(self.operand())
        end = p.expect(";")
        fields = dict(
            line=first.line, text=" ".join(p.text[first.start : end.end].split()), opcode=opcode, root=root,
            modifiers=tuple(m for m in opcode[len(root) :].split(".") if m), operands=tuple(operands), guard=guard,
            guard_negated=negated,
        )  # fmt: skip
        self.pending.append((fields, self.scope, label, token))

    def resolve(self) -> None:
        for pc, (fields, scope, label, token) in enumerate(self.pending):
            target = None
            if label is not None:
                target = scope.find("labels", label)
                if target is None:
                    self.p.fail(f"label {label} is not declared", token)
            self.kernel.instructions.append(Instruction(pc=pc, target=target, **fields))

    def operand(self):
        p = self.p
        if p.take("{"):
            items = [self.operand()]
            while p.take(","):
                items.append(self.operand())
            p.expect("}")
            return Vector(tuple(items))
        if p.take("["):
            base, offset = self.operand(), 0
            if isinstance(base, Symbol):
                base, offset = Symbol(base.name), base.offset
            while p.peek() in "+-":
                offset += p.integer() if p.take("+") else p.integer()
            p.expect("]")
            return Address(base, offset)
        if p.take("!"):
            return Not(self.name(p.next()))
        if p.take("-"):
            value = literal(p.next().text)
            if value.kind in ("f32", "f64"):
                return Immediate(value.value ^ (1 << (31 if value.kind == "f32" else 63)), value.kind)
            return Immediate(-value.value, value.kind)
        token = p.next()
        if token.kind == "number":
            return literal(token.text)
        if token.text == "_":
            first = Sink()
        else:
            first = self.name(token)
        if p.take("|"):
            return Pair(first, self.operand())
        if isinstance(first, Symbol) and p.peek() in ("+", "-"):
            p.take("+")
            return Symbol(first.name, p.integer())
        return first

    def name(self, token: Token):
        register = self.scope.find("registers", token.text)
        if register is not None:
            return register
        if token.text in SPECIAL_NAMES:
            return Special(token.text)
        if token.text == "WARP_SZ":
            return Immediate(32)
        known = any(v.name == token.text for v in self.kernel.variables + self.p.result.variables)
        if known or any(parameter.name == token.text for parameter in self.kernel.parameters):
            return Symbol(token.text)
        self.p.fail(f"{token.text} is not declared", token)
