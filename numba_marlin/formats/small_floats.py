"""Floats of 4 and 8 bits, by name: the exact value of each code, and the code nearest to a number.

    e2m1   sign, 2 bits of exponent (bias 1), 1 of significand: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their
           negatives (OCP Microscaling Formats 1.0, FP4)
    e4m3   sign, 4 bits of exponent (bias 7), 3 of significand: up to 448; no infinity; 0x7f and
           0xff are NaN (OCP 8-bit floats 1.0, E4M3)
    e5m2   sign, 5 bits of exponent (bias 15), 2 of significand: up to 57344; 0x7c is infinity, what
           is above it NaN (OCP 8-bit floats 1.0, E5M2)
    e8m0   8 bits of exponent (bias 127), nothing else: powers of two from 2**-127 to 2**127; 0xff
           is NaN (OCP Microscaling Formats 1.0)

PTX calls e8m0 ``ue8m0``, and e4m3 without negative numbers, as scales are, ``ue4m3``: the same
codes.

``decode(codes, name)`` -> float32, which holds every one of them exactly. ``encode(values, name)``
-> uint8, rounded once to nearest, ties to the even code. The tables are computed from these lines.
"""

from __future__ import annotations

import functools

import numpy as np

BITS = {"e2m1": 4, "e4m3": 8, "e5m2": 8, "e8m0": 8}
# bits of exponent, bits of significand, bias
_SPLIT = {"e2m1": (2, 1, 1), "e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}
LARGEST = {"e2m1": 6.0, "e4m3": 448.0, "e5m2": 57344.0, "e8m0": 2.0**127}
_LARGEST_CODE = {"e2m1": 0x7, "e4m3": 0x7E, "e5m2": 0x7B, "e8m0": 0xFE}
# the code that PTX's cvt gives for NaN; e2m1 has no NaN, cvt gives its largest number
_NAN = {"e2m1": 0x7, "e4m3": 0x7F, "e5m2": 0x7F, "e8m0": 0xFF}
# NaN and infinity: the codes of numbers that are too large, without saturation
_BEYOND = {"e4m3": 0x7F, "e5m2": 0x7C}


def _value(code: int, name: str) -> float:
    if name == "e8m0":
        return float("nan") if code == 0xFF else 2.0 ** (code - 127)
    exponent_bits, significand_bits, bias = _SPLIT[name]
    significand = code & ((1 << significand_bits) - 1)
    exponent = code >> significand_bits & ((1 << exponent_bits) - 1)
    sign = -1.0 if code >> (exponent_bits + significand_bits) else 1.0
    if name == "e4m3" and code & 0x7F == 0x7F:
        return float("nan")
    if name == "e5m2" and exponent == 0x1F:
        return float("nan") if significand else sign * float("inf")
    if exponent == 0:
        return sign * significand * 2.0 ** (1 - bias - significand_bits)
    return (
        sign * ((1 << significand_bits) + significand) * 2.0 ** (exponent - bias - significand_bits)
    )


def _known(name: str) -> None:
    if name not in BITS:
        raise ValueError(f"name={name!r} must be one of {', '.join(BITS)}")


@functools.cache
def table(name: str) -> np.ndarray:
    """float32 [2**bits], read-only: the value of every code."""
    _known(name)
    values = np.array([_value(code, name) for code in range(1 << BITS[name])], np.float32)
    values.setflags(write=False)
    return values


def decode(codes: np.ndarray, name: str) -> np.ndarray:
    """uint8 codes of any shape -> their values, float32. A code of 4 bits must be below 16."""
    return table(name)[codes]


def encode(values: np.ndarray, name: str, saturate: bool = True) -> np.ndarray:
    """float32 or float64 of any shape -> uint8 codes, rounded to nearest, ties to even; zero keeps
    its sign.

    saturate: True clamps numbers that are too large to the largest one, as PTX's ``cvt.satfinite``
    does; False makes them NaN in e4m3 and infinity in e5m2 (ValueError for e2m1 and e8m0, which
    have neither). NaN becomes 0x7f (e8m0: 0xff); e2m1 has no NaN, it becomes 6, as in ``cvt``. For
    e8m0, which has no significand, ties (1.5 times a power of two) round up, as in ml_dtypes; 0
    becomes its smallest number, negative numbers become NaN.
    """
    _known(name)
    if not saturate and name not in _BEYOND:
        raise ValueError(f"saturate=False: {name} has no code for what is too large")
    values = np.asarray(values)
    if values.dtype not in (np.float32, np.float64):
        raise TypeError(f"values.dtype={values.dtype} must be float32 or float64")
    if name == "e8m0":
        return _encode_power(values.astype(np.float64))
    exponent_bits, significand_bits, bias = _SPLIT[name]
    nan = np.isnan(values)
    magnitude = np.where(nan, 0, np.abs(values)).astype(np.float64)
    lowest = 1 - bias
    exponent = np.frexp(magnitude)[1] - 1
    # of its binade; below the lowest one steps stay what they are
    exponent = np.where(magnitude == 0, lowest, np.clip(exponent, lowest, bias + 2))
    with np.errstate(over="ignore"):
        steps = np.rint(np.ldexp(magnitude, significand_bits - exponent))
    # a step too many carries into the exponent
    code = ((exponent - lowest).astype(np.float64) * (1 << significand_bits)) + steps
    largest = _LARGEST_CODE[name]
    code = np.where(code > largest, largest if saturate else _BEYOND[name], code).astype(np.uint8)
    sign = np.signbit(values).astype(np.uint8) << np.uint8(exponent_bits + significand_bits)
    return np.where(nan, np.uint8(_NAN[name]), code | sign)


def _encode_power(values: np.ndarray) -> np.ndarray:
    # fraction in [0.5, 1)
    fraction, exponent = np.frexp(np.where(np.isfinite(values), values, 1.0))
    lower = exponent.astype(np.int64) + 126
    code = lower + (fraction >= 0.75)
    code = np.where(values == 0, 0, np.clip(code, 0, _LARGEST_CODE["e8m0"]))
    code = np.where(np.isposinf(values), _LARGEST_CODE["e8m0"], code)
    return np.where(np.isnan(values) | (values < 0), _NAN["e8m0"], code).astype(np.uint8)
