"""The statements of a kernel's body -> instructions, registers, labels and variables of the Kernel.

``{ ... }``, as in inline asm, opens a scope with its own registers and labels; registers of sibling
scopes share places in the register file. Names are resolved here, labels to pcs once the body is
complete.

https://docs.nvidia.com/cuda/parallel-thread-execution/#instructions
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from numba_marlin.emulator.errors import LimitExceeded, UnknownInstruction
from numba_marlin.emulator.limits import MOST_INSTRUCTIONS, MOST_SCOPES, MOST_TOKENS
from numba_marlin.emulator.text.calls import END, Calls
from numba_marlin.emulator.text.lexer import SPACES, Token, literal, negated
from numba_marlin.emulator.text.program import (
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
from numba_marlin.emulator.text.scopes import Scope

if TYPE_CHECKING:
    from numba_marlin.emulator.text.parser import Parser

LOCAL_PARAMETER = re.compile(r"\.param(::func)?")  # of a call: it lies in local memory
# What is rewritten as other instructions here.
CALLS, INDEXED_BRANCHES = {"call", "call.uni"}, {"brx.idx", "brx.idx.uni"}
# Opcodes whose last operand is a label of the program.
BRANCHES = {"bra"}
SPECIAL_NAMES = (
    {
        f"%{name}"
        for name in (
            "laneid warpid nwarpid smid nsmid gridid clock clock_hi clock64 globaltimer"
            " globaltimer_lo globaltimer_hi lanemask_eq lanemask_le lanemask_lt lanemask_ge"
            " lanemask_gt dynamic_smem_size total_smem_size aggr_smem_size is_explicit_cluster"
            " reserved_smem_offset_begin reserved_smem_offset_end reserved_smem_offset_cap"
            " reserved_smem_offset_0 reserved_smem_offset_1 current_graph_exec"
        ).split()
    }
    | {f"%envreg{i}" for i in range(32)}
    | {f"%pm{i}{width}" for i in range(8) for width in ("", "_64")}
    | {"%cluster_ctarank", "%cluster_nctarank"}
    | {
        f"%{name}.{axis}"
        for axis in "xyz"
        for name in (
            "tid",
            "ntid",
            "ctaid",
            "nctaid",
            "clusterid",
            "nclusterid",
            "cluster_ctaid",
            "cluster_nctaid",
        )
    }
)


class Body:
    """The statements of one kernel."""

    def __init__(self, parser: Parser, kernel: Kernel) -> None:
        self.p, self.kernel, self.begun = parser, kernel, parser.read
        self.scope = Scope()
        self.names: set[str] = set()  # of the kernel's variables
        self.parameters = {parameter.name for parameter in kernel.parameters}
        # (depth, width) -> places that closed scopes have left
        self.free: dict[tuple[int, int], list[int]] = {}
        self.pending: list[tuple[dict, Scope, str | None, Token]] = []
        self.source, self.inlined = None, None
        self.last_line = None, None  # source and inlined of the last .loc that named a line
        self.calls = Calls(self)
        self.tables: dict[str, list[str]] = {}  # .branchtargets

    def parse(self) -> None:
        self.statements()
        if not self.pending:
            self.emit(self.p.tokens[self.p.at - 1], "ret", ())
        self.kernel.variables += self.calls.variables.values()
        self.resolve()

    def statements(self) -> None:
        """Up to and with the closing brace of this level."""
        p, outer = self.p, []
        while True:
            word = p.peek()
            if p.read - self.begun > MOST_TOKENS:
                p.fail(
                    f"{self.kernel.name} has more than {MOST_TOKENS} words, with those of the"
                    " functions that it calls once for each call",
                    kind=LimitExceeded,
                )
            if word == "}" and not outer:
                p.next()
                break
            if word == "{":
                p.next()
                outer.append(self.scope)
                self.scope = Scope(self.scope)
                if self.scope.depth > MOST_SCOPES:
                    p.fail(f"more than {MOST_SCOPES} {{ }} within each other", kind=LimitExceeded)
            elif word == "}":
                p.next()
                self.leave_scope(self.scope)
                self.scope = outer.pop()
            elif word == ";":
                p.next()
            elif word == ".reg" or word.startswith(".reg."):  # fp16 headers leave out the space
                self.registers()
            elif word == ".param":
                self.calls.declare()
            elif word in SPACES:
                # a function that is called twice declares its own twice
                for variable in p.variables():
                    if variable.name not in self.names:
                        self.names.add(variable.name)
                        self.kernel.variables.append(variable)
            elif word == ".pragma":
                p.skip_until(";")
            elif word == ".loc":
                self.location(*p.location())
            elif word == ".file":
                p.file()
            elif p.peek(1) == ":" and p.tokens[p.at].kind == "name":
                self.label()
            elif word.startswith("."):
                p.fail(f"unknown directive {word!r} in {self.kernel.name}")
            else:
                self.instruction()

    def label(self) -> None:
        p = self.p
        token = p.next()
        p.next()
        if p.peek() == ".callprototype":
            self.calls.prototype(token.text)
        elif p.take(".branchtargets"):
            self.tables[token.text] = [p.next().text]
            while p.take(","):
                self.tables[token.text].append(p.next().text)
            p.expect(";")
        else:
            if token.text in self.scope.labels:
                p.fail(f"label {token.text} is declared twice", token)
            self.scope.labels[token.text] = len(self.pending)

    def leave_scope(self, scope: Scope) -> None:
        # A scope of the same depth may reuse the places: it cannot be alive at the same time. An
        # outer one could.
        for register in scope.registers.values():
            self.free.setdefault((scope.depth, register.width), []).append(register.index)

    def location(self, source: tuple, inlined: tuple | None) -> None:
        """A location named again after line 0, which instructions of no line have, was inlined
        where it was before: libnvvm does not repeat that."""
        if inlined is None and self.source and not self.source[1] and source == self.last_line[0]:
            inlined = self.last_line[1]
        self.source, self.inlined = source, inlined
        if source[1]:
            self.last_line = source, inlined

    def registers(self) -> None:
        p = self.p
        fused = p.next().text[len(".reg.") :]
        kind = fused or p.next().text[1:]
        if kind not in TYPE_BITS:
            p.fail(f"registers of type {kind!r} are not supported")
        width = max(16, TYPE_BITS[kind]) if kind != "pred" else TYPE_BITS[kind]
        while True:
            name = p.next().text
            if not p.take("<"):
                self.scope.declared[name] = width
            else:
                self.scope.ranges[name] = width, p.at_least(0)
                p.expect(">")
            if not p.take(","):
                break
        p.expect(";")

    def register(self, name: str) -> Register | None:
        """The register that ``name`` means here, placed in the register file if it is new."""
        scope = self.scope
        while scope is not None:
            register = scope.registers.get(name)
            if register is not None:
                return register
            width = scope.width_of(name)
            if width is not None:
                places = self.free.get((scope.depth, width))
                if places:
                    index = places.pop()
                else:
                    index = self.kernel.registers.get(width, 0)
                    self.kernel.registers[width] = index + 1
                register = scope.registers[name] = Register(name, width, index)
                return register
            scope = scope.outer
        return None

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
        if opcode in CALLS:
            self.calls.call(first, guard, negated)
            return
        if opcode in INDEXED_BRANCHES:
            self.indexed_branch(first, guard)
            return
        if root is None:
            p.fail(f"unknown instruction {opcode!r}", token, UnknownInstruction)
        if root == "ret" and self.calls.stack:
            p.expect(";")
            self.emit(first, "bra", (), guard, negated, END)
            return
        label, operands = None, []
        if root in BRANCHES:
            label = p.next().text
        elif p.peek() != ";":
            operands.append(self.operand())
            while p.take(","):
                operands.append(self.operand())
        p.expect(";")
        if "param" in opcode and any(self.calls.is_parameter(operand) for operand in operands):
            opcode = LOCAL_PARAMETER.sub(".local", opcode)
        self.emit(first, opcode, tuple(operands), guard, negated, label)

    def emit(
        self,
        first: Token,
        opcode: str,
        operands: tuple,
        guard: Register | None = None,
        negated: bool = False,
        label: str | None = None,
    ) -> None:
        """One instruction; its text is what was read from ``first`` to here."""
        p = self.p
        root, end = p.root_of(opcode), p.tokens[p.at - 1]
        fields = dict(
            line=first.line,
            text=" ".join(p.text[first.start : max(end.end, first.end)].split()),
            opcode=opcode,
            root=root,
            modifiers=tuple(m for m in opcode[len(root) :].split(".") if m),
            operands=operands,
            guard=guard,
            guard_negated=negated,
            source=self.source,
            inlined=self.inlined,
        )
        self.pending.append((fields, self.scope, label, first))
        if len(self.pending) > MOST_INSTRUCTIONS:
            p.fail(
                f"{self.kernel.name} has more than {MOST_INSTRUCTIONS} instructions, with those of"
                " the functions that it calls once for each call",
                first,
                LimitExceeded,
            )

    def scratch_predicate(self) -> Register:
        """One that the program cannot name."""
        self.scope.declared["%scratch"] = TYPE_BITS["pred"]
        return self.register("%scratch")

    def indexed_branch(self, first: Token, guard: Register | None) -> None:
        """brx.idx index, targets: one comparison and branch a target, the last one without
        asking."""
        p = self.p
        index = self.operand()
        p.expect(",")
        token = p.next()
        p.expect(";")
        if guard is not None or token.text not in self.tables:
            p.fail(
                "brx.idx must have no guard and name a .branchtargets list before it, not"
                f" {token.text}",
                token,
                UnknownInstruction,
            )
        predicate = self.scratch_predicate()
        targets = self.tables[token.text]
        for number, target in enumerate(targets[:-1]):
            self.emit(first, "setp.eq.u32", (predicate, index, Immediate(number)))
            self.emit(first, "bra", (), predicate, False, target)
        self.emit(first, "bra", (), label=targets[-1])

    def resolve(self) -> None:
        for pc, (fields, scope, label, token) in enumerate(self.pending):
            target = None
            if label is not None:
                target = scope.label(label)
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
            index = self.operand() if p.take(",") else None
            p.expect("]")
            return Address(base, offset, index)
        if p.take("!"):
            return Not(self.name(p.next()))
        if p.take("-"):
            return negated(literal(p.next().text))
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
        register = self.register(token.text)
        if register is not None:
            return register
        if token.text in SPECIAL_NAMES:
            return Special(token.text)
        if token.text == "WARP_SZ":
            return Immediate(32)
        parameter = self.scope.parameter(token.text)
        if parameter is not None:
            return Symbol(parameter)
        if token.text in self.p.functions:
            return Immediate(self.p.functions[token.text].address)
        if any(token.text in each for each in (self.names, self.p.names, self.parameters)):
            return Symbol(token.text)
        self.p.fail(f"{token.text} is not declared", token)
