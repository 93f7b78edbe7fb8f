"""The float64 oracle, and the only tolerances that a kernel may be tested with.

``matmul`` multiplies in float64 by the exact weights ``w = (code - zero) * scale`` and adds a bias.
``error_bound`` says elementwise how far a correct kernel may be from it, and ``check`` applies that
to a result, overflow included. ``is_exact_problem`` recognises problems that leave no room at all:
there a kernel must match bit for bit, whatever its order of summation. Activations, biases and
results are float16, bfloat16 or float32; "the 16-bit type" is that of x.

Derivation of the bound, for one output ``y = sum_i x_i w_i`` and ``S = sum_i |x_i| |w_i|``:

1. Weights, by the kernel's ``method``. "weights": it multiplies by weights in the 16-bit type,
   ``v_i = fp16(fp16(code - zero) * scale)``; codes minus zero points of the grid are exact there,
   so all of it is known bit for bit and ``W = sum_i |x_i| |v_i - w_i|`` is computed instead of
   estimated. "sums": it multiplies by the integers and scales sums in fp32, per group or at the
   end, so ``W = 0``. "offset" and "centred" do so too, but subtract zero points from sums, not from
   codes (3.). None, the default, is "weights" for groups and "sums" for a scale per column.
   Block-scaled FP4 (``BlockWeight``) is "weights" too, and ``W = 0``: a code times its block's
   scale is exact in both 16-bit types, once powers of two are taken out; those and the global scale
   multiply the sum, in fp32.
2. Accumulation in fp32. Products of two 16-bit numbers are exact in fp32 (22 of 24 bits). A tensor
   core aligns the 8 or 16 products of a step and the accumulator to the largest of them and
   truncates: each loses less than ``u = 2**-23`` of the largest, and so does the normalised sum
   (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021). That is 10
   truncations for 8 terms of k. Adding partial sums across warps and blocks, and scaling a partial
   sum per group, rounds at most once more per 8 terms; 6 more pay for scaling at the end, for a
   bias, and for roundings of single terms in fp32 (of 2**-24 of the term: code - zero, its product
   with the scale, that with x). So ``N = k + 3 ceil(k / 8) + 6`` roundings, each at most u times
   the largest partial sum ``P``: ``E = W + N u / (1 - N u) * (P + W)``, also true of any order of
   plain fp32 additions (where u could be 2**-24). Sums that leave fp32 have no bound; what is below
   its normal numbers may be lost, 2**-126 at a time.
3. Partial sums. Always ``P <= S + |bias|`` (``order="any"``, the default: no assumption). It is
   pessimistic by about sqrt(k) for data with mixed signs: with ``order="random"``, ``P = |y| +
   |bias| + 8 * sqrt(sum_i x_i^2 w_i^2)``, which holds for terms with independent signs with
   probability above 1 - 2 exp(-32) per partial sum (Hoeffding). Use it for random data, where it
   catches much smaller mistakes; never for data that was chosen. A kernel that computes ``scale *
   (sum x (code - o) - (zero - o) * sum x)``, with ``o = 0`` ("offset") or the middle of the grid
   ("centred"; for symmetric weights that is "sums"), has two sums that are larger than what remains
   of them. So P is that of both together, with ``|x| (|code - o| + |zero - o|) scale`` for ``|x
   w|``, and N counts twice, as they may share an accumulator.
4. Output. The result is rounded once more: at most 2**-11 of it (2**-8 for bfloat16), or half of
   the smallest subnormal number. ``check`` needs no estimate here: rounding is monotonic, so the
   result must lie in ``[fp16(y - E), fp16(y + E)]``; above 65504 that interval says by itself
   whether infinity is right, wrong or either.

The reference's own error, below k 2**-52 S, is added to E.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.formats import BlockWeight, PackedBlocks, PackedWeight, QuantizedWeight
from numba_marlin.formats.floats import float_type, round_to, unit_roundoff
from numba_marlin.quantizers.dequantize import (
    as_quantized,
    codes_and_zeros,
    dequantize_block_rows,
    scale_rows,
)
from numba_marlin.quantizers.dequantize import dequantize_rows as dequantize_integer_rows

Plain = QuantizedWeight | BlockWeight
Weight = Plain | PackedWeight | PackedBlocks
UNIT_ROUNDOFF = 2.0**-23
RANDOM_ORDER_FACTOR = 8.0
ORDERS = ("any", "random")
METHODS = ("weights", "sums", "offset", "centred")
_HALF_OF_SMALLEST = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float32": 2.0**-150}
_LARGEST_SUM = 2.0**127
_SMALLEST_NORMAL = 2.0**-126
_CHUNK_ELEMENTS = 1 << 22


def _activations(x: np.ndarray, weight: Plain) -> np.ndarray:
    """x [m, k] as float64, its columns in the order of the weight's stored rows; ValueError unless
    it fits the weight."""
    x = np.asarray(x)
    if x.ndim != 2 or x.shape[1] != weight.k or x.shape[0] == 0:
        raise ValueError(f"x.shape={x.shape} must be (m, k) with m > 0 and k={weight.k}")
    permutation = getattr(weight, "permutation", None)
    return (x if permutation is None else x[:, permutation]).astype(np.float64)


def _bias(bias: np.ndarray | None, weight: Plain) -> np.ndarray:
    """bias [n] as float64, zeros if there is none; ValueError unless it fits the weight."""
    if bias is None:
        return np.zeros(weight.n)
    bias = np.asarray(bias)
    if bias.shape != (weight.n,):
        raise ValueError(f"bias.shape={bias.shape} must be (n,)=({weight.n},)")
    return bias.astype(np.float64)


def _half_type(x: np.ndarray) -> np.dtype:
    """The 16-bit type of a kernel for these activations: float16, unless they are bfloat16."""
    return float_type(
        "bfloat16" if getattr(x, "dtype", np.dtype(float)).name == "bfloat16" else "float16"
    )


def _row_chunks(weight: Plain):
    """Slices of rows small enough that a float64 copy of them is no burden (32 MB)."""
    rows = max(1, _CHUNK_ELEMENTS // weight.n)
    for start in range(0, weight.k, rows):
        yield start, min(start + rows, weight.k)


def matmul(x: np.ndarray, weight: Weight, bias: np.ndarray | None = None) -> np.ndarray:
    """x [m, k] of any float type @ weight [k, n] + bias [n] -> float64 [m, n], with exact
    weights."""
    weight = as_quantized(weight)
    x = _activations(x, weight)
    y = np.zeros((x.shape[0], weight.n))
    for start, stop in _row_chunks(weight):
        y += x[:, start:stop] @ dequantize_rows(weight, start, stop, np.float64)
    return y + _bias(bias, weight)


def dequantize_rows(weight: Plain, start: int, stop: int, dtype: np.dtype | type) -> np.ndarray:
    """Rows ``start:stop`` of either kind."""
    if isinstance(weight, BlockWeight):
        return dequantize_block_rows(weight, start, stop, dtype)
    return dequantize_integer_rows(weight, start, stop, dtype)


def rounded_rows(weight: Plain, start: int, stop: int, dtype: np.dtype) -> np.ndarray:
    """Rows ``start:stop`` as a kernel of method "weights" computes them, in float64: code - zero,
    the scale, and their product, each rounded to ``dtype``; a BlockWeight's numbers are exact."""
    if isinstance(weight, BlockWeight):
        return dequantize_rows(weight, start, stop, np.float64)
    if weight.zeros_kind != "float16" and float_type(weight.scale_dtype) == dtype:
        # the first two are exact
        return dequantize_rows(weight, start, stop, dtype).astype(np.float64)
    codes, zeros = codes_and_zeros(weight, start, stop, np.float64)
    steps = round_to(codes - zeros, dtype).astype(np.float64)
    scales = round_to(scale_rows(weight, start, stop, np.float64), dtype).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return round_to(steps * scales, dtype).astype(np.float64)


