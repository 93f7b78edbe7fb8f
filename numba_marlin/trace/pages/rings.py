"""The rings between the roles of a block, from the accesses to their mbarriers: as a drawing, in
which each ring stands between those who fill it and those who use it, and as a table.

A ring has two mbarriers for each stage: full, and empty (``Trace.about["rings"]``: name, address of
the first, number of stages).
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.trace.pages.choice import Choice, ranges
from numba_marlin.trace.record import Trace
from numba_marlin.trace.roles import roles_of_warp
from numba_marlin.trace.traffic import requests
from numba_marlin.views import RECORDED, Cell, Level, Levels, Table

BARRIER_BYTES = 8
ARRIVES, WAITS_FOR = (
    ("mbarrier.arrive", "tcgen05.commit"),
    (
        "mbarrier.try_wait",
        "mbarrier.test_wait",
    ),
)
APART = "; "  # between roles


@dataclass(frozen=True)
class Ring:
    """Who arrives at and who waits for its mbarriers: roles in words, and numbers of arrivals."""

    name: str
    stages: int
    filled_by: str
    fills: int
    awaited_by: str
    freed_by: str
    frees: int
    free_awaited_by: str


def parts(trace: Trace, choice: Choice) -> tuple:
    """The figures of the block's rings; none for a kernel that has no such rings."""
    if not trace.about.get("rings"):
        return ()
    found = rings(trace, choice)
    return (*(drawn(chain, choice) for chain in chains(found)), table(found, choice))


def rings(trace: Trace, choice: Choice) -> list[Ring]:
    touched = [
        (
            int(each.address[each.active][0]),
            trace.instructions[each.pc]["root"],
            each.warp % trace.warps,
        )
        for each in requests(trace, choice.block, ("mbarrier",), ("shared", "shared::cluster"))
    ]

    def met(first: int, count: int, roots: tuple[str, ...]) -> list[int]:
        """Warps that touch mbarriers of a ring's stages, the first of which is there."""
        mine = {first + 2 * BARRIER_BYTES * stage for stage in range(count)}
        return [warp for address, root, warp in touched if address in mine and root in roots]

    def words(warps: list[int]) -> str:
        return named(trace, choice, warps)

    found = []
    for name, full, count in trace.about["rings"]:
        fills, frees = (met(at, count, ARRIVES) for at in (full, full + BARRIER_BYTES))
        users, fillers = (met(at, count, WAITS_FOR) for at in (full, full + BARRIER_BYTES))
        found.append(
            Ring(
                name,
                count,
                words(fills),
                len(fills),
                words(users),
                words(frees),
                len(frees),
                words(fillers),
            )
        )
    return found


def chains(found: list[Ring]) -> list[list[Ring]]:
    """Rings in the order in which data go through them: the next is filled by one of those who use
    the one before."""
    left, chained = list(found), []
    while left:
        chain = [left.pop(0)]
        while further := [
            ring for ring in left if ring.filled_by in chain[-1].awaited_by.split(APART)
        ]:
            chain.append(further[0])
            left.remove(further[0])
        chained.append(chain)
    return chained


def drawn(chain: list[Ring], choice: Choice) -> Levels:
    """Roles as boxes, a ring between two of them: what goes down, and what comes back."""
    boxes, here = [], chain[0].filled_by
    for ring in chain:
        who = "" if here == ring.filled_by else f" by {ring.filled_by}"
        back = "" if ring.freed_by == ring.awaited_by else f" by {ring.freed_by}"
        boxes.append(
            Level(
                in_words(here),
                down=f"{ring.name} ({ring.stages}): full, by {ring.fills} arrivals{who}",
                up=f"empty again, by {ring.frees} arrivals{back}",
            )
        )
        here = ring.awaited_by
    names = ", ".join(ring.name for ring in chain)
    return Levels(
        (*boxes, Level(in_words(here))),
        title=f"Who fills and who gives back, in block {choice.block}: {names}",
        source=RECORDED,
        note=(
            "Down: the upper role arrives at the mbarriers of full stages, for which the lower one"
            " waits. Up: the lower one has used them, and the upper one waits for room. In"
            " brackets: stages. All arrivals of the run are counted."
        ),
    )


def in_words(roles: str) -> str:
    """Roles of one warp stay together: "mma, epilogue"."""
    return roles.replace(APART, " + ")


def table(found: list[Ring], choice: Choice) -> Table:
    """List the roles that arrive at the mbarriers of each ring, and those that wait there."""

    def counted(role: str, number: int) -> str:
        return f"{role} ({number})" if number else role

    return Table(
        ("ring", "stages", "filled by", "data awaited by", "freed by", "free stage awaited by"),
        tuple(
            (
                Cell(ring.name),
                str(ring.stages),
                counted(ring.filled_by, ring.fills),
                ring.awaited_by,
                counted(ring.freed_by, ring.frees),
                ring.free_awaited_by,
            )
            for ring in found
        ),
        title=f"The rings between the roles of block {choice.block}",
        source=RECORDED,
        note=(
            "In brackets: number of arrivals at these mbarriers. A stage that the copy engine fills"
            " has one arrival, of the thread that issued the copies; a tcgen05.commit arrives when"
            " its products are complete."
        ),
    )


def named(trace: Trace, choice: Choice, warps: list[int]) -> str:
    """Name warps of a block by their roles, or by their numbers if one of them has no role."""
    there = sorted(set(warps))
    roles = dict.fromkeys(
        ", ".join(roles_of_warp(trace, choice.block * trace.warps + warp)) for warp in there
    )
    return (
        APART.join(roles)
        if all(roles) and roles
        else f"warp{'s' * (len(there) > 1)} {ranges(there)}"
        if there
        else "none"
    )
