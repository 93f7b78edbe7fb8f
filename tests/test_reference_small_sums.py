"""Contract under test: the bound of sums of 8-bit floats holds for the adder that the PTX machine
has for Hopper, and not for one that keeps fewer bits."""

from dataclasses import replace

import numpy as np
import pytest

from numba_marlin.emulator.tensor.tensor_sums import SMALL, SMALL_FLOATS, add_products
from numba_marlin.formats import small_floats
from numba_marlin.reference import small_sums

KINDS = [(a, b) for a in SMALL for b in SMALL]


def drawn(kind, shape, seed, few=False):
    """(numbers, codes) of all finite codes, or of few exponents and one sign."""
    codes = np.flatnonzero(np.isfinite(small_floats.table(kind)))
    if few:
        values = small_floats.table(kind)
        codes = np.flatnonzero((values >= 1) & (values < 2))
    codes = np.random.default_rng(seed).choice(codes, shape)
    return small_floats.table(kind)[codes].astype(np.float64), codes.astype(np.uint16)


def summed(left, right, kinds, start, adder):
    """As a chain of instructions does, 32 of k at a time."""
    codes = np.concatenate(
        [each + np.uint16(SMALL[kind]) for each, kind in zip((left, right), kinds)]
    )
    for first in range(0, codes.shape[1], 32):
        part = np.ascontiguousarray(codes[None, :, first : first + 32])
        start = add_products("f8", part, len(left), start[None], adder)[0]
    return start.astype(np.float64)


@pytest.mark.parametrize("few", [False, True], ids=["any numbers", "numbers that do not cancel"])
@pytest.mark.parametrize("kinds", KINDS, ids=".".join)
def test_the_machines_sums_are_within_the_bound(kinds, few):
    (a, left), (b, right) = (drawn(kind, (24, 256), seed, few) for seed, kind in enumerate(kinds))
    start = np.random.default_rng(2).standard_normal((24, 24)).astype(np.float32)
    # float64 holds all of these sums exactly, or far closer than the bound
    exact = start + a @ b.T
    bound = small_sums.error_bound(a, b, kinds, start)
    error = np.abs(summed(left, right, kinds, start, SMALL_FLOATS) - exact)
    assert (error < bound).all()
    fewer = replace(SMALL_FLOATS, extra_bits=-17, result_bits=6)
    assert (np.abs(summed(left, right, kinds, start, fewer) - exact) > bound).any()


def test_subnormal_codes_count_with_the_smallest_normal_exponent():
    """2^-9 times 2^-9 loses what is below 2^(-12 - 13)."""
    a, b = np.full((1, 32), 2.0**-9), np.full((1, 32), 2.0**-9)
    assert (small_sums.power_of_two(a, "e4m3") == 2.0**-6).all()
    bound = small_sums.error_bound(a, b)
    codes = np.ones((1, 32), np.uint16)
    found = summed(codes, codes, ("e4m3", "e4m3"), np.zeros((1, 1), np.float32), SMALL_FLOATS)
    assert np.abs(found - 32 * 2.0**-18) <= bound and bound >= 33 * 2.0 ** (-12 - 13)


def test_the_figures_are_the_machines():
    assert SMALL_FLOATS.terms == small_sums.TERMS
    assert SMALL_FLOATS.result_bits == 23 + SMALL_FLOATS.extra_bits == small_sums.KEPT


def test_k_comes_in_whole_instructions():
    with pytest.raises(ValueError, match="k=33"):
        small_sums.error_bound(np.zeros((2, 33)), np.zeros((2, 33)))
