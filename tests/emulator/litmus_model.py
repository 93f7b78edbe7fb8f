"""The memory model of PTX by its axioms: which outcomes a small program may have.

A program is a tuple of threads, a thread a tuple of ``Op``. Every way in which reads may take
their values (``rf``), writes may lie in coherence order (``co``) and fence.sc in theirs (``sc``)
is tried, and kept if no axiom speaks against it. Nothing here knows the machine.
https://docs.nvidia.com/cuda/parallel-thread-execution/#axioms, and Lustig, Sahasrabuddhe, Giroux:
A formal analysis of the NVIDIA PTX memory consistency model, ASPLOS 2019
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product

Relation = frozenset[tuple[int, int]]
WIDTH = {"cta": 1, "gpu": 2, "sys": 3}


@dataclass(frozen=True)
class Op:
    """``kind``: R, W, or F for a fence; ``order``: weak, relaxed, acquire, release, acq_rel, sc;
    ``uses``: which of the thread's reads (by number) the operation depends on."""

    kind: str
    place: str = ""
    value: int = 0
    order: str = "weak"
    scope: str = "gpu"
    uses: tuple[int, ...] = ()


@dataclass(frozen=True)
class Event:
    number: int
    thread: int  # -1: what was there before
    op: Op


def compose(one: Relation, other: Relation) -> Relation:
    return frozenset((a, d) for a, b in one for c, d in other if b == c)


def closed(relation: Relation) -> Relation:
    while True:
        more = relation | compose(relation, relation)
        if more == relation:
            return relation
        relation = more


def acyclic(relation: Relation) -> bool:
    return all(a != b for a, b in closed(relation))


def outcomes(threads: tuple[tuple[Op, ...], ...], together: bool = False) -> set[tuple[int, ...]]:
    """What the reads gave, thread by thread, and then each place in the end, by name. ``together``:
    the threads are of one block."""
    return set(_outcomes(threads, together))


@cache
def _outcomes(threads, together) -> frozenset[tuple[int, ...]]:
    places = sorted({op.place for thread in threads for op in thread if op.place})
    events = [Event(i, -1, Op("W", place, 0, "relaxed", "sys")) for i, place in enumerate(places)]
    for number, thread in enumerate(threads):
        events += [Event(len(events) + i, number, op) for i, op in enumerate(thread)]
    found, reads = set(), [each for each in events if each.op.kind == "R"]
    sources = [
        [each for each in events if each.op.kind == "W" and each.op.place == read.op.place]
        for read in reads
    ]
    for chosen in product(*sources):
        rf = frozenset((source.number, read.number) for source, read in zip(chosen, reads))
        values = tuple(source.op.value for source in chosen)
        for order in coherences(events, places):
            end = tuple(
                next(each.op.value for each in events if each.number == order[place][-1])
                for place in places
            )
            if (*values, *end) not in found and possible(events, rf, order, together):
                found.add((*values, *end))
    return frozenset(found)


def coherences(events: list[Event], places: list[str]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Every order of the writes to each place, what was there before first."""
    writes = [
        [
            each.number
            for each in events
            if each.op.kind == "W" and each.op.place == place and each.thread >= 0
        ]
        for place in places
    ]
    for orders in product(*(permutations(each) for each in writes)):
        yield {place: (i, *order) for i, (place, order) in enumerate(zip(places, orders))}


def possible(events, rf: Relation, order: dict, together: bool) -> bool:
    """Whether some order of the fence.sc makes all axioms hold."""
    co = frozenset(
        (a, b) for each in order.values() for i, a in enumerate(each) for b in each[i + 1 :]
    )
    fr = frozenset((read, after) for write, read in rf for before, after in co if before == write)
    po = frozenset(
        (a.number, b.number)
        for a in events
        for b in events
        if a.thread == b.thread >= 0 and a.number < b.number or a.thread < 0 <= b.thread
    )
    strong = morally_strong(events, together)
    if not acyclic(rf | dependencies(events)):  # no thin air
        return False
    same = frozenset(
        (a, b) for a, b in po if events[a].op.place == events[b].op.place and events[a].op.place
    )
    if not acyclic((rf | co | fr) & strong | same & strong):  # sequential consistency per place
        return False
    fences = [each.number for each in events if each.op.order == "sc"]
    sync = synchronises(events, rf, po, strong, together)
    for line in permutations(fences):
        sc = strong & frozenset((a, b) for i, a in enumerate(line) for b in line[i + 1 :])
        base = closed(po | sync | sc)
        cause = base | compose(rf & strong, base)
        if any(a == b for a, b in base):
            continue
        overlapping = frozenset(
            (a, b)
            for a, b in cause
            if events[a].op.kind == events[b].op.kind == "W"
            and events[a].op.place == events[b].op.place
        )
        if overlapping <= co and not any(a == b for a, b in compose(rf | fr, cause)):
            return True
    return False


def morally_strong(events: list[Event], together: bool) -> Relation:
    """In program order, or strong with scopes that include each other; accesses of one place."""

    def strong(a: Event, b: Event) -> bool:
        if a.op.place != b.op.place:
            return False
        if a.thread == b.thread or -1 in (a.thread, b.thread):
            return True
        wide = min(WIDTH[a.op.scope], WIDTH[b.op.scope])
        return "weak" not in (a.op.order, b.op.order) and (together or wide > WIDTH["cta"])

    return frozenset(
        (a.number, b.number) for a in events for b in events if a != b and strong(a, b)
    )


def dependencies(events: list[Event]) -> Relation:
    found = set()
    for each in events:
        reads = [e.number for e in events if e.thread == each.thread and e.op.kind == "R"]
        found |= {(reads[i], each.number) for i in each.op.uses}
    return frozenset(found)


def synchronises(
    events: list[Event], rf: Relation, po: Relation, strong: Relation, together: bool
) -> Relation:
    """From the first operation of a release pattern to the last of an acquire pattern, if the write
    of the one was read by the other and their ends' scopes include each other. There are no atomics
    here, so an observation is one read."""
    found = set()
    for write, read in rf & strong:
        if "weak" in (events[write].op.order, events[read].op.order):
            continue
        firsts = [write] if events[write].op.order in ("release", "acq_rel") else []
        lasts = [read] if events[read].op.order in ("acquire", "acq_rel") else []
        for a, b in po:
            if b == write and events[a].thread >= 0:
                released = events[a].op.order == "release" and events[a].op.place == (
                    events[write].op.place
                )
                firsts += [a] if events[a].op.kind == "F" or released else []
            if a == read:
                acquired = events[b].op.order == "acquire" and events[b].op.place == (
                    events[read].op.place
                )
                lasts += [b] if events[b].op.kind == "F" or acquired else []
        for a, b in product(firsts, lasts):
            wide = min(WIDTH[events[a].op.scope], WIDTH[events[b].op.scope]) > WIDTH["cta"]
            if events[a].thread != events[b].thread and (together or wide):
                found.add((a, b))
    return frozenset(found)
