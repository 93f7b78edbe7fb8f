"""Basic blocks made executable: every instruction bound once to a function of the lanes that execute it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

from numba_marlin.emulator.execution import Execution
from numba_marlin.emulator.instructions import HANDLERS
from numba_marlin.emulator.cfg import EXIT, TERMINATORS
from numba_marlin.emulator.program import Instruction


@dataclass(eq=False)
class Code:
    """``steps`` run in order, then ``end`` (Branch, Leave, Barrier or None) says where to go; ``next`` is the pc behind.

    ``executed`` counts the warps that ran it.
    """

    start: int
    length: int
    steps: tuple[Callable, ...]
    end: Optional[Any]
    next: int
    join: int
    executed: int = 0


def compile_blocks(execution: Execution, observer: Callable | None) -> dict[int, Code]:
    """Bind all instructions of the kernel. ``observer(ins, lanes)`` is called before each, if there is one."""
    kernel, code = execution.kernel, {}
    for block in kernel.blocks.values():
        body = kernel.instructions[block.start : block.stop]
        end = None
        steps = []
        for ins in body:
            bound = HANDLERS[ins.root](ins, execution)
            if ins.root in TERMINATORS:
                end = bound
                if observer is not None:
                    steps.append(observed(None, ins, observer))
            else:
                step = guarded(bound, ins, execution)
                steps.append(step if observer is None else observed(step, ins, observer))
        following = block.stop if block.stop < len(kernel.instructions) else EXIT
        code[block.start] = Code(block.start, len(body), tuple(steps), end, following, block.join)
    return code


def guarded(step: Callable, ins: Instruction, execution: Execution) -> Callable:
    """``step`` for those lanes only whose guard predicate holds."""
    if ins.guard is None:
        return step
    source, negated = execution.source(ins, ins.guard, "pred"), ins.guard_negated

    def run(lanes) -> None:
        active = source[lanes.sel]
        if negated:
            active = ~active
        if active.all():
            step(lanes)
        elif active.any():
            step(lanes.narrow(active))

    return run


def observed(step: Callable | None, ins: Instruction, observer: Callable) -> Callable:
    def run(lanes) -> None:
        observer(ins, lanes)
        if step is not None:
            step(lanes)

    return run
