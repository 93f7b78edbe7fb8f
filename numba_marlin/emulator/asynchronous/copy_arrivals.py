"""Arrivals of cp.async.mbarrier.arrive: a thread arrives at an mbarrier once its cp.async before
that have landed.

It happens as late as the ISA allows: when somebody asks for the phase. The copies that the arrival
stands behind land then, whether or not the thread waits for them itself. Who has waited for the
phase has seen them: of its fences of the asynchronous proxy, the next is one for these bytes too
(a reading of the memory model, causality order through proxy fences; no probe has asked hardware).

https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-cp-async-mbarrier-arrive
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from numba_marlin.emulator.asynchronous.copies import AsyncCopies
from numba_marlin.emulator.asynchronous.mbarriers import MBarriers
from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.text.program import Instruction


@dataclass(eq=False)
class Arrival:
    """Of each of ``lanes`` at its of ``words``, when its first ``copies`` have landed."""

    ins: Instruction
    lanes: Lanes
    words: np.ndarray
    copies: np.ndarray

    @cached_property
    def places(self) -> set[int]:
        """Its ``words``, each once: mostly there is one."""
        return set(self.words.reshape(-1).tolist())

    def part(self, mask: np.ndarray) -> Arrival:
        lanes = self.lanes.narrow(mask)
        return Arrival(
            self.ins,
            lanes,
            self.words[mask].reshape(lanes.shape),
            self.copies[mask].reshape(lanes.shape),
        )


class CopyArrivals:
    def __init__(self, copies: AsyncCopies, barriers: MBarriers) -> None:
        self.copies, self.barriers = copies, barriers
        self.due: list[Arrival] = []
        self.others, barriers.arrivals = barriers.arrivals, self.deliver

    def forget(self, warps: slice) -> None:
        """New threads move in."""
        self.due = [
            arrival
            for arrival in self.due
            if not warps.start <= int(arrival.lanes.warps[0]) < warps.stop
        ]

    def add(self, ins: Instruction, lanes: Lanes, words: np.ndarray, counted: bool) -> None:
        """``counted``: the count of init has these arrivals in it (.noinc); else each makes the
        phase wait for one more."""
        self.barriers.require_live(ins, lanes, words)
        if not counted:
            np.add.at(self.barriers.pending, words.reshape(-1), 1)
        issued = np.broadcast_to(self.copies.tail[lanes.sel], lanes.shape).copy()
        whole, slots = Arrival(ins, lanes, words, issued), lanes.warps // self.per_block
        for slot in np.unique(slots).tolist():  # each block is forgotten by itself
            mine = np.broadcast_to(
                (slots == slot)[:, None] if lanes.full else slots == slot, words.shape
            )
            self.due.append(whole if mine.all() else whole.part(mine))
        self.barriers.memory.progress += 1

    @property
    def per_block(self) -> int:
        return self.barriers.placement.warps_per_block

    def deliver(self, words: np.ndarray) -> None:
        """Somebody waits for these mbarriers."""
        self.others(words)
        left, asked = [], set(words.tolist())
        for arrival in self.due:
            if asked.isdisjoint(arrival.places):
                left.append(arrival)
            else:
                now = np.isin(arrival.words, words)
                if not now.all():
                    left.append(arrival.part(~now))
                part = arrival.part(now)
                self.copies.land(part.lanes, part.copies)
                self.barriers.arrive(
                    part.ins, part.lanes, part.words, np.ones(part.words.shape, np.int64)
                )
                self.barriers.memory.proxy.announce(np.unique(part.lanes.warps).tolist())
        self.due = left
