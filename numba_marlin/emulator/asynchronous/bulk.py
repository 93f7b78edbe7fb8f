"""Bulk copies in flight (cp.async.bulk and cp.async.bulk.tensor): big, asynchronous, outside of any
thread's program order.

A load into shared memory signals an mbarrier. Its bytes are IN_FLIGHT from the issue on; source
bytes are read and destination bytes written when it lands, which is when somebody waits for its
barrier. A store from shared memory belongs to a bulk group of its thread. Its source bytes are
LENT, readable but not to be overwritten, until the thread has waited for the group to be read; what
it writes appears when the thread waits for the whole group, else when the grid ends. That is as
late as the ISA allows, so that a wait that is missing shows; ``drift`` lets copies go on earlier,
at random, for runs with a seed.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.asynchronous.mbarriers import MBarriers
from numba_marlin.emulator.asynchronous.proxies import AsyncProxy
from numba_marlin.emulator.errors import PendingCopyRead
from numba_marlin.emulator.state.access import Access
from numba_marlin.emulator.state.block_memory import IN_FLIGHT, LENT, VALID
from numba_marlin.emulator.state.global_memory import Buffer
from numba_marlin.emulator.state.lanes import WARP, Lanes, Placement, error_at
from numba_marlin.emulator.state.memory import Memory
from numba_marlin.emulator.text.program import Instruction

if TYPE_CHECKING:
    from numba_marlin.emulator.ordering.races import HappensBefore

DRIFT_CHANCE = 0.3


@dataclass(eq=False)
class Copy:
    """Between bytes [start, stop) of the shared array and elsewhere: ``fetch()`` gives a load's
    bytes, ``put(bytes)`` takes a store's.

    ``lanes`` is the one lane that issued it. ``word`` is the mbarrier of a load, ``group`` the bulk
    group of a store, ``data`` what a store has read so far, ``released`` whether its source may be
    overwritten, ``reach`` the addresses of global memory between which a store writes.
    """

    ins: Instruction
    lanes: Lanes
    start: int
    stop: int
    fetch: Callable[[], np.ndarray] | None = None
    put: Callable[[np.ndarray], None] | None = None
    word: int = -1
    group: int = -1
    data: np.ndarray | None = None
    released: bool = False
    reach: tuple[int, int] = (0, 0)

    @property
    def thread(self) -> tuple[int, int]:
        return int(self.lanes.warps[0]), int(self.lanes.columns[0])


class BulkCopies:
    def __init__(
        self,
        memory: Memory,
        barriers: MBarriers,
        proxy: AsyncProxy,
        placement: Placement,
        races: HappensBefore | None = None,
    ) -> None:
        self.memory, self.barriers, self.proxy, self.placement = memory, barriers, proxy, placement
        self.loads: dict[int, list[Copy]] = {}  # by mbarrier
        self.stores: dict[tuple[int, int], list[Copy]] = {}  # by (warp, lane)
        self.groups = np.zeros((placement.warps, WARP), np.int64)  # committed so far
        self.random: random.Random | None = None
        self.early = False  # loads land as soon as they are issued
        self.races = races
        barriers.deliver = self.deliver
        self.explain_others, memory.explain_pending = memory.explain_pending, self.explain

    def forget(self, warps: slice) -> None:
        self.groups[warps] = 0

    def load(
        self,
        ins: Instruction,
        lanes: Lanes,
        start: int,
        nbytes: int,
        word: int,
        fetch: Callable[[], np.ndarray],
        there: tuple,
    ) -> None:
        """The one lane of ``lanes`` starts a copy of ``nbytes`` to position ``start``, to be
        counted by mbarrier ``word``. ``there``: (global addresses, bytes at each) that it reads."""
        self.memory.require_span_free(ins, lanes, start, start + nbytes)
        self.memory.borrowers(ins, lanes, start, start + nbytes)
        own = self.memory.shared
        own.state[start : start + nbytes] = IN_FLIGHT
        own.guarded += nbytes
        copy = Copy(ins, lanes, start, start + nbytes, fetch=fetch, word=word)
        if self.races is not None:
            self.races.load_issued(copy)
            self.races.far_side(copy, *there)
        self.loads.setdefault(word, []).append(copy)
        self._tell("bulk-issue", ins, lanes, start, nbytes)
        self.memory.progress += 1
        if self.early:
            self._land(copy)

    def store(
        self,
        ins: Instruction,
        lanes: Lanes,
        start: int,
        nbytes: int,
        put: Callable[[np.ndarray], None],
        there: tuple,
    ) -> None:
        """The one lane of ``lanes`` starts a copy of ``nbytes`` from position ``start``, in its
        current bulk group."""
        self.proxy.require(ins, lanes, start, start + nbytes)
        group, (addresses, count) = int(self.groups[lanes.sel][0]), there
        reach = int(addresses.min()), int(addresses.max()) + count
        copy = Copy(ins, lanes, start, start + nbytes, put=put, group=group, reach=reach)
        if self.races is not None:
            self.races.store_issued(copy)
            self.races.far_side(copy, *there, changed=self.changed)
        self.stores.setdefault(copy.thread, []).append(copy)
        self._lend(copy)
        self._tell("bulk-issue", ins, lanes, start, nbytes)
        self.memory.progress += 1

    def changed(self, copy: Copy, buffer: Buffer) -> np.ndarray:
        """Which bytes of ``buffer`` the store ``copy`` will change, if it is written after all
        stores that are in flight now."""
        first, end = copy.reach
        flying = [
            each
            for copies in self.stores.values()
            for each in copies
            if each.reach[0] < end and first < each.reach[1]
        ]
        low = min([first, *(each.reach[0] for each in flying)]) - buffer.address
        high = max([end, *(each.reach[1] for each in flying)]) - buffer.address
        part = buffer.data[low:high]
        held = part.copy()
        for each in flying:
            each.put(self._bytes(each))
        before = part.copy()
        copy.put(self._bytes(copy))
        found = np.zeros(buffer.nbytes, bool)
        found[low:high] = part != before
        part[:] = held
        return found

    def _bytes(self, copy: Copy) -> np.ndarray:
        """What a store has read, or would read now."""
        return self.memory.shared.data[copy.start : copy.stop] if copy.data is None else copy.data

    def commit(self, ins: Instruction, lanes: Lanes) -> None:
        self.groups[lanes.sel] += 1

    def wait_group(self, ins: Instruction, lanes: Lanes, latest: int, read: bool) -> None:
        """All but the ``latest`` groups of every lane have been read; unless ``read`` is all that
        is asked, they are complete too."""
        if not self.stores:
            return
        masks = lanes.masks_by_warp()
        for thread in [
            thread for thread in self.stores if masks.get(thread[0], 0) >> thread[1] & 1
        ]:
            limit, left = self.groups[thread] - latest, []
            if self.races is not None:
                self.races.store_waited(*thread, int(limit), read)
            for copy in self.stores[thread]:
                if copy.group >= limit:
                    left.append(copy)
                    continue
                self._release(copy)
                if read:
                    left.append(copy)
                else:
                    self._write(copy)
            self._keep(thread, left)

    def deliver(self, words: np.ndarray) -> None:
        """Somebody waits for these mbarriers: let their copies land until the phase completes, some
        of them if there is a seed."""
        for word in words.tolist():
            copies, phase = self.loads.get(word, []), self.barriers.phase[word]
            for copy in (
                list(copies) if self.random is None else self.random.sample(copies, len(copies))
            ):
                if (
                    self.barriers.phase[word] != phase
                    or self.random is not None
                    and self.random.random() < DRIFT_CHANCE
                ):
                    break
                self._land(copy)

    def drift(self) -> None:
        """Some time has passed: a copy chosen at random may go on."""
        if (
            self.random is None
            or not (self.loads or self.stores)
            or self.random.random() > DRIFT_CHANCE
        ):
            return
        copy = self.random.choice(
            [
                copy
                for group in (self.loads, self.stores)
                for copies in group.values()
                for copy in copies
            ]
        )
        if copy.fetch is not None:
            self._land(copy)
        elif copy.data is None:
            self._read(copy)
        elif copy.released:
            self._write(copy)
            self._keep(
                copy.thread, [other for other in self.stores[copy.thread] if other is not copy]
            )

    def block_ended(self, slot: int) -> None:
        """PendingCopyRead if copies still want the shared memory of the block that ends."""
        if not self.loads and not self.stores:
            return
        low, high = (n * self.memory.shared.stride for n in (slot, slot + 1))
        for group in (self.loads, self.stores):
            for copy in (copy for copies in group.values() for copy in copies):
                if low <= copy.start < high and not copy.released:
                    loads = copy.fetch is not None
                    what = "is still in flight to" if loads else "may still be reading"
                    where = self.memory.shared.describe(copy.start - low)
                    warp, lane = copy.thread
                    error = error_at(
                        PendingCopyRead,
                        f"the block ended, and this copy, never waited for, {what} its {where}",
                        copy.ins,
                        self.placement,
                        warp,
                        (lane,),
                    )
                    if loads:
                        raise error
                    self.memory.checks.report("bulk-store-at-end", error)
                    self._release(copy)

    def finish(self) -> None:
        """The grid has ended: what was read is written by now."""
        for copies in self.stores.values():
            for copy in copies:
                self._write(copy)
        self.stores.clear()

    def signals(self, word: int) -> bool:
        """Are copies in flight that will signal mbarrier ``word``?"""
        return word in self.loads

    def explain(self, lanes: Lanes, position: int) -> str:
        """Which copy wants byte ``position`` of the shared array, for a message."""
        for group in (self.loads, self.stores):
            for copy in (copy for copies in group.values() for copy in copies):
                if copy.start <= position < copy.stop and not copy.released:
                    warp, lane = copy.thread
                    within = warp % self.placement.warps_per_block
                    return (
                        f" (issued by warp {within}, lane {lane} at PTX line {copy.ins.line}:"
                        f" {copy.ins.text} not waited for)"
                    )
        return self.explain_others(lanes, position)

    def _land(self, copy: Copy) -> None:
        own, nbytes = self.memory.shared, copy.stop - copy.start
        others = [other for other in self.loads[copy.word] if other is not copy]
        if others:
            self.loads[copy.word] = others
        else:
            del self.loads[copy.word]
        own.data[copy.start : copy.stop] = copy.fetch()
        own.state[copy.start : copy.stop] = VALID
        own.guarded -= nbytes
        self.proxy.clean(copy.start, copy.stop)
        if self.races is not None:
            self.races.load_landed(copy, int(self.barriers.phase[copy.word]))
        self._tell("bulk-land", copy.ins, copy.lanes, copy.start, nbytes)
        self.barriers.complete_tx(copy.word, nbytes, copy.ins, copy.lanes)

    def _lend(self, copy: Copy) -> None:
        self.memory.shared.state[copy.start : copy.stop] = LENT
        self.memory.shared.guarded += copy.stop - copy.start

    def _read(self, copy: Copy) -> None:
        copy.data = self.memory.shared.data[copy.start : copy.stop].copy()

    def _release(self, copy: Copy) -> None:
        """Its source is read and may be overwritten, but for bytes that other stores are still to
        read."""
        if copy.released:
            return
        if copy.data is None:
            self._read(copy)
        own = self.memory.shared
        copy.released = True
        own.state[copy.start : copy.stop] = VALID
        own.guarded -= copy.stop - copy.start
        for other in (
            other for copies in self.stores.values() for other in copies if not other.released
        ):
            low, high = max(copy.start, other.start), min(copy.stop, other.stop)
            if low < high:
                own.state[low:high] = LENT
        self.memory.progress += 1

    def _write(self, copy: Copy) -> None:
        self._tell("bulk-land", copy.ins, copy.lanes, copy.start, copy.stop - copy.start)
        copy.put(copy.data)
        self.memory.progress += 1

    def _keep(self, thread: tuple[int, int], copies: list[Copy]) -> None:
        if copies:
            self.stores[thread] = copies
        else:
            del self.stores[thread]

    def _tell(self, kind: str, ins: Instruction, lanes: Lanes, start: int, nbytes: int) -> None:
        if self.memory.watch is not None:
            own = self.memory.shared
            self.memory.watch(
                Access(
                    kind,
                    "shared",
                    ins,
                    lanes,
                    np.full(lanes.shape, start % own.stride + own.base),
                    nbytes,
                )
            )
