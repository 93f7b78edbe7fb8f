"""Packings of small codes into tensors of words: ``Stream``, ``MarlinCodes`` and ``MarlinZeros``,
with one interface.

A packing gives the position of each bit in closed form: ``place(k, n, bit, bits)`` -> (row, column,
bit of the word) of the tensor, for integers or arrays of them. Everything else follows from it:
``shape``, ``pack`` (uint8 [k, n], each below 2**bits -> tensor) and ``unpack`` (its inverse);
``near(row, column, bits)`` bounds the search for the codes of a word: (range of k, range of n),
beyond the matrix too. Words are int32 or uint8; bit 0 is the lowest. A matrix that does not fill
whole words is a ValueError: the formats leave open what padding would hold. What "k" counts depends
on the tensor: rows of the weight for codes, groups for zero points.

The NumPy code here is the specification; ``hostloops.streams`` gives the same bytes, faster.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from numba_marlin.formats import marlin
from numba_marlin.formats.marlin_order import BLOCK_K, BLOCK_N, code_order

UNSIGNED = {"int32": np.uint32, "uint8": np.uint8}


@dataclass(frozen=True)
class Piece:
    """Bits ``skip .. skip + width`` of code ``code`` are bits ``shift .. shift + width`` of word
    ``word``, counted from the start of a period."""

    code: int
    word: int
    shift: int
    skip: int
    width: int


@dataclass(frozen=True)
class Stream:
    """Codes one after another along an axis, ``bits`` bits apiece and none left out, so that codes
    of 3 bits straddle words.

    along: "k" or "n", the axis whose neighbours share words. first: "k" or "n", the first axis of
    the tensor. order: inside every len(order) codes, place p holds code order[p].
    """

    along: str
    first: str
    word: str = "int32"
    order: tuple[int, ...] = (0,)

    @property
    def word_bits(self) -> int:
        return 8 * np.dtype(self.word).itemsize

    def place(self, k, n, bit, bits: int):
        number, other = (k, n) if self.along == "k" else (n, k)
        step = len(self.order)
        position = number // step * step + np.argsort(self.order)[number % step]
        address = bits * position + bit
        word, bit_of_word = address // self.word_bits, address % self.word_bits
        return (
            (word, other, bit_of_word) if self.first == self.along else (other, word, bit_of_word)
        )

    def near(self, row: int, column: int, bits: int) -> tuple[range, range]:
        word, other = (row, column) if self.first == self.along else (column, row)
        step, first = len(self.order), word * self.word_bits // bits
        last = (word * self.word_bits + self.word_bits - 1) // bits
        numbers, others = (
            range(first // step * step, (last // step + 1) * step),
            range(other, other + 1),
        )
        return (numbers, others) if self.along == "k" else (others, numbers)

    def shape(self, k: int, n: int, bits: int) -> tuple[int, int]:
        length, other = (k, n) if self.along == "k" else (n, k)
        if length * bits % self.word_bits or length % len(self.order):
            raise ValueError(
                f"{self.along}={length} codes of {bits} bits must fill whole words of"
                f" {self.word_bits} bits, {len(self.order)} codes at a time"
            )
        words = length * bits // self.word_bits
        return (words, other) if self.first == self.along else (other, words)

    def pack(self, codes: np.ndarray, bits: int) -> np.ndarray:
        shape = self.shape(codes.shape[0], codes.shape[1], bits)
        result = np.zeros(shape, UNSIGNED[self.word])
        words, source = self._lines(result), codes if self.along == "k" else codes.T
        codes_in_period, words_in_period, pieces = periods(self, bits)
        for each in pieces:
            part = source[each.code :: codes_in_period] >> np.uint8(each.skip) & np.uint8(
                (1 << each.width) - 1
            )
            words[each.word :: words_in_period] |= part.astype(words.dtype) << words.dtype.type(
                each.shift
            )
        return result.view(self.word)

    def unpack(self, tensor: np.ndarray, bits: int) -> np.ndarray:
        words = self._lines(np.ascontiguousarray(tensor).view(UNSIGNED[self.word]))
        length = words.shape[0] * self.word_bits // bits
        codes = np.zeros(
            (length, words.shape[1]) if self.along == "k" else (words.shape[1], length), np.uint8
        )
        target = codes if self.along == "k" else codes.T
        codes_in_period, words_in_period, pieces = periods(self, bits)
        for each in pieces:
            part = words[each.word :: words_in_period] >> words.dtype.type(
                each.shift
            ) & words.dtype.type((1 << each.width) - 1)
            target[each.code :: codes_in_period] |= part.astype(np.uint8) << np.uint8(each.skip)
        return codes

    def _lines(self, words: np.ndarray) -> np.ndarray:
        """A view of the tensor whose first axis is the one that is packed along."""
        return words if self.first == self.along else words.T


@functools.cache
def periods(stream: Stream, bits: int) -> tuple[int, int, tuple[Piece, ...]]:
    """(codes, words, pieces) of the shortest run after which the pattern repeats, read off
    ``stream.place``."""
    codes = math.lcm(len(stream.order), math.lcm(bits, stream.word_bits) // bits)
    pieces = []
    for code in range(codes):
        places = [
            (
                stream.place(code, 0, bit, bits)
                if stream.along == "k"
                else stream.place(0, code, bit, bits)
            )
            for bit in range(bits)
        ]
        words = [int(row if stream.first == stream.along else column) for row, column, _ in places]
        for word in sorted(set(words)):
            mine = [bit for bit in range(bits) if words[bit] == word]
            pieces.append(Piece(code, word, int(places[mine[0]][2]), mine[0], len(mine)))
    return codes, codes * bits // stream.word_bits, tuple(pieces)


@dataclass(frozen=True)
class MarlinCodes:
    """Marlin's blocks of 16 x 64 codes of 4 or 8 bits, int32 [k/16, n * bits/2], in the order of
    ``marlin_order``. n: a multiple of 64."""

    word: str = "int32"

    def place(self, k, n, bit, bits: int):
        order = code_order(bits)
        position = np.argsort(order.perm)[k % BLOCK_K * BLOCK_N + n % BLOCK_N]
        word, code = position // order.codes_per_word, position % order.codes_per_word
        return k // BLOCK_K, n // BLOCK_N * order.block_words + word, bits * code + bit

    def near(self, row: int, column: int, bits: int) -> tuple[range, range]:
        block = column // code_order(bits).block_words
        return range(row * BLOCK_K, (row + 1) * BLOCK_K), range(
            block * BLOCK_N, (block + 1) * BLOCK_N
        )

    def shape(self, k: int, n: int, bits: int) -> tuple[int, int]:
        if k % BLOCK_K or n % BLOCK_N:
            raise ValueError(
                f"k={k} and n={n} must be multiples of {BLOCK_K} and {BLOCK_N}: blocks of Marlin's"
                " layout"
            )
        return k // BLOCK_K, n * bits // 2

    def pack(self, codes: np.ndarray, bits: int) -> np.ndarray:
        self.shape(codes.shape[0], codes.shape[1], bits)
        return marlin.pack_codes(codes, bits)

    def unpack(self, tensor: np.ndarray, bits: int) -> np.ndarray:
        return marlin.unpack_codes(tensor, bits)


@dataclass(frozen=True)
class MarlinZeros:
    """Zero points on the grid as vLLM's Marlin kernels read them, int32 [groups, n * bits/32]. n: a
    multiple of 64."""

    word: str = "int32"

    def place(self, k, n, bit, bits: int):
        order = code_order(bits)
        position = n // BLOCK_N * BLOCK_N + np.argsort(order.zeros_perm)[n % BLOCK_N]
        return k, position // order.codes_per_word, bits * (position % order.codes_per_word) + bit

    def near(self, row: int, column: int, bits: int) -> tuple[range, range]:
        block = column * code_order(bits).codes_per_word // BLOCK_N
        return range(row, row + 1), range(block * BLOCK_N, (block + 1) * BLOCK_N)

    def shape(self, k: int, n: int, bits: int) -> tuple[int, int]:
        if n % BLOCK_N:
            raise ValueError(f"n={n} must be a multiple of {BLOCK_N}: blocks of Marlin's layout")
        return k, n * bits // 32

    def pack(self, codes: np.ndarray, bits: int) -> np.ndarray:
        self.shape(codes.shape[0], codes.shape[1], bits)
        return marlin.pack_zeros(codes, bits)

    def unpack(self, tensor: np.ndarray, bits: int) -> np.ndarray:
        return marlin.unpack_zeros(tensor, bits)


class Plain:
    """Packs and unpacks by the specification. ``hostloops.Compiled`` does the same in compiled
    loops on all cores."""

    def pack(self, packing, codes: np.ndarray, bits: int) -> np.ndarray:
        return packing.pack(codes, bits)

    def unpack(self, packing, tensor: np.ndarray, bits: int) -> np.ndarray:
        return packing.unpack(tensor, bits)
