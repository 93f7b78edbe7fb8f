"""PTX text -> Module: directives, variables, kernels with decoded instructions.

Reads what NVVM emits (PTX ISA 8.x and 9.x) plus inline-asm blocks: ``{ ... }`` opens a scope with its own registers and
labels. Registers of sibling scopes share slots of the register file. Debug directives are skipped; an opcode that the
registry does not know raises UnknownInstruction here, anything else unreadable PtxSyntaxError, both with their line.

https://docs.nvidia.com/cuda/parallel-thread-execution/#directives
"""

from __future__ import annotations

import struct
from typing import Callable, Optional

from numba_marlin.emulator.cfg import find_blocks
from numba_marlin.emulator.errors import PtxSyntaxError, UnknownInstruction
from numba_marlin.emulator.lexer import Token, literal, tokenize
from numba_marlin.emulator.program import (
    TYPE_BITS,
    Address,
    Immediate,
    Instruction,
    Kernel,
    Module,
    Not,
    Pair,
    Parameter,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)

LINE_DIRECTIVES = {".version", ".target", ".address_size", ".file", ".loc"}
LINKAGE = {".visible", ".extern", ".weak", ".common"}
SPACES = {".global", ".const", ".shared", ".local"}
# Opcodes whose last operand is a label of the program.
BRANCHES = {"bra"}
SPECIAL_NAMES = {
    f"%{name}"
    for name in ("laneid warpid nwarpid smid nsmid gridid clock clock_hi clock64 globaltimer globaltimer_lo globaltimer_hi "
                 "lanemask_eq lanemask_le lanemask_lt lanemask_ge lanemask_gt dynamic_smem_size total_smem_size").split()
} | {f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"}  # fmt: skip
INITIALISER_FORMATS = {8: "B", 16: "H", 32: "I", 64: "Q"}


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


def parse(text: str, root_of: Callable[[str], Optional[str]]) -> Module:
    """Parse PTX ``text``. ``root_of(opcode)`` gives the registry key of an opcode, or None if there is none."""
    return Parser(text, root_of).module()


class Parser:
    def __init__(self, text: str, root_of: Callable[[str], Optional[str]]) -> None:
        self.text, self.root_of = text, root_of
        self.tokens, self.at = tokenize(text), 0
        self.result = Module()

    def fail(self, detail: str, token: Token | None = None, kind: type = PtxSyntaxError) -> None:
        token = token or (self.tokens[min(self.at, len(self.tokens) - 1)] if self.tokens else Token("", "", 1, 0, 0))
        lines = self.text.splitlines() or [""]
        raise kind(detail, line=token.line, text=lines[min(token.line, len(lines)) - 1].strip())

    def peek(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self.tokens[index].text if index < len(self.tokens) else ""

    def next(self) -> Token:
        if self.at >= len(self.tokens):
            self.fail("the text ends in the middle of a statement")
        self.at += 1
        return self.tokens[self.at - 1]

    def take(self, text: str) -> bool:
        if self.peek() == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        token = self.next()
        if token.text != text:
            self.fail(f"expected {text!r}, found {token.text!r}", token)
        return token

    def integer(self) -> int:
        sign = -1 if self.take("-") else 1
        token = self.next()
        if token.kind != "number":
            self.fail(f"expected a number, found {token.text!r}", token)
        return sign * int(literal(token.text).value)

    def skip_line(self) -> list[str]:
        line, words = self.tokens[self.at].line, []
        while self.at < len(self.tokens) and self.tokens[self.at].line == line:
            words.append(self.next().text)
        return words

    def skip_until(self, *stops: str) -> str:
        while self.peek() not in stops:
            self.next()
        return self.next().text

    def skip_braces(self) -> None:
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.next().text, 0)

    def module(self) -> Module:
        while self.at < len(self.tokens):
            word = self.peek()
            if word in LINE_DIRECTIVES:
                words = self.skip_line()
                if word in (".version", ".target"):
                    setattr(self.result, word[1:], words[1])
            elif word == ".pragma":
                self.skip_until(";")
            elif word == ".section":
                self.skip_until("{")
                self.skip_braces()
            elif word in LINKAGE:
                self.next()
            elif word == ".entry":
                self.next()
                kernel = self.kernel()
                self.result.kernels[kernel.name] = kernel
            elif word == ".func":  # device functions are inlined before they get here; a call names itself
                if self.skip_until("{", ";") == "{":
                    self.skip_braces()
            elif word in SPACES:
                self.result.variables += self.variables()
            else:
                self.fail(f"unknown directive {word!r}")
        return self.result

    def variables(self) -> list[Variable]:
        """.space [.align n] .type name[sizes] [= initialiser], ... ;"""
        line, space = self.tokens[self.at].line, self.next().text[1:]
        align, bits = None, None
        while self.peek().startswith("."):
            word = self.next().text
            if word == ".align":
                align = self.integer()
            elif word[1:] in TYPE_BITS:
                bits = TYPE_BITS[word[1:]]
            elif word not in (".attribute", ".managed"):
                self.fail(f"unknown variable attribute {word!r}")
        if bits is None:
            self.fail("a variable needs a type")
        found = []
        while True:
            name, count = self.next().text, 1
            while self.take("["):
                count *= 0 if self.peek() == "]" else self.integer()
                self.expect("]")
            data = self.initialiser(bits) if self.take("=") else b""
            # numba-cuda-mlir's dynamic shared memory arrives "demoted": one byte without brackets, standing for [].
            if space == "shared" and count == 1 and bits == 8 and name.startswith("__dynamic_shmem__"):
                count = 0
            found.append(Variable(name, space, align or bits // 8, count * bits // 8, data, line))
            if not self.take(","):
                break
        self.expect(";")
        return found

    def initialiser(self, bits: int) -> bytes:
        token = self.peek()
        if token.startswith('"'):
            return self.next().text[1:-1].encode() + b"\0"
        if self.take("{"):
            data = b""
            while not self.take("}"):
                data += self.initialiser(bits)
                self.take(",")
            return data
        sign = -1 if self.take("-") else 1
        token = self.next()
        if token.kind != "number":
            self.fail(f"initialiser {token.text!r} must be a number", token)
        value = literal(token.text)
        if value.kind == "decimal":
            return struct.pack("<d" if bits == 64 else "<f", sign * value.value)
        return struct.pack("<" + INITIALISER_FORMATS[bits], sign * int(value.value) & (1 << bits) - 1)

    def kernel(self) -> Kernel:
        token = self.next()
        kernel = Kernel(token.text, line=token.line)
        offset = 0
        if self.take("("):
            while not self.take(")"):
                offset = self.parameter(kernel, offset)
                self.take(",")
        while self.peek() != "{":
            word = self.next().text
            if word in (".maxntid", ".reqntid"):
                kernel.max_threads = self.integer()
                while self.take(","):
                    kernel.max_threads *= self.integer()
            elif word == ".pragma":
                self.skip_until(";")
            elif word.startswith("."):
                while self.peek() not in ("{", ";") and not self.peek().startswith("."):
                    self.next()
            else:
                self.fail(f"unexpected {word!r} before the body of {kernel.name}")
        self.expect("{")
        Body(self, kernel).parse()
        kernel.blocks = find_blocks(kernel.instructions)
        return kernel

    def parameter(self, kernel: Kernel, offset: int) -> int:
        self.expect(".param")
        align, kind = None, None
        while self.peek().startswith("."):
            word = self.next().text
            if word == ".align":
                align = self.integer()
            elif word[1:] in TYPE_BITS:
                kind = word[1:]
        name, count = self.next().text, 1
        while self.take("["):
            count *= self.integer()
            self.expect("]")
        size = TYPE_BITS[kind] // 8
        offset = -(-offset // (align or size)) * (align or size)
        kernel.parameters.append(Parameter(name, kind, offset, size * count))
        return offset + size * count


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
