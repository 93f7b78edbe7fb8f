"""Functions of CUDA's device runtime that kernels call: vprintf, malloc, free.

https://docs.nvidia.com/cuda/cuda-c-programming-guide/#formatted-output and
#dynamic-global-memory-allocation-and-operations

A call of one becomes an instruction that no text can spell, with the .param variables of its
results and parameters as operands. What is printed is in ``RunResult.printed``, lane after lane.
Each allocation is a buffer of its own, so that a step over its end, or a use after free, is
OutOfBounds; it is poisoned, and lives until it is freed, by this kernel or a later one of its
machine. NULL is what malloc gives when HEAP_BYTES are in use.
"""

from __future__ import annotations

import re

import numpy as np

from numba_marlin.emulator.errors import MachineError, OutOfBounds
from numba_marlin.emulator.instructions import instruction, operands
from numba_marlin.emulator.state.registers import POISON
from numba_marlin.emulator.text.calls import RUNTIME

HEAP_BYTES = 8 << 20  # cudaLimitMallocHeapSize, unless a program sets another
LONGEST_STRING = 1 << 16
CONVERSION = re.compile(
    rb"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?"
    rb"(?P<length>hh|h|ll|l|j|z|t|L)?(?P<kind>[diouxXeEfFgGaAcsp%])"
)
LONG, SHORT = (b"ll", b"l", b"j", b"z", b"t"), {b"h": 2, b"hh": 1}


def parameter(m, operand, size: int):
    """Function: (ins, lanes) -> unsigned values of ``size`` bytes of a call's parameter."""
    at = m.address_of(operand.base) + operand.offset
    return lambda ins, lanes: m.memory.load(
        ins, lanes, "local", np.full(lanes.shape, at, np.int64), size
    )[..., 0]


def give(m, ins, lanes, operand, values: np.ndarray) -> None:
    at = m.address_of(operand.base) + operand.offset
    m.memory.store(ins, lanes, "local", np.full(lanes.shape, at, np.int64), values[..., None])


def one_by_one(lanes):
    """(index of a value, the lane alone)"""
    for index in np.ndindex(*lanes.shape):
        here = np.zeros(lanes.shape, bool)
        here[index] = True
        yield index, lanes.narrow(here)


class Reader:
    """Reads of one lane at generic addresses."""

    def __init__(self, m, ins, lane) -> None:
        self.m, self.ins, self.lane = m, ins, lane

    def number(self, address: int, size: int) -> int:
        at = np.full(self.lane.shape, address, np.int64)
        return int(self.m.memory.load(self.ins, self.lane, "generic", at, size).flat[0])

    def text(self, address: int) -> bytes:
        """Bytes up to a zero."""
        found = bytearray()
        while (byte := self.number(address + len(found), 1)) != 0:
            found.append(byte)
            if len(found) > LONGEST_STRING:
                raise self.lane.fault(
                    OutOfBounds, f"a string of more than {LONGEST_STRING} bytes", self.ins
                )
        return bytes(found)


def formatted(reader: Reader, template: bytes, arguments: int) -> bytes:
    """``template`` with the arguments that lie at address ``arguments``, each at a multiple of its
    size, as C has it."""
    at = arguments

    def take(size: int) -> int:
        nonlocal at
        at = -(-at // size) * size
        value, at = reader.number(at, size), at + size
        return value

    def signed(value: int, size: int) -> int:
        return value - (1 << 8 * size) if value >> 8 * size - 1 else value

    def one(match) -> bytes:
        kind, flags = match["kind"], match["flags"]
        if kind == b"%":
            return b"%"
        width, precision = (
            b"%d" % signed(take(4), 4) if match[name] == b"*" else match[name]
            for name in ("width", "precision")
        )
        shape = b"%" + flags + width
        exact = shape + (b"" if precision is None else b"." + precision)
        if kind == b"s":
            return (exact + b"s") % reader.text(take(8))
        if kind == b"c":
            return (shape + b"c") % bytes([take(4) & 0xFF])
        if kind == b"p":
            return (shape + b"s") % (b"0x%x" % take(8))
        if kind in b"eEfFgGaA":
            value = float(np.uint64(take(8)).view(np.float64))
            if kind not in b"aA":
                return (exact + kind) % value
            text = value.hex().encode()
            return (shape + b"s") % (text.upper() if kind == b"A" else text)
        size = 8 if match["length"] in LONG else 4
        value = take(size)
        if match["length"] in SHORT:
            size = SHORT[match["length"]]
            value &= (1 << 8 * size) - 1
        if kind in b"di":
            return (exact + b"d") % signed(value, size)
        return (exact + (b"d" if kind == b"u" else kind)) % value

    return CONVERSION.sub(one, template)


@instruction(RUNTIME["vprintf"])
def vprintf(ins, m):
    """count = vprintf(template, arguments): generic addresses; the count is that of arguments."""
    result, *given = operands(ins, 3)
    template, arguments = (parameter(m, operand, 8) for operand in given)

    def step(lanes):
        text, at = template(ins, lanes), arguments(ins, lanes)
        counts = np.empty(lanes.shape, np.uint32)
        for index, lane in one_by_one(lanes):
            reader = Reader(m, ins, lane)
            said = reader.text(int(text[index]))
            try:
                line = formatted(reader, said, int(at[index])).decode(errors="replace")
            except (TypeError, ValueError, OverflowError) as error:
                raise lane.fault(
                    MachineError, f"vprintf cannot print {said!r}: {error}", ins
                ) from None
            m.printed.append(line)
            if m.print is not None:
                m.print(line)
            kinds = (match["kind"] for match in CONVERSION.finditer(said))
            counts[index] = sum(kind != b"%" for kind in kinds)
        give(m, ins, lanes, result, counts)

    return step


@instruction(RUNTIME["malloc"])
def malloc(ins, m):
    """address = malloc(bytes)"""
    result, given = operands(ins, 2)
    size = parameter(m, given, 8)

    def step(lanes):
        sizes = size(ins, lanes)
        addresses = np.zeros(lanes.shape, np.uint64)
        for index in np.ndindex(*lanes.shape):
            nbytes = int(sizes[index])
            used = sum(buffer.nbytes for buffer in m.heap.values())
            if not nbytes or used + nbytes > HEAP_BYTES:
                continue
            array = np.full(nbytes, POISON, np.uint8)
            buffer = m.memory.globals.buffer(array, f"malloc({nbytes})")
            m.heap[buffer.address] = buffer
            addresses[index] = buffer.address
        give(m, ins, lanes, result, addresses)

    return step


@instruction(RUNTIME["free"])
def free(ins, m):
    """free(address), of what malloc gave; nothing for NULL."""
    at = parameter(m, operands(ins, 1)[0], 8)

    def step(lanes):
        addresses = at(ins, lanes)
        for index, lane in one_by_one(lanes):
            address = int(addresses[index])
            if address and address not in m.heap:
                raise lane.fault(
                    MachineError, f"frees {address:#x}, which malloc did not give, or twice", ins
                )
            if address:
                m.memory.globals.release(m.heap.pop(address))

    return step
