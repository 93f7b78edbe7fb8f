"""Who touched a byte last: for each unit of a memory its last write and, of every warp, the latest
read since.

A record is one integer: who (a thread of the grid, or another column of ``clocks``), when by its
clock, how, and at which pc; 0 is no thread. Of the lanes of one warp that read a unit only the
latest is kept, and of the warps as many as ``readers``, by number modulo that.
"""

from __future__ import annotations

import numpy as np

PC_BITS, WAY_BITS, CLOCK_BITS, WHO_BITS = 15, 3, 22, 23
WAY_SHIFT, CLOCK_SHIFT, WHO_SHIFT = PC_BITS, PC_BITS + WAY_BITS, PC_BITS + WAY_BITS + CLOCK_BITS

# How: ordinary; atomic or otherwise strong, by scope; by an object that orders itself (mbarrier);
# asynchronously.
WEAK, STRONG_CTA, STRONG_CLUSTER, STRONG_GPU, OBJECT, COPY, BULK, PRODUCT = range(8)
SCOPES = {STRONG_CTA: "cta", STRONG_CLUSTER: "cluster", STRONG_GPU: "gpu"}


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
    readers], ``objects``: units that carry releases."""

    def __init__(self, data: np.ndarray, unit: int, readers: int) -> None:
        self.data, self.unit, self.readers = data, unit, readers
        count = -(-data.size // unit)
        self.writes, self.objects = np.zeros(count, np.int64), np.zeros(count, bool)
        self.reads = np.zeros((count, readers), np.int64)

    def forget(self, start: int, stop: int) -> None:
        """Bytes [start, stop) begin anew."""
        units = slice(start // self.unit, -(-stop // self.unit))
        self.writes[units], self.reads[units], self.objects[units] = 0, 0, False

    def units(self, offsets: np.ndarray, nbytes: int) -> np.ndarray:
        """The units of ``nbytes`` from each of ``offsets`` on: [*offsets.shape, count]."""
        first = offsets // self.unit
        if nbytes <= self.unit:
            return first[..., None]
        return first[..., None] + np.arange(-(-nbytes // self.unit))

    def before(self, units: np.ndarray, writing: bool) -> np.ndarray:
        """Records that an access must come after: [*units.shape, 1 or 1 + readers]; empty if there
        are none."""
        last = self.writes[units]
        if not writing:
            return last[..., None] if last.any() else last[..., None][..., :0]
        reads = self.reads[units]
        if reads.any():
            return np.concatenate([last[..., None], reads], axis=-1)
        return last[..., None] if last.any() else last[..., None][..., :0]

    def holds(self, units: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Whether each of ``units`` holds ``values``, their bytes [*units.shape, unit]."""
        return (self.data[units[..., None] * self.unit + np.arange(self.unit)] == values).all(-1)

    def wrote(self, units: np.ndarray, records: np.ndarray) -> None:
        self.writes[units] = records
        self.reads[units] = 0

    def read(self, units: np.ndarray, warps: np.ndarray, records: np.ndarray) -> None:
        """``warps``: numbers of the readers' warps over the grid."""
        self.reads[units, warps % self.readers] = records
