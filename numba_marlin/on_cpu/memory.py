"""Device memory of the pretended GPU: host memory at addresses of the machine.

Addresses that a program sees are the machine's, so that a kernel's pointers need no translation.
Fresh memory is filled with ones (NaN, -1): a GPU's holds what was there before.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from numba_marlin.emulator.state.global_memory import Buffer, GlobalMemory

POISON = 0xFF
TOTAL_BYTES = 8 << 30  # that the device claims to have, and refuses to exceed
PAGE = 1 << 16
MAP_FIXED_NOREPLACE, MAP_ANONYMOUS = 0x100000, 0x20


class OutOfMemory(Exception):
    pass


class NotAnAllocation(Exception):
    """An address that lies in no allocation."""


@dataclass(frozen=True)
class View:
    """An array as a kernel was given it: what an address in it is called."""

    name: str
    address: int
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def describe(self, address: int) -> str:
        """ "y[3, 7] (y is float32[4, 8])"; an index beyond y's counts on."""
        dense, nbytes = self.dense(), address - self.address
        what = f" ({self.name} is {self.dtype}{list(self.shape)})"
        if not dense:
            return f"{self.name}, {nbytes} bytes from its first element{what}"
        element, rest = divmod(nbytes, self.dtype.itemsize or 1)
        # the slowest index takes what is over
        index = []
        fastest_first = self.shape[:0:-1] if dense == "C" else self.shape[:-1]
        for size in fastest_first:
            element, at = divmod(element, max(size, 1))
            index.append(at)
        index += [element] if self.shape else []
        if dense == "C":
            index.reverse()
        place = f"{self.name}[{', '.join(map(str, index)) or '()'}]"
        return place + (f" + {rest} bytes" if rest else "") + what

    def dense(self) -> str:
        """ "C" or "F" if the elements follow each other in that order, else ""."""
        for order in "CF":
            step, sizes = self.dtype.itemsize, list(zip(self.shape, self.strides))
            for size, stride in reversed(sizes) if order == "C" else sizes:
                if size != 1 and stride != step:
                    break
                step *= size
            else:
                return order
        return ""


@dataclass(eq=False)
class Allocation(Buffer):
    """``views``: of the launch that is under way. ``owner`` keeps the memory alive."""

    views: list[View] = field(default_factory=list)
    owner: object = None

    def describe(self, address: int) -> str:
        holding = [view for view in self.views if view.address <= address]
        view = max(holding or self.views, key=lambda view: view.address, default=None)
        return super().describe(address) if view is None else view.describe(address)


class DeviceMemory:
    """``globals``: what machines see. ``hosted``: host address -> the allocation that maps it."""

    def __init__(self, space: GlobalMemory) -> None:
        self.globals = space
        self.allocations: dict[int, Allocation] = {}
        self.hosted: dict[int, Allocation] = {}
        self.pinned: dict[int, np.ndarray] = {}
        self.managed: dict[int, int] = {}  # address -> bytes that were mapped
        self.used = 0

    def allocate(self, nbytes: int) -> int:
        data = self._fresh(nbytes)
        return self._add(self.globals.reserve(nbytes), data)

    def allocate_managed(self, nbytes: int) -> int:
        """At the same address for the host and for kernels."""
        self._require(nbytes)
        if not sys.platform.startswith("linux"):
            raise NotImplementedError("managed memory needs Linux here: addresses are chosen")
        size = -(-max(nbytes, 1) // PAGE) * PAGE
        address = self.globals.reserve(size, PAGE)
        map_at(address, size)
        self.managed[address] = size
        data = host_bytes(address, nbytes)
        self.used += nbytes
        return self._add(address, data)

    def allocate_host(self, nbytes: int, mapped: bool) -> int:
        """Pinned; returns the host's address."""
        data = self._fresh(nbytes)
        pointer = data.ctypes.data
        self.pinned[pointer] = data
        if mapped:
            self._map(pointer, data)
        return pointer

    def register(self, pointer: int, nbytes: int, mapped: bool) -> None:
        if mapped:
            self._map(pointer, host_bytes(pointer, nbytes))

    def unregister(self, pointer: int) -> None:
        if pointer in self.hosted:
            self._remove(self.hosted.pop(pointer))
        data = self.pinned.pop(pointer, None)
        if data is not None:
            self.used -= data.size

    def free(self, address: int) -> None:
        allocation = self.allocations.get(address)
        if allocation is None:
            raise NotAnAllocation(f"{address:#x} is the start of no allocation")
        self.used -= allocation.nbytes
        self._remove(allocation)
        if address in self.managed:
            libc().munmap(ctypes.c_void_p(address), ctypes.c_size_t(self.managed.pop(address)))

    def free_all(self) -> None:
        """But for what arrays of the host may still be looking at: pinned and managed memory."""
        for allocation in list(self.allocations.values()):
            self._remove(allocation)
        self.hosted.clear()
        self.used = sum(data.size for data in self.pinned.values())

    def find(self, address: int) -> Buffer:
        """The buffer that holds ``address``."""
        found = self.globals.find(address) or self.allocations.get(address)
        if found is None:
            raise NotAnAllocation(f"{address:#x} lies in no allocation")
        return found

    def bytes_at(self, address: int, nbytes: int) -> np.ndarray:
        """A view of ``nbytes`` of device memory, or of the host's if ``address`` is one of its."""
        if not nbytes:
            return np.zeros(0, np.uint8)
        buffer = self.find(address)
        start = address - buffer.address
        if start + nbytes > buffer.nbytes:
            raise NotAnAllocation(
                f"{nbytes} bytes from {buffer.describe(address)} on: only"
                f" {buffer.nbytes - start} belong to the allocation"
            )
        return buffer.data[start : start + nbytes]

    def _require(self, nbytes: int) -> None:
        if self.used + nbytes > TOTAL_BYTES:
            raise OutOfMemory(
                f"{nbytes} bytes: {self.used} of the device's {TOTAL_BYTES} are taken"
            )

    def _fresh(self, nbytes: int) -> np.ndarray:
        self._require(nbytes)
        data = np.full(nbytes, POISON, np.uint8)
        self.used += nbytes
        return data

    def _map(self, pointer: int, data: np.ndarray) -> None:
        address = self._add(self.globals.reserve(data.size), data)
        self.hosted[pointer] = self.allocations[address]

    def _add(self, address: int, data: np.ndarray) -> int:
        allocation = Allocation(f"the allocation at {address:#x}", address, data, data, False)
        self.globals.add(allocation)
        self.allocations[address] = allocation
        return address

    def _remove(self, allocation: Allocation) -> None:
        self.globals.release(allocation)
        self.allocations.pop(allocation.address, None)


_SPACE = GlobalMemory()


@cache
def memory_of(package: str) -> DeviceMemory:
    """Of the process, whoever switches on: no address is given out twice. Each compiler's package
    frees its own when it resets the device, and sees the other's."""
    return DeviceMemory(_SPACE)


def libc():
    return ctypes.CDLL(None, use_errno=True)


def map_at(address: int, size: int) -> None:
    """Map ``size`` bytes of the process's memory at ``address``, where nothing may be."""
    function = libc().mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    flags = mmap.MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
    if function(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != address:
        raise OutOfMemory(f"the process has something else at {address:#x}")


def host_bytes(pointer: int, nbytes: int) -> np.ndarray:
    """A view of the process's own memory."""
    if not nbytes:
        return np.zeros(0, np.uint8)
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(pointer), np.uint8)
