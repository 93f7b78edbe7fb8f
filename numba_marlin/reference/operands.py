"""The float64 reference of block-scaled products, and the error bound of a correct kernel's fp32
result.

    D = activation(alpha * A @ B^T + beta * C + bias)

A [m, k] and B [n, k] are ``BlockScaled``: their numbers are exact here, and in a kernel that
multiplies them as fp16 or bf16 values or as block-scaled codes. ``ACTIVATIONS``: relu; silu, v / (1
+ exp(-v)); gelu in its tanh form; gated_silu: per 16 columns, silu of the first eight times the
other eight, so that D has half as many columns.

The bound uses the model and the names of ``reference.weights``. Products are exact; fp32
accumulation in any order, with truncated alignment, costs ``gamma * sum |a b|``; each step of the
epilogue rounds once to fp32; approximate exponentials and reciprocals cost 2**-20 of the result;
the slope of the activation is at most 1.13, and a gate multiplies the errors of both its factors.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.formats.floats import as_numpy, round_to
from numba_marlin.formats.operands import BlockScaled
from numba_marlin.formats.small_floats import decode, encode
from numba_marlin.quantizers.dequantize import dequantize
from numba_marlin.quantizers.operands import block_scales, inverse_of
from numba_marlin.reference import UNIT_ROUNDOFF

_SLOPE = 1.13
_APPROXIMATE = 2.0**-20
_FLOAT32 = 2.0**-24
_SMALLEST = 2.0**-126
GATED_COLUMNS = 8


def _silu(v: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return v / (1 + np.exp(-v))


def _gelu(v: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return v / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))


ACTIVATIONS = {
    None: lambda v: v,
    "relu": lambda v: np.maximum(v, 0),
    "silu": _silu,
    "gelu": _gelu,
    "gated_silu": _silu,
}


def interleave_gated(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Interleave the rows of two weights into one B for activation="gated_silu".

    gate, up: arrays [n, ...] of the same shape, n a multiple of 8. Returns [2 n, ...]: eight rows
    of gate, the eight rows of up that they multiply, and so on. ValueError for other shapes.
    """
    gate, up = as_numpy("gate", gate), as_numpy("up", up)
    if gate.shape != up.shape or gate.ndim == 0 or gate.shape[0] % GATED_COLUMNS:
        raise ValueError(
            f"gate.shape={gate.shape} and up.shape={up.shape} must be the same, with a multiple of"
            f" {GATED_COLUMNS} rows"
        )
    return np.stack(
        [each.reshape(-1, GATED_COLUMNS, *each.shape[1:]) for each in (gate, up)], axis=1
    ).reshape(-1, *gate.shape[1:])


def block_scaled_matmul(
    a: BlockScaled,
    b: BlockScaled,
    *,
    alpha=1.0,
    beta=0.0,
    c=None,
    bias=None,
    activation: str | None = None,
) -> np.ndarray:
    """D in float64, [m, n], or [m, n/2] if gated. c [m, n] and bias [n]: arrays or None."""
    return block_scaled_bounds(a, b, alpha=alpha, beta=beta, c=c, bias=bias, activation=activation)[
        0
    ]


def block_scaled_bounds(
    a: BlockScaled,
    b: BlockScaled,
    *,
    alpha=1.0,
    beta=0.0,
    c=None,
    bias=None,
    activation: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(D, the largest error of a correct kernel's fp32 result before it is rounded to the type of
    D), both float64."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} must be one of {tuple(ACTIVATIONS)}")
    x, w = dequantize(a, np.float64), dequantize(b, np.float64)
    m, n, k = len(x), len(w), x.shape[1]
    added = (beta * np.asarray(c, np.float64) if c is not None else np.zeros((m, n))) + (
        0 if bias is None else np.asarray(bias, np.float64)
    )
    value = alpha * (x @ w.T) + added
    magnitude = abs(alpha) * (np.abs(x) @ np.abs(w).T)
    roundings = (k + 3 * -(-k // 8) + 6) * UNIT_ROUNDOFF
    error = (
        roundings / (1 - roundings) * magnitude
        + 8 * _FLOAT32 * (magnitude + np.abs(added))
        + _SMALLEST
    )
    result = ACTIVATIONS[activation](value)
    if activation is None or activation == "relu":
        return result, error
    error = _SLOPE * error + _APPROXIMATE * np.abs(value)
    if activation != "gated_silu":
        return result, error
    gate, other = (each.reshape(m, -1, 2, GATED_COLUMNS) for each in (result, value))
    gate_error = error.reshape(m, -1, 2, GATED_COLUMNS)
    product = gate[:, :, 0] * other[:, :, 1]
    off = (
        gate_error[:, :, 0] * (np.abs(other[:, :, 1]) + gate_error[:, :, 1])
        + np.abs(gate[:, :, 0]) * gate_error[:, :, 1]
        + _FLOAT32 * np.abs(product)
    )
    return product.reshape(m, -1), off.reshape(m, -1)


def within_bounds(
    actual, exact: np.ndarray, error: np.ndarray, rounding: str = "floor"
) -> np.ndarray:
    """Which elements of a kernel's result are roundings of fp32 numbers within ``error`` of
    ``exact``: bool [m, n]; NaN never is. actual: an array of floats, or a BlockScaled whose scales
    were made with ``rounding``. A block whose scale is impossible is wrong as a whole; otherwise an
    element is wrong if its code is not among those between the two ends.
    """
    if not isinstance(actual, BlockScaled):
        values = np.asarray(actual).astype(np.float64)
        low, high = (
            round_to(each, np.asarray(actual).dtype).astype(np.float64)
            for each in (exact - error, exact + error)
        )
        return (low <= values) & (values <= high)
    form, inverse = actual.form, inverse_of(actual.global_scale)
    in_blocks = (*exact.shape[:1], -1, form.block)
    least, most = (
        np.clip(np.abs(exact) + sign * error, 0, None).reshape(in_blocks).max(axis=2)
        for sign in (-1, 1)
    )
    (first, _), (last, _) = (
        block_scales(_outwards(each, up), form, inverse, rounding)
        for each, up in ((least, False), (most, True))
    )
    scales = actual.plain_scales()
    factor = np.repeat(
        decode(scales, form.scale_grid).astype(np.float64) * actual.global_scale, form.block, axis=1
    )
    values = decode(actual.codes(), form.element).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # the factor was rounded three times
        ends = [
            np.where(factor > 0, (exact + sign * (error + 2.0**-21 * np.abs(exact))) / factor, 0)
            for sign in (-1, 1)
        ]
    low, high = (
        decode(encode(each.astype(np.float32), form.element), form.element) for each in ends
    )
    return (
        (low <= values)
        & (values <= high)
        & np.repeat((first <= scales) & (scales <= last), form.block, axis=1)
    )


def _outwards(values: np.ndarray, up: bool) -> np.ndarray:
    """float64 -> float32, rounded down or up."""
    return np.nextafter(values.astype(np.float32), np.float32(np.inf if up else 0))