def _largest_scale(weight: Plain) -> float:
    """The largest factor that multiplies a code or an accumulator, at least 1."""
    if not isinstance(weight, BlockWeight):
        return max(1.0, float(np.abs(weight.scales.astype(np.float64)).max()))
    factor = (
        1.0
        if weight.global_scale is None
        else abs(float(weight.global_scale)) ** (-1 if weight.divides else 1)
    )
    largest = float(np.abs(weight.scale_values().astype(np.float64)).max()) * factor
    return max(1.0, largest, 2.0**7 * factor if weight.scale_grid == "e4m3" else 0.0)


@dataclass(frozen=True, eq=False)
class Bounds:
    """float64 [m, n] each: the exact product, the error bound of the fp32 accumulator, and the
    error bound after output rounding."""

    product: np.ndarray
    accumulated: np.ndarray
    rounded: np.ndarray


class _Sums:
    """``sum x w``, ``sum |x w|`` and, if asked for, ``sum (x w)^2`` over chunks of rows, float64
    [m, n]."""

    def __init__(self, shape: tuple[int, int], squares: bool) -> None:
        self.value, self.magnitude, self.squares = (
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape) if squares else None,
        )

    def add(self, x: np.ndarray, w: np.ndarray) -> None:
        self.value += x @ w
        self.magnitude += np.abs(x) @ np.abs(w)
        if self.squares is not None:
            self.squares += x**2 @ w**2

    def partial(self) -> np.ndarray:
        """The largest partial sum that the order of summation allows."""
        if self.squares is None:
            return self.magnitude
        return np.minimum(
            self.magnitude, np.abs(self.value) + RANDOM_ORDER_FACTOR * np.sqrt(self.squares)
        )


