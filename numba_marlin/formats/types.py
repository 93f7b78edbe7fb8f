"""The two forms of a quantised weight: plain (``QuantizedWeight``) and packed for a kernel
(``PackedWeight``).

Both are frozen and checked on construction: a wrong type is a TypeError, a wrong value a
ValueError, and the message names the value and the rule. NumPy arrays are copied unless they are
C-contiguous and aligned; do not write to them afterwards. A packed weight may hold arrays of other
libraries instead, on any device (``residence``): these must be contiguous, are never copied, and
their values are not looked at.

A weight ``W[k, n]`` multiplies activations from the right: ``C[m, n] = A[m, k] @ W[k, n]``. Its
rows are cut into groups of ``group_size`` along k; each group of each column has one scale, float16
or bfloat16 (an ml_dtypes array): ``W[i, j] = (codes[i, j] - zero) * scales[i // group_size, j]``,
with codes of 4 or 8 bits. The zero point is the middle of the grid, 8 or 128 (symmetric), or
``zeros[group, j]``: on the grid, as integers, or anywhere, as float16. ``ZEROS_KINDS``
names the kinds: None, "integer", "float16". A QuantizedWeight may also have codes of 2 or 3 bits:
such weights are read and dequantised, and ``widen`` puts them, exactly, on a grid of 4 or 8 bits,
which is what kernels multiply.

``permutation``, int32 [k], belongs to weights whose groups are not made of neighbouring rows
(GPTQ's activation order, ``g_idx``): their rows are stored sorted by group, row i being row
``permutation[i]`` of the weight, so ``C = A[:, permutation] @ stored``. None: as they come.

One group over all of k ("a scale per column") is spelled ``group_size=-1``. A group size of k or
more is accepted and becomes -1, so that there is one spelling: the Marlin layout orders per-column
scales differently from group scales, and decides by the number of groups.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numba_marlin.formats import residence
from numba_marlin.formats.floats import HALF_TYPES
from numba_marlin.formats.registry import find_format
from numba_marlin.wording import byte_count

SUPPORTED_BITS = (4, 8)
READABLE_BITS = (2, 3, 4, 8)
ZEROS_KINDS = (None, "integer", "float16")


def check_bits(bits: int, allowed: tuple[int, ...] = SUPPORTED_BITS) -> int:
    if isinstance(bits, bool) or bits not in allowed:
        raise ValueError(f"bits={bits} must be one of {allowed}")
    return int(bits)


def check_permutation(permutation: Any, k: int) -> Any:
    """None, or int32 [k] with every row once. TypeError or ValueError for anything else. Of an
    array of another library on a device only type and shape are looked at."""
    if permutation is None:
        return None
    if residence.is_array(permutation) and not isinstance(permutation, np.ndarray):
        if residence.type_name(permutation) != "int32" or tuple(permutation.shape) != (k,):
            raise ValueError(
                f"permutation is {residence.type_name(permutation)} {tuple(permutation.shape)},"
                f" must be int32 (k,)=({k},)"
            )
        return permutation
    if not isinstance(permutation, np.ndarray) or permutation.dtype.name != "int32":
        kind = (
            permutation.dtype if isinstance(permutation, np.ndarray) else type(permutation).__name__
        )
        raise TypeError(f"permutation is {kind}, must be a numpy.ndarray of int32")
    if permutation.shape != (k,):
        raise ValueError(f"permutation.shape={permutation.shape} must be (k,)=({k},)")
    if not np.array_equal(np.sort(permutation), np.arange(k)):
        raise ValueError(f"permutation must hold every row number from 0 to {k - 1} once")
    return np.require(permutation, dtype=np.int32, requirements=["C_CONTIGUOUS", "ALIGNED"])


def check_group_size(group_size: int, k: int) -> int:
    """The one spelling of a group size for ``k`` rows: -1 for a single group. ValueError if it
    neither divides k nor reaches over all of it."""
    if isinstance(group_size, bool) or not isinstance(group_size, (int, np.integer)):
        raise TypeError(f"group_size={group_size!r} must be an integer")
    if group_size == -1 or group_size >= k:
        return -1
    if group_size <= 0:
        raise ValueError(
            f"group_size={group_size} must be positive, or -1 for one group over all of k"
        )
    if k % group_size:
        raise ValueError(f"group_size={group_size} must divide k={k}")
    return int(group_size)


def _array(name: str, value: Any, *dtypes: str, anywhere: bool = False) -> Any:
    """``value`` as a C-contiguous, aligned matrix in native byte order: itself if it is one, else a
    copy. dtypes: names, any of them; anywhere: whether it may be an array of another library, which
    must be contiguous."""
    if not isinstance(value, np.ndarray) and not (anywhere and residence.is_array(value)):
        raise TypeError(
            f"{name} is a {type(value).__name__}, must be a numpy.ndarray of {' or '.join(dtypes)}"
        )
    if getattr(value.dtype, "name", residence.type_name(value)) not in dtypes:
        raise TypeError(f"{name}.dtype={value.dtype} must be {' or '.join(dtypes)}")
    if len(value.shape) != 2:
        raise ValueError(f"{name}.shape={tuple(value.shape)} must have 2 dimensions")
    if 0 in value.shape:
        raise ValueError(f"{name}.shape={tuple(value.shape)} must not be empty")
    if not isinstance(value, np.ndarray):
        if not residence.contiguous(value):
            raise ValueError(f"{name} is a {type(value).__name__} that must be contiguous")
        return value
    native = value.dtype if value.dtype.isnative else value.dtype.newbyteorder("=")
    return np.require(value, dtype=native, requirements=["C_CONTIGUOUS", "ALIGNED"])


def _check_finite(name: str, values: Any) -> None:
    """Of NumPy arrays; others are not looked at, which could wait for a device."""
    if not isinstance(values, np.ndarray):
        return
    finite = np.isfinite(values)
    if not finite.all():
        group, column = np.argwhere(~finite)[0]
        raise ValueError(f"{name}[{group}, {column}]={values[group, column]} must be finite")


def check_scales(scales: np.ndarray, groups: int, n: int) -> None:
    if scales.shape != (groups, n):
        raise ValueError(f"scales.shape={scales.shape} must be (groups, n)=({groups}, {n})")
    _check_finite("scales", scales)


def _kind_of_zeros(zeros: Any) -> str | None:
    if zeros is None:
        return None
    return "float16" if residence.type_name(zeros) == "float16" else "integer"


def summary(weight: Any, *more: str) -> str:
    """One line for a REPL: shape, types, bytes, where it lives."""
    said = [
        *more,
        f"{weight.bits} bits",
        "a scale per column" if weight.per_column else f"groups of {weight.group_size} rows",
        "symmetric" if weight.zeros_kind is None else f"zero points {weight.zeros_kind}",
        f"scales {weight.scale_dtype}",
        *(["activation order"] if weight.permutation is not None else []),
    ]
    return (
        f"<{type(weight).__name__} [k={weight.k}, n={weight.n}], {', '.join(said)};"
        f" {byte_count(weight.nbytes)} on {where(weight)}>"
    )


def where(weight: Any) -> str:
    """Where a weight's arrays live, for a reader."""
    place = getattr(weight, "place", residence.HOST)
    return "the host" if place == residence.HOST else place


