"""Packing and unpacking of the Marlin layout with ``numba.njit(parallel=True)``; bytes equal to ``formats.marlin``.

In a block of 16 (k) x 64 (n), word ``4 * lane + j``, nibble p, with t = lane % 4 and g = lane // 4, holds the code at

    k = 2t + (p >> 2) + 8 (p & 1)        n = 16j + g + 8 ((p >> 1) & 1)

(``formats.marlin`` derives it). So a word combines the columns n and n + 8 of the four rows 2t, 2t + 8, 2t + 1, 2t + 9,
nibbles 0, 1, 4, 5 being the left column. That splits the work in two steps with a row of 32-bit values between them:
``pairs[n] = row[2t] | row[2t+8] << 4 | row[2t+1] << 16 | row[2t+9] << 20``, contiguous in n, which LLVM vectorises, and
``word = pairs[n] | pairs[n+8] << 8``, which only moves words to their places. The values between stay in the L1 cache:
work is handed to threads in pieces of 16 rows by at most 512 columns.

A loop is compiled when it is first called, which takes 2 to 3 s, and cached on disk where Numba can find a writable
place (next to the source, the user's cache directory, or NUMBA_CACHE_DIR), else compiled once in each process. A lock
lets one thread at a time into a loop: Numba's fallback threading layer aborts the process when two enter.
"""

from __future__ import annotations

import functools
import threading

import numba
import numpy as np

from numba_marlin.formats import PackedWeight, QuantizedWeight
from numba_marlin.formats.marlin import BLOCK_K, BLOCK_N, GROUP_SIZES, MARLIN, check_packable, check_problem

_PIECE = 8 * BLOCK_N
_ONE_AT_A_TIME = threading.Lock()
_NO_GROUPS = GROUP_SIZES[0]


def _pack_loop(codes, words):
    n = codes.shape[1]
    pieces = (n + _PIECE - 1) // _PIECE
    for piece in numba.prange(words.shape[0] * pieces):
        block_row = piece // pieces
        first = piece % pieces * _PIECE
        width = min(_PIECE, n - first)
        rows = codes[BLOCK_K * block_row : BLOCK_K * (block_row + 1), first : first + width]
        pairs = np.empty(_PIECE, dtype=np.uint32)
        for t in range(4):
            row_0, row_1, row_8, row_9 = rows[2 * t], rows[2 * t + 1], rows[2 * t + 8], rows[2 * t + 9]
            for column in range(width):
                pairs[column] = (
                    np.uint32(row_0[column])
                    | np.uint32(row_8[column]) << np.uint32(4)
                    | np.uint32(row_1[column]) << np.uint32(16)
                    | np.uint32(row_9[column]) << np.uint32(20)
                )
            for block in range(width // BLOCK_N):
                for g in range(8):
                    word = 2 * (first + BLOCK_N * block) + 16 * g + 4 * t
                    for j in range(4):
                        column = BLOCK_N * block + 16 * j + g
                        words[block_row, word + j] = pairs[column] | pairs[column + 8] << np.uint32(8)


def _unpack_loop(words, codes):
    n = codes.shape[1]
    pieces = (n + _PIECE - 1) // _PIECE
    for piece in numba.prange(words.shape[0] * pieces):
        block_row = piece // pieces
        first = piece % pieces * _PIECE
        width = min(_PIECE, n - first)
        rows = codes[BLOCK_K * block_row : BLOCK_K * (block_row + 1), first : first + width]
        pairs = np.empty(_PIECE, dtype=np.uint32)
        for t in range(4):
            for block in range(width // BLOCK_N):
                for g in range(8):
                    word = 2 * (first + BLOCK_N * block) + 16 * g + 4 * t
                    for j in range(4):
                        column = BLOCK_N * block + 16 * j + g
                        pairs[column] = words[block_row, word + j] & np.uint32(0x00FF00FF)
                        pairs[column + 8] = words[block_row, word + j] >> np.uint32(8) & np.uint32(0x00FF00FF)
            row_0, row_1, row_8, row_9 = rows[2 * t], rows[2 * t + 1], rows[2 * t + 8], rows[2 * t + 9]
            # Two loops of two outputs: with four, LLVM would need more overlap checks than it allows itself and does
            # not vectorise (1.2 instead of 5 GB/s of packed input).
            for column in range(width):
                row_0[column] = pairs[column] & np.uint32(15)
                row_8[column] = pairs[column] >> np.uint32(4) & np.uint32(15)
            for column in range(width):
                row_1[column] = pairs[column] >> np.uint32(16) & np.uint32(15)
                row_9[column] = pairs[column] >> np.uint32(20)


@functools.cache
def _compiled(loop):
    """``loop`` as machine code, from the disk cache if there is a place for one."""
    source, target = (numba.uint8, numba.uint32) if loop is _pack_loop else (numba.uint32, numba.uint8)
    # Declared read-only, the source may be a writable array too, and nothing is compiled twice.
    signature = numba.void(numba.types.Array(source, 2, "C", readonly=True), numba.types.Array(target, 2, "C"))
    try:
        return numba.njit(signature, parallel=True, cache=True)(loop)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return numba.njit(signature, parallel=True)(loop)


def _checked(name: str, value: np.ndarray, dtype: type) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(f"{name} is {kind}, must be a numpy.ndarray of {np.dtype(dtype)}")
    if value.ndim != 2:
        raise ValueError(f"{name}.shape={value.shape} must have 2 dimensions")
    return np.require(value, requirements=["C_CONTIGUOUS", "ALIGNED"])


def pack_marlin_codes(codes: np.ndarray) -> np.ndarray:
    """uint8 [k, n], each 0..15 (not checked here) -> int32 [k/16, 2n]; k % 16 == 0, n % 64 == 0."""
    codes = _checked("codes", codes, np.uint8)
    k, n = codes.shape
    check_problem(k, n, _NO_GROUPS)
    words = np.empty((k // BLOCK_K, 2 * n), dtype=np.uint32)
    with _ONE_AT_A_TIME:
        _compiled(_pack_loop)(codes, words)
    return words.view(np.int32)


def unpack_marlin_codes(qweight: np.ndarray) -> np.ndarray:
    """int32 [k/16, 2n] -> uint8 [k, n]; n % 64 == 0."""
    qweight = _checked("qweight", qweight, np.int32)
    if qweight.shape[1] % 2:
        raise ValueError(f"qweight.shape={qweight.shape} must be (k/16, 2n)")
    k, n = qweight.shape[0] * BLOCK_K, qweight.shape[1] // 2
    check_problem(k, n, _NO_GROUPS)
    codes = np.empty((k, n), dtype=np.uint8)
    with _ONE_AT_A_TIME:
        _compiled(_unpack_loop)(qweight.view(np.uint32), codes)
    return codes


def pack_marlin(weight: QuantizedWeight) -> PackedWeight:
    """``formats.marlin.pack``, compiled."""
    check_packable(weight)
    return MARLIN.wrap(pack_marlin_codes(weight.codes), weight)


def unpack_marlin(packed: PackedWeight) -> QuantizedWeight:
    """``formats.marlin.unpack``, compiled."""
    if packed.layout != MARLIN.name:
        raise ValueError(f"layout={packed.layout!r} must be {MARLIN.name!r}")
    return MARLIN.unwrap(unpack_marlin_codes(packed.qweight), packed)
