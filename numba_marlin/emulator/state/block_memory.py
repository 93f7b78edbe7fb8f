"""Memory that each block (shared) or each thread (local) has to itself, with a state for every
byte.

All owners' memories lie side by side in one array, so one NumPy operation serves warps of many
blocks. Beside every data byte lies a state byte: VALID once written, UNWRITTEN before, IN_FLIGHT
while an asynchronous copy is on its way to it, LENT while a bulk store may be reading it, BARRIER
while it is part of an mbarrier.
"""

from __future__ import annotations

import numpy as np

VALID, UNWRITTEN, IN_FLIGHT, LENT, BARRIER = 0xFF, 0x00, 0x0F, 0xF0, 0x3C
ROW_BYTES = 128  # owners start on multiples of it, so that views of any access width line up
POISON = 0xA5


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
