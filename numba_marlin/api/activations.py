"""``quantize_activations``: activations in 8 bits, the left operand of W4A8 products."""

from __future__ import annotations

from numba_marlin.api.checks import check_no_gradient
from numba_marlin.execution import arrays
from numba_marlin.formats.activations import QuantizedActivations


def quantize_activations(
    x, kind: str = "int8", group_size: int | None = None
) -> QuantizedActivations:
    """Quantise x [m, k] to 8 bits, with a scale per row (token): the x of ``matmul`` with 4-bit
    weights.

    x: float16 or bfloat16 [m, k] of any array library, k a multiple of 16.
    kind: "int8" (-127 to 127) or "fp8" (e4m3).
    group_size: numbers of k that share a scale, a multiple of 16 that divides k; None: all of a
        row.

    Returns a QuantizedActivations, on the host. Raises TypeError or ValueError for wrong arguments,
    and for numbers that are not finite. ``quantizers.activations`` specifies the arithmetic.
    """
    from numba_marlin.quantizers.activations import quantize_rows

    view = arrays.view("x", x)
    check_no_gradient("x", view)
    return quantize_rows(arrays.to_host(view, exact=True), kind, group_size)
