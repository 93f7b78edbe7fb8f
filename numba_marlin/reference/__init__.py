"""The float64 products, and the error bounds that are the only tolerances tests may use.

- ``weights``: activations times quantised weights; this package exports its names.
- ``activations``: activations in 8 bits times 4-bit weights, and the bits that kernels must give.
- ``experts``: products of a mixture of experts, and the whole layer.
- ``operands``: two block-scaled operands, with the epilogues of their kernels.
- ``small_sums``: sums of products of 8-bit floats, as Hopper's wgmma makes them.

Imports ``formats`` and ``quantizers``, never Numba.
"""

from numba_marlin.reference.verdict import Report, check, judged
from numba_marlin.reference.weights import (
    METHODS,
    ORDERS,
    UNIT_ROUNDOFF,
    Bounds,
    bounds,
    dequantize_rows,
    error_bound,
    is_exact_problem,
    matmul,
    rounded_rows,
)

__all__ = [
    "METHODS",
    "ORDERS",
    "UNIT_ROUNDOFF",
    "Bounds",
    "Report",
    "bounds",
    "check",
    "dequantize_rows",
    "error_bound",
    "is_exact_problem",
    "judged",
    "matmul",
    "rounded_rows",
]
