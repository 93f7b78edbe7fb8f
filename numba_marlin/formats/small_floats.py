"""Floats of 4 and 8 bits, by name: what their codes are worth, exactly.

    e2m1   sign, 2 bits of exponent (bias 1), 1 of significand: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives (OCP Microscaling Formats 1.0, FP4)
    e4m3   sign, 4 bits of exponent (bias 7), 3 of significand: up to 448; no infinity; 0x7f and 0xff are NaN (OCP 8-bit floats 1.0, E4M3)
    e8m0   8 bits of exponent (bias 127), nothing else: powers of two from 2**-127 to 2**127; 0xff is NaN (OCP Microscaling Formats 1.0)

``decode(codes, name)`` -> float32, which holds every one of them exactly. The tables are computed from these lines.
"""

from __future__ import annotations

import functools

import numpy as np

BITS = {"e2m1": 4, "e4m3": 8, "e8m0": 8}
_SPLIT = {"e2m1": (2, 1, 1), "e4m3": (4, 3, 7)}  # bits of exponent, bits of significand, bias


def _value(code: int, name: str) -> float:
    if name == "e8m0":
        return float("nan") if code == 0xFF else 2.0 ** (code - 127)
    exponent_bits, significand_bits, bias = _SPLIT[name]
    significand = code & ((1 << significand_bits) - 1)
    exponent = code >> significand_bits & ((1 << exponent_bits) - 1)
    sign = -1.0 if code >> (exponent_bits + significand_bits) else 1.0
    if name == "e4m3" and code & 0x7F == 0x7F:
        return float("nan")
    if exponent == 0:
        return sign * significand * 2.0 ** (1 - bias - significand_bits)
    return sign * ((1 << significand_bits) + significand) * 2.0 ** (exponent - bias - significand_bits)


@functools.cache
def table(name: str) -> np.ndarray:
    """float32 [2**bits], read-only: the value of every code."""
    if name not in BITS:
        raise ValueError(f"name={name!r} must be one of {', '.join(BITS)}")
    values = np.array([_value(code, name) for code in range(1 << BITS[name])], np.float32)
    values.setflags(write=False)
    return values


def decode(codes: np.ndarray, name: str) -> np.ndarray:
    """uint8 codes of any shape -> their values, float32. A code of 4 bits must be below 16."""
    return table(name)[codes]
