"""``Listener``: functions that the machine calls while a kernel runs. Tracing, counting and tests
look on this way.

seen = []
machine.run("kernel", args=[...], listener=Listener(access=seen.append))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numba_marlin.emulator.state.access import Access
from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.text.program import Instruction

if TYPE_CHECKING:
    from numba_marlin.emulator.scheduling.execution import Execution


@dataclass(frozen=True)
class Listener:
    """None for what is not listened to, which then costs nothing. The functions may read the run's
    state and must not change it."""

    started: Callable[[Execution], None] | None = None
    """Once, before the first instruction, with the run's state: to look at registers or memory
    when something else is heard."""

    before: Callable[[Instruction, Lanes], None] | None = None
    """Every instruction, with the lanes that execute it, before it is executed."""

    after: Callable[[Instruction, Lanes], None] | None = None
    """Every instruction when it is done, but for those that wait or branch."""

    access: Callable[[Access], None] | None = None
    """Every memory access, before the data move."""

    request: Callable[[Access], None] | None = None
    """What atomics and asynchronous copies ask for, as a whole (``Access`` lists the kinds)."""

    printed: Callable[[str], object] | None = None
    """What the kernel prints, piece by piece; None for standard output."""


NOBODY = Listener()


def both(first: Callable | None, second: Callable | None) -> Callable | None:
    """One function that calls both, of which either may be missing."""
    if first is None or second is None:
        return first or second

    def call(what) -> None:
        first(what)
        second(what)

    return call


_progress: ContextVar[Callable[[int], None] | None] = ContextVar("progress", default=None)


@contextmanager
def watched(progress: Callable[[int], None]) -> Iterator[None]:
    """Within, every run of this thread, whoever starts it, calls ``progress(done)`` after each
    basic block with the warp instructions that it has executed so far. A bar is as far from the
    machine as a command is: what lies between need not know of it."""
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


def watcher() -> Callable[[int], None] | None:
    """What ``watched`` was given, None outside of it."""
    return _progress.get()
