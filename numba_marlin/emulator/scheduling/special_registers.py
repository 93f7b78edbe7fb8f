"""The special registers of a run: what %tid, %clock and their kin read as.

https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers

What a driver or a profiler would put there is 0: %envreg, %pm, %current_graph_exec; but for the
address of the grid's barrier in %envreg1 and %envreg2. Clocks count warp
instructions. The kilobyte that the system reserves of shared memory (``SHARED_BASE``) is
%reserved_smem_offset's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class SpecialRegisters:
    """``[name]``: what is indexed with ``lanes.sel``; made when it is asked for, since a kernel
    names few of them. ``slot_of`` [warps, 32]: the place of each block."""

    def __init__(self, execution: Execution, slot_of: np.ndarray) -> None:
        self.execution, self.slot_of = execution, slot_of
        self.per_block = execution.placement.warps_per_block
        self.where = np.zeros((3, execution.placement.slots), np.uint32)  # x, y, z of each block
        self.made: dict[str, object] = {}

    def __getitem__(self, name: str):
        if name not in self.made:
            self.made[name] = MAKERS[name](self)
        return self.made[name]

    def place(self, slots: Sequence[int], where: np.ndarray) -> None:
        """Blocks whose places in the grid are ``where`` [3, slots] move into ``slots``."""
        self.where[:, slots] = where
        for name in self.made.keys() & OF_BLOCK.keys():
            array = self.made[name]
            array.reshape(-1, self.per_block * WARP)[slots] = self.of_block(name)[slots, None]

    def of_block(self, name: str) -> np.ndarray:
        """[slots]"""
        axis, of = OF_BLOCK[name]
        return of(self.where[axis], np.uint32(self.execution.cluster.shape[axis]))

    def of_blocks(self, name: str) -> np.ndarray:
        """[warps, 32]"""
        return np.repeat(self.of_block(name), self.per_block * WARP).reshape(-1, WARP)

    @property
    def thread(self) -> np.ndarray:
        """[warps, 32]: the number within its block."""
        warps = np.arange(len(self.slot_of), dtype=np.uint32) % np.uint32(self.per_block)
        return warps[:, None] * np.uint32(WARP) + np.arange(WARP, dtype=np.uint32)

    def tid(self, axis: int) -> np.ndarray:
        x, y, _ = map(np.uint32, self.execution.block)
        thread = self.thread
        return (thread % x, thread // x % y, thread // (x * y))[axis]

    def lanes(self, values: np.ndarray) -> np.ndarray:
        """``values`` [32], the same in each warp."""
        return np.broadcast_to(values.astype(np.uint32), self.slot_of.shape)


def of_execution(number: Callable[[Execution], int]) -> Callable[[SpecialRegisters], Constant]:
    return lambda made: Constant(np.uint64(number(made.execution)))


def of_axis(axis: int) -> dict[str, Callable[[SpecialRegisters], object]]:
    """Registers that have a part for each axis of the grid."""

    def count(each: Execution) -> int:
        return each.grid[axis]

    def cluster(each: Execution) -> int:
        return each.cluster.shape[axis]

    return {
        "tid": lambda made: made.tid(axis),
        "ntid": lambda made: Constant(np.uint32(made.execution.block[axis])),
        "nctaid": lambda made: Constant(np.uint32(count(made.execution))),
        "cluster_nctaid": lambda made: Constant(np.uint32(cluster(made.execution))),
        "nclusterid": lambda made: Constant(
            np.uint32(count(made.execution) // cluster(made.execution))
        ),
    }


def own_shared(execution: Execution) -> int:
    """Bytes of a block's shared memory, without what the system reserves."""
    return execution.memory.shared.end - SHARED_BASE


def explicit_cluster(made: SpecialRegisters) -> Constant:
    execution = made.execution
    return Constant(np.bool_(execution.kernel.cluster is not None or execution.cluster.size > 1))


# of blocks: along which axis, and from the block's place and its cluster's size there
OF_BLOCK = {
    f"%{name}.{axis}": (number, of)
    for number, axis in enumerate("xyz")
    for name, of in (
        ("ctaid", lambda where, size: where),
        ("clusterid", lambda where, size: where // size),
        ("cluster_ctaid", lambda where, size: where % size),
    )
}
BIT = np.uint64(1) << np.arange(WARP, dtype=np.uint64)
UP_TO = (BIT << np.uint64(1)) - np.uint64(1)  # this lane and those before
MAKERS: dict[str, Callable[[SpecialRegisters], object]] = {
    **{name: lambda made, name=name: made.of_blocks(name) for name in OF_BLOCK},
    **{
        f"%{name}.{axis}": make
        for number, axis in enumerate("xyz")
        for name, make in of_axis(number).items()
    },
    "%laneid": lambda made: made.lanes(np.arange(WARP)),
    "%warpid": lambda made: made.thread // np.uint32(WARP),
    "%smid": lambda made: made.slot_of.astype(np.uint32),
    "%lanemask_eq": lambda made: made.lanes(BIT),
    "%lanemask_le": lambda made: made.lanes(UP_TO),
    "%lanemask_lt": lambda made: made.lanes(UP_TO ^ BIT),
    "%lanemask_ge": lambda made: made.lanes(~(UP_TO ^ BIT)),
    "%lanemask_gt": lambda made: made.lanes(~UP_TO),
    **{
        f"%{name}": lambda made, shift=shift: Clock(made.execution, shift)
        for name, shift in (
            *(("clock", 0), ("clock_hi", 32), ("clock64", 0)),
            *(("globaltimer", 0), ("globaltimer_lo", 0), ("globaltimer_hi", 32)),
        )
    },
    "%cluster_ctarank": lambda made: (made.slot_of % made.execution.cluster.size).astype(np.uint32),
    "%is_explicit_cluster": explicit_cluster,
    "%nwarpid": lambda made: Constant(np.uint64(made.per_block)),
    "%nsmid": of_execution(lambda each: each.placement.slots),
    "%gridid": of_execution(lambda each: 1),
    "%cluster_nctarank": of_execution(lambda each: each.cluster.size),
    "%dynamic_smem_size": of_execution(lambda each: own_shared(each) - each.shared_static),
    "%total_smem_size": of_execution(own_shared),
    "%aggr_smem_size": of_execution(lambda each: each.memory.shared.end),
    "%reserved_smem_offset_begin": of_execution(lambda each: 0),
    "%reserved_smem_offset_end": of_execution(lambda each: SHARED_BASE),
    "%reserved_smem_offset_cap": of_execution(lambda each: SHARED_BASE),
    "%reserved_smem_offset_0": of_execution(lambda each: 0),
    "%reserved_smem_offset_1": of_execution(lambda each: 0),
    "%current_graph_exec": of_execution(lambda each: 0),
    **{f"%envreg{i}": of_execution(lambda each: 0) for i in range(32)},
    "%envreg1": lambda made: GridBarrier(made.execution, 32),
    "%envreg2": lambda made: GridBarrier(made.execution, 0),
    **{f"%pm{i}{wide}": of_execution(lambda each: 0) for i in range(8) for wide in ("", "_64")},
}
