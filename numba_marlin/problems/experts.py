"""``ExpertsProblem``: the sizes and types of the products of a mixture of experts.

    C[token, slot] = A[token] @ W[e] + bias[e],  e = ids[token, slot]

A is [m, k], or with ``x_of_pairs`` a row for each slot, [m top_k, k]; W [E, k, n] quantised, as in
``WeightProblem``; C [m top_k, n], or with ``combine`` [m, n], the sum over slots times weights, or
with ``activation`` [m top_k, n / 2], activation(gate) * up, gate's columns being before up's.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.formats.experts import PackedExperts
from numba_marlin.formats.routing import Routing


@dataclass(frozen=True)
class ExpertsProblem:
    """``dtype``: of activations, bias and result; the other fields as in ``WeightProblem``."""

    m: int
    n: int
    k: int
    experts: int
    top_k: int
    group_size: int
    dtype: str = "float16"
    bits: int = 4
    zeros: str | None = None
    scale_dtype: str = "float16"
    bias: bool = False
    codes: str = "integer"
    x_of_pairs: bool = False
    combine: bool = False
    activation: str | None = None

    @property
    def pairs(self) -> int:
        """Of a token and an expert."""
        return self.m * self.top_k

    @property
    def result_shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """{kernel parameter: (shape, type)} of the outputs."""
        columns = self.n if self.activation is None else self.n // 2
        return {"c": ((self.m if self.combine else self.pairs, columns), self.dtype)}

    @property
    def flops(self) -> int:
        return 2 * self.pairs * self.n * self.k

    def in_words(self) -> str:
        """The product in one line, for people."""
        return (
            f"{self.m} tokens to {self.top_k} of {self.experts} experts, k={self.k}, n={self.n}"
            + (", summed over a token's experts" if self.combine else "")
            + (f", {self.activation} of the halves" if self.activation else "")
        )

    @classmethod
    def of(
        cls,
        experts: PackedExperts,
        routing: Routing,
        dtype: str,
        *,
        bias: bool = False,
        x_of_pairs: bool = False,
        combine: bool = False,
        activation: str | None = None,
    ) -> ExpertsProblem:
        one = experts.facts[0]
        blocks = "scale_grid" in one
        return cls(
            routing.m,
            experts.n,
            experts.k,
            len(experts),
            routing.top_k,
            experts.group_size,
            dtype,
            4 if blocks else one["bits"],
            experts.zeros_kind,
            experts.scale_dtype,
            bias,
            "e2m1" if blocks else "integer",
            x_of_pairs,
            combine,
            activation,
        )
