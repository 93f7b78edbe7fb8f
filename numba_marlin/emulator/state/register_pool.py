"""setmaxnreg: warps give registers to their block's pool and take some from it. (The machine has
as many registers as a kernel names; only the accounts are kept.)

Checked when a block ends: the four warps of a warpgroup have traded alike, and what is taken in the
end is not more than the block had, or an inc would never have returned. A kernel enters with the
registers of .maxnreg, else with as many as its launch bounds allow.
https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import Deadlock, DivergentCollective
from numba_marlin.emulator.state.lanes import WARP, Lanes, Placement, error_at
from numba_marlin.emulator.text.program import Instruction, Kernel
from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.hardware.limits import SETMAXNREG_MOST, SETMAXNREG_STEP, WARPGROUP_WARPS

LANES = tuple(range(WARP))


class RegisterPool:
    def __init__(self, placement: Placement, kernel: Kernel) -> None:
        self.placement = placement
        threads = (kernel.max_threads or 1) * kernel.min_blocks
        bound = HOPPER.registers_per_sm // threads // SETMAXNREG_STEP * SETMAXNREG_STEP
        self.entry = min(SETMAXNREG_MOST, kernel.max_registers or bound)
        # of each warp: (registers per thread from now on, by which instruction)
        self.trades: dict[int, list[tuple[int, Instruction]]] = {}

    def trade(self, ins: Instruction, lanes: Lanes, count: int) -> None:
        lanes.require_whole_warps(ins, "setmaxnreg")
        for warp in np.unique(lanes.warps).tolist():
            self.trades.setdefault(warp, []).append((count, ins))

    def block_ended(self, slot: int) -> None:
        if not self.trades:
            return
        per_block = self.placement.warps_per_block
        warps = range(slot * per_block, (slot + 1) * per_block)
        done = [self.trades.pop(warp, []) for warp in warps]
        if not any(done):
            return
        for first in range(0, per_block, WARPGROUP_WARPS):
            for within in range(first, min(first + WARPGROUP_WARPS, per_block)):
                if done[within] != done[first]:
                    warp, other = (
                        (within, first)
                        if len(done[within]) >= len(done[first])
                        else (first, within)
                    )
                    ins = next(
                        ins
                        for number, (_, ins) in enumerate(done[warp])
                        if done[other][number : number + 1] != done[warp][number : number + 1]
                    )
                    raise error_at(
                        DivergentCollective,
                        f"warp {other} of the same warpgroup did not execute it: all four warps"
                        " must",
                        ins,
                        self.placement,
                        warps[warp],
                        LANES,
                    )
        wanted = sum(trades[-1][0] if trades else self.entry for trades in done) * WARP
        if wanted > self.entry * WARP * per_block:
            within = max(
                (within for within in range(per_block) if done[within]),
                key=lambda within: done[within][-1][0],
            )
            raise error_at(
                Deadlock,
                f"waits for registers for ever: the block asks for {wanted} in all and entered with"
                f" {self.entry * WARP * per_block}, {self.entry} for each of its threads",
                done[within][-1][1],
                self.placement,
                warps[within],
                LANES,
            )
