"""``PackedExperts``: the weights of a mixture's experts, of one shape and format, in one buffer.

Each array of a packed weight becomes one with a leading dimension, the expert's number, so that a
kernel finds expert e at e times the bytes of one. ``experts[e]`` is the packed weight of expert e
again, a view.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from numba_marlin.formats import residence, surgery
from numba_marlin.formats.fp4_marlin import PackedBlocks
from numba_marlin.formats.types import PackedWeight
from numba_marlin.wording import byte_count

# what may differ from one expert to the next: it is in ``factors``, or only a file wants it back
_OWN = ("global_scale", "input_scale")


def side_by_side(columns: int) -> np.ndarray:
    """The order of columns in turns, gate's and up's, that puts gate's before up's."""
    return np.arange(columns).reshape(-1, 2).T.ravel()


def in_turns(columns: int) -> np.ndarray:
    """The inverse of ``side_by_side``."""
    return np.arange(columns).reshape(2, -1).T.ravel()


@dataclass(frozen=True, eq=False)
class PackedExperts:
    """E packed weights [k, n] in one buffer; make them with ``PackedExperts.of(weights)``."""

    #: {field of a packed weight: [E, ...]}, on the host or a device.
    arrays: dict[str, Any]
    #: PackedWeight or PackedBlocks.
    kind: type
    #: Of each expert, {field: value} of all fields that are no arrays.
    facts: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, weights: Iterable[PackedWeight | PackedBlocks]) -> PackedExperts:
        """Copies packed weights of one kind, shape, group size and types into one buffer, on the
        host. TypeError or ValueError names the expert that differs, and in what; also for an
        activation order, which would permute the columns of x differently for each expert."""
        if isinstance(weights, (PackedWeight, PackedBlocks)) or not isinstance(weights, Iterable):
            raise TypeError(
                f"weights is a {type(weights).__name__}, must be a list of packed weights, one for"
                " each expert"
            )
        held = tuple(weights)
        if not held:
            raise ValueError("weights must not be empty")
        for number, each in enumerate(held):
            if not isinstance(each, (PackedWeight, PackedBlocks)):
                raise TypeError(
                    f"weights[{number}] is a {type(each).__name__}, must be packed: pass"
                    " nm.pack(it)"
                )
            if each.permutation is not None:
                raise ValueError(
                    f"weights[{number}] has an activation order (permutation), which experts in"
                    " one buffer cannot have: quantise without it"
                )
        _check_alike(held)
        held = tuple(each.to(residence.HOST) for each in held)
        arrays = {
            name: np.stack([getattr(each, name) for each in held])
            for name in residence.arrays_of(held[0])
        }
        return cls(arrays, type(held[0]), tuple(_facts(each) for each in held))

    def __len__(self) -> int:
        return len(self.facts)

    def __getitem__(self, expert: int) -> PackedWeight | PackedBlocks:
        """The packed weight of an expert: a view (of this package's own device arrays a copy on the
        host)."""
        number = range(len(self))[expert]  # IndexError, and numbers from the end
        arrays = {
            name: (array if hasattr(array, "__getitem__") else residence.on_host(array))[number]
            for name, array in self.arrays.items()
        }
        return self.kind(**self.facts[number], **arrays)

    def __iter__(self):
        return (self[expert] for expert in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        # k, n, bits, group_size, layout, dtype ...: what all experts share
        facts = self.__dict__.get("facts", ())
        if facts and name in facts[0] and name not in _OWN:
            return facts[0][name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(E, k, n)"""
        return len(self), self.k, self.n

    @property
    def n_packed(self) -> int:
        """Columns in memory: ``n`` padded to a multiple of 64."""
        return self.arrays["factors" if self.kind is PackedBlocks else "scales"].shape[-1]

    @property
    def zeros_kind(self) -> str | None:
        """One of ``formats.types.ZEROS_KINDS``."""
        zeros = self.arrays.get("zeros")
        if zeros is None:
            return None
        return "float16" if residence.type_name(zeros) == "float16" else "integer"

    @property
    def scale_dtype(self) -> str:
        """ "float16", "bfloat16", or "e5m3" (FP4)."""
        scales = self.arrays["scales"]
        return "e5m3" if self.kind is PackedBlocks else residence.type_name(scales)

    @property
    def nbytes(self) -> int:
        """Bytes of all experts."""
        return sum(map(residence.byte_size, self.arrays.values()))

    @property
    def place(self) -> str:
        """Where the buffer is: "cpu" or "cuda:N"."""
        return residence.place_of(self.arrays["qweight"])

    def to(self, place: object, library: str | None = None) -> PackedExperts:
        """The same experts at ``place``; themselves if they are there. As ``PackedWeight.to``."""
        arrays = residence.moved(self.arrays, place, library)
        return self if arrays is self.arrays else PackedExperts(arrays, self.kind, self.facts)

    def taken(self, first: int, count: int) -> PackedExperts:
        """Experts first .. first + count - 1, in a buffer of their own."""
        if first < 0 or count < 1 or first + count > len(self):
            raise ValueError(
                f"experts {first} to {first + count - 1} must be among 0 to {len(self) - 1}"
            )
        these = slice(first, first + count)
        host = self.to(residence.HOST)
        arrays = {name: array[these].copy() for name, array in host.arrays.items()}
        return PackedExperts(arrays, self.kind, self.facts[these])

    def cut(self, rows: range, columns: range) -> PackedExperts:
        """These rows and columns of every expert (``formats.surgery.cut``)."""
        return PackedExperts.of([surgery.cut(each, rows, columns) for each in self.to("cpu")])

    def __repr__(self) -> str:
        one = repr(self.to(residence.HOST)[0]).removeprefix("<").rpartition(";")[0]
        place = "the host" if self.place == residence.HOST else self.place
        return f"<PackedExperts of {len(self)}, each {one}; {byte_count(self.nbytes)} on {place}>"


def _facts(weight: PackedWeight | PackedBlocks) -> dict[str, Any]:
    return {
        each.name: getattr(weight, each.name)
        for each in fields(weight)
        if each.name not in residence.ARRAYS
    }


def _check_alike(weights: tuple) -> None:
    first = weights[0]
    for number, each in enumerate(weights):
        if type(each) is not type(first):
            raise TypeError(
                f"weights[{number}] is a {type(each).__name__}, must be a {type(first).__name__},"
                " as weights[0]"
            )
        differ = {**_facts(each), "scale_dtype": each.scale_dtype, "zeros_kind": each.zeros_kind}
        for name, value in differ.items():
            if name not in _OWN and value != getattr(first, name):
                raise ValueError(
                    f"weights[{number}].{name}={value!r} must be {getattr(first, name)!r}, as of"
                    " weights[0]"
                )
