"""Whether products of activations in 8 bits are right."""

from __future__ import annotations

import numpy as np

from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.floats import float_type
from numba_marlin.reference import activations


def check_product(
    y: np.ndarray,
    x: QuantizedActivations,
    weight: QuantizedWeight,
    bias: np.ndarray | None = None,
    depth: int | None = None,
    offsets: bool | None = None,
    parts: int = 1,
) -> None:
    """AssertionError unless y is x times the weight as a kernel of groups in ascending order must
    give it: of int8 bit for bit, of fp8 within ``reference.activations.error_bound`` and a rounding
    to y's type. depth: of a kernel in another order, whose sums of so many of k at least are exact:
    within the bound too. offsets: whether one of fp8 uses those of x; None: it may. parts: of k,
    which blocks share."""
    if x.kind == "int8" and depth is None:
        expected = activations.kernel_product(x, weight, bias, parts)
        wrong = np.argwhere(y.view(np.uint16) != expected.view(np.uint16))
    else:
        expected = activations.matmul(x, weight, bias)
        bound = activations.error_bound(x, weight, bias, depth, offsets, parts)
        unit = 2.0 ** -{"float16": 11, "bfloat16": 8}[x.dtype]
        smallest = float(np.finfo(np.float16).smallest_subnormal)
        near = bound + unit * (np.abs(expected) + bound) + smallest
        assert y.dtype == float_type(x.dtype)
        wrong = np.argwhere(~(np.abs(y.astype(np.float64) - expected) <= near))
    assert not wrong.size, (
        f"{len(wrong)} of {y.size} elements are wrong, the first at {tuple(wrong[0])}:"
        f" {y[tuple(wrong[0])]}, expected {expected[tuple(wrong[0])]}"
    )
