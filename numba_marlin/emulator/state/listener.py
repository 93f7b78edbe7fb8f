"""``Listener``: functions that the machine calls while a kernel runs. Tracing, counting and tests
look on this way.

seen = []
machine.run("kernel", args=[...], listener=Listener(access=seen.append))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.state.memory import Access
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


NOBODY = Listener()
