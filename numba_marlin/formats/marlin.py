"""The published Marlin layout (IST-DASLab/marlin), derived from the fragment maps of ``mma.m16n8k16``.

In:  QuantizedWeight, symmetric, 4 bit, k % 16 == 0, n % 64 == 0, group size -1, 32, 64 or 128.
Out: PackedWeight with qweight int32 [k/16, 2n] and scales float16 [groups, n] in permuted order; ``unpack`` inverts it.
Anything else is a ValueError naming the value and the rule.

Weights. The weight is cut into blocks of 16 rows (k) by 64 columns (n). A warp loads one block with one 16-byte load
per lane, so a block is 128 words, word ``4 * lane + j`` being the j-th of that lane's vector. Word j holds what the
lane needs as B fragments of the two ``mma.m16n8k16`` that cover the n16 columns ``16j .. 16j + 15``: 2 fragments x
2 registers x 2 halves = 8 codes. Their order in the word follows from how they are dequantised: ``lop3`` picks with
0x000f000f nibbles 0 and 4 into the halves of one f16x2 register, with 0x00f000f0 nibbles 1 and 5 into the next, and
after a shift by 8 nibbles 2, 6 and 3, 7 into the last two. So nibble ``p`` is half ``p // 4`` of register ``p % 4``,
and registers (0, 1) are the fragment of the left n8 columns, (2, 3) that of the right ones. No nibble is ever moved
across halves: two instructions give two weights.

Scales of groups are wanted where the weights are: a lane needs the scales of the columns of its 8 B fragments, and
finds them in 16 contiguous bytes. A scale per column is applied to the accumulators instead, so its order is that of
the columns of the C fragments of four n8 tiles, again 16 contiguous bytes to a lane. With a single group the layout
always means the second.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.formats.registry import register
from numba_marlin.formats.types import PackedWeight, QuantizedWeight
from numba_marlin.layout.fragments import LANES, MMA_M16N8K16_B, MMA_M16N8K16_C

BLOCK_K = MMA_M16N8K16_B.rows
WORDS_PER_LANE = 4
TILES_PER_WORD = 2
NIBBLES_PER_WORD = 8
BLOCK_N = WORDS_PER_LANE * TILES_PER_WORD * MMA_M16N8K16_B.cols
BLOCK_WORDS = LANES * WORDS_PER_LANE
GROUP_SIZES = (-1, 32, 64, 128)
ZERO_POINT = 8


def nibble_source(nibble: int) -> tuple[int, int]:
    """(n8 tile of the word, element of its B fragment) held by a nibble, given the dequantisation described above."""
    register_of_word, half = nibble % 4, nibble // 4
    tile, register_of_fragment = divmod(register_of_word, MMA_M16N8K16_B.registers)
    return tile, 2 * register_of_fragment + half


def _derive_block_coordinates() -> tuple[np.ndarray, np.ndarray]:
    """(k, n) inside a 16 x 64 block of every nibble: two int arrays [128 words, 8 nibbles]."""
    row = np.empty((LANES, WORDS_PER_LANE, NIBBLES_PER_WORD), dtype=np.int64)
    column = np.empty_like(row)
    for word in range(WORDS_PER_LANE):
        for nibble in range(NIBBLES_PER_WORD):
            tile, element = nibble_source(nibble)
            row[:, word, nibble] = MMA_M16N8K16_B.row_of[:, element]
            first_column = (TILES_PER_WORD * word + tile) * MMA_M16N8K16_B.cols
            column[:, word, nibble] = first_column + MMA_M16N8K16_B.col_of[:, element]
    return row.reshape(BLOCK_WORDS, NIBBLES_PER_WORD), column.reshape(BLOCK_WORDS, NIBBLES_PER_WORD)


def _derive_group_scale_perm() -> np.ndarray:
    """Scales of the columns of a lane's 8 B fragments, side by side; lanes that share columns share them."""
    owners = [int(np.argmax(MMA_M16N8K16_B.col_of[:, 0] == column)) for column in range(MMA_M16N8K16_B.cols)]
    tiles = range(BLOCK_N // MMA_M16N8K16_B.cols)
    return np.array(
        [tile * MMA_M16N8K16_B.cols + MMA_M16N8K16_B.col_of[lane, 0] for lane in owners for tile in tiles]
    )


def _derive_column_scale_perm() -> np.ndarray:
    """Scales of the columns of a lane's C fragments in four n8 tiles, side by side. Lanes 0-3 hold one row."""
    lanes, tiles, elements = range(4), range(4), range(2)
    return np.array(
        [
            tile * MMA_M16N8K16_C.cols + MMA_M16N8K16_C.col_of[lane, element]
            for lane in lanes
            for tile in tiles
            for element in elements
        ]
    )


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


BLOCK_ROW, BLOCK_COLUMN = map(_frozen, _derive_block_coordinates())
"""k and n inside a block of nibble p of word w: int64 [128, 8]."""

WEIGHT_PERM = _frozen((BLOCK_ROW * BLOCK_N + BLOCK_COLUMN).ravel())
"""Flat position 8 * word + nibble of a block <- flat position 64 * k + n: int64 [1024]."""

GROUP_SCALE_PERM = _frozen(_derive_group_scale_perm())
"""packed[c] = plain[GROUP_SCALE_PERM[c]] inside every 64 columns."""

COLUMN_SCALE_PERM = _frozen(_derive_column_scale_perm())
"""packed[c] = plain[COLUMN_SCALE_PERM[c]] inside every 32 columns, for one scale to a column."""


def locate(k_index: int, n_index: int) -> tuple[int, int, int]:
    """(row, column, nibble) of ``qweight`` that holds the code of W[k_index, n_index]."""
    position = int(np.argmax(WEIGHT_PERM == k_index % BLOCK_K * BLOCK_N + n_index % BLOCK_N))
    word, nibble = divmod(position, NIBBLES_PER_WORD)
    return k_index // BLOCK_K, n_index // BLOCK_N * BLOCK_WORDS + word, nibble


def check_problem(k: int, n: int, group_size: int) -> None:
    """Raise ValueError unless the layout can hold a [k, n] weight with this (normalised) group size."""
    if k <= 0 or k % BLOCK_K:
        raise ValueError(f"k={k} must be a positive multiple of {BLOCK_K} for layout 'marlin'")
    if n <= 0 or n % BLOCK_N:
        raise ValueError(f"n={n} must be a positive multiple of {BLOCK_N} for layout 'marlin'")
    if group_size not in GROUP_SIZES:
        raise ValueError(f"group_size={group_size} must be one of {GROUP_SIZES} (or k) for layout 'marlin'")


def check_packable(weight: QuantizedWeight) -> None:
    """Raise TypeError or ValueError unless ``pack`` can pack ``weight``."""
    if not isinstance(weight, QuantizedWeight):
        raise TypeError(f"weight is a {type(weight).__name__}, must be a QuantizedWeight")
    if not weight.symmetric:
        raise ValueError("zeros must be None for layout 'marlin': asymmetric weights are not supported by it yet")
    check_problem(weight.k, weight.n, weight.group_size)


def pack_codes(codes: np.ndarray) -> np.ndarray:
    """uint8 [k, n] -> int32 [k/16, 2n]. The specification that ``hostloops`` is tested against."""
    k, n = codes.shape
    blocks = codes.reshape(k // BLOCK_K, BLOCK_K, n // BLOCK_N, BLOCK_N).transpose(0, 2, 1, 3)
    nibbles = blocks.reshape(-1, BLOCK_K * BLOCK_N)[:, WEIGHT_PERM].reshape(-1, NIBBLES_PER_WORD)
    words = np.zeros(len(nibbles), dtype=np.uint32)
    for nibble in range(NIBBLES_PER_WORD):
        words |= nibbles[:, nibble].astype(np.uint32) << np.uint32(4 * nibble)
    return words.view(np.int32).reshape(k // BLOCK_K, 2 * n)


def unpack_codes(qweight: np.ndarray) -> np.ndarray:
    """int32 [k/16, 2n] -> uint8 [k, n]: the inverse of ``pack_codes``."""
    k_blocks, n = qweight.shape[0], qweight.shape[1] // 2
    words = np.ascontiguousarray(qweight).view(np.uint32).reshape(-1)
    nibbles = np.empty((words.size, NIBBLES_PER_WORD), dtype=np.uint8)
    for nibble in range(NIBBLES_PER_WORD):
        nibbles[:, nibble] = words >> np.uint32(4 * nibble) & np.uint32(15)
    blocks = nibbles.reshape(-1, BLOCK_K * BLOCK_N)[:, np.argsort(WEIGHT_PERM)]
    blocks = blocks.reshape(k_blocks, n // BLOCK_N, BLOCK_K, BLOCK_N).transpose(0, 2, 1, 3)
    return blocks.reshape(k_blocks * BLOCK_K, n)


def _scale_perm(groups: int) -> np.ndarray:
    return COLUMN_SCALE_PERM if groups == 1 else GROUP_SCALE_PERM


def pack_scales(scales: np.ndarray) -> np.ndarray:
    """float16 [groups, n] -> the same shape in the order the kernel reads."""
    perm = _scale_perm(scales.shape[0])
    return scales.reshape(-1, perm.size)[:, perm].reshape(scales.shape)


def unpack_scales(scales: np.ndarray) -> np.ndarray:
    """The inverse of ``pack_scales``."""
    perm = np.argsort(_scale_perm(scales.shape[0]))
    return scales.reshape(-1, perm.size)[:, perm].reshape(scales.shape)


class MarlinFormat:
    """The registry's door to this module (see ``registry.Format``)."""

    name = "marlin"

    def pack(self, weight: QuantizedWeight) -> PackedWeight:
        check_packable(weight)
        return self.wrap(pack_codes(weight.codes), weight)

    def wrap(self, qweight: np.ndarray, weight: QuantizedWeight) -> PackedWeight:
        """A PackedWeight of codes that were packed already (by ``hostloops``) and ``weight``'s scales."""
        return PackedWeight(
            layout=self.name,
            qweight=qweight,
            scales=pack_scales(weight.scales),
            bits=weight.bits,
            group_size=weight.group_size,
            k=weight.k,
            n=weight.n,
        )

    def unpack(self, packed: PackedWeight) -> QuantizedWeight:
        return self.unwrap(unpack_codes(packed.qweight), packed)

    def unwrap(self, codes: np.ndarray, packed: PackedWeight) -> QuantizedWeight:
        """A QuantizedWeight of codes that were unpacked already (by ``hostloops``) and ``packed``'s scales."""
        return QuantizedWeight(
            codes=codes, scales=unpack_scales(packed.scales), bits=packed.bits, group_size=packed.group_size
        )

    def check(self, packed: PackedWeight) -> None:
        check_problem(packed.k, packed.n, packed.group_size)
        expected = (packed.k // BLOCK_K, 2 * packed.n)
        if packed.qweight.shape != expected:
            raise ValueError(f"qweight.shape={packed.qweight.shape} must be (k/16, 2n)={expected} for layout 'marlin'")

    def describe(self, packed: PackedWeight) -> dict[str, object]:
        return {
            "layout": self.name,
            "k": packed.k,
            "n": packed.n,
            "bits": packed.bits,
            "group_size": packed.group_size,
            "groups": packed.groups,
            "qweight_shape": list(packed.qweight.shape),
            "bytes": packed.nbytes,
            "bits_per_weight": 8 * packed.nbytes / (packed.k * packed.n),
            "scale_order": "columns of the C fragments" if packed.per_column else "columns of the B fragments",
        }


MARLIN = register(MarlinFormat())


def pack(weight: QuantizedWeight) -> PackedWeight:
    """QuantizedWeight -> PackedWeight in the Marlin layout."""
    return MARLIN.pack(weight)


def unpack(packed: PackedWeight) -> QuantizedWeight:
    """PackedWeight in the Marlin layout -> the QuantizedWeight it was made from."""
    if packed.layout != MARLIN.name:
        raise ValueError(f"layout={packed.layout!r} must be {MARLIN.name!r}")
    return MARLIN.unpack(packed)
