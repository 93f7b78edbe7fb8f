"""Telling a deadlock from patience: do all warps that can run merely repeat themselves?

Once memory has not changed for a while, take a snapshot of pcs and registers. If later every
runnable warp has had a turn and pcs and registers are the same again, with memory still unchanged,
the machine is in a cycle it cannot leave (it is deterministic). Snapshots are renewed at doubling
distances, so a cycle of any length is found (Brent's algorithm).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numba_marlin.emulator.scheduling.execution import Execution
from numba_marlin.emulator.state.paths import Bundle

PATIENCE = 512  # basic blocks without a change of memory before looking closely
LONG = 1 << 12  # and before lanes that wait for others of their warp go on alone


class SpinDetector:
    def __init__(self, execution: Execution) -> None:
        self.arrays = execution.registers.arrays
        self.stamp, self.quiet, self.renew_at = -1, 0, 0
        self.signature, self.registers, self.latest_round = None, None, 0

    def idle(self, stamp: int) -> bool:
        """Call after every basic block with a number that grows when anything changes. True if it
        is time to look."""
        if stamp != self.stamp:
            self.stamp, self.quiet, self.registers, self.renew_at = stamp, 0, None, PATIENCE
            return False
        self.quiet += 1
        return self.quiet >= PATIENCE

    def long(self) -> bool:
        """Whether nothing has changed for so long that who counts while spinning spins too."""
        return self.quiet >= LONG

    def repeats(self, bundles: Sequence[Bundle]) -> bool:
        """Whether the machine is where it was at the snapshot, after every bundle has moved."""
        if self.quiet >= self.renew_at:
            self.renew_at *= 2
            self._remember(bundles)
            return False
        if self.registers is None or min(bundle.round for bundle in bundles) <= self.latest_round:
            return False
        first = bundles[0].paths[0].warp
        # A loop that counts shows in one warp; compare all only if that one agrees.
        for rows in (slice(first, first + 1), slice(None)):
            for width, array in self.arrays.items():
                if not np.array_equal(array[:, rows], self.registers[width][:, rows]):
                    return False
        return self._sign(bundles) == self.signature

    def _remember(self, bundles: Sequence[Bundle]) -> None:
        self.signature = self._sign(bundles)
        self.registers = {width: array.copy() for width, array in self.arrays.items()}
        self.latest_round = max(bundle.round for bundle in bundles)

    @staticmethod
    def _sign(bundles: Sequence[Bundle]):
        return sorted((b.pc, path.warp, path.mask) for b in bundles for path in b.paths)
