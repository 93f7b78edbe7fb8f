"""Contract under test: the matrices of 8-bit elements ask what they say: an adder that is another
one leaves other bits of them."""

from dataclasses import replace

import numpy as np
import pytest

from numba_marlin.emulator.state import small_floats
from numba_marlin.emulator.tensor import tensor_sums
from numba_marlin.emulator.tensor.tensor_sums import SMALL, SMALL_FLOATS, add_products
from numba_marlin.witness import small_matrices

E4M3 = ("e4m3", "e4m3")


def drawn(which, kinds=E4M3):
    return (each[0] for each in small_matrices.draw(which, kinds, 1, 32, 16))


def product(which, adder, kinds=E4M3):
    a, b, c = drawn(which, kinds)
    codes = [each.astype(np.uint16) + np.uint16(SMALL[kind]) for each, kind in zip((a, b), kinds)]
    sums = add_products("f8", np.concatenate(codes)[None], len(a), c.view(np.float32)[None], adder)
    return sums[0].view(np.uint32)


@pytest.mark.parametrize(
    "which, other",
    [
        *[("steps", {"terms": terms}) for terms in (4, 8, 16)],
        *[("steps", {"extra_bits": bits}) for bits in (-12, -11, -9, -8, 2)],
        ("many", {"extra_bits": -9}),
        *[("accumulator", {"extra_bits": bits, "result_bits": 23 + bits}) for bits in (-11, -9, 0)],
        *[("result", {"result_bits": bits}) for bits in (12, 14, 23)],
        *[("spread", {name: value}) for name, value in (("terms", 16), ("extra_bits", -9))],
    ],
)
def test_another_adder_would_be_seen(which, other):
    assert (product(which, SMALL_FLOATS) != product(which, replace(SMALL_FLOATS, **other))).any()


def test_subnormal_factors_tell_their_exponents(monkeypatch):
    """Were they aligned as if they were normal ones of their size, it would be seen."""
    before = product("subnormal", SMALL_FLOATS)
    kind = tensor_sums.KINDS["f8"]
    true = np.frexp(kind.numbers(np.arange(512)))[1].astype(np.int16) - np.int16(1)
    own = np.where(kind.exponents(np.arange(512)) == tensor_sums.NONE, tensor_sums.NONE, true)
    other = replace(kind, exponents=own.astype(np.int16).__getitem__)
    monkeypatch.setitem(tensor_sums.KINDS, "f8", other)
    assert (product("subnormal", SMALL_FLOATS) != before).any()


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_any_codes_are_in_bits_and_not_all_sums_are_nan(kind):
    a, b, _ = drawn("bits", (kind, kind))
    numbers = small_floats.HALVES[kind].view(np.float16)[np.concatenate([a, b])]
    assert not np.isfinite(numbers).all()
    sums = product("bits", SMALL_FLOATS, (kind, kind)).view(np.float32)
    assert np.isnan(sums).any() and np.isfinite(sums).mean() > 0.1


def test_small_integers_are_exact():
    a, b, c = drawn("integers")
    left, right = (
        small_floats.HALVES["e4m3"][each].view(np.float16).astype(float) for each in (a, b)
    )
    assert np.array_equal(
        product("integers", SMALL_FLOATS).view(np.float32), c.view(np.float32) + left @ right.T
    )


@pytest.mark.parametrize("kinds", [("u8", "s8"), ("s8", "s8")])
def test_sums_of_any_bytes_wrap(kinds):
    a, b, c = drawn("spread", kinds)
    left = a.view(np.int8 if kinds[0] == "s8" else np.uint8).astype(np.int64)
    total = left @ b.view(np.int8).astype(np.int64).T + c.view(np.int32)
    assert (np.abs(total) >= 2**31).any() and (np.abs(total) < 2**31).any()
