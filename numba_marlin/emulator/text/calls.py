"""Calls of device functions. A call is replaced by the function's body when the text is read, so a
kernel stays one control-flow graph, and lanes that part in a function meet again in it.

A call's .param variables live in local memory, one place for each name and depth of nesting; the
callee's names of its parameters stand for the caller's variables. What is passed in registers is
moved. A function that can come to call itself has one body behind the kernel's own, with a frame
of local memory for every call, and is entered by a CallSite. An indirect call compares the address
with those of the functions that have the prototype's shape, or that .calltargets lists.

https://docs.nvidia.com/cuda/parallel-thread-execution/#control-flow-instructions-call
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numba_marlin.emulator.errors import LimitExceeded, UnknownInstruction
from numba_marlin.emulator.limits import MOST_CALLS
from numba_marlin.emulator.text.functions import Formal, Function, formals, shape
from numba_marlin.emulator.text.lexer import Token
from numba_marlin.emulator.text.program import (
    PREDICATE,
    Address,
    Argument,
    CallSite,
    Immediate,
    Register,
    Sink,
    Symbol,
    Variable,
    Vector,
)
from numba_marlin.emulator.text.rewriting import move
from numba_marlin.emulator.text.scopes import Scope
from numba_marlin.emulator.text.variables import Declaration

if TYPE_CHECKING:
    from numba_marlin.emulator.text.body import Body, Statement

END = "%end"  # label behind an inlined body: no program can spell it
WORDS = (1, 2, 4, 8)  # bytes that one register passes
# of the runtime, which the machine lacks: what calls them end as
TRAPS = {"__assertfail": "an assertion failed", "__trap": "trap", "abort": "abort"}
# of the runtime, and here: the opcodes that stand for them, which no text can spell
RUNTIME = {name: f"%{name}" for name in ("vprintf", "malloc", "free")}


@dataclass(eq=False)
class Instance:
    """The one body of a recursive function in a kernel: ``formals`` are its results and
    parameters, by name."""

    function: Function
    label: str
    scope: Scope
    formals: dict[str, Symbol | Register | Vector]


class Calls:
    """The calls in one kernel's body. ``frame``: the recursive function that is being read."""

    def __init__(self, body: Body) -> None:
        self.body, self.p = body, body.p
        self.outermost = body.scope
        self.stack: list[str] = []
        self.frame = ""
        self.instances: dict[str, Instance] = {}
        self.unread: list[Instance] = []
        self.variables: dict[str, Variable] = {}  # of .param in the body, by their own names
        self.prototypes: dict[str, tuple] = {}

    def declare(self) -> None:
        """.param ... name[size]; in a body."""
        for variable in Declaration(self.p).read():
            self._enter(variable.name, variable.size, variable.align, self.body.scope)
        self.body.scope.operands.clear()

    def _enter(self, known: str, size: int, align: int, scope: Scope) -> Symbol:
        """A variable in local memory, which ``scope`` knows by a name."""
        name = f"{known}@{self.frame}@{len(self.stack)}"
        old = self.variables.get(name)
        if old is not None:
            size, align = max(size, old.size), max(align, old.align)
        self.variables[name] = Variable(
            name, "local", align, size, line=self.p.last.line, frame=self.frame
        )
        scope.symbols[known] = name
        return Symbol(name)

    def is_parameter(self, operand) -> bool:
        """Is it an address in a .param variable of a call, rather than of the kernel?"""
        base = getattr(operand, "base", operand)
        return isinstance(base, Symbol) and base.name in self.variables

    def prototype(self, label: str) -> None:
        """label: .callprototype (results) _ (parameters);"""
        p = self.p
        p.expect(".callprototype")
        results = formals(p) if p.peek() == "(" else ()
        p.next()
        parameters = formals(p) if p.peek() == "(" else ()
        p.skip_until(";")
        self.prototypes[label] = shape(results, parameters)

    def call(self, where: Statement) -> None:
        """Behind the opcode: (results), function or register, (parameters), prototype or
        targets;"""
        p, body = self.p, self.body
        results = self._given() if p.peek() == "(" else ()
        if results:
            p.expect(",")
        token, given, targets = p.next(), (), ""
        if p.take(","):
            if p.peek() == "(":
                given = self._given()
                targets = p.next().text if p.take(",") else ""
            else:
                targets = p.next().text
        p.expect(";")
        back = p.at
        end = body.skip(where) if where.guard is not None else ""
        where = where._replace(guard=None, negated=False)
        function = p.functions.get(token.text)
        if function is not None:
            self._direct(where, function, token, results, given)
        else:
            self._indirect(where, token, targets, results, given)
        if end:
            body.scope.labels[end] = len(body.instructions)
        p.at = back

    def _given(self) -> tuple:
        """(a, b, ...): .param variables, registers, numbers."""
        p, found = self.p, []
        p.expect("(")
        while not p.take(")"):
            token, operand = p.token(), self.body.operands.one()
            if isinstance(operand, Symbol) and not self.is_parameter(operand):
                p.fail(f"{token.text} must be a .param variable", token, UnknownInstruction)
            found.append(operand)
            if not p.take(",") and p.peek() != ")":
                p.expect(")")
        return tuple(found)

    def _direct(
        self, where: Statement, function: Function, token: Token, results: tuple, given: tuple
    ) -> None:
        p = self.p
        if function.body is None:
            if function.name in TRAPS:
                self.body.emit(where, "trap", ())
                return
            if function.name in RUNTIME:
                places = (Address(each) for each in (*results, *given))
                self.body.emit(where, RUNTIME[function.name], tuple(places))
                return
            p.fail(
                f"{function.name} has no body in this text: link it in, or do without it (of the"
                f" runtime there are {', '.join(RUNTIME)} here, and no launch)",
                token,
                UnknownInstruction,
            )
        if (len(results), len(given)) != (len(function.results), len(function.parameters)):
            p.fail(
                f"{function.name} takes {len(function.parameters)} parameters and gives"
                f" {len(function.results)} results",
                token,
            )
        if function.name in p.recursive:
            self._to_instance(where, function, token, results, given)
        else:
            self._inline(where, function, token, results, given)

    def _inline(
        self, where: Statement, function: Function, token: Token, results: tuple, given: tuple
    ) -> None:
        p, body = self.p, self.body
        if len(self.stack) == MOST_CALLS:
            p.fail(f"more than {MOST_CALLS} calls within each other", token, LimitExceeded)
        outer, location = body.scope, body.location
        self.stack.append(function.name)
        inner = body.scope = Scope(depth=outer.depth + 1)
        for formal, operand in zip(function.parameters, given):
            self._pass(where, formal, operand, token)
        for formal, operand in zip(function.results, results):
            if not formal.bits and self.is_parameter(operand):
                inner.symbols[formal.name] = operand.name
            else:
                self._formal(formal, inner)
        self._read(function)
        inner.labels[END] = len(body.instructions)
        for formal, operand in zip(function.results, results):
            self._fetch(where, formal, operand, token)
        body.leave_scope(inner)
        self.stack.pop()
        body.scope, body.location = outer, location

    def _read(self, function: Function) -> None:
        """The statements of a body, into the scope that is set."""
        p = self.p
        back = p.at, p.stop
        p.at, p.stop = function.body
        p.stop += 1  # the closing brace with it
        self.body.charge(p.stop - p.at)
        self.body.statements()
        p.at, p.stop = back

    def _formal(self, formal: Formal, scope: Scope) -> Symbol | Register | Vector:
        """A place for it in ``scope``."""
        if not formal.bits:
            return self._enter(formal.name, formal.size, formal.align, scope)
        scope.declared[formal.name] = formal.bits, formal.elements
        outer, self.body.scope = self.body.scope, scope
        register = self.body.register(formal.name)
        self.body.scope = outer
        return register

    def _pass(self, where: Statement, formal: Formal, operand, token: Token) -> None:
        """A parameter on its way in."""
        body, scope = self.body, self.body.scope
        parameter = self.is_parameter(operand)
        if parameter and not formal.bits:
            scope.symbols[formal.name] = operand.name
            return
        place = self._formal(formal, scope)
        if isinstance(place, Symbol):
            bits = self._word(formal, token)
            body.emit(where, f"st.local.b{bits}", (Address(place), operand))
        elif parameter:
            body.emit(where, f"ld.local.{_kind(formal)}", (place, Address(operand)))
        else:
            self._move(where, formal, place, operand)

    def _fetch(self, where: Statement, formal: Formal, operand, token: Token) -> None:
        """A result on its way out."""
        body = self.body
        if isinstance(operand, Sink) or (self.is_parameter(operand) and not formal.bits):
            return
        if not formal.bits:
            place = Address(Symbol(body.scope.symbols[formal.name]))
            body.emit(where, f"ld.local.b{self._word(formal, token)}", (operand, place))
        elif self.is_parameter(operand):
            place = Address(operand), body.register(formal.name)
            body.emit(where, f"st.local.{_kind(formal)}", place)
        else:
            self._move(where, formal, operand, body.register(formal.name))

    def _move(self, where: Statement, formal: Formal, target, source) -> None:
        if formal.elements:
            move(self.body, where, f"b{formal.bits}", (target, source))
        else:
            kind = "pred" if formal.bits == PREDICATE else _kind(formal)
            self.body.emit(where, f"mov.{kind}", (target, source))

    def _word(self, formal: Formal, token: Token) -> int:
        if formal.size not in WORDS:
            self.p.fail(f"{formal.name} of {formal.size} bytes takes a .param variable", token)
        return 8 * formal.size

    def _to_instance(
        self, where: Statement, function: Function, token: Token, results: tuple, given: tuple
    ) -> None:
        instance = self.instances.get(function.name) or self._instance(function)
        arguments = []
        for formals_, operands in (
            (function.parameters, given),
            (function.results, results),
        ):
            found = []
            for formal, operand in zip(formals_, operands):
                if isinstance(operand, Sink):
                    continue
                if self.is_parameter(operand) == bool(formal.bits) or formal.elements:
                    self.p.fail(
                        f"{formal.name} of {function.name}, which can come to call itself, must be"
                        " passed as it is declared: in one register, or in a .param variable",
                        token,
                        UnknownInstruction,
                    )
                found.append(Argument(operand, instance.formals[formal.name], formal.size))
            arguments.append(tuple(found))
        site = CallSite(function.name, self.frame, *arguments)
        outer, self.body.scope = self.body.scope, self.outermost
        self.body.emit(where, "call", (), instance.label, site)
        self.body.scope = outer

    def _instance(self, function: Function) -> Instance:
        scope = Scope(depth=1)
        outer = self.frame, self.stack
        self.frame, self.stack = function.name, []
        found = {
            formal.name: self._formal(formal, scope)
            for formal in (*function.results, *function.parameters)
        }
        self.frame, self.stack = outer
        instance = Instance(function, f"%function.{function.name}", scope, found)
        self.instances[function.name] = instance
        self.unread.append(instance)
        return instance

    def finish(self, where: Statement) -> None:
        """Read the recursive functions that are called, behind the kernel's own body."""
        body = self.body
        if not self.unread:
            return
        body.emit(where, "ret", ())
        while self.unread:
            instance = self.unread.pop()
            start = len(body.instructions)
            self.frame, body.scope = instance.function.name, instance.scope
            self.outermost.labels[instance.label] = start
            self._read(instance.function)
            body.emit(where, "return", ())
            used = dict.fromkeys(
                each for each in instance.formals.values() if isinstance(each, Register)
            )
            for ins in body.instructions[start:]:
                used.update(dict.fromkeys(registers((*ins.operands, ins.guard))))
            body.kernel.saved[self.frame] = tuple(used)
        self.frame, body.scope = "", self.outermost

    def leave(self, where: Statement, root: str) -> bool:
        """ret or exit; False if it is the kernel's own."""
        if root == "exit":
            if self.frame:
                self.p.fail(
                    f"exit in {self.frame}, which can come to call itself, is not implemented:"
                    " return to the kernel first",
                    self.body.at(where.start),
                    UnknownInstruction,
                )
            return False
        if self.stack:
            self.body.emit(where, "bra", (), END)
        elif self.frame:
            self.body.emit(where, "return", ())
        return bool(self.stack or self.frame)

    def _indirect(
        self, where: Statement, token: Token, targets: str, results: tuple, given: tuple
    ) -> None:
        body, p = self.body, self.p
        target = body.operands.name(token)
        if targets in body.tables:
            functions = [p.functions.get(name) for name in body.tables[targets]]
        elif targets in self.prototypes:
            functions = list(p.by_shape.get(self.prototypes[targets], ()))
        else:
            functions = [None]
        if not isinstance(target, Register) or None in functions:
            p.fail(
                f"{token.text} is no function, nor a register with a .callprototype or"
                " .calltargets list of functions",
                token,
                UnknownInstruction,
            )
        done = f"%called{len(body.instructions)}"
        is_it = body.scratch_predicate()
        for function in functions:
            if function.body is None:
                continue
            following = f"%other{len(body.instructions)}"
            body.emit(where, "setp.ne.u64", (is_it, target, Immediate(function.address)))
            body.emit(where._replace(guard=is_it), "bra", (), following)
            self._direct(where, function, token, results, given)
            body.emit(where, "bra", (), done)
            body.scope.labels[following] = len(body.instructions)
        body.emit(where, "trap", ())
        body.scope.labels[done] = len(body.instructions)


def _kind(formal: Formal) -> str:
    """Of what is passed in registers, in memory."""
    return f"v{formal.elements}.b{formal.bits}" if formal.elements else f"b{formal.bits}"


def registers(operands):
    """All registers in operands, those inside of others too."""
    for operand in operands:
        if isinstance(operand, Register):
            yield operand
        elif operand is not None:
            for name in ("base", "index", "register", "first", "second"):
                yield from registers((getattr(operand, name, None),))
            yield from registers(getattr(operand, "items", ()))
