"""Block-wide barriers 0..15 of every resident block.

A barrier completes when as many threads have arrived as its count says; without a count, when every
warp of the block that has not exited is there. Arrival counts whole warps, 32 threads each, as the
ISA has it: a warp has arrived once all its lanes that have not exited are there.
https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from numba_marlin.emulator.errors import MachineError
from numba_marlin.emulator.state.ends import Barrier
from numba_marlin.emulator.state.lanes import (
    WARP,
    Lanes,
    Placement,
    error_at,
    mask_lanes,
    unpack_masks,
)
from numba_marlin.emulator.state.paths import Path
from numba_marlin.emulator.state.registers import Constant

COUNT = 16


class State:
    """One barrier of one block: threads arrived, their expected number, and who waits (path, next
    pc, instruction). ``partial``: warp -> lanes that are here, of warps that are not whole yet."""

    __slots__ = ("arrived", "expected", "waiting", "known", "partial")

    def __init__(self) -> None:
        self.arrived, self.expected, self.waiting, self.known = 0, None, [], None
        self.partial: dict[int, int] = {}

    def has_all(self, live: list[int], expected: int) -> bool:
        """Whether as many threads are here as the barrier counts."""
        if self.arrived + WARP * len(self.partial) < expected:
            return False
        self.settle(live)
        return self.arrived >= expected

    def settle(self, live: list[int]) -> None:
        """Warps whose other lanes have come or exited have arrived."""
        for warp in [warp for warp, mask in self.partial.items() if not live[warp] & ~mask]:
            del self.partial[warp]
            self.arrived += WARP


class Barriers:
    def __init__(self, placement: Placement, races=None) -> None:
        self.placement, self.races = placement, races
        self.states: dict[tuple[int, int], State] = {}

    def arrive(
        self, paths: Sequence[Path], end: Barrier, pc: int
    ) -> tuple[list[Path], list[tuple[int, Path]]]:
        """Paths come to ``end`` and go on at ``pc``: (those that need not wait, released ones with
        their pcs)."""
        whole = self._whole(paths, end)
        going_on, released = [], []
        if whole:
            per_block = self.placement.warps_per_block
            released = [(pc, path) for path in paths if path.warp // per_block in whole]
            paths = [path for path in paths if path.warp // per_block not in whole]
        touched = {}
        for path in paths:
            slot = path.warp // self.placement.warps_per_block
            number = self._value(end.number, path)
            if number >= COUNT:
                raise self._fault(f"barrier {number} does not exist, there are {COUNT}", end, path)
            state = self.states.setdefault((slot, number), State())
            if end.count is not None:
                expected = self._value(end.count, path)
                if expected % WARP or not expected:
                    raise self._fault(
                        f"barrier count {expected} must be a positive multiple of {WARP}", end, path
                    )
                if state.arrived and state.expected not in (None, expected):
                    raise self._fault(
                        f"barrier {number} is already waiting for {state.expected} threads, not"
                        f" {expected}",
                        end,
                        path,
                    )
                if state.has_all(self.placement.live, expected):
                    # of those that come together, the first complete it: this is the next phase
                    released += self._meet(touched.pop((slot, number)), (slot, number))
                    state = self.states.setdefault((slot, number), State())
                state.expected = expected
            state.partial[path.warp] = state.partial.get(path.warp, 0) | path.mask
            if end.kind == "arrive":
                going_on.append(path)
            else:
                state.waiting.append((path, pc, end))
            touched.setdefault((slot, number), []).append(path)
        for key, coming in touched.items():
            released += self._meet(coming, key)
        return going_on, released

    def _meet(self, coming: list[Path], key: tuple[int, int]) -> list[tuple[int, Path]]:
        """Paths have been added to a barrier: released ones with their pcs."""
        if self.races is not None:
            self.states[key].known = self.races.arrive(self.states[key].known, coming)
        return self._complete(key)

    def at_once(self, lanes: Lanes, end: Barrier) -> bool:
        """Whether ``lanes``, whole warps in their order, are all of some blocks, and nobody waits
        at any barrier: then they have met, and go on as they are."""
        per_block, warps = self.placement.warps_per_block, lanes.warps
        if self.states or len(warps) % per_block or self._of_all(end) is None:
            return False
        first, last = warps[::per_block], warps[per_block - 1 :: per_block]
        if (first % per_block).any() or (last - first != per_block - 1).any():
            return False
        if self.races is None:
            return True
        slots = (first // per_block).tolist()
        return len(self.races.meet(slots)) == len(slots)

    def _of_all(self, end: Barrier) -> int | None:
        """The barrier's number, if it is one of all threads of a block, and is said in the
        text."""
        if end.kind != "sync" or not isinstance(end.number, Constant):
            return None
        number, count = int(end.number.value), end.count
        if count is not None:
            threads = self.placement.warps_per_block * WARP
            if not isinstance(count, Constant) or int(count.value) != threads:
                return None
        return number if number < COUNT else None

    def _whole(self, paths: Sequence[Path], end: Barrier) -> set[int]:
        """Slots of the blocks all of whose threads come at once to a barrier at which nobody waits:
        there is nothing to keep of it."""
        per_block, number = self.placement.warps_per_block, self._of_all(end)
        if number is None or len(paths) < per_block:
            return set()
        initial, here = self.placement.initial_mask, defaultdict(int)
        for path in paths:
            slot, within = divmod(path.warp, per_block)
            here[slot] += path.mask == initial[within]
        whole = {
            slot
            for slot, there in here.items()
            if there == per_block and (slot, number) not in self.states
        }
        return self.races.meet(sorted(whole)) if whole and self.races is not None else whole

    def recheck(self, slots: set[int]) -> list[tuple[int, Path]]:
        """Lanes of ``slots`` have exited: barriers that were waiting only for them complete."""
        return [
            item for key in list(self.states) if key[0] in slots for item in self._complete(key)
        ]

    def waiting(self) -> list[tuple[int, Path, object]]:
        """(barrier number, path, instruction) of everybody who waits."""
        return [
            (n, path, end.ins)
            for (_, n), state in self.states.items()
            for path, _, end in state.waiting
        ]

    def _complete(self, key: tuple[int, int]) -> list[tuple[int, Path]]:
        state, per_block = self.states[key], self.placement.warps_per_block
        state.settle(self.placement.live)
        expected = state.expected
        if expected is None:
            live = self.placement.live[key[0] * per_block : (key[0] + 1) * per_block]
            expected = WARP * sum(mask != 0 for mask in live)
        if state.arrived < expected or not state.arrived:
            return []
        del self.states[key]
        early = [each for each in state.waiting if each[0].warp in state.partial]
        if early:  # of a warp that comes for the next phase
            later = self.states[key] = State()
            later.waiting, later.partial = early, state.partial
            state.waiting = [each for each in state.waiting if each not in early]
        if self.races is not None:
            self.races.leave(state.known, (path for path, _, _ in state.waiting))
        votes = [self._votes(path, end) for path, _, end in state.waiting if end.value is not None]
        for path, _, end in state.waiting:
            if end.value is not None:
                given = np.concatenate(votes)
                result = {"popc": given.sum, "and": given.all, "or": given.any}[end.kind]()
                end.result[path.warp, list(mask_lanes(path.mask))] = result
        return [(pc, path) for path, pc, _ in state.waiting]

    @staticmethod
    def _votes(path: Path, end: Barrier) -> np.ndarray:
        votes = np.broadcast_to(end.value[slice(path.warp, path.warp + 1)], (1, WARP))
        return votes[0][unpack_masks([path.mask])[0]]

    @staticmethod
    def _value(source, path: Path) -> int:
        if isinstance(source, Constant):
            return int(source.value)
        lane = mask_lanes(path.mask)[0]
        return int(source[path.warp, lane])

    def _fault(self, detail: str, end: Barrier, path: Path) -> MachineError:
        return error_at(
            MachineError, detail, end.ins, self.placement, path.warp, mask_lanes(path.mask)
        )
