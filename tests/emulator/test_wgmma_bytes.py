"""Contract under test: wgmma of 8-bit integers and floats multiplies what its registers and
descriptors name, in the shapes that the ISA has; integers to the bit, floats with the bits that
Hopper is said to keep."""

import numpy as np
import pytest

from numba_marlin.emulator import RegisterHazard, UnknownInstruction
from tests.emulator.number_cases import small_values
from tests.emulator.ptx_cases import snippet
from tests.emulator.wgmma_programs import (
    COMMIT,
    DESC,
    FENCE,
    SET_UP,
    WAIT,
    line_of,
    multiply,
    names,
    product,
    refused,
    run,
)

INTEGERS = {"u8": np.uint8, "s8": np.int8}
SMALL = {"e4m3": "e4m3", "e5m2": "e5m2"}
PLACES = pytest.mark.parametrize(
    "in_registers", [True, False], ids=["A in registers", "A in shared memory"]
)
ODD_EIGHTS = [n for n in range(40, 257, 16)]


def drawn(shape, kind, seed):
    """All values of an integer type; of a float the codes of -2, -1, 0, 1, 2."""
    generator = np.random.default_rng(seed)
    if kind in INTEGERS:
        return generator.integers(0, 256, shape).astype(np.uint8).view(INTEGERS[kind])
    values = small_values(kind)
    return np.flatnonzero(np.isin(values, (-2, -1, 0, 1, 2)))[
        generator.integers(0, 6, shape)
    ].astype(np.uint8)


def exact(a, b, kinds):
    """a @ b.T in int64 or float64."""
    if kinds[0] in INTEGERS:
        return a.astype(np.int64) @ b.astype(np.int64).T
    left, right = (small_values(kind)[codes] for kind, codes in zip(kinds, (a, b)))
    return left @ right.T


def accumulators(shape, dtype, seed):
    return np.random.default_rng(seed).integers(-99, 99, shape).astype(dtype)


@PLACES
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("kind", ["u8_s8", "e4m3_e4m3"])
@pytest.mark.parametrize(
    "columns, depth",
    [(8, 32), (24, 128), pytest.param(256, 128, marks=pytest.mark.thorough)],
)
def test_the_products_of_the_files(columns, depth, kind, swizzle, in_registers):
    kinds = kind.split("_")
    a, b = drawn((64, depth), kinds[0], 1), drawn((columns, depth), kinds[1], 2)
    c = accumulators((64, columns), np.int32 if kind == "u8_s8" else np.float32, 3)
    got = multiply(a, b, c, swizzle, in_registers, kind=kind)
    assert got.dtype == c.dtype
    assert np.array_equal(got, exact(a, b, kinds) + c)


def test_signed_factors_in_registers():
    """The file that ``kernels.w4a8`` multiplies with."""
    a, b = drawn((64, 128), "s8", 1), drawn((24, 128), "s8", 2)
    c = accumulators((64, 24), np.int32, 3)
    got = multiply(a, b, c, 128, True, kind="s8_s8")
    assert np.array_equal(got, exact(a, b, ("s8", "s8")) + c) and (a < 0).any()


@pytest.mark.parametrize(
    "columns", [pytest.param(n, marks=pytest.mark.thorough) for n in range(8, 257, 8)]
)
@pytest.mark.parametrize("kind", ["u8_s8", "e4m3_e4m3"])
def test_every_width(columns, kind):
    kinds = kind.split("_")
    a, b = drawn((64, 32), kinds[0], columns), drawn((columns, 32), kinds[1], 2)
    c = accumulators((64, columns), np.int32 if kind == "u8_s8" else np.float32, 3)
    if kind == "u8_s8" and columns in ODD_EIGHTS:
        with pytest.raises(UnknownInstruction, match=f"m64n{columns}k32"):
            multiply(a, b, c, 32, True, kind=kind)
    else:
        assert np.array_equal(multiply(a, b, c, 32, True, kind=kind), exact(a, b, kinds) + c)


@PLACES
@pytest.mark.parametrize("kinds", [(a, b) for a in INTEGERS for b in INTEGERS])
def test_integers_of_every_sign(kinds, in_registers):
    a, b = drawn((64, 64), kinds[0], 4), drawn((16, 64), kinds[1], 5)
    c = accumulators((64, 16), np.int32, 6)
    got = multiply(a, b, c, 64, in_registers, kind=f"s32.{'.'.join(kinds)}")
    assert np.array_equal(got, exact(a, b, kinds) + c)


