"""Who touched a byte last: for each unit of a memory its last write and, of every warp, the latest
read since.

A record is one integer: who (a thread of the grid, or another column of ``clocks``), when by its
clock, how, and at which pc; 0 is no thread. Of the lanes of one warp that read a unit only the
latest is kept, and of the warps as many as ``readers``, by number modulo that.

What comes after the last write comes after all that this write came after, so one record does for
all; but strong accesses need not come after each other. So a strong write takes the place of strong
ones alone: a weak write before it stays in ``covered``, and weak reads stay where they are. (Of
several writes of narrower scopes the last is kept.) A strong read leaves the record of a weak one
by the same thread at the same clock.
"""

from __future__ import annotations

import numpy as np

PC_BITS, WAY_BITS, CLOCK_BITS, WHO_BITS = 15, 3, 22, 23
WAY_SHIFT, CLOCK_SHIFT, WHO_SHIFT = PC_BITS, PC_BITS + WAY_BITS, PC_BITS + WAY_BITS + CLOCK_BITS

# How: ordinary; atomic or otherwise strong, by scope; by an object that orders itself (mbarrier);
# asynchronously.
WEAK, STRONG_CTA, STRONG_CLUSTER, STRONG_GPU, OBJECT, COPY, BULK, PRODUCT = range(8)
SCOPES = {STRONG_CTA: "cta", STRONG_CLUSTER: "cluster", STRONG_GPU: "gpu"}

IS_STRONG = np.isin(np.arange(1 << WAY_BITS), list(SCOPES))  # by way


def record(who, clock, way: int, pc: int):
    return (who << WHO_SHIFT) | (clock << CLOCK_SHIFT) | (way << WAY_SHIFT | pc)


def who_of(records):
    return records >> WHO_SHIFT


def clock_of(records):
    return records >> CLOCK_SHIFT & (1 << CLOCK_BITS) - 1


def way_of(records):
    return records >> WAY_SHIFT & (1 << WAY_BITS) - 1


def pc_of(record_: int) -> int:
    return record_ & (1 << PC_BITS) - 1


