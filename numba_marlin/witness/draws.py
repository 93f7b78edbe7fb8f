"""Operands from a seed: edge cases first, then a mixture of random bits and edge cases. The same on
every machine and NumPy release.

Only ``PCG64.random_raw`` is used, whose stream NumPy keeps; no distribution of ``Generator``, whose
streams may change.
"""

from __future__ import annotations

import hashlib
import itertools

import numpy as np

HALVES = np.array(
    [
        0x0000,
        0x8000,
        0x0001,
        0x8001,
        0x03FF,
        0x83FF,
        0x0400,
        0x8400,
        0x3C00,
        0xBC00,
        0x3C01,
        0x3555,
        0x7BFF,
        0xFBFF,
        0x7C00,
        0xFC00,
        0x7C01,
        0xFDFF,
        0x7E00,
        0xFE00,
        0x7E2A,
        0x7FFF,
        0xFFFF,
        0x6408,
        0xD480,
        0x5800,
    ],
    np.uint16,
)
BRAINS = np.array(
    [
        0x0000,
        0x8000,
        0x0001,
        0x8001,
        0x007F,
        0x807F,
        0x0080,
        0x8080,
        0x3F80,
        0xBF80,
        0x3F81,
        0x3EAB,
        0x7F7F,
        0xFF7F,
        0x7F80,
        0xFF80,
        0x7F81,
        0xFFBF,
        0x7FC0,
        0xFFC0,
        0x7FEA,
        0x7FFF,
        0xFFFF,
        0x0100,
        0x7F00,
        0x4300,
    ],
    np.uint16,
)
FLOATS = np.array(
    [
        0x00000000,
        0x80000000,
        0x00000001,
        0x80000001,
        0x007FFFFF,
        0x807FFFFF,
        0x00800000,
        0x80800000,
        0x3F800000,
        0xBF800000,
        0x3F800001,
        0x3F7FFFFF,
        0x7F7FFFFF,
        0xFF7FFFFF,
        0x7F800000,
        0xFF800000,
        0x7F800001,
        0xFFBFFFFF,
        0x7FC00000,
        0xFFC12345,
        0x7FFFFFFF,
        0xFFFFFFFF,
        0x477FE000,
        0x477FEFFF,
        0x477FF000,
        0xC77FF000,
        0x33000000,
        0x33000001,
        0x33800000,
        0x387FC000,
        0x38800000,
        0x38001000,
        0x3F801000,
        0x3F803000,
        0x3F808000,
        0x3F818000,
        0x7F7F8000,
        0x7F7F7FFF,
        0x00008000,
        0x00018000,
    ],
    np.uint32,
)
WORDS = np.array(
    [
        0,
        1,
        0xFFFFFFFF,
        0x80000000,
        0x7FFFFFFF,
        0x0F0F0F0F,
        0x64006400,
        0x88888888,
        0x12345678,
        0x00FF00FF,
    ],
    np.uint32,
)


def raw(seed: str, count: int) -> np.ndarray:
    """uint64 [count], determined by the text ``seed``."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "little")
    return np.random.PCG64(np.random.SeedSequence(number)).random_raw(count)


def words32(seed: str, count: int) -> np.ndarray:
    """Plain random bits."""
    return raw(seed, -(-count // 2)).view(np.uint32)[:count].copy()


def mixed(seed: str, count: int, edges: np.ndarray, dtype) -> np.ndarray:
    """[count] of ``dtype``: three in eight are ``edges``, the others random bits."""
    drawn = raw(seed, count)
    return np.where(
        (drawn >> np.uint64(61)) < 3,
        edges[(drawn >> np.uint64(32)) % np.uint64(edges.size)],
        drawn.astype(dtype),
    ).astype(dtype)


def crossed(edges: np.ndarray, operands: int) -> list[np.ndarray]:
    """Every combination of ``edges`` in so many operands."""
    return [
        np.array(column, edges.dtype) for column in zip(*itertools.product(edges, repeat=operands))
    ]


def narrow_pairs(seed: str, count: int, operands: int, edges: np.ndarray) -> list[np.ndarray]:
    """Packed pairs of 16-bit floats, uint32 [count] an operand: all combinations of edges, then
    near cancellations and the mixture."""
    halves = [mixed(f"{seed}/{i}", 2 * count, edges, np.uint16) for i in range(operands)]
    for drawn, every in zip(halves, crossed(edges, operands)):
        drawn[: every.size] = every[: 2 * count]
    return [drawn.view(np.uint32) for drawn in halves]


def floats(seed: str, count: int, operands: int) -> list[np.ndarray]:
    """float32 bits, uint32 [count] an operand: combinations of edges; a quarter with exponents near
    those of fp16; for three operands a quarter in which the third nearly cancels the product of the
    others."""
    found = [mixed(f"{seed}/{i}", count, FLOATS, np.uint32) for i in range(operands)]
    kind = raw(f"{seed}/kind", count) >> np.uint64(62)
    for i, drawn in enumerate(found):
        near = words32(f"{seed}/near{i}", count)
        exponent = np.uint32(100) + (near >> np.uint32(23) & np.uint32(63)) % np.uint32(46)
        near = near & np.uint32(0x807FFFFF) | exponent << np.uint32(23)
        drawn[kind == 1] = near[kind == 1]
    if operands == 3:
        with np.errstate(all="ignore"):
            a, b = (each.view(np.float32).astype(np.float64) for each in found[:2])
            product = np.nan_to_num(-(a * b), nan=1.0).astype(np.float32).view(np.uint32)
        off = (raw(f"{seed}/off", count) & np.uint64(7)).astype(np.uint32)
        close = (kind == 2) & (product & np.uint32(0x7F800000) < np.uint32(0x7F800000))
        found[2][close] = (product + off)[close]
    for drawn, every in zip(found, crossed(FLOATS, operands)):
        drawn[: every.size] = every[:count]
    return found


def half_registers(seed: str, count: int) -> np.ndarray:
    """All 2^16 patterns, again and again, uint16 [count]."""
    return np.resize(np.arange(1 << 16, dtype=np.uint16), count)


def permutation(seed: str, count: int) -> np.ndarray:
    """0 .. count - 1 in an order."""
    return np.argsort(raw(seed, count), kind="stable")


def uniform(seed: str, count: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """float64 [count], of 53 bits."""
    return low + (high - low) * (raw(seed, count) >> np.uint64(11)) * 2.0**-53


def normal(seed: str, count: int) -> np.ndarray:
    """Nearly normal numbers of variance 1, float64 [count]: a sum of five uniform ones, so that no
    library function takes part."""
    pieces = (
        raw(f"{seed}/pieces", count).view(np.uint16).reshape(count, 4).sum(axis=1, dtype=np.int64)
    )
    # sqrt(12 / 5)
    return (pieces * 2.0**-16 + uniform(f"{seed}/fine", count) - 2.5) * 1.5491933384829668
