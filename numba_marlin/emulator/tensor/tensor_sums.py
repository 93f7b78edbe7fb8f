"""How a tensor core adds: the sum of products and an accumulator, to the bit.

``Adder(terms, extra_bits, result_bits)``: so many products and the accumulator at a time. A product
is exact. All terms are cut off (towards zero) below one unit: 2^-(23 + extra_bits) of the largest
exponent among them, where a product's exponent is the sum of its factors' exponents (its
significand may be 2 or more), a subnormal number's is that of the smallest normal one, and a
product that is zero has none. The sum of what is left is exact, and is cut off to ``result_bits``
of fraction, subnormal ones included; above all float32 numbers it is infinite. With an fp16 result
it is rounded to nearest even instead. An infinite or NaN term decides as in IEEE 754, NaN being
canonical. Longer products go through in order of k, ``terms`` at a time.

sm_90 was measured: 16 terms, 2 extra bits, mma.sync and wgmma alike, fp16 and bf16
(experiments/05_hardware; an H200). Other chips are as published and were not measured here: Fasi,
Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021; Khattak and
Mikaitis, "Accurate models of NVIDIA tensor cores", 2025, arXiv:2512.07004.

wgmma adds 8-bit floats on sm_90 with fewer bits (``SMALL_FLOATS``): 32 products at a time, cut off
13 bits below the largest exponent, and a result with 13 bits of fraction in a float32, as Xie,
Wang, Yang and Yang found, "MMA-Sim: bit-accurate reference model of tensor cores and matrix cores",
2025, arXiv:2511.10909; the "14 bits" of DeepSeek-AI, "DeepSeek-V3 technical report", 2024,
arXiv:2412.19437, section 3.5.2, are these and the one before the point. The H200 agrees bit for
bit (experiments/05_hardware, questions of ``witness.small_matrices``), also in what else is from
MMA-Sim: results in fp16 are rounded to nearest even, once an addition, and mma.sync's 8-bit floats
go through fp16's adder. Not measured: tf32 through fp16's adder, half as many at a time. The error
of an addition follows: a term loses less than the unit, u = 2^(e - 13)
for the largest exponent e among them, and the result less than 2^-13 of itself, so

    |error| < (terms + 1) u + 2^-13 |result|,   u <= 2^-13 times the largest term

(the last if no factor is subnormal: those count as if they had the smallest normal exponent).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from numba_marlin.emulator.state import numerics, small_floats


@dataclass(frozen=True)
class Adder:
    """``terms``: of 16-bit factors, half as many of tf32; the other figures as above.
    ``small_floats``: of mma.sync with 8-bit factors, if the chip has an instruction for them."""

    terms: int
    extra_bits: int
    measured: bool = False
    result_bits: int = 23
    small_floats: Adder | None = None

    @property
    def of_sparse(self) -> Adder:
        """Of a product whose A is sparse and has its zeros (``sparsity``): of as many places of k,
        half are stored."""
        small = self.small_floats
        return replace(
            self, terms=2 * self.terms, small_floats=None if small is None else small.of_sparse
        )


ADA_SMALL_FLOATS = Adder(16, -10, result_bits=13)
"""of e4m3 and e5m2 in mma.sync on sm_89: published, not measured"""
ADDERS = {
    "sm_70": Adder(4, 0),
    "sm_80": Adder(8, 1),
    "sm_89": Adder(8, 1, small_floats=ADA_SMALL_FLOATS),
    "sm_90": Adder(16, 2, measured=True),
}
SMALL_FLOATS = Adder(32, -10, result_bits=13)
"""of e4m3 and e5m2 in wgmma: published, and measured"""
MEASURED_ADDER = next(name for name, adder in ADDERS.items() if adder.measured)


def adder_of(name: str) -> Adder:
    """The adder of a chip, one of ADDERS."""
    if name not in ADDERS:
        raise ValueError(
            f"adds_like={name!r} must be one of {', '.join(ADDERS)}: how others add is not known"
            " here"
        )
    return ADDERS[name]


NONE = -4000  # exponent of a zero factor: no sum with a finite one reaches a real one
SPECIAL = 500  # exponents of infinities and NaN, and of products with them, are above
RESULTS = 1 << 14  # at a time, and
TERMS = 1 << 15  # at a time: what fits in the cache
SIGNIFICANT = 24  # bits of a float32
HALF = 10  # bits of fraction of an fp16


@dataclass(frozen=True)
class Kind:
    """Floats of up to 19 bits: ``smallest``, the exponent of normal ones; ``work`` holds every
    product of two, to within what is cut off anyway; ``numbers``: bit patterns as float32, exactly;
    ``exponents``: of bit patterns, int16."""

    smallest: int
    work: type
    numbers: Callable[[np.ndarray], np.ndarray]
    exponents: Callable[[np.ndarray], np.ndarray]


def exponents_of(fraction: int, bias: int, infinity: int, bits: np.ndarray) -> np.ndarray:
    """int16 like ``bits``, which are 16-bit floats with so many bits of fraction, exponent bias,
    and bits of infinity."""
    size = bits & np.uint16(0x7FFF)
    found = (size >> fraction).view(np.int16)
    np.maximum(found, 1, out=found)
    found -= np.int16(bias)
    found += (size == 0) * np.int16(NONE)
    if size.max(initial=0) >= infinity:
        found[size >= infinity] = -3 * NONE
    return found


SMALL = {"e4m3": 0, "e5m2": 1 << 8}
"""What to add to the code of an 8-bit float to have a pattern of kind "f8", of either type."""
SMALLEST = {"e4m3": -6, "e5m2": -14}
"""The exponent of the smallest normal number."""
_SMALL_NUMBERS = np.concatenate([numerics.half_values(small_floats.HALVES[kind]) for kind in SMALL])


def _small_exponents() -> np.ndarray:
    """int16 [512]"""
    own = np.frexp(_SMALL_NUMBERS)[1] - 1
    smallest = np.repeat([SMALLEST[kind] for kind in SMALL], 256)
    found = np.where(_SMALL_NUMBERS == 0, NONE, np.maximum(own, smallest))
    return np.where(np.isfinite(_SMALL_NUMBERS), found, -3 * NONE).astype(np.int16)


IGNORED = np.uint32(0x1FFF)
"""The bits of an fp32 that are not a tf32's."""


