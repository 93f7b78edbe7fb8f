"""Loads that are done late: in a run with ``Schedule(memory="weak")`` a load may be done behind
later loads and stores of its thread.

How late at most, is read off the text, within a basic block: until something uses its result,
changes its address or its guard, or orders accesses (a fence, an acquire, a release, an atomic, a
collective, a barrier), and until the thread accesses the same place. So no value depends on itself:
what a store depends on is done before it. https://docs.nvidia.com/cuda/parallel-thread-execution/
#no-thin-air. Acquiring loads are done where they stand.

Also here, because it too goes by what stands between instructions: behind barriers and waits for
asynchronous operations lanes have seen what their cluster has (``WeakMemory.meet``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.scheduling.undefined import key, registers_of
from numba_marlin.emulator.state.lanes import WARP, Lanes
from numba_marlin.emulator.text.cfg import TERMINATORS
from numba_marlin.emulator.text.program import Address, Instruction, Not, Register

if TYPE_CHECKING:
    from numba_marlin.emulator.ordering.weak_memory import WeakMemory
    from numba_marlin.emulator.scheduling.execution import Execution

CALCULATING = set("mov add sub mul mad and or xor shl shr cvt setp selp cvta".split())
ACCESSES = {"ld", "st"}
ORDERED = {"acquire", "release", "mmio", "param"}
SYNCHRONISING = ("bar", "mbarrier", "cp", "wgmma", "tcgen05", "griddepcontrol")
LATE, GO_ON = 0.5, 0.3  # chances that a load is put off, and that it is done at each chance
NEAR = 32  # bytes: accesses that far apart are of different places

Step = Callable[[Lanes], None]


@dataclass(eq=False)
class Late:
    """A load that may be put off until before the instruction at ``stop``; ``waiting`` [warps, 32]:
    for which lanes it is."""

    ins: Instruction
    stop: int
    step: Step
    at: Callable
    waiting: np.ndarray


def rearranged(execution: Execution, weak: WeakMemory, steps: list) -> list:
    """``steps`` of all instructions, with late loads."""
    kernel, made = execution.kernel, list(steps)
    for block in kernel.blocks.values():
        loads: list[Late] = []
        for pc in range(block.start, block.stop):
            ins = kernel.instructions[pc]
            passing = [late for late in loads if pc <= late.stop]
            if passing:
                made[pc] = _behind(execution, weak, ins, passing, made[pc])
            stop = latest(kernel.instructions, pc, block.stop)
            if stop is not None:
                at, lanes = execution.address(ins, ins.operands[1]), execution.placement.warps
                waiting = np.zeros((lanes, WARP), bool)
                late = Late(ins, stop, steps[pc], at, waiting)
                loads.append(late)
                made[pc] = _put_off(weak, late, made[pc])
    for ins in kernel.instructions:
        if ins.root.startswith(SYNCHRONISING):
            behind = ins.root in TERMINATORS
            pc = ins.pc + behind
            if pc < len(made):
                made[pc] = _meeting(weak, made[pc], first=behind)
    return made


def latest(instructions: list[Instruction], pc: int, end: int) -> int | None:
    """Before which instruction the load at ``pc`` must be done; None if where it stands."""
    ins = instructions[pc]
    if ins.root != "ld" or ORDERED & set(ins.modifiers):
        return None
    results = {key(each) for each in _registers(ins.operands[0])}
    needed = {key(each) for each in _registers(ins.operands[1])}
    needed |= set() if ins.guard is None else {key(ins.guard)}
    passed = False
    for other in instructions[pc + 1 : end]:
        if other.root not in CALCULATING | ACCESSES or ORDERED - {"param"} & set(other.modifiers):
            return other.pc if passed else None
        mentioned = {key(each) for operand in other.operands for each in _registers(operand)}
        mentioned |= set() if other.guard is None else {key(other.guard)}
        written = [] if other.root == "st" else _registers(other.operands[0])
        if results & mentioned or needed & {key(each) for each in written}:
            return other.pc if passed else None
        passed |= other.root in ACCESSES and "param" not in other.modifiers
    return None  # the block ends without a terminator


def _registers(operand) -> list[Register]:
    if isinstance(operand, Address):
        return registers_of(operand.base)
    return [operand.register] if isinstance(operand, Not) else registers_of(operand)


def _put_off(weak: WeakMemory, late: Late, step: Step) -> Step:
    def run(lanes: Lanes) -> None:
        if weak.random.random() < LATE:
            late.waiting[lanes.sel] = True
        else:
            step(lanes)

    return run


def _behind(
    execution: Execution, weak: WeakMemory, ins: Instruction, passing: list[Late], step
) -> Step:
    """``step`` of ``ins``, before which loads that wait are done, or not yet."""
    at = None
    if ins.root in ACCESSES and "param" not in ins.modifiers:
        at = execution.address(ins, ins.operands[ins.root == "ld"])

    def run(lanes: Lanes) -> None:
        for late in passing:
            waiting = late.waiting[lanes.sel].copy()  # a slice of it changes below
            if not waiting.any():
                continue
            if late.stop != ins.pc and weak.random.random() >= GO_ON:
                if at is None:
                    continue
                waiting = waiting & (np.abs(at(lanes) - late.at(lanes)) < NEAR)
                if not waiting.any():
                    continue
            late.waiting[lanes.sel] &= ~waiting
            late.step(lanes.narrow(waiting))
        if step is not None:
            step(lanes)

    return run


def _meeting(weak: WeakMemory, step: Step | None, first: bool) -> Step:
    def run(lanes: Lanes) -> None:
        if first:
            weak.meet(lanes)
        if step is not None:
            step(lanes)
        if not first:
            weak.meet(lanes)

    return run