class Shadow:
    """The memory ``data`` (bytes) in units of ``unit`` bytes. ``writes`` [units], ``reads`` [units,
    readers], ``objects``: units that carry releases; ``covered`` [units], once there are any:
    writes that strong ones followed and that are not as strong. Memory that nothing has touched
    costs nothing: ``touched`` and ``was_read`` say whether anything was."""

    def __init__(self, data: np.ndarray, unit: int, readers: int) -> None:
        self.data, self.unit, self.readers = data, unit, readers
        # a division takes three times as long as a shift or a mask
        self.shift = unit.bit_length() - 1
        self.mask = readers - 1 if readers & (readers - 1) == 0 else None
        count = -(-data.size // unit)
        self.writes, self.objects = np.zeros(count, np.int64), np.zeros(count, bool)
        self.covered: np.ndarray | None = None
        self.touched = self.was_read = False
        self._make(count)

    def _make(self, count: int) -> None:
        self.reads = np.zeros((count, self.readers), np.int64)

    @property
    def nbytes(self) -> int:
        covered = 0 if self.covered is None else self.covered.nbytes
        return self.writes.nbytes + self.objects.nbytes + self.reads.nbytes + covered

    def forget(self, start: int, stop: int) -> None:
        """Bytes [start, stop) begin anew."""
        units = slice(start // self.unit, -(-stop // self.unit))
        if self.touched:
            self.writes[units], self.objects[units] = 0, False
            if self.covered is not None:
                self.covered[units] = 0
        if self.was_read:
            self.reads[units] = 0

    def units(self, offsets: np.ndarray, nbytes: int) -> np.ndarray:
        """The units of ``nbytes`` from each of ``offsets`` on: [*offsets.shape, count]."""
        first = offsets >> self.shift
        if nbytes <= self.unit:
            return first[..., None]
        return first[..., None] + np.arange(-(-nbytes // self.unit))

    def before(self, units: np.ndarray, writing: bool) -> np.ndarray:
        """Records that an access must come after: [*units.shape, 1 or more], the last write first;
        empty if there are none."""
        last = self.writes.take(units)[..., None]
        if writing and self.was_read:
            reads = self._read_before(units)
            if reads.any():
                return np.concatenate([last, reads], axis=-1)
        return last if last.any() else last[..., :0]

    def _read_before(self, units: np.ndarray) -> np.ndarray:
        return self.reads[units]

    def holds(self, units: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Whether each of ``units`` holds ``values``, their bytes [*units.shape, unit]."""
        return (self.data[self.bytes_of(units)] == values).all(-1)

    def bytes_of(self, units: np.ndarray) -> np.ndarray:
        """Where the bytes of ``units`` lie: [*units.shape, unit]."""
        return units[..., None] * self.unit + np.arange(self.unit)

    def wrote(self, units: np.ndarray, records: np.ndarray, strong: bool = False) -> None:
        """``strong``: so are the ``records``, and weaker ones of before stay."""
        if strong:
            self._cover(units)
        elif self.covered is not None:
            self.covered[units] = 0
        self.touched = True
        self.writes[units] = records
        if self.was_read:
            self._clear(units, strong)

    def _cover(self, units: np.ndarray) -> None:
        last = self.writes[units]
        ways = way_of(last)
        weaker = (ways != STRONG_GPU) & (last != 0)
        if not weaker.any():
            return
        if self.covered is None:
            self.covered = np.zeros_like(self.writes)
        weaker &= ~IS_STRONG[ways] | (self.covered[units] == 0)
        self.covered[units[weaker]] = last[weaker]

    def _clear(self, units: np.ndarray, strong: bool) -> None:
        self.reads[units] = _left(self.reads[units]) if strong else 0

    def read(
        self, units: np.ndarray, warps: np.ndarray, records: np.ndarray, strong: bool = False
    ) -> None:
        """``warps``: numbers of the readers' warps over the grid."""
        self.was_read = True
        place = warps % self.readers if self.mask is None else warps & self.mask
        reads, at = self.reads.reshape(-1), units * self.readers + place
        reads[at] = _stronger(reads[at], records) if strong else records


def _left(reads: np.ndarray) -> np.ndarray:
    """What a strong write leaves of ``reads``."""
    return np.where(way_of(reads) == STRONG_GPU, 0, reads)


def _stronger(last: np.ndarray, records: np.ndarray) -> np.ndarray:
    """The strong ``records``, but the ``last`` where the same thread was there at the same clock by
    a weaker way: who knows of the one knows of both."""
    same = (last >> CLOCK_SHIFT == records >> CLOCK_SHIFT) & (way_of(last) != STRONG_GPU)
    return np.where(same, last, records)


class LargeShadow(Shadow):
    """Of memory that few warps read in most places: ``reads`` [units] has a place for one of them,
    the one of number ``reader`` [units] modulo ``readers``. Units that more have read have a row of
    ``crowds`` [rows, readers] instead, whose number is in ``crowd`` [units], 0 for none."""

    def _make(self, count: int) -> None:
        self.reads, self.reader = np.zeros(count, np.int64), np.zeros(count, np.uint8)
        self.crowd, self.crowds = np.zeros(count, np.int32), np.zeros((1, self.readers), np.int64)
        self.free: list[np.ndarray] = []  # rows of crowds

    @property
    def nbytes(self) -> int:
        parts = self.reader, self.crowd, self.crowds
        return super().nbytes + sum(each.nbytes for each in parts)

    def _read_before(self, units: np.ndarray) -> np.ndarray:
        reads = self.reads[units][..., None]
        if len(self.crowds) == 1:
            return reads
        rows = self.crowd[units]
        return np.concatenate([reads, self.crowds[rows]], axis=-1) if rows.any() else reads

    def _clear(self, units: np.ndarray, strong: bool) -> None:
        self.reads[units] = _left(self.reads[units]) if strong else 0
        if len(self.crowds) > 1:
            rows = np.unique(self.crowd[units])
            rows = rows[rows > 0]
            if rows.size and strong:
                self.crowds[rows] = _left(self.crowds[rows])
            elif rows.size:
                self.crowds[rows], self.crowd[units] = 0, 0
                self.free.append(rows)

    def read(
        self, units: np.ndarray, warps: np.ndarray, records: np.ndarray, strong: bool = False
    ) -> None:
        self.was_read = True
        readers = np.broadcast_to(warps % self.readers, units.shape).astype(np.uint8).reshape(-1)
        units, records = units.reshape(-1), np.broadcast_to(records, units.shape).reshape(-1)
        if strong:
            records = _stronger(self._last(units, readers), records)
        alone = np.ones(len(units), bool) if len(self.crowds) == 1 else self.crowd[units] == 0
        if alone.any():
            alone &= (self.reads[units] == 0) | (self.reader[units] == readers)
            mine = slice(None) if alone.all() else alone
            self.reads[units[mine]], self.reader[units[mine]] = records[mine], readers[mine]
            # of those who came in this very step one is left
            alone &= self.reader[units] == readers
        if alone.all():
            return
        units, records, readers = units[~alone], records[~alone], readers[~alone]
        new = units[self.crowd[units] == 0]
        if new.size:
            new = np.unique(new)
            rows = self._rows(len(new))
            self.crowds[rows, self.reader[new]] = self.reads[new]
            self.crowd[new], self.reads[new] = rows, 0
        self.crowds[self.crowd[units], readers] = records

    def _last(self, units: np.ndarray, readers: np.ndarray) -> np.ndarray:
        """The reads by these, 0 where there are none."""
        alone = np.where(self.reader[units] == readers, self.reads[units], 0)
        rows = self.crowd[units]
        return np.where(rows > 0, self.crowds[rows, readers], alone)

    def _rows(self, count: int) -> np.ndarray:
        """As many rows of zeros."""
        free = np.concatenate([*self.free, np.zeros(0, np.int32)])
        if len(free) < count:
            start, more = len(self.crowds), max(count, len(self.crowds) // 2)
            self.crowds = np.concatenate([self.crowds, np.zeros((more, self.readers), np.int64)])
            free = np.concatenate([free, np.arange(start, start + more, dtype=np.int32)])
        self.free = [free[count:]]
        return free[:count]
