"""Formats of checkpoint files: the names, shapes and types of the tensors of a quantised layer, and
the position of every bit of the weight.

A ``StoredFormat`` is an executable specification. ``geometry(tensors)`` derives the layer's
parameters from shapes and types alone, so that the header of a file is enough; ``specs(geometry)``
gives each tensor's type and shape and, for packed codes, its packing, whose closed form ``place``
locates a bit. Reading, writing, checking and the table in the README follow from those.
``check(tensors)`` raises FormatError, naming tensor and rule, for a layer that breaks the
specification; the data themselves are checked when they are read.

    form = files.find_stored("gptq")
    # -> QuantizedWeight, PackedWeight or BlockWeight
    weight = form.read({"qweight": ..., "qzeros": ..., "scales": ..., "g_idx": ...})
    tensors = form.write(weight)  # LossError if that would lose something

``formats.files`` lists all of them. Registering a format gives it the test suite of
tests/formats/test_stored.py and its line in the conformance table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numba_marlin.formats import marlin
from numba_marlin.formats.block_weight import BlockWeight
from numba_marlin.formats.changes import LossError
from numba_marlin.formats.fp4_marlin import MARLIN_FP4, PackedBlocks
from numba_marlin.formats.streams import MarlinCodes, Plain
from numba_marlin.formats.types import (
    READABLE_BITS,
    SUPPORTED_BITS,
    PackedWeight,
    QuantizedWeight,
    check_bits,
    check_group_size,
    check_permutation,
    check_scales,
    summary,
)

PLAIN = Plain()


class FormatError(ValueError):
    """A layer breaks the specification of its format."""


@dataclass(frozen=True)
class Geometry:
    """Parameters of a layer that follow from shapes and types. Fields that a format does not use
    keep their defaults."""

    #: Inputs (k).
    k: int
    #: Outputs (n).
    n: int
    #: Bits of a code.
    bits: int
    #: Rows along k that share a scale; -1: all.
    group: int = -1
    #: Columns that share a scale; -1: all.
    columns: int = 1
    #: Type of the scales.
    scale_dtype: str = "float16"
    #: Names of the optional tensors that are present.
    extras: frozenset[str] = frozenset()

    @property
    def groups(self) -> int:
        return 1 if self.group == -1 else self.k // self.group


@dataclass(frozen=True)
class Outline:
    """What a kernel is chosen by, of a weight that need not be there: the attributes of the packed
    weight (``types.PackedWeight``, ``fp4_marlin.PackedBlocks``) that have these names."""

    k: int
    n: int
    bits: int
    group_size: int
    zeros_kind: str | None
    scale_dtype: str
    grid: str = "integer"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a layer."""

    #: Types that the tensor may have, the usual one first.
    dtypes: tuple[str, ...]
    shape: tuple[int, ...]
    #: How codes are packed in it (``streams``); None for tensors without codes.
    packing: Any = None
    #: Rows and columns of the matrix of codes.
    matrix: tuple[int, int] | None = None
    #: Other shapes that mean the same, as a number may stand alone or in a vector of one.
    also: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """A QuantizedWeight whose codes are still in the words of their file; ``numba_marlin.pack``
    takes it, and on a device reads the words there. The fields that a QuantizedWeight has too mean
    the same; all but the codes is checked when it is made (ValueError)."""

    #: The file's tensor.
    words: np.ndarray
    #: How codes lie in it (``streams``).
    packing: Any
    bits: int
    scales: np.ndarray
    zeros: np.ndarray | None
    group_size: int
    k: int
    n: int
    #: The file's row that each row of the weight is; None: the same.
    rows: np.ndarray | None = None
    permutation: np.ndarray | None = None

    def __post_init__(self) -> None:
        shape = self.packing.shape(self.k, self.n, check_bits(self.bits, READABLE_BITS))
        if (self.words.dtype.name, self.words.shape) != (self.packing.word, shape):
            raise ValueError(
                f"words is {self.words.dtype.name} {self.words.shape}, must be {self.packing.word}"
                f" {shape}"
            )
        object.__setattr__(self, "group_size", check_group_size(self.group_size, self.k))
        check_scales(self.scales, self.groups, self.n)
        if self.zeros is not None and self.zeros.shape != self.scales.shape:
            raise ValueError(
                f"zeros.shape={self.zeros.shape} must be scales.shape={self.scales.shape}"
            )
        if self.zeros is not None and (
            self.zeros.dtype != np.uint8 or int(self.zeros.max()) >= 1 << self.bits
        ):
            raise ValueError(f"zeros must be uint8, below {1 << self.bits} (bits={self.bits})")
        for order in (self.rows, self.permutation):
            check_permutation(order, self.k)

    @property
    def groups(self) -> int:
        return 1 if self.group_size == -1 else self.k // self.group_size

    @property
    def per_column(self) -> bool:
        """Whether there is one scale to a column."""
        return self.groups == 1

    @property
    def zeros_kind(self) -> str | None:
        return None if self.zeros is None else "integer"

    @property
    def scale_dtype(self) -> str:
        return self.scales.dtype.name

    @property
    def nbytes(self) -> int:
        """Bytes of the words, scales and zero points."""
        found = (self.words, self.scales, self.zeros)
        return sum(each.nbytes for each in found if each is not None)

    def __repr__(self) -> str:
        return summary(self)

    def read(self, codec=PLAIN) -> QuantizedWeight:
        """The weight. ValueError for impossible values."""
        codes = codec.unpack(self.packing, self.words, self.bits)
        return QuantizedWeight(
            codes if self.rows is None else codes[self.rows],
            self.scales,
            self.zeros,
            self.bits,
            self.group_size,
            self.permutation,
        )


