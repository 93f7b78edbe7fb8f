"""Matrices of 8-bit elements whose products tell how a tensor core adds them: A [count, m, 32], B
[count, n, 32] (k last in both) as bytes, C [count, m, n] as 32-bit patterns.

Integers have two sets, ``spread`` (any bytes, any accumulators: sums wrap) and ``integers`` (small
ones: a wrong place shows). Every set of floats is one question:

- ``integers``     small integers: exact in any order, so that a wrong place shows
- ``normal``       plain data: how often do results differ from the machine's at all
- ``spread``       codes of every exponent, accumulators to match: what falls off the lower end
- ``steps``        a product, and one smaller by 2^d at another place of k, d from 8 to 26, of
                   either sign: how many bits are kept below the largest, and of which products (one
                   that survives its d only at some places is aligned to another maximum there)
- ``many``         1 and 31 products of 2^-d: cut off one by one, or after they are added
- ``accumulator``  nothing but an accumulator of any bits, and with one product of 1: how many of
                   its bits are left
- ``result``       sums of powers of two that need more bits than are kept: how a result is
                   rounded, and which way
- ``subnormal``    subnormal factors beside normal ones: which exponent they count with
- ``bits``         any codes: NaN, infinities
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.state.small_floats import codes_of
from numba_marlin.witness import draws

DEPTH = 32
INTEGER_SETS = ("spread", "integers")
SETS = (
    "integers",
    "normal",
    "spread",
    "steps",
    "many",
    "accumulator",
    "result",
    "subnormal",
    "bits",
)


def draw(
    name: str, kinds: tuple[str, str], count: int, m: int, n: int, seed: str = ""
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The set ``name`` for A and B of ``kinds`` ("e4m3", "e5m2", "u8", "s8"): (a, b, c)."""
    seed = f"{seed}/{name}/{'.'.join(kinds)}"
    shapes = (count, m, DEPTH), (count, n, DEPTH), (count, m, n)
    if kinds[0] in ("u8", "s8"):
        return _integers(name, kinds, seed, *shapes)
    if name == "bits":
        codes = [_bytes(f"{seed}/{x}", s) for x, s in zip("ab", shapes)]
        calm = [
            draws.uniform(f"{seed}/calm{x}", c.size).reshape(c.shape) for x, c in zip("ab", codes)
        ]
        a, b = (
            # else every sum were NaN
            np.where((c & 0x78 == 0x78) & (each > 0.04), c & 0xBF, c).astype(np.uint8)
            for c, each in zip(codes, calm)
        )
        c = draws.mixed(f"{seed}/c", int(np.prod(shapes[2])), draws.FLOATS, np.uint32)
        return a, b, c.reshape(shapes[2])
    a, b, c = _FLOATS[name](seed, *shapes)
    codes = [
        codes_of(values.astype(np.float32), kind).astype(np.uint8)
        for values, kind in zip((a, b), kinds)
    ]
    return codes[0], codes[1], c.astype(np.float32).view(np.uint32)


def _bytes(seed, shape):
    return (draws.raw(seed, int(np.prod(shape))) & np.uint64(0xFF)).astype(np.uint8).reshape(shape)


def _integers(name, kinds, seed, of_a, of_b, of_c):
    a, b = (_bytes(f"{seed}/{x}", s) for x, s in (("a", of_a), ("b", of_b)))
    c = draws.mixed(f"{seed}/c", int(np.prod(of_c)), draws.WORDS, np.uint32).reshape(of_c)
    if name == "spread":
        return a, b, c
    small = [
        (each % 8).astype(np.int8) - (4 if kind == "s8" else 0) for each, kind in zip((a, b), kinds)
    ]
    return small[0].view(np.uint8), small[1].view(np.uint8), (c % 199).astype(np.uint32)


def _whole(seed, shape, low, high):
    """Integers from low to high - 1, as float64."""
    drawn = draws.raw(seed, int(np.prod(shape))) % np.uint64(high - low)
    return low + drawn.astype(np.float64).reshape(shape)


