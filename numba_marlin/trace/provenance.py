"""Which bits of a register come from which code of a packed word, through the bitwise and the
half-precision instructions of dequantisation.

One bit of one code of the word is changed at a time, and the chain of instructions is evaluated
again; bits of the result that change come from that code. To check the evaluation, the original
word must give the recorded results. Arithmetic on fp16 values mixes the bits of a value, which then
belongs to all codes that contributed to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

WORD = 0xFFFFFFFF


def immediate(text: str) -> int | None:
    """An integer literal of PTX, or None."""
    if re.fullmatch(r"-?\d+U?", text):
        return int(text.rstrip("U")) & WORD
    if re.fullmatch(r"0[xX][\da-fA-F]+U?", text):
        return int(text.rstrip("U"), 16) & WORD
    return None


def lop3(a: int, b: int, c: int, table: int) -> int:
    result = 0
    for number in range(8):
        if table >> number & 1:
            result |= (
                (a if number & 4 else ~a) & (b if number & 2 else ~b) & (c if number & 1 else ~c)
            )
    return result & WORD


def prmt(a: int, b: int, selector: int) -> int:
    """Selects bytes of b:a. Bit 3 of a selector, which copies the sign, is ignored: dequantisation
    does not use it."""
    both = (b & WORD) << 32 | a & WORD
    return sum((both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))


BITWISE: dict[str, Callable[..., int]] = {
    "shr": lambda a, b: a >> b if b < 32 else 0,
    "shr.s32": lambda a, b: (a - (a >> 31 << 32)) >> min(b, 31),
    "shl": lambda a, b: a << b & WORD if b < 32 else 0,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a & WORD,
    "mov": lambda a: a,
    "lop3": lop3,
    "prmt": prmt,
    "selp": lambda a, b, first: a if first else b,
}


def evaluate(root: str, values: list[int]) -> int | None:
    """The result of a bitwise instruction for these operands; None for any other instruction."""
    function = BITWISE.get(root)
    if function is None or any(value is None for value in values):
        return None
    try:
        return function(*values) & WORD
    except TypeError:
        return None


def altered_results(
    ins: dict, values: list[int | None], altered: list[list[int] | None], result: int
) -> list[int]:
    """The results of an instruction for each of the altered words. values: its operands, as
    numbers; altered: for each operand its value for each of the altered words, None for an operand
    that does not depend on the word; result: the recorded result. For arithmetic on halves, only
    which halves change is known: all of their bits are flipped.
    """
    count = len(next(each for each in altered if each is not None))
    signed = ins["root"] == "shr" and ".s32" in ins["text"]
    root = "shr.s32" if signed else ins["root"]
    if evaluate(root, values) == result:
        return [
            evaluate(
                root,
                [value if other is None else other[i] for value, other in zip(values, altered)],
            )
            for i in range(count)
        ]
    wide = not re.search(r"x2\b", ins["text"].split()[0])
    found = []
    for i in range(count):
        changed = 0
        for value, other in zip(values, altered):
            changed |= 0 if other is None else other[i] ^ value
        found.append(
            result
            ^ (
                WORD * bool(changed)
                if wide
                else 0xFFFF * bool(changed & 0xFFFF) | 0xFFFF0000 * bool(changed >> 16)
            )
        )
    return found


def codes_of_bits(value: int, altered: list[int], bits: int) -> list[int]:
    """The codes that each of the 32 bits of a value comes from (bit c set: code c contributes),
    least significant bit first. altered: the value for each of the 32 words that differ from the
    recorded one in one bit of one code of ``bits`` bits."""
    found = [0] * 32
    for position, other in enumerate(altered):
        for bit in range(32):
            if (other ^ value) >> bit & 1:
                found[bit] |= 1 << position // bits
    return found
