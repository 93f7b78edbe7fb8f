"""Mutants that take a look at the whole kernel: phases that do not flip, addresses without their
swizzle, branches around memory and waiting.

- phase: an xor that the parity of an mbarrier wait may have come through passes its first operand
  on.
- swizzle: any other xor of 32 or 64 bits does; or a constant loses bit 62, the 128-byte swizzle of
  the matrix descriptors of wgmma and tcgen05.
- predicate: a branch one of whose sides has an access, a copy or a synchronisation that the other
  has not: it is never taken, or taken when it should not be.
"""

from __future__ import annotations

from collections.abc import Iterator

from numba_marlin.emulator.text.cfg import EXIT, successors
from numba_marlin.emulator.text.program import Immediate, Instruction
from numba_marlin.mutation.program import Program, operand_texts
from numba_marlin.mutation.rules import DELETED, Change, turned_round

# PTX ISA, "Matrix descriptor": bits 62 and 63, 1 for 128 bytes; "Shared memory descriptor" of
# tcgen05: bits 61 to 63, 2 for the same
DESCRIPTOR_SWIZZLE = 1 << 62
# what takes descriptors: its second and third operand
PRODUCTS = ("wgmma.mma_async", "tcgen05.mma")
MEMORY = {
    "ld",
    "ldu",
    "st",
    "atom",
    "red",
    "ldmatrix",
    "stmatrix",
    "bar",
    "barrier",
    "fence",
    "membar",
    "cp",
    "mbarrier",
    "wgmma",
    "griddepcontrol",
    "barrier.cluster",
    "tcgen05",
}
READ_ONLY_SPACES = {"param", "const"}


def touches(ins: Instruction) -> bool:
    """Whether it accesses memory that others see, copies, or synchronises."""
    return ins.opcode.split(".")[0] in MEMORY and not READ_ONLY_SPACES & set(ins.modifiers)


def changes(program: Program) -> Iterator[tuple[Instruction, Change]]:
    parities = [
        ins.operands[2]
        for ins in program.instructions
        if ins.root in ("mbarrier.try_wait", "mbarrier.test_wait") and "parity" in ins.modifiers
    ]
    flips = program.origins(*parities)
    descriptors = program.origins(
        *(
            operand
            for ins in program.instructions
            if ins.root in PRODUCTS
            for operand in ins.operands[1:3]
        )
    )
    for ins in program.instructions:
        if ins.opcode in ("xor.b32", "xor.b64"):
            target, first, _ = operand_texts(ins)
            yield (
                ins,
                (
                    "phase" if ins in flips else "swizzle",
                    "no xor",
                    f"mov.{ins.modifiers[-1]} {target}, {first};",
                ),
            )
        elif (
            ins in descriptors
            and ins.operands
            and isinstance(ins.operands[-1], Immediate)
            and int(ins.operands[-1].value) & 3 * DESCRIPTOR_SWIZZLE == DESCRIPTOR_SWIZZLE
        ):
            *others, value = operand_texts(ins)
            yield (
                ins,
                (
                    "swizzle",
                    "not in the descriptor",
                    f"{ins.opcode} {', '.join([*others, str(int(value) - DESCRIPTOR_SWIZZLE)])};",
                ),
            )
        elif ins.root == "bra" and ins.guard is not None and decides_on_memory(program, ins):
            yield ins, ("predicate", "never taken", DELETED)
            yield ins, ("predicate", "turned round", turned_round(ins))


def decides_on_memory(program: Program, branch: Instruction) -> bool:
    """Whether one side, up to where the sides meet again, has an access that the other has not."""
    kernel, count = program.kernel, len(program.instructions)
    join = next(block.join for block in kernel.blocks.values() if block.stop == branch.pc + 1)
    target = branch.target if branch.target < count else EXIT
    one, other = (reachable(program, start, join) for start in (target, branch.pc + 1))
    return any(touches(program.instructions[pc]) for pc in one ^ other)


def reachable(program: Program, start: int, join: int) -> set[int]:
    """Pcs on paths from ``start`` that do not pass ``join``."""
    blocks, count = program.kernel.blocks, len(program.instructions)
    found, wanted = set(), [start]
    while wanted:
        pc = wanted.pop()
        if pc in (EXIT, join) or pc in found or pc >= count:
            continue
        block = blocks[pc]
        found |= set(range(block.start, block.stop))
        wanted += successors(program.instructions[block.stop - 1], block.stop, count)
    return found
