"""What a name means within a ``{ }`` of PTX: registers, labels, and variables of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba_marlin.emulator.text.lexer import MOST_DIGITS

if TYPE_CHECKING:
    from numba_marlin.emulator.text.program import Register

LETTERS = {letter: number for letters in ("xyzw", "rgba") for number, letter in enumerate(letters)}
"""Behind the dot of a vector register: v.x, v.r."""


class Scope:
    """Names of one ``{ }`` level. ``declared`` maps names to (bits, elements of a vector or 0),
    ``ranges`` prefixes (%r of %r<9>) to (bits, elements, count); a register gets its place when it
    is first used, because compilers declare many more than they use.
    """

    def __init__(self, outer: Scope | None = None, depth: int | None = None) -> None:
        """Inside ``outer``; without one, at ``depth``."""
        self.outer, self.depth = outer, depth or 0 if outer is None else outer.depth + 1
        self.declared: dict[str, tuple[int, int]] = {}
        self.ranges: dict[str, tuple[int, int, int]] = {}
        self.registers: dict[str, Any] = {}
        self.placed: list[Register] = []
        self.labels: dict[str, int] = {}
        # variables in memory: name here -> the kernel's own name of it
        self.symbols: dict[str, str] = {}
        # what operands that were read here mean, by their text
        self.operands: dict[str, Any] = {}

    def shape_of(self, name: str) -> tuple[int, int] | None:
        """(bits, elements of a vector or 0) of a register declared at this very level."""
        if name in self.declared:
            return self.declared[name]
        if not self.ranges:
            return None
        # the number begins at any of the digits at the end: %a1<30> has a %a12
        first = max(len(name.rstrip("0123456789")), len(name) - MOST_DIGITS)
        for start in range(first, len(name)):
            declared = self.ranges.get(name[:start])
            if declared is not None:
                bits, elements, count = declared
                digits = name[start:]
                if int(digits) < count and (digits == "0" or digits[0] != "0"):
                    return bits, elements
        return None

    def label(self, name: str) -> int | None:
        return self._found("labels", name)

    def symbol(self, name: str) -> str | None:
        return self._found("symbols", name)

    def _found(self, table: str, name: str):
        scope: Scope | None = self
        while scope is not None:
            if name in getattr(scope, table):
                return getattr(scope, table)[name]
            scope = scope.outer
        return None
