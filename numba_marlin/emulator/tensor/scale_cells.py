"""The scales of a tcgen05 product, read out of tensor memory.

https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-block-scaling
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.errors import BadDescriptor
from numba_marlin.emulator.tensor.tensor_memory import TensorMemory
from numba_marlin.layout import tcgen05
from numba_marlin.layout.tcgen05 import InstructionDescriptor, Kind

if TYPE_CHECKING:
    from numba_marlin.emulator.tensor.tensor_cores import Operation


def scales_of(
    tensor: TensorMemory,
    use: Operation,
    slot: int,
    kind: Kind,
    shape: InstructionDescriptor,
    columns: Sequence[tuple[int, int]],
) -> list[np.ndarray]:
    """Scales of A and of B, uint8 [rows, kind.vectors] each, for the block in ``slot``.

    ``columns``: [start, stop) of both in tensor memory. UninitializedRead if they were not written;
    BadDescriptor if the four times 32 lanes differ, or an unsigned e4m3 has its sign bit set.
    """
    found = []
    for (start, _), rows, first, what in zip(
        columns, (tcgen05.ROWS, shape.n), (shape.sfa_id, shape.sfb_id), "AB"
    ):
        lane, column = tcgen05.scale_cells(rows)
        tensor.require_written(use.ins, use.lanes, slot, lane, column + start, f"scales of {what}")
        words = [
            tensor.data[slot, lane + quarter, column + start]
            for quarter in range(0, tcgen05.LANES, tcgen05.WARP_LANES)
        ]
        if any((words[0] != other).any() for other in words[1:]):
            raise use.lanes.fault(
                BadDescriptor,
                f"the scales of {what} differ between the four times 32 lanes, which must all"
                " hold them",
                use.ins,
            )
        scale = (
            np.ascontiguousarray(words[0])
            .view(np.uint8)
            .reshape(rows, 4)[:, first : first + kind.vectors]
        )
        if shape.scale == "e4m3" and (scale & 0x80).any():
            row = int(np.argmax((scale & 0x80).any(axis=1)))
            raise use.lanes.fault(
                BadDescriptor,
                f"a scale of row {row} of {what} is {int(scale[row].max()):#04x}: ue4m3 has no"
                " sign, the highest bit must be 0",
                use.ins,
            )
        found.append(scale)
    return found
