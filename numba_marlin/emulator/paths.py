"""Diverging and reconverging: the paths that the lanes of a warp take.

A warp starts as one path with all its lanes. A branch that its lanes disagree on splits it in two, which run
independently (so a lane may wait for another one of its warp) and meet again at the branch's immediate post-dominator: a
Join, which lets a path through once all its lanes that are still alive have arrived. Masks are ints, bit i for lane i.
"""

from __future__ import annotations

from typing import Optional


class Join:
    """Lanes ``mask`` of ``warp`` gather at ``pc``; ``parent`` is the join that lies around this one."""

    __slots__ = ("pc", "warp", "mask", "arrived", "parent")

    def __init__(self, pc: int, warp: int, mask: int, parent: Optional["Join"]) -> None:
        self.pc, self.warp, self.mask, self.arrived, self.parent = pc, warp, mask, 0, parent


class Path:
    """Lanes ``mask`` of ``warp``, going on together; ``join`` is where they next wait for others."""

    __slots__ = ("warp", "mask", "join")

    def __init__(self, warp: int, mask: int, join: Join | None = None) -> None:
        self.warp, self.mask, self.join = warp, mask, join


def split(path: Path, taken: int, join_pc: int) -> tuple[Path, Path]:
    """The paths of lanes ``taken`` and of the others, to meet again at ``join_pc``."""
    join = path.join
    # Leaving a loop lane by lane splits at one place again and again; one join holds them all.
    if join is None or join.pc != join_pc:
        join = Join(join_pc, path.warp, path.mask, path.join)
    return Path(path.warp, taken, join), Path(path.warp, path.mask & ~taken, join)


def arrive(path: Path, pc: int) -> Path | None:
    """``path`` has come to ``pc``: itself if it need not wait, the joined path if it was the last, None while waiting."""
    while path.join is not None and path.join.pc == pc:
        join = path.join
        join.arrived |= path.mask
        if join.arrived != join.mask:
            return None
        path = Path(join.warp, join.mask, join.parent)
    return path


def leave(join: Join | None, lanes: int) -> tuple[int, Path] | None:
    """``lanes`` have exited and will not arrive. (pc, path) if that was all a join was waiting for."""
    released = None
    while join is not None:
        join.mask &= ~lanes
        join.arrived &= ~lanes
        if released is None and join.mask and join.arrived == join.mask:
            released = join.pc, Path(join.warp, join.mask, join.parent)
        elif join.mask and released is None:
            released = ()  # somebody is still on the way; outer joins wait for them
        join = join.parent
    return released or None


class Bundle:
    """Paths of any warps that stand at ``pc`` and are executed together. ``round`` orders bundles fairly."""

    __slots__ = ("pc", "paths", "round", "full", "lanes")

    def __init__(self, pc: int, paths: list[Path], turn: int, full: bool) -> None:
        self.pc, self.paths, self.round, self.full, self.lanes = pc, paths, turn, full, None

    @property
    def key(self) -> tuple[int, bool]:
        return self.pc, self.full
