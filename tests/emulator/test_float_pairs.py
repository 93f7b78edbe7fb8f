"""Contract under test: arithmetic that sm_100 added: pairs of float32, each as float32 by itself,
and float32 with halves, rounded once."""

from fractions import Fraction

import numpy as np
import pytest

from numba_marlin.emulator import PtxSyntaxError, UnknownInstruction
from tests.emulator.number_cases import floats, round32
from tests.emulator.ptx_cases import compute, launch, words

MODES = ("rn", "rz", "rm", "rp")


def three(count: int):
    return tuple(np.roll(floats(count, seed), 3 * seed) for seed in (1, 2, 3))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", ["", ".ftz"])
def test_pairs_are_two_float32(mode, options):
    singles = three(120)
    pairs = [x.view(np.uint64) for x in singles]
    for name, names in (("add", "ab"), ("sub", "ab"), ("mul", "ab"), ("fma", "abc")):
        operands = ", ".join(f"%{letter}" for letter in names)
        opcode = f"{name}.{mode}{options}"
        pair = compute(f"{opcode}.f32x2 %d, {operands};", *pairs[: len(names)], out=np.uint64)
        single = compute(f"{opcode}.f32 %d, {operands};", *singles[: len(names)], out=np.uint32)
        assert (pair.view(np.uint32) == single).all(), opcode


def test_a_constant_pair_has_its_low_half_first():
    x = np.array([1.0, 2.0], np.float32)
    body = "add.rn.f32x2 %d, %a, 0x4080000041000000;"
    assert compute(body, x.view(np.uint64), out=np.uint64).view(np.float32).tolist() == [9.0, 6.0]


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("mode", MODES)
def test_halves_and_float32_are_rounded_once(half, mode):
    bits = words(160, np.uint16, 5), words(160, np.uint16, 6)
    if half == "f16":
        values = [x.view(np.float16).astype(np.float64) for x in bits]
    else:
        with np.errstate(all="ignore"):
            wide = [(x.astype(np.uint32) << 16).view(np.float32) for x in bits]
            values = [x.astype(np.float64) for x in wide]
    c = floats(144, 4)
    whole = np.isfinite(values[0]) & np.isfinite(values[1]) & np.isfinite(c)
    x, y, z = (each[whole].tolist() for each in (*values, c))
    a, b, c = bits[0][whole], bits[1][whole], c[whole]
    for body, exact in (
        (f"add.{mode}.f32.{half} %d, %a, %c;", lambda x, y, z: x + z),
        (f"sub.{mode}.f32.{half} %d, %a, %c;", lambda x, y, z: x - z),
        (f"fma.{mode}.f32.{half} %d, %a, %b, %c;", lambda x, y, z: x * y + z),
    ):
        got = compute(body, a, b, c, out=np.float32)
        expected = [round32(exact(*map(Fraction, each)), mode) for each in zip(x, y, z)]
        assert got.tolist() == expected, body
    got = compute(f"fma.{mode}.sat.f32.{half} %d, %a, %b, %c;", a, b, c, out=np.float32)
    assert got.tolist() == [
        round32(min(max(Fraction(u) * Fraction(v) + Fraction(w), Fraction(0)), Fraction(1)), mode)
        for u, v, w in zip(x, y, z)
    ]


@pytest.mark.parametrize(
    "statement, kind",
    [
        ("add.sat.f32x2 %rd0, %rd1, %rd2;", UnknownInstruction),
        ("fma.rn.sat.f32x2 %rd0, %rd1, %rd2, %rd3;", UnknownInstruction),
        ("add.f32x2 %r0, %r1, %r2;", PtxSyntaxError),
        ("mul.rn.f32.f16 %f0, %h1, %f2;", UnknownInstruction),
        ("add.rn.ftz.f32.f16 %f0, %h1, %f2;", UnknownInstruction),
        ("add.f16.f32 %h0, %f1, %h2;", UnknownInstruction),
    ],
)
def test_what_there_is_not(statement, kind):
    with pytest.raises(kind):
        launch(statement)
