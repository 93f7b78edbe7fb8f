"""Clusters: blocks that run at the same time and reach each other's shared memory, and the barrier
they share.

The blocks of a cluster sit in neighbouring slots, by their rank. In the cluster's shared window
block r's memory lies at ``(r + 1) << 24`` plus its own addresses; an address without a rank is the
executing block's own, as the ISA has it.
https://docs.nvidia.com/cuda/parallel-thread-execution/#cluster-of-cooperative-thread-arrays
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from numba_marlin.emulator.errors import BarrierMisuse, MachineError, OutOfBounds
from numba_marlin.emulator.state.block_memory import BlockMemory
from numba_marlin.emulator.state.ends import Barrier
from numba_marlin.emulator.state.lanes import Lanes, Placement, error_at, mask_lanes
from numba_marlin.emulator.state.memory import RANK_SHIFT
from numba_marlin.emulator.state.paths import Path
from numba_marlin.emulator.text.program import Instruction

MAX_BLOCKS = 8  # of a cluster; more is not portable


class Cluster:
    """``shape`` (x, y, z) in blocks, ``size`` their number."""

    def __init__(
        self, shape: tuple, grid: tuple, placement: Placement, shared: BlockMemory
    ) -> None:
        self.shape, self.grid, self.placement, self.shared = shape, grid, placement, shared
        self.size = shape[0] * shape[1] * shape[2]

    def groups(self) -> list[list[int]]:
        """The numbers of all blocks (x fastest) of each cluster, by rank."""
        (cx, cy, cz), (x, y, z) = self.shape, self.grid
        numbers = np.arange(x * y * z).reshape(z // cz, cz, y // cy, cy, x // cx, cx)
        return numbers.transpose(0, 2, 4, 1, 3, 5).reshape(-1, self.size).tolist()

    def locate(
        self, ins: Instruction, lanes: Lanes, address: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Addresses of the cluster's shared window -> (where the owners start in the shared array,
        addresses within them)."""
        rank = (address >> RANK_SHIFT) - 1
        own = self.shared.origin[lanes.sel]
        remote = rank >= 0
        if not remote.any():
            return own, address
        if (rank >= self.size).any():
            bad = rank >= self.size
            raise lanes.fault(
                OutOfBounds,
                f"the cluster has {self.size} blocks, none of rank {rank[bad][0]}",
                ins,
                bad,
            )
        per_block = self.placement.warps_per_block
        warps = lanes.warps[:, None] if lanes.full else lanes.warps
        slot = warps // per_block // self.size * self.size + np.where(remote, rank, 0)
        for target in np.unique(slot[remote]).tolist():
            if not any(self.placement.live[target * per_block : (target + 1) * per_block]):
                where = self.placement.block_of[target]
                raise lanes.fault(
                    MachineError,
                    f"accesses shared memory of block {where}, which has ended",
                    ins,
                    remote & (slot == target),
                )
        return np.where(remote, slot * self.shared.stride, own), address & (1 << RANK_SHIFT) - 1


class ClusterBarriers:
    """barrier.cluster: ``phase`` of each cluster, and of each warp the phase at which it arrived
    and has not waited for yet."""

    def __init__(self, cluster: Cluster, races=None) -> None:
        self.cluster, self.placement, self.races = cluster, cluster.placement, races
        self.known: dict[int, np.ndarray] = {}  # what arrivals of each cluster released
        self.warps = cluster.size * cluster.placement.warps_per_block  # of a cluster
        self.phase: dict[int, int] = {}
        self.arrived: dict[int, int] = {}
        self.parked: dict[int, tuple[int, Path, Barrier]] = {}

    def arrive(
        self, paths: Iterable[Path], end: Barrier, pc: int
    ) -> tuple[list[Path], list[tuple[int, Path]]]:
        """Paths come to ``end``, an arrive or a wait, and go on at ``pc``: (those that need not
        wait, released ones with their pcs)."""
        going_on, touched = [], {}
        for path in paths:
            number = path.warp // self.warps
            phase = self.phase.setdefault(number, 0)
            if end.kind == "cluster.arrive":
                if path.warp in self.arrived:
                    raise self._fault(
                        "arrives at the cluster's barrier again without having waited for it",
                        end,
                        path,
                    )
                self.arrived[path.warp] = phase
                if self.races is not None:
                    left, relaxed = self.known.get(number), "relaxed" in end.ins.modifiers
                    self.known[number] = (
                        self.races.arrive_relaxed(left, path)
                        if relaxed
                        else self.races.arrive(left, [path])
                    )
                touched[number] = None
                going_on.append(path)
            elif path.warp not in self.arrived:
                raise self._fault(
                    "waits at the cluster's barrier without having arrived", end, path
                )
            elif self.arrived[path.warp] < phase:
                del self.arrived[path.warp]
                if self.races is not None:
                    self.races.leave(self.known.get(number), [path])
                going_on.append(path)
            else:
                self.parked[path.warp] = pc, path, end
        return going_on, [item for number in touched for item in self._complete(number)]

    def recheck(self, slots: set[int]) -> list[tuple[int, Path]]:
        """Warps of ``slots`` have exited, and are not waited for any more."""
        return [
            item
            for number in {slot // self.cluster.size for slot in slots}
            for item in self._complete(number)
        ]

    def forget(self, slots: Iterable[int]) -> None:
        """New blocks move in."""
        per_block = self.placement.warps_per_block
        for slot in slots if self.arrived else ():
            for warp in range(slot * per_block, (slot + 1) * per_block):
                self.arrived.pop(warp, None)

    def waiting(self) -> list[tuple[str, Path, Instruction]]:
        return [("of the cluster", path, end.ins) for _, path, end in self.parked.values()]

    def _complete(self, number: int) -> list[tuple[int, Path]]:
        warps, phase = (
            range(number * self.warps, (number + 1) * self.warps),
            self.phase.get(number, 0),
        )
        live = [warp for warp in warps if self.placement.live[warp]]
        if not live or any(self.arrived.get(warp) != phase for warp in live):
            return []
        self.phase[number] = phase + 1
        released = []
        for warp in [warp for warp in live if warp in self.parked]:
            pc, path, _ = self.parked.pop(warp)
            del self.arrived[warp]
            released.append((pc, path))
        if self.races is not None:
            self.races.leave(self.known.get(number), (path for _, path in released))
        return released

    def _fault(self, detail: str, end: Barrier, path: Path) -> BarrierMisuse:
        return error_at(
            BarrierMisuse, detail, end.ins, self.placement, path.warp, mask_lanes(path.mask)
        )
