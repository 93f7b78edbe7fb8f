"""``News``: what threads know of the past of others, as it travels from one to another.

Knowledge of a block is one page: a clock for each of its threads, and behind them for what happens
outside of any thread's program order (``clocks``). Pages and the dicts that hold them are never
changed once they are in news: what many have learned from one release they share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

Pages = dict[int, np.ndarray]  # by block; pages may be shorter than others, by zeros
NOBODY = -1


class News(NamedTuple):
    """What is known of blocks: their pages ``of``, and beside or instead of one of these the
    ``page`` of ``block`` (NOBODY: none)."""

    of: Pages
    block: int = NOBODY
    page: np.ndarray | None = None

    def pages(self) -> Iterator[tuple[int, np.ndarray]]:
        for block, page in self.of.items():
            if block != self.block:
                yield block, page
        if self.page is not None:
            yield self.block, self.page

    def about(self, block: int) -> np.ndarray | None:
        return self.page if block == self.block else self.of.get(block)

    def clock(self, block: int, slot: int) -> int:
        page = self.about(block)
        return 0 if page is None or slot >= len(page) else int(page[slot])


NOTHING = News({})


def later(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The later of both clocks; one of the pages itself where it is."""
    if one is other:
        return one
    if len(one) < len(other):
        one, other = other, one
    part = one[: len(other)]
    if not (other > part).any():
        return one
    if len(one) == len(other) and not (one > other).any():
        return other
    most = one.copy()
    np.maximum(part, other, out=most[: len(other)])
    return most


def same(one: Pages, other: Pages) -> bool:
    """Whether they say the same: threads that have learned it one by one may share a row."""
    if one is other:
        return True
    return len(one) == len(other) and all(
        (held := other.get(block)) is page or held is not None and np.array_equal(held, page)
        for block, page in one.items()
    )


class Unions:
    """Unions of pages. What has been found to hold all of another is remembered, for the last pair:
    at a barrier of a grid every block learns the same."""

    def __init__(self) -> None:
        self.last: tuple[Pages, Pages] = ({}, {})

    def of(self, one: Pages, other: Pages) -> Pages:
        """All that either says; one of them itself where it does."""
        if other is one or not other:
            return one
        if not one or self._remembered(other, one):
            return other
        if self._remembered(one, other) or self._holds(one, other):
            return one
        if self._holds(other, one):
            return other
        union = dict(one)
        for block, page in other.items():
            held = union.get(block)
            union[block] = page if held is None else later(held, page)
        return union

    def _remembered(self, larger: Pages, smaller: Pages) -> bool:
        return self.last[0] is larger and self.last[1] is smaller

    def _holds(self, larger: Pages, smaller: Pages) -> bool:
        if len(smaller) > len(larger):
            return False
        for block, page in smaller.items():
            held = larger.get(block)
            if held is not page and (held is None or later(held, page) is not held):
                return False
        self.last = larger, smaller
        return True

    def both(self, one: News, other: News) -> News:
        if one.block == other.block and one.page is not None and other.page is not None:
            return News(self.of(one.of, other.of), one.block, later(one.page, other.page))
        if one.page is None:
            one, other = other, one
        return self.with_page(News(self.of(one.of, other.of), other.block, other.page), one)

    def all(self, news: News, others: Sequence[News]) -> News:
        """``news``, which has no page of its own, and ``others``."""
        of, last = news.of, NOTHING.of
        for other in others:
            if other.of is not last:
                of, last = self.of(of, other.of), other.of
        of = {**of}
        for other in others:
            if other.page is not None:
                held = of.get(other.block)
                # the later one comes first: one look is enough
                of[other.block] = other.page if held is None else later(other.page, held)
        return News(of)

    def with_page(self, news: News, other: News) -> News:
        """``news`` and the one page of ``other``."""
        if other.page is None:
            return news
        if news.page is None:
            held = news.of.get(other.block)
            page = other.page if held is None else later(held, other.page)
            return news if page is held else News({**news.of, other.block: page})
        of = {**news.of}
        for block, page in ((news.block, news.page), (other.block, other.page)):
            held = of.get(block)
            of[block] = page if held is None or held is page else later(held, page)
        return News(of)