@PLACES
@pytest.mark.parametrize("accumulator", [np.float32, np.float16])
@pytest.mark.parametrize("kinds", [(a, b) for a in SMALL for b in SMALL])
def test_floats_of_every_type_and_accumulator(kinds, accumulator, in_registers):
    a, b = drawn((64, 64), kinds[0], 7), drawn((24, 64), kinds[1], 8)
    c = accumulators((64, 24), accumulator, 9)
    d = "f32" if accumulator == np.float32 else "f16"
    got = multiply(a, b, c, 32, in_registers, kind=f"{d}.{'.'.join(kinds)}")
    assert got.dtype == accumulator and np.array_equal(got, exact(a, b, kinds) + c)


@PLACES
def test_halves_into_halves(in_registers):
    a, b = (accumulators(shape, np.float16, 1) / 11 for shape in ((64, 32), (8, 32)))
    c = accumulators((64, 8), np.float16, 2)
    got = multiply(a.round(), b.round(), c, 64, in_registers, kind="f16.f16.f16")
    assert np.array_equal(got, a.round().astype(float) @ b.round().astype(float).T + c)


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_integers_wrap_or_stop(sign):
    a, b = np.full((64, 32), 127, np.int8), np.full((8, 32), 127 * sign, np.int8)
    end = 2**31 - 1 if sign > 0 else -(2**31)
    c = np.full((64, 8), end, np.int32)
    c[1] = 0
    added = 32 * 127 * 127 * sign
    for kind, expected in (
        ("s32.s8.s8", (end + added + 2**31) % 2**32 - 2**31),
        ("satfinite.s32.s8.s8", end),
    ):
        got = multiply(a, b, c, 32, True, kind=kind)
        assert (got[0] == expected).all() and (got[1] == added).all()


def test_scale_d_of_zero_forgets_the_integers():
    a, b = drawn((64, 64), "u8", 10), drawn((8, 64), "s8", 11)
    got = multiply(a, b, np.full((64, 8), 77, np.int32), 64, True, kind="u8_s8", adds=False)
    assert np.array_equal(got, exact(a, b, ("u8", "s8")))


def test_imm_scales_negate_floats():
    a, b = drawn((64, 32), "e4m3", 12), drawn((8, 32), "e4m3", 13)
    c = accumulators((64, 8), np.float32, 14)
    for signs, factor in (("-1, 1", -1), ("1, -1", -1), ("-1, -1", 1)):
        got = multiply(a, b, c, 32, True, kind="f32.e4m3.e4m3", signs=signs)
        assert np.array_equal(got, factor * exact(a, b, ("e4m3", "e4m3")) + c)


