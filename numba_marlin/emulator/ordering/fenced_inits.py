"""fence.mbarrier_init.release.cluster, and what a relaxed arrival at a cluster's barrier brings.

The fence releases mbarrier.init of its thread and nothing else: what these wrote moves to a column
of the thread's own, and whoever learns of that column knows of them. barrier.cluster.arrive.relaxed
orders nothing by itself; it brings what fences of its thread released before.
https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar
https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.ordering import shadow as marks
from numba_marlin.emulator.ordering.messages import CTA
from numba_marlin.emulator.ordering.news import News
from numba_marlin.emulator.state.lanes import Lanes

if TYPE_CHECKING:
    from numba_marlin.emulator.ordering.races import HappensBefore

BYTES = 8  # of an mbarrier


class FencedInits:
    """``columns``: thread -> its column, and how many fences it has executed."""

    def __init__(self, order: HappensBefore) -> None:
        self.order, self.columns = order, {}

    def fence(self, lanes: Lanes) -> None:
        order, shadow = self.order, self.order.shared
        words = np.array(list(order.columns), np.int64)
        if not words.size:
            return
        units = np.unique(shadow.units(words * BYTES, BYTES))
        records = shadow.writes[units]
        who = marks.who_of(records)
        for thread in np.intersect1d(order.clocks.thread_of[lanes.sel], who).tolist():
            for unit, record in zip(units[who == thread].tolist(), records[who == thread].tolist()):
                pc = marks.pc_of(record)
                if order.report.instructions[pc].root == "mbarrier.init":
                    column, count = self._column(thread)
                    shadow.writes[unit] = marks.record(column, count, marks.WEAK, pc)
            self._fenced(lanes.narrow(order.clocks.thread_of[lanes.sel] == thread), thread)

    def _column(self, thread: int) -> tuple[int, int]:
        if thread not in self.columns:
            column = self.order.clocks.column(thread // self.order.clocks.per_block)
            self.columns[thread] = column, 1
            self.order.report.owners[column] = thread
        return self.columns[thread]

    def _fenced(self, lane: Lanes, thread: int) -> None:
        if thread in self.columns:
            column, count = self.columns[thread]
            self.order.clocks.learn(lane, column, count)
            self.columns[thread] = column, count + 1

    def has(self, who: int) -> bool:
        """Whether ``who`` is a column of these."""
        return any(column == who for column, _ in self.columns.values())

    def brought(self, left: News | None, threads: list[int]) -> News | None:
        """What these threads' fences released, besides what others have ``left``."""
        clocks = self.order.clocks
        for thread in threads:
            found, messages = [], self.order.messages
            if (
                messages.fenced.get(thread, (CTA,))[0] != CTA
            ):  # a fence within the block stays there
                found.append(messages.released(thread))
            if thread in self.columns:
                column, count = self.columns[thread]
                found.append(clocks.news_of(column, count - 1))
            for news in found:
                left = news if left is None else clocks.unions.both(left, news)
        return left
