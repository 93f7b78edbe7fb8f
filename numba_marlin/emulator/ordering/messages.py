"""How knowledge travels: what releases leave at a place in memory, and who takes it from there.

A release (``.release``, ``.acq_rel``, or a fence followed by a strong write) leaves what its thread
knows, for a scope; read-modify-writes add to it, plain writes replace it. An acquire (or a strong
read followed by a fence) takes what the scopes of both ends let it see. mbarriers are such places
too: a phase collects what its arrivals release, and a thread that sees the phase complete takes all
phases so far. https://docs.nvidia.com/cuda/parallel-thread-execution/#release-acquire-patterns and
#scope-and-applicability
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from numba_marlin.emulator.ordering.clocks import Clocks
from numba_marlin.emulator.ordering.news import NOTHING, News, Unions
from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.text.program import Instruction

CTA, CLUSTER, GPU = 1, 2, 3
EVERYONE = -1  # in place of a sender: all who have released for the GPU
SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "gl": GPU, "sys": GPU}
# items of a log for all, and of one for a sender; unions that a log keeps
LONGEST_LOG, LONGEST_OF_SENDER, MOST_MADE = 1 << 12, 1 << 4, 8
Key = tuple[int, int]  # scope, number of the sender's block
Tell = Callable[[], News]


class Order(NamedTuple):
    """What the qualifiers of an instruction say: ``strong``: it does not race with others that are;
    ``scope`` of CTA, CLUSTER, GPU."""

    strong: bool
    scope: int
    acquires: bool
    releases: bool


def order_of(ins: Instruction) -> Order:
    words = set(ins.modifiers)
    scope = next((SCOPES[word] for word in ins.modifiers if word in SCOPES), None)
    if ins.root.startswith(("mbarrier", "cp.async.mbarrier")):
        waits = "wait" in ins.root
        return Order(
            True,
            scope or CTA,
            waits and "relaxed" not in words,
            not waits and "relaxed" not in words and "expect_tx" != ins.root.split(".")[-1],
        )
    atomic = ins.root in ("atom", "red")
    strong = atomic or bool(
        words & {"relaxed", "acquire", "release", "acq_rel", "volatile", "mmio"}
    )
    return Order(
        strong,
        scope or GPU,
        bool(words & {"acquire", "acq_rel"}),
        bool(words & {"release", "acq_rel"}),
    )


def told(news: News) -> News:
    return news


class Log:
    """What was left at a place, one after the other, behind ``base``: put together when somebody
    asks for it."""

    def __init__(self, unions: Unions, longest: int, base: News = NOTHING) -> None:
        self.unions, self.longest, self.base = unions, longest, base
        self.items: list[News] = []
        # how many -> these together, of the latest asked for: threads that have read the place
        # before and after an item was left ask in turn
        self.made: dict[int, News] = {}

    def add(self, news: News) -> Log:
        """The log that goes on, itself unless it is full."""
        log = self
        if len(self.items) == self.longest:
            log = Log(self.unions, self.longest, self.until(self.longest))
        log.items.append(news)
        return log

    def so_far(self) -> Tell:
        if len(self.items) == 1 and self.base is NOTHING:
            return partial(told, self.items[0])
        return partial(self.until, len(self.items))

    def until(self, count: int) -> News:
        """The first ``count`` of them together."""
        done = max((each for each in self.made if each <= count), default=0)
        news = self.made.pop(count, None)
        if news is None:
            news = self.unions.all(self.made.get(done, self.base), self.items[done:count])
        self.made[count] = news
        if len(self.made) > MOST_MADE:
            del self.made[next(iter(self.made))]
        return news


class Left:
    """What releases have left at a place: ``of`` each sender, and in ``log`` what was left for the
    whole GPU: at a barrier of the grid all blocks take what all have left."""

    def __init__(self, unions: Unions) -> None:
        self.unions = unions
        self.clear()

    def clear(self) -> None:
        self.of: dict[Key, Log] = {}
        self.since = object()  # what is left since then only grows
        self.log, self.narrow = Log(self.unions, LONGEST_LOG), False

    def add(self, key: Key, news: News) -> None:
        log = self.of.get(key) or Log(self.unions, LONGEST_OF_SENDER)
        self.of[key] = log.add(news)
        if key[0] == GPU:
            self.log = self.log.add(news)
        else:
            self.narrow = True

    def heard(self, blocks: Iterable[int]) -> Iterator[tuple[Key, Tell]]:
        """What there is for a reader to hear; ``blocks``: those of its cluster, to whom releases
        for the GPU speak in a narrower scope too."""
        if self.log.items:
            yield (GPU, EVERYONE), self.log.so_far()
        for key in self.of if self.narrow else ((GPU, block) for block in blocks):
            if key in self.of and (key[0] != GPU or key[1] in blocks):
                yield key, self.of[key].so_far()

    def tells(self, clocks: Clocks, who: int, clock: int) -> bool:
        return any(clocks.clock_in(log.so_far()(), who) >= clock for log in self.of.values())


class Messages:
    """``clusters``: the blocks of each. ``unheard``: thread -> what it has read without acquiring
    it, for a fence to come, and ``Left.since`` then; ``fenced``: thread -> scope of its last fence,
    and what it knew and its clock then; ``has_fenced`` [threads] says who is there."""

    def __init__(self, clocks: Clocks, clusters: list[list[int]]) -> None:
        self.clocks = clocks
        self.members = {number: group for group in clusters for number in group}
        self.places: dict[tuple, Left] = {}
        self.unheard: dict[int, dict[Key, tuple[Tell, object]]] = {}
        self.fenced: dict[int, tuple[int, News, int]] = {}
        self.has_fenced = np.zeros(clocks.threads, bool)

    def left(self) -> Left:
        return Left(self.clocks.unions)

    def cluster_of(self, block: int) -> int:
        return self.members[block][0]

    def spans(self, scope: int, block: int, other: int) -> bool:
        return (
            scope == GPU
            or block == other
            or scope == CLUSTER
            and EVERYONE not in (block, other)
            and self.cluster_of(block) == self.cluster_of(other)
        )

    def block_of(self, lanes: Lanes) -> int:
        """Of lanes of one block."""
        return int(self.clocks.thread_of[lanes.sel].flat[0]) // self.clocks.per_block

    def send(self, left: Left, lanes: Lanes, order: Order) -> None:
        """A write by ``lanes`` (of one block) that reads may synchronise with."""
        block = self.block_of(lanes)
        if order.releases:
            left.add((order.scope, block), self.clocks.release(lanes))
        elif self.fenced:
            for thread in self.clocks.thread_of[lanes.sel].reshape(-1).tolist():
                self._send_fenced(left, thread, block)

    def _send_fenced(self, left: Left, thread: int, block: int) -> None:
        news = self.released(thread)
        if news is not None:
            left.add((self.fenced[thread][0], block), news)

    def released(self, thread: int) -> News | None:
        """What the thread's last fence released; None if there was none."""
        if thread not in self.fenced:
            return None
        _, news, clock = self.fenced[thread]
        page = news.page.copy()
        page[thread % self.clocks.per_block] = clock
        return news._replace(page=page)

    def receive(self, left: Left, lanes: Lanes, order: Order) -> None:
        """A read by ``lanes`` of what was left."""
        everyone = bool(left.log.items) and order.acquires and order.scope == GPU
        if everyone:
            self.clocks.acquire(lanes, left.log.until(len(left.log.items)))
            if not left.narrow:
                return
        threads = self.clocks.thread_of[lanes.sel]
        blocks = threads // self.clocks.per_block
        for block in sorted(set(blocks.reshape(-1).tolist())):
            mine = blocks == block
            part = lanes if mine.all() else lanes.narrow(mine)
            for key, tell in left.heard(self.members[block]):
                scope, sender = key
                if everyone and scope == GPU:
                    continue
                if (
                    order.acquires
                    and self.spans(scope, sender, block)
                    and self.spans(order.scope, block, sender)
                ):
                    self.clocks.acquire(part, tell())
                else:
                    self._hear(left, threads[mine].tolist(), key, tell)

    def _hear(self, left: Left, threads: Iterable[int], key: Key, tell: Tell) -> None:
        """They have read what ``tell`` says, for a fence to come."""
        both: dict[Tell, Tell] = {}  # by what was heard before: lanes share that
        for thread in threads:
            heard = self.unheard.setdefault(thread, {})
            held, since = heard.get(key, (tell, left.since))
            if since is left.since:
                heard[key] = tell, since
                continue
            if held not in both:
                both[held] = partial(told, self.clocks.unions.both(held(), tell()))
            heard[key] = both[held], left.since

    def in_turn(self, keys: Iterable[tuple], lanes: Lanes, order: Order) -> None:
        """Atomics that do not acquire, one lane after the other, each at its one of ``keys``."""
        threads = self.clocks.thread_of[lanes.sel].reshape(-1).tolist()
        news = self.clocks.releases(lanes) if order.releases else []
        for index, (key, thread) in enumerate(zip(keys, threads)):
            block, left = thread // self.clocks.per_block, self.places.get(key)
            if left is None:
                left = self.places[key] = self.left()
            else:
                for each, tell in left.heard(self.members[block]):
                    self._hear(left, (thread,), each, tell)
            if order.releases:
                left.add((order.scope, block), news[index])
            else:
                self._send_fenced(left, thread, block)

    def fence(self, lanes: Lanes, scope: int) -> None:
        """fence.acq_rel, fence.sc, membar: what was read is acquired, what will be written strongly
        is released."""
        if self.unheard:
            threads = self.clocks.thread_of[lanes.sel]
            # lanes that heard one thing together learn it together, and go on sharing a row
            learned: dict[tuple[int, Key, Tell], list[int]] = {}
            for thread in set(threads.reshape(-1).tolist()) & set(self.unheard):
                block = thread // self.clocks.per_block
                for key in list(self.unheard[thread]):
                    if self.spans(key[0], key[1], block) and self.spans(scope, block, key[1]):
                        tell, _ = self.unheard[thread].pop(key)
                        learned.setdefault((block, key, tell), []).append(thread)
            for (_, _, tell), together in learned.items():
                self.clocks.acquire(lanes.narrow(np.isin(threads, together)), tell())
        for thread, (news, clock) in self.clocks.snapshots(lanes).items():
            self.fenced[thread] = scope, news, clock
        self.has_fenced[self.clocks.thread_of[lanes.sel]] = True

    def at(self, key: tuple, lanes: Lanes, order: Order, reads: bool, writes: bool) -> None:
        """A strong access by ``lanes`` to one place; by those of one block if it ``writes``."""
        if reads and key in self.places:
            self.receive(self.places[key], lanes, order)
        if writes:
            left = self.places.get(key)
            if left is None:
                left = self.places[key] = self.left()
            if not reads:
                left.clear()
            self.send(left, lanes, order)

    def forget(self, threads: range) -> None:
        """These threads have ended."""
        for held in (self.unheard, self.fenced):
            if held:
                for thread in threads:
                    held.pop(thread, None)
