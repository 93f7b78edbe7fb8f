"""Sparse operands: a stored A and its metadata become what a dense product would multiply.

A sparse product is the dense one of A with zeros in its other places, in sums as
``tensor_sums`` and ``integer_sums`` say, but for one thing: an addition has as many *stored*
products as a dense one has products, so twice as many places of k (``Adder.of_sparse``). An H200
agrees bit for bit (experiments/05_hardware). Only stored elements are multiplied (Mishra and
others, "Accelerating sparse deep neural networks", 2021, arXiv:2104.08378): an infinity or NaN in B
that no stored element meets leaves no trace.

Metadata are nibbles (``layout.sparsity``). A pair of cells must be two different ones; with
``::ordered_metadata`` the lower one first; of tf32 only 0b0100 and 0b1110 mean something. All else
is undefined by the ISA, and nobody has told what chips do: BadMetadata.
https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma-sp
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.state.small_floats import HALVES
from numba_marlin.emulator.tensor.tensor_sums import KINDS, SMALL, SPECIAL
from numba_marlin.layout.sparsity import CELLS, STORED, Metadata

_CODES = np.arange(16)
_LOWER, _UPPER = _CODES & 3, _CODES >> 2
DIFFERENT, ASCENDING = _LOWER != _UPPER, _LOWER < _UPPER
WHOLE_WORDS = np.isin(_CODES, (0b0100, 0b1110))


def codes_of(metadata: Metadata, selector: int, words: np.ndarray) -> np.ndarray:
    """The metadata of each chunk, from the registers uint32 [warps, 32]: int [warps, 16, chunks]"""
    lane, shift = metadata.places(selector)
    return (words[:, lane] >> shift.astype(np.uint32) & np.uint32(15)).astype(np.intp)


def undefined(metadata: Metadata, codes: np.ndarray, ordered: bool) -> np.ndarray:
    """bool like ``codes``: which of them the ISA leaves undefined."""
    if metadata.bits == 32:
        return ~WHOLE_WORDS[codes]
    return ~(ASCENDING if ordered else DIFFERENT)[codes]


def describe(codes: np.ndarray, wrong: np.ndarray) -> str:
    """Of the first wrong one in [rows, chunks]."""
    row, chunk = (int(each[0]) for each in np.nonzero(wrong))
    return (
        f"metadata 0b{int(codes[row, chunk]):04b} of row {row}, chunk {chunk} of A: the ISA leaves"
        " them undefined"
    )


def _stored_cells(codes: np.ndarray) -> np.ndarray:
    """[..., 2]: the numbers of the stored cells of each chunk."""
    return np.stack([codes & 3, codes >> 2], axis=-1)


def _cells(matrix: np.ndarray, chunks: int, of_a_chunk: int) -> np.ndarray:
    """Bytes [..., n] as [..., chunks, cells of a chunk, bytes of a cell]."""
    return matrix.reshape(*matrix.shape[:-1], chunks, of_a_chunk, -1)


def expand(stored: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """A with its zeros, uint8 [..., rows, 2 n], of what is stored of it, uint8 [..., rows, n], and
    codes [..., rows, chunks]."""
    cells = _cells(np.ascontiguousarray(stored), codes.shape[-1], STORED)
    dense = np.zeros((*cells.shape[:-2], CELLS, cells.shape[-1]), np.uint8)
    np.put_along_axis(dense, _stored_cells(codes)[..., None], cells, axis=-2)
    return dense.reshape(*stored.shape[:-1], -1)


def met(b: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """For every row of A, B with zeros where the row has none stored: uint8 [..., rows, columns, n]
    of uint8 [..., columns, n] and codes [..., rows, chunks]."""
    chunks = codes.shape[-1]
    kept = np.zeros((*codes.shape, CELLS), bool)
    np.put_along_axis(kept, _stored_cells(codes), True, axis=-1)
    cells = _cells(np.ascontiguousarray(b), chunks, CELLS)[..., None, :, :, :, :]
    found = np.where(kept[..., None, :, :, None], cells, np.uint8(0))
    return found.reshape(*codes.shape[:-1], *b.shape[-2:])


def any_special(kind: str, elements: np.ndarray) -> bool:
    """Is there an infinity or NaN among bit patterns of this type? Integers have none."""
    if kind in SMALL:
        elements, kind = HALVES[kind][elements], "f16"
    return kind in KINDS and bool((KINDS[kind].exponents(elements) >= SPECIAL).any())
