"""The reader's choice of block, warp and lane, and helpers that several sections share."""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.hardware.devices import Device
from numba_marlin.trace.history import TENSOR, History, history_of
from numba_marlin.trace.record import Trace


@dataclass(frozen=True)
class Choice:
    """What the reader wants to see.

    block: index in the grid.
    warp: index within the block.
    lane: index within the warp.
    step: which of the warp's tensor-core instructions, from 0; of its loads of weights if it has no
        such instructions.
    device: the device whose memory hierarchy is shown.
    """

    block: int = 0
    warp: int = 0
    lane: int = 0
    step: int = 0
    device: Device | None = None

    def check(self, trace: Trace) -> None:
        """Raise ValueError, which lists what the trace has, if it lacks the block, warp or lane."""
        if self.block not in trace.header["blocks"]:
            raise ValueError(
                f"block {self.block} was not recorded: the trace has"
                f" {ranges(trace.header['blocks'])}"
            )
        for name, value, count in (("warp", self.warp, trace.warps), ("lane", self.lane, 32)):
            if not 0 <= value < count:
                raise ValueError(f"{name} {value} must be 0 to {count - 1}")
        if self.step < 0:
            raise ValueError(f"step {self.step} must not be negative")

    @property
    def words(self) -> str:
        return f"block {self.block}, warp {self.warp}"

    def grid_warp(self, trace: Trace) -> int:
        return self.block * trace.warps + self.warp


def chosen_history(trace: Trace, choice: Choice) -> History:
    return history_of(trace, choice.grid_warp(trace))


def products(history: History) -> list[int]:
    """Return the steps at which a warp executed tensor-core instructions."""
    return history.steps_with(*TENSOR).tolist()


def order_of(trace: Trace) -> str:
    """Return, in sentences, the order in which the machine ran the warps. Files of earlier
    versions do not name it: theirs is "rounds"."""
    if trace.about.get("order") == "in turn":
        return (
            "The order is one of many legal ones: every warp issues at the same rate and bulk"
            " copies land at any time until a warp has waited for them, so producers run ahead of"
            " consumers as far as the ring lets them. A GPU promises no order."
        )
    return (
        "The order is the machine's own, one of many legal ones: every warp runs one round of its"
        " loop after the other, and copies land as late as the ISA allows, when a warp has waited"
        " for them. A GPU promises no order."
    )


def ranges(numbers: list[int]) -> str:
    """Format ascending integers as ranges: [0, 1, 2, 5] -> "0-2, 5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in found)


def size(nbytes: float) -> str:
    """Format a number of bytes: as an integer below 10,000, else in KiB, MiB or GiB."""
    if nbytes < 10_000:
        return f"{int(nbytes):,} B"
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= factor:
            return f"{nbytes / factor:,.4g} {unit}"
    return f"{int(nbytes):,} B"


def element(trace: Trace, address: int) -> tuple[str, int, int]:
    """Return (buffer, row, column) of the element at a global address; a vector has one row.
    Returns ("?", 0, address) for an address outside all buffers."""
    buffer = trace.buffer_at(address)
    if buffer is None:
        return "?", 0, address
    shape = buffer["shape"]
    width = shape[-1] if shape else 1
    itemsize = buffer["nbytes"] // max(_count(shape), 1)
    index = (address - buffer["address"]) // itemsize
    return buffer["name"], index // width, index % width


def word_place(buffer: dict, address: int) -> tuple[int, int, int]:
    """Return (expert, row, column) of the word at an address of packed weights [rows, words], or
    those of several experts [experts, rows, words]."""
    *experts, rows, words = buffer["shape"]
    row, column = divmod((address - buffer["address"]) // 4, words)
    return (*divmod(row, rows), column) if experts else (0, row, column)


def _count(shape: list[int]) -> int:
    total = 1
    for each in shape:
        total *= each
    return total
