"""Matrices whose products tell how a tensor core adds: A [count, m, 16], B [count, 16, n] as 16-bit
patterns, C [count, m, n] as float32 bits.

Every set is one question about the sum of the products of a row and a column and their accumulator:

- ``normal``     plain data: how often do results differ at all
- ``spread``     factors over 2^20: what falls off the lower end when terms are aligned, and how it
                 is rounded
- ``cancel``     large terms that cancel, in the same or in different quarters of k, or against the
                 accumulator: which terms are aligned to
                 which maximum, how many bits are kept below it, in how many steps the sum is made
- ``sparse``     one or two products and an accumulator: the rounding of a single addition, its
                 sign, ties
- ``tiny``       products and accumulators in the range of subnormal float32
- ``huge``       accumulators near the largest float32: overflow, and whether the sum is wider than
                 its result
- ``bits``       random bits in everything: NaN, infinities, subnormal factors
- ``zeros``      zeros of both signs, few others: the sign of a sum that is zero, and whether a
                 zero's exponent counts
- ``integers``   small integers: exact in any order, so that a wrong place shows
"""

from __future__ import annotations

import numpy as np

from numba_marlin.witness import draws

SETS = ("normal", "spread", "cancel", "sparse", "tiny", "huge", "bits", "zeros", "integers")
DEPTH = 16


def encode(values: np.ndarray, kind: str) -> np.ndarray:
    """float64 -> the patterns of ``kind`` "f16" or "bf16", uint16. bf16 by truncation, which is a
    way to draw a number like any other."""
    with np.errstate(over="ignore"):
        if kind == "f16":
            return np.clip(values, -65504, 65504).astype(np.float16).view(np.uint16)
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def _signs(seed, shape):
    return 1.0 - 2.0 * (draws.raw(seed, int(np.prod(shape))) & np.uint64(1)).reshape(shape)


def _power(seed, shape, low, high):
    """Powers of two with whole exponents from low to high - 1."""
    exponents = low + (draws.raw(seed, int(np.prod(shape))) % np.uint64(high - low)).astype(
        np.int64
    )
    return np.ldexp(1.0, exponents).reshape(shape)


def _normal(seed, shape):
    return draws.normal(seed, int(np.prod(shape))).reshape(shape)


def _mantissas(seed, shape):
    return draws.uniform(seed, int(np.prod(shape)), 1.0, 2.0).reshape(shape)


def _chosen(seed, shape, share):
    return draws.uniform(seed, int(np.prod(shape))).reshape(shape) < share


