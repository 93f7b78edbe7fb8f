"""Registers of one kernel: what names mean in a scope, and where they lie in the register file.

https://docs.nvidia.com/cuda/parallel-thread-execution/#register-state-space
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba_marlin.emulator.text.constants import STRENGTH
from numba_marlin.emulator.text.program import TYPE_BITS, Kernel, Register, Vector
from numba_marlin.emulator.text.scopes import LETTERS, Scope
from numba_marlin.emulator.text.variables import VECTORS

if TYPE_CHECKING:
    from numba_marlin.emulator.text.parser import Parser

SUMS = STRENGTH["+"]  # what binds more than < does
MOST_BITS = 128  # of a vector
ELEMENTS = "xyzwstuv"  # how the registers of a vector are called here


class Registers:
    """Of ``kernel``; ``scope`` is where the parser stands."""

    def __init__(self, parser: Parser, kernel: Kernel) -> None:
        self.p, self.kernel = parser, kernel
        self.scope = Scope()
        # (depth, width) -> places that closed scopes have left
        self.free: dict[tuple[int, int], list[int]] = {}

    def leave_scope(self, scope: Scope) -> None:
        # A scope of the same depth may reuse the places: it cannot be alive at the same time. An
        # outer one could.
        for register in scope.placed:
            self.free.setdefault((scope.depth, register.width), []).append(register.index)

    def registers(self) -> None:
        """.reg [.v2] .type name, name<count>, ...;"""
        p = self.p
        p.expect(".reg")
        word, elements = p.next().text, 0
        if word in VECTORS:
            elements, word = VECTORS[word], p.next().text
        kind = word[1:]
        if kind == "b128" and not elements:
            kind, elements = "b64", 2
        if kind not in TYPE_BITS or elements * TYPE_BITS[kind] > MOST_BITS:
            p.fail(f"registers of type {word[1:]!r} are not supported", p.last)
        width = max(16, TYPE_BITS[kind]) if kind != "pred" else TYPE_BITS[kind]
        while True:
            token = p.next()
            if token.kind != "name":
                p.fail(f"a register needs a name, found {token.text!r}", token)
            if p.take("<"):
                count = p.constants.expression(SUMS)
                if count.kind != "int" or count.value < 0:
                    p.fail(f"{count.value} must be at least 0", token)
                self.scope.ranges[token.text] = width, elements, int(count.value)
                p.expect(">")
            else:
                self.scope.declared[token.text] = width, elements
            if not p.take(","):
                break
        p.expect(";")
        self.scope.operands.clear()

    def register(self, name: str) -> Register | Vector | None:
        """The register that ``name`` means here, placed in the register file if it is new; of a
        vector, all of them."""
        scope: Scope | None = self.scope
        while scope is not None:
            register = scope.registers.get(name)
            if register is not None:
                return register
            shape = scope.shape_of(name)
            if shape is not None:
                width, elements = shape
                if elements:
                    register = Vector(
                        tuple(
                            self.place(scope, f"{name}.{ELEMENTS[each]}", width)
                            for each in range(elements)
                        )
                    )
                else:
                    register = self.place(scope, name, width)
                scope.registers[name] = register
                return register
            scope = scope.outer
        base, dot, letter = name.rpartition(".")
        vector = self.register(base) if base and letter in LETTERS else None
        if isinstance(vector, Vector) and LETTERS[letter] < len(vector.items):
            return vector.items[LETTERS[letter]]
        return None

    def place(self, scope: Scope, name: str, width: int) -> Register:
        places = self.free.get((scope.depth, width))
        if places:
            index = places.pop()
        else:
            index = self.kernel.registers.get(width, 0)
            self.kernel.registers[width] = index + 1
        register = Register(name, width, index)
        scope.placed.append(register)
        return register

    def scratch(self, name: str, width: int) -> Register:
        """One that the program cannot name."""
        self.scope.declared[f"%scratch.{name}"] = width, 0
        return self.register(f"%scratch.{name}")

    def scratch_predicate(self) -> Register:
        return self.scratch("p", TYPE_BITS["pred"])
