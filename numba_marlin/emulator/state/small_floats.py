"""The floats of 4 to 8 bits that cvt knows, as halves, exactly, and float32 as their codes.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
and #alternate-floating-point-data-formats: to a small float only .rn.satfinite exists: what is too
large becomes the largest number, NaN becomes 0x7f, or the largest number where there is no NaN
(e2m1, e2m3, e3m2). ue8m0 is a power of two, 2^(code - 127), of the operand's size: of its sign
nothing is left (as cuda_fp8.hpp has it).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.emulator.state import numerics


@dataclass(frozen=True)
class Small:
    """``bits`` with the sign, of which ``fraction`` are behind the point; ``largest``: code of the
    largest number, ``nan``: what a NaN becomes."""

    bits: int
    fraction: int
    bias: int
    largest: int
    nan: int


KINDS = {
    "e4m3": Small(8, 3, 7, 0x7E, 0x7F),
    "e5m2": Small(8, 2, 15, 0x7B, 0x7F),
    "e3m2": Small(6, 2, 3, 0x1F, 0x1F),
    "e2m3": Small(6, 3, 1, 0x1F, 0x1F),
    "e2m1": Small(4, 1, 1, 0x7, 0x7),
}


def _half_bits(kind: str) -> np.ndarray:
    """uint16 [2^bits]: each code as a half."""
    small = KINDS[kind]
    code = np.arange(1 << small.bits)
    size = code & (1 << small.bits - 1) - 1
    if kind == "e5m2":
        # the upper half of a half
        return np.where(size > 0x7C, numerics.NAN16, code << 8).astype(np.uint16)
    fraction, exponent = size & (1 << small.fraction) - 1, size >> small.fraction
    values = np.where(
        exponent,
        np.ldexp(fraction + 2.0**small.fraction, exponent - small.bias - small.fraction),
        np.ldexp(fraction.astype(float), 1 - small.bias - small.fraction),
    )
    bits = values.astype(np.float16).view(np.uint16)
    bits = bits | (code >> small.bits - 1 << 15).astype(np.uint16)
    return np.where((size == small.nan) & (size > small.largest), numerics.NAN16, bits).astype(
        np.uint16
    )


HALVES = {kind: _half_bits(kind) for kind in KINDS}


def codes_of(values, kind: str) -> np.ndarray:
    """float32 -> uint16, the codes, rounded to nearest, ties to even, cut off."""
    small = KINDS[kind]
    values = np.asarray(values)
    nan = np.isnan(values)
    size = np.where(nan, 0, np.abs(values)).astype(np.float64)
    least = 1 - small.bias
    exponent = np.where(
        size == 0, least, np.clip(np.frexp(size)[1] - 1, least, small.bias + 2)
    ).astype(np.int32)
    steps = np.rint(np.ldexp(size, small.fraction - exponent))
    code = np.minimum(
        ((exponent - least).astype(np.float64) * (1 << small.fraction)) + steps, small.largest
    ).astype(np.uint16)
    sign = np.signbit(values).astype(np.uint16) << np.uint16(small.bits - 1)
    return np.where(nan, np.uint16(small.nan), code | sign)


LARGEST_POWER, NO_POWER = 0xFE, 0xFF


def powers_of(values, up: bool, finite: bool) -> np.ndarray:
    """float32 -> uint16, the codes of ue8m0, rounded ``up`` or down; an infinity is NaN, or the
    largest number if the result is to be ``finite``."""
    size = np.ascontiguousarray(values).view(np.uint32) & np.uint32(0x7FFFFFFF)
    code, rest = size >> np.uint32(23), size & np.uint32(0x7FFFFF)
    # 2^-127 is a subnormal with one bit, where the others have none
    beyond = np.where(code == 0, rest > 0x400000, rest > 0)
    code = (code + (beyond & up)).astype(np.uint16)
    most = np.uint16(LARGEST_POWER if finite else NO_POWER)
    return np.where(size > 0x7F800000, np.uint16(NO_POWER), np.minimum(code, most))


def brains_of_powers(codes) -> np.ndarray:
    """ue8m0 codes -> bf16 bits, exactly."""
    codes = np.asarray(codes).astype(np.uint16)
    return np.where(
        codes == NO_POWER,
        numerics.NAN16,
        np.where(codes == 0, np.uint16(0x40), codes << np.uint16(7)),
    )
