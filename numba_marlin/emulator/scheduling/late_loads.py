"""Loads that are put off: in a run with ``Schedule(memory="weak")`` a load may be done behind later
loads and stores of its thread, and behind fences, acquires and releases.

It is done where it stands, and once more later (``WeakMemory.again``), which nobody can tell from
one that is done late: how late at most, is read off the text, within a basic block. That is before
something uses its result, or changes its address or its guard, and before a collective or a
barrier; and before the thread accesses the same place. So no value depends on itself: what a store
depends on is done before it. https://docs.nvidia.com/cuda/parallel-thread-execution/#no-thin-air.
Behind a fence or a release the load gives another value only as long as no thread has learned what
they hand over: those to which their scopes do not reach, do not.

Also here, because it too goes by what stands between instructions: behind barriers and waits for
asynchronous operations lanes have seen what their cluster has (``WeakMemory.meet``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.scheduling.undefined import key, registers_of
from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.text.cfg import TERMINATORS
from numba_marlin.emulator.text.program import Address, Instruction, Not, Register

if TYPE_CHECKING:
    from numba_marlin.emulator.ordering.weak_memory import WeakMemory
    from numba_marlin.emulator.scheduling.execution import Execution

CALCULATING = set("mov add sub mul mad and or xor shl shr cvt setp selp cvta".split())
ACCESSES = {"ld", "st", "atom", "red"}
FENCES = {"fence", "membar"}
ALONE = {"mmio", "param"}  # loads that are never put off
NO_RESULT = {"st", "red"} | FENCES
SYNCHRONISING = ("bar", "mbarrier", "cp", "wgmma", "tcgen05", "griddepcontrol")
GO_ON = 0.3  # chance that a load is done again at an access in between, too
NEAR = 32  # bytes: accesses that far apart are of different places

Step = Callable[[Lanes], None]


@dataclass(eq=False)
class Late:
    """A load that may be put off until before the instruction at ``stop``; ``acquiring``: pc and
    scope of fences in between, and of the load itself if it acquires; ``releases``: whether one of
    those in between does."""

    ins: Instruction
    stop: int
    step: Step
    at: Callable
    acquiring: list[tuple[int, int]]
    releases: bool


def rearranged(
    execution: Execution, weak: WeakMemory, bound: Sequence, steps: Sequence[Step | None]
) -> list:
    """``steps`` of all instructions, with late loads, which are done again as they are ``bound``:
    nobody else sees that."""
    kernel, made = execution.kernel, list(steps)
    for block in kernel.blocks.values():
        loads: list[Late] = []
        for ins in kernel.instructions[block.start : block.stop]:
            pc = ins.pc
            passing = [
                late for late in loads if pc == late.stop or pc < late.stop and ins.root in ACCESSES
            ]
            if passing:
                made[pc] = _behind(execution, weak, ins, passing, made[pc])
            stop = latest(kernel.instructions, pc, block.stop)
            if stop is not None:
                loads.append(_late(execution, weak, kernel.instructions[pc:stop], bound[pc]))
                made[pc] = _put_off(weak, loads[-1], made[pc])
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
    if ins.root != "ld" or ALONE & set(ins.modifiers):
        return None
    results = {key(each) for each in _registers(ins.operands[0])}
    needed = {key(each) for each in _registers(ins.operands[1])}
    needed |= set() if ins.guard is None else {key(ins.guard)}
    passed = False
    for other in instructions[pc + 1 : end]:
        if other.root not in CALCULATING | ACCESSES | FENCES or "mmio" in other.modifiers:
            return other.pc if passed else None
        mentioned = {key(each) for operand in other.operands for each in _registers(operand)}
        mentioned |= set() if other.guard is None else {key(other.guard)}
        written = [] if other.root in NO_RESULT else _registers(other.operands[0])
        if results & mentioned or needed & {key(each) for each in written}:
            return other.pc if passed else None
        passed |= other.root in ACCESSES and "param" not in other.modifiers
    return None  # the block ends without a terminator


def _registers(operand) -> list[Register]:
    if isinstance(operand, Address):
        return registers_of(operand.base)
    return [operand.register] if isinstance(operand, Not) else registers_of(operand)


def _late(execution: Execution, weak: WeakMemory, passed: list[Instruction], step: Step) -> Late:
    """The first of the instructions, which may be done behind the others."""
    ins, *others = passed
    order = weak.orders[ins.pc]
    acquiring = [(ins.pc, order.scope)] if order.acquires else []
    acquiring += [(each.pc, weak.orders[each.pc].scope) for each in others if each.root in FENCES]
    releases = any(each.root in FENCES or weak.orders[each.pc].releases for each in others)
    at = execution.address(ins, ins.operands[1])
    return Late(ins, others[-1].pc + 1, step, at, acquiring, releases)


def _put_off(weak: WeakMemory, late: Late, step: Step) -> Step:
    def run(lanes: Lanes) -> None:
        weak.put_off(late.ins.pc, lanes, late.releases)
        step(lanes)

    return run


def _behind(
    execution: Execution, weak: WeakMemory, ins: Instruction, passing: list[Late], step
) -> Step:
    """``step`` of ``ins``, before which loads that are put off are done again, or not yet."""
    at = None
    if ins.root in ACCESSES and "param" not in ins.modifiers:
        address = next(each for each in ins.operands if isinstance(each, Address))
        at = execution.address(ins, address)
    scopes = {late: [scope for pc, scope in late.acquiring if pc < ins.pc] for late in passing}

    def run(lanes: Lanes) -> None:
        for late, passed in scopes.items():
            pc, last = late.ins.pc, late.stop == ins.pc
            if last or weak.random.random() < GO_ON:
                weak.again(pc, lanes, passed, late.step)
            if last:
                weak.settle(pc, lanes)
            elif at is not None:
                near = np.abs(at(lanes) - late.at(lanes)) < NEAR
                if near.any():
                    weak.again(pc, lanes.narrow(near), passed, late.step)
                    weak.settle(pc, lanes.narrow(near))
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
