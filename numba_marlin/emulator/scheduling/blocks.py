"""Basic blocks made executable: every instruction bound once to a function of the lanes that
execute it.

Two maps from pc to Code share the bound steps. Whole warps run ``coarse`` blocks. Parts of warps
run ``fine`` pieces, cut before and behind every warp collective, because they must wait there for
the lanes that are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numba_marlin.emulator.errors import UNREADABLE, PtxSyntaxError, in_kernel
from numba_marlin.emulator.instructions import HANDLERS
from numba_marlin.emulator.scheduling import late_loads, undefined
from numba_marlin.emulator.scheduling.execution import Execution
from numba_marlin.emulator.state.ends import aligned
from numba_marlin.emulator.state.lanes import FULL
from numba_marlin.emulator.state.listener import Listener
from numba_marlin.emulator.state.registers import Constant
from numba_marlin.emulator.text.cfg import BARRIERS, EXIT, TERMINATORS, WAITS
from numba_marlin.emulator.text.parser import no_collection
from numba_marlin.emulator.text.program import Instruction

# Collectives of all lanes of a warp, and those that name their members in an operand (its position,
# from the end).
TENSOR_MEMORY = {
    f"tcgen05.{name}"
    for name in ("alloc", "dealloc", "relinquish_alloc_permit", "ld", "st", "wait::ld", "wait::st")
}
OF_ALL = (
    TENSOR_MEMORY
    | {
        "mma",
        "wmma.load",
        "wmma.mma",
        "wmma.store",
        "ldmatrix",
        "stmatrix",
        "movmatrix",
        "tensormap.cp_fenceproxy",
        "setmaxnreg",
        "wgmma.mma_async",
        "wgmma.fence",
        "wgmma.commit_group",
    }
    | BARRIERS
    | WAITS
)
REACHING = {"ld", "ldu", "st", "atom", "red", "cp", "mbarrier", "fence", "membar"}
OF_MEMBERS = {
    "shfl.sync",
    "vote.sync",
    "match.any.sync",
    "match.all.sync",
    "redux.sync",
    "elect.sync",
    "bar.warp.sync",
}


@dataclass(eq=False)
class Code:
    """``steps`` run in order, then ``end`` (Branch, Leave, Barrier, WarpgroupWait or None) says
    where to go; ``next`` is the pc behind.

    ``members``: for a piece that is one collective, the readable mask of lanes that must come to it
    together. ``executed`` counts the warps that ran it.
    """

    start: int
    length: int
    steps: tuple[Callable, ...]
    end: Any | None
    next: int
    join: int
    members: Any | None = None
    executed: int = 0


def compile_blocks(
    execution: Execution, listener: Listener, apart: bool
) -> tuple[dict[int, Code], dict[int, Code]]:
    """Bind all instructions: (coarse, fine). ``apart``: cut ``fine`` before every access to memory
    too."""
    kernel = execution.kernel
    with in_kernel(kernel.name), no_collection():
        bound = [bind(ins, execution) for ins in kernel.instructions]
        if any(map(execution.checks.on, undefined.CHECKED)):
            execution.undefined = undefined.tracker(execution)
        steps = [
            step_of(each, ins, execution, listener) for each, ins in zip(bound, kernel.instructions)
        ]
        if execution.weak is not None:
            steps = late_loads.rearranged(execution, execution.weak, bound, steps)
        members = [members_of(ins, execution) for ins in kernel.instructions]
    coarse, fine = {}, {}
    reaching = {ins.pc for ins in kernel.instructions if ins.root.split(".")[0] in REACHING}

    def code(start: int, stop: int, join: int) -> Code:
        last = kernel.instructions[stop - 1]
        return Code(
            start,
            stop - start,
            tuple(step for step in steps[start:stop] if step is not None),
            bound[last.pc] if last.root in TERMINATORS else None,
            stop if stop < len(bound) else EXIT,
            join,
        )

    for block in kernel.blocks.values():
        coarse[block.start] = code(block.start, block.stop, block.join)
        for start, stop in cut(block.start, block.stop, members, reaching if apart else set()):
            fine[start] = code(start, stop, block.join)
            fine[start].members = members[start]
    return coarse, fine


def bind(ins: Instruction, execution: Execution) -> Any:
    """What the handler of ``ins`` makes of it. PtxSyntaxError for operands and modifiers of a shape
    that it does not expect."""
    try:
        return HANDLERS[ins.root](ins, execution)
    except UNREADABLE as error:
        section = (HANDLERS[ins.root].__doc__ or "").split(":")[0].split(",")[0]
        raise PtxSyntaxError(
            f"{ins.opcode} does not take these operands, or must name a type: compare it with the"
            f" PTX ISA, {section}",
            line=ins.line,
            text=ins.text,
        ) from error


def cut(start: int, stop: int, members: list, before: set[int]) -> Iterator[tuple[int, int]]:
    """[start, stop) in pieces, every collective a piece of its own; ``before`` are pcs that begin
    one."""
    begin = start
    for pc in range(start, stop):
        if pc in before and begin < pc:
            yield begin, pc
            begin = pc
        if members[pc] is not None:
            if begin < pc:
                yield begin, pc
            yield pc, pc + 1
            begin = pc + 1
    if begin < stop:
        yield begin, stop


def members_of(ins: Instruction, execution: Execution):
    """Readable mask of the lanes that ``ins`` needs together; None if it is no collective.

    A guarded one waits for none: lanes that its guard keeps away cannot be waited for, so its
    handler only checks."""
    if ins.guard is not None:
        return None
    if ins.root in OF_ALL and aligned(ins):
        return Constant(FULL)
    if ins.root in OF_MEMBERS:
        return execution.source(ins, ins.operands[-1], "u32")
    return None


def step_of(
    bound: Any, ins: Instruction, execution: Execution, listener: Listener
) -> Callable | None:
    """What runs for ``ins``; None for a terminator without listener (the scheduler acts upon
    it afterwards)."""
    if ins.root not in TERMINATORS:
        bound = execution.tensor_cores.registers.watched(
            execution.warpgroups.checks.watched(bound, ins), ins
        )
        if execution.undefined is not None:
            bound = execution.undefined.followed(bound, ins)
    step = None if ins.root in TERMINATORS else guarded(bound, ins, execution)
    if execution.undefined is not None:
        step = execution.undefined.guarded(step, ins)
    heard = listener.before is not None or listener.after is not None
    return observed(step, ins, listener) if heard else step


def guarded(step: Callable, ins: Instruction, execution: Execution) -> Callable:
    """``step`` for those lanes only whose guard predicate holds."""
    if ins.guard is None:
        return step
    source = execution.guard(ins)

    def run(lanes) -> None:
        active = source[lanes.sel]
        if active.all():
            step(lanes)
        elif active.any():
            step(lanes.narrow(active))

    return run


def observed(step: Callable | None, ins: Instruction, listener: Listener) -> Callable:
    before, after = listener.before, listener.after

    def run(lanes) -> None:
        if before is not None:
            before(ins, lanes)
        if step is not None:
            step(lanes)
        if after is not None:
            after(ins, lanes)

    return run
