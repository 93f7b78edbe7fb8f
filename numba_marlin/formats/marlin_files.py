"""Marlin's layout in files, and compressed-tensors' pack-quantized.

Marlin as its authors write it (and AutoGPTQ and GPTQModel with ``checkpoint_format`` "marlin"), 4
bits, symmetric, n a multiple of 64:

    B int32 [k/16, 2n]      codes in the order of ``marlin_order``
    s float16 [groups, n]   scales in the kernel's order

vLLM's, after its ``gptq_marlin_repack`` and ``marlin_permute_scales`` (AutoAWQ's "marlin" version
is that of 4 bits without zero points):

    qweight int32 [k/16, n * bits/2]   4 or 8 bits, the same order
    scales  float16 or bfloat16 [groups, n]
    qzeros  int32 [groups, n * bits/32], optional   zero points on the grid, packed for the kernel
    g_idx, g_idx_sort_indices int32 [k], optional   the group of every stored row, ascending; which
                                                    row of the weight it is

Both are read as PackedWeights without unpacking. compressed-tensors, ``format``
"pack-quantized", stores [n, k] as torch.nn.Linear does:

    weight_packed     int32 [n, k * bits/32]   code = signed value + 2**(bits-1); neighbouring
                      inputs share a word
    weight_scale      float16 or bfloat16 [n, groups]
    weight_zero_point int32 [n * bits/32, groups], optional   coded and packed likewise, along n
    weight_g_idx      int32 [k], optional      as GPTQ's g_idx; version 0.20 of the library
                      refuses directories that have it, by name
    weight_shape      int64 or int32 [2]       (n, k)

Codes of 4 and 8 bits only: of 3 bits, versions of the library differ on whether words are filled.
Sources, read for facts only: IST-DASLab/marlin's ``Layer.pack``, vLLM's ``marlin_utils.py``,
AutoAWQ's ``WQLinear_Marlin``, compressed-tensors' ``pack_to_int32`` and ``pack_quantized.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from numba_marlin.formats import changes, marlin
from numba_marlin.formats.floats import HALF_TYPES
from numba_marlin.formats.gptq import PERMUTATION
from numba_marlin.formats.stored import (
    PLAIN,
    FormatError,
    Geometry,
    Outline,
    StoredFormat,
    StoredWeight,
    TensorSpec,
    count,
    group_rows,
    matrix,
    one_of,
    register_stored,
)
from numba_marlin.formats.streams import MarlinCodes, MarlinZeros, Stream
from numba_marlin.formats.types import SUPPORTED_BITS, PackedWeight, QuantizedWeight


@dataclass(frozen=True)
class MarlinFile(StoredFormat):
    """Both variants. codes, scales: names of their tensors."""

    codes: str = "B"
    scales: str = "s"

    @property
    def kernels_own(self) -> bool:
        """Whether the tensors are those of vLLM's kernels, which support more than the published
        kernel."""
        return self.codes == "qweight"

    def geometry(self, tensors) -> Geometry:
        groups, n = matrix(self.scales, tensors[self.scales])
        rows, words = matrix(self.codes, tensors[self.codes])
        bits = one_of(
            self.codes,
            count(self.codes, 2 * words, n, "words of a block row over columns"),
            self.bits,
            "bits of a code are",
        )
        extras = frozenset(tensors) - {self.codes, self.scales}
        if len(extras & {"g_idx", PERMUTATION}) == 1 and self.kernels_own:
            raise FormatError(
                f"a layer of format {self.name!r} must have both g_idx and {PERMUTATION}, or none"
                " of them"
            )
        return Geometry(
            16 * rows,
            n,
            bits,
            group_rows(16 * rows, groups),
            scale_dtype=tensors[self.scales].dtype.name,
            extras=extras,
        )

    def specs(self, geometry: Geometry) -> dict[str, TensorSpec]:
        k, n, bits, groups = geometry.k, geometry.n, geometry.bits, geometry.groups
        marlin.check_problem(k, n, geometry.group)
        codes, zeros = MarlinCodes(), MarlinZeros()
        specs = {
            self.codes: TensorSpec(("int32",), codes.shape(k, n, bits), codes, (k, n)),
            self.scales: TensorSpec(HALF_TYPES if self.kernels_own else ("float16",), (groups, n)),
            "qzeros": TensorSpec(("int32",), zeros.shape(groups, n, bits), zeros, (groups, n)),
            "g_idx": TensorSpec(("int32",), (k,)),
            PERMUTATION: TensorSpec(("int32",), (k,)),
        }
        return {
            name: each
            for name, each in specs.items()
            if name in (self.codes, self.scales, *geometry.extras)
        }

    def outline(self, tensors, geometry, codec=PLAIN) -> Outline:
        # zero points are kept as they are packed, also if all are the middle of the grid
        kind = "integer" if "qzeros" in geometry.extras else None
        return replace(super().outline(tensors, geometry, codec), zeros_kind=kind)

    def decode(self, tensors, geometry, codec) -> PackedWeight:
        if "g_idx" in tensors and not np.array_equal(
            tensors["g_idx"], np.arange(geometry.k) // (geometry.k // geometry.groups)
        ):
            raise FormatError(
                "g_idx must give the groups of stored rows in ascending order,"
                f" {geometry.k // geometry.groups} rows each"
            )
        order, zeros = (
            np.array(tensors[name]) if name in tensors else None for name in (PERMUTATION, "qzeros")
        )
        return PackedWeight(
            "marlin",
            tensors[self.codes],
            np.array(tensors[self.scales]),
            geometry.bits,
            geometry.group,
            geometry.k,
            geometry.n,
            zeros,
            order,
        )

    def takes_packed(self, weight: PackedWeight) -> bool:
        plain = (
            weight.zeros is None and weight.scale_dtype == "float16" and weight.permutation is None
        )
        return (
            weight.n % 64 == 0
            and weight.bits in self.bits
            and weight.zeros_kind != "float16"
            and (plain or self.kernels_own)
        )

    def prepare(self, weight: QuantizedWeight | PackedWeight):
        losses: tuple[str, ...] = ()
        if isinstance(weight, QuantizedWeight):
            weight, losses = changes.with_integer_zeros(
                changes.with_bits(changes.rows_as_they_come(weight), self.bits, self.name)
            )
            if not self.kernels_own:
                if weight.zeros is not None:
                    raise ValueError(
                        f"zero points do not fit in format {self.name!r}, which is symmetric:"
                        " quantise anew, or take vllm-marlin"
                    )
                weight, rounded = changes.with_scales(weight, "float16")
                weight, reordered = changes.with_known_order(weight, PERMUTATION)
                losses += rounded + reordered
        self.specs(Geometry(weight.k, weight.n, weight.bits, weight.group_size))
        return weight, losses

    def encode(self, weight, codec) -> dict[str, np.ndarray]:
        if isinstance(weight, QuantizedWeight):
            marlin.check_packable(weight)
            weight = marlin.MARLIN.wrap(
                codec.pack(MarlinCodes(), weight.codes, weight.bits), weight
            )
        tensors = {self.codes: weight.qweight, self.scales: weight.scales}
        if weight.zeros is not None:
            tensors["qzeros"] = weight.zeros
        if weight.permutation is not None:
            tensors[PERMUTATION] = weight.permutation
            if self.kernels_own:
                tensors["g_idx"] = (np.arange(weight.k) // (weight.k // weight.groups)).astype(
                    np.int32
                )
        return tensors


@dataclass(frozen=True)
class PackQuantized(StoredFormat):
    """compressed-tensors' codes of 4 or 8 bits."""

    def geometry(self, tensors) -> Geometry:
        n, words = matrix("weight_packed", tensors["weight_packed"])
        rows, groups = matrix("weight_scale", tensors["weight_scale"])
        if rows != n:
            raise FormatError(f"weight_scale: {rows} rows must be {n}, those of weight_packed")
        extras = frozenset(tensors) & {"weight_zero_point", "weight_g_idx"}
        shape = getattr(tensors["weight_shape"], "value", tensors["weight_shape"])
        k = int(np.asarray(shape).reshape(-1)[-1])
        if tuple(np.asarray(shape).reshape(-1)) != (n, k):
            raise FormatError(
                f"weight_shape: {np.asarray(shape).tolist()} must be (n, k) with n={n}, the rows of"
                " weight_packed"
            )
        bits = one_of(
            "weight_packed",
            count("weight_packed", 32 * words, k, "32 bits per word over inputs"),
            self.bits,
            "bits of a code are",
        )
        return Geometry(
            k,
            n,
            bits,
            group_rows(k, groups),
            scale_dtype=tensors["weight_scale"].dtype.name,
            extras=extras,
        )

    def specs(self, geometry: Geometry) -> dict[str, TensorSpec]:
        k, n, bits, groups = geometry.k, geometry.n, geometry.bits, geometry.groups
        codes, zeros = Stream("k", "n"), Stream("n", "n")
        specs = {
            "weight_packed": TensorSpec(("int32",), codes.shape(k, n, bits), codes, (k, n)),
            "weight_scale": TensorSpec(("bfloat16", "float16"), (n, groups)),
            "weight_shape": TensorSpec(("int64", "int32"), (2,)),
        }
        if "weight_zero_point" in geometry.extras:
            specs["weight_zero_point"] = TensorSpec(
                ("int32",), zeros.shape(groups, n, bits), zeros, (groups, n)
            )
        if "weight_g_idx" in geometry.extras:
            specs["weight_g_idx"] = TensorSpec(("int32",), (k,))
        return specs

    def zeros(self, tensors, geometry, codec) -> np.ndarray | None:
        if "weight_zero_point" not in geometry.extras:
            return None
        packing, bits = self.specs(geometry)["weight_zero_point"].packing, geometry.bits
        return changes.implicit_zeros(
            codec.unpack(packing, tensors["weight_zero_point"], bits), bits
        )

    def stored(self, tensors, geometry, codec) -> StoredWeight:
        order = None
        # the library writes -1 for "none"
        if "weight_g_idx" in tensors and not (np.asarray(tensors["weight_g_idx"]) == -1).all():
            order = changes.order_of_groups(np.asarray(tensors["weight_g_idx"]), geometry.groups)
        return StoredWeight(
            tensors["weight_packed"],
            self.specs(geometry)["weight_packed"].packing,
            geometry.bits,
            np.ascontiguousarray(np.asarray(tensors["weight_scale"]).T),
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
        self._specs_of(weight)
        return weight, losses

    def _specs_of(self, weight: QuantizedWeight) -> dict[str, TensorSpec]:
        extras = {"weight_zero_point"} if weight.zeros is not None else set()
        return self.specs(
            Geometry(weight.k, weight.n, weight.bits, weight.group_size, extras=frozenset(extras))
        )

    def encode(self, weight, codec) -> dict[str, np.ndarray]:
        specs = self._specs_of(weight)
        tensors = {
            "weight_packed": codec.pack(
                specs["weight_packed"].packing, changes.row_order(weight), weight.bits
            ),
            "weight_scale": np.ascontiguousarray(weight.scales.T),
            "weight_shape": np.array([weight.n, weight.k], np.int64),
        }
        if weight.zeros is not None:
            tensors["weight_zero_point"] = codec.pack(
                specs["weight_zero_point"].packing, weight.zeros, weight.bits
            )
        if weight.permutation is not None:
            tensors["weight_g_idx"] = changes.group_index(weight)
        return tensors


MARLIN_FILE = register_stored(
    MarlinFile(
        "marlin",
        "Marlin",
        "https://github.com/IST-DASLab/marlin, marlin/__init__.py",
        ("B", "s"),
        (PERMUTATION,),
        ("workspace", "g_idx"),
        holds="PackedWeight",
        runs="4 bits",
        test_geometries=(Geometry(32, 64, 4, 16), Geometry(16, 128, 4)),
    )
)
VLLM_MARLIN = register_stored(
    MarlinFile(
        "vllm-marlin",
        "vLLM's Marlin, AutoAWQ's",
        "https://github.com/vllm-project/vllm, quantization/utils/marlin_utils.py",
        ("qweight", "scales"),
        ("qzeros", "g_idx", PERMUTATION),
        ("workspace",),
        SUPPORTED_BITS,
        "PackedWeight",
        "4, 8 bits",
        test_geometries=(
            Geometry(32, 64, 4, 16),
            Geometry(32, 64, 8),
            Geometry(32, 64, 4, extras=frozenset({"qzeros"})),
            Geometry(
                32,
                64,
                8,
                16,
                scale_dtype="bfloat16",
                extras=frozenset({"qzeros", "g_idx", PERMUTATION}),
            ),
        ),
        codes="qweight",
        scales="scales",
    )
)
PACK_QUANTIZED = register_stored(
    PackQuantized(
        "pack-quantized",
        "compressed-tensors pack-quantized",
        "https://github.com/vllm-project/compressed-tensors,"
        " compressors/quantized_compressors/pack_quantized.py",
        ("weight_packed", "weight_scale", "weight_shape"),
        ("weight_zero_point", "weight_g_idx"),
        bits=SUPPORTED_BITS,
        runs="4, 8 bits",
        test_geometries=(
            Geometry(32, 16, 4, 16),
            Geometry(32, 16, 8, scale_dtype="bfloat16"),
            Geometry(64, 32, 4, 32, extras=frozenset({"weight_zero_point"})),
            Geometry(64, 16, 8, 16, extras=frozenset({"weight_zero_point", "weight_g_idx"})),
        ),
    )
)
