"""Device functions (.func) and calls of them: a call is replaced by the function's body, when the
text is read.

So a kernel stays one control-flow graph, and lanes that part in a function meet again in it. A
call's .param variables live in local memory, one place for each name and depth of nesting; the
callee's names of its parameters stand for the caller's variables. An indirect call compares the
address with those of the functions that have the prototype's shape. Recursion has no end this way
and is refused by name.

https://docs.nvidia.com/cuda/parallel-thread-execution/#control-flow-instructions-call
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numba_marlin.emulator.errors import LimitExceeded, UnknownInstruction
from numba_marlin.emulator.limits import MOST_CALLS
from numba_marlin.emulator.text.lexer import Token
from numba_marlin.emulator.text.program import TYPE_BITS, Immediate, Register, Symbol, Variable
from numba_marlin.emulator.text.scopes import Scope

if TYPE_CHECKING:
    from numba_marlin.emulator.text.body import Body
    from numba_marlin.emulator.text.parser import Parser

FIRST_ADDRESS, ADDRESS_STEP = 0x40, 0x40  # of functions, which nothing loads from
END = "%end"  # label behind an inlined body: no program can spell it
# of the runtime, which the machine lacks: what calls them end as
TRAPS = {"__assertfail": "an assertion failed", "__trap": "trap", "abort": "abort"}
SYSTEM_CALLS = {"vprintf"}  # of the runtime, which the machine has: an instruction each


@dataclass(frozen=True)
class Function:
    """``results`` and ``parameters``: (name, bytes) each; ``body`` the number of the first token
    behind its brace, None if it is only declared."""

    name: str
    address: int
    results: tuple[tuple[str, int], ...]
    parameters: tuple[tuple[str, int], ...]
    body: int | None = None

    @property
    def shape(self) -> tuple:
        return tuple(size for _, size in self.results), tuple(size for _, size in self.parameters)


def find_functions(parser: Parser) -> dict[str, Function]:
    """All .func of the text, wherever they stand: they may be called before they are defined."""
    found: dict[str, Function] = {}
    for number, token in enumerate(parser.tokens):
        if token.text != ".func":
            continue
        parser.at = number + 1
        if parser.peek() == ".attribute":
            parser.skip_until(")")
        results = formals(parser) if parser.peek() == "(" else ()
        name = parser.next().text
        parameters = formals(parser) if parser.peek() == "(" else ()
        body = parser.at if parser.skip_until("{", ";") == "{" else None
        if body is not None or name not in found:
            address = (
                found[name].address if name in found else FIRST_ADDRESS + ADDRESS_STEP * len(found)
            )
            found[name] = Function(
                name, address, results, parameters, None if body is None else parser.at
            )
    parser.at = 0
    return found


def formals(parser: Parser) -> tuple[tuple[str, int], ...]:
    """(.param [.align n] .type name[size], ...): name and bytes of each."""
    found = []
    parser.expect("(")
    while not parser.take(")"):
        where = parser.tokens[parser.at]
        if parser.next().text != ".param":
            parser.fail(
                "parameters of functions must be in .param space", where, UnknownInstruction
            )
        kind = None
        while parser.peek().startswith("."):
            word = parser.next().text
            if word == ".align":
                parser.alignment()
            elif word[1:] in TYPE_BITS:
                kind = word[1:]
        element, name = parser.bytes_of(kind, "parameter"), parser.next().text
        found.append((name, parser.count() * element))
        parser.take(",")
    return tuple(found)


class Calls:
    """The calls in one kernel's body."""

    def __init__(self, body: Body) -> None:
        self.body, self.p = body, body.p
        self.stack: list[str] = []
        self.variables: dict[str, Variable] = {}  # of .param in the body, by their own names
        self.prototypes: dict[str, tuple] = {}

    def declare(self) -> None:
        """.param ... name[size]; in a body."""
        for variable in self.p.variables():
            name = f"{variable.name}@{len(self.stack)}"
            old = self.variables.get(name, variable)
            self.variables[name] = Variable(
                name,
                "local",
                max(old.align, variable.align),
                max(old.size, variable.size),
                line=variable.line,
            )
            self.body.scope.parameters[variable.name] = name

    def prototype(self, label: str) -> None:
        """label: .callprototype (results) _ (parameters);"""
        p = self.p
        p.expect(".callprototype")
        results = formals(p) if p.peek() == "(" else ()
        p.next()
        parameters = formals(p) if p.peek() == "(" else ()
        p.skip_until(";")
        self.prototypes[label] = Function(label, 0, results, parameters).shape

    def call(self, first: Token, guard, negated: bool) -> None:
        """Behind the opcode: (results), function or register, (parameters), prototype or
        targets;"""
        p = self.p
        results = self._names() if p.peek() == "(" else ()
        if results:
            p.expect(",")
        token, given, prototype = p.next(), (), None
        if p.take(","):
            if p.peek() == "(":
                given = self._names()
                prototype = p.next().text if p.take(",") else None
            else:
                prototype = p.next().text
        p.expect(";")
        body, skip = self.body, f"%skip{len(self.body.pending)}"
        if guard is not None:
            body.emit(first, "bra", (), guard, not negated, skip)
        function = p.functions.get(token.text)
        if function is not None:
            self._inline(function, token, results, given)
        else:
            self._indirect(token, prototype, results, given)
        body.scope.labels[skip] = len(body.pending)

    def _names(self) -> tuple[str, ...]:
        """(a, b, ...): the .param variables they name."""
        p, found = self.p, []
        p.expect("(")
        while not p.take(")"):
            token = p.next()
            name = self.body.scope.parameter(token.text)
            if name is None:
                p.fail(f"{token.text} must be a .param variable", token, UnknownInstruction)
            found.append(name)
            p.take(",")
        return tuple(found)

    def _inline(self, function: Function, token: Token, results: tuple, given: tuple) -> None:
        p, body = self.p, self.body
        if function.body is None:
            if function.name in TRAPS:
                body.emit(token, "trap", ())
                return
            if function.name in SYSTEM_CALLS:
                body.emit(token, function.name, tuple(Symbol(name) for name in (*results, *given)))
                return
            p.fail(
                f"{function.name} has no body in this text: link it in, or do without it (of the"
                " runtime there is printf, no malloc or launch)",
                token,
                UnknownInstruction,
            )
        if function.name in self.stack:
            p.fail(
                f"{function.name} calls itself: recursion is not implemented, rewrite it as a loop",
                token,
                UnknownInstruction,
            )
        if len(self.stack) == MOST_CALLS:
            p.fail(f"more than {MOST_CALLS} calls within each other", token, LimitExceeded)
        if (len(results), len(given)) != (len(function.results), len(function.parameters)):
            p.fail(
                f"{function.name} takes {len(function.parameters)} parameters and gives"
                f" {len(function.results)} results",
                token,
            )
        back, outer, source = p.at, body.scope, (body.source, body.inlined)
        self.stack.append(function.name)
        body.scope = Scope(depth=outer.depth + 1)
        body.scope.parameters.update(
            {
                name: own
                for (name, _), own in zip(
                    (*function.results, *function.parameters), (*results, *given)
                )
            }
        )
        p.at = function.body
        inner = body.scope
        body.statements()
        inner.labels[END] = len(body.pending)
        body.leave_scope(inner)
        self.stack.pop()
        p.at, body.scope, (body.source, body.inlined) = back, outer, source

    def _indirect(self, token: Token, prototype: str | None, results: tuple, given: tuple) -> None:
        body, p = self.body, self.p
        target = body.name(token)
        shape = self.prototypes.get(prototype or "")
        if not isinstance(target, Register) or shape is None:
            p.fail(
                f"{token.text} is no function, nor a register with a .callprototype",
                token,
                UnknownInstruction,
            )
        done = f"%called{len(body.pending)}"
        is_it = body.scratch_predicate()
        for function in p.functions.values():
            if function.body is None or function.shape != shape or function.name in self.stack:
                continue
            following = f"%other{len(body.pending)}"
            body.emit(token, "setp.ne.u64", (is_it, target, Immediate(function.address)))
            body.emit(token, "bra", (), is_it, False, following)
            self._inline(function, token, results, given)
            body.emit(token, "bra", (), label=done)
            body.scope.labels[following] = len(body.pending)
        body.emit(token, "trap", ())
        body.scope.labels[done] = len(body.pending)

    def is_parameter(self, operand) -> bool:
        """Is it an address in a .param variable of a call, rather than of the kernel?"""
        base = getattr(operand, "base", operand)
        return isinstance(base, Symbol) and base.name in self.variables
