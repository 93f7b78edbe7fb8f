"""``ActivationsProblem``: the checked sizes and types of 8-bit activations times quantised weights.

    C[m, n] = A[m, k] @ W[k, n] + bias[n]

A is ``formats.activations.QuantizedActivations`` with a scale per row; W as in ``WeightProblem``;
C and the bias are of the type that A was quantised from. ValueError, naming the value and the rule,
for impossible sizes and types.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from numba_marlin.formats.activations import QuantizedActivations, check_kind, offset_shape
from numba_marlin.problems.protocol import ACTIVATIONS
from numba_marlin.problems.weights import WeightProblem


@dataclass(frozen=True)
class ActivationsProblem(WeightProblem):
    """A ``WeightProblem`` whose activations are ``activations``; dtype: of result and bias."""

    kind: ClassVar[str] = ACTIVATIONS

    #: One of ``formats.activations.KINDS``.
    activations: str = "int8"

    def __post_init__(self) -> None:
        check_kind(self.activations)
        super().__post_init__()

    @property
    def activation_bytes(self) -> int:
        """Codes, a float32 per row, and of fp8 offsets."""
        offsets = offset_shape(self.m, self.k, self.dtype) if self.activations == "fp8" else (0,)
        return self.m * self.k + 4 * self.m + 2 * prod(offsets)

    @property
    def operand_names(self) -> tuple[str, ...]:
        first, *others = super().operand_names
        return (first, "a_scales", *others)

    def in_words(self) -> str:
        return f"{super().in_words()}; {self.activations} activations"

    @classmethod
    def of_quantized(
        cls, x: QuantizedActivations, weight, bias: bool = False, batch_invariant: bool = False
    ) -> ActivationsProblem:
        """The problem of ``x`` times ``weight``, a QuantizedWeight or a PackedWeight."""
        return cls(
            x.m,
            weight.n,
            weight.k,
            weight.group_size,
            x.dtype,
            weight.bits,
            weight.zeros_kind,
            weight.scale_dtype,
            bias,
            batch_invariant,
            codes=getattr(weight, "grid", "integer"),
            activations=x.kind,
        )
