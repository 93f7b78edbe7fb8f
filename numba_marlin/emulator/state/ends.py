"""How a basic block can end, other than by falling through: what handlers of control flow return,
and what ``scheduling`` acts upon.

Every end has its instruction ``ins``; ``guard`` is a readable predicate, already negated for @!p,
or None for an end that holds for all lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_marlin.emulator.text.program import CallSite, Instruction


@dataclass(frozen=True, eq=False)
class Branch:
    """To the pc ``target``, or EXIT, where the guard holds."""

    ins: Instruction
    guard: Any | None
    target: int


@dataclass(frozen=True, eq=False)
class Leave:
    """The thread exits where the guard holds."""

    ins: Instruction
    guard: Any | None


@dataclass(frozen=True, eq=False)
class Transfer:
    """What a call passes, or gives back. ``size``: bytes, of variables in local memory: ``source``
    is then the caller's Symbol and ``target`` the callee's; 0 for a readable and a writable
    value."""

    source: Any
    target: Any
    size: int = 0


@dataclass(frozen=True, eq=False)
class Call:
    """Into a recursive function that begins at ``target``."""

    ins: Instruction
    site: CallSite
    target: int
    parameters: tuple[Transfer, ...]
    results: tuple[Transfer, ...]


@dataclass(frozen=True, eq=False)
class Return:
    """To where the function was called, where the guard holds."""

    ins: Instruction
    guard: Any | None


@dataclass(frozen=True, eq=False)
class Barrier:
    """A barrier of the block or the cluster."""

    ins: Instruction
    guard: Any | None
    kind: str
    """"sync", "arrive", the reductions "popc", "and" and "or"; "cluster.arrive", "cluster.wait"."""
    number: Any
    """Which of the block's barriers: a readable value."""
    count: Any | None
    """Threads expected: a readable value; None is the whole block."""
    result: Any = None
    """Where a reduction's result goes."""
    value: Any = None
    """What a reduction reduces."""

    @property
    def aligned(self) -> bool:
        return aligned(self.ins)


def aligned(ins: Instruction) -> bool:
    """Whether all lanes of a warp must come to the very same instruction: not for ``barrier``
    without .aligned, for which each waits wherever it is."""
    return ins.root != "barrier" or "aligned" in ins.modifiers


@dataclass(frozen=True, eq=False)
class WarpgroupWait:
    """The warps of a warpgroup wait for each other, then for all but the ``latest`` groups of
    their wgmma."""

    ins: Instruction
    latest: int
