"""Round to nearest in 8 bits, a scale per row of x, or per row and group of k: the arithmetic that
the kernel ``quantize_activations`` reproduces bit for bit.

``quantize_rows(x, kind, group_size)``: x [m, k] float16 or bfloat16, finite ->
``formats.QuantizedActivations``. All arithmetic is float32, every operation rounded once to nearest
even (amax: the largest magnitude of a row or group, exact; L: 127 for int8, 448 for fp8)::

    scale   = amax / L
    lift    = 2**64 where amax < 2**-64, so that the inverse is finite, else 1
    inverse = min(L / (lift * amax), the largest float32)
    int8:     code = rint(lift * x * inverse)      of the exact product
    fp8:      code = e4m3(lift * x * inverse)      of the rounded product; saturates

**Rounding**: to nearest, ties to even. A product, because a division of each number costs a GPU
eight instructions. Error: at most (1/2 + 2**-16) scale in int8; in fp8 2**-4 of the number, or
2**-10 scale where that is more (both plus 2**-22 of it).
**Saturation**: symmetric; -128 is never made.
**Zeros**: a row (group) of zeros has scale 0 and codes 0: it is 0 again. A scale that would be
subnormal (rows of bfloat16 below 1e-36) is rounded as float32 rounds it. **NaN and infinity** have
no scale: refused here, on the host, with their place. On a device nothing is read back to look: a
row (group) that has one gets scale NaN and codes 0, so that its products are NaN, and no other
row's.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.formats.activations import (
    LARGEST,
    QuantizedActivations,
    check_depth,
    check_kind,
)
from numba_marlin.formats.floats import HALF_TYPES
from numba_marlin.formats.small_floats import encode

SMALL, LIFT = 2.0**-64, 2.0**64


def quantize_rows(
    x: np.ndarray, kind: str = "int8", group_size: int | None = None
) -> QuantizedActivations:
    """Quantise x [m, k] by the rules of the module's docstring. TypeError or ValueError for wrong
    arguments, and for numbers that are not finite."""
    check_kind(kind)
    x = np.asarray(x)
    if x.dtype.name not in HALF_TYPES:
        raise TypeError(f"x.dtype={x.dtype} must be one of {', '.join(HALF_TYPES)}")
    if x.ndim != 2 or x.shape[0] == 0:
        raise ValueError(f"x.shape={x.shape} must be (m, k) with m of at least 1")
    m, k = x.shape
    check_depth(k, group_size)
    single = x.astype(np.float32)
    if not np.isfinite(single).all():
        row, column = np.argwhere(~np.isfinite(single))[0]
        raise ValueError(
            f"x[{row}, {column}]={x[row, column]} must be finite: there is no scale for NaN or"
            " infinity"
        )
    groups = single.reshape(m, -1, k if group_size is None else group_size)
    amax, largest = np.abs(groups).max(axis=2), np.float32(LARGEST[kind])
    with np.errstate(under="ignore", over="ignore", divide="ignore"):
        scales = amax / largest
        lift = np.where(amax < np.float32(SMALL), np.float32(LIFT), np.float32(1))
        inverses = np.minimum(largest / (amax * lift), np.finfo(np.float32).max)[..., None]
        lifted = groups * lift[..., None]  # exact
        if kind == "int8":  # float64 holds a product of 8 or 11 bits and 24 exactly
            codes = np.rint(lifted.astype(np.float64) * inverses).astype(np.int8)
        else:
            codes = encode(lifted * inverses, "e4m3")
    return QuantizedActivations.of_codes(
        kind,
        codes.reshape(m, k),
        scales[:, 0].copy() if group_size is None else scales,
        group_size,
        x.dtype.name,
    )
