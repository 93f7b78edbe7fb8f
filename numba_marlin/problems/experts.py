"""``ExpertsProblem``: the checked sizes and types of the products of a mixture of experts.

    C[token, slot] = A[token] @ W[e] + bias[e],  e = ids[token, slot]

A is [m, k], or with ``x_of_pairs`` a row for each slot, [m top_k, k], in 16 bits, or with
``activations`` ``formats.activations.QuantizedActivations`` with a scale per row; W
[experts, k, n] quantised, as in ``WeightProblem``; C [m top_k, n], or with ``combine`` [m, n], the
sum over slots times weights, or with ``activation`` [m top_k, n / 2], activation(gate) * up, gate's
columns of W being before up's. The routing (``formats.routing``) is an operand: sizes do not depend
on it. ValueError, naming the value and the rule, for impossible sizes and types.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from numba_marlin.formats.activations import check_kind
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.formats.routing import Routing
from numba_marlin.problems.protocol import EXPERTS
from numba_marlin.problems.weights import WeightProblem

WORD_BYTES = 4


@dataclass(frozen=True)
class ExpertsProblem(WeightProblem):
    """m: tokens; the fields of a ``WeightProblem`` are those of each expert's product."""

    kind: ClassVar[str] = EXPERTS

    #: Experts whose weights are there.
    experts: int = 8
    #: Experts of a token.
    top_k: int = 2
    #: Whether A has a row for each pair of a token and an expert, not for each token.
    x_of_pairs: bool = False
    #: Whether C has a row for each token: its experts' rows times their weights, added up in a pass
    #: behind the launch, which leaves them in float32.
    combine: bool = False
    #: Whether all of a token's experts are there; if not, rows of the others are 0.
    complete: bool = True
    #: Of ``reference.experts.ACTIVATIONS``, or None: C has every column of W's products.
    activation: str | None = None
    #: Of A: of ``formats.activations.KINDS``, 8 bits and a scale per row; None: ``dtype``.
    activations: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activations is not None:
            check_kind(self.activations)
        for name in ("experts", "top_k"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.top_k > self.experts and self.complete:
            raise ValueError(f"top_k={self.top_k} must be at most experts={self.experts}")
        if self.activation is not None and (self.combine or self.n % 2):
            raise ValueError(
                f"activation={self.activation!r} must be without combine, and of gate's and up's"
                f" columns, as many of each: n={self.n}"
            )

    @property
    def pairs(self) -> int:
        """Of a token and an expert."""
        return self.m * self.top_k

    @property
    def most_touched(self) -> int:
        """Experts that some token goes to, at most: the routing says how many."""
        return min(self.experts, self.pairs)

    @property
    def rows_per_expert(self) -> float:
        """If the routing is even."""
        return self.pairs / self.experts

    @property
    def weights(self) -> int:
        return self.experts * super().weights

    @property
    def activation_bytes(self) -> int:
        rows = self.pairs if self.x_of_pairs else self.m
        return rows * (2 * self.k if self.activations is None else self.k + WORD_BYTES)

    @property
    def routing_bytes(self) -> int:
        """Pairs and offsets, and, to add up, weights."""
        return WORD_BYTES * (self.pairs * (2 if self.combine else 1) + self.experts + 1)

    @property
    def bytes_of(self) -> dict[str, int]:
        """Of the experts' weights those of ``most_touched``."""
        one, touched = WeightProblem(1, *self._weight).bytes_of, self.most_touched
        return {
            "weights": touched * one["weights"],
            "scales and zero points": touched * one["scales and zero points"],
            "activations": self.activation_bytes,
            "routing": self.routing_bytes,
            "result": 2 * math.prod(self.result_shapes["c"][0]),
        }

    @property
    def least_bytes(self) -> int:
        return sum(self.bytes_of.values())

    @property
    def flops(self) -> int:
        return 2 * self.pairs * self.n * self.k

    @property
    def operand_names(self) -> tuple[str, ...]:
        scales = () if self.activations is None else ("a_scales",)
        return (*super().operand_names, *scales, "pairs", "offsets")

    @property
    def result_shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        columns = self.n if self.activation is None else self.n // 2
        return {"c": ((self.m if self.combine else self.pairs, columns), self.dtype)}

    @property
    def launch_shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return {"c": ((self.pairs, self.n), "float32")} if self.combine else self.result_shapes

    @property
    def zero_before(self) -> tuple[str, ...]:
        return () if self.complete else ("c",)

    def in_words(self) -> str:
        """The product in one line, for people."""
        *_, weights = super().in_words().partition("], ")
        return (
            f"{self.m} token{'s' * (self.m > 1)} to {self.top_k} of {self.experts} experts,"
            f" k={self.k}, n={self.n}, {weights}"
            + (", a row of x for each expert of a token" if self.x_of_pairs else "")
            + (", summed over a token's experts" if self.combine else "")
            + (f", {self.activation} of gate and up" if self.activation else "")
            + (f"; {self.activations} activations" if self.activations else "")
        )

    @property
    def _weight(self) -> tuple:
        """The fields of a ``WeightProblem`` behind m."""
        return (
            self.n,
            self.k,
            self.group_size,
            self.dtype,
            self.bits,
            self.zeros,
            self.scale_dtype,
            self.bias,
            self.batch_invariant,
            self.codes,
        )

    @classmethod
    def of_experts(
        cls,
        experts: PackedExperts,
        routing: Routing,
        dtype: str,
        *,
        bias: bool = False,
        x_of_pairs: bool = False,
        combine: bool = False,
        batch_invariant: bool = False,
        activation: str | None = None,
        activations: str | None = None,
    ) -> ExpertsProblem:
        """The problem of tokens of ``dtype`` routed so."""
        one = experts.facts[0]
        blocks = "scale_grid" in one
        return cls(
            routing.m,
            experts.n,
            experts.k,
            experts.group_size,
            dtype,
            4 if blocks else one["bits"],
            experts.zeros_kind,
            experts.scale_dtype,
            bias,
            batch_invariant,
            "e2m1" if blocks else "integer",
            len(experts),
            routing.top_k,
            x_of_pairs,
            combine,
            routing.complete,
            activation,
            activations,
        )
