"""Constant expressions, as C has them: https://docs.nvidia.com/cuda/parallel-thread-execution/
#constant-expressions

Whole numbers are of 64 bits, signed or not: a literal is signed if it fits, a result unsigned if an
operand is. Of floating-point numbers only literals and their negatives stand alone; sums of decimal
ones are decimal.
"""

from __future__ import annotations

import operator

from numba_marlin.emulator.text.lexer import Cursor, Token, literal, negated
from numba_marlin.emulator.text.program import Immediate

LEVELS = (  # that bind less come first
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
STRENGTH = {sign: level for level, signs in enumerate(LEVELS) for sign in signs}
PAIRS = STRENGTH["|"]  # in an operand, d|p is no sum of bits
COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SIMPLE = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
BITS = 64
MOST_NESTED = 100
"""Parentheses and signs within each other."""


class Constants:
    """Reads expressions from ``cursor``. ``whole`` has them as integers."""

    def __init__(self, cursor: Cursor) -> None:
        self.c, self.depth = cursor, 0

    def whole(self) -> int:
        """An integer; PtxSyntaxError for a floating-point number."""
        token = self.c.token()
        value = self.expression()
        if value.kind != "int":
            self.c.fail(f"expected a whole number, found {token.text!r}", token)
        return int(value.value)

    def at_least(self, least: int) -> int:
        """An integer that must not be smaller."""
        token, value = self.c.token(), self.whole()
        if value < least:
            self.c.fail(f"{value} must be at least {least}", token)
        return value

    def expression(self, least: int = 0) -> Immediate:
        """One whose operators bind as ``LEVELS[least]`` does, or more; with ?: if any may."""
        value = self._unary()
        while True:
            token = self.c.token()
            sign = "%" if token.kind == "name" and token.text[0] == "%" else token.text
            level = STRENGTH.get(sign, -1)
            if level < least:
                break
            self.c.next()
            if sign == "%":  # the lexer takes it for the beginning of a name
                self.c.at = token.start + 1
            value = self._apply(token, sign, value, self.expression(level + 1))
        if least == 0 and self.c.peek() == "?":
            self.c.next()
            first = self._within(self.expression)
            self.c.expect(":")
            second = self._within(self.expression)
            return first if value.value else second
        return value

    def _within(self, read):
        self.depth += 1
        if self.depth > MOST_NESTED:
            self.c.fail(f"an expression of more than {MOST_NESTED} levels: write it with fewer")
        try:
            return read()
        finally:
            self.depth -= 1

    def _unary(self) -> Immediate:
        token = self.c.next()
        if token.text == "-":
            value = self._within(self._unary)
            if value.kind != "int" or value.value == 1 << BITS - 1:
                return negated(value)
            return self._wrapped(-int(value.value), value)
        if token.text == "+":
            return self._within(self._unary)
        if token.text == "!":
            return Immediate(int(not self._within(self._unary).value))
        if token.text == "~":
            value = self._within(self._unary)
            self._require_whole(token, value)
            return self._wrapped(~int(value.value), value)
        if token.text == "(":
            if self.c.peek() in (".s64", ".u64"):
                kind = self.c.next().text
                self.c.expect(")")
                value = self._within(self._unary)
                number = int(value.value) % (1 << BITS)
                signed = kind == ".s64" and number >> (BITS - 1)
                return Immediate(number - (1 << BITS) if signed else number)
            value = self._within(self.expression)
            self.c.expect(")")
            return value
        if token.text == "WARP_SZ":
            return Immediate(32)
        if token.kind != "number":
            self.c.fail(f"expected a number, found {token.text!r}", token)
        return literal(token.text)

    def _require_whole(self, token: Token, *values: Immediate) -> None:
        if any(value.kind != "int" for value in values):
            self.c.fail(f"{token.text} takes whole numbers only", token)

    def _wrapped(self, number: int, *values: Immediate) -> Immediate:
        """To 64 bits: unsigned if one of the operands was beyond the signed ones."""
        number %= 1 << BITS
        unsigned = any(value.value >= 1 << (BITS - 1) for value in values)
        return Immediate(number - (1 << BITS) if not unsigned and number >> (BITS - 1) else number)

    def _apply(self, token: Token, sign: str, a: Immediate, b: Immediate) -> Immediate:
        if sign in COMPARISONS:
            return Immediate(int(COMPARISONS[sign](a.value, b.value)))
        if sign == "&&":
            return Immediate(int(bool(a.value and b.value)))
        if sign == "||":
            return Immediate(int(bool(a.value or b.value)))
        if "decimal" in (a.kind, b.kind) and sign in "+-*/":
            if {a.kind, b.kind} & {"f32", "f64"} or (sign == "/" and not b.value):
                self.c.fail(f"{sign} does not take these numbers: write the result", token)
            x, y = float(a.value), float(b.value)
            return Immediate(x / y if sign == "/" else SIMPLE[sign](x, y), "decimal")
        self._require_whole(token, a, b)
        x, y = int(a.value), int(b.value)
        if sign in SIMPLE:
            return self._wrapped(SIMPLE[sign](x, y), a, b)
        if sign in ("<<", ">>"):
            if not 0 <= y < BITS:
                self.c.fail(f"a shift by {y} must be by 0 to {BITS - 1}", token)
            return self._wrapped(x << y if sign == "<<" else x >> y, a)
        if not y:
            self.c.fail(f"{x} {sign} 0 has no result", token)
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return self._wrapped(quotient if sign == "/" else x - y * quotient, a, b)