@dataclass(frozen=True)
class StoredFormat:
    """Base of the formats; each overrides ``geometry``, ``specs``, ``prepare``, ``encode`` and
    ``decode``."""

    #: The name that programs use.
    name: str
    #: The title for people.
    title: str
    #: Where the layout is documented or defined.
    source: str
    #: Tensors that a layer must have.
    keys: tuple[str, ...]
    #: Tensors that it may have.
    optional: tuple[str, ...] = ()
    #: Tensors that other programs write and that carry no information.
    ignored: tuple[str, ...] = ()
    #: Code sizes, in bits, that it can hold.
    bits: tuple[int, ...] = (4,)
    #: The kind of weight: "QuantizedWeight" or "BlockWeight".
    holds: str = "QuantizedWeight"
    #: What the kernels can multiply, for the README's table.
    runs: str = ""
    #: Tensors of bytes that are 8-bit floats -> their type in a safetensors header.
    codes_of: Mapping[str, str] = field(default_factory=dict)
    #: The numbers of its weights as ``nm.quantize`` makes them: "integer", or the ``format`` of
    #: block-scaled floats (``operands.BLOCK_FORMATS``); "" if it makes none for this format.
    numbers: str = "integer"
    #: Layers that tests generate.
    test_geometries: tuple[Geometry, ...] = field(default=(), repr=False)

    # What a format specifies
    def geometry(self, tensors) -> Geometry:
        """Parameters of a layer, from ``tensors``: name -> anything with ``shape`` and
        ``dtype.name``."""
        raise NotImplementedError

    def specs(self, geometry: Geometry) -> dict[str, TensorSpec]:
        """The TensorSpec of each tensor of a layer. ValueError if the format cannot hold this
        geometry."""
        raise NotImplementedError

    def prepare(self, weight) -> tuple[Any, tuple[str, ...]]:
        """(the weight changed so that this format can hold it, the losses); ValueError if the
        format cannot hold it."""
        raise NotImplementedError

    def encode(self, weight, codec) -> dict[str, np.ndarray]:
        """The tensors of a prepared weight."""
        raise NotImplementedError

    def decode(self, tensors: dict[str, np.ndarray], geometry: Geometry, codec):
        """The weight that checked tensors hold."""
        raise NotImplementedError

    def stored(self, tensors, geometry: Geometry, codec) -> StoredWeight | None:
        """The weight that checked tensors hold, its codes not read; None if they do not lie in
        words of their own."""
        return None

    def zeros(self, tensors, geometry: Geometry, codec) -> np.ndarray | None:
        """The zero points [groups, n] that checked tensors hold, a mapping of which only these are
        read; None if the layer is symmetric."""
        return None

    def outline(self, tensors, geometry: Geometry, codec=PLAIN) -> Outline:
        """What the layer is to kernels once it is packed, from its geometry and its zero points
        alone; codes of 2 and 3 bits are widened to 4. ValueError if no layout for kernels holds
        such weights."""
        zeros = self.zeros(tensors, geometry, codec)
        return Outline(
            geometry.k,
            geometry.n,
            max(geometry.bits, min(SUPPORTED_BITS)),
            geometry.group,
            None if zeros is None else "integer",
            geometry.scale_dtype,
        )

    def claims(self, tensors) -> bool:
        """Whether tensors with the names of ``keys`` are of this format, so that whatever breaks
        its specification is an error."""
        return True

    # What follows from that
    def check(self, tensors) -> Geometry:
        """The geometry of a layer. FormatError if a tensor is missing, unknown, or has another type
        or shape than specified."""
        missing = [key for key in self.keys if key not in tensors]
        unknown = sorted(set(tensors) - {*self.keys, *self.optional, *self.ignored})
        if missing or unknown:
            said = [
                f"{what} {', '.join(names)}"
                for what, names in (("has no", missing), ("has unknown", unknown))
                if names
            ]
            raise FormatError(f"a layer of format {self.name!r} {' and '.join(said)}")
        known = {name: tensor for name, tensor in tensors.items() if name not in self.ignored}
        try:
            for name, tensor in known.items():
                if 0 in tensor.shape:
                    raise FormatError(f"{name}: shape {tuple(tensor.shape)} must not be empty")
            geometry = self.geometry(known)
            specs = self.specs(geometry)
        except FormatError:
            raise
        except (ValueError, IndexError, ArithmeticError, TypeError) as error:
            shapes = ", ".join(
                f"{name} {tuple(tensor.shape)}" for name, tensor in sorted(known.items())
            )
            raise FormatError(
                f"shapes {shapes} do not go together in format {self.name!r}: {error}"
            ) from error
        for name, tensor in known.items():
            spec = specs[name]
            if tensor.dtype.name not in spec.dtypes:
                raise FormatError(
                    f"{name}: dtype {tensor.dtype.name} must be {' or '.join(spec.dtypes)}"
                )
            if tuple(tensor.shape) not in (spec.shape, *spec.also):
                raise FormatError(f"{name}: shape {tuple(tensor.shape)} must be {spec.shape}")
        return geometry

    def read(self, tensors: dict[str, np.ndarray], codec=PLAIN):
        """The weight of a layer, from its tensors by their names without the layer's prefix.
        FormatError, or ValueError for impossible values."""
        geometry = self.check(tensors)
        return self.decode(self._read_by_decode(tensors), geometry, codec)

    def read_stored(self, tensors: dict[str, np.ndarray], codec=PLAIN):
        """``read``, but a StoredWeight where the format has them (``stored``)."""
        geometry = self.check(tensors)
        found = self.stored(self._read_by_decode(tensors), geometry, codec)
        return self.read(tensors, codec) if found is None else found

    def _read_by_decode(self, tensors):
        return {name: each for name, each in tensors.items() if name not in self.ignored}

    def takes_packed(self, weight: PackedWeight) -> bool:
        """Whether ``prepare`` accepts this packed weight; otherwise it is unpacked first."""
        return False

    def losses(self, weight, codec=PLAIN) -> tuple[str, ...]:
        """What writing ``weight`` would lose, one sentence per loss; () if the conversion is exact.
        ValueError if it is impossible."""
        return self.prepare(self._accepted(weight, codec))[1]

    def write(self, weight, codec=PLAIN, allow_loss: bool = False) -> dict[str, np.ndarray]:
        """The tensors of one layer. LossError if that loses information and ``allow_loss`` is
        False; ValueError if it is impossible."""
        prepared, losses = self.prepare(self._accepted(weight, codec))
        if losses and not allow_loss:
            raise LossError(self.name, losses)
        return self.encode(prepared, codec)

    def _accepted(self, weight, codec):
        """``weight`` as the kind that ``prepare`` takes."""
        if isinstance(weight, PackedBlocks):
            weight = MARLIN_FP4.unpack(weight)
        if isinstance(weight, PackedWeight) and not self.takes_packed(weight):
            weight = marlin.MARLIN.unwrap(
                codec.unpack(MarlinCodes(), weight.qweight, weight.bits)[:, : weight.n], weight
            )
        if isinstance(weight, BlockWeight) != (self.holds == "BlockWeight"):
            raise ValueError(
                f"a {type(weight).__name__} cannot be converted to format {self.name!r}, which"
                " holds another kind of number: quantise anew"
            )
        return weight


