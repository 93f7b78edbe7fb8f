"""The number of live registers at each instruction of a kernel, from its control flow: the minimum
that the PTX needs, before an assembler schedules it.

A register is live where some path still reads its value. 64-bit registers count two words,
16-bit ones one, predicates none. ptxas reorders instructions, packs and rematerialises, so its
number differs; the shape of the curve is similar.
"""

from __future__ import annotations

from collections.abc import Iterator

from numba_marlin.emulator.text.cfg import EXIT, successors
from numba_marlin.emulator.text.program import (
    PREDICATE,
    Address,
    Instruction,
    Kernel,
    Not,
    Pair,
    Register,
    Vector,
)

# First operands that are registers but are read, and those that are both read and written.
READS_FIRST = {"bar", "barrier", "nanosleep", "wgmma.mma_async"}
WRITES_TOO = {"wgmma.mma_async"}


def registers_of(operand) -> Iterator[Register]:
    """All registers that an operand names."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from registers_of(item)
    elif isinstance(operand, Pair):
        yield from registers_of(operand.first)
        yield from registers_of(operand.second)
    elif isinstance(operand, Not):
        yield operand.register
    elif isinstance(operand, Address):
        yield from registers_of(operand.base)
        yield from registers_of(operand.index)


def reads_and_writes(ins: Instruction) -> tuple[list[Register], list[Register]]:
    """(registers read, registers written), guard included. A guarded instruction also reads
    what it writes, because the old value may stay."""
    operands = list(ins.operands)
    written: list[Register] = []
    if operands and not isinstance(operands[0], Address):
        first = list(registers_of(operands[0]))
        reduces = ins.root in ("bar", "barrier") and "red" in ins.modifiers
        if ins.root not in READS_FIRST or ins.root in WRITES_TOO or reduces:
            written = first
        if ins.root not in READS_FIRST or reduces:
            operands = operands[1:]
    read = [register for operand in operands for register in registers_of(operand)]
    if ins.guard is not None:
        read += [ins.guard, *written]
    return read, written


def live_words(kernel: Kernel) -> list[int]:
    """Per pc, the live 32-bit words before or after it, whichever is more."""
    return [words for words, _ in _live(kernel)[0]]


def fullest(kernel: Kernel) -> tuple[int, list[Register]]:
    """(pc, live registers) where they take most words."""
    live, known = _live(kernel)
    pc = max(range(len(live)), key=lambda at: live[at][0])
    return pc, [each for number, each in enumerate(known) if live[pc][1] >> number & 1]


def words_of(register: Register) -> int:
    """The 32-bit words that a register takes; predicates have registers of their own."""
    return 0 if register.width == PREDICATE else 2 if register.width == 64 else 1


def _live(kernel: Kernel) -> tuple[list[tuple[int, int]], list[Register]]:
    """(per pc, (words, mask) of what is live before or after it, whichever takes more words; the
    registers that the masks' bits stand for)."""
    known: list[Register] = []
    numbers: dict[tuple[int, int], int] = {}
    effects = []
    for ins in kernel.instructions:
        sets = []
        for registers in reads_and_writes(ins):
            mask = 0
            for register in registers:
                place = register.width, register.index
                if place not in numbers:
                    numbers[place] = len(known)
                    known.append(register)
                mask |= 1 << numbers[place]
            sets.append(mask)
        effects.append(tuple(sets))
    words = {width: 0 for width in (16, 32, 64, PREDICATE)}
    for (width, _), number in numbers.items():
        words[width] |= 1 << number

    def weight(live: int) -> int:
        return (live & (words[32] | words[16])).bit_count() + 2 * (live & words[64]).bit_count()

    count, entering = len(kernel.instructions), {EXIT: 0, **dict.fromkeys(kernel.blocks, 0)}
    leaving = {
        start: successors(kernel.instructions[block.stop - 1], block.stop, count)
        for start, block in kernel.blocks.items()
    }

    def backwards(start: int):
        """(pc, live before, live after) of a block, from its end."""
        live = 0
        for target in leaving[start]:
            live |= entering[target]
        for pc in range(kernel.blocks[start].stop - 1, start - 1, -1):
            behind = live
            read, written = effects[pc]
            live = live & ~written | read
            yield pc, live, behind

    changed = True
    while changed:
        changed = False
        for start in sorted(kernel.blocks, reverse=True):
            before = 0
            for _, at_start, _ in backwards(start):  # the last one is the block's first pc
                before = at_start
            if before != entering[start]:
                entering[start], changed = before, True
    result = [(0, 0)] * count
    for start in kernel.blocks:
        for pc, before, behind in backwards(start):
            result[pc] = max((weight(each), each) for each in (before, behind))
    return result, known
