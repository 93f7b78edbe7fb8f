"""PTX text -> tokens with line numbers, one at a time: a Cursor stands before one and moves on.
Comments vanish; opcodes keep their dots and colons as one token, directives and types in
declarations are one each (.reg.v4.u16 are three).

https://docs.nvidia.com/cuda/parallel-thread-execution/#syntax
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from typing import NamedTuple, NoReturn

from numba_marlin.emulator.errors import PtxSyntaxError
from numba_marlin.emulator.text.program import Immediate

COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
VISIBLE = re.compile(r"[^\n]")
NAME = r"(?:[A-Za-z_$%.]|::)(?:[A-Za-z0-9_$%.]|::)*"
TOKEN = re.compile(
    rf"""\s*(?:(?P<string>"[^"\n]*")
    |(?P<number>0[fF][0-9a-fA-F]{{8}}|0[dD][0-9a-fA-F]{{16}}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?)
    |(?P<name>\.\w+(?:::\w+)*|{NAME})
    |(?P<punct><<|>>|[<>=!]=|&&|\|\||[{{}}\[\]();,:+\-=@<>|!~*/?&^]))
    """,
    re.VERBOSE | re.ASCII,
)
BRACES = re.compile(r'"[^"\n]*"|[{}]')

MOST_DIGITS = 20  # of a whole number of 64 bits

MOST_SAID = 400  # characters of a message, and of the line that it quotes

# State spaces a variable may be declared in.
SPACES = {".global", ".const", ".shared", ".local"}


class Token(NamedTuple):
    """``start``, ``end``: where it stands in the text."""

    kind: str
    text: str
    line: int
    start: int
    end: int


class Cursor:
    """A place ``at`` in ``text``, which ends at ``stop`` for it; ``last`` is the token before the
    place. PtxSyntaxError for a character that starts no token."""

    def __init__(self, text: str) -> None:
        self.original = text
        self.at, self.stop, self._ahead_at = 0, len(text), -1
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self.last = self._ahead = Token("end", "", 1, 0, 0)
        self.text = self._without_comments()

    def _without_comments(self) -> str:
        """Spaces instead, so that everything stays where it is."""

        def spaces(found: re.Match) -> str:
            text = found[0]
            if text[0] == '"':
                return text
            if text[1] == "*" and not (text.endswith("*/") and len(text) > len("/*/")):
                start = found.start()
                self.fail(
                    "this comment has no end: write */ behind it",
                    Token("end", "", self.line_of(start), start, start),
                )
            return VISIBLE.sub(" ", text)

        if "//" in self.original or "/*" in self.original:
            return COMMENT.sub(spaces, self.original)
        return self.original

    def line_of(self, position: int) -> int:
        return bisect_right(self._newlines, position - 1) + 1

    def place_of(self, position: int) -> str:
        """line:column"""
        line = self.line_of(position)
        return f"{line}:{position - (self._newlines[line - 2] if line > 1 else -1)}"

    def token(self) -> Token:
        """The one that comes; of kind "end" and without text where the text is over."""
        if self._ahead_at != self.at:
            match = TOKEN.match(self.text, self.at, self.stop)
            if match is None:
                rest = self.text[self.at : self.stop].lstrip()
                start = self.stop - len(rest)
                self._ahead = Token("end", "", self.line_of(start), start, start)
                if rest:
                    self.fail(f"unexpected character {rest[0]!r}", self._ahead)
            else:
                kind = match.lastgroup or ""
                start, end = match.span(kind)
                self._ahead = Token(kind, match[kind], self.line_of(start), start, end)
            self._ahead_at = self.at
        return self._ahead

    def peek(self) -> str:
        return self.token().text

    def next(self) -> Token:
        token = self.token()
        if token.kind == "end":
            self.fail("the text ends in the middle of a statement", token)
        self.at, self.last = token.end, token
        return token

    def take(self, text: str) -> bool:
        if self.token().text == text:
            self.next()
            return True
        return False

    def expect(self, text: str) -> Token:
        token = self.next()
        if token.text != text:
            self.fail(f"expected {text!r}, found {token.text!r}", token)
        return token

    def skip_until(self, *stops: str) -> str:
        while self.peek() not in stops:
            self.next()
        return self.next().text

    def skip_braces(self) -> int:
        """Behind the brace that closes what was opened just before; where that brace stands."""
        opened = self.last
        depth = 1
        for match in BRACES.finditer(self.text, self.at, self.stop):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if not depth:
                self.at = match.end()
                return match.start()
        self.fail("the text ends in the middle of a statement: this { is not closed", opened)

    def rest_of_line(self) -> str:
        """What is left of the line behind the last token, and go to its end."""
        start = self.at
        end = self.text.find("\n", start, self.stop)
        self.at = end if end >= 0 else self.stop
        return self.text[start : self.at]

    def integer(self) -> int:
        sign = -1 if self.take("-") else 1
        token = self.next()
        value = literal(token.text) if token.kind == "number" else None
        if value is None or value.kind != "int":
            self.fail(f"expected a whole number, found {token.text!r}", token)
        return sign * int(value.value)

    def fail(
        self, detail: str, token: Token | None = None, kind: type = PtxSyntaxError
    ) -> NoReturn:
        """Raise an error about the line of ``token``, or of the one that comes."""
        if token is None:
            token = self.token()
        if len(detail) > MOST_SAID:
            detail = detail[:MOST_SAID] + " ..."
        raise kind(detail, line=token.line, text=self.line_text(token.line)[:MOST_SAID])

    def line_text(self, line: int) -> str:
        """The line as it stands in the text, comments and all."""
        start = self._newlines[line - 2] + 1 if line > 1 else 0
        end = self.original.find("\n", start)
        return self.original[start : end if end >= 0 else None].strip()


def tokenize(text: str) -> list[Token]:
    """All tokens of ``text``."""
    cursor, tokens = Cursor(text), []
    while cursor.token().kind != "end":
        tokens.append(cursor.next())
    return tokens


def negated(value: Immediate) -> Immediate:
    """-value; of a literal in bits, its sign is turned."""
    if value.kind in ("f32", "f64"):
        return Immediate(int(value.value) ^ 1 << (31 if value.kind == "f32" else 63), value.kind)
    return Immediate(-value.value, value.kind)


def literal(text: str) -> Immediate:
    """A number token as an Immediate; 0f/0d literals keep their bits. ValueError for one beyond 64
    bits."""
    value = _literal(text)
    if not (value.value < 1 << 64 if value.kind == "int" else value.value < math.inf):
        raise ValueError(f"{text[:40]} is beyond 64 bits")
    return value


def _literal(text: str) -> Immediate:
    prefix = text[:2].lower()
    if prefix == "0f":
        return Immediate(int(text[2:], 16), "f32")
    if prefix == "0d":
        return Immediate(int(text[2:], 16), "f64")
    if prefix == "0x":
        return Immediate(int(text.rstrip("U"), 16))
    if prefix == "0b":
        return Immediate(int(text.rstrip("U"), 2))
    if "." in text or "e" in text.lower():
        return Immediate(float(text), "decimal")
    digits = text.rstrip("U")
    if len(digits) > 1 and digits[0] == "0":
        if digits.strip("01234567"):
            raise ValueError(f"{text[:40]} is no number: one that begins with 0 is octal")
        return Immediate(int(digits, 8))
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"{text[:40]}... is beyond 64 bits")
    return Immediate(int(digits))
