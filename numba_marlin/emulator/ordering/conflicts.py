"""Conflicts: which earlier accesses each one must come after, and whether it does.

``Conflicts`` sees every access of a run (``memory.Access``), looks up in ``shadow`` who was there
before, and asks ``clocks`` whether the accessing thread knows of it. What threads learn, and when,
is added in ``races``, which also says what is looked at and what is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.errors import Race
from numba_marlin.emulator.ordering import shadow as marks
from numba_marlin.emulator.ordering.clocks import Clocks
from numba_marlin.emulator.ordering.messages import Messages, Order, order_of
from numba_marlin.emulator.ordering.race_report import Reporter
from numba_marlin.emulator.ordering.shadow import LargeShadow, Shadow
from numba_marlin.emulator.state.access import Access
from numba_marlin.emulator.state.lanes import WARP, Lanes
from numba_marlin.emulator.text.program import TYPE_BITS, Immediate, Instruction, Vector

if TYPE_CHECKING:
    from numba_marlin.emulator.scheduling.execution import Execution
    from numba_marlin.emulator.state.global_memory import Buffer

GLOBAL_READERS = 16
WRITES = {"store", "stmatrix", "copy-issue", "copy-land", "atomic"}
ELSEWHERE = {"wgmma", "bulk-issue", "bulk-land"}  # announced by their own methods
MBARRIER_WRITES = ("mbarrier.init", "mbarrier.inval")
CHUNK = 16  # bytes that asynchronous operations come in
BEFORE = 1  # the clock of the kernel before


class Conflicts:
    """``shared``: shadow of all resident blocks' memory; ``buffers``: of global ones, by address;
    ``number``: of the block in each slot; ``before``: column of the kernel before this one on the
    stream."""

    def __init__(self, execution: Execution, blocks: int) -> None:
        kernel, placement = execution.kernel, execution.placement
        self.memory, self.placement = execution.memory, placement
        self.checks = execution.checks
        self.apart = False  # whether lanes of a warp may take turns within an instruction
        self.clocks, self.blocks = Clocks(placement, blocks), blocks
        self.messages = Messages(self.clocks, execution.cluster.groups())
        self.remote = any(
            "shared::cluster" in ins.modifiers or ins.root == "mapa" for ins in kernel.instructions
        )
        own = self.memory.shared
        readers = placement.warps_per_block * (execution.cluster.size if self.remote else 1)
        self.shared = Shadow(own.data, smallest(kernel.instructions, "shared"), readers)
        self.unit = smallest(kernel.instructions, "global")
        self.buffers: dict[int, Shadow] = {}
        self.orders = [order_of(ins) for ins in kernel.instructions]
        self.number = [0] * placement.slots
        self.before = self.clocks.before
        self.report = Reporter(execution, self)

    def watch(self, access: Access) -> None:
        kind, space, ins, lanes, address, nbytes, values = access
        if kind in ELSEWHERE or space == "local":
            return
        if kind == "atomic":
            if values is None:
                return  # its store follows
            values = None  # equal ones make no race of atomics benign
        writing = kind in WRITES or kind == "mbarrier" and ins.root in MBARRIER_WRITES
        order = self.orders[ins.pc]
        if kind == "mbarrier":
            way = marks.WEAK if writing else marks.OBJECT
        elif kind.startswith("copy"):
            way = marks.COPY
        else:
            way = order.scope if order.strong else marks.WEAK
        for shadow, part, offsets, mine in self._places(ins, lanes, space, address, nbytes):
            units = shadow.units(offsets, nbytes)
            given = None
            if values is not None and nbytes % shadow.unit == 0:
                given = (values if mine is None else values[mine]).view(np.uint8)
                given = given.reshape(*units.shape, shadow.unit)
            if kind != "copy-land":
                self._check(ins, part, shadow, units, writing, way, given)
            if kind == "copy-issue":
                continue
            threads, present = self.clocks.present(part)
            records = (present | (way << marks.WAY_SHIFT | ins.pc))[..., None]
            if units.shape[-1] > 1:
                records = np.broadcast_to(records, units.shape)
            if writing:
                shadow.wrote(units, records, way in marks.SCOPES)
                if way in (marks.WEAK, marks.COPY):
                    self._collisions(ins, part, shadow, units, records, given)
                elif way in (marks.STRONG_CTA, marks.STRONG_CLUSTER):
                    self._beyond_scope(ins, part, shadow, units, records, way)
            else:
                warps = (threads >> WARP.bit_length() - 1)[..., None]
                shadow.read(units, warps, records, way in marks.SCOPES)
            if way in marks.SCOPES:
                self._synchronise(part, shadow, units, order, kind)
            elif writing and shadow.objects[units].any():
                for unit in units[shadow.objects[units]].tolist():
                    self.messages.places.pop((id(shadow), unit), None)

    def _places(self, ins: Instruction, lanes: Lanes, space: str, address: np.ndarray, nbytes: int):
        """(shadow, lanes, offsets in it, which of the lanes: None for all) of addresses; what lies
        outside of all memory is left to others to complain about."""
        if space != "global":
            own = self.memory.shared
            origin, within = (
                self.memory.peers(ins, lanes, address)
                if space == "shared::cluster"
                else (own.origin[lanes.sel], address)
            )
            offset = within - own.base
            if offset.size and offset.min() >= 0 and offset.max() + nbytes <= own.size:
                yield self.shared, lanes, origin + offset, None
            return
        for buffer, mine in self.memory.globals.parts(address, nbytes):
            shadow = self.of_buffer(buffer)
            if shadow is not None:
                if mine.all():
                    yield shadow, lanes, address - buffer.address, None
                    continue
                part = lanes.narrow(mine)
                yield shadow, part, (address[mine] - buffer.address).reshape(part.shape), mine

    def _check(
        self,
        ins: Instruction,
        lanes: Lanes,
        shadow: Shadow,
        units: np.ndarray,
        writing: bool,
        way: int,
        values: np.ndarray | Callable[[], np.ndarray] | None = None,
    ) -> None:
        """Race unless all that was there before is known to the accessing lanes. ``units``
        [*lanes.shape, count]; ``values``: the bytes that come to lie there, [*units.shape, unit],
        or a function that says of which units what lies there stays the same."""
        before = shadow.before(units, writing)
        if before.size:
            self._compare(ins, lanes, shadow, units, before, writing, way, values)
        if shadow.covered is not None:
            before = shadow.covered[units][..., None]
            if before.any():
                self._compare(ins, lanes, shadow, units, before, writing, way)

    def _compare(
        self, ins, lanes, shadow, units, before, writing: bool, way: int, values=None
    ) -> None:
        """``_check`` against the records ``before`` [*units.shape, records]."""
        who, rows = marks.who_of(before), self.clocks.row_of[lanes.sel][..., None, None]
        threads = self.clocks.thread_of[lanes.sel][..., None, None]
        counts = marks.clock_of(before)
        if shadow is self.shared and not self.remote:  # whose records are of its block
            late = self.clocks.behind_in_block(rows, who, counts)
        else:
            late = self.clocks.behind(rows, threads, who, counts)
        if late.any():
            late &= who != threads
        if late.any():
            strong = self._strong(before, threads, way)
            if "volatile" in ins.modifiers and self.checks.on("volatile-warp-sync"):
                self._exchanged(ins, lanes, shadow, units, before, late & strong, writing, way)
            late &= ~strong
            if self.apart and writing:
                late[..., 0] &= ~self._at_once(ins, before[..., 0], threads[..., 0])
            if late.any():
                benign = False
                if values is not None:  # writes of what was written already
                    harmful = late.copy()
                    harmful[..., 0] &= ~self._same(who[..., 0], shadow, units, values)
                    benign = not harmful.any()
                    late = late if benign else harmful
                race = self.report.race(ins, lanes, shadow, units, before, late, writing, way)
                self._raise(race, benign)

    def _same(self, who: np.ndarray, shadow: Shadow, units: np.ndarray, values) -> np.ndarray:
        """Of which ``units``, last written by ``who``, the value stays (``_check``)."""
        if callable(values):
            return (who != self.before) & values()
        # what a bulk copy writes, or the kernel before, may not lie there yet
        return (who < self.clocks.threads) & shadow.holds(units, values)

    @staticmethod
    def _at_once(ins: Instruction, before: np.ndarray, threads: np.ndarray) -> np.ndarray:
        """Which of the writes ``before`` lanes of the same warp did by the same instruction."""
        return (marks.who_of(before) // WARP == threads // WARP) & (
            before & (1 << marks.PC_BITS) - 1 == ins.pc
        )

    def _exchanged(self, ins, lanes, shadow, units, before, late, writing: bool, way: int) -> None:
        """A warning if a lane of the same warp was there by a volatile access too."""
        threads = self.clocks.thread_of[lanes.sel][..., None, None]
        late = late & (marks.who_of(before) // WARP == threads // WARP)
        for index in np.argwhere(late)[:1]:
            earlier = self.report.instructions[marks.pc_of(int(before[tuple(index)]))]
            if "volatile" in earlier.modifiers:
                race = self.report.race(ins, lanes, shadow, units, before, late, writing, way)
                self.checks.report("volatile-warp-sync", race)

    def _overwritten(self, ins, lanes, shadow, units, records, last, values) -> None:
        """A warning if another lane of the same warp wrote another value in this very step."""
        late = marks.who_of(shadow.writes[units]) != marks.who_of(records)
        late &= (last != values).any(-1)
        if late.any():
            race = self.report.race(
                ins,
                lanes,
                shadow,
                units,
                shadow.writes[units][..., None],
                late[..., None],
                True,
                marks.way_of(int(records.flat[0])),
            )
            self.checks.report("lanes-overwrite", race)

    def _raise(self, race: Race, benign: bool) -> None:
        if not benign:
            raise race
        race.advise("benign: both write the same value")
        self.checks.report("benign-race", race)

    def _strong(self, before: np.ndarray, threads: np.ndarray, way: int) -> np.ndarray:
        """Which of the records ``before`` do not conflict with an access of ``way``, for they are
        both strong and see each other."""
        ways = marks.way_of(before)
        if way == marks.OBJECT:
            return ways == marks.OBJECT
        if way not in marks.SCOPES:
            return np.zeros(before.shape, bool)
        blocks, mine = np.broadcast_arrays(
            self.clocks.block_of(marks.who_of(before)), self.clocks.block_of(threads)
        )
        both = np.minimum(ways, way)
        strong = marks.IS_STRONG[ways]
        found = strong & ((both == marks.STRONG_GPU) | (blocks == mine))
        for index in np.argwhere(~found & (both == marks.STRONG_CLUSTER) & strong):
            at = tuple(index)
            found[at] = self.messages.cluster_of(int(blocks[at])) == self.messages.cluster_of(
                int(mine[at])
            )
        return found

    def _collisions(
        self,
        ins: Instruction,
        lanes: Lanes,
        shadow: Shadow,
        units: np.ndarray,
        records: np.ndarray,
        values: np.ndarray | None,
    ) -> None:
        """Race if another warp wrote the same units in this very step."""
        after, last = shadow.writes[units], None
        late = marks.who_of(after) // WARP != marks.who_of(records) // WARP
        if values is not None and (late.any() or self.checks.on("lanes-overwrite")):
            places, at = np.unique(units, return_inverse=True)
            kept = np.empty((len(places), shadow.unit), np.uint8)
            kept[at.reshape(-1)] = values.reshape(-1, shadow.unit)
            last = kept[at.reshape(-1)].reshape(values.shape)
            if self.checks.on("lanes-overwrite"):
                self._overwritten(ins, lanes, shadow, units, records, last, values)
        if late.any():
            benign = False
            if last is not None:
                harmful = late & (last != values).any(-1)
                benign = not harmful.any()
                late = late if benign else harmful
            race = self.report.race(
                ins,
                lanes,
                shadow,
                units,
                after[..., None],
                late[..., None],
                True,
                marks.way_of(int(records.flat[0])),
            )
            self._raise(race, benign)

    def _beyond_scope(self, ins, lanes: Lanes, shadow: Shadow, units, records, way: int) -> None:
        """Race if a block that the scope does not include wrote the same units in this very
        step."""
        after = shadow.writes[units]
        late = ~self._strong(after, marks.who_of(records), way)
        if late.any():
            raise self.report.race(
                ins, lanes, shadow, units, after[..., None], late[..., None], True, way
            )

    def _synchronise(
        self, lanes: Lanes, shadow: Shadow, units: np.ndarray, order: Order, kind: str
    ) -> None:
        """What strong accesses hear and leave: atomics one lane after the other, stores together
        where they are of one block and place, loads where they are of one place."""
        first, threads, messages = units[..., 0], self.clocks.thread_of[lanes.sel], self.messages
        if kind == "load" or not order.releases:
            heard = shadow.objects[first]  # elsewhere there is nothing to hear,
            if kind != "load":
                heard = heard | messages.has_fenced[threads]  # and these leave nothing
            if not heard.any():
                return
            if not heard.all():
                lanes, first, threads = lanes.narrow(heard), first[heard], threads[heard]
                first, threads = first.reshape(lanes.shape), threads.reshape(lanes.shape)
        if kind != "load":
            shadow.objects[first], shadow.touched = True, True
        reads, writes = kind != "store", kind != "load"
        if kind == "atomic":
            places = [(id(shadow), unit) for unit in first.reshape(-1).tolist()]
            if not order.acquires:
                messages.in_turn(places, lanes, order)
                return
            for index, place in zip(np.ndindex(*lanes.shape), places):
                messages.at(place, lanes.one(index), order, reads, writes)
            return
        keys = first * self.blocks
        if writes:  # each takes the place of those before
            keys = keys + threads // self.clocks.per_block
        for key in np.unique(keys).tolist():
            mine = keys == key
            part = lanes if mine.all() else lanes.narrow(mine)
            messages.at((id(shadow), key // self.blocks), part, order, reads, writes)

    def of_buffer(self, buffer: Buffer) -> Shadow | None:
        """None if nothing can happen to it."""
        if buffer.readonly and not buffer.earlier:
            return None
        shadow = self.buffers.get(buffer.address)
        if shadow is None:
            shadow = LargeShadow(buffer.data, self.unit, GLOBAL_READERS)
            self.buffers[buffer.address] = shadow
            if buffer.earlier:
                shadow.writes[:] = marks.record(self.before, BEFORE, marks.BULK, 0)
        return shadow


ACCESSES = ("ld", "ldu", "st", "atom", "red", "st.async", "red.async")


def smallest(instructions: list[Instruction], space: str) -> int:
    """Bytes of the smallest access to ``space``: the unit in which accesses are told apart."""
    found = CHUNK
    for ins in instructions:
        words, sizes = set(ins.modifiers), []
        other = {"shared": "global", "global": "shared"}[space]
        if ins.root in ACCESSES and not words & {
            "param",
            "local",
            "const",
            other,
            f"{other}::cta",
            f"{other}::cluster",
        }:
            count = next(
                (len(operand.items) for operand in ins.operands if isinstance(operand, Vector)), 1
            )
            sizes = [TYPE_BITS[kind] // 8 * count for kind in ins.types[-1:]]
        elif ins.root == "cp.async":
            sizes = [int(each.value) for each in ins.operands[2:3] if isinstance(each, Immediate)]
        elif ins.root.startswith("mbarrier") and space == "shared":
            sizes = [8]
        elif ins.root == "tcgen05.alloc" and space == "shared":
            sizes = [4]
        # an instruction without a size, or with none that can be, is its handler's to refuse
        found = min([found, *(size for size in sizes if size > 0)])
    return found
