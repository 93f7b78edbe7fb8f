"""Packing and unpacking of the Marlin layout by compiled loops on all cores (``threads``); bytes
equal to ``formats.marlin``.

In a block of 16 (k) x 64 (n), with g = lane // 4 and t = lane % 4, ``formats.marlin_order`` derives
that

    4 bits: word 4 lane + j, nibble p, holds the code at
            k = 2 t + (p >> 2) + 8 (p & 1),  n = 16 j + g + 8 ((p >> 1) & 1)
    8 bits: word 8 lane + 2 j + h, byte p, holds the code at
            k = 2 t + (p >> 1) + 8 (p & 1),  n = 16 j + g + 8 h

So a word combines the four rows 2t, 2t + 8, 2t + 1, 2t + 9 of one column (8 bits) or of the columns
n and n + 8 (4 bits, nibbles 0, 1, 4, 5 being the left one). The work is done in two steps with a
row of 32-bit values between them: ``quads[n] = row[2t] | row[2t+8] << a | row[2t+1] << 16 |
row[2t+9] << 16 + a`` (a = 4 or 8), contiguous in n, which LLVM vectorises, and ``word = quads[n] |
quads[n+8] << 8`` or ``word = quads[n]``, which only moves words to their places. The intermediate
values stay in the L1 cache: threads process pieces of 16 rows by at most 512 columns.

A loop is compiled when it is first called, which takes 1 to 2 s, and cached on disk if Numba can
find a writable place (next to the source, the user's cache directory, or NUMBA_CACHE_DIR), else
compiled once in each process.
"""

from __future__ import annotations

import functools

import numba
import numpy as np

from numba_marlin.formats import PackedWeight, QuantizedWeight
from numba_marlin.formats.marlin import (
    BLOCK_K,
    BLOCK_N,
    MARLIN,
    check_packable,
    check_problem,
    packed_columns,
)
from numba_marlin.formats.types import check_bits
from numba_marlin.hostloops import threads

_PIECE = 8 * BLOCK_N
_NO_GROUPS = -1
_FILL = {4: 0x00880088, 8: 0x80808080}  # four codes that decode to zero, in the form of ``quads``


