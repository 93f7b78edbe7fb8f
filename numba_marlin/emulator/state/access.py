"""``Access``: what listeners and race detection are told of a memory access."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.text.program import Instruction


class Access(NamedTuple):
    """One instruction's access: ``address`` int64 of ``lanes.shape`` within ``space``, ``nbytes`` a
    lane.

    ``kind``: load, store, atomic, copy-source, copy-issue, copy-land, ldmatrix, stmatrix, mbarrier,
    bulk-issue, bulk-land.

    What accesses do not show whole is told to ``Memory.requests`` instead, if somebody listens
    there, when the instruction is executed: atomic-request (``space`` may be generic), copy-request
    (the global side of cp.async), bulk-read and bulk-write (that of a bulk copy: one lane,
    ``address`` [rows] of ``nbytes`` each), tensor-a, tensor-b and tensor-copy (operands of
    tcgen05.mma and .cp: one lane, positions [chunks] in the shared array), tensor-load and
    tensor-store (``space`` tensor: each lane's share of tcgen05.ld and .st).
    """

    kind: str
    space: str
    ins: Instruction
    lanes: Lanes
    address: np.ndarray
    nbytes: int
    values: np.ndarray | None = None
    """What a store or an atomic writes, [*lanes.shape, count] of unsigned integers."""
