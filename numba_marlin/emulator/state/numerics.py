"""Rounding to the bit: float16, bfloat16 and float32 results with one rounding, in every mode PTX
has.

The trick is round-to-odd: compute in float64, and where that was inexact make the last bit odd.
Such a value rounds to any format with at least two bits less exactly as the true one would (Boldo
and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
odd"). NaN results are the canonical ones: 0x7fffffff, 0x7fff.

https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions
"""

from __future__ import annotations

import numpy as np

NAN32 = np.uint32(0x7FFFFFFF).view(np.float32)
NAN16 = np.uint16(0x7FFF)
_HALF_IN_SINGLE = -0x70002000  # 0x8FFFE000
_HALF_VALUES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
SMALLEST_NORMAL32 = np.float32(2.0**-126)


# Multiplications of a matrix product that OpenBLAS makes in one thread; to wake others for more
# took 16 ms instead of 0.02 where the processors were busy.
ONE_THREAD = 1 << 18


def matrix_product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left @ right.T of floats, [..., rows, columns]; left [..., rows, k], right [..., columns,
    k]."""
    rows, depth = left.shape[-2:]
    step = max(1, ONE_THREAD // (rows * depth))
    parts = [
        left @ right[..., start : start + step, :].swapaxes(-1, -2)
        for start in range(0, right.shape[-2], step)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def canonical32(values):
    """float32 with every NaN replaced by the canonical one."""
    nan = values != values
    return np.where(nan, NAN32, values) if nan.any() else values


def flush(values):
    """Subnormal float32 to zero of the same sign (.ftz)."""
    return np.where(np.abs(values) < SMALLEST_NORMAL32, np.copysign(np.float32(0), values), values)


def saturate(values):
    """Clamp to [0, 1]; NaN becomes +0 (.sat)."""
    return np.where(values > 0, np.minimum(values, values.dtype.type(1)), values.dtype.type(0))


def sum_to_odd(x, y):
    """x + y of float64 rounded to odd. Exact results and non-finite ones come out as they are."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    total = x + y
    back = total - x
    error = (x - (total - back)) + (y - back)  # Knuth's two-sum: exact unless something overflows
    return to_odd(total, error)


def to_odd(rounded, error):
    """The float64 next to ``rounded + error`` with an odd last bit, unless ``error`` is 0.
    ``rounded`` is nearest-even."""
    bits = np.asarray(rounded).view(np.int64)
    inexact = (error > 0) | (error < 0)
    even = inexact & ((bits & 1) == 0) & np.isfinite(rounded)
    if not even.any():
        return rounded
    outwards = (error > 0) == (rounded > 0)
    return np.where(even, bits + np.where(outwards, 1, -1), bits).view(np.float64)


def narrow32(values, mode: str = "rn"):
    """float64 -> float32 in rounding ``mode``, canonical NaN."""
    values = np.asarray(values)
    nearest = values.astype(np.float32)
    if mode != "rn":
        nearest = _directed(nearest, values, mode)
    return canonical32(nearest)


def _directed(nearest, values, mode: str):
    back = nearest.astype(np.float64)
    infinity = np.float32(np.inf)
    if mode == "rz":
        wrong, towards = np.abs(back) > np.abs(values), np.float32(0)
    elif mode == "rm":
        wrong, towards = back > values, -infinity
    elif mode == "rp":
        wrong, towards = back < values, infinity
    else:
        raise ValueError(f"rounding mode {mode!r} must be one of rn, rz, rm, rp")
    return np.where(wrong, np.nextafter(nearest, towards), nearest)


def sum32(x, y, mode: str):
    """x + y of float64 as float32 in ``mode``. An exact zero from unlike signs is -0 when rounding
    down."""
    total = sum_to_odd(x, y)
    if mode == "rm":
        total = np.where((total == 0) & (np.signbit(x) | np.signbit(y)), -0.0, total)
    return narrow32(total, mode)


def fma32(a, b, c, mode: str = "rn"):
    """float32 a * b + c with one rounding. The product is exact in float64; the sum is rounded to
    odd where it matters."""
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    if mode == "rn":
        # Rounding twice differs from rounding once only if the first lands on a tie of the second.
        # For normal float32 results a tie ends in 1 and 28 zeros; below, assume the worst, but of
        # zeros: float64 has no sum of such numbers that is too small for it.
        tie = (total.view(np.int64) & 0x1FFFFFFF) == 0x10000000
        small = np.abs(total) < SMALLEST_NORMAL32
        if not tie.any() and not (small.any() and (small & (total != 0)).any()):
            return canonical32(total.astype(np.float32))
    return sum32(product, c, mode)


def half_values(bits):
    """fp16 bit patterns (uint16) -> float32, exact."""
    word = np.asarray(bits).view(np.int16).astype(np.int32)
    # sign, exponent and fraction where a float32 has them; only the bias differs
    word = (word << 13) & np.int32(_HALF_IN_SINGLE)
    values = word.view(np.float32) * np.float32(2.0**112)
    # what the largest exponent means: infinities and NaN
    special = values.max(initial=0) >= 65536 or values.min(initial=0) <= -65536
    return _HALF_VALUES[bits] if special else values


def half_bits(values):
    """float32 or float64 -> fp16 bits, to nearest even, canonical NaN."""
    bits = np.asarray(values).astype(np.float16).view(np.uint16)
    nan = values != values
    return np.where(nan, NAN16, bits) if nan.any() else bits


def half_bits_directed(values, mode: str):
    """float64 -> fp16 bits in any ``mode``."""
    bits = half_bits(values)
    if mode == "rn":
        return bits
    back = half_values(bits).astype(np.float64)
    smaller, larger = np.abs(back) < np.abs(values), np.abs(back) > np.abs(values)
    if mode == "rz":
        return np.where(larger, bits - np.uint16(1), bits)
    negative = np.signbit(values)
    outwards = negative if mode == "rm" else ~negative  # where the mode rounds away from zero
    return np.where(
        outwards,
        np.where(smaller, bits + np.uint16(1), bits),
        np.where(larger, bits - np.uint16(1), bits),
    )


def brain_values(bits):
    """bf16 bit patterns (uint16) -> float32, exact."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def brain_bits(values, mode: str = "rn"):
    """float64 or float32 -> bf16 bits. float64 input should be rounded to odd or exact."""
    values = np.asarray(values)
    single = values if values.dtype == np.float32 else odd32(values)
    word = single.view(np.uint32)
    if mode == "rn":
        word = word + (np.uint32(0x7FFF) + (word >> np.uint32(16) & np.uint32(1)))
    elif mode != "rz":
        outwards = (word >> np.uint32(31) != 0) == (mode == "rm")
        word = word + np.where(outwards, np.uint32(0xFFFF), np.uint32(0))
    bits = (word >> np.uint32(16)).astype(np.uint16)
    return np.where(values != values, NAN16, bits)


def odd32(values):
    """float64 -> float32 rounded to odd, for a second rounding to bf16."""
    truncated = _directed(values.astype(np.float32), values, "rz")
    inexact = truncated.astype(np.float64) != values
    return (truncated.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)
