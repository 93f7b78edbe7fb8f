"""Streams of codes packed and unpacked by compiled loops on all cores; bytes equal to
``formats.streams``.

Loops for each direction, by where the neighbours in a word are: ``rows`` (GPTQ: a word holds codes
of one column, columns are contiguous in both; inner loops run along them and LLVM vectorises them),
``columns`` (a word holds neighbours of a row; ``eights``, for AWQ, the same with 8 codes per word,
which is 7 times faster), ``crossed`` (compressed-tensors: the tensor is the transposed matrix; a
cache line of each of 256 columns is transposed in a tile, since columns a power of two apart would
evict each other from the cache). All loops read the tables of ``formats.streams.periods``, so
nothing here depends on a format.

A stream of bytes is the stream of 32-bit words over the same memory (both start at the lowest bit,
and the machine is little-endian): there are no loops for bytes. What is left over (zero points
along n of a transposed tensor, rows that are not whole words) goes to the specification.

Loops run without the GIL on Python threads, one part of the tensor each; compiling one takes half a
second, only once if Numba finds a place for its cache.
"""

from __future__ import annotations

import functools
import sys

import numba
import numpy as np

from numba_marlin.formats.streams import MarlinCodes, Stream, periods
from numba_marlin.hostloops import threads
from numba_marlin.hostloops.marlin import pack_marlin_codes, unpack_marlin_codes

_TILE_COLUMNS = 256
# Columns of a table of pieces: code, word, shift, skip, mask, and whether the piece holds the
# code's lowest bits.


def _unpack_rows(words, codes, table, codes_in_period, words_in_period, start, stop):
    for period in range(start, stop):
        for piece in range(table.shape[0]):
            source = words[period * words_in_period + table[piece, 1]]
            target = codes[period * codes_in_period + table[piece, 0]]
            shift, skip, mask = (
                np.uint32(table[piece, 2]),
                np.uint32(table[piece, 3]),
                np.uint32(table[piece, 4]),
            )
            if table[piece, 5]:
                for column in range(source.shape[0]):
                    target[column] = np.uint8(source[column] >> shift & mask)
            else:
                for column in range(source.shape[0]):
                    target[column] |= np.uint8((source[column] >> shift & mask) << skip)


def _pack_rows(words, codes, table, codes_in_period, words_in_period, start, stop):
    for period in range(start, stop):
        for word in range(words_in_period):
            words[period * words_in_period + word, :] = 0
        for piece in range(table.shape[0]):
            target = words[period * words_in_period + table[piece, 1]]
            source = codes[period * codes_in_period + table[piece, 0]]
            shift, skip, mask = (
                np.uint32(table[piece, 2]),
                np.uint32(table[piece, 3]),
                np.uint32(table[piece, 4]),
            )
            for column in range(target.shape[0]):
                target[column] |= (np.uint32(source[column]) >> skip & mask) << shift


