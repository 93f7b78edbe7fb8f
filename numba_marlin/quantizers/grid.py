"""Integer grids: checks of weights, the scale and zero point for a range of weights, and their
codes.

A grid has ``2**bits`` points ``(code - zero) * scale``. For weights in the range ``low <= 0 <=
high``, with ``top = 2**bits - 1`` and ``half = 2**(bits - 1)``:

- symmetric: ``scale = fp16(2 * max(high, -low) / top)``, zero = half. The grid reaches from -half
  to half - 1 steps, and top / 2 steps is the largest magnitude that either end can still round to
  with an error of half a step. So this is the smallest scale (the finest grid) for which no weight
  is further than half a step from its code; ``max|w| / (half - 1)`` would never clamp, but its grid
  is coarser (7% at 4 bits). Marlin's own tests use the same rule.
- asymmetric: ``scale = fp16((high - low) / top)``, ``zero = clamp(rint(-low / scale), 0, top)``.
  Zero itself is on the grid.

The scale is rounded to its type (float16 or bfloat16) first, so zeros and codes belong to the scale
that is stored.

Edge cases, all decided per (group, column):
- low = high = 0: scale 1, zero half, or 0 if asymmetric;
- a scale that would underflow to zero becomes the smallest positive float16 number, or the smallest
  normal bfloat16 number, and the codes follow from it;
- a scale whose grid would overflow its type (above 8188 for 4 bits and float16, symmetric) is a
  ValueError that names group and column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.formats.floats import HALF_TYPES, largest, round_to
from numba_marlin.formats.types import check_bits

SMALLEST_SCALE = {"float16": 2.0**-24, "bfloat16": 2.0**-126}
_DTYPES = ("float16", "float32", "float64", "bfloat16")


def check_weights(w: object) -> np.ndarray:
    """Check that w is a non-empty matrix of floats (TypeError, ValueError). Finiteness is checked
    later, by the quantisers or by ``refuse_nonfinite``."""
    w = np.asarray(w)
    if w.dtype.name not in _DTYPES:
        raise TypeError(f"w.dtype={w.dtype} must be one of {_DTYPES}")
    if w.ndim != 2:
        raise ValueError(f"w.shape={w.shape} must have 2 dimensions (k, n)")
    if w.size == 0:
        raise ValueError(f"w.shape={w.shape} must not be empty")
    return w


def refuse_nonfinite(w: np.ndarray, name: str = "w") -> None:
    """Raise ValueError for the first NaN or infinity of a matrix, in row-major order."""
    for row in range(w.shape[0]):
        bad = ~np.isfinite(w[row])
        if bad.any():
            column = int(np.argmax(bad))
            raise ValueError(f"{name}[{row}, {column}]={w[row, column]} must be finite")


def compute_type(w: np.ndarray) -> type:
    """The type in which weights are quantised: float32, or float64 if they are float64."""
    return np.float64 if w.dtype.name == "float64" else np.float32


@dataclass(frozen=True)
class GridRule:
    """Computes the grid for a range of weights. All arrays are [..., columns], or broadcast to
    it."""

    bits: int = 4
    symmetric: bool = True
    scale_dtype: str = "float16"

    def __post_init__(self) -> None:
        check_bits(self.bits)
        if self.scale_dtype not in HALF_TYPES:
            raise ValueError(f"scale_dtype={self.scale_dtype!r} must be one of {HALF_TYPES}")

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    @property
    def half(self) -> int:
        """The zero point of a symmetric grid."""
        return 1 << (self.bits - 1)

    def grid(
        self, low: np.ndarray, high: np.ndarray, group: int = 0, column: int = 0
    ) -> tuple[np.ndarray, np.ndarray | int]:
        """Scales, of ``scale_dtype``, and zero points, float64 or one number for all, from the
        smallest and largest weights [groups, columns], float64.

        group, column: where the arrays begin in the weight, for the message of a ValueError.
        """
        if self.symmetric:
            span, limit = np.maximum(high, -low), largest(self.scale_dtype) / self.half
            return self._scales(span, self.half - 0.5, limit, "max|w|", group, column), self.half
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        with np.errstate(over="ignore"):
            span = high - low
        scales = self._scales(
            span, self.top, largest(self.scale_dtype), "max(w, 0) - min(w, 0)", group, column
        )
        zeros = np.clip(np.rint(-low / scales.astype(np.float64)), 0, self.top)
        ends = np.maximum(zeros, self.top - zeros) * scales.astype(np.float64)
        if ends.max() > largest(self.scale_dtype):
            worst = np.unravel_index(int(np.argmax(ends)), ends.shape)
            raise ValueError(
                f"group {group + worst[0]}, column {column + worst[1]}: the grid of weights from"
                f" {low[worst]:g} to {high[worst]:g} reaches {ends[worst]:g}, must stay finite in"
                f" {self.scale_dtype}"
            )
        return scales, zeros

    def _scales(
        self, span: np.ndarray, steps: float, limit: float, what: str, group: int, column: int
    ) -> np.ndarray:
        """Scales that divide each ``span`` [group, column], float64, into ``steps``; ValueError
        above ``limit``."""
        exact = span / steps
        if exact.max() > limit:
            worst = np.unravel_index(int(np.argmax(exact > limit)), exact.shape)
            raise ValueError(
                f"group {group + worst[0]}, column {column + worst[1]}: {what}={span[worst]:g}"
                f" needs scale={exact[worst]:g}, must be at most {limit:g} for its grid to stay"
                f" finite in {self.scale_dtype}"
            )
        scales = np.maximum(exact, SMALLEST_SCALE[self.scale_dtype])
        scales[span == 0] = 1
        return round_to(scales, self.scale_dtype)

    def codes(
        self,
        values: np.ndarray,
        scales: np.ndarray,
        zeros: np.ndarray | int,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """The nearest codes, as floats of the type of ``values``, ``scales`` and ``zeros``. out:
        may be ``values``."""
        out = np.divide(values, scales, out=out)
        np.rint(out, out=out)
        out += zeros
        return np.clip(out, 0, self.top, out=out)