@pytest.mark.parametrize(
    "terms, accumulator, expected",
    [
        # a product at the 13th bit below the largest stays, one below it goes
        ({0: 1.0, 1: 2.0**-13}, 0.0, 1 + 2.0**-13),
        ({0: 1.0, 1: 2.0**-14}, 0.0, 1.0),
        # they are cut off one by one, towards zero
        ({0: 1.0, 1: 2.0**-14, 2: 2.0**-14, 31: -(2.0**-14)}, 0.0, 1.0),
        # all 32 of them below the largest, whatever is left of that
        ({0: 1.0, 1: -1.0, 31: 2.0**-14}, 0.0, 0.0),
        # the accumulator, too: as a term, and as the largest
        ({}, 1 + 2.0**-14, 1.0),
        ({5: 2.0**-13}, 1.0, 1 + 2.0**-13),
        ({5: 2.0**-14, 6: 2.0**-14}, 1.0, 1.0),
        # 13 bits of the result remain
        ({0: 1.0, 1: 1.0, 2: 2.0**-13}, 0.0, 2.0),
        ({0: -1.0, 1: -1.0, 2: -(2.0**-13)}, 0.0, -2.0),
    ],
)
def test_floats_keep_13_bits_of_fraction(terms, accumulator, expected):
    """32 products and the accumulator at a time; as published, see ``tensor_sums``."""
    value = small_values("e5m2")
    a, b = np.zeros((64, 32), np.uint8), np.zeros((8, 32), np.uint8)
    for k, term in terms.items():
        half = np.ldexp(1.0, np.frexp(abs(term))[1] // 2)
        a[:, k] = np.flatnonzero(value == abs(term) / half)[0]
        b[:, k] = np.flatnonzero(value == np.copysign(half, term))[0]
    c = np.full((64, 8), accumulator, np.float32)
    assert (multiply(a, b, c, 32, True, kind="f32.e5m2.e5m2") == expected).all()


def test_nan_and_infinity_travel():
    a, b = (np.full(shape, 0x3C, np.uint8) for shape in ((64, 32), (8, 32)))  # ones of e5m2
    a[3, 4], a[20, 5], b[2, 7] = 0x7E, 0x7C, 0xFC
    got = multiply(a, b, np.zeros((64, 8), np.float32), 32, True, kind="f32.e5m2.e5m2")
    assert np.isnan(got[3]).all() and got[20, 0] == np.inf and np.isnan(got[20, 2])
    assert got[0, 2] == -np.inf and got[0, 0] == 32
    a = np.full((64, 32), 0x38, np.uint8)
    a[5, 31] = 0x7F  # e4m3 has no infinity
    got = multiply(a, a[8:16], np.zeros((64, 8), np.float32), 32, True, kind="f32.e4m3.e4m3")
    assert np.isnan(got[5]).all() and (got[6] == 32).all()


U8, SUMS, FACTORS = "s32.u8.s8", names("d", 4), names("a", 4)
ONE = product(8, FACTORS, DESC, kind="u8_s8", d=SUMS)


def test_registers_in_flight_are_guarded():
    begin = SET_UP + FENCE + ONE + COMMIT
    line = line_of(begin, "wgmma.mma_async")
    for touch, what in (("add.s32 %d1, %d1, 1;", "accumulator of"), ("mov.b32 %a2, 7;", "read by")):
        refused(RegisterHazard, begin + touch + WAIT, rf"{what} the wgmma at PTX line {line}")
    refused(RegisterHazard, SET_UP + ONE, "since the last wgmma.fence")
    refused(RegisterHazard, SET_UP + FENCE + ONE + WAIT + "mov.b32 %r0, %d0;", "not committed")


def test_tied_integers_are_read_after_the_wait():
    tied = snippet("wgmma_wait_group_i32", tuple(SUMS), n=0, width=4)
    assert "wait_group.sync.aligned 0" in tied
    refused(
        RegisterHazard,
        SET_UP + FENCE + ONE + COMMIT + "mov.b32 %r0, %d0;" + tied,
        "no wgmma.wait_group 0 or less since",
    )


@pytest.mark.parametrize("other", ["f16", "e4m3_e4m3"])
def test_another_type_may_not_add_to_the_same_accumulators(other):
    refused(
        RegisterHazard,
        SET_UP + FENCE + ONE + product(8, FACTORS, DESC, kind=other, d=SUMS) + COMMIT + WAIT,
        "another shape",
    )


def test_another_sign_may():
    run(SET_UP + FENCE + ONE + product(8, FACTORS, DESC, kind="s32.s8.s8", d=SUMS) + COMMIT + WAIT)


@pytest.mark.parametrize(
    "wrong",
    [
        ONE.replace("n8k32", "n8k16"),
        ONE.replace("n8k32", "n40k32"),
        ONE.replace("s32.u8.s8", "s32.u8.e4m3"),
        ONE.replace("s32.u8.s8", "f32.u8.s8"),
        ONE.replace("s32.u8.s8", "s32.satfinite.u8.s8"),
        ONE.replace("adds;", "adds, 1, 1;"),
        product(8, FACTORS, DESC, kind="satfinite.f32.e4m3.e4m3", d=SUMS),
        product(8, FACTORS, DESC, kind="e4m3_e4m3", d=SUMS).replace("1, 1;", "1, 2;"),
        product(8, FACTORS, DESC, kind="e4m3_e4m3", d=SUMS).replace("1, 1;", "1, 1, 0;"),
    ],
)
def test_what_the_isa_does_not_have_is_refused(wrong):
    assert "wgmma" in str(refused(Exception, SET_UP + FENCE + wrong, "wgmma"))
