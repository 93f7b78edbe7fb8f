"""Interesting values of every type, and what integers, halves and floats do by definition."""

import math
from fractions import Fraction

import numpy as np

from numba_marlin.emulator.tensor.tensor_sums import add_products
from numba_marlin.formats.small_floats import decode
from tests.emulator.ptx_cases import compute, words


def dtype_of(kind):
    return np.dtype(kind.replace("u", "uint").replace("s", "int"))


def cross(kind, count=24):
    """All pairs of interesting values."""
    values = words(count, dtype_of(kind))
    return tuple(x.ravel() for x in np.meshgrid(values, values[::-1]))


def wrap(value, dtype):
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


def check(body, formula, *inputs, out):
    out = np.dtype(out)
    expected = [wrap(formula(*(int(x) for x in xs)), out) for xs in zip(*inputs)]
    got = compute(body, *inputs, out=out).tolist()
    wrong = [(xs, g, e) for xs, g, e in zip(zip(*inputs), got, expected) if g != e]
    assert not wrong, (
        f"{len(wrong)} wrong, first: inputs {wrong[0][0]} gave {wrong[0][1]}, not {wrong[0][2]}"
    )


def floats(count, seed=0):
    """Random float32 bit patterns, and the special ones."""
    special = np.array(
        [
            0,
            1 << 31,
            1,
            0x80000001,
            0x7FFFFF,
            0x800000,
            0x3F800000,
            0xBF800000,
            0x7F7FFFFF,
            0x7F800000,
            0xFF800000,
            0x7FC00000,
            0x7F800001,
            0xFFC12345,
            0x3F800001,
            0x33800000,
        ],
        np.uint32,
    )
    return np.concatenate([special, words(count, seed=seed)]).view(np.float32)


def round32(exact: Fraction, mode: str) -> float:
    """An exact rational to float32 by definition, working on integers."""
    if exact == 0:
        return 0.0
    sign, size = (-1, -exact) if exact < 0 else (1, exact)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length(), -126)
    while Fraction(2) ** exponent > size and exponent > -126:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    unit = Fraction(2) ** (exponent - 23)
    whole, rest = divmod(size, unit)
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and whole % 2),
        "rz": False,
        "rm": sign < 0 and rest > 0,
        "rp": sign > 0 and rest > 0,
    }[mode]
    value = (whole + up) * unit
    if value >= Fraction(2) ** 128:
        largest = float(np.finfo(np.float32).max)
        overflow = {
            "rn": math.inf,
            "rz": largest,
            "rm": math.inf if sign < 0 else largest,
            "rp": math.inf if sign > 0 else largest,
        }
        return sign * overflow[mode]
    return sign * float(value)


def small_values(kind):
    """What each code of an 8-bit float is worth, float64 [256]."""
    return decode(np.arange(256, dtype=np.uint8), kind).astype(np.float64)


ALL = np.arange(1 << 16, dtype=np.uint16)


def canonical(bits):
    """Every fp16 NaN as 0x7fff."""
    return np.where((bits & 0x7FFF) > 0x7C00, np.uint16(0x7FFF), bits).astype(np.uint16)


def pack(low, high):
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)


def product(kind, a, b, c, adder):
    """[count, m, k] x [count, k, n] + c, bits in and out."""
    factors = np.concatenate([a, b.transpose(0, 2, 1)], axis=1)
    return add_products(
        kind, np.ascontiguousarray(factors), a.shape[1], c.view(np.float32), adder
    ).view(np.uint32)
