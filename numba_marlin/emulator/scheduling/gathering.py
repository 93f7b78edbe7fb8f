"""Lanes of a warp that come to a collective one path after the other, and wait there for each
other.

``.sync`` means just that: "the executing thread waits until all threads [of the mask] execute the
same instruction". Compilers rely on it: code after a branch may be merged in ways that only the
barrier itself brings the lanes together.
"""

from __future__ import annotations

from collections.abc import Iterable

from numba_marlin.emulator.scheduling.blocks import Code
from numba_marlin.emulator.state.lanes import Lanes, Placement, mask_lanes
from numba_marlin.emulator.state.paths import Path


class Gathering:
    """``parked``: (warp, pc) -> paths that wait there, and the mask of lanes they wait for."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.parked: dict[tuple[int, int], tuple[list[Path], int]] = {}

    def come(self, paths: Iterable[Path], code: Code) -> list[Path]:
        """``paths`` reach the collective ``code``: those that may execute it now, joined by whoever
        waited for them."""
        going = []
        for path in paths:
            lane = mask_lanes(path.mask)[0]
            one = Lanes.of(self.placement, [path.warp], [1 << lane])
            value = code.members[one.sel]
            needed = int(value) if getattr(value, "ndim", 0) == 0 else int(value[0])
            waiting, _ = self.parked.pop((path.warp, code.start), ([], 0))
            self.parked[path.warp, code.start] = waiting + [path], needed
            going += self._complete((path.warp, code.start))
        return going

    def recheck(self, warps: set[int]) -> dict[int, list[Path]]:
        """Lanes of ``warps`` have exited and need not be waited for: pc -> paths that may go on
        there."""
        going: dict[int, list[Path]] = {}
        for key in [key for key in self.parked if key[0] in warps]:
            for path in self._complete(key):
                going.setdefault(key[1], []).append(path)
        return going

    def _complete(self, key: tuple[int, int]) -> list[Path]:
        paths, needed = self.parked[key]
        live, here = self.placement.live[key[0]], 0
        for path in paths:
            here |= path.mask
        if needed & live & ~here:
            return []
        del self.parked[key]
        # With every live lane here, no lane is left to meet at a join further on.
        return [Path(key[0], here)] if here == live else paths

    def missing(self, key: tuple[int, int]) -> tuple[Path, int, int]:
        """(a waiting path, lanes that are here, live lanes that are not) of a parked key."""
        paths, needed = self.parked[key]
        here = 0
        for path in paths:
            here |= path.mask
        return paths[0], here, needed & self.placement.live[key[0]] & ~here
