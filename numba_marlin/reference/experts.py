"""The float64 products of a mixture of experts, and their error bounds: those of ``weights`` for
every pair of a token and an expert, or of ``activations`` where x is quantised.

With ``combine`` a token's rows are multiplied by their weights p and added up in fp32: of top_k
fused multiply-adds each rounds once, by at most u = 2**-24 of a partial sum, which is at most ``sum
|p| (|y| + E)``. Then the result is rounded once.

The whole layer: gate and up come with errors dg, du of their own bounds, rounded. An activation
``s(g) u`` (for "swiglu-oai" u is up + 1, and limits bring no number further from another) has
``|s'| <= 1.1`` and ``|s(g)| <= |g|``; so ``dh <= 1.1 dg (|u| + du) + |s(g)| du``, and it is
evaluated in fp32 (8 roundings, of parts no larger than |g| (|up| + 1)) and rounded to 16 bits. The
second product has at most the error ``dh |W|`` of its input besides its own, for an input as large
as |h| + dh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.routing import Routing
from numba_marlin.quantizers.dequantize import as_quantized
from numba_marlin.reference import activations
from numba_marlin.reference.weights import (
    UNIT_ROUNDOFF,
    Bounds,
    Weight,
    bounds,
    dequantize_rows,
    matmul,
    rounded_once,
)

Experts = PackedExperts | Sequence[Weight]
X = np.ndarray | QuantizedActivations


def rows_of_each(x: X, routing: Routing) -> Iterator[tuple[int, np.ndarray, X]]:
    """(expert, its pairs, rows of x that they multiply) of every expert that has some. x: [m, k], a
    row for each token, or [m, top_k, k], one for each pair; quantised, with a row for each of
    either."""
    for expert in range(routing.experts):
        pairs = routing.pairs[routing.offsets[expert] : routing.offsets[expert + 1]]
        if not len(pairs):
            continue
        tokens = pairs // routing.top_k
        if isinstance(x, QuantizedActivations):
            taken = tokens if x.m == routing.m else pairs
            yield expert, pairs, x.rows(taken)
        else:
            rows = x[tokens] if x.ndim == 2 else x.reshape(-1, x.shape[-1])[pairs]
            yield expert, pairs, rows


def moe_bounds(
    x: X,
    experts: Experts,
    routing: Routing,
    bias: np.ndarray | None = None,
    *,
    combine: bool = False,
    order: str = "any",
    method: str | None = None,
    out_dtype: np.dtype | type | str = np.float16,
) -> Bounds:
    """x [m, k] or [m, top_k, k], bias [E, n] -> Bounds, float64 [m, top_k, n], or with ``combine``
    [m, n]; rows of pairs that are in no expert's list are 0. The other options: ``weights.bounds``,
    of which those of sums are for x in 16 bits."""
    x = _checked(x, routing, len(experts))
    pairs, n = routing.m * routing.top_k, experts[0].n
    product, accumulated = np.zeros((pairs, n)), np.zeros((pairs, n))
    for expert, these, rows in rows_of_each(x, routing):
        weight, of_expert = experts[expert], None if bias is None else bias[expert]
        if isinstance(rows, QuantizedActivations):
            product[these] = activations.matmul(rows, weight, of_expert)
            accumulated[these] = activations.error_bound(rows, weight, of_expert)
        else:
            found = bounds(rows, weight, of_expert, order=order, method=method, out_dtype=out_dtype)
            product[these], accumulated[these] = found.product, found.accumulated
    shape = (routing.m, routing.top_k, n)
    product, accumulated = product.reshape(shape), accumulated.reshape(shape)
    if combine:
        weights = routing.weights.astype(np.float64)[:, :, None]
        largest = (np.abs(weights) * (np.abs(product) + accumulated)).sum(axis=1)
        product = (weights * product).sum(axis=1)
        accumulated = (np.abs(weights) * accumulated).sum(axis=1)
        accumulated += routing.top_k * UNIT_ROUNDOFF * largest
    return rounded_once(product, accumulated, float_type(out_dtype).name)


def kernel_rows(
    x: QuantizedActivations, experts: Experts, routing: Routing, bias: np.ndarray | None = None
) -> np.ndarray:
    """float32 [pairs, n]: the bits of a kernel that adds groups in ascending order, before they are
    rounded (``activations.kernel_sums``); NaN in rows of pairs that are in no expert's list."""
    check_routed(x, routing, len(experts))
    found = np.full((routing.m * routing.top_k, experts[0].n), np.nan, np.float32)
    for expert, these, rows in rows_of_each(x, routing):
        assert isinstance(rows, QuantizedActivations)
        of_expert = None if bias is None else bias[expert]
        found[these] = activations.kernel_sums(rows, experts[expert], of_expert)
    return found


def moe_matmul(
    x: X,
    experts: Experts,
    routing: Routing,
    bias: np.ndarray | None = None,
    *,
    combine: bool = False,
) -> np.ndarray:
    """The product of ``moe_bounds`` alone, for any x, not finite ones too."""
    x = _checked(x, routing, len(experts))
    product = np.zeros((routing.m * routing.top_k, experts[0].n))
    for expert, these, rows in rows_of_each(x, routing):
        weight, of_expert = experts[expert], None if bias is None else bias[expert]
        if isinstance(rows, QuantizedActivations):
            product[these] = activations.matmul(rows, weight, of_expert)
        else:
            product[these] = matmul(rows, weight, of_expert)
    each = product.reshape(routing.m, routing.top_k, -1)
    if combine:
        return (routing.weights.astype(np.float64)[:, :, None] * each).sum(axis=1)
    return each


