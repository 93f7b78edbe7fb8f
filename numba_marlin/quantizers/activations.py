"""Round to nearest in 8 bits, a scale per row of x, or per row and group of k: the arithmetic that
the kernel ``quantize_activations`` reproduces bit for bit.

``quantize_rows(x, kind, group_size)``: x [m, k] float16 or bfloat16, finite ->
``formats.QuantizedActivations``. All arithmetic is float32, every operation rounded once to nearest
even (amax: the largest magnitude of a row or group, exact; L: 127 for int8, 448 for fp8)::

    scale = amax / L
    int8:   code = rint(min(max(x / scale, -127), 127))     0 where the scale is 0
    fp8:    code = e4m3(x / scale)                          0 where the scale is 0; saturates

**Rounding**: to nearest, ties to even, of the rounded quotient. Error: at most (1/2 + 2**-16) scale
in int8; in fp8 2**-4 of the number, or 2**-10 scale where that is more (both plus 2**-22 of it).
**Saturation**: symmetric, and only where rounding puts the quotient above L: -128 is never made.
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
    largest = np.float32(LARGEST[kind])
    with np.errstate(under="ignore", invalid="ignore", divide="ignore"):
        scales = np.abs(groups).max(axis=2) / largest
        quotients = np.where(scales[..., None] > 0, groups / scales[..., None], np.float32(0))
    if kind == "int8":
        codes = np.rint(np.clip(quotients, -largest, largest)).astype(np.int8)
    else:
        codes = encode(quotients, "e4m3")
    return QuantizedActivations.of_codes(
        kind,
        codes.reshape(m, k),
        scales[:, 0].copy() if group_size is None else scales,
        group_size,
        x.dtype.name,
    )
