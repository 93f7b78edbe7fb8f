"""The special registers of a run: what %tid, %clock and their kin read as.

https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers

What a driver or a profiler would put there is 0: %envreg, %pm, %current_graph_exec; but for the
address of the grid's barrier in %envreg1 and %envreg2. Clocks count warp
instructions. The kilobyte that the system reserves of shared memory (``SHARED_BASE``) is
%reserved_smem_offset's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.state.memory import SHARED_BASE
from numba_marlin.emulator.state.registers import Constant

if TYPE_CHECKING:
    from numba_marlin.emulator.scheduling.execution import Execution


GRID_BARRIER_BYTES = 64


class Cast:
    """A special register read as another type."""

    def __init__(self, source, dtype) -> None:
        self.source, self.dtype = source, dtype

    def __getitem__(self, sel):
        return self.source[sel].astype(self.dtype)


class Clock:
    """%clock and its kin: warp instructions executed so far on the machine, when that at ``pc``
    is."""

    def __init__(self, execution: Execution, shift: int = 0, pc: int = 0) -> None:
        self.execution, self.shift, self.pc = execution, shift, pc

    def __getitem__(self, sel):
        return np.uint64(self.execution.clock(self.pc) >> self.shift)

    def at(self, pc: int) -> Clock:
        return Clock(self.execution, self.shift, pc)


class GridBarrier:
    """%envreg1 and %envreg2: the upper and lower half of the address of the bytes at which the
    blocks of a cooperative grid wait for each other (CUDA's cooperative_groups/details,
    driver_abi.h: a size, and the word that they count in). 0, as in a launch that is not
    cooperative, if not all blocks are on the machine at once."""

    def __init__(self, execution: Execution, shift: int) -> None:
        self.execution, self.shift = execution, shift

    def __getitem__(self, sel):
        return np.uint64(self.address() >> self.shift & 0xFFFFFFFF)

    def address(self) -> int:
        execution = self.execution
        if execution.placement.slots < int(np.prod(execution.grid)):
            return 0
        if not execution.scratch:
            data = np.zeros(GRID_BARRIER_BYTES, np.uint8)
            buffer = execution.memory.globals.buffer(data, "the grid's barrier")
            execution.scratch.append(buffer)
        return execution.scratch[0].address


def special_registers(execution: Execution, slot_of: np.ndarray) -> dict:
    """name -> what is indexed with ``lanes.sel``. ``slot_of`` [warps, 32]: the place of each
    block; what depends on the block in it is filled in by ``Execution.place``."""
    placement, cluster, shared = execution.placement, execution.cluster, execution.memory.shared
    warps, per_block = placement.warps, placement.warps_per_block
    thread = (np.arange(warps)[:, None] % per_block * WARP + np.arange(WARP)).astype(np.uint32)
    bx, by, bz = execution.block
    lane = np.broadcast_to(np.arange(WARP, dtype=np.uint32), (warps, WARP))
    one = np.uint64(1)
    le = ((one << (lane.astype(np.uint64) + one)) - one).astype(np.uint32)
    eq = (one << lane.astype(np.uint64)).astype(np.uint32)
    explicit = execution.kernel.cluster is not None or cluster.size > 1
    registers = {
        "%tid.x": thread % np.uint32(bx),
        "%tid.y": thread // np.uint32(bx) % np.uint32(by),
        "%tid.z": thread // np.uint32(bx * by),
        "%laneid": lane,
        "%warpid": thread // np.uint32(WARP),
        "%smid": slot_of.astype(np.uint32),
        "%lanemask_eq": eq,
        "%lanemask_le": le,
        "%lanemask_lt": le ^ eq,
        "%lanemask_ge": ~(le ^ eq),
        "%lanemask_gt": ~le,
        "%clock": Clock(execution),
        "%clock_hi": Clock(execution, 32),
        "%clock64": Clock(execution),
        "%globaltimer": Clock(execution),
        "%globaltimer_lo": Clock(execution),
        "%globaltimer_hi": Clock(execution, 32),
        "%cluster_ctarank": (slot_of % cluster.size).astype(np.uint32),
        "%is_explicit_cluster": Constant(np.bool_(explicit)),
        "%envreg1": GridBarrier(execution, 32),
        "%envreg2": GridBarrier(execution, 0),
    }
    constants = {
        "%nwarpid": per_block,
        "%nsmid": placement.slots,
        "%gridid": 1,
        "%cluster_nctarank": cluster.size,
        "%dynamic_smem_size": shared.end - SHARED_BASE - execution.shared_static,
        "%total_smem_size": shared.end - SHARED_BASE,
        "%aggr_smem_size": shared.end,
        "%reserved_smem_offset_begin": 0,
        "%reserved_smem_offset_end": SHARED_BASE,
        "%reserved_smem_offset_cap": SHARED_BASE,
        "%reserved_smem_offset_0": 0,
        "%reserved_smem_offset_1": 0,
        "%current_graph_exec": 0,
        **{f"%envreg{i}": 0 for i in range(32) if i not in (1, 2)},
        **{f"%pm{i}{width}": 0 for i in range(8) for width in ("", "_64")},
    }
    registers.update({name: Constant(np.uint64(value)) for name, value in constants.items()})
    for axis, size, count, of_cluster in zip("xyz", execution.block, execution.grid, cluster.shape):
        registers[f"%ntid.{axis}"] = Constant(np.uint32(size))
        registers[f"%nctaid.{axis}"] = Constant(np.uint32(count))
        for name in ("ctaid", "clusterid", "cluster_ctaid"):
            registers[f"%{name}.{axis}"] = np.zeros((warps, WARP), np.uint32)
        registers[f"%cluster_nctaid.{axis}"] = Constant(np.uint32(of_cluster))
        registers[f"%nclusterid.{axis}"] = Constant(np.uint32(count // of_cluster))
    return registers