def _nineteen_bit_exponents(bits: np.ndarray) -> np.ndarray:
    """int16 like ``bits``, tf32 in 32 bits."""
    size = bits & ~IGNORED & np.uint32(0x7FFFFFFF)
    field = (size >> np.uint32(23)).astype(np.int16)
    found = np.where(size == 0, NONE, np.maximum(field, 1) - 127)
    return np.where(field == 255, -3 * NONE, found).astype(np.int16)


KINDS = {
    "f16": Kind(-14, np.float32, numerics.half_values, partial(exponents_of, 10, 15, 0x7C00)),
    "bf16": Kind(-126, np.float64, numerics.brain_values, partial(exponents_of, 7, 127, 0x7F80)),
    "tf32": Kind(
        -126, np.float64, lambda bits: (bits & ~IGNORED).view(np.float32), _nineteen_bit_exponents
    ),
    "f8": Kind(
        max(SMALLEST.values()),
        np.float32,
        _SMALL_NUMBERS.__getitem__,
        _small_exponents().__getitem__,
    ),
}


def add_products(
    kind: str, factors: np.ndarray, rows: int, c: np.ndarray, adder: Adder
) -> np.ndarray:
    """[many, rows, columns] like c: c + sum over k of left * right. kind of ``KINDS``; factors
    uint16, tf32's uint32, [many, rows + columns, k], C-contiguous: bit patterns, left's ``rows``,
    then right's columns; c float32 or float16. ``many`` independent products, the faster the more
    there are.
    """
    what = KINDS[kind]
    many, lines, _ = factors.shape
    step = max(1, RESULTS // (rows * (lines - rows)))
    if many > step:
        parts = (slice(start, start + step) for start in range(0, many, step))
        return np.concatenate(
            [add_products(kind, factors[part], rows, c[part], adder) for part in parts]
        )
    with np.errstate(all="ignore"):
        narrow = c.dtype == np.float16
        short = None if narrow else _uncut(what, factors, rows, c, adder)
        return _cut_off(what, factors, rows, c, adder) if short is None else short


def _uncut(
    what: Kind, factors: np.ndarray, rows: int, c: np.ndarray, adder: Adder
) -> np.ndarray | None:
    """The sums, if none of them can reach the adder's bits above the last bit of any term: nothing
    is cut off then, and float32 itself is exact, in any order. None if some may: so it is with most
    random numbers, and the first of ``many`` products shows it."""
    limit = 1 << min(SIGNIFICANT, adder.result_bits + 1, 23 + adder.extra_bits)
    for some in (slice(0, 1), slice(None)):
        numbers = what.numbers(factors[some])
        left, right = numbers[:, :rows], numbers[:, rows:]
        grains = _grain(left, what.smallest), _grain(right, what.smallest)
        if None in grains:
            return None
        (left_top, left_unit), (right_top, right_unit) = grains
        most = numbers.shape[2] * left_top * right_top * 2.0 ** -(left_unit + right_unit)
        if most > limit:
            return None
    units = c * 2.0 ** np.float64(-(left_unit + right_unit))  # in float32 a small c would be 0
    if not most + float(np.abs(units).max()) <= limit or (units != np.rint(units)).any():
        return None
    total = numerics.matrix_product(left, right)
    total += c
    total += np.float32(0)  # no sum is -0, whatever a library of matrix products starts from
    return total


def _grain(numbers: np.ndarray, smallest: int) -> tuple[float, int] | None:
    """(the largest size, an exponent e such that all numbers are multiples of 2^e); None if they
    have too many bits, or are too large or small, for ``_uncut``. Subnormal numbers count as the
    smallest normal one, whose exponent they have."""
    top = float(max(numbers.max(), -numbers.min()))
    if not 2.0**-40 < top < 2.0**40:
        return (0.0, 0) if top == 0 else None
    shift = SIGNIFICANT - 1 - math.frexp(top)[1]
    scaled = numbers * np.float32(2.0**shift)
    whole = scaled.astype(np.int32)
    if (whole != scaled).any():
        return None
    bits = int(np.bitwise_or.reduce(whole, axis=None))
    return max(top, 2.0**smallest), (bits & -bits).bit_length() - 1 - shift


def _cut_off(what: Kind, factors: np.ndarray, rows: int, c: np.ndarray, adder: Adder) -> np.ndarray:
    """``add_products``, every term cut off: as [k, rows + columns, many], so that what is done
    alike lies side by side."""
    factors, kind = _turned(factors), c.dtype
    c = np.ascontiguousarray(c.transpose(1, 2, 0)).astype(np.float32, copy=False)
    if kind == np.float16:
        adder = replace(adder, result_bits=HALF)
    add = _add_halves if what is KINDS["f16"] and adder.result_bits == SIGNIFICANT - 1 else _add
    numbers, exponents = (
        what.numbers(factors).astype(what.work, copy=False),
        what.exponents(factors),
    )
    operands = (
        numbers[:, :rows, None],
        numbers[:, None, rows:],
        exponents[:, :rows, None],
        exponents[:, None, rows:],
    )
    terms = adder.terms * 2 // factors.itemsize
    for start in range(0, len(factors), terms):
        c = add(*(each[start : start + terms] for each in operands), c, adder)
    return np.ascontiguousarray(c.transpose(2, 0, 1)).astype(kind, copy=False)


def _turned(factors: np.ndarray) -> np.ndarray:
    """[many, lines, k] -> [k, lines, many]; an even number of 16-bit k goes in pairs, twice as
    fast."""
    many, lines, depth = factors.shape
    if depth % 2 or factors.itemsize != 2:
        return np.ascontiguousarray(factors.transpose(2, 1, 0))
    pairs = np.ascontiguousarray(factors.view(np.uint32).reshape(many, -1).T).reshape(
        lines, depth // 2, many
    )
    turned = np.empty((depth // 2, 2, lines, many), np.uint16)
    np.copyto(turned[:, 0], pairs.swapaxes(0, 1), casting="unsafe")
    np.copyto(turned[:, 1], pairs.swapaxes(0, 1) >> np.uint32(16), casting="unsafe")
    return turned.reshape(depth, lines, many)


def _groups(terms: int, results: int) -> list[slice]:
    step = max(1, TERMS // results)
    return [slice(start, min(start + step, terms)) for start in range(0, terms, step)]


def _largest(top: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """``top`` int16 [rows, columns, many], made the largest of itself and the sums of exponents."""
    for group in _groups(len(left), top.size):
        np.maximum(top, (left[group] + right[group]).max(axis=0), out=top)
    return top


def _sum(left: np.ndarray, right: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """int32 [rows, columns, many]: the sum of products * scale, each cut off to an integer. 16 of
    them fill 31 bits at most."""
    total, groups = np.zeros(scale.shape, np.int32), _groups(len(left), scale.size)
    products, units = (
        np.empty((groups[0].stop, *scale.shape), kind) for kind in (left.dtype, np.int32)
    )
    for group in groups:
        part, whole = products[: group.stop - group.start], units[: group.stop - group.start]
        np.multiply(left[group], right[group], out=part)
        np.multiply(part, scale, out=part)
        np.copyto(whole, part, casting="unsafe")  # towards zero
        for each in whole:
            total += each
    return total


def _add_halves(left, right, left_exponents, right_exponents, c, adder):
    """``_add`` for factors of fp16, twice as fast: all but one sum in 32 bits. Exponents are those
    of products of fp16, from -28 to 30, or of c."""
    bits = c.view(np.int32)
    top = _largest(
        (bits >> 23 & 255).astype(np.int16) - np.int16(127), left_exponents, right_exponents
    )
    if top.max() >= 128 or top.min() < -28:  # infinities and NaN; no product but zeros
        return _add(left, right, left_exponents, right_exponents, c, adder)
    unit = top.astype(np.int32) - (23 + adder.extra_bits)
    scale = (127 - unit << 23).view(np.float32)
    total = np.add(_sum(left, right, scale), (c * scale).astype(np.int32), dtype=np.float64)
    bits = total.view(np.int64)
    bits &= -1 << 29
    return total.astype(np.float32) * (127 + unit << 23).view(np.float32)


def _add(left, right, left_exponents, right_exponents, c, adder):
    """One pass through the adder: left [k, rows, 1, many], right [k, 1, columns, many] and c [rows,
    columns, many] as numbers."""
    c_exponents = (c.view(np.int32) >> 23 & 255) - 127
    smallest = KINDS["f16"].smallest if adder.result_bits == HALF else -126
    top = _largest(
        np.where(c == 0, NONE, np.maximum(c_exponents, smallest)).astype(np.int16),
        left_exponents,
        right_exponents,
    )
    unit = np.maximum(top, -300).astype(np.int64) - (23 + adder.extra_bits)
    scale = (1023 - unit << 52).view(np.float64)  # 2^-unit
    # where it is larger, all products of fp16 are zero
    narrow = np.minimum(scale, 2.0**100).astype(left.dtype) if left.dtype == np.float32 else scale
    result = _cut(np.trunc(c * scale) + _sum(left, right, narrow), unit, adder.result_bits)
    special = (top >= SPECIAL) | (c_exponents == 128)
    if special.any():
        exact = (left.astype(np.float64) * right).sum(axis=0) + c
        result = np.where(special, numerics.canonical32(exact.astype(np.float32)), result)
    return result


def _cut(units: np.ndarray, unit: np.ndarray, result_bits: int) -> np.ndarray:
    """units * 2^unit as float32 with so many bits of fraction, towards zero; or as fp16, to
    nearest."""
    value = units * (1023 + unit << 52).view(np.float64)
    if result_bits == HALF:
        return value.astype(np.float16).astype(np.float32)
    cut = (value.view(np.int64) & -1 << 52 - result_bits).view(np.float64).astype(np.float32)
    if unit.min() < -126 - result_bits:  # subnormal ones have fewer bits
        low = np.abs(value) < 2.0**-126
        last = 126.0 + result_bits
        cut[low] = np.trunc(value[low] * 2.0**last) * 2.0**-last
    return cut
