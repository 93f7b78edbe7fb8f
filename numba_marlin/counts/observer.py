"""Counts while the machine runs: a listener on its memory accesses, combined with the run's result.

``Observer.access`` is the machine's ``watch`` and its ``requests``; the number of executions of
each instruction comes from the run's result. Requests are counted per instruction, over all warps,
so the counts do not depend on the schedule (except for loops that wait).
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from numba_marlin.counts import transactions
from numba_marlin.counts.instructions import class_of, flops_of, flops_of_columns, operand_bytes_of
from numba_marlin.counts.liveness import live_words
from numba_marlin.counts.phases import phases, sources
from numba_marlin.counts.report import BufferCounts, Counts, InstructionCounts
from numba_marlin.counts.tally import GlobalTally, SharedTally, Tally
from numba_marlin.emulator import Machine, RunResult
from numba_marlin.emulator.state.access import Access
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.state.listener import Listener
from numba_marlin.emulator.state.memory import WINDOWS
from numba_marlin.layout import tcgen05

COMPACT = 1 << 16  # sectors stored before duplicates are removed
BLOCK_SHIFT = 42  # shift of the block's number above the sector's number
READS, WRITES = "reads", "writes"
GENERIC = "generic"
TENSOR_KINDS = {
    "tensor-a": "",
    "tensor-b": "",
    "tensor-copy": "scales",
    "tensor-load": "loaded",
    "tensor-store": "stored",
}
SCALE_COPIES = tcgen05.LANES // tcgen05.WARP_LANES  # copies of each byte of scales in tensor memory


def copy_kind(root: str) -> str:
    """What ``Tally.copied`` calls the copies of an opcode, also of those that reduce."""
    if root == "cp.async":
        return root
    return "tensor" if root.endswith(".tensor") else "bulk"


def count(machine: Machine, entry: str | None = None, **launch) -> tuple[RunResult, Counts]:
    """Run a kernel and count -> (RunResult, Counts). ``launch``: arguments of Machine.run, without
    its listener."""
    observer = Observer(machine, entry)
    listener = Listener(access=observer.access, request=observer.access)
    result = machine.run(entry, listener=listener, **launch)
    return result, observer.counts(result)


class Observer:
    def __init__(self, machine: Machine, entry: str | None = None) -> None:
        self.machine, self.kernel = machine, machine.kernel(entry)
        self.buffers = machine.memory.buffers
        self.starts = np.array([buffer.address for buffer in self.buffers], np.int64)
        # (pc, direction, buffer) -> requests, bytes, sectors, needed
        self.traffic: dict = defaultdict(lambda: [0, 0, 0, 0])
        # (pc, direction, buffer) -> arrays of sectors with their blocks
        self.sectors: dict = defaultdict(list)
        self.remembered: Counter = Counter()  # number of stored sectors
        # pc -> requests, bytes, wavefronts, ideal
        self.shared: dict = defaultdict(lambda: [0, 0, 0, 0])
        self.blocks: dict[tuple, int] = {}  # by position in the grid, in order of access
        self.copied: Counter = Counter()
        self.operands: Counter = Counter()  # of tcgen05, whose shapes are known only at run time
        self.flops: Counter = Counter()
        self.tensor_memory: dict = defaultdict(Counter)  # pc -> bytes by kind
        self.atomics: Counter = Counter()
        self.local: Counter = Counter()

    def access(self, access: Access) -> None:
        """One access, or one request."""
        kind, space, pc = access.kind, access.space, access.ins.pc
        if kind in ("bulk-read", "bulk-write"):
            self._bulk(access, WRITES if kind == "bulk-write" else READS)
        elif kind in TENSOR_KINDS:
            self._tensor(access)
        elif kind == "bulk-issue":
            self.copied[pc] += access.nbytes
        elif kind in (
            "load",
            "store",
            "copy-request",
            "atomic-request",
            "ldmatrix",
            "stmatrix",
            "copy-issue",
        ):
            address, active = padded(access)
            if kind == "copy-issue":
                self.copied[pc] += access.nbytes * int(active.sum())
            if kind == "atomic-request":
                self.atomics[pc] += int(active.sum())
            for each, part in (
                by_space(space, address, active) if space == GENERIC else ((space, active),)
            ):
                self._request(pc, kind, each, address, part, access)

    def _tensor(self, access: Access) -> None:
        """A tensor-core operand in shared memory, or a load or store of tensor memory."""
        pc, moved = access.ins.pc, TENSOR_KINDS[access.kind]
        nbytes = access.address.size * access.nbytes
        if access.kind in ("tensor-a", "tensor-b", "tensor-copy"):
            self.operands[pc] += nbytes
        if access.kind == "tensor-b":
            self.flops[pc] += flops_of_columns(access.ins, nbytes // tcgen05.K_BYTES)
        if moved:
            self.tensor_memory[pc][moved] += nbytes * (SCALE_COPIES if moved == "scales" else 1)

    def _request(
        self,
        pc: int,
        kind: str,
        space: str,
        address: np.ndarray,
        active: np.ndarray,
        access: Access,
    ) -> None:
        if space == "local":
            self.local[pc] += access.nbytes * int(active.sum())
        elif space == "global":
            writes = kind == "store"
            self._global(pc, WRITES if writes else READS, address, active, access)
            if kind == "atomic-request":
                self._global(pc, WRITES, address, active, access)
        else:
            wavefronts, ideal = transactions.wavefronts(
                address, active, access.nbytes, serial=kind == "atomic-request"
            )
            tally = self.shared[pc]
            tally[0] += int(active.any(axis=1).sum())
            tally[1] += access.nbytes * int(active.sum())
            tally[2] += int(wavefronts.sum())
            tally[3] += int(ideal.sum())

    def _global(
        self, pc: int, direction: str, address: np.ndarray, active: np.ndarray, access: Access
    ) -> None:
        buffer = np.searchsorted(self.starts, address, side="right") - 1
        for number in np.unique(buffer[active]).tolist():
            here = active & (buffer == number)
            asked, needed, used = transactions.sectors(address, here, access.nbytes)
            tally, key = self.traffic[pc, direction, number], (pc, direction, number)
            for i, values in enumerate((here.any(axis=1), used, asked, needed)):
                tally[i] += int(values.sum())
            rows, columns = np.nonzero(here)
            self._remember(
                key, address[rows, columns] // transactions.SECTOR_BYTES, self._blocks(access)[rows]
            )

    def _bulk(self, access: Access, direction: str) -> None:
        block = self._blocks(access)[0]
        number = int(np.searchsorted(self.starts, access.address[0], side="right")) - 1
        key = access.ins.pc, direction, number
        tally = self.traffic[key]
        if not access.nbytes:
            return
        sectors = []
        for start in access.address.tolist():
            asked, needed = transactions.span(start, access.nbytes)
            first = start // transactions.SECTOR_BYTES
            for i, value in enumerate((1, access.nbytes, asked, needed)):
                tally[i] += value
            sectors.append(np.arange(first, first + asked))
        if sectors:
            self._remember(key, np.concatenate(sectors), block)

    def _remember(self, key, sectors: np.ndarray, blocks) -> None:
        found = self.sectors[key]
        found.append(np.unique(sectors | blocks << BLOCK_SHIFT))
        self.remembered[key] += len(found[-1])
        if len(found) > 1 and self.remembered[key] > max(COMPACT, 2 * len(found[0])):
            found[:] = [np.unique(np.concatenate(found))]
            self.remembered[key] = len(found[0])

    def _blocks(self, access: Access) -> np.ndarray:
        """The number of the block of each warp of ``padded``."""
        lanes = access.lanes
        slots = (
            lanes.warps if lanes.full else np.unique(lanes.warps)
        ) // lanes.placement.warps_per_block
        places = (lanes.placement.block_of[slot] for slot in slots.tolist())
        return np.array(
            [self.blocks.setdefault(place, len(self.blocks)) for place in places], np.int64
        )

    def counts(self, result: RunResult) -> Counts:
        """The Counts of the run that returned ``result``."""
        live, names, lines = (
            live_words(self.kernel),
            phases(self.machine.module, self.kernel),
            sources(self.kernel),
        )
        instructions = []
        for ins, executed in zip(self.kernel.instructions, result.executed):
            tally = Tally(
                executed,
                {class_of(ins): executed} if executed else {},
                self._direction(ins.pc, READS),
                self._direction(ins.pc, WRITES),
                SharedTally(*self.shared[ins.pc]) if ins.pc in self.shared else SharedTally(),
                {copy_kind(ins.root): self.copied[ins.pc]} if self.copied[ins.pc] else {},
                int(executed * operand_bytes_of(ins)) + self.operands[ins.pc],
                dict(self.tensor_memory[ins.pc]),
                self.atomics[ins.pc],
                self.local[ins.pc],
                executed * flops_of(ins) + self.flops[ins.pc],
                live[ins.pc] if executed else 0,
            )
            instructions.append(
                InstructionCounts(
                    ins.pc, ins.line, ins.text, class_of(ins), names[ins.pc], lines[ins.pc], tally
                )
            )
        seen = {key: np.unique(np.concatenate(found)) for key, found in self.sectors.items()}
        return Counts.of(
            self.kernel.name, result, instructions, seen, self._buffers(seen), BLOCK_SHIFT
        )

    def _direction(self, pc: int, direction: str) -> GlobalTally:
        found = [
            GlobalTally(*tally)
            for (at, way, _), tally in self.traffic.items()
            if (at, way) == (pc, direction)
        ]
        return sum(found, GlobalTally())

    def _buffers(self, seen: dict) -> tuple[BufferCounts, ...]:
        rows = []
        for number, buffer in enumerate(self.buffers):
            ways = {}
            for direction in (READS, WRITES):
                tallies = [
                    GlobalTally(*tally)
                    for (_, way, which), tally in self.traffic.items()
                    if (way, which) == (direction, number)
                ]
                touched = [
                    values & (1 << BLOCK_SHIFT) - 1
                    for (_, way, which), values in seen.items()
                    if (way, which) == (direction, number)
                ]
                distinct = len(np.unique(np.concatenate(touched))) if touched else 0
                ways[direction] = sum(tallies, GlobalTally()), distinct * transactions.SECTOR_BYTES
            if ways[READS][0].requests or ways[WRITES][0].requests:
                rows.append(
                    BufferCounts(
                        buffer.name,
                        buffer.nbytes,
                        ways[READS][0],
                        ways[WRITES][0],
                        ways[READS][1],
                        ways[WRITES][1],
                    )
                )
        return tuple(rows)


def padded(access: Access) -> tuple[np.ndarray, np.ndarray]:
    """(address, active) [warps, 32] of an access by any lanes."""
    lanes = access.lanes
    if lanes.full:
        return access.address, np.ones(access.address.shape, bool)
    warps, row = np.unique(lanes.warps, return_inverse=True)
    address, active = np.zeros((len(warps), WARP), np.int64), np.zeros((len(warps), WARP), bool)
    address[row, lanes.columns] = access.address
    active[row, lanes.columns] = True
    return address, active


def by_space(space: str, address: np.ndarray, active: np.ndarray):
    """(space, lanes) of generic addresses; ``address`` is only used to see which bank or sector it
    falls into, so the window's offset may stay."""
    local, shared = address >= WINDOWS["local"], address >= WINDOWS["shared"]
    for name, mask in (("local", local), ("shared", shared & ~local), ("global", ~shared)):
        if (active & mask).any():
            yield name, active & mask
