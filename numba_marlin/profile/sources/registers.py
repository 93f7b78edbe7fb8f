"""What a thread's registers are for, at the place of the PTX where most of them are live.

``by_use(kernel)`` sorts them by what the kernel's instructions do with them: sums (accumulators of
tensor-core instructions), fragments (their other operands), loaded words that are not fragments
yet, addresses (64-bit, or the base of an access to memory), and the rest: scales, counters, what is
computed in between. A copy of a register is for the same as the register. ptxas assigns registers
anew, so the machine code's differ, but what is live is about the same.
"""

from __future__ import annotations

from numba_marlin.counts.liveness import fullest, registers_of, words_of
from numba_marlin.emulator.text.program import Address, Instruction, Kernel, Register

USES = ("sums", "fragments", "loaded words", "addresses", "other values")
SUMS, FRAGMENTS, LOADED, ADDRESSES, OTHERS = USES
# position of the operands that a tensor-core instruction adds to, and of those that it multiplies
TENSOR = {"mma": ((0, 3), (1, 2)), "wgmma.mma_async": ((0,), (1,))}
LOADS = ("ld", "ldmatrix")


def by_use(kernel: Kernel) -> dict:
    """{"words": {use: 32-bit words}, "at": the place in the kernel's source, or ""}"""
    uses = uses_of(kernel)
    pc, live = fullest(kernel)
    words = dict.fromkeys(USES, 0)
    for register in live:
        words[uses.get(place(register), OTHERS)] += words_of(register)
    return {"words": words, "at": kernel.source_of(kernel.instructions[pc]) or ""}


def place(register: Register) -> tuple[int, int]:
    return register.width, register.index


def uses_of(kernel: Kernel) -> dict[tuple[int, int], str]:
    found: dict[tuple[int, int], str] = {}

    def mark(operand, use: str) -> None:
        for register in registers_of(operand):
            if found.get(place(register), OTHERS) not in USES[: USES.index(use)]:
                found[place(register)] = use

    copies: list[tuple[Register, Register]] = []
    for ins in kernel.instructions:
        adds, multiplies = TENSOR.get(ins.root, ((), ()))
        for positions, use in ((adds, SUMS), (multiplies, FRAGMENTS)):
            for position in positions:
                if position < len(ins.operands):
                    mark(ins.operands[position], use)
        if ins.root in LOADS and not any(each.startswith("param") for each in ins.modifiers):
            mark(ins.operands[0], LOADED)
        for operand in ins.operands:
            if isinstance(operand, Address):
                mark(operand, ADDRESSES)
        for register in (each for operand in ins.operands for each in registers_of(operand)):
            if register.width == 64:
                found.setdefault(place(register), ADDRESSES)
        copies += copy_of(ins)
    changed = True
    while changed:  # both ways: a sum enters a loop by one copy and leaves it by another
        changed = False
        for one, other in copies:
            for a, b in ((one, other), (other, one)):
                if place(a) in found and place(b) not in found:
                    found[place(b)], changed = found[place(a)], True
    return found


def copy_of(ins: Instruction) -> list[tuple[Register, Register]]:
    if ins.root != "mov" or len(ins.operands) != 2:
        return []
    target, source = ins.operands
    return (
        [(target, source)] if isinstance(target, Register) and isinstance(source, Register) else []
    )
