"""The 8-bit floats of cvt: e4m3 and e5m2 as halves, exactly, and float32 as their codes.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
and #alternate-floating-point-data-formats: to a small float only .rn.satfinite exists: what is too
large becomes the largest number, NaN becomes 0x7f.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.state import numerics

# bits of fraction, bias of the exponent, largest number
KINDS = {"e4m3": (3, 7, 0x7E), "e5m2": (2, 15, 0x7B)}


def _half_bits(kind: str) -> np.ndarray:
    """uint16 [256]: each code as a half."""
    fraction_bits, bias, _ = KINDS[kind]
    code = np.arange(256)
    if kind == "e5m2":
        # the upper half of a half
        return np.where((code & 0x7F) > 0x7C, numerics.NAN16, code << 8).astype(np.uint16)
    fraction, exponent = code & (1 << fraction_bits) - 1, code >> fraction_bits & 15
    values = np.where(
        exponent,
        np.ldexp(fraction + 8.0, exponent - bias - fraction_bits),
        np.ldexp(fraction.astype(float), 1 - bias - fraction_bits),
    )
    bits = values.astype(np.float16).view(np.uint16) | (code >> 7 << 15).astype(np.uint16)
    return np.where(code & 0x7F == 0x7F, numerics.NAN16, bits).astype(np.uint16)


HALVES = {kind: _half_bits(kind) for kind in KINDS}


def codes_of(values, kind: str) -> np.ndarray:
    """float32 -> uint16, the codes, rounded to nearest, ties to even, cut off."""
    fraction_bits, bias, largest = KINDS[kind]
    values = np.asarray(values)
    nan = np.isnan(values)
    size = np.where(nan, 0, np.abs(values)).astype(np.float64)
    exponent = np.where(size == 0, 1 - bias, np.clip(np.frexp(size)[1] - 1, 1 - bias, bias + 2))
    steps = np.rint(np.ldexp(size, fraction_bits - exponent))
    code = np.minimum(
        ((exponent - 1 + bias).astype(np.float64) * (1 << fraction_bits)) + steps, largest
    ).astype(np.uint16)
    return np.where(
        nan, np.uint16(0x7F), code | np.signbit(values).astype(np.uint16) << np.uint16(7)
    )
