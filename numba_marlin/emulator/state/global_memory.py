"""Global memory: buffers at 64-bit addresses, with unmapped gaps between them.

A buffer *is* the caller's NumPy array: what a kernel stores is in the array when the run ends.
Every access must lie wholly within one buffer; anything else is OutOfBounds, named after the
nearest buffer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

FIRST_ADDRESS = 0x7_0000_0000
BUFFER_ALIGNMENT = 512  # what cudaMalloc gives is at least 256
GUARD_BYTES = 1 << 20


@dataclass(eq=False)
class Buffer:
    """``array`` at ``address``; ``data`` are its bytes (a view). ``earlier``: until
    griddepcontrol.wait the kernel before may be using it."""

    name: str
    address: int
    array: np.ndarray
    data: np.ndarray
    readonly: bool
    earlier: bool = False
    rows: dict = field(default_factory=dict, repr=False)

    @property
    def nbytes(self) -> int:
        return self.data.size

    @property
    def end(self) -> int:
        return self.address + self.data.size

    def view(self, size: int, count: int) -> np.ndarray:
        """The bytes as whole rows of ``count`` unsigned integers of ``size`` bytes [rows, count]
        (aligned accesses)."""
        view = self.rows.get((size, count))
        if view is None:
            width = size * count
            view = self.data[: self.data.size // width * width].view(f"u{size}").reshape(-1, count)
            self.rows[size, count] = view
        return view

    def describe(self, address: int) -> str:
        """Where ``address`` is relative to this buffer, for messages: name, element index and byte
        offset."""
        offset = address - self.address
        element, rest = divmod(offset, self.array.itemsize)
        index = f"{self.name}[{element}]" + (f" + {rest} bytes" if rest else "")
        shape = "x".join(str(n) for n in self.array.shape)
        return (
            f"{index} (byte {offset} of {self.nbytes}; {self.name} is {self.array.dtype} {shape})"
        )


class GlobalMemory:
    """The buffers a machine can see. Buffers stay until ``release``."""

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []
        self._starts: list[int] = []
        self._next = FIRST_ADDRESS

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(self._buffers)

    def buffer(
        self,
        array: np.ndarray,
        name: str | None = None,
        readonly: bool = False,
        earlier: bool = False,
    ) -> Buffer:
        """Map a C-contiguous ``array``; a kernel reads and writes it in place.

        ValueError for an array that is not C-contiguous (its elements would not be where addresses
        say). An array that NumPy marks as not writeable is read-only for the kernel too.
        ``earlier``: the kernel before on the stream uses it as well, which is a race (``races``)
        unless griddepcontrol.wait comes first.
        """
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a buffer must be a numpy.ndarray, not {type(array).__name__}")
        if not array.flags.c_contiguous:
            raise ValueError(
                f"array of strides {array.strides} must be C-contiguous to become a buffer"
            )
        data = array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
        name = name if name is not None else f"buffer{len(self._buffers)}"
        return self.add(
            Buffer(
                name,
                self.reserve(data.size),
                array,
                data,
                readonly or not array.flags.writeable,
                earlier,
            )
        )

    def reserve(self, nbytes: int, alignment: int = BUFFER_ALIGNMENT) -> int:
        """An address, a multiple of ``alignment``, for ``nbytes`` that nobody else gets."""
        address = -(-self._next // alignment) * alignment
        rounded = -(-max(nbytes, 1) // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
        self._next = address + rounded + GUARD_BYTES
        return address

    def add(self, buffer: Buffer) -> Buffer:
        """Map ``buffer`` at its address, which ``reserve`` gave."""
        index = bisect_right(self._starts, buffer.address)
        self._buffers.insert(index, buffer)
        self._starts.insert(index, buffer.address)
        return buffer

    def release(self, buffer: Buffer) -> None:
        """Unmap ``buffer``; its addresses are never given out again."""
        index = self._buffers.index(buffer)
        del self._buffers[index], self._starts[index]

    def find(self, address: int) -> Buffer | None:
        """The buffer that holds ``address``, if any."""
        index = bisect_right(self._starts, address) - 1
        if index >= 0 and address < self._buffers[index].end:
            return self._buffers[index]
        return None

    def parts(self, address: np.ndarray, nbytes: int) -> Iterator[tuple[Buffer, np.ndarray]]:
        """(buffer, which of the addresses have all their ``nbytes`` in it), up to the first address
        that is in none."""
        left = np.ones(address.shape, bool)
        buffer = self.find(int(address.min())) if address.size else None
        if buffer is not None and int(address.max()) + nbytes <= buffer.end:
            yield buffer, left  # mostly
            return
        while left.any():
            buffer = self.find(int(address[left][0]))
            if buffer is None:
                return
            mine = left & (address >= buffer.address) & (address + nbytes <= buffer.end)
            if not mine.any():
                return
            left &= ~mine
            yield buffer, mine

    def describe(self, address: int) -> str:
        """A sentence part about an address outside of every buffer."""
        if not self._buffers:
            return f"address {address:#x}: there are no buffers"
        nearest = min(self._buffers, key=lambda b: max(b.address - address, address - b.end, 0))
        return f"address {address:#x}, nearest is {nearest.describe(address)}"
