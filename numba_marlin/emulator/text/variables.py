"""Variables in memory: declarations and initialisers.

https://docs.nvidia.com/cuda/parallel-thread-execution/#variables
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from numba_marlin.emulator.errors import LimitExceeded
from numba_marlin.emulator.limits import MOST_STATE_BYTES
from numba_marlin.emulator.text.lexer import Token
from numba_marlin.emulator.text.program import Relocation, Variable

if TYPE_CHECKING:
    from numba_marlin.emulator.text.parser import Parser

FLOAT_BITS = {"f32": (32,), "f64": (64,), "decimal": (32, 64)}  # that literals initialise
NUMBERS = re.compile(
    r"\s*((?:(?:0|-?[1-9]\d{0,19})\s*,\s*)*(?:0|-?[1-9]\d{0,19}))(?=\s*\})", re.ASCII
)
VECTORS = {".v2": 2, ".v4": 4, ".v8": 8}
BYTE = 0xFF
DYNAMIC = "__dynamic_shmem__"


class Declaration:
    """.space [.align n] [.v4] .type name[sizes] [= initialiser], ... ;

    ``symbol(name)``: how the kernel calls the variable that ``name`` means; None if none is known
    yet.
    """

    def __init__(self, parser: Parser, symbol=lambda name: None) -> None:
        self.p, self.symbol = parser, symbol
        self.relocations: list[Relocation] = []
        self.data = bytearray()

    def read(self) -> list[Variable]:
        p = self.p
        line, space = p.token().line, p.next().text[1:].split("::")[0]
        align, kind, vector = None, None, 1
        while p.peek().startswith("."):
            word = p.next().text
            if word == ".align":
                align = p.alignment()
            elif word in VECTORS:
                vector = VECTORS[word]
            elif p.is_type(word[1:]):
                kind = word[1:]
            elif word == ".attribute":
                p.skip_until(")")
            elif word not in (".managed", ".ptr"):
                p.fail(f"unknown variable attribute {word!r}", p.last)
        element = p.bytes_of(kind, "variable")
        unit = element * vector
        found = []
        while True:
            token, count = p.next(), p.count()
            if token.kind != "name":
                p.fail(f"a variable needs a name, found {token.text!r}", token)
            self.relocations, self.data = [], bytearray()
            if p.take("="):
                self.initialiser(8 * element)
            if not count and self.data:  # [] = {...}: as many as there are
                count = len(self.data) // unit
            if len(self.data) > count * unit:
                p.fail(
                    f"{token.text} has {count * unit} bytes, its initialiser {len(self.data)}",
                    token,
                )
            # numba-cuda-mlir's dynamic shared memory arrives "demoted": one byte without brackets,
            # standing for [].
            if space == "shared" and count == unit == 1 and token.text.startswith(DYNAMIC):
                count = 0
            found.append(
                Variable(
                    token.text,
                    space,
                    align or unit,
                    count * unit,
                    bytes(self.data),
                    line,
                    tuple(self.relocations),
                    element,
                )
            )
            if not p.take(","):
                break
        p.expect(";")
        return found

    def initialiser(self, bits: int, nested: int = 0) -> None:
        """Append its bytes; addresses among them are zeros, and in ``relocations``."""
        p = self.p
        token = p.token()
        if token.kind == "string":
            self.data += p.next().text[1:-1].encode() + b"\0"
        elif p.take("{"):
            if nested == 64:
                p.fail("{ } within each other more than 64 times in an initialiser", token)
            plain = NUMBERS.match(p.text, p.at, p.stop)
            if plain is not None:  # most tables are long and plain
                p.at = plain.end(1)
                self.numbers(plain[1], token, bits)
            while not p.take("}"):
                self.initialiser(bits, nested + 1)
                if not p.take(",") and p.peek() != "}":
                    p.expect("}")
        elif token.kind == "name" and token.text != "WARP_SZ":
            self.address(p.next(), bits)
        else:
            self.number(token, bits)
        if len(self.data) > MOST_STATE_BYTES:
            p.fail("an initialiser that takes more memory than there is", token, LimitExceeded)

    def numbers(self, text: str, token: Token, bits: int) -> None:
        """n, n, n"""
        values = [int(each) for each in text.split(",")]
        for value in (min(values), max(values)):
            if not -(1 << bits - 1) <= value < 1 << bits:
                self.p.fail(f"initialiser {value} does not fit {bits} bits", token)
        for value in values:
            self.data += (value & (1 << bits) - 1).to_bytes(bits // 8, "little")

    def number(self, token: Token, bits: int) -> None:
        p = self.p
        value = p.constants.expression()
        if value.kind == "int" and bits == 8 and p.peek() == "(":  # 0xff00(name): one byte of it
            p.next()
            self.masked(p.next(), int(value.value), token)
            return
        if value.kind == "int":
            fits = -(1 << bits - 1) <= value.value < 1 << bits
        else:
            fits = bits in FLOAT_BITS[value.kind]
        if not fits:
            p.fail(f"initialiser {token.text} does not fit {bits} bits", token)
        if value.kind == "decimal":
            self.data += struct.pack("<d" if bits == 64 else "<f", value.value)
        else:
            self.data += (int(value.value) & (1 << bits) - 1).to_bytes(bits // 8, "little")

    def address(self, token: Token, bits: int) -> None:
        """name, generic(name), either + offset"""
        name, offset = self._sum(token)
        if name not in self.p.functions and bits != 64:
            self.p.fail(f"the address of {name} needs 64 bits, not {bits}", token)
        self._place(token, name, offset, bits // 8)

    def masked(self, token: Token, mask: int, where: Token) -> None:
        """Behind 0xff00(: a byte of an address."""
        name, offset = self._sum(token)
        self.p.expect(")")
        shift = (mask & -mask).bit_length() - 1
        if mask <= 0 or mask != BYTE << shift or shift % 8 or shift >= 64:
            self.p.fail(f"mask {where.text} must be 0xff of one byte of an address", where)
        self._place(token, name, offset, 1, shift)

    def _sum(self, token: Token) -> tuple[str, int]:
        p, name = self.p, token.text
        if name == "generic":  # the same number, for what has an initialiser
            p.expect("(")
            name, offset = p.next().text, p.offset()
            p.expect(")")
            return name, offset + p.offset()
        return name, p.offset()

    def _place(
        self, token: Token, name: str, offset: int, size: int, shift: int | None = None
    ) -> None:
        """``size`` bytes of an address: all of it, or those from bit ``shift`` on."""
        p, at = self.p, len(self.data)
        if name in p.functions:
            value = p.functions[name].address + offset
            if shift is None and not 0 <= value < 1 << 8 * size:
                p.fail(f"the address of {name} does not fit {8 * size} bits", token)
            value = value >> (shift or 0) & (1 << 8 * size) - 1
            self.data += value.to_bytes(size, "little")
            return
        self.relocations.append(Relocation(at, self.symbol(name) or name, offset, size, shift or 0))
        self.data += bytes(size)
