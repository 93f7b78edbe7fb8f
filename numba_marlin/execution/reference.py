"""The backend "reference": the float64 product, without a kernel or a device."""

from __future__ import annotations

import numpy as np

from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.floats import round_to
from numba_marlin.formats.operands import BLOCK_FORMATS, BlockScaled


def weight_product(
    x: np.ndarray, weight, bias: np.ndarray | None = None, batch_invariant: bool = False
) -> np.ndarray:
    """x [m, k] -> [m, n] of its type: the float64 product plus the bias, rounded once.
    batch_invariant: row by row, because NumPy's reduction order depends on m."""
    from numba_marlin import reference
    from numba_marlin.quantizers.dequantize import as_quantized

    # above the largest number the correct result is infinity
    with np.errstate(over="ignore", invalid="ignore"):
        if batch_invariant:
            q = as_quantized(weight)
            exact = np.concatenate([reference.matmul(row[None], q) for row in x])
        else:
            exact = reference.matmul(x, weight)
        return round_to(exact if bias is None else exact + bias.astype(np.float64), x.dtype)


def block_product(
    a: BlockScaled, b: BlockScaled, result: str, global_scale: float, rounding: str, **epilogue
) -> dict[str, np.ndarray]:
    """{"d": array} of type ``result``, or {"d": codes, "sfd": scales in 128x4 order}. epilogue:
    alpha, beta, c, bias and activation of ``reference.operands.block_scaled_bounds``."""
    from numba_marlin.quantizers.operands import round_blocks
    from numba_marlin.reference.operands import block_scaled_bounds

    exact, _ = block_scaled_bounds(a, b, **epilogue)
    if result not in BLOCK_FORMATS:
        return {"d": round_to(exact, result)}
    rounded = round_blocks(exact, BLOCK_FORMATS[result], global_scale, rounding)
    rounded = rounded.with_scales("128x4")
    return {"d": rounded.data, "sfd": rounded.scales}


def experts_product(
    x: np.ndarray | QuantizedActivations,
    experts,
    routing,
    bias: np.ndarray | None,
    combine: bool,
    activation: str | None = None,
) -> np.ndarray:
    """x [m, k] or [m, top_k, k], or quantised -> [pairs, n], or with ``combine`` [m, n], with
    ``activation`` [pairs, n / 2], of its type: the float64 products of a mixture's experts,
    rounded once."""
    from numba_marlin.reference.experts import activate, moe_matmul

    with np.errstate(over="ignore", invalid="ignore"):
        exact = moe_matmul(x, experts, routing, bias, combine=combine)
        if activation is not None:
            exact = activate(exact, activation)
        return round_to(exact.reshape(-1, exact.shape[-1]), x.dtype)
