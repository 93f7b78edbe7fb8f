"""Whose local memory a generic address is of: every thread's lies at the same addresses, so one
that a thread is given by another leads to its own.

Here generic addresses of local memory are marked with their thread, by bits that no thread's memory
is large enough to have.
https://docs.nvidia.com/cuda/parallel-thread-execution/#local-state-space
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import OutOfBounds
from numba_marlin.emulator.state.block_memory import BlockMemory
from numba_marlin.emulator.state.lanes import WARP, Lanes
from numba_marlin.emulator.text.program import Instruction

LOCAL_BYTES, OWNERS = 1 << 20, 1 << 12  # together the window


class LocalOwners:
    """``marks`` [warps, 32]: what each lane's generic addresses have besides the window."""

    def __init__(self, local: BlockMemory) -> None:
        self.local = local
        threads = np.arange(local.origin.size).reshape(local.origin.shape)
        self.marks = threads % OWNERS * LOCAL_BYTES

    def unmarked(self, ins: Instruction, lanes: Lanes, address: np.ndarray) -> np.ndarray:
        """Marked addresses within the window as addresses of local memory; OutOfBounds if they are
        of another thread's."""
        bad = address // LOCAL_BYTES * LOCAL_BYTES != self.marks[lanes.sel]
        if bad.any():
            first = int(address[lanes.first(bad)[2]])
            owner, local = first // LOCAL_BYTES, first % LOCAL_BYTES
            warp, lane = divmod(owner % (lanes.placement.warps_per_block * WARP), WARP)
            raise lanes.fault(
                OutOfBounds,
                f"{self.local.describe(local - self.local.base)} of another thread (warp {warp},"
                f" lane {lane} of its block): only that thread can reach it; pass the value, or use"
                " shared memory",
                ins,
                bad,
            )
        return address % LOCAL_BYTES
