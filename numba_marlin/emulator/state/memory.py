"""Every memory access of a run passes through here: ``Memory.load``, ``store`` and ``locate``.

Checks, in this order: alignment (an access of n bytes at a multiple of n), bounds, read-only, and
for shared and local memory that bytes read were written, that no asynchronous copy is in flight to
or from them and that they are no mbarrier. Generic addresses are told apart by window. ``watch``,
if set, is called with an Access before the data move: the one door for tracing and race detection.

State spaces: https://docs.nvidia.com/cuda/parallel-thread-execution/#state-spaces
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.checks import Checks
from numba_marlin.emulator.errors import (
    Misaligned,
    OutOfBounds,
    PendingCopyRead,
    ReadOnlyWrite,
    UninitializedRead,
)
from numba_marlin.emulator.state.access import Access
from numba_marlin.emulator.state.block_memory import (
    FORBIDDEN,
    LENT,
    VALID,
    BlockMemory,
    put,
    taken,
)
from numba_marlin.emulator.state.global_memory import GlobalMemory
from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.state.local_owners import LocalOwners
from numba_marlin.emulator.text.program import Instruction

if TYPE_CHECKING:
    from numba_marlin.emulator.asynchronous.proxies import AsyncProxy

# Shared addresses start where they do on sm_90, behind the kilobyte the system reserves; 0 is never
# valid.
SHARED_BASE = 0x400
LOCAL_BASE = 0x100
ALLOCA_BYTES = 1024  # of a thread, for alloca
PARAMETER_BASE = 0x80  # a tensor map is a parameter aligned to 64 bytes
# Generic windows. Global buffers live below them.
SHARED_WINDOW = 0x7F00_0000_0000
LOCAL_WINDOW = 0x7F80_0000_0000
WINDOW_BYTES = 1 << 32
RANK_SHIFT = 24  # of the cluster's shared window: block r's memory lies (r + 1) << 24 further
WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


class Memory:
    def __init__(
        self,
        global_memory: GlobalMemory,
        shared: BlockMemory,
        local: BlockMemory,
        checks: Checks,
    ) -> None:
        self.globals, self.shared, self.local = global_memory, shared, local
        self.checks = checks
        self.own = {"shared": shared, "shared::cluster": shared, "local": local}
        self.proxy: AsyncProxy  # set by Execution, with what follows
        self.peers: Callable[[Instruction, Lanes, np.ndarray], tuple[np.ndarray, np.ndarray]]
        self.watch: Callable[[Access], None] | None = None
        self.requests: Callable[[Access], None] | None = None
        self.local_owners = LocalOwners(local)
        self.progress = 0  # counts changes of memory, for deadlock detection
        # complain if they read these shared bytes
        self.borrowers: Callable[[Instruction, Lanes, int, int], None] = (
            lambda ins, lanes, start, stop: None
        )
        self.explain_pending: Callable[[Lanes, np.ndarray], str] = lambda lanes, index: ""

    def load(
        self,
        ins: Instruction,
        lanes: Lanes,
        space: str,
        address: np.ndarray,
        size: int,
        count: int = 1,
        kind: str = "load",
    ) -> np.ndarray:
        """``count`` unsigned integers of ``size`` bytes from each lane's ``address``:
        [*lanes.shape, count]."""
        if space == "generic":
            return self._by_window(self.load, ins, lanes, address, size, count, kind)
        if space in self.own:
            index = self.locate_own(ins, lanes, space, address, size * count, kind)
            data, state = self.own[space].view(size, count)
            self._require_valid(ins, lanes, space, state, index)
            return taken(data, index)
        self.enter(ins, lanes, "global", address, size * count, kind)
        shift = (size * count).bit_length() - 1
        buffer = self._one_buffer(address, size * count)
        if buffer is not None:
            return taken(buffer.view(size, count), (address - buffer.address) >> shift)
        out = np.empty(lanes.shape + (count,), f"u{size}")
        for buffer, mask in self._buffers(ins, lanes, address, size * count):
            out[mask] = buffer.view(size, count)[(address[mask] - buffer.address) // (size * count)]
        return out

    def store(
        self,
        ins: Instruction,
        lanes: Lanes,
        space: str,
        address: np.ndarray,
        values: np.ndarray,
        kind: str = "store",
        made: np.ndarray | None = None,
    ) -> None:
        """Store ``values`` [*lanes.shape, count] of unsigned integers; of lanes with one address
        the last one wins. ``made`` [*lanes.shape]: whose compare-and-swap succeeds; the values of
        the others are those that they found, which a memory may tell from a write of the same."""
        size, count = values.itemsize, values.shape[-1]
        if space == "generic":
            for each, mask in self.windows(address):
                part = lanes if mask is None else lanes.narrow(mask)
                place = address if mask is None else address[mask].reshape(part.shape)
                self.store(
                    ins,
                    part,
                    each,
                    self.local_owners.unmarked(ins, part, place) if each == "local" else place,
                    values if mask is None else values[mask].reshape(part.shape + (count,)),
                    kind,
                    made if made is None or mask is None else made[mask].reshape(part.shape),
                )
            return
        self.progress += 1
        if space in self.own:
            index = self.locate_own(ins, lanes, space, address, size * count, kind, values)
            own = self.own[space]
            data, state = own.view(size, count)
            if own.guarded:
                self.require_free(ins, lanes, space, state, index)
            put(data, index, values)
            put(state, index, state.dtype.type(~state.dtype.type(0)))
            if self.proxy.active and own is self.shared:
                self.proxy.wrote(lanes, index, size * count)
            return
        self.enter(ins, lanes, "global", address, size * count, kind, values)
        buffer = self._one_buffer(address, size * count)
        if buffer is not None:
            self._require_writeable(ins, lanes, buffer, address)
            shift = (size * count).bit_length() - 1
            put(buffer.view(size, count), (address - buffer.address) >> shift, values)
            return
        for buffer, mask in self._buffers(ins, lanes, address, size * count):
            self._require_writeable(ins, lanes, buffer, address, mask)
            buffer.view(size, count)[(address[mask] - buffer.address) // (size * count)] = values[
                mask
            ]

    def locate_own(
        self,
        ins: Instruction,
        lanes: Lanes,
        space: str,
        address: np.ndarray,
        nbytes: int,
        kind: str,
        values: np.ndarray | None = None,
    ) -> np.ndarray:
        """Row numbers, in units of ``nbytes``, of shared or local addresses; checked for alignment
        and bounds. An empty ``kind``

        is an address only, and is not watched.
        """
        self.enter(ins, lanes, space, address, nbytes, kind, values)
        own = self.own[space]
        if space == "shared::cluster":
            origin, address = self.peers(ins, lanes, address)
        else:
            origin = own.origin[lanes.sel]
        offset = address - own.base
        if offset.view(np.uint64).max() > own.size - nbytes:  # of negative ones too
            bad = (offset < 0) | (offset + nbytes > own.size)
            first = int(offset[lanes.first(bad)[2]])
            raise lanes.fault(
                OutOfBounds,
                f"{nbytes} bytes at {own.describe(first)}: the {space} memory has {own.size} bytes",
                ins,
                bad,
            )
        return (origin + offset) >> nbytes.bit_length() - 1

    def places(self, ins: Instruction, lanes: Lanes, space: str, address: np.ndarray) -> np.ndarray:
        """Numbers that are equal where addresses of ``space`` are of the same bytes."""
        if space not in self.own:
            return address
        if space == "shared::cluster":
            origin, address = self.peers(ins, lanes, address)
            return origin + address
        return self.own[space].origin[lanes.sel] + address

    def windows(self, address: np.ndarray):
        """Split generic addresses: yields (space, mask), mask None if all are of one space.

        Addresses stay generic for global memory and are rebased in place (``address`` is the
        caller's own array) for the others."""
        local, shared = address >= LOCAL_WINDOW, address >= SHARED_WINDOW
        found = [("local", local), ("shared", shared & ~local), ("global", ~shared)]
        peers = found[1][1] & (address >= SHARED_WINDOW + (1 << RANK_SHIFT))
        if peers.any():
            found[1:2] = [("shared", found[1][1] & ~peers), ("shared::cluster", peers)]
        for space, mask in found:
            if mask.any():
                if space != "global":
                    address[mask] -= WINDOWS[space.split("::")[0]]
                yield space, None if mask.all() else mask

    def _by_window(self, load, ins, lanes, address, size, count, kind):
        out = np.empty(lanes.shape + (count,), f"u{size}")
        for space, mask in self.windows(address):
            part = lanes if mask is None else lanes.narrow(mask)
            place = address if mask is None else address[mask].reshape(part.shape)
            if space == "local":
                place = self.local_owners.unmarked(ins, part, place)
            values = load(ins, part, space, place, size, count, kind)
            if mask is None:
                return values
            out[mask] = values.reshape(-1, count)
        return out

    def announce(
        self,
        kind: str,
        space: str,
        ins: Instruction,
        lanes: Lanes,
        address: np.ndarray,
        nbytes: int,
    ) -> None:
        """Tell who listens of a request that no access shows whole; it is checked elsewhere."""
        if self.requests is not None:
            self.requests(Access(kind, space, ins, lanes, address, nbytes))

    def enter(self, ins, lanes, space, address, nbytes, kind, values=None) -> None:
        if self.watch is not None and kind:
            self.watch(Access(kind, space, ins, lanes, address, nbytes, values))
        self.require_aligned(ins, lanes, space, address, nbytes)

    def require_global(
        self, ins: Instruction, lanes: Lanes, address: np.ndarray, nbytes: int
    ) -> None:
        """Misaligned or OutOfBounds unless ``nbytes`` could be read at each global ``address``;
        nothing is accessed."""
        self.require_aligned(ins, lanes, "global", address, nbytes)
        if self._one_buffer(address, nbytes) is None:
            self._buffers(ins, lanes, address, nbytes)

    def require_aligned(self, ins, lanes, space, address, nbytes) -> None:
        if nbytes > 1 and np.bitwise_or.reduce(address, axis=None) & (nbytes - 1):
            bad = (address & (nbytes - 1)) != 0
            first = int(address[lanes.first(bad)[2]])
            raise lanes.fault(
                Misaligned,
                f"{space} address {first:#x} must be a multiple of"
                f" {nbytes}{self._near(space, first)}",
                ins,
                bad,
            )

    def _near(self, space: str, address: int) -> str:
        if space in self.own:
            return f": {self.own[space].describe(address - self.own[space].base)}"
        buffer = self.globals.find(address)
        return f": {buffer.describe(address)}" if buffer else ""

    def _one_buffer(self, address: np.ndarray, nbytes: int):
        buffer = self.globals.find(int(address.min()))
        if buffer is not None and int(address.max()) + nbytes <= buffer.end:
            return buffer
        return None

    def _buffers(self, ins: Instruction, lanes: Lanes, address: np.ndarray, nbytes: int):
        """(buffer, mask of lanes) for accesses spread over several buffers; OutOfBounds if any is
        in none."""
        found, left = [], np.ones(address.shape, bool)
        while left.any():
            first = int(address[left][0])
            buffer = self.globals.find(first)
            if buffer is None or first + nbytes > buffer.end:
                bad = left & ~self._inside(address, nbytes)
                detail = buffer.describe(first) if buffer else self._elsewhere(first)
                raise lanes.fault(
                    OutOfBounds, f"{nbytes} bytes at {detail} lie in no buffer", ins, bad
                )
            mask = left & (address >= buffer.address) & (address + nbytes <= buffer.end)
            found.append((buffer, mask))
            left &= ~mask
        return found

    def _elsewhere(self, address: int) -> str:
        """A sentence part about an address that is in no buffer: perhaps it is of another state
        space."""
        for space, start in WINDOWS.items():
            own = self.own[space]
            if start <= address < start + WINDOW_BYTES:
                place = own.describe(address - start - own.base)
                return f"{address:#x}, a generic address of {space} memory ({place}),"
            if own.base <= address < own.base + own.size:
                place = own.describe(address - own.base)
                return f"{address:#x}, which is that of {place}, in no generic form (cvta),"
        return self.globals.describe(address)

    def _inside(self, address: np.ndarray, nbytes: int) -> np.ndarray:
        inside = np.zeros(address.shape, bool)
        for buffer in self.globals.buffers:
            inside |= (address >= buffer.address) & (address + nbytes <= buffer.end)
        return inside

    def _require_writeable(self, ins, lanes, buffer, address, mask=None) -> None:
        if buffer.readonly:
            bad = np.ones(lanes.shape, bool) if mask is None else mask
            first = int(address[lanes.first(bad)[2]])
            raise lanes.fault(
                ReadOnlyWrite, f"store to {buffer.describe(first)}, which is read-only", ins, bad
            )

    def _require_valid(
        self, ins: Instruction, lanes: Lanes, space: str, state: np.ndarray, index: np.ndarray
    ) -> None:
        states = taken(state, index)
        if np.bitwise_and.reduce(states, axis=None) == states.dtype.type(~states.dtype.type(0)):
            return
        self._require_states(ins, lanes, space, states, index, readable=True)

    def require_free(
        self, ins: Instruction, lanes: Lanes, space: str, state: np.ndarray, index: np.ndarray
    ) -> None:
        """Nothing speaks against writing: no copy is on its way to or from the bytes, and they are
        no mbarrier."""
        states = taken(state, index)
        if not ((states == 0) | (states == states.dtype.type(~states.dtype.type(0)))).all():
            self._require_states(ins, lanes, space, states, index, readable=False)

    def require_span_free(self, ins: Instruction, lanes: Lanes, start: int, stop: int) -> None:
        """The same for bytes [start, stop) of the shared array, about to be written by the one lane
        of ``lanes``."""
        if self.shared.guarded:
            self._require_states(
                ins,
                lanes,
                "shared",
                self.shared.state[None, start:stop],
                np.array([start]),
                readable=False,
                unit=1,
            )

    def require_span_valid(self, ins: Instruction, lanes: Lanes, start: int, stop: int) -> None:
        """Bytes [start, stop) of the shared array may be read by the one lane of ``lanes``."""
        self._require_states(
            ins,
            lanes,
            "shared",
            self.shared.state[None, start:stop],
            np.array([start]),
            readable=True,
            unit=1,
        )

    def _require_states(self, ins, lanes, space, states, index, readable, unit=None) -> None:
        """``states`` of each lane's bytes; they begin at ``index`` counted in ``unit`` bytes, None
        for as many as a lane has."""
        flat = np.ascontiguousarray(states).view(np.uint8).reshape(lanes.shape + (-1,))
        for code, kind, sentence in FORBIDDEN[readable]:
            wrong = (flat != VALID) & (flat != LENT) if code is None else flat == code
            bad = wrong.any(axis=-1)
            if bad.any():
                at, own = lanes.first(bad)[2], self.own[space]
                position = int(index[at]) * (unit or flat.shape[-1]) + int(np.argmax(wrong[at]))
                source = self.explain_pending(lanes, position) if kind is PendingCopyRead else ""
                error = lanes.fault(
                    kind, sentence.format(own.describe(position % own.stride)) + source, ins, bad
                )
                if kind is not UninitializedRead:
                    raise error
                self.checks.report(f"uninitialized-{own.space}", error)
