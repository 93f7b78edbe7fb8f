"""``QuantizedActivations``: activations in 8 bits with a scale per row (token), or per row and
group of k: the left operand of a product with 4-bit weights at 8-bit rate (W4A8).

    X[r, i] = decode(codes[r, position of i]) * scales[r]            group_size None
    X[r, i] = decode(codes[r, position of i]) * scales[r, i // group_size]

    kind   codes                                         largest
    int8   int8, -127 to 127 (-128 is not used)          127
    fp8    uint8, e4m3 bits (``small_floats``)           448

codes: [m, k], C-contiguous, k permuted within each 16 (``layout.w4a8``: position p of 16 holds k =
``K_ORDER[p]``), so that Marlin's packed words are operands as they lie. k is a multiple of 16, and
of the group size. scales: float32 [m], or [m, k / group_size]; 0 for a row (group) of zeros, NaN
for one that has NaN or infinity, which only a device may make (``quantizers.activations``).

**Offsets**, of fp8 with a scale per row; None of all else. Most kernels subtract zero points from
the codes of the weight, exactly, and need no sums of x (those of few rows, of experts, with zero
points or groups of 32 and 64 leave the offsets alone). An fp8 kernel that takes a 4-bit code c as
the weight at even k and c - 15 at odd k (both are exact) has multiplied by v + 8 and v - 7 where v
= c - 8 is the weight. With E and O the sums of what a row's codes stand for, at even and at odd k
of a group of 128, it must add 7 O - 8 E, here in the unit of that product, 2**-9::

    z[r, g] = 2**-9 (7 O - 8 E)        E, O: of k = 128 g ... 128 g + 127, as far as there are

E and O are exact in float32; z is a float32, rounded once: 2**-9 fma(7, O, -8 E). offsets, of the
16-bit type ``dtype``, C-contiguous, are [m, 1, P] in float16: z rounded, which costs a result a
fortieth of what the rounding of x does; and [m, 2, P] in bfloat16, which has few bits: offsets[r,
0, g] is z rounded, offsets[r, 1, g] the rest, z less that, rounded. To nearest even. P = 64 ceil(k
/ 8192): 64 groups, 128 bytes, are a row of a tensor copy's box (``layout.offsets``). Zeros where
there is no such group. ``offsets_of`` makes them.

The arrays are NumPy's, or arrays of the same shapes and types on a device. The constructor checks
types and shapes (TypeError or ValueError, naming the value and the rule) but reads no elements.
Methods that read elements need them on the host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from numba_marlin.formats.floats import HALF_TYPES, as_numpy, float_type, round_to
from numba_marlin.formats.small_floats import decode
from numba_marlin.layout.offsets import (
    OFFSET_EVEN,
    OFFSET_GROUP,
    OFFSET_ODD,
    OFFSET_UNIT,
    has_offsets,
    offset_shape,
)
from numba_marlin.layout.w4a8 import STEP, permuted, restored
from numba_marlin.wording import byte_count, did_you_mean

KINDS = {"int8": "int8", "fp8": "uint8"}  # kind -> type of its codes
LARGEST = {"int8": 127, "fp8": 448}


def check_kind(kind: object) -> str:
    """ValueError unless ``kind`` is one of KINDS."""
    if not isinstance(kind, str) or kind not in KINDS:
        known = ", ".join(KINDS)
        raise ValueError(f"kind={kind!r} must be one of {known}{did_you_mean(kind, KINDS)}")
    return kind


def check_depth(k: int, group_size: object) -> None:
    """ValueError or TypeError unless rows of k numbers can have groups of this size, None for
    one."""
    if k <= 0 or k % STEP:
        raise ValueError(f"k={k} must be a positive multiple of {STEP}")
    if group_size is None:
        return
    if isinstance(group_size, bool) or not isinstance(group_size, int):
        raise TypeError(f"group_size={group_size!r} must be an int, or None for a scale per row")
    if group_size <= 0 or group_size % STEP or k % group_size:
        raise ValueError(
            f"group_size={group_size} must be a positive multiple of {STEP} that divides k={k}, or"
            " None for a scale per row"
        )


def offsets_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """The offsets of rows whose codes stand for ``values``, float64 [m, k] in the order of k."""
    m, k = values.shape
    groups = -(-k // OFFSET_GROUP)
    whole = np.zeros((m, groups * OFFSET_GROUP))
    whole[:, :k] = values
    pairs = whole.reshape(m, groups, -1, 2).sum(axis=2)
    even, odd = pairs[..., 0] + 0.0, pairs[..., 1] + 0.0  # a sum of -0 is 0
    # exact in float64: a multiple of 2**-18 below 2**10
    z = (OFFSET_UNIT * (OFFSET_ODD * odd + OFFSET_EVEN * even)).astype(np.float32)
    found = np.zeros(offset_shape(m, k, dtype), float_type(dtype))
    for part in range(found.shape[1]):
        found[:, part, :groups] = round_to(z, dtype)
        z = z - found[:, part, :groups].astype(np.float32)
    return found


@dataclass(frozen=True, eq=False, repr=False)
class QuantizedActivations:
    """Activations [m, k] in 8 bits; the module's docstring has the formula and the shapes."""

    #: "int8" or "fp8".
    kind: str
    #: int8 or uint8 [m, k], k permuted within 16; a NumPy array or one on a device.
    codes: Any
    #: float32 [m] or [m, k / group_size], a NumPy array or one on a device.
    scales: Any
    #: Numbers along k that share a scale, None for all of a row.
    group_size: int | None = None
    #: Type of the activations that were quantised, and of products: "float16" or "bfloat16".
    dtype: str = "float16"
    #: Of ``dtype``, [m, parts, P] (``layout.offsets``), of fp8 with a scale per row; else None.
    offsets: Any = None

    def __post_init__(self) -> None:
        check_kind(self.kind)
        if self.dtype not in HALF_TYPES:
            raise ValueError(f"dtype={self.dtype!r} must be one of {', '.join(HALF_TYPES)}")
        shape = tuple(self.codes.shape)
        if len(shape) != 2 or shape[0] == 0:
            raise ValueError(f"codes.shape={shape} must be (m, k) with m of at least 1")
        check_depth(shape[1], self.group_size)
        m, k = shape
        wanted = (m,) if self.group_size is None else (m, k // self.group_size)
        if tuple(self.scales.shape) != wanted:
            raise ValueError(f"scales.shape={tuple(self.scales.shape)} must be {wanted}")
        for name, dtype in (("codes", KINDS[self.kind]), ("scales", "float32")):
            found = str(getattr(self, name).dtype).rpartition(".")[2]  # torch says torch.int8
            if found != dtype:
                raise TypeError(f"{name}.dtype={found} must be {dtype} for kind={self.kind!r}")
        self._check_offsets()

    def _check_offsets(self) -> None:
        has = has_offsets(self.kind, self.group_size)
        if not has and self.offsets is not None:
            raise ValueError(
                f"offsets of shape {tuple(self.offsets.shape)} must be None for kind={self.kind!r}"
                f" with group_size={self.group_size}: only fp8 with a scale per row has some"
            )
        if not has:
            return
        if self.offsets is None:
            raise TypeError(
                "offsets=None must be an array for kind='fp8' with a scale per row, which"
                " QuantizedActivations.of_codes and quantize_activations make"
            )
        shape, wanted = tuple(self.offsets.shape), offset_shape(self.m, self.k, self.dtype)
        if shape != wanted:
            raise ValueError(f"offsets.shape={shape} must be {wanted} for codes {self.shape}")
        found = str(self.offsets.dtype).rpartition(".")[2]
        if found != self.dtype:
            raise TypeError(f"offsets.dtype={found} must be {self.dtype}, x's")

    @classmethod
    def of_codes(
        cls,
        kind: str,
        codes: np.ndarray,
        scales: np.ndarray,
        group_size: int | None = None,
        dtype: str = "float16",
    ) -> QuantizedActivations:
        """From codes [m, k] in the order of k, on the host; makes the offsets, if there are to be
        some."""
        check_depth(codes.shape[1], group_size)
        offsets = None
        if has_offsets(kind, group_size) and dtype in HALF_TYPES:
            offsets = offsets_of(_values(kind, codes), dtype)
        return cls(kind, np.ascontiguousarray(permuted(codes)), scales, group_size, dtype, offsets)

    def rows(self, taken: Any) -> QuantizedActivations:
        """Some rows: ``taken`` is an index of the arrays' first dimension, a slice or integers."""
        offsets = None if self.offsets is None else self.offsets[taken]
        return replace(self, codes=self.codes[taken], scales=self.scales[taken], offsets=offsets)

    @property
    def m(self) -> int:
        return int(self.codes.shape[0])

    @property
    def k(self) -> int:
        return int(self.codes.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        return self.m, self.k

    @property
    def nbytes(self) -> int:
        """Of codes, scales and offsets."""
        groups = 1 if self.group_size is None else self.k // self.group_size
        offsets = 0 if self.offsets is None else 2 * prod(offset_shape(self.m, self.k, self.dtype))
        return self.m * (self.k + 4 * groups) + offsets

    def plain_codes(self) -> np.ndarray:
        """Codes [m, k] in the order of k."""
        return restored(as_numpy("codes", self.codes))

    def values(self) -> np.ndarray:
        """What the codes stand for before they are scaled: float64 [m, k], in the order of k."""
        return _values(self.kind, self.plain_codes())

    def scale_rows(self) -> np.ndarray:
        """float64 [m, k], or [m, 1] with a scale per row."""
        scales = as_numpy("scales", self.scales).astype(np.float64)
        return scales[:, None] if self.group_size is None else scales.repeat(self.group_size, 1)

    def dequantized(self, dtype: Any = None) -> np.ndarray:
        """The numbers [m, k] in the order of k, exact in float64 and rounded once to ``dtype``
        (default: ``self.dtype``)."""
        wanted = float_type(self.dtype if dtype is None else dtype)
        with np.errstate(invalid="ignore"):
            return round_to(self.values() * self.scale_rows(), wanted)

    def sums(self, group_size: int = -1) -> np.ndarray:
        """Sums of what the codes stand for over groups of k (-1: all of k), of every row: int64
        [m, groups] for int8, float64 (exact) for fp8."""
        values = self.values()
        size = self.k if group_size == -1 else group_size
        check_depth(self.k, size)
        found = values.reshape(self.m, -1, size).sum(axis=2)
        return found if self.kind == "fp8" else found.astype(np.int64)

    def __repr__(self) -> str:
        scales = "a scale per row" if self.group_size is None else f"groups of {self.group_size}"
        return (
            f"<QuantizedActivations {self.m} x {self.k} {self.kind}, {scales}, of {self.dtype}:"
            f" {byte_count(self.nbytes)}>"
        )


def _values(kind: str, codes: np.ndarray) -> np.ndarray:
    return (decode(codes, "e4m3") if kind == "fp8" else codes).astype(np.float64)
