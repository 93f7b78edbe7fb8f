"""Words of packed codes taken apart: which bits belong to which code of which weight, and the value
that it stands for.

``Layer(form, tensors)`` is a layer of any stored format (``formats.files``);
``layer.words(tensor)`` its packed tensors; ``layer.word(tensor, row, column)`` -> ``Word``;
``layer.find(tensor, k, n)`` the words that hold the bits of one code. Everything comes from the
closed form of the packing (``formats.streams``), inverted by search. The code in the bits is
compared with the one that the format's own reader finds in the layer (``Field.agrees``).

Raises ValueError for a tensor that holds no packed codes, or a place outside of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.formats.block_weight import BlockWeight
from numba_marlin.formats.changes import explicit_zeros
from numba_marlin.formats.gptq import PERMUTATION
from numba_marlin.formats.marlin_order import code_order
from numba_marlin.formats.small_floats import decode
from numba_marlin.formats.stored import PLAIN, StoredFormat, TensorSpec
from numba_marlin.formats.streams import MarlinCodes
from numba_marlin.formats.types import QuantizedWeight
from numba_marlin.layout.fragments import MMA_M16N8K16_B
from numba_marlin.quantizers.dequantize import as_quantized


@dataclass(frozen=True)
class Field:
    """A code's bits in one word: bits low..high of the word are bits skip.. of the code. k, n: its
    place in the matrix that is packed (for codes the weight as it is stored, for zero points group
    and column). code: the whole code, with the bits that other words hold. ``row``: the row of the
    weight. zero, scale, value: its zero point, scale and value (None for zero points). agrees:
    whether the reader of the format found the same code there."""

    low: int
    high: int
    skip: int
    k: int
    n: int
    code: int
    row: int
    zero: float | None
    scale: float | None
    value: float | None
    agrees: bool

    @property
    def width(self) -> int:
        return self.high - self.low + 1

    def to_dict(self) -> dict:
        return {
            name: getattr(self, name)
            for name in (
                "low",
                "high",
                "skip",
                "k",
                "n",
                "code",
                "row",
                "zero",
                "scale",
                "value",
                "agrees",
            )
        }


@dataclass(frozen=True)
class Word:
    """``holder``: in Marlin's layout (lane, word of the lane, for every code its (register of the B
    fragments, half)), otherwise None."""

    tensor: str
    row: int
    column: int
    bits: int
    value: int
    fields: tuple[Field, ...]
    holder: tuple | None

    def to_dict(self) -> dict:
        return {
            "tensor": self.tensor,
            "word": [self.row, self.column],
            "bits": self.bits,
            "value": self.value,
            "hex": f"{self.value:#0{2 + self.bits // 4}x}",
            "codes": [each.to_dict() for each in self.fields],
            "lane": None if self.holder is None else self.holder[0],
        }


class Layer:
    """``tensors``: name -> array, with the format's names. Raises FormatError if they are not a
    layer of ``form``."""

    def __init__(self, form: StoredFormat, tensors: dict[str, np.ndarray], codec=PLAIN) -> None:
        self.form, self.tensors = form, tensors
        self.geometry = form.check(tensors)
        self.specs = form.specs(self.geometry)
        self.weight = form.read(tensors, codec)
        self.plain: QuantizedWeight | None = (
            None if isinstance(self.weight, BlockWeight) else as_quantized(self.weight)
        )
        order = None if self.plain is None else self.plain.permutation
        self._stored_of = None if order is None else np.argsort(order)
        self._unpacked: dict[str, np.ndarray] = {}

    @property
    def packed(self) -> tuple[str, ...]:
        """Names of the tensors that hold packed codes, the weight's own first."""
        return tuple(
            name
            for name in self.tensors
            if name in self.specs and self.specs[name].packing is not None
        )

    def spec(self, tensor: str) -> TensorSpec:
        if tensor not in self.packed:
            raise ValueError(
                f"tensor {tensor!r} must be one that holds packed codes: {', '.join(self.packed)}"
            )
        return self.specs[tensor]

    def is_codes(self, tensor: str) -> bool:
        return (
            self.spec(tensor).matrix == (self.geometry.k, self.geometry.n)
            and tensor == self.packed[0]
        )

    def unpacked(self, tensor: str) -> np.ndarray:
        """The matrix that the tensor packs, uint8; it is unpacked once."""
        if tensor not in self._unpacked:
            packing = self.spec(tensor).packing
            words = self._words(tensor)
            self._unpacked[tensor] = PLAIN.unpack(packing, words, self.geometry.bits)
        return self._unpacked[tensor]

    def _words(self, tensor: str) -> np.ndarray:
        array = np.asarray(self.tensors[tensor])
        return (
            array
            if array.dtype.name == self.specs[tensor].packing.word
            else array.view(self.specs[tensor].packing.word)
        )

    def find(self, tensor: str, k: int, n: int) -> tuple[tuple[int, int], ...]:
        """(row, column) of the word, or words, that hold the code at (k, n)."""
        spec, bits = self.spec(tensor), self.geometry.bits
        if not (0 <= k < spec.matrix[0] and 0 <= n < spec.matrix[1]):
            raise ValueError(
                f"k={k}, n={n} must be within the {spec.matrix[0]} x {spec.matrix[1]} that {tensor}"
                " packs"
            )
        row, column, _ = spec.packing.place(
            np.full(bits, k), np.full(bits, n), np.arange(bits), bits
        )
        return tuple(
            dict.fromkeys(
                zip(np.broadcast_to(row, bits).tolist(), np.broadcast_to(column, bits).tolist())
            )
        )

    def word(self, tensor: str, row: int, column: int) -> Word:
        spec, bits = self.spec(tensor), self.geometry.bits
        words = self._words(tensor)
        if not (0 <= row < words.shape[0] and 0 <= column < words.shape[1]):
            raise ValueError(
                f"word {row},{column} must be within {tensor}, which has {words.shape[0]} x"
                f" {words.shape[1]} words"
            )
        width = 8 * words.dtype.itemsize
        value = int(words[row, column]) & (1 << width) - 1
        fields = tuple(
            self._field(tensor, value, *piece) for piece in pieces(spec, row, column, bits)
        )
        return Word(
            tensor,
            row,
            column,
            width,
            value,
            fields,
            holder(row, column, bits) if isinstance(spec.packing, MarlinCodes) else None,
        )

    def _field(
        self, tensor: str, word: int, low: int, high: int, skip: int, k: int, n: int
    ) -> Field:
        code = int(self.unpacked(tensor)[k, n])
        seen = word >> low & (1 << high - low + 1) - 1
        right = code >> skip & (1 << high - low + 1) - 1 == seen
        if not self.is_codes(tensor):
            zeros = explicit_zeros(self.plain)
            return Field(low, high, skip, k, n, code, k, None, None, float(zeros[k, n]), right)
        stored, row = self._rows(k)
        if self.plain is None:
            scale = self._block_scale(k, n)
            number = float(decode(np.array([code], np.uint8), self.weight.grid)[0])
            return Field(
                low,
                high,
                skip,
                k,
                n,
                code,
                row,
                None,
                scale,
                number * scale,
                right and code == int(self.weight.codes[k, n]),
            )
        plain, group = self.plain, stored // self.plain.rows_per_group
        zero = float(1 << plain.bits - 1) if plain.zeros is None else float(plain.zeros[group, n])
        scale = float(plain.scales[group, n])
        return Field(
            low,
            high,
            skip,
            k,
            n,
            code,
            row,
            zero,
            scale,
            (code - zero) * scale,
            right and code == int(plain.codes[stored, n]),
        )

    def _rows(self, k: int) -> tuple[int, int]:
        """(row in the plain form, row of the weight) of row k of the tensor."""
        if self._stored_of is None:
            return k, k
        if PERMUTATION in self.tensors:  # rows lie sorted by group in the file already
            return k, int(self.plain.permutation[k])
        return int(self._stored_of[k]), k

    def _block_scale(self, k: int, n: int) -> float:
        weight = self.weight
        scale = float(weight.scale_values()[k // weight.block[0], n // weight.block[1]])
        if weight.global_scale is None:
            return scale
        return scale / weight.global_scale if weight.divides else scale * weight.global_scale


def pieces(
    spec: TensorSpec, row: int, column: int, bits: int
) -> list[tuple[int, int, int, int, int]]:
    """(low, high, skip, k, n) of every code with bits in the word, from the lowest bit up."""
    near_k, near_n = spec.packing.near(row, column, bits)
    k, n = (
        np.array([each for each in near if each < size])
        for near, size in zip((near_k, near_n), spec.matrix)
    )
    places = np.broadcast_arrays(
        *spec.packing.place(
            k[:, None, None], n[None, :, None], np.arange(bits)[None, None, :], bits
        ),
        np.zeros((len(k), len(n), bits)),
    )
    here = np.argwhere((places[0] == row) & (places[1] == column))
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, j, bit in here.tolist():
        found.setdefault((int(k[i]), int(n[j])), []).append((int(places[2][i, j, bit]), bit))
    return sorted(
        (min(mine)[0], max(mine)[0], min(mine)[1], *where) for where, mine in found.items()
    )


def holder(row: int, column: int, bits: int) -> tuple[int, int, tuple[tuple[int, int, int], ...]]:
    """(lane, number of the word among the lane's, (n8 tile of the block, register, half) of each
    code) of a word in Marlin's order: where dequantising puts it."""
    order = code_order(bits)
    words_per_lane = order.block_words // MMA_M16N8K16_B.lanes
    word = column % order.block_words
    lane, number = divmod(word, words_per_lane)
    places = []
    for k, n in zip(order.row[word].tolist(), order.column[word].tolist()):
        tile = n // MMA_M16N8K16_B.cols
        element = next(
            e
            for e in range(MMA_M16N8K16_B.elements)
            if (int(MMA_M16N8K16_B.row_of[lane, e]), int(MMA_M16N8K16_B.col_of[lane, e]))
            == (k, n % MMA_M16N8K16_B.cols)
        )
        places.append((tile, element // 2, element % 2))
    return lane, number, tuple(places)
