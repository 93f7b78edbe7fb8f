"""Where the offsets of fp8 activations lie (``formats.activations`` says what they are): of m rows
of k numbers, a 16-bit float array [m, parts, P], C-contiguous, P the groups of OFFSET_GROUP
numbers, filled up to a multiple of OFFSET_STEP."""

from __future__ import annotations

OFFSET_GROUP = 128  # numbers along k that an offset is of
OFFSET_STEP = 64  # offsets at a time: 128 bytes, a row of a tensor copy's box
# the number rounded, and the rest where bits are few: 11 bits leave out a fortieth of what the
# rounding of x does to a result (experiments/23_w4a8/losses.py)
OFFSET_PARTS = {"float16": 1, "bfloat16": 2}
OFFSET_EVEN, OFFSET_ODD = -8, 7  # v less what stands for it, at even and at odd k
OFFSET_UNIT = 2.0**-9  # the byte of a 4-bit code c stands for c times that in e4m3


def has_offsets(kind: str, group_size: int | None) -> bool:
    """Of activations of that kind, with so many numbers to a scale; None for a row's."""
    return kind == "fp8" and group_size is None


def offset_shape(m: int, k: int, dtype: str) -> tuple[int, int, int]:
    return m, OFFSET_PARTS[dtype], OFFSET_STEP * -(-k // (OFFSET_STEP * OFFSET_GROUP))
