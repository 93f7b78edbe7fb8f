"""PTX text -> tokens with line numbers. Comments vanish; opcodes keep their dots and colons as one
token.

https://docs.nvidia.com/cuda/parallel-thread-execution/#syntax
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from numba_marlin.emulator.errors import PtxSyntaxError
from numba_marlin.emulator.text.program import Immediate

TOKEN = re.compile(
    r"""(?P<space>[ \t\r\f]+)
    |(?P<newline>\n)
    |(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<string>"[^"\n]*")
    |(?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?)
    |(?P<name>(?:[A-Za-z_$%.]|::)(?:[A-Za-z0-9_$%.]|::)*)
    |(?P<punct>[{}\[\]();,:+\-=@<>|!~*])
    """,
    re.VERBOSE | re.DOTALL,
)

# State spaces a variable may be declared in.
SPACES = {".global", ".const", ".shared", ".local"}


class Token(NamedTuple):
    kind: str
    text: str
    line: int
    start: int
    end: int


def tokenize(text: str) -> list[Token]:
    """All tokens of ``text``. Raises PtxSyntaxError at a character that starts none."""
    tokens = []
    line, position, end = 1, 0, len(text)
    while position < end:
        match = TOKEN.match(text, position)
        if match is None:
            raise PtxSyntaxError(
                f"unexpected character {text[position]!r}",
                line=line,
                text=text.splitlines()[line - 1].strip(),
            )
        kind = match.lastgroup
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += match.group().count("\n")
        elif kind != "space":
            tokens.append(Token(kind, match.group(), line, position, match.end()))
        position = match.end()
    return tokens


def negated(value: Immediate) -> Immediate:
    """-value; of a literal in bits, its sign is turned."""
    if value.kind in ("f32", "f64"):
        return Immediate(value.value ^ 1 << (31 if value.kind == "f32" else 63), value.kind)
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
    return Immediate(int(digits, 8) if len(digits) > 1 and digits[0] == "0" else int(digits))
