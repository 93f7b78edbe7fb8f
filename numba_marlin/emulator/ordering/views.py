"""What a weak memory keeps: for each location the writes to it in their coherence order, and how
much of them each thread must have seen.

A location has a ``History`` of messages (``Message``). A thread's view says of each location the
earliest message that it may still read, and the last one behind which it must write: its own
writes, what it has read by morally strong accesses, and what it has acquired. A release offers the
view; who observes the message and acquires takes it. https://docs.nvidia.com/cuda/parallel-thread-execution/
#causality-order, #release-acquire-patterns, #moral-strength
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from numba_marlin.emulator.ordering.messages import CLUSTER, GPU

KEPT = 6  # messages of a location; who has read none of them reads the oldest that is left
ANYWHERE = -1  # in place of a slot: before all threads
Key = tuple[str, int, int]  # of which memory, where, how many bytes


class Offer(NamedTuple):
    """A release of ``scope`` by a thread of the block in ``slot``: what it had seen."""

    scope: int
    slot: int
    view: View


@dataclass(eq=False)
class Message:
    """``time``: its place in the coherence order; ``strong``: the scope of its write, 0 if that was
    weak; ``glued``: an atomic wrote it on reading the one before, so nothing comes between."""

    time: float
    value: bytes
    slot: int
    strong: int
    offers: tuple[Offer, ...] = ()
    glued: bool = False


@dataclass(eq=False)
class History:
    messages: list[Message] = field(default_factory=list)

    @property
    def last(self) -> Message:
        return self.messages[-1]

    def since(self, time: float) -> list[Message]:
        """The messages that a thread may read which has seen the one of ``time``."""
        return self.messages[bisect_left(self.messages, time, key=lambda each: each.time) :]

    def gaps(self, time: float) -> list[float]:
        """Where a message may be put that must come after ``time``; the end is the last of them."""
        times = [each.time for each in self.messages]
        found = [
            (before + after.time) / 2
            for before, after in zip(times, self.messages[1:])
            if before >= time and not after.glued and before < (before + after.time) / 2
        ]
        return [*found, (times[-1] if times else 0.0) + 1]

    def add(self, message: Message) -> None:
        at = bisect_left(self.messages, message.time, key=lambda each: each.time)
        self.messages.insert(at, message)
        del self.messages[:-KEPT]


View = dict[History, float]


def join(view: View, other: View) -> None:
    """``view`` learns what ``other`` says."""
    for history, time in other.items():
        if view.get(history, -1.0) < time:
            view[history] = time


def merged(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """One offer of each scope and block."""
    found: dict[tuple[int, int], Offer] = {}
    for offer in offers:
        key = offer.scope, offer.slot
        if key in found and found[key].view is not offer.view:
            view = dict(found[key].view)
            join(view, offer.view)
            offer = offer._replace(view=view)
        found[key] = offer
    return tuple(found.values())


class Scopes:
    """Blocks by their slots, clusters of ``size`` of them. A block that comes to a slot has that
    slot's number plus a multiple of all slots', so that none has another's."""

    def __init__(self, size: int) -> None:
        self.size = size

    def mutual(self, scope: int, slot: int, other: int, of: int) -> bool:
        """Whether accesses of ``scope`` from ``slot`` and of ``other`` from ``of`` include each
        other."""
        if ANYWHERE in (slot, of) or slot == of:
            return True
        least = min(scope, other)
        return least == GPU or least == CLUSTER and slot // self.size == of // self.size


@dataclass(eq=False)
class PutOff(History):
    """A thread's loads that are not settled behind accesses that order, in views like a location:
    the loads up to the view's number were before. Who learns of one settles it, and has seen what
    they ``found``; ``made``: how many there were, ``learned``: up to which one others know."""

    made: int = 0
    learned: float = 0
    found: View = field(default_factory=dict)


class Reading(NamedTuple):
    """Of a load that is put off, the ``number``th of its thread (0: behind nothing that orders):
    where it reads, and what it has read so far (None: what was there before all stores)."""

    number: int
    key: Key | None = None
    history: History | None = None
    message: Message | None = None


@dataclass(eq=False)
class Thread:
    """``fenced``: scope -> view at the last fence; ``released``: what releases to a location
    offered, which later strong writes there offer too; ``heard``: offers that were observed and not
    acquired yet; ``readings``: pc -> the load there that is put off."""

    slot: int
    view: View = field(default_factory=dict)
    fenced: dict[int, View] = field(default_factory=dict)
    released: dict[History, tuple[Offer, ...]] = field(default_factory=dict)
    heard: dict[History, tuple[Offer, ...]] = field(default_factory=dict)
    put_off: PutOff = field(default_factory=PutOff)
    readings: dict[int, Reading] = field(default_factory=dict)

    def learn(self, view: View) -> None:
        """All that another thread has seen: its loads have happened before what follows here."""
        for history, time in view.items():
            if self.view.get(history, -1.0) < time:
                self.view[history] = time
                if isinstance(history, PutOff):
                    history.learned = max(history.learned, time)
                    join(self.view, history.found)

    def hear(self, history: History, offers: Iterable[Offer]) -> None:
        self.heard[history] = merged((*self.heard.get(history, ()), *offers))

    def acquire(self, history: History, scope: int, scopes: Scopes) -> None:
        """Take of what was heard at the location what ``scope`` lets it."""
        left = []
        for offer in self.heard.pop(history, ()):
            if scopes.mutual(offer.scope, offer.slot, scope, self.slot):
                self.learn(offer.view)
            else:
                left.append(offer)
        if left:
            self.heard[history] = tuple(left)
