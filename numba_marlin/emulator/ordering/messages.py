"""How knowledge travels: what releases leave at a place in memory, and who takes it from there.

A release (``.release``, ``.acq_rel``, or a fence followed by a strong write) leaves what its thread
knows, for a scope; read-modify-writes add to it, plain writes replace it. An acquire (or a strong
read followed by a fence) takes what the scopes of both ends let it see. mbarriers are such places
too: a phase collects what its arrivals release, and a thread that sees the phase complete takes all
phases so far. https://docs.nvidia.com/cuda/parallel-thread-execution/#release-acquire-patterns and
#scope-and-applicability
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from numba_marlin.emulator.ordering.clocks import Clocks
from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.text.program import Instruction

CTA, CLUSTER, GPU = 1, 2, 3
SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "gl": GPU, "sys": GPU}
Left = dict  # (scope, block number) -> vector clock


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


def leave(left: Left, key: tuple, news: np.ndarray) -> None:
    held = left.get(key)
    if held is None:
        left[key] = news
        return
    if len(held) < len(news):
        held = np.pad(held, (0, len(news) - len(held)))
    left[key] = held.copy()
    left[key][: len(news)] = np.maximum(held[: len(news)], news)


class Messages:
    """``cluster_of(block number)``. ``unheard``: thread -> what it has read without acquiring it,
    for a fence to come."""

    def __init__(self, clocks: Clocks, cluster_of: Callable[[int], int]) -> None:
        self.clocks, self.cluster_of = clocks, cluster_of
        self.places: dict[tuple, Left] = {}
        self.unheard: dict[int, Left] = {}
        self.fenced: dict[int, tuple[int, np.ndarray, int]] = {}

    def spans(self, scope: int, block: int, other: int) -> bool:
        return (
            scope == GPU
            or block == other
            or scope == CLUSTER
            and self.cluster_of(block) == self.cluster_of(other)
        )

    def block_of(self, lanes: Lanes) -> int:
        """Of lanes of one block."""
        return int(self.clocks.thread_of[lanes.sel].flat[0]) // self.clocks.per_block

    def send(self, left: Left, lanes: Lanes, order: Order) -> None:
        """A write by ``lanes`` (of one block) that reads may synchronise with."""
        block = self.block_of(lanes)
        if order.releases:
            leave(left, (order.scope, block), self.clocks.release(lanes))
        elif self.fenced:
            for thread in self.clocks.thread_of[lanes.sel].reshape(-1).tolist():
                if thread in self.fenced:
                    scope, news, clock = self.fenced[thread]
                    news = news.copy()
                    news[thread] = clock
                    leave(left, (scope, block), news)

    def receive(self, left: Left, lanes: Lanes, order: Order) -> None:
        """A read by ``lanes`` (of one block) of what was left."""
        block = self.block_of(lanes)
        for key, news in left.items():
            scope, sender = key
            if (
                order.acquires
                and self.spans(scope, sender, block)
                and self.spans(order.scope, block, sender)
            ):
                self.clocks.acquire(lanes, news)
            else:
                for thread in self.clocks.thread_of[lanes.sel].reshape(-1).tolist():
                    leave(self.unheard.setdefault(thread, {}), key, news)

    def fence(self, lanes: Lanes, scope: int) -> None:
        """fence.acq_rel, fence.sc, membar: what was read is acquired, what will be written strongly
        is released."""
        if self.unheard:
            threads = self.clocks.thread_of[lanes.sel]
            for thread in set(threads.reshape(-1).tolist()) & set(self.unheard):
                block, lane = thread // self.clocks.per_block, lanes.narrow(threads == thread)
                for key in list(self.unheard[thread]):
                    if self.spans(key[0], key[1], block) and self.spans(scope, block, key[1]):
                        self.clocks.acquire(lane, self.unheard[thread].pop(key))
        for thread, (news, clock) in self.clocks.snapshots(lanes).items():
            self.fenced[thread] = scope, news, clock

    def at(self, key: tuple, lanes: Lanes, order: Order, reads: bool, writes: bool) -> None:
        """A strong access by ``lanes`` of one block to one place."""
        if reads and key in self.places:
            self.receive(self.places[key], lanes, order)
        if writes:
            left = self.places.setdefault(key, {})
            if not reads:
                left.clear()
            self.send(left, lanes, order)

    def forget(self, threads: range) -> None:
        """These threads have ended."""
        for held in (self.unheard, self.fenced):
            for thread in [thread for thread in held if thread in threads]:
                del held[thread]
