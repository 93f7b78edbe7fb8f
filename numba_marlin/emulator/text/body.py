"""The statements of a kernel's body -> instructions, registers, labels and variables of the Kernel.

``{ ... }``, as in inline asm, opens a scope with its own registers and labels; registers of sibling
scopes share places in the register file. Names are resolved here, labels to pcs once the body is
complete. What the machine has no instruction for is written as others here: indexed branches,
moves of vectors, values of 128 bits (two registers of 64), elements of arrays by register.

https://docs.nvidia.com/cuda/parallel-thread-execution/#instructions
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from numba_marlin.emulator.errors import LimitExceeded, UnknownInstruction, unknown
from numba_marlin.emulator.limits import MOST_CHARACTERS, MOST_INSTRUCTIONS, MOST_SCOPES
from numba_marlin.emulator.text.calls import Calls
from numba_marlin.emulator.text.lexer import NAME, SPACES, Token, literal
from numba_marlin.emulator.text.locations import Location
from numba_marlin.emulator.text.operands import Operands
from numba_marlin.emulator.text.program import (
    TYPE_BITS,
    Address,
    Immediate,
    Instruction,
    Kernel,
    Register,
    Symbol,
    Variable,
    Vector,
)
from numba_marlin.emulator.text.registers import Registers
from numba_marlin.emulator.text.rewriting import ACCESSES, in_its_space, indexed_branch, move
from numba_marlin.emulator.text.scopes import Scope
from numba_marlin.emulator.text.variables import Declaration

if TYPE_CHECKING:
    from numba_marlin.emulator.text.parser import Parser

LABEL = r"[A-Za-z_$%][\w$%.]*"
STATEMENT = re.compile(
    rf"""\s*(?:
    (?P<location>\.loc[ \t][^\n]*|@@[^\n]*)
    |(?P<sign>[{{}};])
    |(?P<directive>\.[a-z]+)
    |(?P<label>{LABEL})\s*:(?!:)
    |(?:@\s*(?:(?P<negated>!)\s*)?(?P<guard>{NAME})\s+)?(?P<opcode>[A-Za-z_](?:[\w.]|::)*)
        (?P<operands>[^;]*);
    )""",
    re.VERBOSE | re.ASCII,
)
OPERAND = re.compile(r"(?:[^,\[\]{}()]|\[[^\[\]]*\]|\{[^{}]*\})+")
PLAIN = re.compile(
    rf"(?P<number>[1-9]\d{{0,9}}|0)|\[(?P<base>{NAME})(?:\+(?P<offset>-?\d{{1,9}}))?\]"
)
LOCAL_PARAMETER = re.compile(r"\.param(::func)?")  # of a call: it lies in local memory
# What is rewritten as other instructions here.
CALLS, INDEXED_BRANCHES = {"call", "call.uni"}, {"brx.idx", "brx.idx.uni"}
OWN = {"call", "return"}  # instructions that only the rewriting makes
VECTOR_MOVE = re.compile(r"mov\.v[248]\.(\w+)|mov\.(b128)")
OF_MODULE = {"global", "const"}  # spaces of which there is one memory for all kernels
# Opcodes whose last operand is a label of the program.
BRANCHES, LEAVES = {"bra"}, {"ret", "exit"}
UNKEPT = {"mov", "cvta"}  # a[1] means another thing to them
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


class Statement(NamedTuple):
    """Where an instruction stands in the text; ``guard`` is its predicate, None without one."""

    start: int
    stop: int
    guard: Register | None = None
    negated: bool = False


class Body(Registers):
    """The statements of one kernel."""

    specials = SPECIAL_NAMES

    def __init__(self, parser: Parser, kernel: Kernel) -> None:
        super().__init__(parser, kernel)
        self.characters = 0
        self.parameters = {parameter.name for parameter in kernel.parameters}
        self.instructions: list[Instruction] = []
        self.pending: list[tuple[int, Scope, str, int]] = []  # pc, scope, label, place in the text
        self.location = Location()
        self.spelt = (0, 0), ""  # (start, stop) of a statement, and its text
        # by the place of the declaration, of which a function called twice has one, and the frame
        self.variables: dict[tuple[int, str], list[Variable]] = {}
        self.known: dict[str, Variable] = {}  # of self.variables, by name
        self.tables: dict[str, list[str]] = {}  # .branchtargets
        self.operands = Operands(self)
        self.calls = Calls(self)

    def parse(self) -> None:
        self.charge(self.p.stop - self.p.at)
        self.statements()
        end = self.p.at
        self.calls.finish(Statement(end - 1, end))
        if not self.instructions:
            self.emit(Statement(end - 1, end), "ret", ())
        self.kernel.variables += self.calls.variables.values()
        self.resolve()

    def charge(self, characters: int) -> None:
        """So many more are read."""
        self.characters += characters
        if self.characters > MOST_CHARACTERS:
            self.p.fail(
                f"{self.kernel.name} has more than {MOST_CHARACTERS} characters, with those of the"
                " functions that it calls once for each call",
                kind=LimitExceeded,
            )

    def statements(self) -> None:
        """Up to and with the closing brace of this level."""
        p, outer, match = self.p, [], STATEMENT.match
        while True:
            found = match(p.text, p.at, p.stop)
            if found is None:
                self.unreadable()
            kind = found.lastgroup
            if kind == "operands":
                self.instruction(found)
            elif kind == "sign":
                p.at, word = found.end(), found["sign"]
                if word == "{":
                    outer.append(self.scope)
                    self.scope = Scope(self.scope)
                    if self.scope.depth > MOST_SCOPES:
                        p.fail(
                            f"more than {MOST_SCOPES} {{ }} within each other", kind=LimitExceeded
                        )
                elif word == "}":
                    if not outer:
                        return
                    self.leave_scope(self.scope)
                    self.scope = outer.pop()
            elif kind == "location":
                p.at = found.end()
                self.location = self.location.then(found["location"])
            elif kind == "label":
                p.at = found.end()
                self.label(found["label"], found.start("label"))
            else:
                self.directive()

    def unreadable(self) -> None:
        """Raise the error for what begins no statement, or has no end."""
        p = self.p
        token = p.next()
        if token.kind == "punct":
            p.fail(f"unexpected character {token.text!r}: no statement begins so", token)
        p.skip_until(";")
        p.fail(f"{token.text!r} begins no statement", token)

    def directive(self) -> None:
        p = self.p
        word = p.peek()
        if word == ".reg":
            self.registers()
        elif word == ".param":
            self.calls.declare()
        elif word.split("::")[0] in SPACES:
            self.declare()
        elif word == ".pragma":
            p.skip_until(";")
        elif word == ".file":
            p.file()
        elif word == ".section":
            p.section()
        else:
            p.fail(f"unknown directive {word!r} in {self.kernel.name}")

    def declare(self) -> None:
        """Variables in memory. A function that is called twice has its own once; of one that calls
        itself, each call has its own local ones."""
        p, start = self.p, self.p.token().start
        read = Declaration(p, self.scope.symbol).read()
        frame = self.calls.frame if read[0].space == "local" else ""
        known = self.variables.get((start, frame))
        if known is None:
            known = self.variables[start, frame] = []
            for variable in read:
                name = variable.name
                # what lies in the module's memory is shared by kernels that call one function
                if variable.space in OF_MODULE or name in self.known or name in p.names:
                    name = f"{variable.name}@{p.place_of(start)}{frame}"
                self.known[name] = replace(variable, name=name, frame=frame)
                known.append(self.known[name])
            self.kernel.variables += known
        for variable, own in zip(read, known):
            self.scope.symbols[variable.name] = own.name
        self.scope.operands.clear()

    def variable(self, symbol: Symbol) -> Variable | None:
        return self.p.names.get(symbol.name) or self.known.get(symbol.name)

    def label(self, name: str, start: int) -> None:
        p = self.p
        word = p.peek()
        if word == ".callprototype":
            self.calls.prototype(name)
        elif word in (".branchtargets", ".calltargets"):
            p.next()
            table = self.tables[name] = [p.next().text]
            while p.take(","):
                table.append(p.next().text)
            p.expect(";")
        else:
            if name in self.scope.labels:
                p.fail(f"label {name} is declared twice", self.at(start))
            self.scope.labels[name] = len(self.instructions)

    def where(self, token: Token) -> Statement:
        """That stands at ``token``, for instructions that the text does not spell."""
        return Statement(token.start, token.end)

    def at(self, start: int) -> Token:
        """For messages about what stands there."""
        return Token("name", "", self.p.line_of(start), start, start)

    def instruction(self, found: re.Match) -> None:
        p = self.p
        opcode, start = found["opcode"], found.start("opcode")
        guard = None
        if found["guard"] is not None:
            start = p.text.index("@", found.start(), start)
            guard = self.register(found["guard"])
            if not isinstance(guard, Register) or guard.width != TYPE_BITS["pred"]:
                if guard is None:
                    p.fail(f"{found['guard']} is not declared", self.at(start))
                p.fail("a guard must be a predicate register", self.at(start))
        where = Statement(start, found.end(), guard, bool(found["negated"]))
        if opcode in CALLS:
            p.at = found.start("operands")
            self.calls.call(where)
            return
        if opcode in INDEXED_BRANCHES:
            p.at = found.start("operands")
            indexed_branch(self, where)
            return
        decoded = p.decode(opcode)
        if decoded is None or decoded[0] in OWN:
            p.fail(unknown(opcode), self.at(start), UnknownInstruction)
        root = decoded[0]
        if root in BRANCHES:
            label = found["operands"].strip()
            if not label:
                p.fail(f"{opcode} needs a label", self.at(start))
            p.at = found.end()
            self.emit(where, opcode, (), label)
            return
        operands = self.operands_of(found, root)
        p.at = found.end()
        if root in LEAVES and self.calls.leave(where, root):
            return
        if "param" in opcode and any(self.calls.is_parameter(operand) for operand in operands):
            opcode = LOCAL_PARAMETER.sub(".local", opcode)
        elif root in ACCESSES:
            opcode = in_its_space(self, opcode, root, operands)
        if "b128" in opcode and root in ("ld", "ldu", "st"):
            opcode = opcode.replace(".b128", ".v2.b64")
        vector = VECTOR_MOVE.fullmatch(opcode)
        if vector is not None:
            move(self, where, "b64" if vector[2] else vector[1], operands)
            return
        self.emit(where, opcode, operands)

    def operands_of(self, found: re.Match, root: str) -> tuple:
        """Those that have been read in this scope are known by their text, the usual ones soon
        found; only others are read word by word, which takes five times as long."""
        p, text, known = self.p, found["operands"], self.scope.operands
        operands = []
        for each in OPERAND.findall(text) if "[" in text or "{" in text else text.split(","):
            operand = known.get(each)
            if operand is None:
                operand = self.plain(each.strip())
                if operand is None:
                    break
                known[each] = operand
            operands.append(operand)
        else:
            return tuple(operands)
        if not text.strip():
            return ()
        p.at, count = found.start("operands"), len(self.instructions)
        operands = self.operands.list(root)
        p.expect(";")
        if p.at != found.end():
            p.fail("a string stands where an operand must", self.at(found.start()))
        if count == len(self.instructions) and not ("[" in text and root in UNKEPT):
            texts = OPERAND.findall(text)
            if len(texts) == len(operands):
                known.update(zip(texts, operands))
        return tuple(operands)

    def plain(self, text: str) -> Register | Immediate | Address | Vector | None:
        """%r1, 5, [%rd1+4] or {%r1, %r2}; None for all else."""
        register = self.register(text)
        if register is not None:
            return register
        if text[:1] == "{":
            items = [self.plain(each.strip()) for each in text[1:-1].split(",")]
            return None if None in items or "{" in text[1:] else Vector(tuple(items))
        found = PLAIN.fullmatch(text)
        if found is None:
            return None
        if found["number"]:
            return literal(text)
        base = self.register(found["base"])
        return Address(base, int(found["offset"] or 0)) if isinstance(base, Register) else None

    def emit(
        self, where: Statement, opcode: str, operands: tuple, label: str | None = None, call=None
    ) -> None:
        p = self.p
        root, modifiers = p.decode(opcode)
        pc = len(self.instructions)
        if label is not None:
            self.pending.append((pc, self.scope, label, where.start))
        self.instructions.append(
            Instruction(
                pc,
                p.line_of(where.start),
                self.text_of(where),
                opcode,
                root,
                modifiers,
                operands,
                where.guard,
                where.negated,
                None,
                self.location.source,
                self.location.inlined,
                call,
            )
        )
        if pc >= MOST_INSTRUCTIONS:
            p.fail(
                f"{self.kernel.name} has more than {MOST_INSTRUCTIONS} instructions, with those of"
                " the functions that it calls once for each call",
                self.at(where.start),
                LimitExceeded,
            )

    def text_of(self, where: Statement) -> str:
        """What is written there. Of what is expanded to many instructions, all have the one."""
        if (where.start, where.stop) != self.spelt[0]:
            text = " ".join(self.p.text[where.start : where.stop].split())
            self.spelt = (where.start, where.stop), text
        return self.spelt[1]

    def skip(self, where: Statement) -> str:
        """Branch to the label that is returned where the guard of ``where`` does not hold."""
        label = f"%skip{len(self.instructions)}"
        self.emit(where._replace(negated=not where.negated), "bra", (), label)
        return label

    def resolve(self) -> None:
        """The pcs of all labels."""
        for pc, scope, label, start in self.pending:
            target = scope.label(label)
            if target is None:
                self.p.fail(f"label {label} is not declared", self.at(start))
            self.instructions[pc] = replace(self.instructions[pc], target=target)
        self.kernel.instructions = self.instructions
