"""Operands of instructions: registers, numbers, vectors, addresses.

Reads them from the parser's place for one kernel's ``body``, which knows what names mean.
https://docs.nvidia.com/cuda/parallel-thread-execution/#instruction-operands
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba_marlin.emulator.text.lexer import Token
from numba_marlin.emulator.text.program import (
    Address,
    Immediate,
    Not,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from numba_marlin.emulator.text.rewriting import indexed

if TYPE_CHECKING:
    from numba_marlin.emulator.text.body import Body

SIGNS = "-+~("
OF_ADDRESSES = {"mov", "cvta"}  # take a[1] as an address, others as what lies there
AXES = "xyz"


class Operands:
    """Of the instructions of ``body``."""

    def __init__(self, body: Body) -> None:
        self.body, self.p = body, body.p

    def list(self, root: str) -> list:
        """a, b, ... up to the semicolon, which stays; ``root`` is the instruction's."""
        p = self.p
        if p.peek() == ";":
            return []
        found = [self.one(root)]
        while p.take(","):
            found.append(self.one(root))
        if p.peek() != ";":
            p.expect(";")
        return found

    def one(self, root: str = ""):
        p = self.p
        token = p.token()
        if token.kind == "number" or token.text in SIGNS or token.text == "WARP_SZ":
            return p.constants.expression()
        p.next()
        if token.text == "{":
            items = [self.one(root)]
            while p.take(","):
                items.append(self.one(root))
            p.expect("}")
            return Vector(tuple(items))
        if token.text == "[":
            return self.address(root)
        if token.text == "!":
            if p.token().kind == "name":
                return Not(self.name(p.next()))
            p.at = token.start
            return p.constants.expression()
        if token.text == "_":
            first = Sink()
        else:
            first = self.name(token)
        if p.take("|"):
            return Pair(first, self.one(root))
        if isinstance(first, Symbol):
            if p.take("["):
                return self.element(first, token, root)
            return Symbol(first.name, first.offset + p.offset())
        return first

    def address(self, root: str) -> Address:
        """Behind the bracket: base + offset], or base, coordinates]."""
        p = self.p
        base, offset = self.one(root), 0
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), base.offset
        offset += p.offset()
        index = self.one(root) if p.take(",") else None
        p.expect("]")
        return Address(base, offset, index)

    def element(self, array: Symbol, token: Token, root: str):
        """array[index], of which the bracket is read: a constant, or a register and one."""
        p = self.p
        variable = self.body.variable(array)
        if variable is None:
            p.fail(f"{token.text} is no variable whose elements could be counted", token)
        size = variable.element
        register = None
        if p.token().kind == "name" and p.peek() != "WARP_SZ":
            register = self.name(p.next())
            index = p.offset()
        else:
            index = p.constants.whole()
        p.expect("]")
        if register is None:
            symbol = Symbol(array.name, array.offset + index * size)
            return symbol if root in OF_ADDRESSES else Address(Symbol(array.name), symbol.offset)
        if not isinstance(register, Register) or register.width not in (32, 64):
            p.fail(f"an index of {token.text} must be a constant or a register of 32 or 64 bits")
        if root in OF_ADDRESSES:
            p.fail(f"the address of {token.text}[register] must be computed with mad", token)
        place = indexed(self.body, self.body.where(token), array, register, size)
        return Address(place, index * size)

    def name(self, token: Token):
        """What it stands for."""
        body, p, text = self.body, self.p, token.text
        register = body.register(text)
        if register is not None:
            return register
        if text in body.specials:
            return Special(text)
        if f"{text}.x" in body.specials:
            return Vector((*(Special(f"{text}.{axis}") for axis in AXES), Immediate(0)))
        if text[-2:] == ".w" and f"{text[:-1]}x" in body.specials:
            return Immediate(0)
        if text == "WARP_SZ":
            return Immediate(32)
        symbol = body.scope.symbol(text)
        if symbol is not None:
            return Symbol(symbol)
        if text in p.functions:
            return Immediate(p.functions[text].address)
        if text in p.names or text in body.parameters:
            return Symbol(text)
        p.fail(f"{text} is not declared", token)