def draw(
    name: str, kind: str, count: int, m: int, n: int, seed: str = ""
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The set ``name`` for factors of ``kind``: (a, b, c)."""
    seed, of_a, of_b, of_c = (
        f"{seed}/{name}/{kind}",
        (count, m, DEPTH),
        (count, DEPTH, n),
        (count, m, n),
    )
    if name == "bits":
        a, b = (
            draws.mixed(
                f"{seed}/{x}",
                int(np.prod(s)),
                draws.HALVES if kind == "f16" else draws.BRAINS,
                np.uint16,
            ).reshape(s)
            for x, s in (("a", of_a), ("b", of_b))
        )
        special = 0x7C00 if kind == "f16" else 0x7F80
        for x, bits in (("a", a), ("b", b)):  # else every sum were NaN
            calm = (bits & special == special) & ~_chosen(f"{seed}/calm{x}", bits.shape, 0.04)
            bits[calm] &= np.uint16(0x0FFF) | np.uint16(0x8000)
        return (
            a,
            b,
            draws.mixed(f"{seed}/c", int(np.prod(of_c)), draws.FLOATS, np.uint32).reshape(of_c),
        )
    if name == "zeros":
        a, b, c = (
            _signs(f"{seed}/s{x}", s) * _chosen(f"{seed}/keep{x}", s, share)
            for x, s, share in (("a", of_a, 0.03), ("b", of_b, 0.5), ("c", of_c, 0.3))
        )
        one_sign = np.broadcast_to(_chosen(f"{seed}/row", (count, m, 1), 0.5), of_a)
        a, b = (
            np.where(one_sign, np.copysign(a, -1.0), a),
            np.where(_chosen(f"{seed}/column", (count, 1, n), 0.7), np.abs(b), b),
        )
        b, c = (
            b * _power(f"{seed}/eb", of_b, -3, 4),
            c
            * np.where(
                _chosen(f"{seed}/low", of_c, 0.5), _power(f"{seed}/ec", of_c, -126, -20), 1.0
            ),
        )
    elif name == "integers":
        a, b, c = (
            np.floor(draws.uniform(f"{seed}/{x}", int(np.prod(s)), -8, 9)).reshape(s)
            for x, s in (("a", of_a), ("b", of_b), ("c", of_c))
        )
    elif name == "cancel":
        a, b, c = _cancelling(seed, of_a, of_b, of_c)
    else:
        a, b, c = _normal(f"{seed}/a", of_a), _normal(f"{seed}/b", of_b), _normal(f"{seed}/c", of_c)
        if name == "spread":
            a, b, c = (
                a * _power(f"{seed}/ea", of_a, -10, 10),
                b * _power(f"{seed}/eb", of_b, -4, 4),
                c * _power(f"{seed}/ec", of_c, -12, 12),
            )
        elif name == "sparse":
            a *= _chosen(f"{seed}/keep", of_a, 0.12) * _power(f"{seed}/ea", of_a, -12, 3)
            c *= _power(f"{seed}/ec", of_c, -14, 6)
        elif name == "tiny":
            scale = -23 if kind == "f16" else -70
            a, b = (
                a * _power(f"{seed}/ea", of_a, scale, scale + 10),
                b * _power(f"{seed}/eb", of_b, scale, scale + 10),
            )
            c = c * _power(f"{seed}/ec", of_c, -150, -120 if kind == "bf16" else -40)
        elif name == "huge":
            c = _signs(f"{seed}/sc", of_c) * np.where(
                _chosen(f"{seed}/which", of_c, 0.5),
                np.finfo(np.float32).max,
                2.0**127 * _mantissas(f"{seed}/mc", of_c),
            )
            if kind == "bf16":
                a, b = (
                    a * _power(f"{seed}/ea", of_a, 40, 64),
                    b * _power(f"{seed}/eb", of_b, 56, 64),
                )
            else:
                a, b = a * _power(f"{seed}/ea", of_a, 4, 14), b * _power(f"{seed}/eb", of_b, 4, 14)
    return encode(a, kind), encode(b, kind), c.astype(np.float32).view(np.uint32)


def _cancelling(seed, of_a, of_b, of_c):
    """Rows with a large term at one place of k and its opposite at another, or in the accumulator;
    all else up to 2^-40 of it. Columns are powers of two or nearly ones."""
    count, m, n = of_c
    a = (
        _signs(f"{seed}/sa", of_a)
        * _mantissas(f"{seed}/ma", of_a)
        * _power(f"{seed}/ea", of_a, -14, 2)
        * _chosen(f"{seed}/keep", of_a, 0.5)
    )
    b = np.where(_chosen(f"{seed}/one", (count, 1, n), 0.5), 1.0, _mantissas(f"{seed}/mb", of_b))
    b = b * _power(f"{seed}/eb", (count, 1, n), -12, 1)
    large = 1024.0 * _mantissas(f"{seed}/large", (count, m)) * _signs(f"{seed}/sl", (count, m))
    large = large.astype(np.float16).astype(np.float64)
    first, second = (
        (draws.raw(f"{seed}/{x}", count * m) % np.uint64(DEPTH)).astype(int).reshape(count, m)
        for x in ("i", "j")
    )
    rows = np.indices((count, m))
    a[rows[0], rows[1], first] = large
    pair = _chosen(f"{seed}/pair", (count, m), 0.7)
    a[rows[0], rows[1], second] = np.where(
        pair & (second != first), -large, a[rows[0], rows[1], second]
    )
    c = (
        _signs(f"{seed}/sc", of_c)
        * _mantissas(f"{seed}/mc", of_c)
        * _power(f"{seed}/ec", of_c, -30, 4)
    )
    opposite = np.where(
        pair[:, :, None],
        c,
        -(large[:, :, None] * b[np.arange(count)[:, None, None], first[:, :, None], np.arange(n)])
        * (1 + c * 2.0**-16),
    )
    return a, b, opposite
