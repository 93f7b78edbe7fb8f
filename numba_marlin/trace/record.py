"""``Trace``: the recording of one run: a header of plain data, and arrays. A trace file is
self-contained.

header: ``kernel`` entry's name, ``launch`` (grid, block, cluster, shared_bytes, shared_base),
``target``, ``result`` (instructions, steps, blocks, shared_bytes), ``blocks`` whose registers and
addresses were recorded, ``source`` {file: {line: text}} of what the kernel was compiled from,
``complete`` whether registers were recorded to the end, ``instructions`` [pc] of {line, text, root,
phase, source, kind, reads, writes, guarded}, ``registers`` names, ``buffers`` of {name, address,
nbytes, dtype, shape}, ``counts`` (counts.Counts as plain data), ``about`` the caller's description
of the problem.

arrays. A step is one instruction, executed by one or more warps together; step numbers are the
machine's time. Warps are numbered over the whole grid.

- step_pc, step_set int32 [steps]
- set_start int64 [sets + 1], set_warp int32, set_mask uint32 [members]: the warps and lanes of a
  set
- access_step, access_pc, access_kind (of KINDS), access_space (of SPACES), access_bytes (per lane),
  access_warp [N]; access_address int64 [N, 32], -1 for inactive lanes
- bulk_step, bulk_pc, bulk_kind, bulk_warp, bulk_lane, bulk_address, bulk_bytes [N]: bulk copies,
  one row per contiguous piece
- write_step, write_register, write_warp [N]; write_value uint32 [N, 32]: registers after each
  instruction that wrote them; a 64-bit register takes two rows
- lock_step, lock_pc, lock_warp, lock_address, lock_before [N]: accesses of all blocks to the buffer
  "locks", and the value before
- tile_step, tile_pc, tile_warp, tile_address [N]; tile_value uint8 [N, 16]: 16-byte chunks that
  wgmma and tcgen05 read by descriptor, at issue; for tcgen05.mma those of A, row by row, then those
  of B
- words_NAME, after_NAME uint8: the contents of buffer NAME before the run, and after it if it was
  writable
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

SCHEMA = "numba-marlin/trace-file/1"
KINDS = (
    "load",
    "store",
    "atomic-request",
    "ldmatrix",
    "stmatrix",
    "copy-issue",
    "copy-request",
    "copy-land",
    "mbarrier",
    "atomic",
    "copy-source",
    "wgmma",
    "bulk-issue",
    "bulk-land",
    "bulk-read",
    "bulk-write",
)
HIGH = ".hi"  # behind the name of a 64-bit register: its upper word
SPACES = ("global", "shared", "local", "generic", "shared::cluster")


def remembered(function: Callable) -> Callable:
    """``function(trace, *arguments)``, computed once and kept with the trace for as long as that
    lives."""

    @functools.wraps(function)
    def call(trace: Trace, *arguments):
        key = function.__name__, *arguments
        if key not in trace.memo:
            trace.memo[key] = function(trace, *arguments)
        return trace.memo[key]

    return call


@dataclass(eq=False)
class Trace:
    header: dict
    arrays: dict[str, np.ndarray] = field(repr=False)
    memo: dict = field(default_factory=dict, repr=False)  # see remembered

    def __getattr__(self, name: str):
        """An array, by its name."""
        try:
            return self.__dict__["arrays"][name]
        except KeyError:
            raise AttributeError(f"a trace has no array {name!r}") from None

    @property
    def instructions(self) -> list[dict]:
        return self.header["instructions"]

    @property
    def about(self) -> dict:
        return self.header["about"]

    @property
    def counts(self) -> dict:
        return self.header["counts"]

    @property
    def block_scaled(self) -> bool:
        """Whether both operands are block-scaled matrices, A [m, k] and B [n, k] with their codes
        side by side (``formats.block_scaled``), and the result is D."""
        return self.about.get("kind") == "operands"

    @property
    def of_experts(self) -> bool:
        """Whether the weights are those of a mixture's experts, b [experts, k/16, words]."""
        return self.about.get("kind") == "experts"

    @property
    def activations(self) -> str | None:
        """The kind of x in 8 bits, one of ``formats.activations.KINDS``; None: 16 bits."""
        return (self.about.get("problem") or {}).get("activations")

    @property
    def result_name(self) -> str:
        """The name of the buffer with the result."""
        return "d" if self.block_scaled else "c"

    @property
    def steps(self) -> int:
        return len(self.step_pc)

    @property
    def warps(self) -> int:
        """Warps per block."""
        x, y, z = self.header["launch"]["block"]
        return -(-x * y * z // 32)

    @property
    def blocks(self) -> int:
        return self.header["result"]["blocks"]

    def buffer_at(self, address: int) -> dict | None:
        """The buffer in which a global address lies."""
        return next(
            (
                each
                for each in self.header["buffers"]
                if each["address"] <= address < each["address"] + each["nbytes"]
            ),
            None,
        )

    def buffer(self, name: str) -> dict | None:
        return next((each for each in self.header["buffers"] if each["name"] == name), None)

    def steps_of(self, warp: int) -> np.ndarray:
        """The numbers of the steps in which a warp took part, int64, rising."""
        return self.steps_and_lanes(warp)[0]

    def steps_and_lanes(self, warp: int) -> tuple[np.ndarray, np.ndarray]:
        """The same steps, and the mask of the warp's lanes at each, uint32."""
        masks = np.zeros(len(self.set_start) - 1, np.uint32)
        members = np.flatnonzero(self.set_warp == warp)
        masks[np.searchsorted(self.set_start, members, side="right") - 1] = self.set_mask[members]
        of_step = masks[self.step_set]
        steps = np.flatnonzero(of_step)
        return steps, of_step[steps]
