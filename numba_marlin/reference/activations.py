"""The products of quantised activations (W4A8): the float64 oracle, and the bits that kernels must
give.

    y[r, c] = sum_g scale_w[g, c] * (sum over k of group g: X[r, k] * (code[k, c] - zero[g, c]))

**What is exact.** With int8 activations and integer zero points the inner sum D of a group is one
of integers: |code - zero| <= 15 and |x| <= 127, so that |D| < 2**18 for 128 of k, and kernels add
it up in 32 bits. float32 holds it exactly up to 2**24.

**The order of the rest**, which ``kernel_product`` follows and kernels of int8 must match bit for
bit (a scale per row of x; fma rounds once, to nearest even):

    total = 0; for g ascending: total = fma(float32(D[g]), float32(scale_w[g]), total)
    y     = 16-bit type of fma(total, scale_x[r], bias[c], or 0)

float32(D) is rounded to nearest even where a group is so long that D does not fit. Where blocks
share k in ``parts``, part r of P has the steps of 128 from S r // P on, of S: each has a total of
its own, and they are added up in the order of k. With one scale per column sums of int8 are added
up as integers. A kernel whose order is another has no bits to match, but stays under
``error_bound``.

**With fp8 activations** D is a float, exact in float64 (18 bits of e4m3, 4 of the weight, 7 of the
terms), but tensor cores of Hopper keep few of its bits. Kernels add up ``FP8_DEPTH`` of k at most,
or a group that is shorter, before they go on in fp32. Where weights have no zero points, and groups
of 128 or one scale per column, a kernel may multiply by code and code - 15 in turns along k, and
take off what is too much with ``x.offsets``. ``error_bound`` says how much may be lost in either
(by ``small_sums``), and ``kernel_product`` gives the bits where nothing is: small integers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numba_marlin.formats import BlockWeight, QuantizedWeight
from numba_marlin.formats.activations import OFFSET_GROUP, QuantizedActivations
from numba_marlin.formats.floats import round_to
from numba_marlin.quantizers.dequantize import as_quantized
from numba_marlin.reference import small_sums, weights

UNIT_ROUNDOFF = 2.0**-24
STEP = 128  # of k, which blocks that share k have whole
FP8_DEPTH = 1024
PART = 16  # of k: kernels make exact sums of so many at least, if not of whole groups
FP8_UNIT = 2.0**-9  # what a weight of 1 is in e4m3 (``kernels.w4a8.elements``)


def _plain(x: QuantizedActivations, weight: weights.Weight) -> QuantizedWeight:
    """The weight, unpacked. TypeError for weights of floats, ValueError unless x [m, k] fits it."""
    found = as_quantized(weight)
    if isinstance(found, BlockWeight):
        raise TypeError("weight is a BlockWeight, must have integer codes")
    if x.k != found.k:
        raise ValueError(f"x.shape={x.shape} must be (m, k) with k={found.k}, the weight's")
    return found


def matmul(
    x: QuantizedActivations, weight: weights.Weight, bias: np.ndarray | None = None
) -> np.ndarray:
    """The float64 product [m, n] of what both stand for. A weight in activation order (with a
    permutation) takes x in the order of its columns, as ``weights.matmul`` does."""
    plain = _plain(x, weight)
    return weights.matmul(x.dequantized(np.float64), plain, bias)


def group_sums(x: QuantizedActivations, weight: weights.Weight) -> np.ndarray:
    """D: [groups, m, n] of integer zero points, exact: int64 of int8 activations, float64 of fp8.
    ValueError for others, and for a weight with a permutation."""
    found = np.stack(list(_sums(x.values(), _integers(_plain(x, weight)))))
    return found if x.kind == "fp8" else found.astype(np.int64)


def _sums(values: np.ndarray, integers: np.ndarray) -> Iterator[np.ndarray]:
    """float64 [m, n] of values [m, k] times each of ``integers`` [parts, rows, n]: exact, as every
    sum has less than 53 bits, and one after the other, as all of them may not fit in memory."""
    rows = integers.shape[1]
    for number, part in enumerate(integers):
        yield values[:, number * rows : (number + 1) * rows] @ part


def _integers(plain: QuantizedWeight) -> np.ndarray:
    """code - zero, float64 [groups, rows, n]."""
    if plain.zeros_kind == "float16" or plain.permutation is not None:
        raise ValueError(
            f"zeros={plain.zeros_kind!r} must be integers, if any, and the weight without a"
            " permutation: only these sums are exact"
        )
    zero = 1 << (plain.bits - 1) if plain.zeros is None else plain.zeros[:, None].astype(float)
    return plain.codes.astype(np.float64).reshape(-1, plain.rows_per_group, plain.n) - zero


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float32 a * b + c, rounded once. The product is exact in float64; the sum is rounded to odd
    there, which a second rounding, to 24 bits, does not see (Boldo and Melquiond, 2008)."""
    product, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + c
    other = total - product
    lost = (product - (total - other)) + (c - other)  # exact (Knuth's TwoSum)
    odd = (total.view(np.int64) & 1).astype(bool)
    with np.errstate(invalid="ignore"):
        towards = np.where(lost > 0, np.inf, -np.inf)
        total = np.where((lost != 0) & ~odd, np.nextafter(total, towards), total)
    with np.errstate(over="ignore", under="ignore"):
        return total.astype(np.float32)


