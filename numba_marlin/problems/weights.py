"""``WeightProblem``: the checked sizes and types of activations times a quantised weight.

    C[m, n] = A[m, k] @ W[k, n] + bias[n]

A and C are float16 or bfloat16; W is stored in integer codes or block-scaled FP4, packed in
Marlin's order. TypeError or ValueError, naming the value and the rule, for impossible sizes and
types.
"""

from __future__ import annotations

import numbers
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from numba_marlin.formats import fp4_marlin
from numba_marlin.formats.floats import HALF_TYPES
from numba_marlin.formats.marlin import check_problem, packed_columns
from numba_marlin.formats.types import ZEROS_KINDS, check_bits, check_group_size
from numba_marlin.problems.protocol import WEIGHTS

LARGEST_DIMENSION = 2**31 - 1  # kernels take m, n and k as int32


@dataclass(frozen=True)
class WeightProblem:
    """``C[m, n] = A[m, k] @ W[k, n] + bias[n]`` with one scale per ``group_size`` rows of a column
    of W."""

    kind: ClassVar[str] = WEIGHTS

    m: int
    n: int
    k: int
    #: Rows of W that share a scale, -1 for one scale per column; FP4: the block, 16 or 32.
    group_size: int = 128
    #: Type of activations, result and bias: "float16" or "bfloat16".
    dtype: str = "float16"
    #: Bits of a code: 4 or 8.
    bits: int = 4
    #: The kind of zero points (``formats.types.ZEROS_KINDS``), None for symmetric weights.
    zeros: str | None = None
    #: Type of the scales: "float16" or "bfloat16"; FP4: "e5m3" (``formats.fp4_marlin``).
    scale_dtype: str = "float16"
    #: Whether a bias [n] is added to every row.
    bias: bool = False
    #: Whether a row of C must have the same bits whatever m is (``heuristics.invariance``).
    batch_invariant: bool = False
    #: Kind of the codes: "integer", or "e2m1" for block-scaled FP4.
    codes: str = "integer"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise TypeError(f"{name}={value!r} must be an int")
            object.__setattr__(self, name, int(value))  # NumPy integers too
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
    def weights(self) -> int:
        return self.k * self.n

    @property
    def peer_dtype(self) -> str:
        return self.dtype

    @property
    def bytes_of(self) -> dict[str, int]:
        codes, y = self.k * self.n * self.bits // 8, 2 * self.m * self.n
        x = self.activation_bytes
        return {
            "weights": codes,
            "scales and zero points": self.least_bytes - codes - x - y,
            "activations": x,
            "result": y,
        }

    @property
    def activation_bytes(self) -> int:
        return 2 * self.m * self.k

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def least_bytes(self) -> int:
        """Bytes moved if each byte moves once: A, packed W with scales and zero points, bias,
        16-bit C."""
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
        return self.activation_bytes + weight + 2 * n * self.bias + 2 * m * n

    @property
    def has_zeros(self) -> bool:
        return self.zeros is not None

    @property
    def operand_names(self) -> tuple[str, ...]:
        optional = (
            ("zeros", self.has_zeros),
            ("factors", self.codes != "integer"),
            ("bias", self.bias),
        )
        return ("a", "b", "scales", *(name for name, there in optional if there))

    @property
    def result_shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return {"c": ((self.m, self.n), self.dtype)}

    @property
    def launch_shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return self.result_shapes

    @property
    def zero_before(self) -> tuple[str, ...]:
        return ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def in_words(self) -> str:
        fp4 = self.codes != "integer"
        groups = (
            "one scale per column"
            if self.group_size == -1
            else f"{'blocks' if fp4 else 'groups'} of {self.group_size}"
        )
        groups += "".join(
            f", {text}"
            for text, there in (
                (f"zero points ({self.zeros})", self.has_zeros),
                ("a bias", self.bias),
            )
            if there
        )
        if self.dtype != "float16" or not (fp4 or self.scale_dtype == "float16"):
            groups += f"; {self.dtype}" + ("" if fp4 else f", scales {self.scale_dtype}")
        if self.batch_invariant:
            groups += "; the same bits for a row whatever m is"
        return (
            f"y[{self.m}, {self.n}] = x[{self.m}, {self.k}] @ W[{self.k}, {self.n}],"
            f" {'FP4' if fp4 else f'{self.bits}-bit'} weights, {groups}"
        )

    @classmethod
    def of(
        cls,
        m: int,
        weight,
        dtype: str = "float16",
        bias: bool = False,
        batch_invariant: bool = False,
    ) -> WeightProblem:
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
