"""Functions of the device's runtime that a program calls and the machine has: vprintf.

``text.calls`` makes an instruction of such a call; its operands are the .param variables of the
result and the arguments.

https://docs.nvidia.com/cuda/ptx-writers-guide-to-interoperability/#system-calls
"""

from __future__ import annotations

import re
import sys

import numpy as np

from numba_marlin.emulator.errors import PtxSyntaxError
from numba_marlin.emulator.instructions import instruction, operands
from numba_marlin.emulator.text.program import Symbol

MOST_CHARACTERS = 1 << 12  # of a string that is printed, which no zero may end
_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+))?"
    r"(?P<length>hh|h|ll|l|j|z|t|L)?(?P<kind>[diouxXeEfFgGaAcsp%])"
)
_LONG = ("ll", "l", "j", "z", "t")


@instruction("vprintf")
def vprintf(ins, m):
    """int vprintf(format, arguments): prints at once, lanes in order. The arguments stand where C
    would lay them out in a structure."""
    if not all(isinstance(each, Symbol) for each in operands(ins, 3)):
        raise PtxSyntaxError("vprintf is a function", line=ins.line, text=ins.text)
    result, form, arguments = (m.address_of(operand) for operand in ins.operands)

    def step(lanes):
        def at(where, size=8):
            address = np.full(lanes.shape, where, np.int64)
            return m.memory.load(ins, lanes, "local", address, size)[..., 0]

        forms, tables = at(form).astype(np.int64), at(arguments).astype(np.int64)
        printed = np.zeros(lanes.shape + (1,), np.uint32)
        for index in np.ndindex(lanes.shape):
            one = lanes.narrow(single(lanes.shape, index))
            reader = Reader(ins, m.memory, one, int(tables[index]))
            text, count = formatted(reader.string(int(forms[index])), reader)
            (m.print or sys.stdout.write)(text)
            printed[index] = count
        m.memory.store(
            ins, lanes, "local", np.full(lanes.shape, result, np.int64), printed, kind="store"
        )

    return step


def single(shape: tuple, index: tuple) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[index] = True
    return mask


class Reader:
    """The arguments of one lane's call, from ``at`` on."""

    def __init__(self, ins, memory, lanes, at: int) -> None:
        self.ins, self.memory, self.lanes, self.at = ins, memory, lanes, at

    def load(self, address: int, size: int) -> int:
        where = np.full(self.lanes.shape, address, np.int64)
        return int(self.memory.load(self.ins, self.lanes, "generic", where, size).reshape(-1)[0])

    def next(self, size: int) -> int:
        self.at = -(-self.at // size) * size
        self.at += size
        return self.load(self.at - size, size)

    def string(self, address: int) -> str:
        found = bytearray()
        while len(found) < MOST_CHARACTERS:
            byte = self.load(address + len(found), 1)
            if not byte:
                break
            found.append(byte)
        return found.decode("utf-8", "replace")


def formatted(form: str, arguments: Reader) -> tuple[str, int]:
    """What C's printf would print, and of how many arguments."""
    count = 0

    def convert(match: re.Match) -> str:
        nonlocal count
        kind = match["kind"]
        if kind == "%":
            return "%"
        count += 1
        width, precision = (
            signed(arguments.next(4), 4) if match[part] == "*" else match[part]
            for part in ("width", "precision")
        )
        head = f"%{match['flags']}{'' if width is None else width}" + (
            "" if precision is None else f".{precision}"
        )
        if kind == "s":
            return (head + "s") % arguments.string(arguments.next(8))
        if kind == "p":
            return (head + "s") % hex(arguments.next(8))
        if kind == "c":
            return (head + "c") % chr(arguments.next(4) & 0xFF)
        if kind in "diouxX":
            size = 8 if match["length"] in _LONG else 4
            value = arguments.next(size)
            value = signed(value, size) if kind in "di" else value
            return (head + kind.replace("u", "d")) % value
        number = float(np.uint64(arguments.next(8)).view(np.float64))
        return number.hex() if kind in "aA" else (head + kind) % number

    return _CONVERSION.sub(convert, form), count


def signed(value: int, size: int) -> int:
    return value - (1 << 8 * size) if value >> 8 * size - 1 else value
