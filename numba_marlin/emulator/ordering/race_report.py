"""A race in words: both accesses, what did not order them, and what would.

``kind`` of a Race says what is missing, in words that do not change: see MISSING.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.errors import Race
from numba_marlin.emulator.ordering import shadow as marks
from numba_marlin.emulator.ordering.shadow import Shadow
from numba_marlin.emulator.state.lanes import WARP, Lanes
from numba_marlin.emulator.text.program import Instruction

if TYPE_CHECKING:
    from numba_marlin.emulator.ordering.races import HappensBefore
    from numba_marlin.emulator.scheduling.execution import Execution

# What is missing between the two, and what would do.
MISSING = {
    "missing-warp-sync": "bar.warp.sync of both lanes between the two",
    "missing-barrier": (
        "a bar.sync of both warps between the two, or an mbarrier on which the first arrives and"
        " for which the second waits"
    ),
    "missing-cluster-barrier": (
        "barrier.cluster.arrive.release by the first and barrier.cluster.wait by the second, or an"
        " mbarrier arrival with .release.cluster"
    ),
    "missing-release": (
        "a release by the first (red.release.gpu, or a fence and then a strong write; before it a"
        " bar.sync if another thread of its block does it)"
    ),
    "missing-acquire": (
        "an acquire by the second (ld.acquire.gpu, or a strong read and then a fence; behind it a"
        " bar.sync if another thread of its block does it)"
    ),
    "narrow-scope": "a scope that includes both blocks: .gpu, or .cluster within a cluster",
    "missing-wait-for-others": (
        "a wait by a thread of the block that ends, until all blocks that use its shared memory"
        " have released what they did there"
    ),
    "missing-grid-wait": (
        "griddepcontrol.wait by this thread, or by one that it synchronises with afterwards"
    ),
    "missing-copy-wait": (
        "mbarrier.try_wait for the phase that counts the copy's bytes, by the second or by a thread"
        " that it synchronises with afterwards"
    ),
    "missing-read-wait": (
        "cp.async.bulk.wait_group.read by the thread that issued the store, and then a barrier"
    ),
    "missing-commit-wait": (
        "mbarrier.try_wait for the phase at which a tcgen05.commit behind it arrives, by the second"
        " or by a thread that it synchronises with afterwards"
    ),
    "missing-wgmma-wait": (
        "wgmma.wait_group by the second, if it is of the product's warpgroup, or by a warp of that,"
        " and then a release that the second acquires"
    ),
}


class Reporter:
    """``owners``: column -> the thread that began what belongs to it."""

    def __init__(self, execution: Execution, order: HappensBefore) -> None:
        self.execution, self.order = execution, order
        self.instructions, self.placement = execution.kernel.instructions, execution.placement
        self.owners: dict[int, int] = {}

    def race(
        self,
        ins: Instruction,
        lanes: Lanes,
        shadow: Shadow,
        units: np.ndarray,
        before: np.ndarray,
        late: np.ndarray,
        writing: bool,
        way: int,
    ) -> Race:
        """``late`` [*lanes.shape, units, records] says which records ``before`` an access of
        ``way`` does not come after."""
        index = self._farthest(
            before, late, self.order.clocks.thread_of[lanes.sel][..., None, None]
        )
        at, record = index[: len(lanes.shape)], int(before[index])
        second = int(self.order.clocks.thread_of[lanes.sel][at])
        who, first_way = int(marks.who_of(record)), int(marks.way_of(record))
        if who == self.order.before:
            return self._before(ins, second, shadow, int(units[index[:-1]]), writing)
        first = who if who < self.order.clocks.threads else self.owners[who]
        was_write = index[-1] == 0
        missing = self._missing(record, first, second, first_way, way, shadow)
        names = {True: "write", False: "read"}
        earlier = self.instructions[marks.pc_of(record)]
        where = self.place(shadow, int(units[index[:-1]]))
        detail = (
            f"{missing}: this {names[writing]} of {where} is not ordered after a {names[was_write]}"
            f" of it\n    by {self.thread(first)}, {self._at(earlier)}\n    the first"
            f" {self._since(record, who, first)}; needed:"
            f" {MISSING[missing]}{self._or(first_way, way)}{self._second(ins)}"
        )
        block, warp, lane = self.parts(second)
        return Race(
            detail,
            kind=missing,
            first=earlier,
            first_thread=self.parts(first),
            line=ins.line,
            text=ins.text,
            block=block,
            warp=warp,
            lanes=(lane,),
        )

    def _before(
        self, ins: Instruction, second: int, shadow: Shadow, unit: int, writing: bool
    ) -> Race:
        missing, what = "missing-grid-wait", "write" if writing else "read"
        detail = (
            f"{missing}: this {what} of {self.place(shadow, unit)} is not ordered after the kernel"
            " before this one on the stream, which may be using it\n    needed:"
            f" {MISSING[missing]}{self._second(ins)}"
        )
        block, warp, lane = self.parts(second)
        return Race(
            detail,
            kind=missing,
            first=None,
            first_thread=None,
            line=ins.line,
            text=ins.text,
            block=block,
            warp=warp,
            lanes=(lane,),
        )

    def ended(self, slot: int, record: int, unit: int) -> Race:
        """The block in ``slot`` has ended; none of its threads knows of the access ``record`` by
        another block."""
        first, earlier = int(marks.who_of(record)), self.instructions[marks.pc_of(record)]
        missing = "missing-wait-for-others"
        detail = (
            f"{missing}: the block of {self.place(self.order.shared, unit)} ended, and nothing"
            f" orders that after the use of it\n    by {self.thread(first)}, {self._at(earlier)}\n "
            f"   needed: {MISSING[missing]}\n  the block that ended:"
        )
        where = {"block": self.placement.block_of[slot], "warp": 0, "lanes": ()}
        return Race(detail, kind=missing, first=earlier, first_thread=self.parts(first), **where)

    def _farthest(
        self, before: np.ndarray, late: np.ndarray, threads: np.ndarray
    ) -> tuple[int, ...]:
        """The first of the ``late`` records of another block, else of another warp, else of all:
        what orders those orders the nearer ones too."""
        who = np.where(marks.who_of(before) < self.order.clocks.threads, marks.who_of(before), -1)
        for size in (self.order.clocks.per_block, WARP):
            far = late & (who // size != threads // size)
            if far.any():
                late = far
                break
        return tuple(int(i) for i in np.argwhere(late)[0])

    def parts(self, thread: int) -> tuple[tuple[int, int, int], int, int]:
        """(block, warp in it, lane)"""
        number, within = divmod(thread, self.order.clocks.per_block)
        x, y = self.execution.grid[:2]
        return (number % x, number // x % y, number // (x * y)), within // WARP, within % WARP

    def thread(self, thread: int) -> str:
        block, warp, lane = self.parts(thread)
        return f"block {block}, warp {warp}, lane {lane}"

    def place(self, shadow: Shadow, unit: int) -> str:
        own, offset = self.execution.memory.shared, unit * shadow.unit
        if shadow is self.order.shared:
            slot, within = divmod(offset, own.stride)
            x, y = self.execution.grid[:2]
            number = self.order.number[slot]
            return (
                f"{own.describe(within)} of block"
                f" {(number % x, number // x % y, number // (x * y))}"
            )
        address = next(address for address, each in self.order.buffers.items() if each is shadow)
        return self.execution.memory.globals.find(address).describe(address + offset)

    def _since(self, record: int, who: int, first: int) -> str:
        clocks = self.order.clocks
        if self.order.inits.has(who):
            return "has fenced it since, but nothing has brought that to this thread"
        if who >= clocks.threads:
            return "is asynchronous and its thread goes on meanwhile"
        if clocks.clock[first] > marks.clock_of(record):
            return (
                "has released since (at a barrier, an arrival, a fence or a release), but this"
                " thread has not acquired it"
            )
        return "has released nothing since"

    def _missing(
        self, record: int, first: int, second: int, first_way: int, way: int, shadow: Shadow
    ) -> str:
        clocks, who, clock = (
            self.order.clocks,
            int(marks.who_of(record)),
            int(marks.clock_of(record)),
        )
        if first_way == marks.PRODUCT and who in (
            column for column, *_ in self.order.tensor.values()
        ):
            return "missing-commit-wait"
        if first_way == marks.PRODUCT:
            held = self.order.products.get(self._warp(first))
            if held is not None and held.taken < clock:
                return "missing-wgmma-wait"
        elif first_way == marks.BULK:
            if who in self.order.columns.values():
                return "missing-copy-wait"
            warp = self._warp(first)
            if warp is None or self._knows(warp, first, who) < clock:
                return "missing-read-wait"
        flying = self.order.products.get(self._warp(first))
        if flying is not None and any(
            clocks.clock_in(news, who) >= clock for news in flying.flying
        ):
            return "missing-wgmma-wait"  # what it read feeds a product that may not have begun
        if first // WARP == second // WARP:
            return "missing-warp-sync"
        blocks = first // clocks.per_block, second // clocks.per_block
        if blocks[0] == blocks[1]:
            return "missing-barrier"
        if first_way in marks.SCOPES and way in marks.SCOPES:
            return "narrow-scope"
        for (scope, sender), (tell, _) in self.order.messages.unheard.get(second, {}).items():
            if clocks.clock_in(tell(), who) >= clock:
                return (
                    "missing-acquire"
                    if self.order.messages.spans(scope, sender, blocks[1])
                    else "narrow-scope"
                )
        if shadow is self.order.shared:
            return "missing-cluster-barrier"
        return "missing-acquire" if self._offered(who, clock) else "missing-release"

    def _offered(self, who: int, clock: int) -> bool:
        """Has a release left word of it anywhere?"""
        places = self.order.messages.places.values()
        return any(left.tells(self.order.clocks, who, clock) for left in places)

    def _knows(self, warp: int, thread: int, who: int) -> int:
        row = self.order.clocks.row_of[warp, thread % WARP]
        return int(self.order.clocks.knows(*np.array([[row], [thread], [who]]))[0])

    def _warp(self, thread: int) -> int | None:
        """Number of the thread's warp among the resident ones."""
        number, within = divmod(thread, self.order.clocks.per_block)
        if number not in self.order.number:
            return None
        return self.order.number.index(number) * self.placement.warps_per_block + within // WARP

    @staticmethod
    def _or(first: int, second: int) -> str:
        one = (first in marks.SCOPES) != (second in marks.SCOPES)
        return (
            "; or, if they may come in any order, that both are strong (.relaxed): one of them is"
            if one
            else ""
        )

    def _at(self, ins: Instruction) -> str:
        source = self.execution.kernel.source_of(ins)
        return f"PTX line {ins.line}: {ins.text}" + (f" ({source})" if source else "")

    def _second(self, ins: Instruction) -> str:
        source = self.execution.kernel.source_of(ins)
        return f"\n  the second, of {source}:" if source else "\n  the second:"
