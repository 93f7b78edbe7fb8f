"""What each lane finds and leaves where lanes meet at an address, as if they came one after the
other, in the order of warps and lanes.

``in_turn`` gives, bit for bit, what a loop over the lanes would. Lanes are sorted by address.
Operations on integers that are associative take a scan, of as many steps as the largest number of
lanes at an address has binary digits; counters that wrap around (inc, dec) a formula, where all
lanes give the same limit; sums of floats, which must keep their order, one accumulation
for each address, or a step for each turn, whichever are fewer; everything else takes a step for
each turn, in which all addresses take part.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

TINY = {np.dtype(kind): np.finfo(kind).smallest_normal for kind in (np.float32, np.float64)}


class Turns:
    """``place`` [lanes]: where each lane's operand lies. ``distinct``: no two meet. Else ``order``
    puts the lanes of a place side by side, in their order; in it, ``first`` [places] is where each
    place begins, ``rank`` [lanes] the turn of each lane, ``most`` their number at a place."""

    def __init__(self, place: np.ndarray) -> None:
        rising = place[1:] > place[:-1]
        self.distinct = bool(rising.all())
        if self.distinct:
            return
        same = place[1:] == place[:-1]
        if (rising | same).all():
            self.order = np.arange(len(place))
        else:
            self.order = np.argsort(place, kind="stable")
            there = place[self.order]
            same = there[1:] == there[:-1]
            self.distinct = not same.any()
            if self.distinct:
                return
        self.first = np.flatnonzero(np.concatenate([[True], ~same]))
        self.counts = np.diff(self.first, append=len(place))
        self.rank = np.arange(len(place)) - np.repeat(self.first, self.counts)
        self.most = int(self.counts.max())

    def behind(self, found: np.ndarray, after: np.ndarray) -> np.ndarray:
        """What each lane finds: ``found``, or what the lane before it has left, ``after``; all in
        ``order``."""
        old = found.copy()
        old[1:] = np.where(aside(self.rank[1:] > 0, found), after[:-1], found[1:])
        return old


def aside(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    """``mask`` [lanes] in the shape that selects among ``values`` [lanes, ...]."""
    return mask.reshape(mask.shape + (1,) * (values.ndim - 1))


def in_turn(
    turns: Turns,
    found: np.ndarray,
    given: list[np.ndarray],
    function: Callable,
    associative: bool,
    cas: bool,
    counts: str = "",
) -> tuple[np.ndarray, np.ndarray]:
    """(what each lane finds, what it leaves), of lanes that are not ``turns.distinct``. ``found``
    [lanes, ...]: what is there at first; ``given``: operands of ``function``, which makes of what
    is there and of them what comes to lie there; ``associative``: function(function(x, a), b) =
    function(x, function(a, b)), exactly; ``cas``: it is compare-and-swap; ``counts``: "inc" or
    "dec" if it is that."""
    order = turns.order
    found, given = found[order], [value[order] for value in given]
    if associative:
        after = scanned(turns, found, given[0], function)
    elif cas and all((value == value[0]).all() for value in given):
        # once swapped or not, it makes no difference to come again with the same operands
        after = function(found, *given)
    elif counts and found.dtype == np.uint32 and (given[0] == given[0][0]).all():
        after = counted(turns, found, int(given[0][0]), counts == "inc")
    else:
        after = None
        if found.dtype in TINY and len(turns.first) < turns.most:
            after = summed(turns, found, given[0], function)
        if after is None:
            after = stepped(turns, found, given, function)
    old = turns.behind(found, after)
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return old[back], after[back]


def scanned(turns: Turns, found, given, function: Callable) -> np.ndarray:
    """By doubling: after step i an element stands for the last 2^i of its place."""
    after = given.copy()
    after[turns.first] = function(found[turns.first], given[turns.first])
    shift = 1
    while shift < turns.most:
        joined = function(after[:-shift], after[shift:])
        after[shift:] = np.where(aside(turns.rank[shift:] >= shift, after), joined, after[shift:])
        shift *= 2
    return after


def counted(turns: Turns, found, limit: int, up: bool) -> np.ndarray:
    """A counter of 0 to ``limit`` that wraps around, up or down, turn by turn. What is beyond it
    goes where the counter goes from its end."""
    turn, period = turns.rank + 1, limit + 1
    begin = np.repeat(found[turns.first], turns.counts).astype(np.int64)
    begin = np.where(begin > limit, limit if up else 0, begin)
    return ((begin + turn if up else begin - turn) % period).astype(found.dtype)


def summed(turns: Turns, found, given, function: Callable) -> np.ndarray | None:
    """Sums of floats, place by place; None if some may not be IEEE's (NaN, subnormal numbers)."""
    after, tiny = np.empty_like(found), TINY[found.dtype]
    for first, count in zip(turns.first.tolist(), turns.counts.tolist()):
        values = np.concatenate([found[first : first + 1], given[first : first + count]])
        sums = np.add.accumulate(values)
        for each in (values, sums):
            size = np.abs(each)
            if not ((size >= tiny) | (size == 0)).all():
                return None
        after[first : first + count] = sums[1:]
    return after


def stepped(turns: Turns, found, given, function: Callable) -> np.ndarray:
    """Turn after turn."""
    after, now = np.empty_like(found), found[turns.first].copy()
    place = np.repeat(np.arange(len(turns.first)), turns.counts)
    by_turn = np.argsort(turns.rank, kind="stable")
    stop = np.cumsum(np.bincount(turns.rank))
    for start, end in zip([0, *stop[:-1].tolist()], stop.tolist()):
        lanes = by_turn[start:end]
        there = place[lanes]
        left = function(now[there], *(value[lanes] for value in given))
        after[lanes] = now[there] = left
    return after
