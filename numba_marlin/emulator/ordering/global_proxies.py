"""What ordinary stores wrote to global memory, and other ways to it may not see: ld.global.nc and
bulk copies.

ld.global.nc goes by a cache that no store reaches: what it reads must not be written while the
kernel runs. Bulk copies read by the asynchronous proxy: an ordinary store comes before such a read
only if a fence.proxy.async lies on the way, by the thread that wrote or by one that has
synchronised with it since. Here a fence by any thread of the block that wrote, or of the block that
reads, is enough. Kernels without such instructions are not followed.

https://docs.nvidia.com/cuda/parallel-thread-execution/#async-proxy,
#data-movement-and-conversion-instructions-ld-global-nc
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.errors import ProxyHazard
from numba_marlin.emulator.ordering.conflicts import smallest
from numba_marlin.emulator.state.access import Access
from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.state.listener import both
from numba_marlin.emulator.text.program import Instruction

if TYPE_CHECKING:
    from numba_marlin.emulator.scheduling.execution import Execution
    from numba_marlin.emulator.state.global_memory import Buffer

NEVER = 0  # the time of a write that was not


class Written:
    """Of each unit of a buffer: ``when`` it was last written by this kernel, and ``by`` which
    block."""

    def __init__(self, buffer: Buffer, unit: int) -> None:
        self.when = np.zeros(-(-buffer.nbytes // unit), np.int64)
        self.by = np.zeros(len(self.when), np.int32)


class GlobalProxies:
    """Listens to the memory of ``execution``, if its kernel has what would care."""

    def __init__(self, execution: Execution, blocks: int) -> None:
        instructions = execution.kernel.instructions
        self.memory, self.placement = execution.memory, execution.placement
        self.unit = 0
        if any(
            "nc" in ins.modifiers or ins.root.startswith("cp.async.bulk") for ins in instructions
        ):
            self.memory.watch = both(self.memory.watch, self.watch)
            self.memory.requests = self.request
            self.unit = smallest(instructions, "global")
        self.number = np.zeros(self.placement.slots, np.int32)  # of the block in each slot
        self.fenced = np.full(blocks, NEVER, np.int64)  # when a thread of the block last did
        self.now = NEVER + 1
        self.written: dict[int, Written] = {}

    def place(self, slots, numbers) -> None:
        self.number[list(slots)] = list(numbers)

    def fence(self, lanes: Lanes) -> None:
        """fence.proxy.async, of global memory too, by ``lanes``."""
        self.now += 1
        self.fenced[self._blocks(lanes)] = self.now

    def watch(self, access: Access) -> None:
        if access.space != "global":
            return
        if access.kind in ("store", "atomic"):
            self.now += 1
            self._mark(access.lanes, access.address, access.nbytes, self.now)
        elif access.kind == "load" and "nc" in access.ins.modifiers and self.written:
            self._require_unwritten(access.ins, access.lanes, access.address, access.nbytes)

    def request(self, access: Access) -> None:
        """A bulk copy is issued."""
        if access.kind == "bulk-write":
            self._mark(access.lanes, access.address, access.nbytes, NEVER)
        elif access.kind == "bulk-read" and self.written:
            for address in access.address.tolist():
                self._require_fenced(access.ins, access.lanes, address, access.nbytes)

    def _blocks(self, lanes: Lanes) -> np.ndarray:
        return self.number[lanes.warps // self.placement.warps_per_block]

    def _units(self, buffer: Buffer, address: np.ndarray, nbytes: int) -> np.ndarray:
        first = (address - buffer.address) // self.unit
        return first[:, None] + np.arange(-(-nbytes // self.unit))

    def _mark(self, lanes: Lanes, address: np.ndarray, nbytes: int, when: int) -> None:
        blocks = self._blocks(lanes)
        flat = address.reshape(-1)
        if lanes.full:
            blocks = np.repeat(blocks, address.shape[-1])
        elif len(blocks) != len(flat):  # one lane, many rows
            blocks = np.broadcast_to(blocks[:1], flat.shape)
        for buffer, mine in self.memory.globals.parts(address.reshape(-1), nbytes):
            held = self.written.get(buffer.address)
            if held is None:
                held = self.written[buffer.address] = Written(buffer, self.unit)
            units = self._units(buffer, flat[mine], nbytes)
            held.when[units], held.by[units] = when, blocks[mine][:, None]

    def _require_unwritten(self, ins: Instruction, lanes: Lanes, address, nbytes: int) -> None:
        flat = address.reshape(-1)
        for buffer, mine in self.memory.globals.parts(address.reshape(-1), nbytes):
            held = self.written.get(buffer.address)
            if held is None:
                continue
            stale = held.when[self._units(buffer, flat[mine], nbytes)] != NEVER
            if stale.any():
                bad = np.zeros(flat.shape, bool)
                bad[np.flatnonzero(mine)[stale.any(-1)]] = True
                where = buffer.describe(int(flat[bad][0]))
                raise lanes.fault(
                    ProxyHazard,
                    f"reads {where} through the non-coherent cache, which this kernel has written:"
                    " ld.global without .nc, or a pointer that is not const __restrict__",
                    ins,
                    bad.reshape(lanes.shape),
                )

    def _require_fenced(self, ins: Instruction, lane: Lanes, address: int, nbytes: int) -> None:
        buffer = self.memory.globals.find(address)
        held = None if buffer is None else self.written.get(buffer.address)
        if held is None or not nbytes:
            return
        units = self._units(buffer, np.array([address]), nbytes)[0]
        units = units[units < len(held.when)]
        when, by = held.when[units], held.by[units]
        seen = np.maximum(self.fenced[by], self.fenced[self._blocks(lane)[0]])
        bad = (when != NEVER) & (seen <= when)
        if bad.any():
            unit = int(units[np.argmax(bad)])
            where = buffer.describe(buffer.address + unit * self.unit)
            raise lane.fault(
                ProxyHazard,
                f"reads {where} through the async proxy, written by block number"
                f" {int(by[np.argmax(bad)])} with an ordinary store: no fence.proxy.async or"
                " fence.proxy.async.global since, by its block or by this one",
                ins,
            )
