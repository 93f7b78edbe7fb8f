"""Happens-before: is every access to shared and global memory ordered after those that it conflicts with?

Two accesses to a byte conflict if one of them writes and they are not both strong with scopes that include each other. They race if the causality
order of the PTX memory model does not order them, whatever order this run took: a schedule that does no harm shows the race as well as one that does.
``clocks`` holds what every thread knows, ``messages`` how it learns, ``shadow`` who was there before, ``race_report`` says what is missing.

Order comes from: program order of a thread; bar.sync, bar.red, bar.arrive, barrier.cluster; bar.warp.sync, and nothing else among lanes of a warp;
release and acquire, also by fences, with their scopes; mbarrier phases. Asynchronous operations are nobody's program order: what a cp.async writes belongs to
its thread from its wait on, what a bulk copy brings to whoever has seen its mbarrier's phase complete, what a bulk store or a wgmma
reads is free for those who know of its wait_group. A wgmma takes registers of all lanes of its warp, so what they had loaded when it was issued is done when it is:
the wait for it orders that too. (What touches bytes of copies in flight is found by their state, ``block_memory``, before it gets here; what the asynchronous proxy
does not see yet, by ``proxies``.)

Not looked at: global memory on the far side of bulk copies; lanes of one warp that write to one place in one instruction.
https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model, #causality-order, #async-operations
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Iterable

import numpy as np

from numba_marlin.emulator import shadow as marks
from numba_marlin.emulator.clocks import Clocks
from numba_marlin.emulator.lanes import FULL, WARP, Lanes
from numba_marlin.emulator.memory import Access
from numba_marlin.emulator.messages import CTA, Left, Messages, Order, leave, order_of
from numba_marlin.emulator.paths import Path
from numba_marlin.emulator.program import TYPE_BITS, Instruction, Vector
from numba_marlin.emulator.race_report import Reporter
from numba_marlin.emulator.shadow import Shadow

if TYPE_CHECKING:
    from numba_marlin.emulator.bulk import Copy
    from numba_marlin.emulator.execution import Execution

GLOBAL_READERS = 16
WRITES = {"store", "stmatrix", "copy-issue", "copy-land", "atomic"}
ELSEWHERE = {"wgmma", "bulk-issue", "bulk-land"}  # announced by their own methods
MBARRIER_WRITES = ("mbarrier.init", "mbarrier.inval")
CHUNK = 16  # bytes that asynchronous operations come in


@dataclass
class Products:
    """wgmma of a warp: the ``column`` of their reads, how many were ``issued`` and ``taken``, and what its lanes had done before those in flight."""

    column: int
    issued: int = 0
    taken: int = 0
    flying: list[np.ndarray] = field(default_factory=list)


class HappensBefore:
    def __init__(self, execution: "Execution", blocks: int) -> None:
        kernel, placement = execution.kernel, execution.placement
        if len(kernel.instructions) >= 1 << marks.PC_BITS or blocks * placement.warps_per_block * WARP >= 1 << marks.WHO_BITS - 1:
            raise ValueError(f"races=True takes {1 << marks.PC_BITS} instructions and {1 << marks.WHO_BITS - 1} threads at most")
        self.memory, self.placement = execution.memory, placement
        self.clocks = Clocks(placement, blocks)
        clusters = {number: index for index, group in enumerate(execution.cluster.groups()) for number in group}
        self.messages = Messages(self.clocks, clusters.__getitem__)
        self.remote = any("shared::cluster" in ins.modifiers or ins.root == "mapa" for ins in kernel.instructions)
        own = self.memory.shared
        readers = placement.warps_per_block * (execution.cluster.size if self.remote else 1)
        self.shared = Shadow(own.data.size, smallest(kernel.instructions, "shared"), readers)
        self.unit = smallest(kernel.instructions, "global")
        self.buffers: dict[int, Shadow] = {}
        self.orders = [order_of(ins) for ins in kernel.instructions]
        self.number = [0] * placement.slots  # of the block in each slot
        # mbarriers, by word: the column of its copies, what arrivals of its phase left, what completed phases did
        self.columns: dict[int, int] = {}
        self.arriving: dict[int, Left] = {}
        self.complete: dict[int, Left] = {}
        self.stores: dict[int, int] = {}  # thread -> column of its bulk stores' reads
        self.products: dict[int, Products] = {}  # by warp
        self.report = Reporter(execution, self)

    def place(self, slots: Iterable[int], numbers: Iterable[int]) -> None:
        """Blocks ``numbers`` move into ``slots``."""
        stride, per_block = self.memory.shared.stride, self.placement.warps_per_block
        for slot, number in zip(slots, numbers):
            before = self.number[slot] * self.clocks.per_block
            self.messages.forget(range(before, before + self.clocks.per_block))
            self.number[slot] = number
            self.clocks.place(slot, number)
            self.shared.forget(slot * stride, (slot + 1) * stride)
            for warp in range(slot * per_block, (slot + 1) * per_block):
                self.products.pop(warp, None)

    def block_ended(self, slot: int) -> None:
        """Race unless some thread of the block in ``slot`` knows of all that other blocks did to its shared memory."""
        stride, shadow, clocks = self.memory.shared.stride, self.shared, self.clocks
        units = slice(slot * stride // shadow.unit, (slot + 1) * stride // shadow.unit)
        if not self.remote or not stride:
            return
        warps = slice(slot * self.placement.warps_per_block, (slot + 1) * self.placement.warps_per_block)
        known = clocks.known[np.unique(clocks.row_of[warps])].max(axis=0)
        records = np.concatenate([shadow.writes[units][:, None], shadow.reads[units]], axis=1)
        who = marks.who_of(records)
        late = (known[who] < marks.clock_of(records)) & (who // clocks.per_block != self.number[slot]) & (who < clocks.threads)
        if late.any():
            unit, column = (int(i) for i in np.argwhere(late)[0])
            raise self.report.ended(slot, int(records[unit, column]), units.start + unit)

    # -- ordinary accesses -----------------------------------------------------------------------------------------------------------

    def watch(self, access: Access) -> None:
        kind, space, ins, lanes, address, nbytes = access
        if kind in ELSEWHERE or space == "local":
            return
        writing = kind in WRITES or kind == "mbarrier" and ins.root in MBARRIER_WRITES
        order = self.orders[ins.pc]
        if kind == "mbarrier":
            way = marks.WEAK if writing else marks.OBJECT
        elif kind.startswith("copy"):
            way = marks.COPY
        else:
            way = order.scope if order.strong else marks.WEAK
        for shadow, part, offsets in self._places(ins, lanes, space, address, nbytes):
            units = shadow.units(offsets, nbytes)
            if kind != "copy-land":
                self._check(ins, part, shadow, units, writing, way)
            if kind == "copy-issue":
                continue
            threads = self.clocks.thread_of[part.sel]
            records = np.broadcast_to(marks.record(threads, self.clocks.clock[threads], way, ins.pc)[..., None], units.shape)
            if writing:
                shadow.wrote(units, records)
                if way in (marks.WEAK, marks.COPY):
                    self._collisions(ins, part, shadow, units, records)
            else:
                shadow.read(units, (threads // WARP)[..., None], records)
            if way in marks.SCOPES:
                self._synchronise(part, shadow, units, order, kind)
            elif writing and shadow.objects[units].any():
                for unit in units[shadow.objects[units]].tolist():
                    self.messages.places.pop((id(shadow), unit), None)

    def _places(self, ins: Instruction, lanes: Lanes, space: str, address: np.ndarray, nbytes: int):
        """(shadow, lanes, offsets in it) of addresses; what lies outside of all memory is left to others to complain about."""
        if space != "global":
            own = self.memory.shared
            origin, within = self.memory.peers(ins, lanes, address) if space == "shared::cluster" else (own.origin[lanes.sel], address)
            offset = within - own.base
            if offset.size and offset.min() >= 0 and offset.max() + nbytes <= own.size:
                yield self.shared, lanes, origin + offset
            return
        left = np.ones(address.shape, bool)
        while left.any():
            first = int(address[left][0])
            buffer = self.memory.globals.find(first)
            if buffer is None:
                return
            mine = left & (address >= buffer.address) & (address + nbytes <= buffer.end)
            if not mine.any():
                return
            left &= ~mine
            if not buffer.readonly:
                shadow = self.buffers.get(buffer.address)
                if shadow is None:
                    shadow = self.buffers[buffer.address] = Shadow(buffer.nbytes, self.unit, GLOBAL_READERS)
                part = lanes if mine.all() else lanes.narrow(mine)
                yield shadow, part, (address[mine] - buffer.address).reshape(part.shape)

    def _check(self, ins: Instruction, lanes: Lanes, shadow: Shadow, units: np.ndarray, writing: bool, way: int) -> None:
        """Race unless all that was there before is known to the accessing lanes. ``units`` [*lanes.shape, count]."""
        before = shadow.before(units, writing)
        if not before.size:
            return
        who, rows = marks.who_of(before), self.clocks.row_of[lanes.sel][..., None, None]
        threads = self.clocks.thread_of[lanes.sel][..., None, None]
        late = (self.clocks.known[rows, who] < marks.clock_of(before)) & (who != threads)
        if late.any():
            late &= ~self._strong(before, threads, way)
            if late.any():
                raise self.report.race(ins, lanes, shadow, units, before, late, writing, way)

    def _strong(self, before: np.ndarray, threads: np.ndarray, way: int) -> np.ndarray:
        """Which of the records ``before`` do not conflict with an access of ``way``, for they are both strong and see each other."""
        ways = marks.way_of(before)
        if way == marks.OBJECT:
            return ways == marks.OBJECT
        if way not in marks.SCOPES:
            return np.zeros(before.shape, bool)
        blocks, mine = np.broadcast_arrays(marks.who_of(before) // self.clocks.per_block, threads // self.clocks.per_block)
        both = np.minimum(ways, way)
        found = np.isin(ways, list(marks.SCOPES)) & ((both == marks.STRONG_GPU) | (blocks == mine))
        for index in np.argwhere(~found & (both == marks.STRONG_CLUSTER) & np.isin(ways, list(marks.SCOPES))):
            at = tuple(index)
            found[at] = self.messages.cluster_of(int(blocks[at])) == self.messages.cluster_of(int(mine[at]))
        return found

    def _collisions(self, ins: Instruction, lanes: Lanes, shadow: Shadow, units: np.ndarray, records: np.ndarray) -> None:
        """Race if another warp wrote the same units in this very step."""
        after = shadow.writes[units]
        late = marks.who_of(after) // WARP != marks.who_of(records) // WARP
        if late.any():
            raise self.report.race(ins, lanes, shadow, units, after[..., None], late[..., None], True, marks.way_of(int(records.flat[0])))

    # -- what orders -------------------------------------------------------------------------------------------------------------------

    def _synchronise(self, lanes: Lanes, shadow: Shadow, units: np.ndarray, order: Order, kind: str) -> None:
        first, blocks = units[..., 0], self.clocks.thread_of[lanes.sel] // self.clocks.per_block
        for unit in np.unique(first).tolist():
            shadow.objects[unit] = True
            for block in np.unique(blocks[first == unit]).tolist():
                mine = (first == unit) & (blocks == block)
                self.messages.at((id(shadow), unit), lanes if mine.all() else lanes.narrow(mine), order, kind != "store", kind != "load")

    def lanes_of(self, paths: Iterable[Path]) -> Lanes:
        paths = sorted(paths, key=lambda path: path.warp)
        masks = [path.mask for path in paths]
        return Lanes.of(self.placement, [path.warp for path in paths], None if all(mask == FULL for mask in masks) else masks)

    def arrive(self, left: np.ndarray | None, paths: Iterable[Path]) -> np.ndarray:
        """``paths`` come to a barrier: what they and those before them (``left``) bring."""
        news = self.clocks.release(self.lanes_of(paths))
        return news if left is None else np.maximum(np.pad(left, (0, len(news) - len(left))), news)

    def leave(self, left: np.ndarray | None, paths: Iterable[Path]) -> None:
        """``paths`` leave a barrier that has completed."""
        paths = list(paths)
        if paths and left is not None:
            self.clocks.acquire(self.lanes_of(paths), left)

    def warp_barrier(self, lanes: Lanes) -> None:
        for warp, mask in lanes.masks_by_warp().items():
            part = Lanes.of(self.placement, [warp], None if mask == FULL else [mask])
            self.clocks.acquire(part, self.clocks.release(part))

    def mbarrier_made(self, words: np.ndarray) -> None:
        for word in words.reshape(-1).tolist():
            self.columns[word] = self.clocks.column()
            self.arriving[word], self.complete[word] = {}, {}

    def mbarrier_arrived(self, ins: Instruction, lanes: Lanes, words: np.ndarray) -> None:
        order, blocks = self.orders[ins.pc], self.clocks.thread_of[lanes.sel] // self.clocks.per_block
        for word in np.unique(words).tolist():
            for block in np.unique(blocks[words == word]).tolist():
                mine = (words == word) & (blocks == block)
                self.messages.send(self.arriving[word], lanes if mine.all() else lanes.narrow(mine), order)

    def mbarrier_completed(self, word: int, phases: int) -> None:
        """``phases`` of it are complete by now."""
        for key, news in self.arriving[word].items():
            leave(self.complete[word], key, news)
        self.arriving[word] = {}
        copies = np.zeros(self.clocks.known.shape[1], np.int32)
        copies[self.columns[word]] = phases
        leave(self.complete[word], (CTA, self._block(word * 8)), copies)

    def mbarrier_seen(self, ins: Instruction, lanes: Lanes, words: np.ndarray, done: np.ndarray) -> None:
        """Lanes for which ``done`` holds have seen the latest completed phase."""
        words = np.broadcast_to(words, lanes.shape)
        for word in np.unique(words[done]).tolist():
            mine = done & (words == word)
            self.messages.receive(self.complete[word], lanes if mine.all() else lanes.narrow(mine), self.orders[ins.pc])

    def _block(self, position: int) -> int:
        """Number of the block whose shared memory the byte of the shared array is."""
        return self.number[position // self.memory.shared.stride]

    # -- asynchronous operations -------------------------------------------------------------------------------------------------------

    def _span(self, copy: "Copy") -> np.ndarray:
        units = np.arange(copy.start // self.shared.unit, copy.stop // self.shared.unit)
        return units.reshape(copy.lanes.shape + (-1,))

    def load_issued(self, copy: "Copy") -> None:
        self._check(copy.ins, copy.lanes, self.shared, self._span(copy), True, marks.BULK)

    def load_landed(self, copy: "Copy", phase: int) -> None:
        """Before its bytes are counted; ``phase``: of its mbarrier, in progress."""
        column = self.columns[copy.word]
        self.report.owners[column] = int(self.clocks.thread_of[copy.lanes.sel][0])
        self.shared.wrote(self._span(copy), np.int64(marks.record(column, phase + 1, marks.BULK, copy.ins.pc)))

    def store_issued(self, copy: "Copy") -> None:
        units, thread = self._span(copy), int(self.clocks.thread_of[copy.lanes.sel][0])
        self._check(copy.ins, copy.lanes, self.shared, units, False, marks.BULK)
        if thread not in self.stores:
            self.stores[thread] = self.clocks.column()
            self.report.owners[self.stores[thread]] = thread
        records = np.int64(marks.record(self.stores[thread], copy.group + 1, marks.BULK, copy.ins.pc))
        self.shared.read(units, np.int64(thread // WARP), records)

    def store_waited(self, warp: int, lane: int, groups: int) -> None:
        """The first ``groups`` groups of the thread have been read."""
        thread = int(self.clocks.thread_of[warp, lane])
        if thread in self.stores and groups > 0:
            self.clocks.learn(Lanes.of(self.placement, [warp], [1 << lane]), self.stores[thread], groups)

    def product_issued(self, ins: Instruction, warp: int, starts: np.ndarray) -> None:
        """A wgmma of ``warp`` will read the 16-byte chunks at ``starts`` of the shared array, and registers of all lanes."""
        held = self.products.get(warp)
        if held is None:
            held = self.products[warp] = Products(self.clocks.column())
            self.report.owners[held.column] = int(self.clocks.thread_of[warp, 0])
        held.issued += 1
        lane = Lanes.of(self.placement, [warp], [1])
        units = self.shared.units(starts.reshape(-1), CHUNK).reshape(1, -1)
        self._check(ins, lane, self.shared, units, False, marks.PRODUCT)
        records = np.int64(marks.record(held.column, held.issued, marks.PRODUCT, ins.pc))
        self.shared.read(units, self.clocks.thread_of[warp, 0] // WARP, records)
        held.flying.append(self.clocks.release(Lanes.of(self.placement, [warp], None)))

    def products_taken(self, warp: int, count: int) -> None:
        """``count`` more products of ``warp`` are done."""
        held = self.products.get(warp)
        if held is not None and count:
            held.taken += count
            lanes = Lanes.of(self.placement, [warp], None)
            self.clocks.acquire(lanes, held.flying[count - 1])
            self.clocks.learn(lanes, held.column, held.taken)
            del held.flying[:count]


def smallest(instructions: list[Instruction], space: str) -> int:
    """Bytes of the smallest access to ``space``: the unit in which accesses are told apart."""
    found = CHUNK
    for ins in instructions:
        words = set(ins.modifiers)
        other = {"shared": "global", "global": "shared"}[space]
        if ins.root in ("ld", "ldu", "st", "atom", "red") and not words & {"param", "local", "const", other, f"{other}::cta", f"{other}::cluster"}:
            count = next((len(operand.items) for operand in ins.operands if isinstance(operand, Vector)), 1)
            found = min(found, TYPE_BITS[ins.types[-1]] // 8 * count)
        elif ins.root == "cp.async":
            found = min(found, int(ins.operands[2].value))
        elif ins.root.startswith("mbarrier") and space == "shared":
            found = min(found, 8)
    return found
