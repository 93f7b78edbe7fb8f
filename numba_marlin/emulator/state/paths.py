"""Diverging and reconverging: the paths that the lanes of a warp take.

A warp starts as one path with all its lanes. A branch that its lanes disagree on splits it in two,
which run independently (so a lane may wait for another one of its warp) and meet again at the
branch's immediate post-dominator: a Join, which lets a path through once all its lanes have
arrived. No lane can exit before: then the place would not be a post-dominator.

Nothing but economy asks for meeting there: every thread makes progress of its own (independent
thread scheduling, from sm_70 on). So where nobody else can go on, or all only spin, joins are
``Joins.open``, and whoever waits at one goes on alone: to its exit, or to the lock that it holds.
Masks are ints, bit i for lane i.
"""

from __future__ import annotations

from operator import attrgetter

from numba_marlin.emulator.text.cfg import EXIT


class Join:
    """Lanes ``mask`` of ``warp`` gather at ``pc``; ``parent`` is the join that lies around this
    one. ``open``: nobody waits there any more."""

    __slots__ = ("pc", "warp", "mask", "arrived", "parent", "open")

    def __init__(self, pc: int, warp: int, mask: int, parent: Join | None) -> None:
        self.pc, self.warp, self.mask, self.arrived, self.parent = pc, warp, mask, 0, parent
        self.open = False


class Path:
    """Lanes ``mask`` of ``warp``, going on together; ``join`` is where they next wait for
    others."""

    __slots__ = ("warp", "mask", "join")

    def __init__(self, warp: int, mask: int, join: Join | None = None) -> None:
        self.warp, self.mask, self.join = warp, mask, join


WARP_OF = attrgetter("warp")  # the order in which lanes lie


class Joins:
    """The joins of a run: those at which somebody ``waiting`` is, and the pcs at which nobody waits
    any more (``passed``)."""

    def __init__(self) -> None:
        self.waiting: dict[Join, None] = {}
        self.passed: set[int] = set()

    def split(self, path: Path, taken: int, join_pc: int) -> tuple[Path, Path]:
        """The paths of lanes ``taken`` and of the others, to meet again at ``join_pc``."""
        join = path.join
        if join_pc == EXIT or join_pc in self.passed:  # they need not meet again
            return Path(path.warp, taken, join), Path(path.warp, path.mask & ~taken, join)
        # Leaving a loop lane by lane splits at one place again and again; one join holds them all.
        if join is None or join.pc != join_pc:
            join = Join(join_pc, path.warp, path.mask, path.join)
        return Path(path.warp, taken, join), Path(path.warp, path.mask & ~taken, join)

    def all_arrive(self, paths: list[Path], pc: int) -> list[Path]:
        """``paths`` have come to ``pc``: those that need not wait (``arrive``)."""
        found = [
            path if path.join is None or path.join.pc != pc else self.arrive(path, pc)
            for path in paths
        ]
        return [path for path in found if path is not None]

    def arrive(self, path: Path, pc: int) -> Path | None:
        """``path`` has come to ``pc``: itself if it need not wait, the joined path if it was the
        last, None while waiting."""
        while path.join is not None and path.join.pc == pc:
            join = path.join
            if join.open:
                path = Path(path.warp, path.mask, join.parent)
                continue
            join.arrived |= path.mask
            if join.arrived != join.mask:
                self.waiting[join] = None
                return None
            self.waiting.pop(join, None)
            path = Path(join.warp, join.mask, join.parent)
        return path

    def open(self) -> list[tuple[int, Path]]:
        """Nobody waits at these places any more: who waited there, with their pcs."""
        going = []
        for join in list(self.waiting):
            join.open = True
            self.passed.add(join.pc)
        for join in list(self.waiting):
            del self.waiting[join]
            moved = self.arrive(Path(join.warp, join.arrived, join.parent), join.pc)
            if moved is not None:
                going.append((join.pc, moved))
        return going


class Bundle:
    """Paths of any warps that stand at ``pc`` and are executed together. ``round`` orders bundles
    fairly.

    ``full``: all 32 lanes of every warp. ``gathered``: the members of the collective at ``pc`` are
    all here.
    """

    __slots__ = ("pc", "paths", "round", "full", "gathered", "lanes")

    def __init__(
        self, pc: int, paths: list[Path], turn: int, full: bool, gathered: bool = False
    ) -> None:
        self.pc, self.paths, self.round, self.full, self.gathered, self.lanes = (
            pc,
            paths,
            turn,
            full,
            gathered,
            None,
        )

    @property
    def key(self) -> tuple[int, bool, bool]:
        return self.pc, self.full, self.gathered


def parted(paths: list[Path], taken) -> tuple[list[Path], list[Path]]:
    """(those lanes, the others): ``taken`` is the mask of each path, or True for all lanes."""
    masks = [path.mask for path in paths] if taken is True else taken
    both = [(path, mask) for path, mask in zip(paths, masks)]
    return (
        [Path(path.warp, mask, path.join) for path, mask in both if mask],
        [Path(path.warp, path.mask & ~mask, path.join) for path, mask in both if path.mask & ~mask],
    )


def merge(paths: list[Path]) -> list[Path]:
    """Paths of one warp on their way to the same join become one."""
    merged: dict[tuple, Path] = {}
    for path in paths:
        other = merged.get((path.warp, path.join))
        if other is None:
            merged[path.warp, path.join] = path
        else:
            merged[path.warp, path.join] = Path(path.warp, path.mask | other.mask, path.join)
    return list(merged.values())
