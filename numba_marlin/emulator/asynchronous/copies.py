"""cp.async in flight: a queue of copies for every thread, closed into groups by commit, landed by
wait.

A copy moves nothing when it is issued: its destination bytes become IN_FLIGHT. Source bytes are
read and destination bytes written when the issuing thread waits for the group (cp.async.wait_group
N: all but its N latest groups; wait_all: everything). The ISA allows any moment between issue and
wait; landing as late as possible shows a program that reads its tile too early, or reuses the
source too soon.

Queues are arrays [capacity, warps, 32], one column per thread, so that warps in step cost one
NumPy operation per copy.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-asynchronous-copy
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import PendingCopyRead
from numba_marlin.emulator.state.block_memory import IN_FLIGHT, VALID
from numba_marlin.emulator.state.lanes import WARP, Lanes
from numba_marlin.emulator.state.memory import Memory
from numba_marlin.emulator.text.program import Instruction

SMALLEST = 4  # bytes of the smallest copy
FIRST_PLACES = 16  # of a queue


class AsyncCopies:
    def __init__(self, memory: Memory, warps: int, instructions: list[Instruction]) -> None:
        self.memory, self.instructions = memory, instructions
        memory.explain_pending = self.explain
        self.tail = np.zeros((warps, WARP), np.int64)  # copies issued by a thread so far
        self.head = np.zeros((warps, WARP), np.int64)  # of those, landed
        self.groups = np.zeros((warps, WARP), np.int64)  # groups committed so far
        copies = any(ins.root == "cp.async" for ins in instructions)
        self._grow_queue(FIRST_PLACES if copies else 1, warps)
        # tail when group g (modulo length) was committed
        self.group_end = np.zeros((2, warps, WARP), np.int64)

    def _grow_queue(self, capacity: int, warps: int) -> None:
        """Queue slots are numbered modulo capacity, so growing moves every entry to its new
        slot."""
        old = getattr(self, "target", None)
        fields = {
            name: np.zeros((capacity, warps, WARP), np.int64)
            for name in ("target", "source", "sizes", "pc")
        }
        if old is not None:
            for back in range(1, len(old) + 1):
                number = self.tail - back
                rows, columns = np.nonzero(number >= self.head)
                n = number[rows, columns]
                for name, array in fields.items():
                    array[n % capacity, rows, columns] = getattr(self, name)[
                        n % len(old), rows, columns
                    ]
        self.__dict__.update(fields)

    def forget(self, warps: slice) -> None:
        """New threads move in."""
        self.tail[warps] = self.head[warps] = self.groups[warps] = 0

    def issue(
        self,
        ins: Instruction,
        lanes: Lanes,
        shared: np.ndarray,
        source: np.ndarray,
        nbytes: int,
        valid: np.ndarray,
    ) -> None:
        """Queue a copy of ``nbytes`` per lane, of which ``valid`` come from ``source`` and the rest
        are zeros."""
        memory, own = self.memory, self.memory.shared
        index = memory.locate_own(ins, lanes, "shared", shared, nbytes, "copy-issue")
        whole = valid == nbytes
        if memory.requests is not None and valid.any():
            reading = lanes.narrow(valid > 0)
            memory.announce(
                "copy-request",
                "global",
                ins,
                reading,
                source[valid > 0].reshape(reading.shape),
                nbytes,
            )
        if whole.all():
            memory.require_global(ins, lanes, source, nbytes)
        elif whole.any():
            part = lanes.narrow(whole)
            memory.require_global(ins, part, source[whole].reshape(part.shape), nbytes)
        state = own.view(SMALLEST, nbytes // SMALLEST)[1]
        if own.guarded:
            memory.require_free(ins, lanes, "shared", state, index)
        state[index] = int.from_bytes([IN_FLIGHT] * state.dtype.itemsize, "little")
        ordered = np.sort(index, axis=None)  # (fifteen times as fast as np.unique)
        if (ordered[1:] == ordered[:-1]).any():
            values, counts = np.unique(index, return_counts=True)
            bad = np.isin(index, values[counts > 1])
            where = own.describe(int(index[lanes.first(bad)[2]]) * nbytes % own.stride)
            raise lanes.fault(PendingCopyRead, f"several lanes copy to {where} at once", ins, bad)
        own.guarded += nbytes * index.size
        memory.progress += 1
        sel = lanes.sel
        tail = self.tail[sel]
        if (tail - self.head[sel]).max() >= len(self.target):
            self._grow_queue(2 * len(self.target), self.tail.shape[0])
        slot = tail % len(self.target)
        for array, values in (
            (self.target, index * nbytes),
            (self.source, source),
            (self.sizes, nbytes << 8 | valid),
            (self.pc, ins.pc),
        ):
            self._put(array, slot, lanes, values)
        self.tail[sel] = tail + 1

    def commit(self, ins: Instruction, lanes: Lanes) -> None:
        """Close the group of every lane; an empty group counts too."""
        number = self.groups[lanes.sel]
        self._put(self.group_end, number % len(self.group_end), lanes, self.tail[lanes.sel])
        self.groups[lanes.sel] = number + 1

    def reserve(self, latest: int) -> None:
        """Prepare for ``wait_group latest``: a wait looks back at most that far, so a short ring of
        ends suffices."""
        if len(self.group_end) < latest + 2:
            self.group_end = np.zeros((latest + 2,) + self.group_end.shape[1:], np.int64)

    def wait_group(self, ins: Instruction, lanes: Lanes, latest: int) -> None:
        """Land all but the ``latest`` most recent groups of every lane."""
        number = self.groups[lanes.sel] - latest - 1
        end = self._get(self.group_end, number % len(self.group_end), lanes)
        self.land(lanes, np.where(number >= 0, end, 0))

    def wait_all(self, ins: Instruction, lanes: Lanes) -> None:
        self.land(lanes, self.tail[lanes.sel])

    def land(self, lanes: Lanes, end: np.ndarray) -> None:
        """The first ``end`` copies of every lane, so far as they have not landed yet."""
        sel = lanes.sel
        head = self.head[sel]
        count = int((end - head).max()) if end.size else 0
        for step in range(max(count, 0)):
            number = head + step
            active = number < end
            part, slot = lanes, number % len(self.target)
            if not active.all():
                part = lanes.narrow(active)
                slot = slot[active].reshape(part.shape)
            self._move(part, slot)
        self.head[sel] = np.maximum(head, end)

    def _move(self, lanes: Lanes, slot: np.ndarray) -> None:
        """Land one copy of each lane: the queue entry in its ``slot``."""
        target, source, sizes, pc = (
            self._get(array, slot, lanes)
            for array in (self.target, self.source, self.sizes, self.pc)
        )
        kinds = np.unique(sizes << 32 | pc)
        for kind in kinds:
            part, at, origin = lanes, target, source
            if len(kinds) > 1:
                same = (sizes << 32 | pc) == kind
                part = lanes.narrow(same)
                at, origin = at[same].reshape(part.shape), origin[same].reshape(part.shape)
            nbytes, valid, ins = (
                int(kind >> 40),
                int(kind >> 32) & 0xFF,
                self.instructions[int(kind) & 0xFFFFFFFF],
            )
            self._copy(ins, part, at, origin, nbytes, valid)

    def _copy(
        self,
        ins: Instruction,
        lanes: Lanes,
        target: np.ndarray,
        source: np.ndarray,
        nbytes: int,
        valid: int,
    ) -> None:
        memory, own = self.memory, self.memory.shared
        words = nbytes // SMALLEST
        data, state = own.view(SMALLEST, words)
        if valid == nbytes:
            values = memory.load(ins, lanes, "global", source, SMALLEST, words, "copy-source")
        else:
            values = np.zeros(lanes.shape + (nbytes,), np.uint8)
            for byte in range(valid):
                values[..., byte] = memory.load(
                    ins, lanes, "global", source + byte, 1, 1, "copy-source"
                )[..., 0]
            values = values.view(np.uint32)
        if memory.watch is not None:
            memory.enter(
                ins, lanes, "shared", target - own.origin[lanes.sel] + own.base, nbytes, "copy-land"
            )
        index = target // nbytes
        data[index] = values
        state[index] = int.from_bytes([VALID] * state.dtype.itemsize, "little")
        if memory.proxy.active:
            memory.proxy.wrote(lanes, index, nbytes)
        own.guarded -= nbytes * index.size
        memory.progress += 1

    def explain(self, lanes: Lanes, position: int) -> str:
        """Which copy is in flight to byte ``position`` of the shared array, for a message."""
        for back in range(1, len(self.target) + 1):
            number = self.tail - back
            slot = number % len(self.target)
            rows, columns = np.indices(number.shape)
            target, sizes = self.target[slot, rows, columns], self.sizes[slot, rows, columns]
            hit = (number >= self.head) & (target <= position) & (position < target + (sizes >> 8))
            if hit.any():
                warp, lane = (int(i[0]) for i in np.nonzero(hit))
                ins = self.instructions[int(self.pc[slot[warp, lane], warp, lane])]
                within = warp % lanes.placement.warps_per_block
                return (
                    f" (issued by warp {within}, lane {lane} at PTX line {ins.line}: {ins.text} not"
                    " waited for)"
                )
        return ""

    @staticmethod
    def _uniform(slot: np.ndarray):
        first = slot.flat[0]
        return int(first) if (slot == first).all() else None

    def _put(self, array: np.ndarray, slot: np.ndarray, lanes: Lanes, values) -> None:
        one = self._uniform(slot)
        if one is not None:
            array[one][lanes.sel] = values
        else:
            array[(slot,) + self._coordinates(lanes)] = values

    def _get(self, array: np.ndarray, slot: np.ndarray, lanes: Lanes) -> np.ndarray:
        one = self._uniform(slot)
        return (
            array[one][lanes.sel] if one is not None else array[(slot,) + self._coordinates(lanes)]
        )

    @staticmethod
    def _coordinates(lanes: Lanes) -> tuple[np.ndarray, np.ndarray]:
        if lanes.full:
            return lanes.warps[:, None], np.arange(WARP)[None, :]
        return lanes.warps, lanes.columns