def _unpack_columns(words, codes, table, codes_in_period, words_in_period, start, stop):
    for row in range(start, stop):
        for period in range(words.shape[1] // words_in_period):
            for piece in range(table.shape[0]):
                bits = words[row, period * words_in_period + table[piece, 1]] >> np.uint32(
                    table[piece, 2]
                ) & np.uint32(table[piece, 4])
                code = period * codes_in_period + table[piece, 0]
                if table[piece, 5]:
                    codes[row, code] = np.uint8(bits)
                else:
                    codes[row, code] |= np.uint8(bits << np.uint32(table[piece, 3]))


def _pack_columns(words, codes, table, codes_in_period, words_in_period, start, stop):
    for row in range(start, stop):
        words[row, :] = 0
        for period in range(words.shape[1] // words_in_period):
            for piece in range(table.shape[0]):
                bits = np.uint32(
                    codes[row, period * codes_in_period + table[piece, 0]]
                ) >> np.uint32(table[piece, 3]) & np.uint32(table[piece, 4])
                words[row, period * words_in_period + table[piece, 1]] |= bits << np.uint32(
                    table[piece, 2]
                )


def _unpack_eights(words, codes, table, codes_in_period, words_in_period, start, stop):
    """Columns, eight codes per word: the codes of a word are assembled in 64 bits, many words at
    once."""
    spread = codes.view(np.uint64)
    for row in range(start, stop):
        for piece in range(table.shape[0]):
            shift, mask, place = (
                np.uint32(table[piece, 2]),
                np.uint32(table[piece, 4]),
                np.uint64(8 * table[piece, 0]),
            )
            if piece == 0:
                for word in range(words.shape[1]):
                    spread[row, word] = np.uint64(words[row, word] >> shift & mask) << place
            else:
                for word in range(words.shape[1]):
                    spread[row, word] |= np.uint64(words[row, word] >> shift & mask) << place


def _pack_eights(words, codes, table, codes_in_period, words_in_period, start, stop):
    spread = codes.view(np.uint64)
    for row in range(start, stop):
        for piece in range(table.shape[0]):
            shift, mask, place = (
                np.uint32(table[piece, 2]),
                np.uint64(table[piece, 4]),
                np.uint64(8 * table[piece, 0]),
            )
            if piece == 0:
                for word in range(words.shape[1]):
                    words[row, word] = np.uint32(spread[row, word] >> place & mask) << shift
            else:
                for word in range(words.shape[1]):
                    words[row, word] |= np.uint32(spread[row, word] >> place & mask) << shift


def _unpack_crossed(words, codes, table, codes_in_period, words_in_period, start, stop):
    tile = np.empty((16, 256), dtype=np.uint32)
    for block in range(start, stop):
        for low in range(0, words.shape[1], 16):
            part = words[256 * block : 256 * block + 256, low : low + 16]
            if part.shape[0] == 256 and part.shape[1] == 16:  # constant bounds: twenty times faster
                for i in range(256):
                    for word in range(16):
                        tile[word, i] = part[i, word]
            else:
                for i in range(part.shape[0]):
                    for word in range(part.shape[1]):
                        tile[word, i] = part[i, word]
            for period in range(part.shape[1] // words_in_period):
                for piece in range(table.shape[0]):
                    source = tile[period * words_in_period + table[piece, 1]]
                    code = (low // words_in_period + period) * codes_in_period + table[piece, 0]
                    target = codes[code, 256 * block : 256 * block + 256]
                    shift, skip, mask = (
                        np.uint32(table[piece, 2]),
                        np.uint32(table[piece, 3]),
                        np.uint32(table[piece, 4]),
                    )
                    if table[piece, 5] and target.shape[0] == 256:
                        for i in range(256):
                            target[i] = np.uint8(source[i] >> shift & mask)
                    elif table[piece, 5]:
                        for i in range(target.shape[0]):
                            target[i] = np.uint8(source[i] >> shift & mask)
                    else:
                        for i in range(target.shape[0]):
                            target[i] |= np.uint8((source[i] >> shift & mask) << skip)


def _pack_crossed(words, codes, table, codes_in_period, words_in_period, start, stop):
    tile = np.empty((16, 256), dtype=np.uint32)
    for block in range(start, stop):
        for low in range(0, words.shape[1], 16):
            part = words[256 * block : 256 * block + 256, low : low + 16]
            tile[:, :] = 0
            for period in range(part.shape[1] // words_in_period):
                for piece in range(table.shape[0]):
                    target = tile[period * words_in_period + table[piece, 1]]
                    code = (low // words_in_period + period) * codes_in_period + table[piece, 0]
                    source = codes[code, 256 * block : 256 * block + 256]
                    shift, skip, mask = (
                        np.uint32(table[piece, 2]),
                        np.uint32(table[piece, 3]),
                        np.uint32(table[piece, 4]),
                    )
                    for i in range(source.shape[0]):
                        target[i] |= (np.uint32(source[i]) >> skip & mask) << shift
            if part.shape[0] == 256 and part.shape[1] == 16:
                for i in range(256):
                    for word in range(16):
                        part[i, word] = tile[word, i]
            else:
                for i in range(part.shape[0]):
                    for word in range(part.shape[1]):
                        part[i, word] = tile[word, i]


@functools.cache
def _compiled(loop):
    unpacks = loop.__name__.startswith("_unpack")
    words = numba.types.Array(numba.uint32, 2, "C", readonly=unpacks)
    codes = numba.types.Array(numba.uint8, 2, "C", readonly=not unpacks)
    table = numba.types.Array(numba.int64, 2, "C", readonly=True)
    signature = numba.void(words, codes, table, *[numba.int64] * 4)
    return threads.compiled(loop, signature)


def _spread(loop, words, codes, table, codes_in_period, words_in_period, parts: int) -> None:
    given = (words, codes, table, codes_in_period, words_in_period)
    threads.spread(functools.partial(_compiled(loop), *given), parts, codes.size)


@functools.cache
def _table(stream: Stream, bits: int) -> tuple[np.ndarray, int, int]:
    codes, words, pieces = periods(stream, bits)
    # a code's lowest bits are assigned before others are added
    pieces = sorted(pieces, key=lambda each: (each.skip > 0, each.word))
    rows = [
        (each.code, each.word, each.shift, each.skip, (1 << each.width) - 1, each.skip == 0)
        for each in pieces
    ]
    table = np.array(rows, np.int64)
    table.setflags(write=False)
    return table, codes, words


def _as_words(stream: Stream, shape: tuple[int, int], bits: int) -> Stream | None:
    """The stream of 32-bit words over the same memory, or None if there are no loops for it."""
    # three words to a period: tiles of 16 would cut it
    if stream.first != stream.along and stream.along == "k" and bits == 3:
        return None
    if stream.word == "uint8" and (
        stream.first == stream.along or shape[1] % 4 or sys.byteorder != "little"
    ):
        return None
    if stream.along == "n" and stream.first == "n":
        return None
    return Stream(stream.along, stream.first, "int32", stream.order)


def _loops(stream: Stream, words: np.ndarray, codes_in_period: int, words_in_period: int):
    """(packing loop, unpacking loop, number of parts to distribute)"""
    if stream.first == stream.along:
        return _pack_rows, _unpack_rows, words.shape[0] // words_in_period
    if stream.along == "n":
        eights = sys.byteorder == "little" and (codes_in_period, words_in_period) == (8, 1)
        return (
            (_pack_eights, _unpack_eights, words.shape[0])
            if eights
            else (_pack_columns, _unpack_columns, words.shape[0])
        )
    return _pack_crossed, _unpack_crossed, -(-words.shape[0] // _TILE_COLUMNS)


class Compiled:
    """``formats.streams.Plain``, compiled."""

    def pack(self, packing, codes: np.ndarray, bits: int) -> np.ndarray:
        shape = packing.shape(*codes.shape, bits)
        if isinstance(packing, MarlinCodes):
            return pack_marlin_codes(codes, bits)
        stream = _as_words(packing, shape, bits) if isinstance(packing, Stream) else None
        if stream is None:
            return packing.pack(codes, bits)
        tensor = np.empty(shape, packing.word)
        words = tensor.view(np.uint32)
        table, codes_in_period, words_in_period = _table(stream, bits)
        loop, _, parts = _loops(stream, words, codes_in_period, words_in_period)
        _spread(
            loop, words, np.ascontiguousarray(codes), table, codes_in_period, words_in_period, parts
        )
        return tensor

    def unpack(self, packing, tensor: np.ndarray, bits: int) -> np.ndarray:
        if isinstance(packing, MarlinCodes):
            return unpack_marlin_codes(tensor, bits)
        stream = _as_words(packing, tensor.shape, bits) if isinstance(packing, Stream) else None
        if stream is None:
            return packing.unpack(tensor, bits)
        words = np.require(tensor, requirements=["C_CONTIGUOUS", "ALIGNED"]).view(np.uint32)
        table, codes_in_period, words_in_period = _table(stream, bits)
        _, loop, parts = _loops(stream, words, codes_in_period, words_in_period)
        length = (words.shape[0] if stream.first == stream.along else words.shape[1]) * 32 // bits
        other = words.shape[1] if stream.first == stream.along else words.shape[0]
        codes = np.empty((length, other) if stream.along == "k" else (other, length), np.uint8)
        _spread(loop, words, codes, table, codes_in_period, words_in_period, parts)
        return codes
