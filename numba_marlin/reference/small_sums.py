"""How far sums of products of 8-bit floats may be from the exact ones where Hopper's wgmma makes
them: its adder keeps 13 bits.

What the adder does, and who says so, is in ``emulator.tensor.tensor_sums`` (published for the H100,
not measured here). An instruction adds ``TERMS`` products p and the accumulator c. Every term loses
less than ``u = 2^-13 M``, where M is the largest of |c| and of the powers of two 2^(e_a + e_b) of
the products' factors (a subnormal factor counts with the smallest normal exponent, so that M may be
larger than any product); then the result loses less than ``2^-13`` of itself, or 2^-139 if it is
subnormal. With s the exact sum so far and E the error so far, an instruction leaves

    E' = (E + (TERMS + 1) u) (1 + 2^-13) + 2^-13 |s'| + 2^-139,    |c| <= |s| + E

Codes of 4 bits as e4m3 (the byte 0000cccc is c * 2^-9) are subnormal up to 7: M is 2^-6 times the
other factor's power of two whatever c is.
"""

from __future__ import annotations

import numpy as np

TERMS, KEPT = 32, 13
SMALLEST = {"e4m3": -6, "e5m2": -14}
"""The exponent of the smallest normal number."""


def power_of_two(values: np.ndarray, kind: str) -> np.ndarray:
    """2^e for the exponent that each number counts with, 0 for 0."""
    exponents = np.maximum(np.frexp(values)[1] - 1, SMALLEST[kind])
    return np.where(values == 0, 0.0, np.ldexp(1.0, exponents))


def error_bound(
    left: np.ndarray,
    right: np.ndarray,
    kinds: tuple[str, str] = ("e4m3", "e4m3"),
    start: np.ndarray | None = None,
) -> np.ndarray:
    """float64 [m, n]: how far ``start + left @ right.T`` by wgmma with float32 accumulators may be
    from the exact one; left [m, k] and right [n, k] finite numbers of ``kinds`` "e4m3" or "e5m2", k
    a multiple of 32, in the order of the instructions; start [m, n] or 0. For a kernel that takes
    sums out every so many k and adds them elsewhere, once for each part. ValueError for other k.
    """
    if left.shape[1] != right.shape[1] or left.shape[1] % TERMS:
        raise ValueError(
            f"k={left.shape[1]} and {right.shape[1]} must be the same multiple of {TERMS}"
        )
    powers = [power_of_two(each, kind) for each, kind in zip((left, right), kinds)]
    exact = np.zeros((len(left), len(right))) if start is None else start.astype(np.float64)
    error = np.zeros_like(exact)
    for first in range(0, left.shape[1], TERMS):
        here = slice(first, first + TERMS)
        largest = np.maximum(
            (powers[0][:, None, here] * powers[1][None, :, here]).max(axis=2),
            np.abs(exact) + error,
        )
        exact = exact + left[:, here].astype(np.float64) @ right[:, here].astype(np.float64).T
        error = error + (TERMS + 1) * 2.0**-KEPT * largest
        error = error * (1 + 2.0**-KEPT) + 2.0**-KEPT * np.abs(exact) + 2.0**-139
    return error
