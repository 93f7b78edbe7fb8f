"""A memory that is as weak as the PTX memory model lets it be, for a run with
``Schedule(memory="weak")``.

``WeakMemory`` takes the place of the ``load`` and ``store`` of a run's Memory. Of each location of
global and shared memory that is stored to it keeps several messages (``views``). A load may give an
older one than the last, a store may come before others in the coherence order, both as far as what
the thread has seen allows; which, is drawn. Memory itself holds the last message always.

- Weak accesses see and order nothing by themselves but their own thread's writes.
- Strong ones (.relaxed, .volatile, atomics) whose scopes include each other are coherent.
- .release and .acquire, and fences with strong accesses, hand over what was seen, as far as their
  scopes go; fence.sc (and membar) of scopes that include each other are in one order besides.
- Atomics read the last message, and write behind it.
- Barriers, mbarriers and waits for asynchronous operations hand over all that the threads of the
  cluster have seen: more than the model asks for, never less.
- Accesses of several sizes to one place, and what others than loads, stores and atomics write,
  begin the location's history anew: from there on all threads have seen it.

When a load that is put off is done ``again``, is the business of ``scheduling.late_loads``.
D. Lustig, S. Sahasrabuddhe, O. Giroux: A formal analysis of the NVIDIA PTX memory consistency
model, ASPLOS 2019; https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.ordering.messages import GPU, Order, order_of
from numba_marlin.emulator.ordering.views import (
    ANYWHERE,
    History,
    Key,
    Message,
    Offer,
    Reading,
    Scopes,
    Thread,
    View,
    join,
    merged,
)
from numba_marlin.emulator.state.block_memory import VALID
from numba_marlin.emulator.state.lanes import WARP, Lanes

if TYPE_CHECKING:
    from numba_marlin.emulator.scheduling.execution import Execution

LAST_CHANCE = 0.5  # of the last message, beside those that are as likely each
LATE = 0.5  # chance that a load is put off which may be
CELL = 16  # bytes: locations that overlap meet in one of these


class WeakMemory:
    def __init__(self, execution: Execution, chosen: random.Random) -> None:
        self.memory, self.placement, self.random = execution.memory, execution.placement, chosen
        self.cluster, memory, placement = execution.cluster.size, self.memory, self.placement
        self.scopes, instructions = Scopes(self.cluster), execution.kernel.instructions
        self.orders = [order_of(ins) for ins in instructions]
        self.numbers = np.arange(placement.warps * WARP).reshape(-1, WARP)
        self.moved = np.zeros(placement.slots, np.int64)  # blocks that have come to each slot
        self.threads = [self._fresh(number) for number in range(placement.warps * WARP)]
        self.histories: dict[Key, History] = {}
        self.cells: dict[tuple[str, int], set[Key]] = {}
        self.fences: dict[tuple[int, int], View] = {}  # of fence.sc, by scope and slot
        self.given: dict[Thread, Message] = {}  # what a load that is done again gives
        self._load, self._store = memory.load, memory.store
        # for this run: every handler asks the memory itself
        memory.load, memory.store = self.load, self.store  # type: ignore[method-assign]

    def _fresh(self, number: int) -> Thread:
        """Of the block in its slot: another one's than of the block that was there before, whose
        clusters are apart too."""
        slot = number // WARP // self.placement.warps_per_block
        return Thread(slot + self.placement.slots * int(self.moved[slot]))

    def place(self, slots: Iterable[int]) -> None:
        """New blocks move into ``slots``."""
        per_block = self.placement.warps_per_block * WARP
        for slot in slots:
            self.moved[slot] += 1
            for number in range(slot * per_block, (slot + 1) * per_block):
                self.threads[number] = self._fresh(number)

    def of(self, lanes: Lanes) -> list[Thread]:
        return [self.threads[number] for number in self.numbers[lanes.sel].reshape(-1).tolist()]

    def load(self, ins, lanes, space, address, size, count=1, kind="load") -> np.ndarray:
        """As ``Memory.load``."""
        if self.given:
            rows = [np.frombuffer(self.given[each].value, f"u{size}") for each in self.of(lanes)]
            return np.array(rows).reshape(*lanes.shape, count)
        values = self._load(ins, lanes, space, address, size, count, kind)
        if space in ("generic", "local") or kind == "atomic":
            return values  # generic ones come back by window; atomics read when they write
        rows, order = values.reshape(-1, count), self.orders[ins.pc]
        nbytes = size * count
        for i, (thread, key) in enumerate(self._places(ins, lanes, space, address, nbytes)):
            history, message = self._history(key), None
            if history is not None:
                message = self._drawn(history.since(thread.view.get(history, -1.0)))
                self._observe(thread, history, message, order)
                rows[i] = np.frombuffer(message.value, rows.dtype)
            if ins.pc in thread.readings:
                number = thread.readings[ins.pc].number
                thread.readings[ins.pc] = Reading(number, key, history, message)
        return rows.reshape(values.shape)

    def _drawn(self, messages: list[Message]) -> Message:
        message = messages[-1]
        if len(messages) > 1 and self.random.random() >= LAST_CHANCE:
            message = self.random.choice(messages)
            # somebody who asks again may get another answer
            self.memory.progress += message is not messages[-1]
        return message

    def put_off(self, pc: int, lanes: Lanes, behind_orders: bool) -> None:
        """The load at ``pc``, which comes next, may be done ``again`` by some of the ``lanes``."""
        for thread in self.of(lanes):
            thread.readings.pop(pc, None)
            if self.random.random() < LATE:
                thread.put_off.made += behind_orders
                thread.readings[pc] = Reading(thread.put_off.made if behind_orders else 0)
                if behind_orders:
                    thread.view[thread.put_off] = thread.put_off.made

    def again(self, pc: int, lanes: Lanes, passed: Sequence[int], step: Callable) -> None:
        """``step``, the load at ``pc``, for those of ``lanes`` that now draw another message than
        they did where it stands. ``passed``: the scopes of what acquires in between, with which no
        release may synchronise by this message any more."""
        order, given = self.orders[pc], {}
        for thread in self.of(lanes):
            reading = thread.readings.get(pc)
            if reading is None or reading.key is None:
                continue  # not put off, or kept from loading by its guard
            if 0 < reading.number <= thread.put_off.learned:
                continue
            history = self._history(reading.key)
            if history is None or reading.history not in (None, history):
                continue
            may = [
                each
                for each in history.since(thread.view.get(history, -1.0))
                if each is reading.message or not self._synchronises(thread, each, order, passed)
            ]
            message = self._drawn(may) if may else None
            if message is None or message is reading.message:
                continue
            given[thread] = message
            thread.readings[pc] = reading._replace(history=history, message=message)
            if self._observe(thread, history, message, order):
                join(thread.put_off.found, {history: message.time})
        if given:
            self.memory.progress += 1
            self.given = given
            mask = np.array([thread in given for thread in self.of(lanes)])
            step(lanes.narrow(mask.reshape(lanes.shape)))
            self.given = {}

    def settle(self, pc: int, lanes: Lanes) -> None:
        """The load at ``pc`` is done."""
        for thread in self.of(lanes):
            thread.readings.pop(pc, None)

    def _synchronises(self, thread: Thread, message: Message, order: Order, passed) -> bool:
        return self._pairs(thread, message, order) and any(
            self.scopes.mutual(offer.scope, offer.slot, scope, thread.slot)
            for offer in message.offers
            for scope in passed
        )

    def store(self, ins, lanes, space, address, values, kind="store", made=None) -> None:
        """As ``Memory.store``."""
        if space not in ("generic", "local"):
            values = np.ascontiguousarray(values)
            rows, order = values.reshape(-1, values.shape[-1]).copy(), self.orders[ins.pc]
            nbytes = values.itemsize * values.shape[-1]
            swapped = None if made is None else np.broadcast_to(made, lanes.shape).reshape(-1)
            found: list[History | None] = []
            # Lanes, of several blocks even, may come to one place together: memory has the first
            # one's value only when all are done.
            held: dict[Key, History | None] = {}
            for i, (thread, key) in enumerate(self._places(ins, lanes, space, address, nbytes)):
                if key not in held:
                    held[key] = self._history(key, make=True)
                history = held[key]
                found.append(history)
                if history is not None:
                    value = None if swapped is not None and not swapped[i] else rows[i].tobytes()
                    self._write(thread, history, value, order, kind)
            for i, history in enumerate(found):
                if history is not None:
                    rows[i] = np.frombuffer(history.last.value, rows.dtype)
            values = rows.reshape(values.shape)
        self._store(ins, lanes, space, address, values, kind, made)

    def _write(self, thread, history, value: bytes | None, order: Order, kind: str) -> None:
        """``value``: None of a compare-and-swap that fails, which reads only."""
        atomic = kind == "atomic" and bool(history.messages)
        inherited: tuple[Offer, ...] = ()
        if atomic:
            before = history.last
            observed = self._observe(thread, history, before, order)
            inherited, time = before.offers if observed else (), before.time + 1
        else:
            gaps = history.gaps(thread.view.get(history, -1.0))
            time = gaps[-1]
            if len(gaps) > 1 and self.random.random() >= LAST_CHANCE:
                time = self.random.choice(gaps)
        if value is None:
            return
        thread.view[history] = time
        offers: tuple[Offer, ...] = ()
        if order.strong:
            if order.releases:
                offer = Offer(order.scope, thread.slot, dict(thread.view))
                thread.released[history] = merged((*thread.released.get(history, ()), offer))
            fenced = [Offer(scope, thread.slot, view) for scope, view in thread.fenced.items()]
            offers = merged((*inherited, *thread.released.get(history, ()), *fenced))
        strong = order.scope if order.strong else 0
        history.add(Message(time, value, thread.slot, strong, offers, atomic))

    def _observe(self, thread: Thread, history: History, message: Message, order: Order) -> bool:
        """``thread`` reads ``message``; whether the two accesses are morally strong."""
        if not self._pairs(thread, message, order):
            return False
        join(thread.view, {history: message.time})
        if message.offers:
            thread.hear(history, message.offers)
        if order.acquires:
            thread.acquire(history, order.scope, self.scopes)
        return True

    def _pairs(self, thread: Thread, message: Message, order: Order) -> bool:
        """Whether the message's write and a read of ``thread`` are morally strong."""
        return order.strong and (
            message.slot == ANYWHERE
            or message.strong > 0
            and self.scopes.mutual(message.strong, message.slot, order.scope, thread.slot)
        )

    def fence(self, lanes: Lanes, scope: int, consistent: bool) -> None:
        """``consistent``: fence.sc."""
        for thread in self.of(lanes):
            for history in list(thread.heard):
                thread.acquire(history, scope, self.scopes)
            if consistent:
                for (other, slot), view in self.fences.items():
                    if self.scopes.mutual(scope, thread.slot, other, slot):
                        thread.learn(view)
                join(self.fences.setdefault((scope, thread.slot), {}), thread.view)
            thread.fenced[scope] = dict(thread.view)

    def meet(self, lanes: Lanes) -> None:
        """``lanes`` have seen what the threads of their clusters have."""
        per_block, seen = self.placement.warps_per_block * WARP, {}
        for thread in self.of(lanes):
            first = thread.slot % self.placement.slots // self.cluster * self.cluster
            if first not in seen:
                start = first * per_block
                threads = self.threads[start : start + self.cluster * per_block]
                seen[first] = self._together(threads)
            thread.learn(seen[first])

    @staticmethod
    def _together(threads: Iterable[Thread]) -> View:
        view: View = {}
        for thread in threads:
            join(view, thread.view)
        return view

    def _places(self, ins, lanes, space, address, nbytes) -> Iterator[tuple[Thread, Key]]:
        which = "global" if space == "global" else "shared"
        places = self.memory.places(ins, lanes, space, address)
        for thread, place in zip(self.of(lanes), places.reshape(-1).tolist()):
            yield thread, (which, place, nbytes)

    def _history(self, key: Key, make: bool = False) -> History | None:
        """Of the location; None where nothing can be kept, or nothing is yet and ``make`` is
        false."""
        which, place, nbytes = key
        cells = [(which, cell) for cell in range(place // CELL, (place + nbytes - 1) // CELL + 1)]
        others = {
            other
            for cell in cells
            for other in self.cells.get(cell, ())
            if other != key and other[1] < place + nbytes and place < other[1] + other[2]
        }
        history = self.histories.get(key)
        if history is None and not others and not make:
            return None
        there = self._bytes(key)
        if there is None:
            return None
        if others or history is not None and history.messages and history.last.value != there:
            for each in (*others, key):
                self._forget(each)
            history = None
        if history is None:
            history = self.histories[key] = History()
            for cell in cells:
                self.cells.setdefault(cell, set()).add(key)
            if there:
                everything = self._together(self.threads) if others else {}
                offers = (Offer(GPU, ANYWHERE, everything),) if everything else ()
                history.add(Message(0.0, there, ANYWHERE, GPU, offers))
        return history

    def _forget(self, key: Key) -> None:
        which, place, nbytes = key
        self.histories.pop(key, None)
        for cell in range(place // CELL, (place + nbytes - 1) // CELL + 1):
            self.cells.get((which, cell), set()).discard(key)

    def _bytes(self, key: Key) -> bytes | None:
        """What lies there; nothing where nothing was written, None outside of all memory."""
        which, place, nbytes = key
        if which == "global":
            buffer = self.memory.globals.find(place)
            if buffer is None or place + nbytes > buffer.end:
                return None
            start = place - buffer.address
            return buffer.data[start : start + nbytes].tobytes()
        shared = self.memory.shared
        start = place - shared.base
        if not 0 <= start <= shared.data.size - nbytes:
            return None
        if (shared.state[start : start + nbytes] != VALID).any():
            return b""
        return shared.data[start : start + nbytes].tobytes()
