"""float64 in every rounding mode, to the bit: numbers as fractions, rounded once.

NumPy rounds to nearest only, so everything else, and the fused multiply-add, is worked out by
Python, one element after the other: slow, and right by definition.

https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np


def rounded(exact: Fraction, mode: str) -> float:
    """``exact``, which is not 0, as a float64 in ``mode`` rn, rz, rm or rp."""
    try:
        nearest = exact.numerator / exact.denominator  # Python rounds integer division once
    except OverflowError:
        nearest = math.inf if exact > 0 else -math.inf
    if math.isinf(nearest):
        return directed(nearest, nearest > 0, nearest < 0, mode)
    return directed(nearest, Fraction(nearest) > exact, Fraction(nearest) < exact, mode)


def directed(nearest: float, above: bool, below: bool, mode: str) -> float:
    """What ``mode`` makes of a number whose nearest float64 lies above or below it, or on it."""
    positive = nearest > 0 or nearest == 0 and math.copysign(1, nearest) > 0
    if above and (mode == "rm" or mode == "rz" and positive):
        return math.nextafter(nearest, -math.inf)
    if below and (mode == "rp" or mode == "rz" and not positive):
        return math.nextafter(nearest, math.inf)
    return nearest


def _product_sum(a: float, b: float, c: float, mode: str) -> float:
    with np.errstate(all="ignore"):
        special = float(np.float64(a) * b + c)
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return special
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact:
        return rounded(exact, mode)
    signs = {math.copysign(1, a) * math.copysign(1, b), math.copysign(1, c)}
    if len(signs) == 1:  # zeros of one sign
        return signs.pop() * 0.0
    return -0.0 if mode == "rm" else 0.0


def _quotient(a: float, b: float, mode: str) -> float:
    if math.isfinite(a) and math.isfinite(b) and a and b:
        return rounded(Fraction(a) / Fraction(b), mode)
    with np.errstate(all="ignore"):
        return float(np.float64(a) / b)


def _root(a: float, mode: str) -> float:
    if not math.isfinite(a) or a <= 0:
        with np.errstate(all="ignore"):
            return float(np.sqrt(a))
    nearest = math.sqrt(a)
    square = Fraction(nearest) ** 2
    return directed(nearest, square > Fraction(a), square < Fraction(a), mode)


def elementwise(function: Callable, inputs: int) -> Callable:
    """``function(*floats, mode)`` -> a function of arrays and a mode."""
    each = np.frompyfunc(function, inputs + 1, 1)

    def of_arrays(*values, mode: str = "rn"):
        return np.asarray(
            each(*(np.asarray(value, np.float64) for value in values), mode), np.float64
        )

    return of_arrays


fma = elementwise(_product_sum, 3)
quotient = elementwise(_quotient, 2)
root = elementwise(_root, 1)


def total(x, y, mode: str):
    return fma(x, 1.0, y, mode=mode)


def product(x, y, mode: str):
    """The sign of a product that is zero is that of its factors, whatever the mode."""
    x, y = np.broadcast_arrays(x, y)
    zero = np.copysign(0.0, np.copysign(1.0, x) * np.copysign(1.0, y))
    return fma(x, y, zero, mode=mode)
