"""Which bits of a register come from which code of a packed word, through the bitwise and the half-precision instructions of dequantisation.

Bitwise instructions are evaluated anew with one bit flipped, so what is said of a bit is what the instruction does with the recorded operands, and a wrong
evaluation is noticed: its result must be the recorded one. Arithmetic on halves mixes the bits of a half; each half then belongs to the codes that went into it.
"""

from __future__ import annotations

import re

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
            result |= (a if number & 4 else ~a) & (b if number & 2 else ~b) & (c if number & 1 else ~c)
    return result & WORD


def prmt(a: int, b: int, selector: int) -> int:
    """Bytes of b:a; bit 3 of a selector, which copies the sign, is not used by dequantisation."""
    both = (b & WORD) << 32 | a & WORD
    return sum((both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))


BITWISE = {
    "shr": lambda a, b: a >> b if b < 32 else 0, "shl": lambda a, b: a << b & WORD if b < 32 else 0, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "not": lambda a: ~a & WORD, "mov": lambda a: a, "lop3": lop3, "prmt": prmt,
}  # fmt: skip


def evaluate(root: str, values: list[int]) -> int | None:
    """What a bitwise instruction makes of its operands; None if it is none."""
    function = BITWISE.get(root)
    if function is None or any(value is None for value in values):
        return None
    try:
        return function(*values) & WORD
    except TypeError:
        return None


def passed_on(ins: dict, values: list[int | None], sources: list[list[int] | None], result: int) -> list[int]:
    """Codes (bit i set: code i takes part) that each of 32 bits of a result comes from, least significant first. values: the operands, as numbers; sources:
    the same of each operand, None for one that has nothing of the word; result: the recorded one."""
    if evaluate(ins["root"], values) == result:
        bits = [0] * 32
        for position, source in enumerate(sources):
            for bit in range(32) if source is not None else ():
                if source[bit]:
                    flipped = list(values)
                    flipped[position] ^= 1 << bit
                    changed = evaluate(ins["root"], flipped) ^ result
                    for other in range(32):
                        if changed >> other & 1:
                            bits[other] |= source[bit]
        return bits
    wide = not re.search(r"x2\b", ins["text"].split()[0])
    bits = [0] * 32
    for source in sources:
        if source is None:
            continue
        for low, high in ((0, 32),) if wide else ((0, 16), (16, 32)):
            together = 0
            for bit in range(low, high):
                together |= source[bit]
            for bit in range(low, high):
                bits[bit] |= together
    return bits
