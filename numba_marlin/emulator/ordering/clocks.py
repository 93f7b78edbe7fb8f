"""What each thread knows of the others' past: vector clocks, one component per thread of
the grid.

A thread's clock is the number of the interval between two of its releases. A thread that acquires
what another has released knows all intervals of it up to then, and what the other itself knew: this
is the causality order of the PTX memory model, so far as it has been observed in this run.
https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model

Threads that know the same share a row of ``known`` until one of them learns more: after a barrier a
whole block does. Lanes of a warp are threads like any others, because the model gives them no order
of their own: running in step orders nothing, bar.warp.sync does. Besides the threads there are
columns for what happens outside of any thread's program order, bulk copies and products in flight
(``column``).
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.state.lanes import WARP, Lanes, Placement

NOTHING = 0  # the row of a thread that has acquired nothing
FIRST_ROWS, FIRST_COLUMNS = 32, 64


class Clocks:
    """``row_of`` and ``thread_of`` [warps, 32] of the resident warps; ``known`` int32 [rows,
    columns]; ``clock`` [columns] of each thread's present."""

    def __init__(self, placement: Placement, blocks: int) -> None:
        self.placement, self.per_block = placement, placement.warps_per_block * WARP
        self.threads = self.columns = blocks * self.per_block
        shape = placement.warps, WARP
        self.row_of, self.thread_of = np.zeros(shape, np.intp), np.zeros(shape, np.int64)
        self.known = np.zeros((FIRST_ROWS, self.threads + FIRST_COLUMNS), np.int32)
        self.clock = np.ones(self.threads, np.int64)
        self.free = list(range(FIRST_ROWS - 1, NOTHING, -1))

    def place(self, slot: int, number: int) -> None:
        """Block ``number`` moves in: new threads, who know nothing, not even of the block that was
        here before."""
        rows = slice(
            slot * self.placement.warps_per_block, (slot + 1) * self.placement.warps_per_block
        )
        self.thread_of[rows] = (number * self.per_block + np.arange(self.per_block)).reshape(
            -1, WARP
        )
        self.row_of[rows] = NOTHING

    def column(self) -> int:
        """A new column, for something that is no thread."""
        if self.columns == self.known.shape[1]:
            self.known = np.pad(self.known, ((0, 0), (0, self.known.shape[1] - self.threads)))
        self.columns += 1
        return self.columns - 1

    def release(self, lanes: Lanes) -> np.ndarray:
        """What ``lanes`` know and have done, all together; what they do from now on is not in
        it."""
        rows, threads = self.row_of[lanes.sel], self.thread_of[lanes.sel].reshape(-1)
        found = self.known[self._unique(rows)].max(axis=0)
        found[threads] = self.clock[threads]
        self.clock[threads] += 1
        return found

    def snapshots(self, lanes: Lanes) -> dict[int, tuple[np.ndarray, int]]:
        """Thread -> (what it knows, its own clock), as a fence leaves it for writes to come."""
        held = {row: self.known[row].copy() for row in self._unique(self.row_of[lanes.sel])}
        threads = self.thread_of[lanes.sel].reshape(-1)
        found = {
            t: (held[row], int(self.clock[t]))
            for row, t in zip(self.row_of[lanes.sel].reshape(-1).tolist(), threads.tolist())
        }
        self.clock[threads] += 1
        return found

    def acquire(self, lanes: Lanes, news: np.ndarray) -> None:
        """``lanes`` learn what somebody released, or that columns have come so far."""
        if len(news) < self.known.shape[1]:
            news = np.pad(news, (0, self.known.shape[1] - len(news)))
        rows = self.row_of[lanes.sel]
        for row in self._unique(rows):
            merged = np.maximum(self.known[row], news)
            if np.array_equal(merged, self.known[row]):
                continue
            mine = rows == row
            if row != NOTHING and np.count_nonzero(self.row_of == row) == np.count_nonzero(mine):
                self.known[row] = merged
                continue
            new = self._new_row()
            self.known[new] = merged
            part = self.row_of[lanes.sel]
            part[mine] = new
            self.row_of[lanes.sel] = part

    def learn(self, lanes: Lanes, column: int, count: int) -> None:
        """``lanes`` have seen what belongs to ``column`` up to ``count``."""
        news = np.zeros(self.known.shape[1], np.int32)
        news[column] = count
        self.acquire(lanes, news)

    @staticmethod
    def _unique(rows: np.ndarray) -> list[int]:
        return np.unique(rows).tolist()

    def _new_row(self) -> int:
        if not self.free:
            used = set(self._unique(self.row_of)) | {NOTHING}
            self.free = [row for row in range(len(self.known)) if row not in used]
            if len(self.free) < len(self.known) // 2:
                more = len(self.known)
                self.known = np.pad(self.known, ((0, more), (0, 0)))
                self.free += range(more, 2 * more)
        return self.free.pop()
