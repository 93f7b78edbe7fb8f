"""``BlockProblem``: the checked sizes and types of a product of two block-scaled matrices.

    D = activation(alpha * A @ B^T + beta * C + bias)

A [m, k] and B [n, k] are ``formats.operands.BlockScaled`` of one format; D [m, n], or [m, n/2] with
a gate, is an array or block-scaled itself. alpha and beta belong to a launch, not to
the problem. ValueError, naming the value and the rule, for impossible sizes and types.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from numba_marlin.formats.operands import BLOCK_FORMATS, find_block_format
from numba_marlin.problems.protocol import OPERANDS
from numba_marlin.problems.weights import LARGEST_DIMENSION

K_STEP, N_STEP = 32, 8  # k and n must be multiples of these
GATE = "gated_silu"
ROUNDINGS = ("floor", "ceil")
FLOAT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class BlockProblem:
    """``D = activation(A @ B^T + C + bias)`` of block-scaled matrices A [m, k] and B [n, k]."""

    kind: ClassVar[str] = OPERANDS
    batch_invariant: ClassVar[bool] = False
    #: the padding of a block-scaled result's scales
    zero_before: ClassVar[tuple[str, ...]] = ("sfd",)

    m: int
    n: int
    k: int
    #: Format of A and B, one of ``formats.operands.BLOCK_FORMATS``.
    format: str = "nvfp4"
    #: Type of D: "float16", "bfloat16", "float32", or one of BLOCK_FORMATS.
    result: str = "float16"
    #: Whether C is added.
    source: bool = False
    #: Whether a float32 bias [n] is added to every row.
    bias: bool = False
    #: One of ``reference.operands.ACTIVATIONS``; "gated_silu" halves the columns of D.
    activation: str | None = None
    #: Rounding of the scales of MX results: "floor" or "ceil". "floor" for every other result.
    rounding: str = "floor"
    #: Type of C, one of FLOAT_BYTES. None: that of D, float16 or bfloat16.
    c_dtype: str | None = None

    def __post_init__(self) -> None:
        find_block_format(self.format)
        if self.c_dtype is not None:
            if not self.source or self.c_dtype not in FLOAT_BYTES:
                raise ValueError(
                    f"c_dtype={self.c_dtype!r} must be one of {', '.join(FLOAT_BYTES)}, with"
                    " source=True"
                )
            if self.c_dtype == self.result != "float32":  # a kernel for both ways to say so
                object.__setattr__(self, "c_dtype", None)
        for name, value, allowed in (
            ("result", self.result, (*FLOAT_BYTES, *BLOCK_FORMATS)),
            ("rounding", self.rounding, ROUNDINGS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} must be one of {', '.join(allowed)}")
        if not self.result_has_powers:  # all results without such scales share a kernel
            object.__setattr__(self, "rounding", "floor")
        for name in ("m", "n", "k"):
            if not 0 < getattr(self, name) <= LARGEST_DIMENSION:
                raise ValueError(
                    f"{name}={getattr(self, name)} must be positive and fit in 32 bits"
                )
        step = column_step(self.result, self.activation)
        if self.k % K_STEP:
            raise ValueError(
                f"k={self.k} must be a multiple of {K_STEP} for block-scaled operands:"
                f" {nearest(self.k, K_STEP)}"
            )
        if self.n % step:
            why = (
                f" for result={self.result!r}{' and a gate' if self.gated else ''}"
                if step > N_STEP
                else " for block-scaled operands"
            )
            raise ValueError(
                f"n={self.n} must be a multiple of {step}{why}: {nearest(self.n, step)}"
            )

    @classmethod
    def of(cls, config, m: int, n: int, k: int) -> BlockProblem:
        """The problem that a kernel's configuration is made for, from the fields that both have."""
        return cls.with_fields(m, n, k, asdict(config))

    @classmethod
    def with_fields(cls, m: int, n: int, k: int, changes: dict[str, Any]) -> BlockProblem:
        """The problem of these sizes with those of ``changes`` that are fields of it."""
        known = {each.name for each in fields(cls)[3:]}
        return cls(m, n, k, **{name: value for name, value in changes.items() if name in known})

    @property
    def epilogue(self) -> dict[str, Any]:
        """The fields that describe the epilogue, by name: all but the sizes and ``format``."""
        return {each.name: getattr(self, each.name) for each in fields(self)[4:]}

    @property
    def gated(self) -> bool:
        return self.activation == GATE

    @property
    def result_has_powers(self) -> bool:
        """Whether D has scales that are powers of two, which are rounded down or up."""
        return self.result in BLOCK_FORMATS and BLOCK_FORMATS[self.result].scale_grid == "e8m0"

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return BLOCK_FORMATS[self.format].bits

    @property
    def group_size(self) -> int:
        """Elements along k that share a scale."""
        return BLOCK_FORMATS[self.format].block

    @property
    def columns(self) -> int:
        """Columns of D."""
        return self.n // 2 if self.gated else self.n

    @property
    def weights(self) -> int:
        return self.n * self.k

    @property
    def peer_dtype(self) -> str:
        return "float16"

    @property
    def bytes_of(self) -> dict[str, int]:
        found = {
            "A, codes": self.m * self.k * self.bits // 8,
            "B, codes": self.n * self.k * self.bits // 8,
            "their scales": (self.m + self.n) * self.k // self.group_size,
            "C": self.source_bytes,
            "bias": 4 * self.n * self.bias,
            "result": self.result_bytes,
        }
        return {name: nbytes for name, nbytes in found.items() if nbytes}

    @property
    def source_dtype(self) -> str | None:
        """Type of C; None if none is added."""
        return (self.c_dtype or self.result) if self.source else None

    @property
    def source_bytes(self) -> int:
        """Of C."""
        return FLOAT_BYTES.get(self.source_dtype or "", 0) * self.m * self.n

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    def operand_bytes(self, rows: int) -> int:
        """Bytes of ``rows`` rows of A or B with their scales, without padding."""
        return rows * self.k * self.bits // 8 + rows * self.k // self.group_size

    @property
    def result_bytes(self) -> int:
        if self.result in BLOCK_FORMATS:
            form = BLOCK_FORMATS[self.result]
            return self.m * self.columns * form.bits // 8 + self.m * self.columns // form.block
        return self.m * self.columns * FLOAT_BYTES[self.result]

    @property
    def least_bytes(self) -> int:
        """Bytes of the problem when each is moved once."""
        return (
            self.operand_bytes(self.m)
            + self.operand_bytes(self.n)
            + self.source_bytes
            + 4 * self.n * self.bias
            + self.result_bytes
        )

    @property
    def operand_names(self) -> tuple[str, ...]:
        optional = (("c", self.source), ("bias", self.bias))
        return ("a", "b", "sfa", "sfb", *(name for name, there in optional if there))

    @property
    def result_shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        if self.result not in BLOCK_FORMATS:
            return {"d": ((self.m, self.columns), self.result)}
        form = BLOCK_FORMATS[self.result]
        return {
            "d": (form.data_shape(self.m, self.columns), "uint8"),
            "sfd": (form.scales_shape(self.m, self.columns, "128x4"), "uint8"),
        }

    @property
    def launch_shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return self.result_shapes

    def to_dict(self) -> dict[str, Any]:
        """The fields, and what follows from them: bits of a code and the number of elements per
        scale."""
        form = BLOCK_FORMATS[self.format]
        return asdict(self) | {
            "bits": form.bits,
            "codes": form.element,
            "group_size": form.block,
        }

    def in_words(self) -> str:
        more = "".join(
            f", {text}"
            for text, there in (
                (f"C{f' of {self.c_dtype}' if self.c_dtype else ''} is added", self.source),
                ("a bias", self.bias),
                (f"{self.activation}", self.activation),
                (f"scales rounded with {self.rounding!r}", self.result_has_powers),
            )
            if there
        )
        return (
            f"D[{self.m}, {self.columns}] = A[{self.m}, {self.k}] @ B[{self.n}, {self.k}]^T,"
            f" {self.format} operands, {self.result} result{more}"
        )


def column_step(result: str, activation: str | None) -> int:
    """n must be a multiple of this: blocks of a block-scaled result are complete, and a gate halves
    the columns."""
    return (BLOCK_FORMATS[result].block if result in BLOCK_FORMATS else N_STEP) * (
        2 if activation == GATE else 1
    )


def nearest(size: int, step: int) -> str:
    """The multiples of ``step`` beside ``size``, in words."""
    return " or ".join(str(each * step) for each in (size // step, -(-size // step)) if each)