def _set(instance: object, **values: object) -> None:
    """Normalise fields of a frozen dataclass while it is being made."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """An unpacked quantised weight [k, n]: W = (codes - zeros) * scales, per group.

    Fields are checked on construction: TypeError or ValueError, naming the value and the rule.
    """

    #: Codes, uint8 [k, n], 0 .. 2**bits - 1.
    codes: np.ndarray
    #: Scales, float16 or bfloat16 [groups, n], finite.
    scales: np.ndarray
    #: Zero points: None (symmetric, ``2**(bits - 1)``), or [groups, n] of uint8, 0 .. 2**bits - 1,
    #: or of float16, finite.
    zeros: np.ndarray | None = None
    #: Bits of a code: 2, 3, 4 or 8.
    bits: int = 4
    #: Rows along k that share a scale; -1: all of them.
    group_size: int = -1
    #: Activation order: None, or int32 [k], the row of the weight that each stored row holds.
    permutation: np.ndarray | None = None

    def __post_init__(self) -> None:
        bits = check_bits(self.bits, READABLE_BITS)
        codes = _array("codes", self.codes, "uint8")
        scales = _array("scales", self.scales, *HALF_TYPES)
        zeros = None if self.zeros is None else _array("zeros", self.zeros, "uint8", "float16")
        k, n = codes.shape
        _set(
            self,
            codes=codes,
            scales=scales,
            zeros=zeros,
            bits=bits,
            group_size=check_group_size(self.group_size, k),
        )
        _set(self, permutation=check_permutation(self.permutation, k))
        check_scales(scales, self.groups, n)
        if zeros is not None and zeros.shape != scales.shape:
            raise ValueError(f"zeros.shape={zeros.shape} must be scales.shape={scales.shape}")
        if zeros is not None and zeros.dtype.kind == "f":
            _check_finite("zeros", zeros)
        for name, array in (("codes", codes), ("zeros", zeros)):
            if array is not None and array.dtype == np.uint8 and int(array.max()) >= 1 << bits:
                row, column = np.unravel_index(int(np.argmax(array >= 1 << bits)), array.shape)
                raise ValueError(
                    f"{name}[{row}, {column}]={array[row, column]} must be below {1 << bits}"
                    f" (bits={bits})"
                )

    @property
    def k(self) -> int:
        return self.codes.shape[0]

    @property
    def n(self) -> int:
        return self.codes.shape[1]

    @property
    def groups(self) -> int:
        return 1 if self.group_size == -1 else self.k // self.group_size

    @property
    def rows_per_group(self) -> int:
        """``group_size``, with k in place of -1."""
        return self.k // self.groups

    @property
    def per_column(self) -> bool:
        """Whether there is one scale to a column."""
        return self.groups == 1

    @property
    def symmetric(self) -> bool:
        return self.zeros is None

    @property
    def shape(self) -> tuple[int, int]:
        """(k, n)"""
        return self.k, self.n

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays; a code takes one."""
        arrays = (self.codes, self.scales, self.zeros, self.permutation)
        return sum(each.nbytes for each in arrays if each is not None)

    def __repr__(self) -> str:
        return summary(self)

    @property
    def zeros_kind(self) -> str | None:
        """One of ZEROS_KINDS."""
        return _kind_of_zeros(self.zeros)

    @property
    def scale_dtype(self) -> str:
        """One of HALF_TYPES."""
        return self.scales.dtype.name


