"""The published Marlin layout (IST-DASLab/marlin), its 8-bit form and its zero points (vLLM's), all
in the order of ``marlin_order``.

In:  QuantizedWeight: 4 or 8 bit, k % 16 == 0, n % 8 == 0, group size -1 or a multiple of 16.
Out: PackedWeight; ``unpack`` is the exact inverse. Columns are padded to n_packed, the next
     multiple of 64, with weights that decode to zero: the middle code, the zero point in the
     middle, scale 0.

    qweight int32 [k/16, n_packed * bits / 2]
            blocks of 16 x 64 codes, row by row
    scales  float16 or bfloat16 [groups, n_packed]
            permuted within each 64 columns, or 32 for a single group
    zeros   None; int32 [groups, n_packed * bits / 32], packed codes;
            or float16 [groups, n_packed] in the order of group scales

Anything else raises ValueError, naming the value and the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numba_marlin.formats.marlin_order import (
    BLOCK_K,
    BLOCK_N,
    COLUMN_SCALE_PERM,
    GROUP_SCALE_PERM,
    code_order,
)
from numba_marlin.formats.registry import register
from numba_marlin.formats.residence import arrays_of, on_host
from numba_marlin.formats.types import SUPPORTED_BITS, PackedWeight, QuantizedWeight

COLUMN_STEP = 8
GROUP_SIZES = (-1, 32, 64, 128)
"""Group sizes of the published layout and its kernel. The layout does not depend on groups, so any
multiple of 16 can be packed."""

WEIGHT_PERM = code_order(4).perm
"""Flat position 8 * word + nibble of a block <- flat position 64 * k + n: int64 [1024]."""


def packed_columns(n: int) -> int:
    """n, rounded up to whole blocks of 64 columns."""
    return -(-n // BLOCK_N) * BLOCK_N


def check_problem(k: int, n: int, group_size: int) -> None:
    """Raise ValueError unless the layout can hold a [k, n] weight with this (normalised) group
    size."""
    if k <= 0 or k % BLOCK_K:
        raise ValueError(f"k={k} must be a positive multiple of {BLOCK_K} for layout 'marlin'")
    if n <= 0 or n % COLUMN_STEP:
        raise ValueError(f"n={n} must be a positive multiple of {COLUMN_STEP} for layout 'marlin'")
    if group_size != -1 and group_size % BLOCK_K:
        raise ValueError(
            f"group_size={group_size} must be -1 (or k) or a multiple of {BLOCK_K} for layout"
            " 'marlin'"
        )


def check_packable(weight: QuantizedWeight) -> None:
    """Raise TypeError or ValueError unless ``pack`` can pack ``weight``."""
    if not isinstance(weight, QuantizedWeight):
        raise TypeError(f"weight is a {type(weight).__name__}, must be a QuantizedWeight")
    if weight.bits not in SUPPORTED_BITS:
        raise ValueError(
            f"bits={weight.bits} must be one of {SUPPORTED_BITS} for layout 'marlin':"
            " formats.widen(weight, 4) is the same weight"
        )
    check_problem(weight.k, weight.n, weight.group_size)


def _completed(values: np.ndarray, fill: object) -> np.ndarray:
    """Pad [rows, n] with columns of ``fill`` to n_packed; returns the array itself if n is
    n_packed."""
    rows, n = values.shape
    if n % BLOCK_N == 0:
        return values
    result = np.full((rows, packed_columns(n)), fill, dtype=values.dtype)
    result[:, :n] = values
    return result


def _to_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """uint8, any shape, codes of a word side by side -> uint32 words, flat; the first code is the
    lowest."""
    codes = codes.reshape(-1, 32 // bits)
    words = np.zeros(len(codes), dtype=np.uint32)
    for number in range(codes.shape[1]):
        words |= codes[:, number].astype(np.uint32) << np.uint32(bits * number)
    return words


def _from_words(words: np.ndarray, bits: int) -> np.ndarray:
    """The inverse: int32 or uint32, any shape -> uint8 [words, codes of a word]."""
    words = np.ascontiguousarray(words).view(np.uint32).reshape(-1)
    codes = np.empty((words.size, 32 // bits), dtype=np.uint8)
    for number in range(codes.shape[1]):
        codes[:, number] = words >> np.uint32(bits * number) & np.uint32((1 << bits) - 1)
    return codes


def pack_codes(codes: np.ndarray, bits: int = 4) -> np.ndarray:
    """uint8 [k, n] -> int32 [k/16, n_packed * bits/2]. The specification that ``hostloops`` is
    tested against."""
    codes = _completed(codes, 1 << (bits - 1))
    k, columns = codes.shape
    blocks = codes.reshape(k // BLOCK_K, BLOCK_K, columns // BLOCK_N, BLOCK_N).transpose(0, 2, 1, 3)
    ordered = blocks.reshape(-1, BLOCK_K * BLOCK_N)[:, code_order(bits).perm]
    return _to_words(ordered, bits).view(np.int32).reshape(k // BLOCK_K, columns * bits // 2)


def unpack_codes(qweight: np.ndarray, bits: int = 4, n: int | None = None) -> np.ndarray:
    """int32 [k/16, n_packed * bits/2] -> uint8 [k, n]: the inverse of ``pack_codes``. n: default
    n_packed."""
    k_blocks, columns = qweight.shape[0], qweight.shape[1] * 2 // bits
    blocks = _from_words(qweight, bits).reshape(-1, BLOCK_K * BLOCK_N)[
        :, np.argsort(code_order(bits).perm)
    ]
    blocks = blocks.reshape(k_blocks, columns // BLOCK_N, BLOCK_K, BLOCK_N).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(blocks.reshape(k_blocks * BLOCK_K, columns)[:, :n])


def _permuted(values: np.ndarray, perm: np.ndarray) -> np.ndarray:
    return values.reshape(-1, perm.size)[:, perm].reshape(values.shape)


def _scale_perm(groups: int) -> np.ndarray:
    return COLUMN_SCALE_PERM if groups == 1 else GROUP_SCALE_PERM


def pack_scales(scales: np.ndarray) -> np.ndarray:
    """16-bit floats [groups, n] -> [groups, n_packed] in the order the kernel reads."""
    return _permuted(_completed(scales, 0), _scale_perm(scales.shape[0]))


def unpack_scales(scales: np.ndarray, n: int | None = None) -> np.ndarray:
    """The inverse of ``pack_scales``. n: default n_packed."""
    return np.ascontiguousarray(_permuted(scales, np.argsort(_scale_perm(scales.shape[0])))[:, :n])


def pack_zeros(zeros: np.ndarray, bits: int = 4) -> np.ndarray:
    """uint8 [groups, n] -> int32 [groups, n_packed * bits/32]; float16 [groups, n] -> float16
    [groups, n_packed]."""
    zeros = _completed(zeros, 1 << (bits - 1))
    if zeros.dtype == np.float16:
        return _permuted(zeros, GROUP_SCALE_PERM)
    words = _to_words(_permuted(zeros, code_order(bits).zeros_perm), bits)
    return words.view(np.int32).reshape(len(zeros), -1)


def unpack_zeros(zeros: np.ndarray, bits: int = 4, n: int | None = None) -> np.ndarray:
    """The inverse of ``pack_zeros``. n: default n_packed."""
    if zeros.dtype == np.float16:
        plain = _permuted(zeros, np.argsort(GROUP_SCALE_PERM))
    else:
        plain = _permuted(
            _from_words(zeros, bits).reshape(len(zeros), -1),
            np.argsort(code_order(bits).zeros_perm),
        )
    return np.ascontiguousarray(plain[:, :n])


class MarlinFormat:
    """This layout as a ``registry.Format``."""

    name, weights = "marlin", QuantizedWeight

    def pack(self, weight: QuantizedWeight) -> PackedWeight:
        check_packable(weight)
        return self.wrap(pack_codes(weight.codes, weight.bits), weight)

    def wrap(
        self,
        qweight: Any,
        weight: Any,
        put: Callable[[np.ndarray], Any] = lambda array: array,
    ) -> PackedWeight:
        """A PackedWeight from codes that are packed already (by ``hostloops``, or on a device) and
        the other fields of ``weight``, a QuantizedWeight or a ``stored.StoredWeight``. put: brings
        their arrays where qweight is."""
        zeros, order = weight.zeros, weight.permutation
        return PackedWeight(
            layout=self.name,
            qweight=qweight,
            scales=put(pack_scales(weight.scales)),
            bits=weight.bits,
            group_size=weight.group_size,
            k=weight.k,
            n=weight.n,
            zeros=None if zeros is None else put(pack_zeros(zeros, weight.bits)),
            permutation=None if order is None else put(order),
        )

    def unpack(self, packed: PackedWeight) -> QuantizedWeight:
        return self.unwrap(unpack_codes(packed.qweight, packed.bits, packed.n), packed)

    def unwrap(self, codes: np.ndarray, packed: PackedWeight) -> QuantizedWeight:
        """A QuantizedWeight from codes that are unpacked already (by ``hostloops``, or on a device)
        and the other fields of ``packed``, wherever they are."""
        found = {name: on_host(array) for name, array in arrays_of(packed, "qweight").items()}
        zeros = found.get("zeros")
        return QuantizedWeight(
            codes=codes,
            scales=unpack_scales(found["scales"], packed.n),
            zeros=None if zeros is None else unpack_zeros(zeros, packed.bits, packed.n),
            bits=packed.bits,
            group_size=packed.group_size,
            permutation=found.get("permutation"),
        )

    def check(self, packed: PackedWeight) -> None:
        check_problem(packed.k, packed.n, packed.group_size)
        columns = packed_columns(packed.n)
        rules = [
            (
                "qweight",
                "(k/16, n_packed * bits/2)",
                (packed.k // BLOCK_K, columns * packed.bits // 2),
            ),
            ("scales", "(groups, n_packed)", (packed.groups, columns)),
        ]
        if packed.zeros_kind == "integer":
            rules.append(
                (
                    "zeros",
                    "(groups, n_packed * bits/32)",
                    (packed.groups, columns * packed.bits // 32),
                )
            )
        elif packed.zeros_kind == "float16":
            rules.append(("zeros", "(groups, n_packed)", (packed.groups, columns)))
        for name, rule, expected in rules:
            shape = tuple(getattr(packed, name).shape)
            if shape != expected:
                raise ValueError(
                    f"{name}.shape={shape} must be {rule}={expected} for layout 'marlin'"
                )

    def describe(self, packed: PackedWeight) -> dict[str, object]:
        return {
            "layout": self.name,
            "k": packed.k,
            "n": packed.n,
            "n_packed": packed.n_packed,
            "bits": packed.bits,
            "group_size": packed.group_size,
            "groups": packed.groups,
            "scale_dtype": packed.scale_dtype,
            "zeros": packed.zeros_kind,
            "qweight_shape": list(packed.qweight.shape),
            "bytes": packed.nbytes,
            "bits_per_weight": 8 * packed.nbytes / (packed.k * packed.n),
            "scale_order": (
                "columns of the C fragments" if packed.per_column else "columns of the B fragments"
            ),
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
