"""Exact problems: the correct result is known bit for bit, whatever a kernel's reduction order and
roundings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from numba_marlin import reference
from numba_marlin.formats import BlockWeight, QuantizedWeight
from numba_marlin.formats.floats import round_to
from numba_marlin.testing.contents import make_codes, make_zeros
from numba_marlin.testing.weights import Problem, problems, seeds


@dataclass(frozen=True, eq=False)
class ExactProblem:
    """A problem whose only correct result is ``expected`` ([m, n] of x's type), bit for bit. x: [m,
    k];
    bias: [n] of x's type, or None."""

    x: np.ndarray
    weight: QuantizedWeight | BlockWeight
    expected: np.ndarray
    bias: np.ndarray | None = None


def exact_problem(
    m: int,
    n: int,
    k: int,
    group_size: int,
    seed: int,
    spread: int = 2,
    *,
    dtype: str = "float16",
    bits: int = 4,
    zeros_kind: str | None = None,
    scale_dtype: str = "float16",
    bias: bool = False,
) -> ExactProblem:
    """Activations -1, 0, 1, all codes, and scales 1, 2, ... 2**(spread - 1): no rounding anywhere,
    whatever the kernel's method.

    The number of non-zero activations is the largest for which float16 holds the sums exactly, and
    at least one per row. If results are too coarse for that (bfloat16), or weights too large (8
    bits, zero points), the sums are exact in fp32, and ``expected`` is their value rounded once.
    bias: small integers. ValueError if spread is too large for exact results.
    """
    rng = np.random.default_rng(seed)
    groups = 1 if group_size == -1 or group_size >= k else k // group_size
    zeros = make_zeros(zeros_kind, groups, n, seed, bits)
    if zeros_kind == "float16" and (dtype, bits) == ("bfloat16", 8):
        # a code of 8 bits minus half a step does not fit in 8 significant bits
        zeros = None if zeros is None else np.abs(np.floor(zeros))
    weight = QuantizedWeight(
        codes=make_codes("uniform", k, n, seed, bits),
        scales=round_to(np.ldexp(1.0, rng.integers(0, spread, (groups, n))), scale_dtype),
        zeros=zeros,
        bits=bits,
        group_size=group_size,
    )
    signs = rng.choice(np.array([-1, 1]), (m, k))
    rank = np.argsort(rng.random((m, k)), axis=1)  # A random permutation of 0..k-1 in every row.
    addend = round_to(2.0 * rng.integers(-3, 4, n), dtype) if bias else None
    carrier = "float16" if (dtype, bits, zeros_kind) == ("float16", 4, None) else "float32"
    nonzeros = k
    while True:
        x = round_to((signs * (rank < nonzeros)).astype(np.float64), dtype)
        if reference.is_exact_problem(x, weight, carrier, addend):
            expected = round_to(reference.matmul(x, weight, addend), dtype)
            if np.isfinite(expected).all():
                return ExactProblem(x, weight, expected, addend)
        if nonzeros == 1:
            raise ValueError(f"spread={spread} is too large for exact {dtype} results")
        nonzeros = max(1, nonzeros // 2)


@st.composite
def exact_problems(
    draw,
    problem: st.SearchStrategy[Problem] | None = None,
    *,
    dtypes=("float16",),
    bits=(4,),
    zeros_kinds=(None,),
    scale_dtypes=("float16",),
    bias=(False,),
) -> ExactProblem:
    """A strategy of exact problems; see ``exact_problem``."""
    shape = draw(problems() if problem is None else problem)
    return exact_problem(
        shape.m,
        shape.n,
        shape.k,
        shape.group_size,
        draw(seeds()),
        dtype=draw(st.sampled_from(dtypes)),
        bits=draw(st.sampled_from(bits)),
        zeros_kind=draw(st.sampled_from(zeros_kinds)),
        scale_dtype=draw(st.sampled_from(scale_dtypes)),
        bias=draw(st.sampled_from(bias)),
    )
