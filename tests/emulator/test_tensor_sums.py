"""Contract under test: sums of products as a tensor core makes them: the module's rules in exact
fractions, and bits that an H200 left."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numba_marlin.emulator import Machine
from numba_marlin.emulator.state import numerics
from numba_marlin.emulator.tensor import tensor_sums
from numba_marlin.emulator.tensor.tensor_sums import (
    ADDERS,
    SMALL,
    SMALL_FLOATS,
    add_products,
    adder_of,
)
from numba_marlin.witness import matrices, small_matrices
from numba_marlin.witness.multiplication import COLUMNS, MMA, PRODUCTS, WIDE
from tests.emulator import ptx_cases
from tests.emulator.number_cases import product

RECORDED = np.load(Path(__file__).parent / "hopper_sums.npz")
FORMATS = {"f16": (10, 15), "bf16": (7, 127), "f32": (23, 127), "e4m3": (3, 7), "e5m2": (2, 15)}
FORMATS["tf32"] = (10, 127)
WIDTHS = {"f16": 5, "bf16": 8, "f32": 8, "e4m3": 4, "e5m2": 5, "tf32": 8}
NAN, INFINITY = 0x7FFFFFFF, 0x7F800000
HOPPER = adder_of("sm_90")


def parts(bits: int, kind: str):
    """(sign, value of the significand or None for infinities and NaN, exponent) of a pattern."""
    fraction, bias = FORMATS[kind]
    width = WIDTHS[kind]
    sign, field, rest = (
        bits >> fraction + width & 1,
        bits >> fraction & (1 << width) - 1,
        bits & (1 << fraction) - 1,
    )
    if field == (1 << width) - 1 and (kind != "e4m3" or rest == 7):
        return (-1) ** sign, (float("nan") if rest else float("inf")), 0
    return (
        (-1) ** sign,
        Fraction(rest + (1 << fraction if field else 0), 1 << fraction),
        max(field, 1) - bias,
    )


def cut_off(value: Fraction, unit: Fraction) -> Fraction:
    whole = abs(value) // unit
    return whole * unit if value >= 0 else -whole * unit


def nearest_half(total: Fraction) -> int:
    """Bits of the fp16 next to it, of two the even one."""
    size, sign = abs(total), 0x8000 if total < 0 else 0
    exponent = -14
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - 10)
    steps, rest = divmod(size, unit)
    steps = int(steps) + (rest * 2 > unit or (rest * 2 == unit and steps % 2))
    return sign | min((exponent + 14 << 10) + steps, 0x7C00)


def by_the_rules(kinds, left, right, c, adder, result="f32"):
    """Bits of c + the sum of left[i] * right[i], one addition after the other as the docstring
    says; ints and fractions alone. kinds: one of both factors, or a pair."""
    of_left, of_right = (kinds, kinds) if isinstance(kinds, str) else kinds
    for start in range(0, len(left), adder.terms):
        terms, special = [], []
        for a, b in zip(left[start : start + adder.terms], right[start : start + adder.terms]):
            (sa, fa, ea), (sb, fb, eb) = parts(a, of_left), parts(b, of_right)
            (special if isinstance(fa, float) or isinstance(fb, float) else terms).append(
                (sa * sb, fa * fb, ea + eb)
            )
        sc, fc, ec = parts(c, result)
        (special if isinstance(fc, float) else terms).append((sc, fc, ec))
        if special:
            total = sum(s * float(f) for s, f, _ in special)
            if result == "f16":
                c = 0x7FFF if total != total else 0x7C00 | (0x8000 if total < 0 else 0)
                continue
            c = NAN if total != total else INFINITY | (0x80000000 if total < 0 else 0)
            continue
        largest = max((e for _, f, e in terms if f), default=0)
        unit = Fraction(2) ** (largest - 23 - adder.extra_bits)
        total = sum((cut_off(s * f * Fraction(2) ** e, unit) for s, f, e in terms), Fraction(0))
        if result == "f16":
            c = nearest_half(total)
            continue
        exponent = -126
        while abs(total) >= Fraction(2) ** (exponent + 1):
            exponent += 1
        if exponent > 127:
            c = INFINITY | (0x80000000 if total < 0 else 0)
            continue
        lost = 23 - adder.result_bits
        size = int(abs(total) // Fraction(2) ** (exponent - 23 + lost)) << lost
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


def test_halves_below_the_normal_ones_count_with_the_smallest_exponent():
    """2^-24 times 2^15 is aligned as 2^1 is, so that 2^-29 is lost beside it."""
    a = np.full((1, 1, 16), 1, np.uint16)
    b = np.array([2.0**15] + 15 * [2.0**-5], np.float16).view(np.uint16)[None, :, None]
    c = np.zeros((1, 1, 1), np.uint32)
    found = product("f16", a, b, c, HOPPER)[0, 0, 0]
    assert found == by_the_rules("f16", a.ravel().tolist(), b.ravel().tolist(), 0, HOPPER)
    assert found.view(np.float32) == 2.0**-9


@given(
    st.sampled_from(list(ADDERS.values())),
    st.lists(st.tuples(halves, halves), min_size=1, max_size=16),
    halves,
)
def test_sums_of_halves_into_halves_are_rounded_to_nearest(adder, pairs, c):
    a, b = (np.array([column], np.uint16) for column in zip(*pairs))
    start = np.array([[[c]]], np.uint16).view(np.float16)
    found = add_products("f16", np.concatenate([a, b])[None], 1, start, adder).view(np.uint16)
    expected = by_the_rules("f16", a[0].tolist(), b[0].tolist(), c, adder, result="f16")
    assert int(found[0, 0, 0]) == expected


def small_product(kinds, a, b, c):
    """a [m, k] and b [n, k] codes, c [m, n] -> [m, n]"""
    factors = [each.astype(np.uint16) + np.uint16(SMALL[kind]) for each, kind in zip((a, b), kinds)]
    return add_products("f8", np.concatenate(factors)[None], len(a), c[None], SMALL_FLOATS)[0]


PAIRS = [(a, b) for a in SMALL for b in SMALL]


@pytest.mark.parametrize("kinds", PAIRS, ids=".".join)
@pytest.mark.parametrize("which", small_matrices.SETS)
def test_sums_of_small_floats_follow_the_rules(which, kinds):
    a, b, c = (each[0] for each in small_matrices.draw(which, kinds, 1, 4, 4, "rules"))
    found = small_product(kinds, a, b, c.view(np.float32)).view(np.uint32)
    for i, j in np.ndindex(4, 4):
        expected = by_the_rules(kinds, a[i].tolist(), b[j].tolist(), int(c[i, j]), SMALL_FLOATS)
        assert int(found[i, j]) == expected


def test_an_accumulator_below_the_normal_halves_counts_with_the_smallest_exponent():
    """Beside 2^-24 nothing below 2^(-14 - 13) counts: 31 times 2^-28 are lost."""
    a = np.array([31 * [0x04] + [0]], np.uint8)  # 2^-14
    found = small_product(("e5m2", "e5m2"), a, a, np.array([[2.0**-24]], np.float16))
    assert found[0, 0] == np.float16(2.0**-24)


@given(
    st.lists(st.tuples(words, words), min_size=1, max_size=8),
    words,
    st.sampled_from(list(ADDERS.values())),
)
def test_sums_of_tf32_follow_the_rules(pairs, c, adder):
    """Half as many at a time as of 16-bit floats; 13 bits of each factor are ignored."""
    a, b = (np.array([column], np.uint32) for column in zip(*pairs))
    found = add_products(
        "tf32",
        np.concatenate([a, b])[None],
        1,
        np.array([[[c]]], np.uint32).view(np.float32),
        adder,
    )
    kept = ([x >> 13 for x in each[0].tolist()] for each in (a, b))
    halved = replace(adder, terms=adder.terms // 2)
    assert int(found.view(np.uint32)[0, 0, 0]) == by_the_rules("tf32", *kept, c, halved)


codes = st.integers(0, 0xFF)


@given(st.sampled_from(PAIRS), st.lists(st.tuples(codes, codes), min_size=1, max_size=32), words)
@example(("e4m3", "e5m2"), [(0, 0x44)], 1)  # a subnormal accumulator and a multiple of 4
def test_sums_of_any_small_floats_follow_the_rules(kinds, pairs, c):
    a, b = (np.array([column], np.uint8) for column in zip(*pairs))
    found = small_product(kinds, a, b, np.array([[c]], np.uint32).view(np.float32))
    expected = by_the_rules(kinds, a[0].tolist(), b[0].tolist(), c, SMALL_FLOATS)
    assert int(found.view(np.uint32)[0, 0]) == expected


few = st.sampled_from([0, 0x38, 0x40, 0xB8, 0x01, 0x87, 0x08, 0x7E])


@given(st.lists(st.tuples(few, few), min_size=1, max_size=32), st.integers(-9999, 9999), halves)
def test_sums_of_few_bits_follow_the_rules_and_into_halves_too(pairs, c, half):
    """On both sides of the limit up to which nothing can be cut off."""
    a, b = (np.array([column], np.uint8) for column in zip(*pairs))
    kinds = ("e4m3", "e4m3")
    for start, result, bits in (
        (np.float32(c), "f32", np.uint32),
        (np.uint16(half).view(np.float16), "f16", np.uint16),
    ):
        found = small_product(kinds, a, b, np.array([[start]])).view(bits)
        before = int(np.array(start).view(bits))
        expected = by_the_rules(
            kinds, a[0].tolist(), b[0].tolist(), before, SMALL_FLOATS, result=result
        )
        assert int(found[0, 0]) == expected


@given(st.sampled_from(PAIRS), st.lists(st.tuples(codes, codes), min_size=1, max_size=32), words)
def test_the_error_of_small_floats_is_within_the_bound(kinds, pairs, c):
    """The bound of the module's docstring, against the exact sum."""
    a, b = (np.array([column], np.uint8) for column in zip(*pairs))
    start = np.array([[c & 0xBFFFFFFF]], np.uint32).view(np.float32)  # below 2
    terms = [(parts(x, kinds[0]), parts(y, kinds[1])) for x, y in zip(a[0].tolist(), b[0].tolist())]
    if any(isinstance(f, float) for pair in terms for _, f, _ in pair):
        return
    exact = sum(s * t * f * g * Fraction(2) ** (d + e) for (s, f, d), (t, g, e) in terms)
    exact += Fraction(float(start[0, 0]))
    found = Fraction(float(small_product(kinds, a, b, start)[0, 0]))
    largest = max(
        [d + e for (_, f, d), (_, g, e) in terms if f * g]
        + [parts(int(start.view(np.uint32)[0, 0]), "f32")[2]]
    )
    unit = Fraction(2) ** (largest - 13)
    assert abs(found - exact) < (len(terms) + 1) * unit + abs(found) / 2**13 + Fraction(1, 2**139)


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
    short = tensor_sums._uncut(tensor_sums.KINDS[kind], bits(whole), 16, c, HOPPER)
    numbers = whole.view(np.float32).astype(np.float64)
    assert np.array_equal(short, c + numbers[:, :16] @ numbers[:, 16:].swapaxes(1, 2))
    assert tensor_sums._uncut(tensor_sums.KINDS[kind], bits(drawn), 16, c, HOPPER) is None
    for first, last in ((2.0**24, -1), (float("inf"), 0), (float("nan"), 0), (0.5 + 2.0**-20, 1)):
        c[0, 0, 0], c[-1, -1, -1] = first, last
        assert tensor_sums._uncut(tensor_sums.KINDS[kind], bits(whole), 16, c, HOPPER) is None