def _small_integers(seed, of_a, of_b, of_c):
    return [
        _whole(f"{seed}/{x}", s, low, low + wide)
        for x, s, low, wide in (("a", of_a, -4, 9), ("b", of_b, -4, 9), ("c", of_c, -99, 199))
    ]


def _normal(seed, of_a, of_b, of_c):
    return [
        draws.normal(f"{seed}/{x}", int(np.prod(s))).reshape(s)
        for x, s in (("a", of_a), ("b", of_b), ("c", of_c))
    ]


def _spread(seed, of_a, of_b, of_c):
    a, b, c = _normal(seed, of_a, of_b, of_c)
    a, b = (
        np.clip(values * np.exp2(_whole(f"{seed}/e{x}", values.shape, -8, 8)), -448, 448)
        for x, values in (("a", a), ("b", b))
    )
    return a, b, c * np.exp2(_whole(f"{seed}/ec", of_c, -14, 14))


def _steps(seed, of_a, of_b, of_c):
    """A row has its large product at an even place and the small one at an odd place; a column has
    a part of the small one's size, and its sign."""
    a, b = np.zeros(of_a), np.ones(of_b)
    product, row = np.indices(of_a[:2])
    even, odd = (2 * _whole(f"{seed}/{x}", of_a[:2], 0, DEPTH // 2).astype(int) for x in "ij")
    a[product, row, even] = 256.0
    a[product, row, odd + 1] = np.exp2(-_whole(f"{seed}/d", of_a[:2], 0, 10))
    small = np.exp2(-_whole(f"{seed}/e", of_b[:2], 0, 10))
    b[..., 1::2] = (small * (1 - 2 * _whole(f"{seed}/s", of_b[:2], 0, 2)))[..., None]
    return a, b, np.zeros(of_c)


def _many(seed, of_a, of_b, of_c):
    a = np.exp2(-_whole(f"{seed}/d", of_a[:2], 2, 7))[..., None] * np.ones(of_a)
    b = np.exp2(-_whole(f"{seed}/e", of_b[:2], 2, 7))[..., None] * np.ones(of_b)
    place = _whole(f"{seed}/i", (), 0, DEPTH).astype(int)
    a[..., place], b[..., place] = 8.0, 1.0
    return a, b, np.where(_whole(f"{seed}/c", of_c, 0, 4) == 0, -8.0, 0.0)


def _accumulator(seed, of_a, of_b, of_c):
    a, b = np.zeros(of_a), np.zeros(of_b)
    a[:, ::2, 3] = b[..., 3] = 1.0
    mantissa = draws.uniform(f"{seed}/m", int(np.prod(of_c)), -2.0, 2.0).reshape(of_c)
    return a, b, mantissa * np.exp2(_whole(f"{seed}/e", of_c, -18, 18))


def _result(seed, of_a, of_b, of_c):
    a, b = (
        np.exp2(_whole(f"{seed}/{x}", s, -3, 4)) * (1 - 2 * _whole(f"{seed}/s{x}", s, 0, 2))
        for x, s in (("a", of_a), ("b", of_b))
    )
    return a, np.abs(b), _whole(f"{seed}/c", of_c, -512, 512) / 64


def _subnormal(seed, of_a, of_b, of_c):
    a = _whole(f"{seed}/a", of_a, -7, 8) * 2.0**-9
    b = np.where(
        _whole(f"{seed}/w", of_b, 0, 2) == 0,
        _whole(f"{seed}/b", of_b, -7, 8) * 2.0**-9,
        np.exp2(_whole(f"{seed}/e", of_b, -6, 8)),
    )
    return a, b, _whole(f"{seed}/c", of_c, -4, 5) * np.exp2(_whole(f"{seed}/ec", of_c, -30, -4))


_FLOATS = {
    "integers": _small_integers,
    "normal": _normal,
    "spread": _spread,
    "steps": _steps,
    "many": _many,
    "accumulator": _accumulator,
    "result": _result,
    "subnormal": _subnormal,
}
