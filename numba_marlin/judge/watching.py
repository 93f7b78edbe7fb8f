"""What a run reads and writes of each array: listens to the machine's accesses."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from numba_marlin.emulator.state.access import Access
from numba_marlin.emulator.state.global_memory import Buffer
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.text.program import Instruction

NOBODY = -1
READS = ("load", "atomic", "copy-request", "bulk-read")
WRITES = ("store", "atomic", "bulk-write")
REQUESTS = ("copy-request", "bulk-read", "bulk-write")
LONGEST = 16  # bytes of an ordinary access


@dataclass
class Watched:
    """One array: ``first`` byte of it in its buffer (others before it belong to nobody).

    ``writers`` of each element: the number in the grid of the thread that wrote it last, NOBODY;
    ``by``: the index in the kernel's instructions. ``read``: was anything of it read?"""

    name: str
    buffer: Buffer
    array: np.ndarray
    first: int = 0
    poisoned: bool = False
    read: bool = False
    writers: np.ndarray = field(init=False)
    by: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.writers = np.full(self.array.size, NOBODY)
        self.by = np.zeros(self.array.size, np.int32)


@dataclass(frozen=True)
class Strange:
    """An access that the machine lets pass: a read of an array's ``element`` that nothing has
    written ("reads-output"), or an access in front of an array ("out-of-bounds")."""

    kind: str
    name: str
    element: int
    ins: Instruction
    thread: int


class Watch:
    """Functions for a Listener. ``strange``: the first strange access."""

    def __init__(self, arrays: list[Watched], grid: tuple[int, ...], threads: int) -> None:
        self.arrays, self.grid, self.threads = arrays, (*grid, 1, 1), threads
        self.strange: Strange | None = None

    def access(self, access: Access) -> None:
        if access.space == "global" and access.kind in ("load", "store", "atomic"):
            self._seen(access)

    def request(self, access: Access) -> None:
        if access.kind in REQUESTS:
            self._seen(access)

    def _seen(self, access: Access) -> None:
        addresses = access.address.reshape(-1)
        low, high = int(addresses.min(initial=1 << 62)), int(addresses.max(initial=-1))
        threads = None
        for each in self.arrays:
            if high < each.buffer.address or low >= each.buffer.end:
                continue
            if threads is None:
                threads = self._threads(access)
            inside = (addresses >= each.buffer.address) & (addresses < each.buffer.end)
            if inside.any():
                self._of(each, access, addresses[inside], threads[inside])

    def _of(self, each: Watched, access: Access, addresses, threads) -> None:
        start = addresses - each.buffer.address - each.first
        if (start < 0).any():
            at = int(np.argmax(start < 0))
            size = each.array.itemsize
            self._found("out-of-bounds", each, int(start[at]) // size, access, int(threads[at]))
            start, threads = start[start >= 0], threads[start >= 0]
        elements, owners = self._elements(each, start, threads, access.nbytes)
        if access.kind in READS:
            each.read = True
            if each.poisoned:
                unwritten = each.writers[elements] == NOBODY
                if unwritten.any():
                    at = int(np.argmax(unwritten))
                    self._found("reads-output", each, int(elements[at]), access, int(owners[at]))
        if access.kind in WRITES:
            each.writers[elements] = owners
            each.by[elements] = access.ins.pc

    def _elements(self, each: Watched, start, threads, nbytes: int):
        """(numbers of the elements that are touched, and by whom)"""
        size, most = each.array.itemsize, each.array.size
        if nbytes <= LONGEST:
            parts = np.arange(0, max(nbytes, 1), size)
            elements = ((start[:, None] + parts) // size).reshape(-1)
            owners = np.repeat(threads, len(parts))
        else:  # rows of a bulk copy
            rows = [np.arange(at // size, -(-(at + nbytes) // size)) for at in start.tolist()]
            elements = np.concatenate(rows) if rows else np.zeros(0, int)
            owners = np.repeat(threads, [len(row) for row in rows])
        inside = elements < most
        return elements[inside], owners[inside]

    def _found(self, kind: str, each: Watched, element: int, access: Access, thread: int) -> None:
        if self.strange is None:
            self.strange = Strange(kind, each.name, element, access.ins, thread)

    def _threads(self, access: Access) -> np.ndarray:
        """The number in the grid of the thread behind each address."""
        lanes = access.lanes
        place = lanes.placement
        slots, within = np.divmod(lanes.warps, place.warps_per_block)
        numbers = [self._number(place.block_of[slot]) for slot in slots.tolist()]
        first = np.array(numbers) * self.threads + within * WARP
        found = first[:, None] + np.arange(WARP) if lanes.full else first + lanes.columns
        if access.address.shape != found.shape:  # rows of one lane's copy
            return np.full(access.address.size, found.reshape(-1)[0])
        return found.reshape(-1)

    def _number(self, block: tuple[int, int, int]) -> int:
        return block[0] + self.grid[0] * (block[1] + self.grid[1] * block[2])