def bounds(
    x: np.ndarray,
    weight: Weight,
    bias: np.ndarray | None = None,
    *,
    order: str = "any",
    method: str | None = None,
    out_dtype: np.dtype | type | str = np.float16,
) -> Bounds:
    """The product and its error bounds in one pass over the weight; the parameters are those of
    ``error_bound``."""
    weight = as_quantized(weight)
    half_type = _half_type(x)
    x, bias = _activations(x, weight), _bias(bias, weight)
    for name, array in (("x", x), ("bias", bias)):
        if not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite: there is no error bound for NaN or infinity")
    if order not in ORDERS:
        raise ValueError(f"order={order!r} must be one of {ORDERS}")
    if method is None:
        method = "weights" if isinstance(weight, BlockWeight) or not weight.per_column else "sums"
    allowed = METHODS[:2] if isinstance(weight, BlockWeight) else METHODS
    if method not in allowed:
        raise ValueError(f"method={method!r} must be one of {allowed}")
    out_type = float_type(out_dtype).name
    if out_type not in _HALF_OF_SMALLEST:
        raise ValueError(f"out_dtype={out_type} must be float16, bfloat16 or float32")
    splits = method in ("offset", "centred")
    roundings = (weight.k + 3 * -(-weight.k // 8) + 6) * (2 if splits else 1)
    if roundings * UNIT_ROUNDOFF >= 0.5:
        raise ValueError(
            f"k={weight.k} is too large: {roundings} fp32 roundings leave no significant bit"
        )
    largest_scale = _largest_scale(weight)
    if (
        np.abs(x).sum(axis=1).max() * 2.0 ** (weight.bits + 1) * largest_scale + np.abs(bias).max()
        >= _LARGEST_SUM
    ):
        raise ValueError(
            "x, scales and bias must be so small that no fp32 sum can overflow: there is no error"
            " bound for one that does"
        )

    shape = (x.shape[0], weight.n)
    whole, codes_part, zeros_part = (_Sums(shape, order == "random") for _ in range(3))
    weight_error = np.zeros(shape)
    middle = 1 << (weight.bits - 1)
    for start, stop in _row_chunks(weight):
        part = x[:, start:stop]
        exact = dequantize_rows(weight, start, stop, np.float64)
        whole.add(part, exact)
        if method == "weights":
            rounding = np.abs(rounded_rows(weight, start, stop, half_type) - exact)
            if not np.isfinite(rounding).all():
                row, column = np.argwhere(~np.isfinite(rounding))[0]
                raise ValueError(
                    f"w[{start + row}, {column}]={exact[row, column]:g} must be finite in"
                    f" {half_type}"
                )
            weight_error += np.abs(part) @ rounding
        if splits and isinstance(weight, QuantizedWeight):
            codes, zeros = codes_and_zeros(weight, start, stop, np.float64)
            scales, origin = (
                scale_rows(weight, start, stop, np.float64),
                (middle if method == "centred" else 0),
            )
            codes_part.add(part, (codes - origin) * scales)
            zeros_part.add(part, np.broadcast_to((zeros - origin) * scales, codes.shape))

    partial = (codes_part.partial() + zeros_part.partial() if splits else whole.partial()) + np.abs(
        bias
    )
    gamma = roundings * UNIT_ROUNDOFF / (1 - roundings * UNIT_ROUNDOFF)
    accumulated = (
        weight_error
        + gamma * (partial + weight_error)
        + weight.k * 2.0**-52 * (whole.magnitude + np.abs(bias))
    )
    accumulated += roundings * _SMALLEST_NORMAL * largest_scale
    product = whole.value + bias
    return rounded_once(product, accumulated, out_type)


def rounded_once(product: np.ndarray, accumulated: np.ndarray, out_type: str) -> Bounds:
    """The bounds of a result that is rounded once, to ``out_type``."""
    rounded = (
        accumulated
        + unit_roundoff(out_type) * (np.abs(product) + accumulated)
        + _HALF_OF_SMALLEST[out_type]
    )
    return Bounds(product, accumulated, rounded)


def error_bound(
    x: np.ndarray,
    weight: Weight,
    bias: np.ndarray | None = None,
    *,
    order: str = "any",
    method: str | None = None,
    out_dtype: np.dtype | type | str = np.float16,
) -> np.ndarray:
    """The largest error of a correct kernel's result against ``matmul(x, weight, bias)``: float64
    [m, n].

    order: "any" holds for every order of summation; "random" is tighter, for random data only (see
    the module's docstring). method: how the kernel multiplies, one of METHODS (declared in its
    ``KernelDefinition``); None: "weights" for groups, "sums" for one scale per column. out_dtype:
    type of the kernel's result, float16, bfloat16 or float32. The bound is for results in range;
    ``check`` also judges overflow. ValueError for non-finite x and bad options.
    """
    return bounds(x, weight, bias, order=order, method=method, out_dtype=out_dtype).rounded


def _lowest_bit(values: np.ndarray, axis: int) -> np.ndarray:
    """Along ``axis``, the largest power of two of which all values are multiples; inf where all are
    zero."""
    significand, exponent = np.frexp(values)
    integer = np.abs(np.ldexp(significand, 53)).astype(np.int64)
    bit = np.ldexp((integer & -integer).astype(np.float64), exponent - 53)
    return np.where(values == 0, np.inf, bit).min(axis=axis)


def is_exact_problem(
    x: np.ndarray, weight: Weight, out_dtype=np.float16, bias: np.ndarray | None = None
) -> bool:
    """Whether every correct kernel, of any method, must return exactly ``matmul(x, weight, bias)``,
    bit for bit.

    True if every weight is exact in the 16-bit type, every partial sum in any order is exact in
    fp32, also before zero points are subtracted (all terms are multiples of some
    q, and sum |x| (|code| + |zero|) scale + |bias| <= 2**24 q), and every result is exact in
    ``out_dtype``. Small integers with power-of-two scales satisfy this. Zeros compare equal
    whatever their sign. With ``out_dtype=np.float32`` a kernel that returns 16 bits must return
    ``round_to`` of the product: it is exact until it is rounded.
    """
    weight = as_quantized(weight)
    half_type = _half_type(x)
    x, bias = _activations(x, weight), _bias(bias, weight)
    if not (np.isfinite(x).all() and np.isfinite(bias).all()):
        return False
    product, magnitude = np.zeros((x.shape[0], weight.n)), np.zeros((x.shape[0], weight.n))
    weight_bit = np.full(weight.n, np.inf)
    for start, stop in _row_chunks(weight):
        exact = dequantize_rows(weight, start, stop, np.float64)
        if not np.array_equal(rounded_rows(weight, start, stop, half_type), exact):
            return False
        product += x[:, start:stop] @ exact
        if isinstance(weight, BlockWeight):
            magnitude += np.abs(x[:, start:stop]) @ np.abs(exact)
            weight_bit = np.minimum(weight_bit, _lowest_bit(exact, axis=0))
            continue
        codes, zeros = codes_and_zeros(weight, start, stop, np.float64)
        scales = scale_rows(weight, start, stop, np.float64)
        magnitude += np.abs(x[:, start:stop]) @ ((codes + np.abs(zeros)) * np.abs(scales))
        for terms in (codes * scales, np.broadcast_to(zeros * scales, codes.shape)):
            weight_bit = np.minimum(weight_bit, _lowest_bit(terms, axis=0))
    quantum = np.minimum(
        _lowest_bit(x, axis=1)[:, None] * weight_bit[None, :], _lowest_bit(bias[None, :], axis=0)
    )
    product, magnitude = product + bias, magnitude + np.abs(bias)
    return bool(
        (magnitude <= 2.0**24 * quantum).all()
        and np.array_equal(round_to(product, out_dtype).astype(np.float64), product)
    )