def count(name: str, value: int, divisor: int, rule: str) -> int:
    """value / divisor; FormatError unless it is a positive integer."""
    quotient, rest = divmod(value, divisor) if divisor > 0 else (0, 1)
    if rest or quotient <= 0:
        raise FormatError(f"{name}: {value} must be a multiple of {divisor}: {rule}")
    return quotient


def matrix(name: str, tensor) -> tuple[int, int]:
    """The shape of a tensor of two dimensions."""
    if len(tensor.shape) != 2:
        raise FormatError(f"{name}: shape {tuple(tensor.shape)} must have 2 dimensions")
    rows, columns = tensor.shape
    return int(rows), int(columns)


def one_of(name: str, value: int, allowed: tuple[int, ...], what: str) -> int:
    if value not in allowed:
        raise FormatError(f"{name}: {what} {value}, must be one of {allowed}")
    return value


def group_rows(k: int, groups: int) -> int:
    """Rows per group, -1 for a single group."""
    return (
        -1
        if groups == 1
        else count("scales", k, groups, "rows of the weight over groups of scales")
    )


STORED: dict[str, StoredFormat] = {}


def register_stored(form: StoredFormat) -> StoredFormat:
    """Register a format under its name; ValueError if the name is taken."""
    if form.name in STORED:
        raise ValueError(f"format {form.name!r} is registered already")
    STORED[form.name] = form
    return form
