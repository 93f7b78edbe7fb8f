"""Round-to-nearest quantisation on a grid of 4 or 8 bits, symmetric or with zero points.

In:  w [k, n], float16, float32, float64 or (with ml_dtypes) bfloat16, any strides and byte order, finite.
Out: QuantizedWeight with uint8 codes [k, n], float16 or bfloat16 scales [groups, n] and, if not symmetric, uint8 zeros [groups, n].

For each group of each column, with ``top = 2**bits - 1`` and ``half = 2**(bits - 1)``:

- symmetric: ``scale = fp16(2 * max|w| / top)`` and ``code = clamp(rint(w / scale) + half, 0, top)``. The grid reaches from -half to
  half - 1 steps, and top / 2 steps is the largest magnitude that either end can still round to with an error of half a step. So
  this is the smallest scale (the finest grid) for which no weight is further than half a step from its code; ``max|w| / (half - 1)``
  would never clamp, and pay for it with a coarser grid (7% at 4 bits). It is also the rule of Marlin's own tests.
- asymmetric: the grid spans the weights and zero: ``low = min(w, 0)``, ``high = max(w, 0)``, ``scale = fp16((high - low) / top)``,
  ``zero = clamp(rint(-low / scale), 0, top)`` and ``code = clamp(rint(w / scale) + zero, 0, top)``. Zero itself is on the grid.

The scale is rounded to its type before codes and zeros are computed, so they belong to the scale that is stored.

Edge cases, all decided per (group, column):
- all weights zero: scale 1, codes (and zeros) half, or 0 if asymmetric;
- a scale that would vanish becomes the smallest positive number of float16, the smallest normal one of bfloat16, and the codes
  follow from it;
- a scale whose grid would overflow its type (above 8188 for 4 bits and float16, symmetric) is a ValueError that names group and column;
- NaN or infinity anywhere is a ValueError that names the first position in row-major order.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.floats import HALF_TYPES, float_type, largest, round_to
from numba_marlin.formats.types import check_bits, check_group_size

SMALLEST_SCALE = {"float16": 2.0**-24, "bfloat16": 2.0**-126}
_TILE_ELEMENTS = 1 << 20  # Temporaries of a few MB: they stay in cache, and memory stays near the size of the result.
_DTYPES = ("float16", "float32", "float64", "bfloat16")


def _check_weights(w: object) -> np.ndarray:
    w = np.asarray(w)
    if w.dtype.name not in _DTYPES:
        raise TypeError(f"w.dtype={w.dtype} must be one of {_DTYPES}")
    if w.ndim != 2:
        raise ValueError(f"w.shape={w.shape} must have 2 dimensions (k, n)")
    if w.size == 0:
        raise ValueError(f"w.shape={w.shape} must not be empty")
    return w


def _refuse_nonfinite(w: np.ndarray) -> None:
    """Raise ValueError for the first NaN or infinity. Called only when there is one."""
    for row in range(w.shape[0]):
        bad = ~np.isfinite(w[row])
        if bad.any():
            column = int(np.argmax(bad))
            raise ValueError(f"w[{row}, {column}]={w[row, column]} must be finite")


def _scales(span: np.ndarray, steps: float, limit: float, dtype: str, what: str, first_group: int, first_column: int) -> np.ndarray:
    """``what`` of each [group, column], float64, to be cut in ``steps`` -> scales, at most ``limit``."""
    exact = span / steps
    if exact.max() > limit:
        group, column = np.unravel_index(int(np.argmax(exact > limit)), exact.shape)
        raise ValueError(
            f"group {first_group + group}, column {first_column + column}: {what}={span[group, column]:g} needs "
            f"scale={exact[group, column]:g}, must be at most {limit:g} for its grid to stay finite in {dtype}"
        )
    scales = np.maximum(exact, SMALLEST_SCALE[dtype])
    scales[span == 0] = 1
    return round_to(scales, dtype)


def quantize(w: np.ndarray, bits: int = 4, group_size: int = 128, symmetric: bool = True, scale_dtype: str = "float16") -> QuantizedWeight:
    """Quantise w [k, n] by rounding to nearest, with one scale (and zero point) per ``group_size`` rows of each column.

    ``group_size`` must divide k; -1, or k or more, means one scale to a column. scale_dtype: "float16" or "bfloat16".
    See the module's docstring for the rule, the edge cases and the errors.
    """
    bits = check_bits(bits)
    if scale_dtype not in HALF_TYPES:
        raise ValueError(f"scale_dtype={scale_dtype!r} must be one of {HALF_TYPES}")
    w = _check_weights(w)
    k, n = w.shape
    group_size = check_group_size(group_size, k)
    rows = k if group_size == -1 else group_size
    groups = k // rows

    codes = np.empty((k, n), dtype=np.uint8)
    scales = np.empty((groups, n), dtype=float_type(scale_dtype))
    zeros = None if symmetric else np.empty((groups, n), dtype=np.uint8)
    columns_per_tile = max(64, min(n, _TILE_ELEMENTS // rows))
    groups_per_tile = max(1, _TILE_ELEMENTS // (rows * columns_per_tile))
    compute = np.float64 if w.dtype.name == "float64" else np.float32
    for group in range(0, groups, groups_per_tile):
        group_stop = min(group + groups_per_tile, groups)
        for column in range(0, n, columns_per_tile):
            here = slice(group, group_stop), slice(column, min(column + columns_per_tile, n))
            rows_here = slice(group * rows, group_stop * rows), here[1]
            tile = w[rows_here].astype(compute).reshape(group_stop - group, rows, -1)
            high, low = (end.astype(np.float64) for end in (tile.max(axis=1), tile.min(axis=1)))
            if not (np.isfinite(high) & np.isfinite(low)).all():
                _refuse_nonfinite(w)
            grid = _symmetric_grid if symmetric else _spanning_grid
            scales[here], tile_zeros = grid(low, high, bits, scale_dtype, group, column)
            if zeros is not None:
                zeros[here] = tile_zeros
            codes[rows_here] = _codes(tile, scales[here], tile_zeros, bits).reshape(-1, tile.shape[2])
    return QuantizedWeight(codes=codes, scales=scales, zeros=zeros, bits=bits, group_size=group_size)


def _symmetric_grid(low, high, bits, dtype, group, column):
    """-> scales [groups, columns] and the one zero point."""
    half = 1 << (bits - 1)
    return _scales(np.maximum(high, -low), half - 0.5, largest(dtype) / half, dtype, "max|w|", group, column), half


def _spanning_grid(low, high, bits, dtype, group, column):
    """-> scales and zero points (integers as float64), [groups, columns] each."""
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    top = (1 << bits) - 1
    with np.errstate(over="ignore"):
        span = high - low
    scales = _scales(span, top, largest(dtype), dtype, "max(w, 0) - min(w, 0)", group, column)
    zeros = np.clip(np.rint(-low / scales.astype(np.float64)), 0, top)
    ends = np.maximum(zeros, top - zeros) * scales.astype(np.float64)
    if ends.max() > largest(dtype):
        worst = np.unravel_index(int(np.argmax(ends)), ends.shape)
        raise ValueError(
            f"group {group + worst[0]}, column {column + worst[1]}: the grid of weights from {low[worst]:g} to {high[worst]:g} reaches "
            f"{ends[worst]:g}, must stay finite in {dtype}"
        )
    return scales, zeros


def _codes(tile: np.ndarray, scales: np.ndarray, zeros, bits: int) -> np.ndarray:
    """w [groups, rows, columns], which is used up -> codes of the same shape, as floats."""
    tile /= scales[:, None, :].astype(tile.dtype)
    np.rint(tile, out=tile)
    tile += zeros[:, None, :].astype(tile.dtype) if isinstance(zeros, np.ndarray) else zeros
    return np.clip(tile, 0, (1 << bits) - 1, out=tile)
