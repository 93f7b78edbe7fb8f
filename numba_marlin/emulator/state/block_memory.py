"""Memory that each block (shared) or each thread (local) has to itself, with a state for every
byte.

All owners' memories lie side by side in one array, so one NumPy operation serves warps of many
blocks. Beside every data byte lies a state byte: VALID once written, UNWRITTEN before, IN_FLIGHT
while an asynchronous copy is on its way to it, LENT while a bulk store may be reading it, BARRIER
while it is part of an mbarrier.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import BarrierMisuse, PendingCopyRead, UninitializedRead

VALID, UNWRITTEN, IN_FLIGHT, LENT, BARRIER = 0xFF, 0x00, 0x0F, 0xF0, 0x3C
ROW_BYTES = 128  # owners start on multiples of it, so that views of any access width line up
POISON = 0xA5

# States that speak against an access, in the order they are looked for; None: anything that is not
# readable.
FLYING = (
    IN_FLIGHT,
    PendingCopyRead,
    "touches {}, to which an asynchronous copy is still in flight",
)
LIVING = (BARRIER, BarrierMisuse, "touches {}, where a live mbarrier is")
FORBIDDEN = {
    True: (FLYING, LIVING, (None, UninitializedRead, "reads {}, which nothing has written")),
    False: (
        FLYING,
        LIVING,
        (LENT, PendingCopyRead, "writes {}, which a bulk copy may still be reading"),
    ),
}


def taken(rows: np.ndarray, index: np.ndarray) -> np.ndarray:
    """rows[index], of two dimensions: 3 us instead of 12 for 4,096 rows of one number, 4 instead
    of 49 for rows of four."""
    if rows.shape[1] == 1:
        return rows[:, 0].take(index)[..., None]
    return rows.take(index, axis=0)


def put(rows: np.ndarray, index: np.ndarray, values: np.ndarray) -> None:
    """rows[index] = values, or one number for all of them, column by column: 7 us instead of 15 for
    4,096 rows of one number."""
    for column in range(rows.shape[1]):
        rows[:, column][index] = values[..., column] if values.ndim else values


class BlockMemory:
    """``size`` bytes for each of ``owners``. ``origin`` [warps, 32] is where each lane's owner
    starts in the array.

    Owners begin with ``forget``. ``base`` is the address of byte 0 in the owner's own window;
    ``names`` places variables: (start, size, name). The first ``system`` bytes are zeros that count
    as written.
    """

    def __init__(
        self,
        space: str,
        base: int,
        size: int,
        owners: int,
        owner_of: np.ndarray,
        names: list,
        system: int = 0,
    ) -> None:
        self.space, self.base, self.size, self.names = space, base, size, sorted(names)
        self.system = system
        self.stride = -(-size // ROW_BYTES) * ROW_BYTES
        self.data = np.empty(owners * self.stride, np.uint8)
        self.state = np.empty(owners * self.stride, np.uint8)
        self.origin = owner_of.astype(np.int64) * self.stride
        self.guarded = 0  # bytes in flight, lent or of barriers, over all owners
        self._views: dict = {}

    def forget(self, owners: slice) -> None:
        """New owners move in: nothing is written."""
        section = slice(owners.start * self.stride, owners.stop * self.stride)
        state = self.state[section]
        self.guarded -= int(((state != VALID) & (state != UNWRITTEN)).sum()) if self.guarded else 0
        self.data[section], state[:] = POISON, UNWRITTEN
        if self.system:
            for kind, value in ((self.data[section], 0), (state, VALID)):
                kind.reshape(-1, self.stride)[:, : self.system] = value

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.base + self.size

    def view(self, size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(data as rows of ``count`` integers of ``size`` bytes, states as rows of the widest
        integers that fit)."""
        pair = self._views.get((size, count))
        if pair is None:
            width = size * count
            unit = min(width, 8)
            pair = (
                self.data.view(f"u{size}").reshape(-1, count),
                self.state.view(f"u{unit}").reshape(-1, width // unit),
            )
            self._views[size, count] = pair
        return pair

    def describe(self, offset: int) -> str:
        """A byte offset as variable and offset, for messages."""
        for start, size, name in self.names:
            if start <= offset < start + size:
                return (
                    f"{name}[byte {offset - start}] ({self.space} address {self.base + offset:#x})"
                )
        return f"{self.space} address {self.base + offset:#x} (byte {offset} of {self.size})"
