"""The float64 oracle, and the only tolerances that a kernel may be tested with.

``matmul`` multiplies in float64 by the exact weights ``w = (code - zero) * scale``. ``error_bound`` says elementwise
how far a correct kernel may be from it, and ``check`` applies that to a result, overflow included.
``is_exact_problem`` recognises problems that leave no room at all: there a kernel must match bit for bit, whatever
its order of summation.

Derivation of the bound, for one output ``y = sum_i x_i w_i`` and ``S = sum_i |x_i| |w_i|``:

1. Weights. A kernel with group scales multiplies by ``fp16(w_i)``; that rounding (at most 2**-11 |w_i|, or 2**-25
   when the result is subnormal) is known bit for bit, so ``W = sum_i |x_i| |fp16(w_i) - w_i|`` is computed instead of
   estimated. A kernel with a scale per column multiplies by the integers and scales the sum, so there ``W = 0``.
2. Accumulation in fp32. Products of two fp16 numbers are exact in fp32 (22 of 24 bits). A tensor core aligns the
   8 or 16 products of a step and the accumulator to the largest of them and truncates: each loses less than
   ``u = 2**-23`` of the largest, and so does the normalised sum (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior
   of NVIDIA tensor cores", 2021). That is 10 truncations for 8 terms of k. Adding partial sums across warps and blocks,
   and scaling a partial sum per group, rounds at most once more per 8 terms; 4 more pay for scaling at the end. So
   ``N = k + 3 ceil(k / 8) + 4`` roundings, each at most u times the largest partial sum ``P``:
   ``E = W + N u / (1 - N u) * (P + W)``, also true of any order of plain fp32 additions (where u could be 2**-24).
3. Partial sums. Always ``P <= S`` (``order="any"``, the default: no assumption). It is pessimistic by about sqrt(k)
   for data with mixed signs: with ``order="random"``, ``P = |y| + 8 * sqrt(sum_i x_i^2 w_i^2)``, which holds for
   terms with independent signs with probability above 1 - 2 exp(-32) per partial sum (Hoeffding). Use it for random
   data, where it catches much smaller mistakes; never for data that was chosen.
4. Output. The result is rounded once more: at most 2**-11 of it, or 2**-25 when it is subnormal, for fp16.
   ``check`` needs no estimate here: rounding is monotonic, so the result must lie in ``[fp16(y - E), fp16(y + E)]``;
   above 65504 that interval says by itself whether infinity is right, wrong or either.

The reference's own error, below k 2**-52 S, is added to E.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.formats import PackedWeight, QuantizedWeight
from numba_marlin.quantize.dequantize import as_quantized, dequantize_rows

UNIT_ROUNDOFF = 2.0**-23
RANDOM_ORDER_FACTOR = 8.0
ORDERS = ("any", "random")
_OUTPUT_ROUNDING = {np.dtype(np.float16): (2.0**-11, 2.0**-25), np.dtype(np.float32): (2.0**-24, 2.0**-150)}
_CHUNK_ELEMENTS = 1 << 22


def _activations(x: np.ndarray, weight: QuantizedWeight) -> np.ndarray:
    """x [m, k] as float64; ValueError unless it fits the weight."""
    x = np.asarray(x)
    if x.ndim != 2 or x.shape[1] != weight.k or x.shape[0] == 0:
        raise ValueError(f"x.shape={x.shape} must be (m, k) with m > 0 and k={weight.k}")
    return x.astype(np.float64)


def _row_chunks(weight: QuantizedWeight):
    """Slices of rows small enough that a float64 copy of them is no burden (32 MB)."""
    rows = max(1, _CHUNK_ELEMENTS // weight.n)
    for start in range(0, weight.k, rows):
        yield start, min(start + rows, weight.k)


def matmul(x: np.ndarray, weight: QuantizedWeight | PackedWeight) -> np.ndarray:
    """x [m, k] of any float type @ weight [k, n] -> float64 [m, n], with exact weights."""
    weight = as_quantized(weight)
    x = _activations(x, weight)
    y = np.zeros((x.shape[0], weight.n))
    for start, stop in _row_chunks(weight):
        y += x[:, start:stop] @ dequantize_rows(weight, start, stop, np.float64)
    return y


@dataclass(frozen=True, eq=False)
class Bounds:
    """float64 [m, n] each: the product, how far off the accumulated sum may be, and the same after output rounding."""

    product: np.ndarray
    accumulated: np.ndarray
    rounded: np.ndarray


def bounds(
    x: np.ndarray,
    weight: QuantizedWeight | PackedWeight,
    *,
    order: str = "any",
    rounds_weights: bool | None = None,
    out_dtype: np.dtype | type = np.float16,
) -> Bounds:
    """The product and its error bounds in one pass over the weight; the parameters are those of ``error_bound``."""
    weight = as_quantized(weight)
    x = _activations(x, weight)
    if not np.isfinite(x).all():
        raise ValueError("x must be finite: there is no error bound for NaN or infinity")
    if order not in ORDERS:
        raise ValueError(f"order={order!r} must be one of {ORDERS}")
    if np.dtype(out_dtype) not in _OUTPUT_ROUNDING:
        raise ValueError(f"out_dtype={np.dtype(out_dtype)} must be float16 or float32")
    roundings = weight.k + 3 * -(-weight.k // 8) + 4
    if roundings * UNIT_ROUNDOFF >= 0.5:
        raise ValueError(f"k={weight.k} is too large: {roundings} fp32 roundings leave no significant bit")
    if rounds_weights is None:
        rounds_weights = not weight.per_column

    shape = (x.shape[0], weight.n)
    product, magnitude, squares, weight_error = (np.zeros(shape) for _ in range(4))
    size = np.abs(x)
    for start, stop in _row_chunks(weight):
        exact = dequantize_rows(weight, start, stop, np.float64)
        product += x[:, start:stop] @ exact
        magnitude += size[:, start:stop] @ np.abs(exact)
        if order == "random":
            squares += size[:, start:stop] ** 2 @ exact**2
        if rounds_weights:
            rounding = np.abs(dequantize_rows(weight, start, stop, np.float16) - exact)
            if not np.isfinite(rounding).all():
                row, column = np.argwhere(~np.isfinite(rounding))[0]
                raise ValueError(f"w[{start + row}, {column}]={exact[row, column]:g} must be finite in float16")
            weight_error += size[:, start:stop] @ rounding

    partial = magnitude
    if order == "random":
        partial = np.minimum(magnitude, np.abs(product) + RANDOM_ORDER_FACTOR * np.sqrt(squares))
    gamma = roundings * UNIT_ROUNDOFF / (1 - roundings * UNIT_ROUNDOFF)
    accumulated = weight_error + gamma * (partial + weight_error) + weight.k * 2.0**-52 * magnitude
    relative, absolute = _OUTPUT_ROUNDING[np.dtype(out_dtype)]
    rounded = accumulated + relative * (np.abs(product) + accumulated) + absolute
    return Bounds(product, accumulated, rounded)


def error_bound(
    x: np.ndarray,
    weight: QuantizedWeight | PackedWeight,
    *,
    order: str = "any",
    rounds_weights: bool | None = None,
    out_dtype: np.dtype | type = np.float16,
) -> np.ndarray:
    """How far a correct kernel's result may be from ``matmul(x, weight)``: float64 [m, n].

    order: "any" assumes nothing; "random" is tighter, for random data only (see the module's docstring).
    rounds_weights: whether the kernel multiplies by fp16(w) rather than by w; None: if there are group scales.
    out_dtype: what the kernel returns, float16 or float32.
    The bound is for results in range; ``check`` also judges overflow. ValueError for non-finite x and bad options.
    """
    return bounds(x, weight, order=order, rounds_weights=rounds_weights, out_dtype=out_dtype).rounded


@dataclass(frozen=True)
class Report:
    """The verdict of ``check``. ``worst`` is the (row, column) with the largest error / bound."""

    ok: bool
    failures: int
    size: int
    max_error: float
    max_ratio: float
    worst: tuple[int, int]
    actual_at_worst: float
    expected_at_worst: float
    bound_at_worst: float

    def __str__(self) -> str:
        verdict = "within bounds" if self.ok else f"{self.failures} of {self.size} out of bounds"
        return (
            f"{verdict}: largest error {self.max_error:.3g}; worst error/bound {self.max_ratio:.3g} at {self.worst}: "
            f"got {self.actual_at_worst:.6g}, expected {self.expected_at_worst:.6g} +- {self.bound_at_worst:.3g}"
        )


def check(
    actual: np.ndarray,
    x: np.ndarray,
    weight: QuantizedWeight | PackedWeight,
    *,
    order: str = "any",
    rounds_weights: bool | None = None,
) -> Report:
    """Judge a kernel's result ``actual`` [m, n], float16 or float32, elementwise. NaN never passes.

    ``max_error`` and ``max_ratio`` leave out infinities that are right, and are inf where NaN or infinity is wrong.
    ``assert report.ok, report`` prints the worst element.
    """
    actual = np.asarray(actual)
    if actual.dtype not in _OUTPUT_ROUNDING:
        raise TypeError(f"actual.dtype={actual.dtype} must be float16 or float32")
    allowed = bounds(x, weight, order=order, rounds_weights=rounds_weights, out_dtype=actual.dtype)
    if actual.shape != allowed.product.shape:
        raise ValueError(f"actual.shape={actual.shape} must be (m, n)={allowed.product.shape}")
    with np.errstate(over="ignore"):
        low = (allowed.product - allowed.accumulated).astype(actual.dtype)
        high = (allowed.product + allowed.accumulated).astype(actual.dtype)
    passed = (low <= actual) & (actual <= high)  # False for NaN.
    with np.errstate(invalid="ignore"):
        error = np.abs(actual.astype(np.float64) - allowed.product)
    infinite = ~np.isfinite(actual)
    error[infinite & passed] = 0
    error[infinite & ~passed] = np.inf
    ratio = error / allowed.rounded
    # A wrong element comes first, even if another one has the larger ratio.
    worst = np.unravel_index(int(np.argmax(np.where(passed, 0, 2.0**64) + np.minimum(ratio, 2.0**60))), ratio.shape)
    return Report(
        ok=bool(passed.all()),
        failures=int((~passed).sum()),
        size=actual.size,
        max_error=float(error.max()),
        max_ratio=float(ratio.max()),
        worst=(int(worst[0]), int(worst[1])),
        actual_at_worst=float(actual[worst]),
        expected_at_worst=float(allowed.product[worst]),
        bound_at_worst=float(allowed.rounded[worst]),
    )


def _lowest_bit(values: np.ndarray, axis: int) -> np.ndarray:
    """Along ``axis``, the largest power of two of which all values are multiples; inf where all are zero."""
    significand, exponent = np.frexp(values)
    integer = np.abs(np.ldexp(significand, 53)).astype(np.int64)
    bit = np.ldexp((integer & -integer).astype(np.float64), exponent - 53)
    return np.where(values == 0, np.inf, bit).min(axis=axis)


def is_exact_problem(x: np.ndarray, weight: QuantizedWeight | PackedWeight, out_dtype=np.float16) -> bool:
    """Whether every correct kernel must return exactly ``matmul(x, weight)``, bit for bit.

    True if every weight is exact in fp16, every partial sum in any order is exact in fp32 (all terms are multiples of
    some q, and sum |x||w| <= 2**24 q), and every result is exact in ``out_dtype``. Small integers and power-of-two
    scales do it. Zeros compare equal whatever their sign.
    """
    weight = as_quantized(weight)
    x = _activations(x, weight)
    if not np.isfinite(x).all():
        return False
    product, magnitude = np.zeros((x.shape[0], weight.n)), np.zeros((x.shape[0], weight.n))
    weight_bit = np.full(weight.n, np.inf)
    for start, stop in _row_chunks(weight):
        exact = dequantize_rows(weight, start, stop, np.float64)
        if not np.array_equal(dequantize_rows(weight, start, stop, np.float16), exact):
            return False
        product += x[:, start:stop] @ exact
        magnitude += np.abs(x[:, start:stop]) @ np.abs(exact)
        weight_bit = np.minimum(weight_bit, _lowest_bit(exact, axis=0))
    quantum = _lowest_bit(x, axis=1)[:, None] * weight_bit[None, :]
    with np.errstate(over="ignore"):
        rounded = product.astype(out_dtype)
    return bool((magnitude <= 2.0**24 * quantum).all() and np.array_equal(rounded, product))
