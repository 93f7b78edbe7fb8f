"""What each thread knows of the others' past: vector clocks, one component per thread of
the grid.

A thread's clock is the number of the interval between two of its releases. A thread that acquires
what another has released knows all intervals of it up to then, and what the other itself knew: this
is the causality order of the PTX memory model, so far as it has been observed in this run.
https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model

Threads of a block that know the same share a row until one of them learns more: after a barrier
all do. Most of what a thread knows is of its own block: a row has that, in ``own``, and refers to
the pages of the other blocks that it knows of (``news``), which it shares with whoever learned the
same. So a grid whose blocks do not talk takes memory for its blocks, not for every pair of them.
Lanes of a warp are threads like any others, because the model gives them no order of their own:
running in step orders nothing, bar.warp.sync does. Besides the threads there are columns for what
happens outside of any thread's program order, bulk copies and products in flight (``column``); each
belongs to a block, and lies in its pages behind the threads. The first of them, ``before``, is of
the kernel before this one, and everybody's.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.ordering import shadow as marks
from numba_marlin.emulator.ordering.news import NOBODY, News, Unions, same
from numba_marlin.emulator.state.lanes import WARP, Lanes, Placement

NOTHING = 0  # the row of a thread that has acquired nothing
FIRST_ROWS, FIRST_COLUMNS = 32, 8
NO_PAGES: dict = {}
ALONE = np.zeros(1, np.intp)
NOBODIES = np.zeros(0, np.int64)


def runs(keys: np.ndarray) -> np.ndarray:
    """Where others begin."""
    first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return np.flatnonzero(first)


class Clocks:
    """``row_of`` and ``thread_of`` [warps, 32] of the resident warps; ``own`` int32 [rows, slots of
    a page]; ``others``: row -> pages of other blocks, of rows that know any; ``clock`` [threads] of
    each thread's present. Threads and columns have numbers, columns behind all threads."""

    def __init__(self, placement: Placement, blocks: int) -> None:
        self.placement, self.per_block = placement, placement.warps_per_block * WARP
        self.threads, self.unions = blocks * self.per_block, Unions()
        power = self.per_block & (self.per_block - 1) == 0
        self.shift = self.per_block.bit_length() - 1 if power else None
        shape = placement.warps, WARP
        self.row_of, self.thread_of = np.zeros(shape, np.intp), np.zeros(shape, np.int64)
        self.slot_of: dict[int, int] = {}  # number of a block -> where it resides
        self.own = np.zeros((FIRST_ROWS, self.per_block + FIRST_COLUMNS), np.int32)
        self.others: dict[int, dict] = {}
        self.clock = np.ones(self.threads, np.int64)
        self.free = list(range(FIRST_ROWS - 1, NOTHING, -1))
        # of each column: its block, and its place in the block's pages
        self.block_of_column, self.slot_of_column = np.zeros((2, FIRST_COLUMNS), np.int64)
        self.columns_of: dict[int, int] = {}  # block -> how many it has
        self.columns, self.awaited = self.threads, False
        self._present: tuple[Lanes | None, np.ndarray, np.ndarray] = None, NOBODIES, NOBODIES
        self.before = self.column(NOBODY)

    def place(self, slot: int, number: int) -> None:
        """Block ``number`` moves in: new threads, who know nothing, not even of the block that was
        here before."""
        rows = self.rows_of(slot)
        before = int(self.thread_of[rows.start, 0]) // self.per_block
        if self.slot_of.get(before) == slot:
            del self.slot_of[before]
        self.slot_of[number] = slot
        self.thread_of[rows] = (number * self.per_block + np.arange(self.per_block)).reshape(
            -1, WARP
        )
        self.row_of[rows] = NOTHING
        self._present = None, NOBODIES, NOBODIES

    def present(self, lanes: Lanes) -> tuple[np.ndarray, np.ndarray]:
        """(the threads, their records of now, without way and pc): lanes go through many accesses
        from one release to the next."""
        if self._present[0] is not lanes:
            threads = self.thread_of[lanes.sel]
            self._present = lanes, threads, marks.record(threads, self.clock[threads], 0, 0)
        return self._present[1:]

    def _tick(self, threads: np.ndarray) -> None:
        self.clock[threads] += 1
        self._present = None, NOBODIES, NOBODIES

    def block_of(self, threads: np.ndarray) -> np.ndarray:
        """A division takes three times as long as a shift, and there is one for each access."""
        return threads // self.per_block if self.shift is None else threads >> self.shift

    def rows_of(self, slot: int) -> slice:
        """The warps of ``slot``."""
        per_block = self.placement.warps_per_block
        return slice(slot * per_block, (slot + 1) * per_block)

    def column(self, block: int) -> int:
        """A new column, for something of ``block`` that is no thread."""
        index = self.columns - self.threads
        if index == len(self.block_of_column):
            self.block_of_column, self.slot_of_column = (
                np.pad(each, (0, index)) for each in (self.block_of_column, self.slot_of_column)
            )
        count = self.columns_of.get(block, 1)  # the first place is before's
        slot = self.per_block + (0 if block == NOBODY else count)
        self.columns_of[block] = count + 1
        self.block_of_column[index], self.slot_of_column[index] = block, slot
        if slot >= self.own.shape[1]:
            self.own = np.pad(self.own, ((0, 0), (0, slot - self.per_block)))
        self.columns += 1
        return self.columns - 1

    def places(self, who: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(block, slot in its pages) of threads and columns."""
        block = self.block_of(who)
        slot = who - block * self.per_block if self.shift is None else who & (self.per_block - 1)
        if who.max(initial=0) >= self.threads:
            columns = who >= self.threads
            index = who[columns] - self.threads
            block[columns], slot[columns] = self.block_of_column[index], self.slot_of_column[index]
        return block, slot

    def knows(self, rows: np.ndarray, threads: np.ndarray, who: np.ndarray) -> np.ndarray:
        """Up to which clock the ``threads``, whose rows are ``rows``, know of ``who``; all of
        shapes that go together."""
        known, near, block, slot = self._nearby(rows, threads, who)
        rows, block, slot, near = np.broadcast_arrays(rows, block, slot, near)
        known[~near] = self._of_others(rows[~near], block[~near], slot[~near])
        return known

    def behind(
        self, rows: np.ndarray, threads: np.ndarray, who: np.ndarray, counts: np.ndarray
    ) -> np.ndarray:
        """Whether what they know (``knows``) of ``who`` ends before ``counts``. Most of it is of
        their own block, or of nothing (0): pages of other blocks are looked up for the rest."""
        known, near, block, slot = self._nearby(rows, threads, who)
        late = known < counts
        if self.others:
            far = late & ~near
            if far.any():
                talks = np.zeros(len(self.own), bool)
                talks[list(self.others)] = True
                far &= talks[rows]
                rows, block, slot, counts = (
                    each if each.shape == far.shape else np.broadcast_to(each, far.shape)
                    for each in (rows, block, slot, counts)
                )
                known = self._of_others(rows[far], block[far], slot[far])
                late[far] = known < counts[far]
        return late

    def behind_in_block(self, rows: np.ndarray, who: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """``behind``, where all of ``who`` are of the block of the row; or nobody, and never."""
        slot = who % self.per_block if self.shift is None else who & (self.per_block - 1)
        if self.columns > self.threads + 1:
            columns = who >= self.threads
            slot[columns] = self.slot_of_column[who[columns] - self.threads]
        return self.own.reshape(-1).take(rows * self.own.shape[1] + slot) < counts

    def _nearby(self, rows: np.ndarray, threads: np.ndarray, who: np.ndarray):
        """(what they know of their own block, 0 for others; which are of it; ``places``)"""
        block, slot = self.places(who)
        near = block == self.block_of(threads)
        if self.awaited:
            near |= block == NOBODY
        # one index to a place is three times as fast as two
        known = self.own.reshape(-1).take(rows * self.own.shape[1] + slot)
        return known if near.all() else np.where(near, known, 0), near, block, slot

    def _of_others(self, rows: np.ndarray, blocks: np.ndarray, slots: np.ndarray) -> np.ndarray:
        most = int(blocks.max(initial=0)) + 1
        keys = rows * most + blocks
        # neighbours ask for the same page: there are far fewer runs of them than lanes
        starts = runs(keys)
        asked, which = np.unique(keys[starts], return_inverse=True)
        pages = [
            self.others.get(row, NO_PAGES).get(block)
            for row, block in zip((asked // most).tolist(), (asked % most).tolist())
        ]
        different = {id(page): page for page in pages}  # rows share them
        table = np.zeros((len(different), self.own.shape[1]), np.int32)
        for line, page in zip(table, different.values()):
            if page is not None:
                line[: len(page)] = page
        places = {each: place for place, each in enumerate(different)}
        which = np.array([places[id(page)] for page in pages], np.intp)[which]
        lines = np.repeat(which * table.shape[1], np.append(starts[1:], len(keys)) - starts)
        return table.reshape(-1).take(lines + slots)

    def unknown(self, slot: int, who: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Of the threads ``who`` of other blocks, have come to ``counts``: which of them no thread
        of the block in ``slot`` knows of so far (bool)."""
        late = counts > 0
        block, place = self.places(who)
        rows = np.unique(self.row_of[self.rows_of(slot)]).tolist()
        # rows share what they know of other blocks
        told = {id(self.others[row]): row for row in rows if row in self.others}
        for row in told.values():
            left = np.flatnonzero(late)
            if not left.size:
                break
            known = self._of_others(np.full(left.shape, row), block[left], place[left])
            late[left] = known < counts[left]
        return late

    def clock_in(self, news: News, who: int) -> int:
        """Up to which clock ``news`` tell of ``who``."""
        block, slot = self.places(np.array([who]))
        return news.clock(int(block[0]), int(slot[0]))

    def news_of(self, who: int, count: int) -> News:
        """That ``who`` has come so far."""
        block, slot = (int(each[0]) for each in self.places(np.array([who])))
        page = np.zeros(self.own.shape[1], np.int32)
        page[slot] = count
        return News({}, block, page)

    def release(self, lanes: Lanes) -> News:
        """What ``lanes`` know and have done, all together; what they do from now on is not in
        it."""
        rows, threads = self.row_of[lanes.sel].reshape(-1), self.thread_of[lanes.sel].reshape(-1)
        news = News({})
        for row, block, mine in self._groups(rows, threads):
            page = self.own[row].copy()
            page[threads[mine] - block * self.per_block] = self.clock[threads[mine]]
            told = News(self.others.get(row, NO_PAGES), block, page)
            news = told if news.page is None and not news.of else self.unions.both(news, told)
        self._tick(threads)
        return news

    def releases(self, lanes: Lanes) -> list[News]:
        """``release`` of each lane alone, one after the other."""
        rows, threads = self.row_of[lanes.sel].reshape(-1), self.thread_of[lanes.sel].reshape(-1)
        pages, blocks = self.own[rows], threads // self.per_block
        pages[np.arange(len(rows)), threads - blocks * self.per_block] = self.clock[threads]
        self._tick(threads)
        return [
            News(self.others.get(row, NO_PAGES), block, page)
            for row, block, page in zip(rows.tolist(), blocks.tolist(), pages)
        ]

    def snapshots(self, lanes: Lanes) -> dict[int, tuple[News, int]]:
        """Thread -> (what it knows, its own clock), as a fence leaves it for writes to come."""
        rows, threads = self.row_of[lanes.sel].reshape(-1), self.thread_of[lanes.sel].reshape(-1)
        found = {}
        for row, block, mine in self._groups(rows, threads):
            news = News(self.others.get(row, NO_PAGES), block, self.own[row].copy())
            for thread, clock in zip(threads[mine].tolist(), self.clock[threads[mine]].tolist()):
                found[thread] = news, clock
        self._tick(threads)
        return found

    def acquire(self, lanes: Lanes, news: News) -> None:
        """``lanes`` learn what somebody released, or that columns have come so far."""
        part, threads = np.array(self.row_of[lanes.sel]), self.thread_of[lanes.sel].reshape(-1)
        rows = part.reshape(-1)  # a view: ``part`` is a copy
        groups = self._groups(rows, threads)
        numbers = [row for row, _, _ in groups]
        own = self.own[numbers]
        for line, (_, block, _) in zip(own, groups):
            page = news.about(block)
            if page is not None:
                head = line[: len(page)]
                np.maximum(head, page, out=head)
        if self.awaited:
            before = max((int(page[self.per_block]) for _, page in news.pages()), default=0)
            np.maximum(own[:, self.per_block], before, out=own[:, self.per_block])
        grown = (own != self.own[numbers]).any(axis=1).tolist()
        shared, spare = self._used_by_others(groups), self._new_rows(len(groups))
        joined: dict[int, tuple] = {}  # with what rows know of other blocks, which they share
        last: dict[int, int] = {}
        for line, more, row_is_shared, (row, block, mine) in zip(own, grown, shared, groups):
            held, target = self.others.get(row, NO_PAGES), row
            if id(held) not in joined:
                joined[id(held)] = held, self.unions.of(held, news.of)
            others = joined[id(held)][1]
            if news.block not in (block, NOBODY):
                others = self.unions.with_page(News(others), News({}, news.block, news.page)).of
            twin = last.get(block)
            if (
                twin is not None
                and np.array_equal(self.own[twin], line)
                and same(self.others.get(twin, NO_PAGES), others)
            ):
                target = twin
            elif more or others is not held:
                if row == NOTHING or row_is_shared:
                    target = spare.pop()
                self.own[target] = line
                if others:
                    self.others[target] = others
            last[block] = target
            if target != row:
                rows[mine] = target
        self.free += spare
        self.row_of[lanes.sel] = part

    def _used_by_others(self, groups) -> list[bool]:
        """Of which of the groups threads beside theirs have the row."""
        slots = [self.slot_of[block] for _, block, _ in groups]
        rows = self.row_of.reshape(self.placement.slots, -1)[slots]
        uses = (rows == np.array([[row] for row, _, _ in groups])).sum(axis=1)
        return [count != len(mine) for count, (_, _, mine) in zip(uses.tolist(), groups)]

    def meet(self, warps: np.ndarray) -> np.ndarray:
        """All threads of each group of ``warps`` [groups, warps of a group], of one block, tell
        each other what they have done, as a release by all and an acquire by all; at once for all
        groups. Returns for which groups [groups] that was done: where a group's threads know of
        other things than each other, and not the same, it is not."""
        rows = self.row_of[warps].reshape(len(warps), -1)
        apart = (rows != rows[:, :1]).any(axis=1)
        done = ~apart
        if rows.shape[1] == self.per_block and self.columns == self.threads + 1:
            done[:] = True  # of their block they know all there is to know now
        if not done.any():
            return done
        warps, rows, apart = warps[done], rows[done], apart[done]
        row = rows[:, 0].copy()
        used = np.bincount(self.row_of.reshape(-1), minlength=len(self.own))
        fresh = np.flatnonzero((row == NOTHING) | (used[row] > rows.shape[1]) | apart)
        if fresh.size:
            new = self._new_rows(len(fresh))
            if self.others:
                self._put_together(new, rows[fresh])
            self.own[new] = self.own[row[fresh]]
            row[fresh] = new
            self.row_of[warps[fresh]] = row[fresh, None, None]
        threads = self.thread_of[warps].reshape(len(warps), -1)
        first = threads[:, :1] // self.per_block * self.per_block
        self.own[row[:, None], threads - first] = self.clock[threads]
        self._tick(threads)
        return done

    def _put_together(self, new: list[int], rows: np.ndarray) -> None:
        """Each of ``new`` gets what its ``rows`` [new, threads] know of other blocks."""
        index, column = np.nonzero(np.diff(rows, axis=1, prepend=-1))  # where others begin
        for place, row in zip(index.tolist(), rows[index, column].tolist()):
            others = self.others.get(row)
            if others:
                target = new[place]
                self.others[target] = self.unions.of(self.others.get(target, NO_PAGES), others)

    def learn(self, lanes: Lanes, column: int, count: int) -> None:
        """``lanes`` have seen what belongs to ``column`` up to ``count``."""
        self.awaited |= column == self.before
        self.acquire(lanes, self.news_of(column, count))

    def _groups(self, rows: np.ndarray, threads: np.ndarray) -> list[tuple[int, int, np.ndarray]]:
        """(row, block, places of the threads) of threads that share both."""
        if rows.size == 1:
            return [(int(rows[0]), int(threads[0]) // self.per_block, ALONE)]
        blocks = threads // self.per_block
        if (rows == rows[0]).all() and (blocks == blocks[0]).all():
            return [(int(rows[0]), int(blocks[0]), np.arange(len(rows)))]
        most = self.threads // self.per_block
        keys = rows * most + blocks
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        starts = runs(keys)
        ends = [*starts[1:].tolist(), len(keys)]
        return [
            (*divmod(key, most), order[start:end])
            for key, start, end in zip(keys[starts].tolist(), starts.tolist(), ends)
        ]

    def _new_rows(self, count: int) -> list[int]:
        if len(self.free) < count:
            used = np.zeros(len(self.own), bool)
            used[self.row_of] = used[NOTHING] = True
            self.free = np.flatnonzero(~used)[::-1].tolist()
            for row in self.free:
                self.others.pop(row, None)
            while len(self.free) < max(count, len(self.own) // 2):
                more = len(self.own)
                self.own = np.pad(self.own, ((0, more), (0, 0)))
                self.free += range(more, 2 * more)
        taken = self.free[len(self.free) - count :]
        del self.free[len(self.free) - count :]
        return taken
