"""Where the light instrumented build (``totals``) reads the clock: as seldom as the sections of a
timeline allow, so that its cost stays small.

Work of a loop is one section, whatever its verbs: issuing copies counts as multiplying in a kernel
whose warps do both. A wait, alone or several in a row, is read before and behind; what it
interrupts is known, since the section of what follows it begins before it. ``readings(module,
kernel, without)`` -> by pc, in the order of the code; waits ``without`` are not read: they are part
of the work that they interrupt. ``leavings``: where threads that have nothing to do go home.
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
NEAR = 12  # instructions between two waits of a basic block that are one
IDLE = "idle"
SPINS = ("mbarrier.try_wait", "mbarrier.test_wait", "ld")


@dataclass(frozen=True)
class Reading:
    """Before ``pc``: ``leave``: (wait, section it interrupted); ``restart``: the wait for the
    kernel before is over; ``switch``: (section that begins, those that may end); ``enter``: (wait,
    section that it interrupts). In this order, each None or False where nothing of the kind
    happens. ``maybe``: control may also come to the end of this wait without having waited;
    ``told``: of this wait, entered or left, there are such ends, so that it must be known at run
    time whether it is on.
    """

    pc: int
    leave: tuple[str, str] | None = None
    restart: bool = False
    switch: tuple[str, frozenset[str]] | None = None
    enter: tuple[str, str] | None = None
    maybe: bool = False
    told: bool = False


def leavings(module: Module, kernel: Kernel) -> list[Instruction]:
    """Branches straight to the end, of threads that have done nothing but set up and wait: the
    other lanes of a warp whose leader copies, blocks without work."""
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
    """Wait -> sections that it interrupts."""
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
            at[pc] = None  # put there for ``recorder``
    return (
        at
        if "wait_room" in at
        else ["multiply" if section == "copy" else section for section in at]
    )


def readings(
    module: Module, kernel: Kernel, without: frozenset[str] = frozenset()
) -> list[Reading]:
    if not without <= WAITS:
        raise ValueError(
            f"without={sorted(without)}: only waits can be left out: {', '.join(sorted(WAITS))}"
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
    inside, unsure = _inside(kernel, waits, ends)
    told = {ends[pc][0] for pc in unsure}
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
                    any(each is not None and each[0] in told for each in (enter, leave)),
                )
            )
    return found


def _waits(kernel: Kernel, at: list[str | None]) -> dict[int, str]:
    """pc -> wait; one that follows another without work in between counts as that one."""
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
    """A loop of one section, to which control comes from another: the section begins with the last
    instruction before the loop, so that the loop does not test in every round whether it has
    begun."""
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
    """The section that each wait interrupts: of a barrier that of the work before it in the text,
    of others that of the work behind."""
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
    """pc behind a wait -> (wait, its last pc): the next instruction, or for one that spins every
    place to which its block may go; none where the same wait goes on."""
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
) -> tuple[dict[int, bool], set[int]]:
    """(for every pc of a wait whether it is waited already when control comes there, the ends to
    which control may also come without having waited)"""
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
    return {pc: pc not in before and pc not in ends for pc in waits}, unsure