def test_products_do_not_depend_on_how_many_there_are(monkeypatch):
    a, b, c = matrices.draw("bits", "f16", 24, 16, 8, "many")
    whole = product("f16", a, b, c, ADDERS["sm_90"])
    monkeypatch.setattr(tensor_sums, "RESULTS", 300)
    monkeypatch.setattr(tensor_sums, "TERMS", 700)
    assert np.array_equal(product("f16", a, b, c, ADDERS["sm_90"]), whole)


def test_matrix_products_do_not_depend_on_how_they_are_cut(monkeypatch):
    rng = np.random.default_rng(1)
    left, right = (rng.integers(-99, 99, (2, rows, 32)).astype(np.float32) for rows in (64, 256))
    whole = left.astype(np.int64) @ right.astype(np.int64).swapaxes(1, 2)
    for most in (numerics.ONE_THREAD, 64 * 32 * 5, 1):
        monkeypatch.setattr(numerics, "ONE_THREAD", most)
        assert np.array_equal(numerics.matrix_product(left, right), whole)


def test_the_adder_is_chosen_by_name():
    assert [adder_of(name) for name in ("sm_70", "sm_80", "sm_89", "sm_90")] == list(
        ADDERS.values()
    )
    assert [adder.measured for adder in ADDERS.values()] == [False, False, False, True]
    for name in ("sm_100", "", "H200"):
        with pytest.raises(ValueError, match="must be one of sm_70, sm_80, sm_89, sm_90"):
            Machine(ptx_cases.HEADER, adds_like=name)