@dataclass(frozen=True, eq=False)
class PackedWeight(residence.Residence):
    """A quantised weight in the byte order that kernels read. Shapes are those of layout "marlin",
    which pads columns to ``n_packed``, a multiple of 64. The layout checks the shapes and group
    sizes on construction (``formats.find_format(layout).check``): TypeError or ValueError.
    """

    #: Name of a registered layout.
    layout: str
    #: Packed codes, int32 [k/16, n_packed * bits/2].
    qweight: np.ndarray
    #: Scales, float16 or bfloat16 [groups, n_packed], in the kernel's order.
    scales: np.ndarray
    #: Bits of a code: 4 or 8.
    bits: int
    #: Rows along k that share a scale; -1: all of them.
    group_size: int
    #: Rows of the weight.
    k: int
    #: Columns of the weight, without padding.
    n: int
    #: Zero points: None, packed codes (int32 [groups, n_packed * bits/32]), or float16
    #: [groups, n_packed].
    zeros: np.ndarray | None = None
    #: Activation order, as in QuantizedWeight.
    permutation: np.ndarray | None = None

    def __post_init__(self) -> None:
        bits = check_bits(self.bits)
        for name, value in (("k", self.k), ("n", self.n)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value <= 0:
                raise ValueError(f"{name}={value!r} must be a positive integer")
        qweight = _array("qweight", self.qweight, "int32", anywhere=True)
        scales = _array("scales", self.scales, *HALF_TYPES, anywhere=True)
        zeros = self.zeros
        if zeros is not None:
            zeros = _array("zeros", zeros, "int32", "float16", anywhere=True)
        group_size = check_group_size(self.group_size, int(self.k))
        _set(
            self,
            qweight=qweight,
            scales=scales,
            zeros=zeros,
            bits=bits,
            group_size=group_size,
            k=int(self.k),
            n=int(self.n),
        )
        _set(self, permutation=check_permutation(self.permutation, int(self.k)))
        find_format(self.layout).check(self)
        residence.place_of_weight(self)
        _check_finite("scales", scales)
        if self.zeros_kind == "float16":
            _check_finite("zeros", zeros)

    @property
    def groups(self) -> int:
        return 1 if self.group_size == -1 else self.k // self.group_size

    @property
    def per_column(self) -> bool:
        """Whether there is one scale to a column."""
        return self.groups == 1

    @property
    def shape(self) -> tuple[int, int]:
        """(k, n)"""
        return self.k, self.n

    def __repr__(self) -> str:
        return summary(self, f"layout {self.layout}")

    @property
    def n_packed(self) -> int:
        """Columns in memory: ``n`` padded to a multiple of 64."""
        return self.scales.shape[1]

    @property
    def zeros_kind(self) -> str | None:
        """One of ZEROS_KINDS."""
        return _kind_of_zeros(self.zeros)

    @property
    def scale_dtype(self) -> str:
        """One of HALF_TYPES."""
        return residence.type_name(self.scales)

    @functools.cached_property
    def sorted_rows(self) -> PackedWeight:
        """The same bytes without the permutation, for activations whose columns are already
        permuted."""
        return self if self.permutation is None else replace(self, permutation=None)

    @property
    def nbytes(self) -> int:
        """Bytes that a kernel reads to read the weight once: codes, scales and zero points."""
        read = (self.qweight, self.scales, self.zeros)
        return sum(residence.byte_size(each) for each in read if each is not None)
