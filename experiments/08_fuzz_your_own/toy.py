"""A format and a kernel of somebody's own, and a ring for it, each with a switch that plants a bug
in it.

The format, "snake": two codes of 4 bits to a byte along k, the rows of every other byte walked
backwards, columns as they come; scales plain. The kernel multiplies from those bytes directly, 32
rows of k at a time. The ring is that of numba_marlin.kernels.pipeline with another way to walk
round it.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from numba_marlin.kernels.language.pipeline import pipeline_verbs

TILE_K = 32
K_STEP, N_STEP = 4, 8


def pack(codes: np.ndarray) -> np.ndarray:
    """uint8 [k, n] -> uint8 [k/2, n]: of every four rows, the first two in one byte, the others in
    the next, in reverse."""
    first, second, third, fourth = (codes[row::4] for row in range(4))
    return np.stack([first | second << 4, fourth | third << 4], axis=1).reshape(len(codes) // 2, -1)


def unpack(packed: np.ndarray, k: int, n: int) -> np.ndarray:
    forward, backward = packed[0::2], packed[1::2]
    return np.stack([forward & 15, forward >> 4, backward >> 4, backward & 15], axis=1).reshape(
        k, n
    )


def unpack_with_bug(packed: np.ndarray, k: int, n: int) -> np.ndarray:
    """The second byte read forwards, like the first: right for symmetric data, and for every test
    with constant codes."""
    forward, backward = packed[0::2], packed[1::2]
    return np.stack([forward & 15, forward >> 4, backward & 15, backward >> 4], axis=1).reshape(
        k, n
    )


def matmul(x: np.ndarray, weight, bug: bool = False) -> np.ndarray:
    """x [m, k] @ weight, from packed bytes, in float32. bug: a group's scale is looked up once a
    tile, so that a tile of several groups uses the first's."""
    packed = pack(weight.codes)
    k, n = weight.codes.shape
    total = np.zeros((len(x), n), dtype=np.float32)
    for start in range(0, k, TILE_K):
        rows = np.arange(start, min(start + TILE_K, k))
        codes = unpack(packed[start // 2 : start // 2 + len(rows) // 2], len(rows), n)
        group = (
            np.full(len(rows), start // weight.rows_per_group)
            if bug
            else rows // weight.rows_per_group
        )
        w = (codes.astype(np.float32) - 8) * weight.scales[group].astype(np.float32)
        total += x[:, rows].astype(np.float32) @ w.astype(np.float16).astype(np.float32)
    return total.astype(np.float16)


def ring_verbs(lang, stages, producers, consumers, bug: bool = False) -> SimpleNamespace:
    """The parity follows from a count of turns, not from a flip. bug: it flips one stage early."""
    verbs = pipeline_verbs(lang, stages, producers, consumers)
    last = stages - 2 if bug else stages - 1

    def advance(place):
        around = int(place.stage) == last
        stage = lang.uint32((int(place.stage) + 1) % stages)
        return verbs.Place(stage, lang.uint32(place.parity ^ lang.uint32(around)))

    verbs.advance = advance
    return verbs
