"""Does the PTX machine notice? A ``Launch`` says what a kernel is to do, a schedule in which order
the machine does it: None for its own, else an ``emulator.Schedule``.

A mutant is caught by the first of them under which the machine reports what the program did wrong,
or stands still, or a buffer does not hold what it must. The machine looks for races too, and these
it finds in schedules that do no harm as well: few are enough. A mutant that the machine cannot read
(PtxSyntaxError, LimitExceeded, UnknownInstruction) does not count as caught: those errors go
through, they are a defect of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from numba_marlin.emulator import (
    LimitExceeded,
    Machine,
    MachineError,
    PtxSyntaxError,
    UnknownInstruction,
)
from numba_marlin.emulator.scheduling.schedules import Schedule

DEFECTS = (PtxSyntaxError, LimitExceeded, UnknownInstruction)
# times the instructions of the intact kernel, then a mutant counts as standing still: one that
# waits wrongly may do so for long
PATIENCE = 6


@dataclass(frozen=True, eq=False)
class Launch:
    """What a kernel is given, and what it must leave. buffers: {name: array} of all that it may
    address, as they are before; expected: {name: array} of those that it writes, every value as it
    must be after; those that it writes and leaves as they are (a workspace) go in ``scratch``.
    earlier: those that the kernel before on the stream may be using when this one begins.
    arguments({name: address}) -> what is passed.
    """

    label: str
    entry: str
    grid: tuple[int, ...]
    block: int
    shared_bytes: int
    cluster: int
    buffers: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]
    scratch: Sequence[str]
    earlier: Sequence[str]
    arguments: Callable[[dict[str, int]], Sequence]

    def run(self, machine: Machine, schedule: Schedule | None, budget: int | None = None):
        """-> (RunResult, {name: array} as the kernel left them). MachineError for what it does
        wrong. The machine may have run other launches before."""
        after, addresses = {}, {}
        for name, array in self.buffers.items():
            written = name in self.expected or name in self.scratch
            after[name] = array.copy()
            addresses[name] = machine.memory.buffer(
                after[name], name=name, readonly=not written, earlier=name in self.earlier
            ).address
        options = {} if budget is None else {"max_instructions": budget}
        if self.cluster > 1:
            options["cluster"] = self.cluster
        result = machine.run(
            self.entry,
            grid=self.grid,
            block=self.block,
            shared_bytes=self.shared_bytes,
            args=self.arguments(addresses),
            seed=schedule,
            **options,
        )
        return result, after

    def wrong(self, after: Mapping[str, np.ndarray]) -> str | None:
        """What of ``after`` is not as expected, in words."""
        for name, expected in self.expected.items():
            found = after[name]
            # NaN differs from everything
            bad = found.astype(np.float64) != expected.astype(np.float64)
            if bad.any():
                where = tuple(int(i) for i in np.argwhere(bad)[0])
                return (
                    f"{name}{list(where)} is {found[where]}, not {expected[where]}"
                    f" ({int(bad.sum())} of {bad.size} are wrong)"
                )
        return None


@dataclass(frozen=True)
class Catch:
    """how: the name of the machine's error, or "wrong result"; what: the first sentence; launch,
    schedule: which of them saw it."""

    how: str
    what: str
    launch: str
    schedule: str


def described(schedule: Schedule | None) -> str:
    return (
        "in order"
        if schedule is None
        else f"seed {schedule.seed}, {schedule.order}, copies {schedule.copies}"
    )


def budgets(
    ptx: str, launches: Sequence[Launch], schedules: Sequence[Schedule | None]
) -> dict[str, int]:
    """{label of a launch: warp instructions that a mutant may take}. ValueError if the intact
    kernel does anything wrong under any of the schedules: a judge must not condemn the innocent."""
    found = {}
    for launch in launches:
        most, machine = 0, Machine(ptx, races=True)
        for schedule in schedules:
            try:
                result, after = launch.run(machine, schedule)
            except MachineError as error:
                raise ValueError(
                    f"{launch.label}, {described(schedule)}: the intact kernel fails: {error}"
                ) from error
            if launch.wrong(after):
                raise ValueError(
                    f"{launch.label}, {described(schedule)}: the intact kernel's"
                    f" {launch.wrong(after)}"
                )
            most = max(most, result.instructions)
        found[launch.label] = PATIENCE * most
    return found


def judge(
    ptx: str,
    launches: Sequence[Launch],
    schedules: Sequence[Schedule | None],
    budget: Mapping[str, int],
) -> Catch | None:
    """What catches the mutant ``ptx``, None if nothing does. Schedules in turn, each with all
    launches: the cheapest that catches most comes first."""
    machine = Machine(ptx, races=True)
    for schedule in schedules:
        for launch in launches:
            try:
                _, after = launch.run(machine, schedule, budget[launch.label])
            except DEFECTS:
                raise
            except MachineError as error:
                return Catch(type(error).__name__, error.detail, launch.label, described(schedule))
            wrong = launch.wrong(after)
            if wrong:
                return Catch("wrong result", wrong, launch.label, described(schedule))
    return None
