"""Who executes: a set of lanes of resident warps, in the form NumPy indexes fastest.

Per-lane state lives in arrays [warps, 32], all resident warps of all resident blocks along the
first axis. A Lanes object carries ``sel``, which indexes such an array:

- whole warps: a slice or an array of warp numbers; values have the shape [count, 32];
- parts of warps: a pair of arrays (warp, lane); values have the shape [count].

Handlers are written elementwise, so they need not know which.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numba_marlin.emulator.errors import DivergentCollective, MachineError
from numba_marlin.emulator.text.program import Instruction

FULL = 0xFFFFFFFF
WARP = 32


class Placement:
    """Which block sits in which slot of resident blocks: ``block_of[slot]`` is (x, y, z).

    ``live[warp]`` is the mask of lanes that have not exited.
    """

    def __init__(self, slots: int, warps_per_block: int, threads: int) -> None:
        self.slots, self.warps_per_block = slots, warps_per_block
        self.warps = slots * warps_per_block
        self.block_of: list[tuple[int, int, int]] = [(0, 0, 0)] * slots
        tail = threads - WARP * (warps_per_block - 1)
        self.initial_mask = [FULL] * (warps_per_block - 1) + [FULL >> (WARP - tail)]
        self.live = self.initial_mask * slots


class Lanes:
    __slots__ = ("placement", "sel", "full", "warps", "columns", "owner", "_shape")

    def __init__(
        self, placement: Placement, warps: np.ndarray, columns: np.ndarray | None, owner=None
    ) -> None:
        self.placement, self.warps, self.columns, self.owner = placement, warps, columns, owner
        self.full = columns is None
        if self.full:
            self.sel, self._shape = as_slice(warps), (len(warps), WARP)
        else:
            self.sel, self._shape = (warps, columns), (len(warps),)

    @classmethod
    def of(cls, placement: Placement, warps: Sequence[int], masks: Sequence[int] | None) -> Lanes:
        """From warp numbers and, unless all 32 lanes of each take part, their lane masks (bit i is
        lane i)."""
        rows = np.array(warps, dtype=np.intp)
        if masks is None:
            return cls(placement, rows, None)
        owner, columns = np.nonzero(unpack_masks(masks))
        return cls(placement, rows[owner], columns, owner)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a value per lane."""
        return self._shape

    def narrow(self, active: np.ndarray) -> Lanes:
        """Those of these lanes for which ``active`` (bool, of ``shape``) holds."""
        if not self.full:
            owner = None if self.owner is None else self.owner[active]
            return Lanes(self.placement, self.warps[active], self.columns[active], owner)
        whole = active.all(axis=1)
        if np.array_equal(whole, active.any(axis=1)):
            return Lanes(self.placement, self.warps[whole], None)
        owner, columns = np.nonzero(active)
        return Lanes(self.placement, self.warps[owner], columns, owner)

    def one(self, index: tuple[int, ...]) -> Lanes:
        """The lane whose value has ``index``."""
        row = index[0]
        columns = np.array([index[1]]) if self.full else self.columns[row : row + 1]
        return Lanes(self.placement, self.warps[row : row + 1], columns, np.zeros(1, np.intp))

    def masks_by_warp(self) -> dict[int, int]:
        """Warp -> mask of its executing lanes."""
        if self.full:
            return dict.fromkeys(self.warps.tolist(), FULL)
        masks: dict[int, int] = {}
        for warp, lane in zip(self.warps.tolist(), self.columns.tolist()):
            masks[warp] = masks.get(warp, 0) | 1 << lane
        return masks

    def require_whole_warps(self, ins: Instruction, what: str) -> None:
        """Raise DivergentCollective unless all 32 lanes of every warp are here."""
        if self.full:
            return
        for warp, mask in self.masks_by_warp().items():
            if mask != FULL:
                raise error_at(
                    DivergentCollective,
                    f"{what} needs all 32 lanes of the warp, these came alone",
                    ins,
                    self.placement,
                    warp,
                    mask_lanes(mask),
                )

    def fault(
        self, kind: type, detail: str, ins: Instruction, bad: np.ndarray | None = None
    ) -> MachineError:
        """An error about the first warp that has a ``bad`` lane (all lanes if None). ``bad`` has
        the shape of values."""
        warp, lanes, _ = self.first(np.ones(self._shape, bool) if bad is None else bad)
        return error_at(kind, detail, ins, self.placement, warp, lanes)

    def first(self, bad: np.ndarray) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """(warp, its bad lanes, index of the first bad value)."""
        where = np.argwhere(bad)
        index = tuple(int(i) for i in where[0])
        warp = int(self.warps[index[0]])
        if self.full:
            return warp, tuple(int(lane) for row, lane in where if row == index[0]), index
        return warp, tuple(int(self.columns[i]) for (i,) in where if self.warps[i] == warp), index


def error_at(
    kind: type,
    detail: str,
    ins: Instruction,
    placement: Placement,
    warp: int,
    lanes: tuple[int, ...],
) -> MachineError:
    """``warp`` counts over all resident warps; the message has the warp within its block."""
    slot, within = divmod(warp, placement.warps_per_block)
    return kind(
        detail,
        line=ins.line,
        text=ins.text,
        block=placement.block_of[slot],
        warp=within,
        lanes=lanes,
    )


def as_slice(numbers: np.ndarray):
    """An equivalent slice if the numbers are evenly spaced and rising, else the array itself."""
    count = len(numbers)
    if count == 1:
        first = int(numbers[0])
        return slice(first, first + 1)
    if count:
        step = int(numbers[1]) - int(numbers[0])
        if step > 0 and (numbers[1:] - numbers[:-1] == step).all():
            return slice(int(numbers[0]), int(numbers[-1]) + 1, step)
    return numbers


def unpack_masks(masks: Sequence[int]) -> np.ndarray:
    """Lane masks -> bool [count, 32]."""
    words = np.array(masks, dtype="<u4")
    return np.unpackbits(words.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little").astype(
        bool
    )


def pack_masks(active: np.ndarray) -> np.ndarray:
    """Bool [count, 32] -> uint32 masks."""
    return np.packbits(active, axis=1, bitorder="little").view("<u4").reshape(-1)


def mask_lanes(mask: int) -> tuple[int, ...]:
    return tuple(lane for lane in range(WARP) if mask >> lane & 1)
