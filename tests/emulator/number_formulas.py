"""What instructions on numbers compute, in NumPy: arithmetic and conversions of halves, bfloat16,
float32 and 8-bit floats. For ``formulas``."""

from fractions import Fraction

import numpy as np

from numba_marlin.formats.small_floats import decode, encode


def rounded(exact, dtype):
    """A Fraction to the nearest float16 or float32, ties to even; beyond the range infinity."""
    guess = dtype(float(exact))
    if not np.isfinite(guess):
        limit = Fraction(65520) if dtype is np.float16 else Fraction(2) ** 128 - Fraction(2) ** 103
        return guess if abs(exact) >= limit else np.copysign(np.finfo(dtype).max, guess)
    near = [np.nextafter(guess, dtype(-np.inf)), guess, np.nextafter(guess, dtype(np.inf))]
    bits = {np.float16: np.uint16, np.float32: np.uint32}[dtype]
    return min(
        (v for v in near if np.isfinite(v)),
        key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(bits)) & 1),
    )


def arithmetic(operation, dtype, *operands):
    """``operation`` over numbers: IEEE rules for what is not finite or zero from NumPy in float64,
    everything else exactly."""
    result = []
    for values in zip(*operands):
        with np.errstate(all="ignore"):
            wide = operation(*(np.float64(v) for v in values))
        exact = (
            operation(*(Fraction(float(v)) for v in values))
            if all(np.isfinite(v) for v in values)
            else None
        )
        result.append(dtype(wide) if not exact else rounded(exact, dtype))
    return np.array(result, dtype)


def packed(operation):
    def formula(w):
        operands = [
            np.ascontiguousarray(v.astype(np.uint32)).view(np.float16).ravel()
            for v in w.inputs.values()
        ]
        return (
            arithmetic(operation, np.float16, *operands).view(np.uint32).astype(np.uint64)[:, None]
        )

    return formula


def word(w, name):
    return w.inputs[name].astype(np.uint32)[:, 0]


def half_numbers(bits):
    return bits.view(np.float16)


def brain_numbers(bits):
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def brain_bits(operation, *operands):
    """``operation`` over numbers to bfloat16 bits, as ``arithmetic``: rounded once to nearest, ties
    to even; infinity counts as 2^128."""
    result = []
    for values in zip(*operands):
        with np.errstate(all="ignore"):
            wide = operation(*(np.float64(v) for v in values))
        exact = (
            operation(*(Fraction(float(v)) for v in values))
            if all(np.isfinite(v) for v in values)
            else None
        )
        if not exact:
            result.append(0x7FFF if np.isnan(wide) else int(np.float32(wide).view(np.uint32)) >> 16)
            continue
        size = abs(exact)
        near = int(np.float32(min(float(size), np.finfo(np.float32).max)).view(np.uint32)) >> 16
        numbers = {
            bits: (
                Fraction(2) ** 128
                if bits == 0x7F80
                else Fraction(float(brain_numbers(np.uint16(bits))))
            )
            for bits in (near, near + 1)
        }
        result.append(
            min(numbers, key=lambda bits: (abs(numbers[bits] - size), bits & 1))
            | 0x8000 * (exact < 0)
        )
    return np.array(result, np.uint16)


def packed_brain(operation):
    def formula(w):
        operands = [
            brain_numbers(np.ascontiguousarray(v.astype(np.uint32)).view(np.uint16).ravel())
            for v in w.inputs.values()
        ]
        return brain_bits(operation, *operands).view(np.uint32).astype(np.uint64)[:, None]

    return formula


def to_half(w):
    return (
        w.inputs["a"]
        .astype(np.uint32)
        .view(np.float32)
        .astype(np.float16)
        .view(np.uint16)
        .astype(np.uint64)
    )


def to_half_pair(w):
    low, high = (
        w.inputs[name]
        .astype(np.uint32)
        .view(np.float32)
        .astype(np.float16)
        .view(np.uint16)
        .astype(np.uint64)
        for name in ("low", "high")
    )
    return low | high << np.uint64(16)


def to_brain_pair(w):
    low, high = (
        brain_bits(lambda a: a, w.inputs[name].astype(np.uint32).view(np.float32)[:, 0]).astype(
            np.uint64
        )
        for name in ("low", "high")
    )
    return (low | high << np.uint64(16))[:, None]


def from_half(shift):
    return lambda w: (
        (w.inputs["a"] >> np.uint64(shift))
        .astype(np.uint16)
        .view(np.float16)
        .astype(np.float32)
        .view(np.uint32)
        .astype(np.uint64)
    )


def both(shift):
    def formula(w):
        half = w.inputs["a"] >> np.uint64(shift) & np.uint64(0xFFFF)
        return half | half << np.uint64(16)

    return formula


def fma_f32(w):
    operands = [v.astype(np.uint32).view(np.float32).ravel() for v in w.inputs.values()]
    return (
        arithmetic(lambda a, b, c: a * b + c, np.float32, *operands)
        .view(np.uint32)
        .astype(np.uint64)[:, None]
    )


def from_small(kind, pairs=1):
    """Pairs of bytes, the low one first, each to a pair of halves."""

    def half(word, shift):
        byte = (word >> np.uint64(shift) & np.uint64(0xFF)).astype(np.uint8)
        return decode(byte, kind).astype(np.float16).view(np.uint16).astype(np.uint64)

    def formula(w):
        a = w.inputs["a"]
        found = [
            half(a, 16 * pair) | half(a, 16 * pair + 8) << np.uint64(16) for pair in range(pairs)
        ]
        return np.concatenate(found, axis=-1)

    return formula


def to_small(kind):
    def formula(w):
        low, high = (
            encode(w.inputs[name].astype(np.uint32).view(np.float32), kind).astype(np.uint64)
            for name in ("low", "high")
        )
        return low | high << np.uint64(8)

    return formula


def on_floats(operation):
    def formula(w):
        with np.errstate(all="ignore"):
            return (
                operation(*(each.astype(np.uint32).view(np.float32) for each in w.inputs.values()))
                .astype(np.float32)
                .view(np.uint32)
                .astype(np.uint64)
            )

    return formula


def flushed(x):
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(0, x), x)
