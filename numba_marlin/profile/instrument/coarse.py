"""Where the light instrumented build (``totals``) reads the clock: as rarely as the sections of a
timeline allow, to keep its cost small.

The work of a loop is one section, whatever its verbs are: in a kernel whose warps both copy and
multiply, issuing copies counts as multiplying. The clock is read before and after a wait, or before
the first and after the last of several waits in a row. The section that a wait interrupts is known
at compile time, because the section of the work that follows it begins before it.

``readings`` lists the places where the clock is read, ``leavings`` the branches of threads that
have no work.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.emulator.text.cfg import BRANCH, EXIT, LEAVE, successors
from numba_marlin.emulator.text.program import Instruction, Kernel, Module
from numba_marlin.profile.instrument.sections import (
    BY_NAME,
    SECTIONS,
    START,
    anchors,
    states,
    transitions,
)

WAIT = "wait_kernel"
WAITS = frozenset(section.name for section in SECTIONS if section.reason) - {WAIT}
NEAR = 12  # two waits of a basic block at most this many instructions apart count as one
IDLE = "idle"
SPINS = ("mbarrier.try_wait", "mbarrier.test_wait", "ld")


@dataclass(frozen=True)
class Reading:
    """What happens before the instruction at ``pc``, in this order.

    leave: (wait that ends, section that it interrupted), or None.
    restart: whether the wait for the previous kernel ends.
    switch: (section that begins, sections of which one ends), or None.
    enter: (wait that begins, section that it interrupts), or None.
    maybe: whether control can reach this end of a wait without having waited.
    again: whether control can reach this beginning of a wait from the wait itself, as in a loop of
        one basic block; nothing happens then.
    told: whether the wait that is entered or left has such an end or beginning, so that a register
        must hold at run time whether the warp is in this wait.
    """

    pc: int
    leave: tuple[str, str] | None = None
    restart: bool = False
    switch: tuple[str, frozenset[str]] | None = None
    enter: tuple[str, str] | None = None
    maybe: bool = False
    again: bool = False
    told: bool = False


def leavings(module: Module, kernel: Kernel) -> list[Instruction]:
    """Return the branches directly to the kernel's end that are taken by threads which have only
    set up and waited: the other lanes of a warp whose leader copies, and blocks without work."""
    count = len(kernel.instructions)
    ends = {
        start
        for start, block in kernel.blocks.items()
        if all(ins.root in LEAVE for ins in kernel.instructions[start : min(block.stop, count)])
    }
    worked = [
        None if section is None or BY_NAME[section].reason else section
        for section in anchors(module, kernel)
    ]
    found = []
    for start, begun in sorted(states(kernel, worked).items()):
        last = kernel.instructions[kernel.blocks[start].stop - 1]
        if (
            begun == {START}
            and last.root in BRANCH
            and last.target in ends
            and set(worked[start : last.pc]) <= {None, START}
        ):
            found.append(last)
    return found


def interruptions(found: list[Reading]) -> dict[str, frozenset[str]]:
    """Return {wait: the sections that it interrupts}."""
    pairs = [each.enter for each in found if each.enter] + [
        each.leave for each in found if each.leave
    ]
    return {
        wait: frozenset(section for other, section in pairs if other == wait) for wait, _ in pairs
    }


def _anchors(module: Module, kernel: Kernel) -> list[str | None]:
    at = anchors(module, kernel)
    for pc in range(1, len(at)):
        if at[pc - 1] == WAIT and at[pc] == START:
            at[pc] = None  # ``anchors`` marks it for ``recorder``
    return (
        at
        if "wait_room" in at
        else ["multiply" if section == "copy" else section for section in at]
    )


def readings(
    module: Module, kernel: Kernel, without: frozenset[str] = frozenset()
) -> list[Reading]:
    """Return the places where the clock is read, in the order of the code. without: waits whose
    clock is not read; their time belongs to the section that they interrupt.

    Raises ValueError if ``without`` names anything but waits.
    """
    if not without <= WAITS:
        raise ValueError(
            f"without={sorted(without)}: only waits can be omitted: {', '.join(sorted(WAITS))}"
        )
    at = _anchors(module, kernel)
    waits = _waits(kernel, at)
    outer = [None if section is None or BY_NAME[section].reason else section for section in at]
    interrupted = _interrupted(outer, waits)
    for pc, wait in waits.items():
        outer[pc] = None if wait == WAIT else interrupted[pc]
    waits = {pc: wait for pc, wait in waits.items() if wait not in without}
    ends = _ends(kernel, waits)
    restarts = {pc for pc, (wait, _) in ends.items() if wait == WAIT}
    for pc in restarts:
        outer[pc] = outer[pc] or START
    _begin_before_loops(kernel, outer)
    switches = {mark.pc: (mark.section, mark.before) for mark in transitions(kernel, outer)}
    inside, unsure, repeated = _inside(kernel, waits, ends)
    told = {ends[pc][0] for pc in unsure} | {waits[pc] for pc in repeated}
    found = []
    for pc in sorted({*switches, *waits, *ends}):
        wait = waits.get(pc)
        enter = (wait, outer[pc]) if wait not in (None, WAIT) and not inside[pc] else None
        ended = ends.get(pc)
        leave = (
            (ended[0], interrupted[ended[1]]) if ended is not None and ended[0] != WAIT else None
        )
        switch = switches.get(pc)
        if pc in restarts and switch is not None:
            switch = None if outer[pc] == START else (outer[pc], frozenset({START}))
        if enter or leave or switch or pc in restarts:
            found.append(
                Reading(
                    pc,
                    leave,
                    pc in restarts,
                    switch,
                    enter,
                    pc in unsure,
                    pc in repeated,
                    any(each is not None and each[0] in told for each in (enter, leave)),
                )
            )
    return found


def _waits(kernel: Kernel, at: list[str | None]) -> dict[int, str]:
    """Return {pc: wait}. A wait that follows another one without work in between counts as that
    one."""
    block_of = {
        pc: start for start, block in kernel.blocks.items() for pc in range(block.start, block.stop)
    }
    found: dict[int, str] = {}
    before: int | None = None
    for pc, section in enumerate(at):
        if section is not None and BY_NAME[section].reason:
            joined = (
                before is not None
                and pc - before <= NEAR
                and block_of[pc] == block_of[before]
                and WAIT not in (section, found[before])
                and not any(at[before + 1 : pc])
            )
            found[pc] = found[before] if joined else section
            before = pc
    return found


def _begin_before_loops(kernel: Kernel, outer: list[str | None]) -> None:
    """Let the section of a loop begin with the last instruction before the loop, if all of the loop
    is one section. The loop then need not test in every iteration whether its section has begun.
    Changes ``outer``."""
    count = len(kernel.instructions)
    after = {
        block.stop - 1: successors(kernel.instructions[block.stop - 1], block.stop, count)
        for block in kernel.blocks.values()
    }
    loops = [
        range(target, last + 1)
        for last, targets in after.items()
        for target in targets
        if EXIT != target <= last
    ]
    for mark in transitions(kernel, outer):
        mine = [
            loop
            for loop in loops
            if mark.pc in loop and {outer[pc] for pc in loop} <= {None, mark.section}
        ]
        for last, targets in after.items() if mine and not mark.sure else ():
            loop = max(mine, key=len)
            if (
                last not in loop
                and outer[last] is None
                and any(target in loop for target in targets)
            ):
                outer[last] = mark.section


def _interrupted(outer: list[str | None], waits: dict[int, str]) -> dict[int, str]:
    """Return {pc of a wait: the section that it interrupts}. For a barrier this is the section of
    the work before it in the text, for other waits that of the work after it."""
    behind, found, before = [START] * len(outer), {}, START
    for pc in range(len(outer) - 2, -1, -1):
        behind[pc] = outer[pc + 1] or behind[pc + 1]
    for pc, section in enumerate(outer):
        before = section or before
        if pc in waits:
            found[pc] = (
                before if waits[pc] == "wait_barrier" or not any(outer[pc + 1 :]) else behind[pc]
            )
    return found


def _ends(kernel: Kernel, waits: dict[int, str]) -> dict[int, tuple[str, int]]:
    """Return {pc after a wait: (wait, its last pc)}. This is the next instruction or, for a wait
    that spins, every successor of its basic block except those where the same wait continues."""
    block_of = {
        pc: start for start, block in kernel.blocks.items() for pc in range(block.start, block.stop)
    }
    count, found = len(kernel.instructions), {}

    def spins(pc: int) -> bool:
        return kernel.instructions[pc].root.startswith(SPINS)

    order = sorted(waits)
    for pc, after in zip(order, [*order[1:], count]):
        block = kernel.blocks[block_of[pc]]
        if not spins(pc):
            if not (
                after < count
                and after - pc <= NEAR
                and waits[after] == waits[pc]
                and block_of[after] == block_of[pc]
            ):
                found.setdefault(pc + 1, (waits[pc], pc))
            continue
        for place in successors(kernel.instructions[block.stop - 1], block.stop, count):
            again = place in kernel.blocks and any(
                waits.get(each) == waits[pc] and spins(each)
                for each in range(place, kernel.blocks[place].stop)
            )
            if place not in (EXIT, count) and not again:
                found[place] = (waits[pc], pc)
    return {pc: each for pc, each in found.items() if pc < count}


def _inside(
    kernel: Kernel, waits: dict[int, str], ends: dict[int, tuple[str, int]]
) -> tuple[dict[int, bool], set[int], set[int]]:
    """Return ({pc of a wait: whether the warp is already in this wait when control reaches it}, the
    ends that control can also reach without having waited, the waits that control can reach in this
    wait and otherwise)."""
    at: list[str | None] = [None] * len(kernel.instructions)
    for pc in ends:
        at[pc] = IDLE
    for pc, wait in waits.items():
        at[pc] = wait
    before = {mark.pc: mark.before for mark in transitions(kernel, at)}
    unsure = {
        pc
        for pc, (wait, _) in ends.items()
        if wait != WAIT and before.get(pc, frozenset()) & {START, IDLE}
    }
    repeated = {
        pc for pc, wait in waits.items() if wait != WAIT and wait in before.get(pc, frozenset())
    }
    return {pc: pc not in before and pc not in ends for pc in waits}, unsure, repeated
