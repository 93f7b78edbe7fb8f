"""What a run on the PTX machine executed, instruction by instruction: what a warp does around its
first products, and how many warp instructions only a part of their warp's lanes executed.

``Execution`` is a ``Listener.before``. Its clock counts the warp instructions that the machine has
executed: an order, not time. Instructions that mention ``hidden`` (a recorder's registers) are not
the kernel's own and do not count.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from numba_marlin.counts.instructions import TENSOR, class_of
from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.text.program import Instruction
from numba_marlin.profile.sources.access import short, way

PRODUCTS, ROWS = 3, 20  # runs of products that end a list, and rows that it keeps before that
MOVED, PRODUCT, HALVES, OTHER = "memory", "product", "halves", "other"
DEQUANTISES = "lop3, arithmetic on pairs of halves"


class Execution:
    """``executed``, ``partial``: warp instructions, and those of lanes that had left their warp's
    others; ``products``: rows of the first warp of block 0 that came to ``PRODUCTS`` runs of
    products, [] if none did: loads and copies, arithmetic that dequantises, products; integers,
    addresses and branches between them are left out."""

    def __init__(self, hidden: str) -> None:
        self.hidden = hidden
        self.executed = self.partial = 0
        self.products: list[dict] = []
        self._rows: dict[int, deque[dict]] = {}
        self._kinds: dict[int, tuple[str, str, tuple[str, str] | None] | None] = {}

    def __call__(self, ins: Instruction, lanes: Lanes) -> None:
        kind = self._kind(ins)
        if kind is None:
            return
        warps = lanes.warps if lanes.full else np.unique(lanes.warps)
        self.executed += len(warps)
        if not lanes.full:
            self.partial += len(warps)
        if self.products or kind[0] == OTHER:
            return
        placement = lanes.placement
        for warp in warps.tolist():
            if tuple(placement.block_of[warp // placement.warps_per_block]) == (0, 0, 0):
                self._add(warp % placement.warps_per_block, *kind)

    def _kind(self, ins: Instruction) -> tuple[str, str, tuple[str, str] | None] | None:
        """(kind, name, way) of an instruction; None for the recorder's."""
        if id(ins) not in self._kinds:
            where = way(ins)
            kind = (
                PRODUCT
                if class_of(ins) == TENSOR and ins.root.startswith(("mma", "wgmma", "tcgen05.mma"))
                else MOVED
                if where is not None
                else HALVES
                if ins.root == "lop3" or ins.opcode.endswith(("f16x2", "bf16x2"))
                else OTHER
            )
            name = DEQUANTISES if kind == HALVES else short(ins.opcode)
            if kind == PRODUCT and where is None:
                where = "registers", "tensor cores"
            self._kinds[id(ins)] = None if self.hidden in ins.text else (kind, name, where)
        return self._kinds[id(ins)]

    def _add(self, warp: int, kind: str, name: str, where: tuple[str, str] | None) -> None:
        rows = self._rows.setdefault(warp, deque(maxlen=ROWS))
        if rows and rows[-1]["what"] == name:
            rows[-1]["times"] += 1
            return
        if kind == PRODUCT and sum(row["kind"] == PRODUCT for row in rows) == PRODUCTS - 1:
            self.products = [{"warp": warp, **row} for row in rows]
            return
        rows.append(
            {
                "clock": self.executed,
                "kind": kind,
                "what": name,
                "times": 1,
                "from": where[0] if where else "registers",
                "to": where[1] if where else "registers",
            }
        )
