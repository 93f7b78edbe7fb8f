"""From codes and scales back to numbers, bit for bit as the kernels do it.

``W[i, j] = (codes[i, j] - zero) * scales[group, j]``. The product of a 5-bit integer and an 11-bit significand is
exact in float32, so float16 results have been rounded once and float32 and float64 results not at all.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.formats import PackedWeight, QuantizedWeight, find_format

_DTYPES = tuple(map(np.dtype, (np.float16, np.float32, np.float64)))


def as_quantized(weight: QuantizedWeight | PackedWeight) -> QuantizedWeight:
    """The plain form of either form of a weight."""
    if isinstance(weight, QuantizedWeight):
        return weight
    if isinstance(weight, PackedWeight):
        return find_format(weight.layout).unpack(weight)
    raise TypeError(f"weight is a {type(weight).__name__}, must be a QuantizedWeight or a PackedWeight")


def dequantize_rows(weight: QuantizedWeight, start: int, stop: int, dtype: np.dtype | type = np.float16) -> np.ndarray:
    """Rows ``start:stop`` of ``dequantize(weight, dtype)``, without making the others."""
    wide = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    zero = 1 << (weight.bits - 1)
    group_of_row = np.arange(start, stop) // weight.rows_per_group
    first, last = int(group_of_row[0]), int(group_of_row[-1])
    scales = weight.scales[first : last + 1].astype(wide)
    zeros = zero if weight.zeros is None else weight.zeros[first : last + 1].astype(wide)[group_of_row - first]
    values = weight.codes[start:stop].astype(wide)
    values -= zeros
    values *= scales[group_of_row - first] if last > first else scales
    # A grid point above 65504 is inf in float16, in the kernels as well as here.
    with np.errstate(over="ignore"):
        return values.astype(dtype, copy=False)


def dequantize(weight: QuantizedWeight | PackedWeight, dtype: np.dtype | type = np.float16) -> np.ndarray:
    """Weight in either form -> [k, n] of ``dtype``.

    float16 (default): fp16((code - zero) * scale), one rounding to nearest even. float32, float64: the exact product.
    """
    if np.dtype(dtype) not in _DTYPES:
        raise TypeError(f"dtype={np.dtype(dtype)} must be one of {[str(each) for each in _DTYPES]}")
    weight = as_quantized(weight)
    result = np.empty((weight.k, weight.n), dtype=dtype)
    rows = max(1, (1 << 22) // weight.n)  # Temporaries of 16 or 32 MB, whatever the size of the weight.
    for start in range(0, weight.k, rows):
        stop = min(start + rows, weight.k)
        result[start:stop] = dequantize_rows(weight, start, stop, dtype)
    return result