def part_ends(k: int, parts: int) -> list[int]:
    """Where each of so many parts of k ends."""
    steps = -(-k // STEP)
    return [min(STEP * (steps * part // parts), k) for part in range(1, parts + 1)]


def kernel_product(
    x: QuantizedActivations,
    weight: weights.Weight,
    bias: np.ndarray | None = None,
    parts: int = 1,
) -> np.ndarray:
    """[m, n] of ``x.dtype``: the bits of a kernel that adds groups in ascending order, in so many
    ``parts`` of k; of fp8, if its tensor cores lose none. ValueError as ``group_sums``, and for
    scales per group of x."""
    return round_to(kernel_sums(x, weight, bias, parts), x.dtype)


def kernel_sums(
    x: QuantizedActivations,
    weight: weights.Weight,
    bias: np.ndarray | None = None,
    parts: int = 1,
) -> np.ndarray:
    """float32 [m, n]: those of ``kernel_product``, before they are rounded."""
    if x.group_size is not None:
        raise ValueError(f"group_size={x.group_size} of x must be None: a scale per row")
    plain = _plain(x, weight)
    size, ends = plain.rows_per_group, part_ends(plain.k, parts)
    if size == plain.k:  # one group is not cut: its sums are integers, or exact
        ends = [plain.k]
    if any(end % size for end in ends):
        raise ValueError(f"parts={parts} of steps of {STEP} cut groups of {size}")
    total = np.zeros((x.m, plain.n), np.float32)
    part = np.zeros_like(total)
    of_groups = _sums(x.values(), _integers(plain))
    for number, (sums, scales) in enumerate(zip(of_groups, plain.scales.astype(np.float32))):
        part = fma(sums.astype(np.float32), np.broadcast_to(scales, part.shape), part)
        if (number + 1) * size in ends:
            total, part = total + part, np.zeros_like(part)
    beside = np.zeros(plain.n, np.float32) if bias is None else bias.astype(np.float32)
    return fma(total, np.broadcast_to(x.scales[:, None], total.shape), beside[None])


def error_bound(
    x: QuantizedActivations,
    weight: weights.Weight,
    bias: np.ndarray | None = None,
    depth: int | None = None,
    offsets: bool | None = None,
    parts: int = 1,
) -> np.ndarray:
    """float64 [m, n]: how far ``kernel_product``, in any order of groups, may be from ``matmul``
    before it is rounded to 16 bits: 2 roundings of float32 for each group, and 2 more, each of the
    sum of magnitudes at most; of fp8, also what the tensor cores lose, and groups of ``FP8_DEPTH``
    at most, counted from where each of the ``parts`` begins. depth: of a kernel of int8 whose exact
    sums are of parts of groups, of so many of k at least. offsets: whether a kernel of fp8 uses
    those of x, which makes the bound three to four times as large; None: it may."""
    plain = _plain(x, weight)
    codes, lost = _integers(plain), np.zeros((x.m, plain.n))
    if x.kind == "fp8":
        codes = codes.reshape(plain.k, plain.n)
        magnitude, lost, pieces = _fp8_sums(x, plain, codes, parts)
        if offsets is not False:
            lost = np.maximum(lost, _lost_with_offsets(x, plain, codes, parts))
    else:
        exact = codes.reshape(-1, depth or plain.rows_per_group, plain.n)
        pieces = len(exact)
        scales = np.abs(plain.scales.astype(np.float64)).repeat(pieces // len(codes), axis=0)
        magnitude = np.zeros((x.m, plain.n))
        for sums, scale in zip(_sums(x.values(), exact), scales):
            magnitude += np.abs(sums) * scale
    of_rows = np.abs(x.scales[:, None])
    lost = lost * of_rows
    magnitude = magnitude * of_rows + lost
    if bias is not None:
        magnitude = magnitude + np.abs(bias.astype(np.float64))
    roundings = 2 * pieces + 2
    rounded = roundings * UNIT_ROUNDOFF / (1 - roundings * UNIT_ROUNDOFF) * magnitude
    return lost + rounded + 2.0**-140


def bounds(
    x: QuantizedActivations,
    weight: weights.Weight,
    bias: np.ndarray | None = None,
    depth: int | None = None,
    offsets: bool | None = None,
    parts: int = 1,
) -> weights.Bounds:
    """``matmul`` and ``error_bound``, of a result that is rounded once, to ``x.dtype``."""
    accumulated = error_bound(x, weight, bias, depth, offsets, parts)
    return weights.rounded_once(matmul(x, weight, bias), accumulated, x.dtype)


def _fp8_sums(
    x: QuantizedActivations, plain: QuantizedWeight, codes: np.ndarray, parts: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """-> (magnitudes of exact sums of x times ``codes`` [k, n], bounds of what the tensor cores
    lose of them, both float64 [m, n], times the weight's scales and added up; of how many pieces):
    of ``FP8_DEPTH`` of k, as many for each scale group, which may be shorter, and none across
    ``parts``."""
    size, values = plain.rows_per_group, x.values()
    cuts = sorted({*range(0, plain.k, size), *part_ends(plain.k, parts)})
    magnitude, lost, pieces = np.zeros((x.m, plain.n)), np.zeros((x.m, plain.n)), 0
    for begin, end in zip(cuts, cuts[1:]):
        scales = np.abs(plain.scales[begin // size].astype(np.float64))
        for first in range(begin, end, FP8_DEPTH):
            here = slice(first, min(first + FP8_DEPTH, end))
            left, right = values[:, here], codes[here]
            tail = (0, -left.shape[1] % small_sums.TERMS)
            of_sum = small_sums.error_bound(
                np.pad(left, ((0, 0), tail)), np.pad(right.T * FP8_UNIT, ((0, 0), tail))
            )
            magnitude += np.abs(left @ right) * scales
            lost += of_sum / FP8_UNIT * scales
            pieces += 1
    return magnitude, lost, pieces


def _lost_with_offsets(
    x: QuantizedActivations, plain: QuantizedWeight, weights: np.ndarray, parts: int
) -> np.ndarray:
    """float64 [m, n], before x is scaled: a bound of what is lost where weights [k, n] are
    multiplied as code and code - 15, and the offsets are added, 16 groups at a time; 0 where no
    kernel does so. The adder of 16-bit products loses less than 2^-20 of what it adds up, and of
    the pieces and parts of k each is added to a total that is rounded to float32."""
    size = plain.rows_per_group
    if plain.zeros is not None or x.offsets is None or size not in (OFFSET_GROUP, plain.k):
        return np.zeros((x.m, plain.n))
    odd = np.arange(plain.k)[:, None] % 2
    moved = np.where(odd, -7.0, 8.0)  # what code - 15, and the code, are more than the weight
    magnitude, lost, pieces = _fp8_sums(x, plain, weights + moved, parts)
    scales = np.abs(plain.scales.astype(np.float64))
    groups = -(-plain.k // OFFSET_GROUP)
    tail = groups * OFFSET_GROUP - plain.k
    both = np.pad(x.values() * moved.T, ((0, 0), (0, tail)))
    each = np.abs(both.reshape(x.m, groups, OFFSET_GROUP).sum(axis=2))
    offsets = each @ np.repeat(scales, groups // len(scales), axis=0)
    added = offsets + magnitude
    summands = x.offsets.shape[1]
    bits = {"float16": 11, "bfloat16": 8}[x.dtype]  # of one of them
    products = summands * -(-groups // 16)
    rounded = products * 2.0**-20 + (pieces + parts) * UNIT_ROUNDOFF
    return lost + 2.0 ** -(summands * bits) * offsets + rounded * added