def _pack_4_loop(codes, words, fill, start, stop):
    n = codes.shape[1]
    columns = words.shape[1] // 2
    pieces = (columns + _PIECE - 1) // _PIECE
    for piece in range(start, stop):
        block_row = piece // pieces
        first = piece % pieces * _PIECE
        width, real = min(_PIECE, columns - first), min(_PIECE, n - first)
        rows = codes[BLOCK_K * block_row : BLOCK_K * (block_row + 1), first : first + real]
        quads = np.empty(_PIECE, dtype=np.uint32)
        quads[real:width] = fill
        for t in range(4):
            row_0, row_1, row_8, row_9 = (
                rows[2 * t],
                rows[2 * t + 1],
                rows[2 * t + 8],
                rows[2 * t + 9],
            )
            for column in range(real):
                quads[column] = (
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
                        words[block_row, word + j] = quads[column] | quads[column + 8] << np.uint32(
                            8
                        )


def _unpack_4_loop(words, codes, start, stop):
    n = codes.shape[1]
    columns = words.shape[1] // 2
    pieces = (columns + _PIECE - 1) // _PIECE
    for piece in range(start, stop):
        block_row = piece // pieces
        first = piece % pieces * _PIECE
        width, real = min(_PIECE, columns - first), min(_PIECE, n - first)
        rows = codes[BLOCK_K * block_row : BLOCK_K * (block_row + 1), first : first + real]
        quads = np.empty(_PIECE, dtype=np.uint32)
        for t in range(4):
            for block in range(width // BLOCK_N):
                for g in range(8):
                    word = 2 * (first + BLOCK_N * block) + 16 * g + 4 * t
                    for j in range(4):
                        column = BLOCK_N * block + 16 * j + g
                        quads[column] = words[block_row, word + j] & np.uint32(0x00FF00FF)
                        quads[column + 8] = words[block_row, word + j] >> np.uint32(8) & np.uint32(
                            0x00FF00FF
                        )
            row_0, row_1, row_8, row_9 = (
                rows[2 * t],
                rows[2 * t + 1],
                rows[2 * t + 8],
                rows[2 * t + 9],
            )
            # Two loops of two outputs: with four, LLVM would need more overlap checks than it
            # allows itself and does not vectorise (1.2 instead of 5 GB/s of packed input).
            for column in range(real):
                row_0[column] = quads[column] & np.uint32(15)
                row_8[column] = quads[column] >> np.uint32(4) & np.uint32(15)
            for column in range(real):
                row_1[column] = quads[column] >> np.uint32(16) & np.uint32(15)
                row_9[column] = quads[column] >> np.uint32(20)


def _pack_8_loop(codes, words, fill, start, stop):
    n = codes.shape[1]
    columns = words.shape[1] // 4
    pieces = (columns + _PIECE - 1) // _PIECE
    for piece in range(start, stop):
        block_row = piece // pieces
        first = piece % pieces * _PIECE
        width, real = min(_PIECE, columns - first), min(_PIECE, n - first)
        rows = codes[BLOCK_K * block_row : BLOCK_K * (block_row + 1), first : first + real]
        quads = np.empty(_PIECE, dtype=np.uint32)
        quads[real:width] = fill
        for t in range(4):
            row_0, row_1, row_8, row_9 = (
                rows[2 * t],
                rows[2 * t + 1],
                rows[2 * t + 8],
                rows[2 * t + 9],
            )
            for column in range(real):
                quads[column] = (
                    np.uint32(row_0[column])
                    | np.uint32(row_8[column]) << np.uint32(8)
                    | np.uint32(row_1[column]) << np.uint32(16)
                    | np.uint32(row_9[column]) << np.uint32(24)
                )
            for block in range(width // BLOCK_N):
                for g in range(8):
                    word = 4 * (first + BLOCK_N * block) + 32 * g + 8 * t
                    for tile in range(8):
                        words[block_row, word + tile] = quads[BLOCK_N * block + 8 * tile + g]


def _unpack_8_loop(words, codes, start, stop):
    n = codes.shape[1]
    columns = words.shape[1] // 4
    pieces = (columns + _PIECE - 1) // _PIECE
    for piece in range(start, stop):
        block_row = piece // pieces
        first = piece % pieces * _PIECE
        width, real = min(_PIECE, columns - first), min(_PIECE, n - first)
        rows = codes[BLOCK_K * block_row : BLOCK_K * (block_row + 1), first : first + real]
        quads = np.empty(_PIECE, dtype=np.uint32)
        for t in range(4):
            for block in range(width // BLOCK_N):
                for g in range(8):
                    word = 4 * (first + BLOCK_N * block) + 32 * g + 8 * t
                    for tile in range(8):
                        quads[BLOCK_N * block + 8 * tile + g] = words[block_row, word + tile]
            row_0, row_1, row_8, row_9 = (
                rows[2 * t],
                rows[2 * t + 1],
                rows[2 * t + 8],
                rows[2 * t + 9],
            )
            for column in range(real):
                row_0[column] = quads[column] & np.uint32(255)
                row_8[column] = quads[column] >> np.uint32(8) & np.uint32(255)
            for column in range(real):
                row_1[column] = quads[column] >> np.uint32(16) & np.uint32(255)
                row_9[column] = quads[column] >> np.uint32(24)


_PACK_LOOPS, _UNPACK_LOOPS = (
    {4: _pack_4_loop, 8: _pack_8_loop},
    {
        4: _unpack_4_loop,
        8: _unpack_8_loop,
    },
)


@functools.cache
def _compiled(loop):
    packs = loop in _PACK_LOOPS.values()
    source, target = (numba.uint8, numba.uint32) if packs else (numba.uint32, numba.uint8)
    # A source declared read-only may also be writable, so nothing is compiled twice.
    arrays = numba.types.Array(source, 2, "C", readonly=True), numba.types.Array(target, 2, "C")
    fill = (numba.uint32,) if packs else ()
    signature = numba.void(*arrays, *fill, numba.int64, numba.int64)
    return threads.compiled(loop, signature)


def _checked(name: str, value: np.ndarray, dtype: type) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(f"{name} is {kind}, must be a numpy.ndarray of {np.dtype(dtype)}")
    if value.ndim != 2:
        raise ValueError(f"{name}.shape={value.shape} must have 2 dimensions")
    return np.require(value, requirements=["C_CONTIGUOUS", "ALIGNED"])


def pack_marlin_codes(codes: np.ndarray, bits: int = 4) -> np.ndarray:
    """uint8 [k, n], each below 2**bits (not checked here) -> int32 [k/16, n_packed * bits/2]; k %
    16 == 0, n % 8 == 0."""
    bits, codes = check_bits(bits), _checked("codes", codes, np.uint8)
    k, n = codes.shape
    check_problem(k, n, _NO_GROUPS)
    words = np.empty((k // BLOCK_K, packed_columns(n) * bits // 2), dtype=np.uint32)
    pieces = -(-packed_columns(n) // _PIECE) * words.shape[0]
    loop, fill = _compiled(_PACK_LOOPS[bits]), np.uint32(_FILL[bits])
    threads.spread(functools.partial(loop, codes, words, fill), pieces, codes.size)
    return words.view(np.int32)


def unpack_marlin_codes(qweight: np.ndarray, bits: int = 4, n: int | None = None) -> np.ndarray:
    """int32 [k/16, n_packed * bits/2] -> uint8 [k, n]. n: default n_packed."""
    bits, qweight = check_bits(bits), _checked("qweight", qweight, np.int32)
    columns, rest = divmod(qweight.shape[1], bits // 2)
    if rest or columns % BLOCK_N:
        raise ValueError(
            f"qweight.shape={qweight.shape} must be (k/16, n_packed * {bits // 2}) with n_packed a"
            f" multiple of {BLOCK_N}"
        )
    n = columns if n is None else n
    k = qweight.shape[0] * BLOCK_K
    check_problem(k, n, _NO_GROUPS)
    if packed_columns(n) != columns:
        raise ValueError(
            f"n={n} must be {columns} or up to {BLOCK_N - 1} less: qweight.shape={qweight.shape}"
        )
    codes = np.empty((k, n), dtype=np.uint8)
    pieces = -(-columns // _PIECE) * qweight.shape[0]
    loop, words = _compiled(_UNPACK_LOOPS[bits]), qweight.view(np.uint32)
    threads.spread(functools.partial(loop, words, codes), pieces, codes.size)
    return codes


def pack_marlin(weight: QuantizedWeight) -> PackedWeight:
    """``formats.marlin.pack``, compiled."""
    check_packable(weight)
    return MARLIN.wrap(pack_marlin_codes(weight.codes, weight.bits), weight)


def unpack_marlin(packed: PackedWeight) -> QuantizedWeight:
    """``formats.marlin.unpack``, compiled."""
    if packed.layout != MARLIN.name:
        raise ValueError(f"layout={packed.layout!r} must be {MARLIN.name!r}")
    return MARLIN.unwrap(unpack_marlin_codes(packed.qweight, packed.bits, packed.n), packed)
