"""What ordinary stores wrote to shared memory, and the asynchronous proxy does not see yet.

Bulk copies, wgmma and tcgen05 reach memory through a proxy of their own. An ordinary store comes
before such a read only if a fence.proxy.async lies on the way: by the thread that wrote, or by one
that has synchronised with it since. Here a fence by any lane of the warp that wrote is enough, and
once that warp has arrived at a barrier, one by any warp of the block.

https://docs.nvidia.com/cuda/parallel-thread-execution/#async-proxy
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from numba_marlin.emulator.errors import ProxyHazard
from numba_marlin.emulator.state.block_memory import BlockMemory
from numba_marlin.emulator.state.lanes import Lanes, Placement
from numba_marlin.emulator.text.program import Instruction

ASYNC_READERS = ("wgmma.mma_async", "tcgen05.mma", "tcgen05.cp")
BETWEEN_BLOCKS = ("shared::cluster", "shared::cta")  # of a bulk copy
CLEAN, ANNOUNCED = 0, 0xFF  # in between: 1 + the warp of the block that wrote


class AsyncProxy:
    """``writer`` holds a byte for every shared byte; nothing is recorded unless the kernel has
    instructions that would care."""

    def __init__(
        self, shared: BlockMemory, placement: Placement, instructions: list[Instruction]
    ) -> None:
        self.shared, self.placement = shared, placement
        self.active = any(
            "bulk_group" in ins.modifiers
            or ins.modifiers[:2] == BETWEEN_BLOCKS
            or ins.root in ASYNC_READERS
            for ins in instructions
        )
        self.writer = np.zeros(shared.data.size if self.active else 0, np.uint8)
        # warps that wrote since their last fence or barrier
        self.dirty = np.zeros(placement.warps, bool)
        self.announced = np.zeros(placement.slots, bool)
        self._views: dict[int, np.ndarray] = {}

    def forget(self, slots: slice) -> None:
        if self.active:
            per_block = self.placement.warps_per_block
            self.writer[slots.start * self.shared.stride : slots.stop * self.shared.stride] = CLEAN
            self.dirty[slots.start * per_block : slots.stop * per_block] = False
            self.announced[slots] = False

    def wrote(self, lanes: Lanes, rows: np.ndarray, nbytes: int) -> None:
        """Ordinary stores of ``nbytes`` by each lane, to ``rows`` of so many bytes."""
        view = self._views.get(nbytes)
        if view is None:
            view = self._views[nbytes] = self.writer.reshape(-1, nbytes)
        number = (lanes.warps % self.placement.warps_per_block + 1).astype(np.uint8)
        view[rows] = number[:, None, None] if lanes.full else number[:, None]
        self.dirty[lanes.warps] = True

    def clean(self, start: int, stop: int) -> None:
        """The asynchronous proxy itself wrote these bytes."""
        if self.active:
            self.writer[start:stop] = CLEAN

    def announce(self, warps: Iterable[int]) -> None:
        """``warps`` arrive at a barrier: warps that wait there have seen what they wrote."""
        if self.active:
            for warp in warps:
                if self.dirty[warp]:
                    self.dirty[warp] = False
                    section, own = self._section(warp)
                    section[section == own] = ANNOUNCED
                    self.announced[warp // self.placement.warps_per_block] = True

    def fence(self, lanes: Lanes) -> None:
        """fence.proxy.async by ``lanes``."""
        if not self.active:
            return
        for warp in np.unique(lanes.warps).tolist():
            slot = warp // self.placement.warps_per_block
            section, own = self._section(warp)
            if self.dirty[warp]:
                section[section == own] = CLEAN
                self.dirty[warp] = False
            if self.announced[slot]:
                section[section == ANNOUNCED] = CLEAN
                self.announced[slot] = False

    def require(self, ins: Instruction, lanes: Lanes, start: int, stop: int) -> None:
        """ProxyHazard unless bytes [start, stop) of the shared array are visible to an asynchronous
        read by ``ins``."""
        unseen = self.writer[start:stop]
        if unseen.any():
            first = int(np.argmax(unseen != CLEAN))
            who = "" if unseen[first] == ANNOUNCED else f" by warp {unseen[first] - 1}"
            where = self.shared.describe((start + first) % self.shared.stride)
            raise lanes.fault(
                ProxyHazard,
                f"reads {where} through the async proxy, written{who} with an ordinary store: no"
                " fence.proxy.async since",
                ins,
            )

    def _section(self, warp: int) -> tuple[np.ndarray, int]:
        slot, within = divmod(warp, self.placement.warps_per_block)
        return self.writer[slot * self.shared.stride : (slot + 1) * self.shared.stride], within + 1
