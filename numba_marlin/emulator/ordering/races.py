"""Happens-before: is every access to shared and global memory ordered after those that it conflicts
with?

Two accesses to a byte conflict if one of them writes and they are not both strong with scopes that
include each other. They race if the causality order of the PTX memory model does not order them,
whatever order this run took: a schedule that does no harm shows the race as well as one that does.
``clocks`` holds what every thread knows, ``messages`` how it learns, ``shadow`` who was there
before, ``conflicts`` compares them, ``race_report`` says what is missing.

Order comes from: program order of a thread; bar.sync, bar.red, bar.arrive, barrier.cluster;
bar.warp.sync, and nothing else among lanes of a warp; release and acquire, also by fences, with
their scopes; mbarrier phases. Asynchronous operations are in no program order: what a cp.async
writes belongs to its thread from its wait on, what a bulk copy brings to those who have seen its
mbarrier's phase complete, what a bulk store or a wgmma reads is free for those who know of its
wait_group, what a tcgen05 operation reads for those who know of the commit behind it. A wgmma is
one operation of its warpgroup: a wait of any of the four warps is for what all four read of shared
memory (the ISA has groups "per warpgroup"; experiment 05 has what an H200 does). It takes registers
of all lanes of a warp, so what they had loaded when it was issued is done when it is: this warp's
wait for it orders that too. (What touches bytes of copies in flight is found by their state,
``block_memory``, before it gets here; what the asynchronous proxy does not see yet, by
``proxies``.)

Where a buffer is ``earlier``, the kernel before this one on the stream may be using it until
griddepcontrol.wait.

Not looked at: when within its flight a bulk copy reads global memory; lanes of one warp that write
to one place in one instruction.
https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model, #causality-order,
#async-operations
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.ordering import shadow as marks
from numba_marlin.emulator.ordering.conflicts import BEFORE, CHUNK, Conflicts
from numba_marlin.emulator.ordering.fenced_inits import FencedInits
from numba_marlin.emulator.ordering.messages import CLUSTER, CTA, Left
from numba_marlin.emulator.ordering.news import NOTHING, News
from numba_marlin.emulator.ordering.seen_arrivals import SeenArrivals
from numba_marlin.emulator.state.lanes import FULL, WARP, Lanes
from numba_marlin.emulator.state.paths import Path
from numba_marlin.emulator.text.program import Instruction

if TYPE_CHECKING:
    from numba_marlin.emulator.asynchronous.bulk import Copy
    from numba_marlin.emulator.scheduling.execution import Execution


@dataclass
class Products:
    """wgmma of a warp: the ``column`` of their reads, how many were ``issued`` and ``taken``, and
    what its lanes had done before those in flight."""

    column: int
    issued: int = 0
    taken: int = 0
    flying: list[News] = field(default_factory=list)


class HappensBefore(Conflicts):
    def __init__(self, execution: Execution, blocks: int) -> None:
        super().__init__(execution, blocks)
        # mbarriers, by word: the column of its copies, what arrivals of its phase left, what
        # completed phases did
        self.columns: dict[int, int] = {}
        self.arriving: dict[int, Left] = {}
        self.complete: dict[int, Left] = {}
        # thread -> columns of what its bulk stores read, and of what they write
        self.stores: dict[int, tuple[int, int]] = {}
        self.products: dict[int, Products] = {}  # by warp
        self.inits, self.arrivals = FencedInits(self), SeenArrivals(self.shared)
        # thread -> the column of its tcgen05 operations, how many it has issued, what it knew then
        self.tensor: dict[int, tuple[int, int, News]] = {}

    def place(self, slots: Iterable[int], numbers: Iterable[int]) -> None:
        """Blocks ``numbers`` move into ``slots``."""
        stride, per_block = self.memory.shared.stride, self.placement.warps_per_block
        for slot, number in zip(slots, numbers):
            before = self.number[slot] * self.clocks.per_block
            self.messages.forget(range(before, before + self.clocks.per_block))
            self.number[slot] = number
            self.clocks.place(slot, number)
            self._forget(slot * stride, (slot + 1) * stride)
            for warp in range(slot * per_block, (slot + 1) * per_block):
                self.products.pop(warp, None)

    def _forget(self, start: int, stop: int) -> None:
        """A new block gets the shared memory [start, stop)."""
        if self.shared.touched:
            units = slice(start // self.shared.unit, stop // self.shared.unit)
            for unit in np.flatnonzero(self.shared.objects[units]).tolist():
                self.messages.places.pop((id(self.shared), units.start + unit), None)
        self.shared.forget(start, stop)

    def block_ended(self, slot: int) -> None:
        """Race unless some thread of the block in ``slot`` knows of all that other blocks did to
        its shared memory."""
        stride, shadow, clocks = self.memory.shared.stride, self.shared, self.clocks
        units = slice(slot * stride // shadow.unit, (slot + 1) * stride // shadow.unit)
        if not self.remote or not stride:
            return
        records = np.concatenate([shadow.writes[units][:, None], shadow.reads[units]], axis=1)
        who = marks.who_of(records)
        # most places have been used by the block itself, or by nobody: block 0 at clock 0
        foreign = (who // clocks.per_block != self.number[slot]) & (who < clocks.threads)
        others = np.flatnonzero((records != 0) & foreign & ~self.arrivals.done(units, records))
        records, who = records.reshape(-1)[others], who.reshape(-1)[others]
        late = clocks.unknown(slot, who, marks.clock_of(records))
        if late.any():
            first = int(np.argmax(late))
            unit = units.start + int(others[first]) // (1 + shadow.readers)
            raise self.report.ended(slot, int(records[first]), unit)

    def lanes_of(self, paths: Iterable[Path]) -> Lanes:
        paths = sorted(paths, key=lambda path: path.warp)
        masks = [path.mask for path in paths]
        return Lanes.of(
            self.placement,
            [path.warp for path in paths],
            None if all(mask == FULL for mask in masks) else masks,
        )

    def arrive(self, left: News | None, paths: Iterable[Path]) -> News:
        """``paths`` come to a barrier: what they and those before them (``left``) bring."""
        news = self.clocks.release(self.lanes_of(paths))
        return news if left is None else self.clocks.unions.both(left, news)

    def arrive_relaxed(self, left: News | None, path: Path) -> News | None:
        """``path`` comes to a barrier and brings no more than its fences have released."""
        threads = self.clocks.thread_of[self.lanes_of([path]).sel].reshape(-1)
        return self.inits.brought(left, threads.tolist())

    def meet(self, slots: list[int]) -> set[int]:
        """All threads of the blocks in ``slots`` have come to a barrier at once; returns of which
        slots this is all there is to do: ``arrive`` and ``leave`` are for the others."""
        per_block, numbers = self.placement.warps_per_block, np.array(slots, np.intp)
        done = self.clocks.meet(numbers[:, None] * per_block + np.arange(per_block))
        return set(numbers[done].tolist())

    def leave(self, left: News | None, paths: Iterable[Path]) -> None:
        """``paths`` leave a barrier that has completed."""
        paths = list(paths)
        if paths and left is not None:
            self.clocks.acquire(self.lanes_of(paths), left)

    def warp_barrier(self, lanes: Lanes) -> None:
        if lanes.full:
            rest = ~self.clocks.meet(lanes.warps[:, None])
            if not rest.any():
                return
            lanes = Lanes(self.placement, lanes.warps[rest], None)
        for warp, mask in lanes.masks_by_warp().items():
            part = Lanes.of(self.placement, [warp], None if mask == FULL else [mask])
            self.clocks.acquire(part, self.clocks.release(part))

    def mbarrier_made(self, words: np.ndarray) -> None:
        for word in words.reshape(-1).tolist():
            self.columns[word] = self.clocks.column(self._block(word * 8))
            self.arriving[word], self.complete[word] = self.messages.left(), self.messages.left()
            self.arrivals.made(word)

    def mbarrier_arrived(self, ins: Instruction, lanes: Lanes, words: np.ndarray) -> None:
        order, blocks = (
            self.orders[ins.pc],
            self.clocks.thread_of[lanes.sel] // self.clocks.per_block,
        )
        for word in np.unique(words).tolist():
            for block in np.unique(blocks[words == word]).tolist():
                if self.remote and block != self._block(word * 8):
                    self.arrivals.another(word)
                mine = (words == word) & (blocks == block)
                self.messages.send(
                    self.arriving[word], lanes if mine.all() else lanes.narrow(mine), order
                )

    def mbarrier_completed(self, word: int, phases: int) -> None:
        """``phases`` of it are complete by now."""
        if self.remote:
            self.arrivals.completed(word)
        for key, log in self.arriving[word].of.items():
            self.complete[word].add(key, log.so_far()())
        self.arriving[word].clear()
        copies = self.clocks.news_of(self.columns[word], phases)
        self.complete[word].add((CTA, self._block(word * 8)), copies)

    def mbarrier_seen(
        self, ins: Instruction, lanes: Lanes, words: np.ndarray, done: np.ndarray
    ) -> None:
        """Lanes for which ``done`` holds have seen the latest completed phase."""
        words = np.broadcast_to(words, lanes.shape)
        for word in np.unique(words[done]).tolist():
            mine = done & (words == word)
            own = self.clocks.thread_of[lanes.sel] // self.clocks.per_block == self._block(word * 8)
            if self.remote and (mine & own).any():
                self.arrivals.seen(word)
            self.messages.receive(
                self.complete[word],
                lanes if mine.all() else lanes.narrow(mine),
                self.orders[ins.pc],
            )

    def _block(self, position: int) -> int:
        """Number of the block whose shared memory the byte of the shared array is."""
        return self.number[position // self.memory.shared.stride]

    def _span(self, copy: Copy) -> np.ndarray:
        units = np.arange(copy.start // self.shared.unit, copy.stop // self.shared.unit)
        return units.reshape(copy.lanes.shape + (-1,))

    def load_issued(self, copy: Copy) -> None:
        self._check(copy.ins, copy.lanes, self.shared, self._span(copy), True, marks.BULK)

    def load_landed(self, copy: Copy, phase: int) -> None:
        """Before its bytes are counted; ``phase``: of its mbarrier, in progress."""
        column = self.columns[copy.word]
        self.report.owners[column] = int(self.clocks.thread_of[copy.lanes.sel][0])
        self.shared.wrote(
            self._span(copy), np.int64(marks.record(column, phase + 1, marks.BULK, copy.ins.pc))
        )

    def far_side(self, copy: Copy, starts: np.ndarray, nbytes: int, changed=None) -> None:
        """``copy``, just issued, moves ``nbytes`` of global memory at each of ``starts``, all in
        one buffer. ``changed(copy, buffer)``: which bytes of it a store will change."""
        buffer = self.memory.globals.find(int(starts[0]))
        shadow = None if buffer is None or not nbytes else self.of_buffer(buffer)
        if shadow is None:
            return
        units = shadow.units(starts - buffer.address, nbytes).reshape(copy.lanes.shape + (-1,))
        loads = copy.fetch is not None
        # a reduction is an atomic access
        way = marks.STRONG_GPU if copy.ins.root.startswith("cp.reduce") else marks.BULK
        same = None
        if way == marks.BULK and not loads:
            same = lambda: ~changed(copy, buffer)[shadow.bytes_of(units)].any(-1)  # noqa: E731
        self._check(copy.ins, copy.lanes, shadow, units, not loads, way, same)
        if loads:
            return
        _, column = self._columns_of_stores(copy)
        record = np.int64(marks.record(column, copy.group + 1, way, copy.ins.pc))
        shadow.wrote(units, np.broadcast_to(record, units.shape), way in marks.SCOPES)

    def _columns_of_stores(self, copy: Copy) -> tuple[int, int]:
        thread = int(self.clocks.thread_of[copy.lanes.sel][0])
        if thread not in self.stores:
            block = thread // self.clocks.per_block
            self.stores[thread] = self.clocks.column(block), self.clocks.column(block)
            for column in self.stores[thread]:
                self.report.owners[column] = thread
        return self.stores[thread]

    def store_issued(self, copy: Copy) -> None:
        units, thread = self._span(copy), int(self.clocks.thread_of[copy.lanes.sel][0])
        self._check(copy.ins, copy.lanes, self.shared, units, False, marks.BULK)
        records = np.int64(
            marks.record(self._columns_of_stores(copy)[0], copy.group + 1, marks.BULK, copy.ins.pc)
        )
        self.shared.read(units, np.int64(thread // WARP), records)

    def store_waited(self, warp: int, lane: int, groups: int, read: bool) -> None:
        """The first ``groups`` groups of the thread have been read; they are complete, unless
        ``read`` is all that was waited for."""
        thread = int(self.clocks.thread_of[warp, lane])
        if thread in self.stores and groups > 0:
            for column in self.stores[thread][: 1 if read else 2]:
                self.clocks.learn(Lanes.of(self.placement, [warp], [1 << lane]), column, groups)

    def kernel_before(self, lanes: Lanes) -> None:
        """griddepcontrol.wait: the kernel before this one on the stream is complete."""
        self.clocks.learn(lanes, self.before, BEFORE)

    def tensor_issued(self, ins: Instruction, lane: Lanes, starts: np.ndarray) -> None:
        """A tcgen05 operation of one lane will read the 16-byte chunks at ``starts`` of the shared
        array."""
        thread = int(self.clocks.thread_of[lane.sel].flat[0])
        if thread not in self.tensor:
            column = self.clocks.column(thread // self.clocks.per_block)
            self.tensor[thread] = column, 0, NOTHING
            self.report.owners[self.tensor[thread][0]] = thread
        column, issued, _ = self.tensor[thread]
        self.tensor[thread] = column, issued + 1, self.clocks.release(lane)
        units = self.shared.units(starts, CHUNK).reshape(1, -1)
        self._check(ins, lane, self.shared, units, False, marks.PRODUCT)
        self.shared.read(
            units,
            np.int64(thread // WARP),
            np.int64(marks.record(column, issued + 1, marks.PRODUCT, ins.pc)),
        )

    def tensor_news(self, lane: Lanes) -> News | None:
        """What a commit by the lane has to tell: its operations so far are done, and with them what
        they came after."""
        found = self.tensor.get(int(self.clocks.thread_of[lane.sel].flat[0]))
        if found is None:
            return None
        column, issued, before = found
        return self.clocks.unions.both(before, self.clocks.news_of(column, issued))

    def tensor_committed(self, word: int, lane: Lanes, news: News) -> None:
        """The arrival at mbarrier ``word`` that follows tells it to the cluster."""
        self.arriving[word].add((CLUSTER, self.messages.block_of(lane)), news)

    def product_issued(self, ins: Instruction, warp: int, starts: np.ndarray) -> None:
        """A wgmma of ``warp`` will read the 16-byte chunks at ``starts`` of the shared array, and
        registers of all lanes."""
        held = self.products.get(warp)
        if held is None:
            first = int(self.clocks.thread_of[warp, 0])
            column = self.clocks.column(first // self.clocks.per_block)
            held = self.products[warp] = Products(column)
            self.report.owners[held.column] = first
        held.issued += 1
        lane = Lanes.of(self.placement, [warp], [1])
        units = self.shared.units(starts.reshape(-1), CHUNK).reshape(1, -1)
        self._check(ins, lane, self.shared, units, False, marks.PRODUCT)
        records = np.int64(marks.record(held.column, held.issued, marks.PRODUCT, ins.pc))
        self.shared.read(units, self.clocks.thread_of[warp, 0] // WARP, records)
        held.flying.append(self.clocks.release(Lanes.of(self.placement, [warp], None)))

    def products_taken(self, warps: range, count: int) -> None:
        """``count`` more products of a warpgroup are done: each of its ``warps`` knows that all
        four have read their parts of the operands in shared memory, and, of registers, its own."""
        if not count:
            return
        read = NOTHING
        for warp in warps:
            held = self.products[warp]
            held.taken += count
            mine = self.clocks.news_of(held.column, held.taken)
            read = self.clocks.unions.both(read, mine)
        for warp in warps:
            flying = self.products[warp].flying
            known = self.clocks.unions.both(flying[count - 1], read)
            self.clocks.acquire(Lanes.of(self.placement, [warp], None), known)
            del flying[:count]
