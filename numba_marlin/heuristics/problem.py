"""``Problem``: the product to run, sizes and types, checked. Pure numbers."""

from __future__ import annotations

import numbers
from dataclasses import dataclass

from numba_marlin.formats import fp4_marlin
from numba_marlin.formats.floats import HALF_TYPES
from numba_marlin.formats.marlin import check_problem, packed_columns
from numba_marlin.formats.types import ZEROS_KINDS, check_bits, check_group_size

LARGEST_DIMENSION = 2**31 - 1  # kernels take m, n and k as int32


@dataclass(frozen=True)
class Problem:
    """``C[m, n] = A[m, k] @ W[k, n]`` with one scale per ``group_size`` rows of a column (-1: one
    per column).

    dtype: of activations, result and bias. bits: of a code. zeros: the kind of zero points, None
    for symmetric weights. bias: whether one row of n numbers is added. codes: "integer", or "e2m1"
    for block-scaled FP4, whose group_size is 16 or 32, its blocks, and whose scale_dtype is "e5m3"
    (``formats.fp4_marlin``). batch_invariant: whether a row of C must have the same bits whatever m
    is (``invariance``).
    """

    m: int
    n: int
    k: int
    group_size: int = 128
    dtype: str = "float16"
    bits: int = 4
    zeros: str | None = None
    scale_dtype: str = "float16"
    bias: bool = False
    batch_invariant: bool = False
    codes: str = "integer"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise TypeError(f"{name}={value!r} must be an int")
            object.__setattr__(self, name, int(value))  # NumPy's too
            if not 0 < value <= LARGEST_DIMENSION:
                raise ValueError(f"{name}={value} must be positive and fit in 32 bits")
        if self.codes == "integer":
            object.__setattr__(self, "group_size", check_group_size(self.group_size, self.k))
            allowed = {"dtype": HALF_TYPES, "scale_dtype": HALF_TYPES, "zeros": ZEROS_KINDS}
        else:
            if self.scale_dtype == "float16":  # the default
                object.__setattr__(self, "scale_dtype", "e5m3")
            allowed = {
                "codes": ("integer", "e2m1"),
                "dtype": HALF_TYPES,
                "scale_dtype": ("e5m3",),
                "zeros": (None,),
                "bits": (4,),
                "group_size": fp4_marlin.GROUP_SIZES,
            }
        check_problem(self.k, self.n, self.group_size)
        check_bits(self.bits)
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} must be one of {values}"
                    + (f" for codes={self.codes!r}" if self.codes != "integer" else "")
                )

    @property
    def groups(self) -> int:
        return 1 if self.group_size == -1 else -(-self.k // self.group_size)

    @property
    def least_bytes(self) -> int:
        """Bytes of the problem when each is moved once: 16-bit A, W with scales and zero points as
        it is packed, bias, 16-bit C."""
        m, n, k, columns = self.m, self.n, self.k, packed_columns(self.n)
        if self.codes == "integer":
            zeros = {None: 0, "integer": self.bits, "float16": 16}[self.zeros]
            scales = self.groups * columns * (16 + zeros) // 8
        else:
            rows = -(-k // fp4_marlin.SCALE_ROWS)
            scales = (
                columns // 64 * rows * fp4_marlin.scale_row_bytes(self.group_size) + 4 * columns
            )
        weight = columns * k * self.bits // 8 + scales
        return 2 * m * k + weight + 2 * n * self.bias + 2 * m * n

    @property
    def has_zeros(self) -> bool:
        return self.zeros is not None

    @classmethod
    def of(
        cls,
        m: int,
        weight,
        dtype: str = "float16",
        bias: bool = False,
        batch_invariant: bool = False,
    ) -> Problem:
        """The problem of m rows of ``dtype`` times ``weight``, a QuantizedWeight, a PackedWeight or
        a PackedBlocks."""
        return cls(
            m,
            weight.n,
            weight.k,
            weight.group_size,
            dtype,
            weight.bits,
            weight.zeros_kind,
            weight.scale_dtype,
            bias,
            batch_invariant,
            getattr(weight, "grid", "integer"),
        )
