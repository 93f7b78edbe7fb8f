"""Device functions (.func) of a text: where they stand, what they take and give, which of them can
come to call themselves. Their bodies are read where they are called (``calls``).

https://docs.nvidia.com/cuda/parallel-thread-execution/#kernel-and-function-directives-func
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from numba_marlin.emulator.errors import UnknownInstruction
from numba_marlin.emulator.text.lexer import NAME
from numba_marlin.emulator.text.program import TYPE_BITS
from numba_marlin.emulator.text.variables import VECTORS

if TYPE_CHECKING:
    from numba_marlin.emulator.text.parser import Parser

FIRST_ADDRESS, ADDRESS_STEP = 0x40, 0x40  # of functions, which nothing loads from
ANY = ""  # what a call through a register calls
CALL = re.compile(rf"\bcall(?:\.uni)?\s*(?:\([^()]*\)\s*,\s*)?({NAME})", re.ASCII)


@dataclass(frozen=True)
class Formal:
    """A parameter or result of a function. ``bits``: of a register; 0 for bytes in .param space.
    ``elements``: of a vector of registers, 0 for one."""

    name: str
    size: int
    align: int
    bits: int = 0
    elements: int = 0


@dataclass(eq=False)
class Function:
    """``header``: where its results, name and parameters begin; ``body``: from behind its brace to
    the closing one, None if it is only declared."""

    parser: Parser
    name: str
    address: int
    header: int
    body: tuple[int, int] | None = None

    def check(self) -> None:
        """PtxSyntaxError for results and parameters that mean nothing; what is not implemented may
        stand there until it is called."""
        with suppress(UnknownInstruction):
            _ = self.signature

    @cached_property
    def signature(self) -> tuple[tuple[Formal, ...], tuple[Formal, ...]]:
        """(results, parameters)"""
        p = self.parser
        back, (p.at, p.stop) = (p.at, p.stop), (self.header, len(p.text))
        try:
            results = formals(p) if p.peek() == "(" else ()
            p.next()
            return results, formals(p) if p.peek() == "(" else ()
        finally:
            p.at, p.stop = back

    @property
    def results(self) -> tuple[Formal, ...]:
        return self.signature[0]

    @property
    def parameters(self) -> tuple[Formal, ...]:
        return self.signature[1]

    @property
    def shape(self) -> tuple:
        return shape(*self.signature)

    @cached_property
    def called(self) -> tuple[set[str], bool]:
        """(functions that its body calls, does it call through a register?)"""
        if self.body is None:
            return set(), False
        known = self.parser.functions
        names = set(CALL.findall(self.parser.text, *self.body))
        found = {known[name].name for name in names if name in known}
        return found, any(name not in known for name in names)


def shape(results: tuple[Formal, ...], parameters: tuple[Formal, ...]) -> tuple:
    """What two functions have in common that one call can reach."""
    return tuple(
        tuple((each.size, each.bits > 0, each.elements) for each in formals)
        for formals in (results, parameters)
    )


def find_function(parser: Parser, functions: dict[str, Function]) -> None:
    """Behind .func: enter it in ``functions``, and go behind it."""
    p = parser
    if p.take(".attribute"):
        p.skip_until(")")
    header = p.at
    if p.peek() == "(":
        p.skip_until(")")
    name = p.next()
    if name.kind != "name":
        p.fail(f"a function needs a name, found {name.text!r}", name)
    body = None
    if p.to_body():
        start = p.at
        body = start, p.skip_braces()
    old = functions.get(name.text)
    if old is None:
        address = FIRST_ADDRESS + ADDRESS_STEP * len(functions)
        old = functions[name.text] = Function(p, name.text, address, header, body)
    elif body is not None and old.body is not None:
        p.fail(f"function {name.text} is defined twice", name)
    elif body is not None:
        old.header, old.body = header, body
        old.__dict__.pop("signature", None)
    old.check()


def recursive(functions: dict[str, Function]) -> set[str]:
    """Names of the functions that a chain of calls leads back to. Who calls through a register is
    taken to call all that have a body."""
    bodies = {each.name for each in functions.values() if each.body is not None}
    calls = {ANY: bodies}
    for name in bodies:
        named, indirect = functions[name].called
        calls[name] = named & bodies | ({ANY} if indirect else set())
    found, index, low, stack, waiting = set(), {}, {}, [], set()
    for root in sorted(bodies):  # Tarjan's strongly connected components, without recursion
        if root in index:
            continue
        work = [(root, iter(sorted(calls[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        waiting.add(root)
        while work:
            name, rest = work[-1]
            for called in rest:
                if called not in index:
                    index[called] = low[called] = len(index)
                    stack.append(called)
                    waiting.add(called)
                    work.append((called, iter(sorted(calls[called]))))
                    break
                if called in waiting:
                    low[name] = min(low[name], index[called])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    group = set()
                    while name not in group:
                        group.add(stack.pop())
                    waiting -= group
                    if len(group) > 1 or name in calls[name]:
                        found |= group
    return found - {ANY}


def formals(parser: Parser) -> tuple[Formal, ...]:
    """(.param [.align n] .type name[size], .reg .type name, ...)"""
    p, found = parser, []
    p.expect("(")
    while not p.take(")"):
        where = p.token()
        space = p.next().text
        if space not in (".param", ".reg"):
            p.fail(
                "parameters of functions must be in .param or .reg space", where, UnknownInstruction
            )
        kind, align, elements = None, None, 0
        while p.peek().startswith("."):
            word = p.next().text
            if word == ".align":
                align = p.alignment()
            elif word == ".ptr":
                p.pointer()
            elif word in VECTORS:
                elements = VECTORS[word]
            elif p.is_type(word[1:]):
                kind = word[1:]
        if space == ".reg":
            if kind not in TYPE_BITS:
                p.fail(
                    f"a parameter in a register of type {kind} is not implemented",
                    where,
                    UnknownInstruction,
                )
            bits = TYPE_BITS[kind] if kind == "pred" else max(16, TYPE_BITS[kind])
            size = bits // 8 * (elements or 1)
            found.append(Formal(p.next().text, size, 1, bits, elements))
        else:
            element, name = p.bytes_of(kind, "parameter"), p.next().text
            found.append(Formal(name, p.count() * element, align or element))
        if not p.take(",") and p.peek() != ")":
            p.expect(")")
    return tuple(found)
