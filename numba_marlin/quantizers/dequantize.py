"""Dequantisation: codes and scales to numbers, bit for bit as the kernels compute them.

``W[i, j] = (codes[i, j] - zero) * scales[group, j]``. With zero points on the grid, the product of
a 9-bit integer and an 11-bit significand is exact in float32; with float16 zero points it needs up
to 43 bits, so it is computed in float64. Results are rounded at most
once, to nearest even; float32 results need rounding only with float16 zero points.

For a ``BlockWeight``, code times scale is exact in float64; multiplying or dividing by the global
scale rounds once to float64, and the conversion rounds once to the requested type.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from numba_marlin.formats import (
    BlockWeight,
    PackedBlocks,
    PackedWeight,
    QuantizedWeight,
    find_format,
)
from numba_marlin.formats.floats import float_type, round_to
from numba_marlin.formats.operands import BlockScaled
from numba_marlin.formats.small_floats import decode

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_TEMPORARY = 1 << 22  # elements: temporaries of 16 or 32 MB, whatever the size of the weight


def as_quantized(
    weight: QuantizedWeight | PackedWeight | BlockWeight | PackedBlocks,
) -> QuantizedWeight | BlockWeight:
    """Unpack a weight if it is packed. TypeError for anything else than the four kinds of
    weights."""
    if isinstance(weight, (QuantizedWeight, BlockWeight)):
        return weight
    if isinstance(weight, (PackedWeight, PackedBlocks)):
        return find_format(weight.layout).unpack(weight.to("cpu"))
    raise TypeError(
        f"weight is a {type(weight).__name__}, must be a QuantizedWeight, a BlockWeight, or one of"
        " them packed"
    )


def _per_row(
    values: np.ndarray, weight: QuantizedWeight, start: int, stop: int, dtype: DTypeLike
) -> np.ndarray:
    """Expand [groups, n] to rows ``start:stop``: [rows, n], or [1, n] for a single group."""
    group_of_row = np.arange(start, stop) // weight.rows_per_group
    first, last = int(group_of_row[0]), int(group_of_row[-1])
    part: np.ndarray = values[first : last + 1].astype(dtype)
    return part[group_of_row - first] if last > first else part


def codes_and_zeros(
    weight: QuantizedWeight, start: int, stop: int, dtype: DTypeLike
) -> tuple[np.ndarray, np.ndarray | int]:
    """Codes of rows ``start:stop`` and their zero points, in ``dtype``; zero points are one number
    for a symmetric weight."""
    zeros = (
        1 << (weight.bits - 1)
        if weight.zeros is None
        else _per_row(weight.zeros, weight, start, stop, dtype)
    )
    return weight.codes[start:stop].astype(dtype), zeros


def scale_rows(weight: QuantizedWeight, start: int, stop: int, dtype: DTypeLike) -> np.ndarray:
    """Scales of rows ``start:stop``, [rows, n] or [1, n]."""
    return _per_row(weight.scales, weight, start, stop, dtype)


def dequantize_rows(
    weight: QuantizedWeight, start: int, stop: int, dtype: np.dtype | type | str = np.float16
) -> np.ndarray:
    """Rows ``start:stop`` of ``dequantize(weight, dtype)`` without computing the others; in stored
    order if the weight has a permutation."""
    dtype = float_type(dtype)
    wide = np.float64 if dtype == np.float64 or weight.zeros_kind == "float16" else np.float32
    values, zeros = codes_and_zeros(weight, start, stop, wide)
    values -= zeros
    # A grid point beyond the largest number becomes inf, as in the kernels.
    with np.errstate(over="ignore"):
        values *= scale_rows(weight, start, stop, wide)
    return round_to(values, dtype)


def dequantize_block_rows(
    weight: BlockWeight, start: int, stop: int, dtype: np.dtype | type | str
) -> np.ndarray:
    """Rows ``start:stop`` of a block-scaled weight -> [rows, n] of ``dtype``."""
    rows, columns = weight.block
    result = np.empty((stop - start, weight.n), float_type(dtype))
    for block in range(start // rows, -(-stop // rows)):
        first, last = max(start, block * rows), min(stop, (block + 1) * rows)
        values = decode(weight.codes[first:last], weight.grid).astype(np.float64)
        values *= np.repeat(_scales_of_block(weight, block), columns)[: weight.n]
        if weight.global_scale is not None:
            values = (
                values / weight.global_scale if weight.divides else values * weight.global_scale
            )
        result[first - start : last - start] = round_to(values, result.dtype)
    return result


def _scales_of_block(weight: BlockWeight, block: int) -> np.ndarray:
    scales = weight.scales[block]
    return (decode(scales, weight.scale_grid) if weight.scale_grid else scales).astype(np.float64)


def _checked_type(dtype: np.dtype | type | str) -> np.dtype:
    dtype = float_type(dtype)
    if dtype.name not in _DTYPES:
        raise TypeError(f"dtype={dtype} must be one of {_DTYPES}")
    return dtype


def _dequantize_operand(matrix: BlockScaled, dtype: np.dtype) -> np.ndarray:
    """[rows, columns], a few rows at a time."""
    (rows, columns), form, codes, scales = (
        matrix.shape,
        matrix.form,
        matrix.codes(),
        matrix.plain_scales(),
    )
    result = np.empty((rows, columns), dtype)
    step = max(1, _TEMPORARY // columns)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        values = decode(codes[part], form.element).astype(np.float64)
        values *= np.repeat(
            decode(scales[part], form.scale_grid).astype(np.float64), form.block, axis=1
        )
        result[part] = round_to(values * matrix.global_scale, dtype)
    return result


def dequantize(
    weight: QuantizedWeight | PackedWeight | BlockWeight | PackedBlocks | BlockScaled,
    dtype: np.dtype | type | str | None = None,
) -> np.ndarray:
    """The numbers of a quantised weight, [k, n], or of a BlockScaled matrix, [rows, columns].

    weight: a weight in any form, packed or not, or a BlockScaled on the host.
    dtype: float16, bfloat16 (a dtype or its name), float32 or float64; None: the type of the
        scales, or float32 for block-scaled weights and matrices.

    16-bit and float32 results are the exact (code - zero) * scale, rounded once to nearest even;
    float64 results are exact, but for one rounding with a global scale. A BlockScaled number is NaN
    where its code or scale is NaN. Raises TypeError for another object or dtype.
    """
    if isinstance(weight, BlockScaled):
        return _dequantize_operand(weight, _checked_type("float32" if dtype is None else dtype))
    weight = as_quantized(weight)
    if isinstance(weight, BlockWeight):
        dtype = _checked_type("float32" if dtype is None else dtype)
        return dequantize_block_rows(weight, 0, weight.k, dtype)
    dtype = _checked_type(weight.scale_dtype if dtype is None else dtype)
    result = np.empty((weight.k, weight.n), dtype=dtype)
    rows = max(1, _TEMPORARY // weight.n)
    for start in range(0, weight.k, rows):
        stop = min(start + rows, weight.k)
        rows_of_weight = (
            slice(start, stop) if weight.permutation is None else weight.permutation[start:stop]
        )
        result[rows_of_weight] = dequantize_rows(weight, start, stop, dtype)
    return result
