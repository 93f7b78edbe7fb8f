"""Round-to-nearest quantisation on the symmetric 4-bit grid.

In:  w [k, n], float16, float32, float64 or (with ml_dtypes) bfloat16, any strides and byte order, finite.
Out: QuantizedWeight with uint8 codes [k, n] and float16 scales [groups, n].

For each group of each column: ``scale = fp16(2 * max|w| / 15)`` and ``code = clamp(rint(w / scale) + 8, 0, 15)``. The
grid reaches from -8 to +7 steps, and 7.5 steps is the largest magnitude that either end can still round to with an
error of half a step. So this is the smallest scale (the finest grid) for which no weight is further than half a step
from its code; ``max|w| / 7`` would never clamp, and pay for it with a 7% coarser grid. It is also the rule of
Marlin's own tests. The scale is rounded to fp16 before the codes are computed, so codes belong to the scale that is
stored.

Edge cases, all decided per (group, column):
- all weights zero: scale 1, codes 8;
- a scale that would round to zero in fp16 becomes 2**-24, the smallest positive fp16, and the codes follow from it;
- a scale above 8188 is a ValueError that names group and column: its grid (8 * scale) would overflow fp16;
- NaN or infinity anywhere is a ValueError that names the first position in row-major order.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.types import check_bits, check_group_size

LARGEST_SCALE = 65504 / 8
SMALLEST_SCALE = 2.0**-24
_STEPS = 7.5
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


def _scales(largest: np.ndarray, first_group: int, first_column: int) -> np.ndarray:
    """max|w| of each (group, column), float64 -> float16 scales."""
    exact = largest / _STEPS
    if exact.max() > LARGEST_SCALE:
        group, column = np.unravel_index(int(np.argmax(exact > LARGEST_SCALE)), exact.shape)
        raise ValueError(
            f"group {first_group + group}, column {first_column + column}: max|w|={largest[group, column]:g} needs "
            f"scale={exact[group, column]:g}, must be at most {LARGEST_SCALE:g} for its grid to stay finite in float16"
        )
    scales = np.maximum(exact, SMALLEST_SCALE)
    scales[largest == 0] = 1
    return scales.astype(np.float16)


def quantize(w: np.ndarray, bits: int = 4, group_size: int = 128, symmetric: bool = True) -> QuantizedWeight:
    """Quantise w [k, n] by rounding to nearest, with one fp16 scale per ``group_size`` rows of each column.

    ``group_size`` must divide k; -1 (or k) means one scale to a column. ``symmetric`` must be true for now.
    See the module's docstring for the rule, the edge cases and the errors.
    """
    check_bits(bits)
    if not symmetric:
        raise ValueError("symmetric=False is not supported yet: layout 'marlin' and its kernels have no zero points")
    w = _check_weights(w)
    k, n = w.shape
    group_size = check_group_size(group_size, k)
    rows = k if group_size == -1 else group_size
    groups = k // rows

    codes = np.empty((k, n), dtype=np.uint8)
    scales = np.empty((groups, n), dtype=np.float16)
    columns_per_tile = max(64, min(n, _TILE_ELEMENTS // rows))
    groups_per_tile = max(1, _TILE_ELEMENTS // (rows * columns_per_tile))
    compute = np.float64 if w.dtype.name == "float64" else np.float32
    for group in range(0, groups, groups_per_tile):
        group_stop = min(group + groups_per_tile, groups)
        for column in range(0, n, columns_per_tile):
            column_stop = min(column + columns_per_tile, n)
            tile = w[group * rows : group_stop * rows, column:column_stop].astype(compute)
            tile = tile.reshape(group_stop - group, rows, -1)
            largest = np.maximum(tile.max(axis=1), -tile.min(axis=1)).astype(np.float64)
            if not np.isfinite(largest).all():
                _refuse_nonfinite(w)
            tile_scales = _scales(largest, group, column)
            tile /= tile_scales[:, None, :].astype(compute)
            np.rint(tile, out=tile)
            tile += 8
            np.clip(tile, 0, 15, out=tile)
            codes[group * rows : group_stop * rows, column:column_stop] = tile.reshape(-1, column_stop - column)
            scales[group:group_stop, column:column_stop] = tile_scales
    return QuantizedWeight(codes=codes, scales=scales, zeros=None, bits=bits, group_size=group_size)
