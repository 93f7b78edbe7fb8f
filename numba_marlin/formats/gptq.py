"""GPTQ, versions 1 and 2, and AWQ.

GPTQ (AutoGPTQ and GPTQModel; ``checkpoint_format`` "gptq" and "gptq_v2"), codes of 2, 3, 4 or 8
bits:

    qweight int32 [k * bits/32, n]        neighbouring rows of a column, row after row from bit 0;
                                          codes of 3 bits straddle words
    qzeros  int32 [groups, n * bits/32]   neighbouring columns of a group; version 1 stores the zero
            point less one
    scales  float16 or bfloat16 [groups, n]
    g_idx   int32 [k], optional           the group of every row. Not 0, 0, ... 1, 1, ...:
            activation order

Version 1 stores zero - 1 modulo 2**bits, field by field, so that a zero point of 0 is a field of
ones. AutoGPTQ reads it so in ``qlinear_cuda_old``, as 2**bits in ``qlinear_cuda``; GPTQModel adds 1
to a word as a whole (of 3 bits, to each field). All agree wherever no field is all ones.

AWQ (AutoAWQ's "gemm" version; llm-awq's order), codes of 4 bits:

    qweight int32 [k, n/8]    neighbouring columns of a row: nibble i of a word is column 8 * word +
                              (0, 2, 4, 6, 1, 3, 5, 7)[i]
    qzeros  int32 [groups, n/8]           likewise; the zero point itself
    scales  float16 or bfloat16 [groups, n]

A weight whose zero points are all the middle of the grid is read as symmetric. Sources, read
for facts only: AutoGPTQ's ``qlinear_cuda``, GPTQModel's ``convert_gptq_v1_to_v2_format`` and its
tests, AutoAWQ's ``WQLinear_GEMM`` and ``pack``, vLLM's ``gptq.py`` and ``awq.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.formats import changes
from numba_marlin.formats.floats import HALF_TYPES
from numba_marlin.formats.stored import (
    Geometry,
    StoredFormat,
    StoredWeight,
    TensorSpec,
    count,
    group_rows,
    matrix,
    one_of,
    register_stored,
)
from numba_marlin.formats.streams import Stream
from numba_marlin.formats.types import READABLE_BITS, QuantizedWeight

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
PERMUTATION = "g_idx_sort_indices"  # vLLM's name for the rows sorted by group


@dataclass(frozen=True)
class GptqFormat(StoredFormat):
    """stored_offset: subtracted from zero points before they are packed (1 in version 1)."""

    stored_offset: int = 0

    def geometry(self, tensors) -> Geometry:
        groups, n = matrix("scales", tensors["scales"])
        bits = one_of(
            "qzeros",
            count(
                "qzeros",
                32 * matrix("qzeros", tensors["qzeros"])[1],
                n,
                "32 bits per word over columns",
            ),
            READABLE_BITS,
            "bits of a code are",
        )
        k = count(
            "qweight",
            32 * matrix("qweight", tensors["qweight"])[0],
            bits,
            "32 bits per word over bits of a code",
        )
        return Geometry(
            k,
            n,
            bits,
            group_rows(k, groups),
            scale_dtype=tensors["scales"].dtype.name,
            extras=frozenset(tensors) & {"g_idx"},
        )

    def specs(self, geometry: Geometry) -> dict[str, TensorSpec]:
        k, n, groups = geometry.k, geometry.n, geometry.groups
        rows, columns = Stream("k", "k"), Stream("n", "k")
        specs = {
            "qweight": TensorSpec(("int32",), rows.shape(k, n, geometry.bits), rows, (k, n)),
            "qzeros": TensorSpec(
                ("int32",), columns.shape(groups, n, geometry.bits), columns, (groups, n)
            ),
            "scales": TensorSpec(HALF_TYPES, (groups, n)),
        }
        return specs | (
            {"g_idx": TensorSpec(("int32",), (k,))} if "g_idx" in geometry.extras else {}
        )

    def zeros(self, tensors, geometry, codec) -> np.ndarray | None:
        packing, bits = self.specs(geometry)["qzeros"].packing, geometry.bits
        stored = codec.unpack(packing, tensors["qzeros"], bits)
        zeros = stored + np.uint8(self.stored_offset) & np.uint8((1 << bits) - 1)
        return changes.implicit_zeros(zeros, bits)

    def stored(self, tensors, geometry, codec) -> StoredWeight:
        order = (
            changes.order_of_groups(np.asarray(tensors["g_idx"]), geometry.groups)
            if "g_idx" in tensors
            else None
        )
        return StoredWeight(
            tensors["qweight"],
            self.specs(geometry)["qweight"].packing,
            geometry.bits,
            np.array(tensors["scales"]),
            self.zeros(tensors, geometry, codec),
            geometry.group,
            geometry.k,
            geometry.n,
            rows=order,
            permutation=order,
        )

    def decode(self, tensors, geometry, codec) -> QuantizedWeight:
        return self.stored(tensors, geometry, codec).read(codec)

    def prepare(self, weight: QuantizedWeight):
        weight = changes.with_bits(changes.rows_as_they_come(weight), self.bits, self.name)
        weight, losses = changes.with_integer_zeros(weight)
        self.specs(Geometry(weight.k, weight.n, weight.bits, weight.group_size))
        return weight, losses

    def encode(self, weight, codec) -> dict[str, np.ndarray]:
        specs = self.specs(Geometry(weight.k, weight.n, weight.bits, weight.group_size))
        stored = changes.explicit_zeros(weight) - np.uint8(self.stored_offset) & np.uint8(
            (1 << weight.bits) - 1
        )
        return {
            "qweight": codec.pack(specs["qweight"].packing, changes.row_order(weight), weight.bits),
            "qzeros": codec.pack(specs["qzeros"].packing, stored, weight.bits),
            "scales": weight.scales,
            "g_idx": changes.group_index(weight),
        }


@dataclass(frozen=True)
class AwqFormat(StoredFormat):
    """Codes and zero points of 4 bits, eight columns per word in AWQ_ORDER."""

    def geometry(self, tensors) -> Geometry:
        k, _ = matrix("qweight", tensors["qweight"])
        groups, n = matrix("scales", tensors["scales"])
        return Geometry(
            k,
            n,
            4,
            group_rows(k, groups),
            scale_dtype=tensors["scales"].dtype.name,
            extras=frozenset(tensors) & {PERMUTATION},
        )

    def specs(self, geometry: Geometry) -> dict[str, TensorSpec]:
        k, n, groups = geometry.k, geometry.n, geometry.groups
        columns = Stream("n", "k", order=AWQ_ORDER)
        specs = {
            "qweight": TensorSpec(("int32",), columns.shape(k, n, 4), columns, (k, n)),
            "qzeros": TensorSpec(("int32",), columns.shape(groups, n, 4), columns, (groups, n)),
            "scales": TensorSpec(HALF_TYPES, (groups, n)),
        }
        return specs | (
            {PERMUTATION: TensorSpec(("int32",), (k,))} if PERMUTATION in geometry.extras else {}
        )

    def zeros(self, tensors, geometry, codec) -> np.ndarray | None:
        packing = self.specs(geometry)["qzeros"].packing
        return changes.implicit_zeros(codec.unpack(packing, tensors["qzeros"], 4), 4)

    def stored(self, tensors, geometry, codec) -> StoredWeight:
        return StoredWeight(
            tensors["qweight"],
            self.specs(geometry)["qweight"].packing,
            4,
            np.array(tensors["scales"]),
            self.zeros(tensors, geometry, codec),
            geometry.group,
            geometry.k,
            geometry.n,
            permutation=np.array(tensors[PERMUTATION]) if PERMUTATION in tensors else None,
        )

    def decode(self, tensors, geometry, codec) -> QuantizedWeight:
        return self.stored(tensors, geometry, codec).read(codec)

    def prepare(self, weight: QuantizedWeight):
        weight, losses = changes.with_integer_zeros(changes.with_bits(weight, self.bits, self.name))
        weight, order_losses = changes.with_known_order(weight, PERMUTATION)
        self.specs(Geometry(weight.k, weight.n, 4, weight.group_size))
        return weight, losses + order_losses

    def encode(self, weight, codec) -> dict[str, np.ndarray]:
        specs = self.specs(Geometry(weight.k, weight.n, 4, weight.group_size))
        order = {} if weight.permutation is None else {PERMUTATION: weight.permutation}
        return {
            "qweight": codec.pack(specs["qweight"].packing, weight.codes, 4),
            "qzeros": codec.pack(specs["qzeros"].packing, changes.explicit_zeros(weight), 4),
            "scales": weight.scales,
        } | order


_ORDERED = frozenset({"g_idx"})
_GEOMETRIES = (
    Geometry(64, 32, 4, 32, extras=_ORDERED),
    Geometry(64, 32, 8, 16, extras=_ORDERED),
    Geometry(32, 32, 4, extras=_ORDERED),
    Geometry(96, 32, 3, 32, extras=_ORDERED),
    Geometry(64, 32, 2, 32, scale_dtype="bfloat16", extras=_ORDERED),
)
_KEYS = ("qweight", "qzeros", "scales")
GPTQ = register_stored(
    GptqFormat(
        "gptq",
        "GPTQ v1",
        "https://github.com/AutoGPTQ/AutoGPTQ, nn_modules/qlinear/qlinear_cuda.py",
        _KEYS,
        ("g_idx",),
        bits=READABLE_BITS,
        runs="4, 8 bits; 2, 3 as 4",
        test_geometries=_GEOMETRIES,
        stored_offset=1,
    )
)
GPTQ_V2 = register_stored(
    GptqFormat(
        "gptq_v2",
        "GPTQ v2",
        "https://github.com/ModelCloud/GPTQModel, utils/model.py",
        _KEYS,
        ("g_idx",),
        bits=READABLE_BITS,
        runs="4, 8 bits; 2, 3 as 4",
        test_geometries=_GEOMETRIES,
    )
)
AWQ = register_stored(
    AwqFormat(
        "awq",
        "AWQ (gemm)",
        "https://github.com/casper-hansen/AutoAWQ, awq/modules/linear/gemm.py",
        _KEYS,
        (PERMUTATION,),
        runs="4 bits",
        test_geometries=(
            Geometry(32, 32, 4, 16),
            Geometry(16, 64, 4),
            Geometry(32, 24, 4, 8, scale_dtype="bfloat16"),
        ),
    )
)
