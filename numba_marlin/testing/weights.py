"""Strategies for shapes, group structures, codes, scales, float weights and quantised ones.

By default shapes and types are those of the published Marlin kernel: float16, 4 bits, symmetric, n
a multiple of 64. For code that supports more, pass ``**EVERY_SHAPE`` to ``problems`` and
``**EVERY_TYPE`` to ``quantized_weights``, or a part of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.marlin import BLOCK_K, BLOCK_N, COLUMN_STEP, GROUP_SIZES
from numba_marlin.testing.contents import (
    CODE_KINDS,
    SCALE_KINDS,
    WEIGHT_KINDS,
    make_codes,
    make_quantized,
    make_scales,
    make_weights,
)

EVERY_SHAPE = {"column_step": COLUMN_STEP, "group_sizes": (-1, 16, 32, 64, 128, 256)}
"""For ``problems``: all shapes that the Marlin layout can hold."""


@dataclass(frozen=True)
class Problem:
    """A shape: C[m, n] = A[m, k] @ W[k, n], with scales per ``group_size`` rows (-1: per
    column)."""

    m: int
    n: int
    k: int
    group_size: int

    @property
    def groups(self) -> int:
        return 1 if self.group_size == -1 else self.k // self.group_size


def seeds() -> st.SearchStrategy[int]:
    return st.integers(0, 2**32 - 1)


@st.composite
def problems(
    draw,
    max_m: int = 64,
    max_n: int = 256,
    max_k: int = 512,
    group_sizes=GROUP_SIZES,
    column_step: int = BLOCK_N,
) -> Problem:
    """Shapes that the Marlin layout can hold: k % 16 == 0, n % column_step == 0, group_size
    dividing k."""
    group_size = draw(st.sampled_from([size for size in group_sizes if size <= max_k]))
    k_step = BLOCK_K if group_size == -1 else group_size
    return Problem(
        m=draw(st.integers(1, max_m)),
        n=column_step * draw(st.integers(1, max_n // column_step)),
        k=k_step * draw(st.integers(1, max_k // k_step)),
        group_size=group_size,
    )


@st.composite
def codes(draw, k: int, n: int, bits: int = 4) -> np.ndarray:
    """uint8 [k, n], below 2**bits."""
    return make_codes(draw(st.sampled_from(CODE_KINDS)), k, n, draw(seeds()), bits)


@st.composite
def scales(
    draw, groups: int, n: int, kinds: tuple[str, ...] = SCALE_KINDS, dtype: str = "float16"
) -> np.ndarray:
    """[groups, n]: powers of two, ordinary, denormal, extreme, signed or zero."""
    return make_scales(draw(st.sampled_from(kinds)), groups, n, draw(seeds()), dtype)


@st.composite
def weights(draw, k: int, n: int, kinds: tuple[str, ...] = WEIGHT_KINDS) -> np.ndarray:
    """Float weights [k, n] in float16, float32 or float64, also with unusual strides."""
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    w = make_weights(draw(st.sampled_from(kinds)), k, n, draw(seeds()), dtype)
    layout = draw(st.sampled_from(["C", "F", "reversed"]))
    if layout == "F":
        return np.asfortranarray(w)
    return w[::-1, ::-1] if layout == "reversed" else w


@st.composite
def quantized_weights(
    draw,
    problem: st.SearchStrategy[Problem] | None = None,
    kinds=SCALE_KINDS,
    *,
    bits=(4,),
    zeros_kinds=(None,),
    scale_dtypes=("float16",),
    permuted=(False,),
) -> QuantizedWeight:
    """QuantizedWeights of these types that the Marlin layout can pack. permuted: whether rows may
    be stored in another order than the weight's."""
    shape = draw(problems() if problem is None else problem)
    weight = make_quantized(
        draw(st.sampled_from(CODE_KINDS)),
        draw(st.sampled_from(kinds)),
        shape.k,
        shape.n,
        shape.group_size,
        draw(seeds()),
        bits=draw(st.sampled_from(bits)),
        zeros_kind=draw(st.sampled_from(zeros_kinds)),
        scale_dtype=draw(st.sampled_from(scale_dtypes)),
    )
    return (
        replace(weight, permutation=draw(permutations(shape.k)))
        if draw(st.sampled_from(permuted))
        else weight
    )


@st.composite
def permutations(draw, k: int) -> np.ndarray:
    """Permutations, int32 [k]: shuffled, reversed, rotated, or the identity, the edge case."""
    kind = draw(st.sampled_from(("shuffled", "reversed", "rotated", "identity")))
    rows = np.arange(k, dtype=np.int32)
    if kind == "shuffled":
        return np.random.default_rng(draw(seeds())).permutation(rows)
    if kind == "rotated":
        return np.roll(rows, draw(st.integers(1, max(1, k - 1))))
    return np.ascontiguousarray(rows[::-1]) if kind == "reversed" else rows
