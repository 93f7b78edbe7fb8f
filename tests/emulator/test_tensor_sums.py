"""Contract under test: sums of products as a tensor core makes them: the module's rules in exact
fractions, and bits that an H200 left."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_marlin.emulator import Machine
from numba_marlin.emulator.tensor import tensor_sums
from numba_marlin.emulator.tensor.tensor_sums import ADDERS, adder_of
from numba_marlin.witness import matrices
from numba_marlin.witness.multiplication import COLUMNS, MMA, PRODUCTS, WIDE
from tests.emulator import ptx_cases
from tests.emulator.number_cases import product

RECORDED = np.load(Path(__file__).parent / "hopper_sums.npz")
FORMATS = {"f16": (10, 15), "bf16": (7, 127), "f32": (23, 127)}
NAN, INFINITY = 0x7FFFFFFF, 0x7F800000


def parts(bits: int, kind: str):
    """(sign, value of the significand or None for infinities and NaN, exponent) of a pattern."""
    fraction, bias = FORMATS[kind]
    width = {"f16": 5, "bf16": 8, "f32": 8}[kind]
    sign, field, rest = (
        bits >> fraction + width & 1,
        bits >> fraction & (1 << width) - 1,
        bits & (1 << fraction) - 1,
    )
    if field == (1 << width) - 1:
        return (-1) ** sign, (float("nan") if rest else float("inf")), 0
    return (
        (-1) ** sign,
        Fraction(rest + (1 << fraction if field else 0), 1 << fraction),
        max(field, 1) - bias,
    )


def cut_off(value: Fraction, unit: Fraction) -> Fraction:
    whole = abs(value) // unit
    return whole * unit if value >= 0 else -whole * unit


def by_the_rules(kind, left, right, c, adder):
    """Bits of c + the sum of left[i] * right[i], one addition after the other as the docstring
    says; ints and fractions alone."""
    for start in range(0, len(left), adder.terms):
        terms, special = [], []
        for a, b in zip(left[start : start + adder.terms], right[start : start + adder.terms]):
            (sa, fa, ea), (sb, fb, eb) = parts(a, kind), parts(b, kind)
            (special if isinstance(fa, float) or isinstance(fb, float) else terms).append(
                (sa * sb, fa * fb, ea + eb)
            )
        sc, fc, ec = parts(c, "f32")
        (special if isinstance(fc, float) else terms).append((sc, fc, ec))
        if special:
            total = sum(s * float(f) for s, f, _ in special)
            c = NAN if total != total else INFINITY | (0x80000000 if total < 0 else 0)
            continue
        largest = max((e for _, f, e in terms if f), default=0)
        unit = Fraction(2) ** (largest - 23 - adder.extra_bits)
        total = sum((cut_off(s * f * Fraction(2) ** e, unit) for s, f, e in terms), Fraction(0))
        exponent = -126
        while abs(total) >= Fraction(2) ** (exponent + 1):
            exponent += 1
        if exponent > 127:
            c = INFINITY | (0x80000000 if total < 0 else 0)
            continue
        size = int(abs(total) // Fraction(2) ** (exponent - 23))
        field = exponent + 127 if size >> 23 else 0
        c = (0x80000000 if total < 0 else 0) | field << 23 | size & (1 << 23) - 1
    return c


@pytest.mark.parametrize("name", RECORDED.files)
def test_hopper_adds_as_recorded(name):
    """Operands from their seeds; the bits are an H200's, of mma.sync and wgmma
    (experiments/05_hardware)."""
    instruction, which = name.split(" ")
    found = RECORDED[name]
    count, rows = found.shape[:2]
    if instruction in MMA:
        kind, depth = MMA[instruction]
        a, b, c = matrices.draw(which, kind, PRODUCTS, 16, 8, "mma")
    else:
        kind, depth = instruction.removeprefix("wgmma_"), 16
        a, b, c = matrices.draw(which, kind, WIDE, 64, COLUMNS, f"wgmma{COLUMNS}")
    assert np.array_equal(
        product(
            kind,
            a[:count, :rows, :depth],
            b[:count, :depth],
            np.ascontiguousarray(c[:count, :rows]),
            ADDERS["sm_90"],
        ),
        found,
    )


@pytest.mark.parametrize("adder", ADDERS.values(), ids=str)
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("which", matrices.SETS)
def test_sums_follow_the_rules(kind, adder, which):
    a, b, c = matrices.draw(which, kind, 2, 4, 4, "rules")
    expected = [
        [
            [
                by_the_rules(kind, a[t, i].tolist(), b[t, :, j].tolist(), int(c[t, i, j]), adder)
                for j in range(4)
            ]
            for i in range(4)
        ]
        for t in range(2)
    ]
    assert np.array_equal(product(kind, a, b, c, adder), np.array(expected, np.uint32))


halves, words = st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)


@given(
    st.sampled_from(["f16", "bf16"]),
    st.sampled_from(list(ADDERS.values())),
    st.lists(st.tuples(halves, halves), min_size=1, max_size=16),
    words,
)
def test_sums_of_any_bits_follow_the_rules(kind, adder, pairs, c):
    a, b = (np.array(column, np.uint16) for column in zip(*pairs))
    found = product(kind, a[None, None], b[None, :, None], np.full((1, 1, 1), c, np.uint32), adder)
    assert int(found[0, 0, 0]) == by_the_rules(kind, a.tolist(), b.tolist(), c, adder)


few_bits = st.tuples(st.integers(-2047, 2047), st.integers(-12, 4)).map(
    lambda drawn: int(np.float16(drawn[0] * 2.0 ** drawn[1]).view(np.uint16))
)


@given(
    st.lists(st.tuples(few_bits, few_bits), min_size=1, max_size=16),
    st.integers(-(1 << 24), 1 << 24),
    st.integers(-24, 8),
    st.booleans(),
    st.sampled_from(list(ADDERS.values())),
)
def test_sums_that_lose_nothing_follow_the_rules_too(pairs, c, exponent, ones, adder):
    """On both sides of the limit up to which nothing can be cut off and float32 is exact; zeros of
    both signs."""
    a, b = (
        np.array([0x3C00] * len(column) if ones and side else column, np.uint16)
        for side, column in enumerate(zip(*pairs))
    )
    c = int(np.float32(c * 2.0**exponent).view(np.uint32))
    found = product("f16", a[None, None], b[None, :, None], np.full((1, 1, 1), c, np.uint32), adder)
    assert int(found[0, 0, 0]) == by_the_rules("f16", a.tolist(), b.tolist(), c, adder)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_small_integers_take_the_short_way_and_random_numbers_do_not(kind):
    rng = np.random.default_rng(0)
    whole, drawn = (
        x.astype(np.float32).view(np.uint32)
        for x in (rng.integers(-8, 8, (3, 24, 16)), rng.standard_normal((3, 24, 16)))
    )
    bits = {
        "bf16": lambda words: (words >> 16).astype(np.uint16),
        "f16": lambda words: words.view(np.float32).astype(np.float16).view(np.uint16),
    }[kind]
    c = rng.integers(-9999, 9999, (3, 16, 8)).astype(np.float32)
    short = tensor_sums._uncut(tensor_sums.KINDS[kind], bits(whole), 16, c)
    numbers = whole.view(np.float32).astype(np.float64)
    assert np.array_equal(short, c + numbers[:, :16] @ numbers[:, 16:].swapaxes(1, 2))
    assert tensor_sums._uncut(tensor_sums.KINDS[kind], bits(drawn), 16, c) is None
    for first, last in ((2.0**24, -1), (float("inf"), 0), (float("nan"), 0), (0.5 + 2.0**-20, 1)):
        c[0, 0, 0], c[-1, -1, -1] = first, last
        assert tensor_sums._uncut(tensor_sums.KINDS[kind], bits(whole), 16, c) is None


def test_products_do_not_depend_on_how_many_there_are(monkeypatch):
    a, b, c = matrices.draw("bits", "f16", 24, 16, 8, "many")
    whole = product("f16", a, b, c, ADDERS["sm_90"])
    monkeypatch.setattr(tensor_sums, "RESULTS", 300)
    monkeypatch.setattr(tensor_sums, "TERMS", 700)
    assert np.array_equal(product("f16", a, b, c, ADDERS["sm_90"]), whole)


def test_the_adder_is_chosen_by_name():
    assert [adder_of(name) for name in ("sm_70", "sm_80", "sm_90")] == list(ADDERS.values())
    assert [adder.measured for adder in ADDERS.values()] == [False, False, True]
    for name in ("sm_100", "", "H200"):
        with pytest.raises(ValueError, match="must be one of sm_70, sm_80, sm_90"):
            Machine(ptx_cases.HEADER, adds_like=name)
