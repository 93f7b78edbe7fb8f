"""Round-to-nearest quantisation on a grid of 4 or 8 bits, symmetric or with zero points.

In:  w [k, n], float16, float32, float64 or (with ml_dtypes) bfloat16, any strides and byte order,
     finite.
Out: QuantizedWeight with uint8 codes [k, n], float16 or bfloat16 scales [groups, n] and, if not
    symmetric, uint8 zeros [groups, n].

Each group of each column gets the smallest grid that spans its weights (``grid`` has the rule and
its edge cases), and ``code = clamp(rint(w / scale) + zero, 0, 2**bits - 1)``.

A grid that would overflow its type is a ValueError that names group and column; NaN or infinity
anywhere is a ValueError that names the first position in row-major order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.types import check_group_size
from numba_marlin.quantizers.grid import GridRule, check_weights, compute_type, refuse_nonfinite

# Temporaries of a few MB: they stay in cache, and memory stays near the size of the result.
_TILE_ELEMENTS = 1 << 20


def quantize(
    w: np.ndarray,
    bits: int = 4,
    group_size: int = 128,
    symmetric: bool = True,
    scale_dtype: str = "float16",
) -> QuantizedWeight:
    """Quantise w [k, n] by rounding to nearest, with one scale (and zero point) per ``group_size``
    rows of each column.

    ``group_size`` must divide k; -1, or k or more, means one scale per column. scale_dtype:
    "float16" or "bfloat16". Returns a QuantizedWeight; errors as in the module's docstring.
    """
    return in_tiles(w, group_size, GridRule(bits, symmetric, scale_dtype), _spanning)


def in_tiles(w: np.ndarray, group_size: int, rule: GridRule, choose) -> QuantizedWeight:
    """Quantise w by rounding to nearest on the grids that ``choose`` returns, tile by tile of
    groups and columns.

    choose(rule, tile [groups, rows, columns], group, column) -> scales and zeros, as
    ``GridRule.grid`` gives them. It may not change the tile, which begins at that group and column.
    """
    w = check_weights(w)
    k, n = w.shape
    group_size = check_group_size(group_size, k)
    rows = k if group_size == -1 else group_size
    groups = k // rows

    codes = np.empty((k, n), dtype=np.uint8)
    scales = np.empty((groups, n), dtype=float_type(rule.scale_dtype))
    zeros = None if rule.symmetric else np.empty((groups, n), dtype=np.uint8)
    columns_per_tile = max(64, min(n, _TILE_ELEMENTS // rows))
    groups_per_tile = max(1, _TILE_ELEMENTS // (rows * columns_per_tile))
    compute = compute_type(w)
    for group in range(0, groups, groups_per_tile):
        group_stop = min(group + groups_per_tile, groups)
        for column in range(0, n, columns_per_tile):
            here = slice(group, group_stop), slice(column, min(column + columns_per_tile, n))
            rows_here = slice(group * rows, group_stop * rows), here[1]
            tile: np.ndarray = w[rows_here].astype(compute)
            tile = tile.reshape(group_stop - group, rows, -1)
            if not (np.isfinite(tile.max(axis=1)) & np.isfinite(tile.min(axis=1))).all():
                refuse_nonfinite(w)
            scales[here], tile_zeros = choose(rule, tile, group, column)
            if zeros is not None:
                zeros[here] = tile_zeros
            stored = each_row(scales[here], compute), each_row(tile_zeros, compute)
            codes[rows_here] = rule.codes(tile, *stored, out=tile).reshape(-1, tile.shape[2])
    return QuantizedWeight(
        codes=codes, scales=scales, zeros=zeros, bits=rule.bits, group_size=group_size
    )


def each_row(values: np.ndarray | int, dtype: DTypeLike) -> np.ndarray:
    """[groups, columns] -> [groups, 1, columns] of ``dtype``: scales or zeros beside the rows of
    their group. A number becomes a 0-dimensional array."""
    values = np.asarray(values, dtype)
    return values[:, None, :] if values.ndim else values


def ends(tile: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest weight of each group and column, float64."""
    return tile.min(axis=1).astype(np.float64), tile.max(axis=1).astype(np.float64)


def _spanning(rule: GridRule, tile: np.ndarray, group: int, column: int):
    return rule.grid(*ends(tile), group, column)