def activate(gate_up: np.ndarray, activation: str = "silu", limit: float = 7.0) -> np.ndarray:
    """[..., 2 h] -> [..., h], of the numbers' type; the first half of the columns is the gate, the
    second is called up.

    "silu": gate / (1 + exp(-gate)) * up. "swiglu-oai" (gpt-oss): gate is at most ``limit``, up
    within +- limit, and the result gate / (1 + exp(-1.702 gate)) * (up + 1).
    """
    gate, up = np.split(np.asarray(gate_up), 2, axis=-1)
    with np.errstate(over="ignore"):
        if activation == "silu":
            return gate / (1 + np.exp(-gate)) * up
        if activation == "swiglu-oai":
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
            return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    raise ValueError(f"activation={activation!r} must be one of {', '.join(ACTIVATIONS)}")


ACTIVATIONS = ("silu", "swiglu-oai")


def activated_bounds(
    first: Bounds, activation: str = "silu", out_dtype: np.dtype | type | str = np.float16
) -> Bounds:
    """Of a gate's and an up's product, [..., 2 h], those of ``activate`` of it, [..., h]: of a
    result that rounds gate, up and itself to ``out_dtype``."""
    hidden = activate(first.product, activation)
    gate, up = np.split(first.product, 2, axis=-1)
    gate_error, up_error = np.split(first.rounded, 2, axis=-1)
    up_size = np.abs(up) + (activation == "swiglu-oai")
    error = 1.1 * gate_error * (up_size + up_error) + np.abs(gate) * up_error
    error += 8 * UNIT_ROUNDOFF * (np.abs(gate) + gate_error) * (up_size + up_error)
    return rounded_once(hidden, error, float_type(out_dtype).name)


def moe_mlp(
    x: np.ndarray,
    gate_up: Experts,
    down: Experts,
    routing: Routing,
    *,
    activation: str = "silu",
    gate_up_bias: np.ndarray | None = None,
    down_bias: np.ndarray | None = None,
) -> np.ndarray:
    """x [m, k] -> float64 [m, k]: the whole layer, nothing rounded in between."""
    hidden = activate(moe_matmul(x, gate_up, routing, gate_up_bias), activation)
    return moe_matmul(hidden, down, routing, down_bias, combine=True)


def moe_mlp_bounds(
    x: np.ndarray,
    gate_up: Experts,
    down: Experts,
    routing: Routing,
    *,
    activation: str = "silu",
    gate_up_bias: np.ndarray | None = None,
    down_bias: np.ndarray | None = None,
    order: str = "any",
    method: str | None = None,
    out_dtype: np.dtype | type | str = np.float16,
) -> Bounds:
    """``moe_mlp`` and the error bounds of a layer that rounds gate, up and hidden numbers to
    ``out_dtype``. order: of the first product's sums; the second's may have any."""
    options: dict[str, Any] = {"method": method, "out_dtype": out_dtype}
    first = moe_bounds(x, gate_up, routing, gate_up_bias, order=order, **options)
    activated = activated_bounds(first, activation, out_dtype)
    hidden, error = activated.product, activated.rounded
    size = moe_bounds(np.abs(hidden) + error, down, routing, down_bias, **options).accumulated
    weights = np.abs(routing.weights.astype(np.float64))[:, :, None]
    for expert, these, rows in rows_of_each(error, routing):
        whole = as_quantized(down[expert])
        size.reshape(-1, down[expert].n)[these] += rows @ np.abs(
            dequantize_rows(whole, 0, whole.k, np.float64)
        )
    each = moe_matmul(hidden, down, routing, down_bias)
    accumulated = (weights * size).sum(axis=1)
    accumulated += routing.top_k * UNIT_ROUNDOFF * (weights * (np.abs(each) + size)).sum(axis=1)
    product = (routing.weights.astype(np.float64)[:, :, None] * each).sum(axis=1)
    return rounded_once(product, accumulated, float_type(out_dtype).name)


def _checked(x: X, routing: Routing, experts: int) -> X:
    x = x if isinstance(x, QuantizedActivations) else np.asarray(x)
    check_routed(x, routing, experts)
    return x


def check_routed(x, routing: Routing, experts: int) -> None:
    """ValueError unless x, the routing and the number of experts go together."""
    if routing.experts != experts:
        raise ValueError(
            f"routing has {routing.experts} experts, must be {experts}, as the weights"
        )
    if isinstance(x, QuantizedActivations):
        if x.m not in (routing.m, routing.m * routing.top_k):
            raise ValueError(
                f"x.shape={x.shape} must be (m, k), or (m top_k, k), with m={routing.m} and"
                f" top_k={routing.top_k}, the routing's"
            )
        return
    wanted = (routing.m,) if len(x.shape) == 2 else (routing.m, routing.top_k)
    if len(x.shape) not in (2, 3) or tuple(x.shape[:-1]) != wanted:
        raise ValueError(
            f"x.shape={tuple(x.shape)} must be (m, k) or (m, top_k, k) with m={routing.m} and"
            f" top_k={routing.top_k}, the routing's"
        )
