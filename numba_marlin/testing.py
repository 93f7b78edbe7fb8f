"""Hypothesis strategies and exact problems for testing whatever reads or writes these formats. Needs ``hypothesis``.

Example: any packer that claims to be Marlin's can be held against the specification.

    from hypothesis import given
    from numba_marlin import testing
    from numba_marlin.formats import marlin

    @given(testing.quantized_weights())
    def test_my_packer_writes_marlin_bytes(weight):
        assert (my_pack(weight.codes) == marlin.pack(weight).qweight).all()

    @given(testing.exact_problems())
    def test_my_kernel_is_exact_on_small_integers(problem):
        assert (my_matmul(problem.x, problem.weight) == problem.expected).all()

Shapes are kept small, because every bug in an index shows on small ones: that is what makes the failing example
readable. Arrays come from a drawn seed, not element by element: drawing a million elements is slow and shrinks to
nothing useful. What is worth shrinking (shape, group size, kind of content, seed) is drawn. ``exact_problem`` is a
plain function: use it in parametrised tests too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from numba_marlin import reference
from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.marlin import BLOCK_K, BLOCK_N, GROUP_SIZES

CODE_KINDS = ("uniform", "constant", "extremes", "ramp")
SCALE_KINDS = ("power_of_two", "ordinary", "denormal", "extreme", "signed", "zero")
WEIGHT_KINDS = ("normal", "heavy_tailed", "tiny", "large", "sparse", "zero")


@dataclass(frozen=True)
class Problem:
    """A shape: C[m, n] = A[m, k] @ W[k, n], with scales per ``group_size`` rows (-1: per column)."""

    m: int
    n: int
    k: int
    group_size: int

    @property
    def groups(self) -> int:
        return 1 if self.group_size == -1 else self.k // self.group_size


@dataclass(frozen=True, eq=False)
class ExactProblem:
    """A problem whose every correct result is ``expected`` (float16 [m, n]), bit for bit."""

    x: np.ndarray
    weight: QuantizedWeight
    expected: np.ndarray


def make_codes(kind: str, k: int, n: int, seed: int) -> np.ndarray:
    """uint8 [k, n] of one of CODE_KINDS."""
    rng = np.random.default_rng(seed)
    if kind == "uniform":
        return rng.integers(0, 16, (k, n), dtype=np.uint8)
    if kind == "constant":
        return np.full((k, n), rng.integers(0, 16), dtype=np.uint8)
    if kind == "extremes":
        return rng.choice(np.array([0, 7, 8, 15], dtype=np.uint8), (k, n))
    if kind == "ramp":  # Neighbours always differ, along k and along n.
        return ((np.arange(k)[:, None] + 3 * np.arange(n)[None, :] + seed) % 16).astype(np.uint8)
    raise ValueError(f"kind={kind!r} must be one of {CODE_KINDS}")


def make_scales(kind: str, groups: int, n: int, seed: int) -> np.ndarray:
    """float16 [groups, n] of one of SCALE_KINDS, always finite."""
    rng = np.random.default_rng(seed)
    shape = (groups, n)
    if kind == "power_of_two":
        return np.ldexp(1.0, rng.integers(-14, 12, shape)).astype(np.float16)
    if kind == "ordinary":
        return rng.uniform(0.002, 0.02, shape).astype(np.float16)
    if kind == "denormal":
        return rng.integers(1, 1024, shape).astype(np.uint16).view(np.float16)
    if kind == "extreme":
        return rng.choice(np.array([2.0**-24, 2.0**-14, 1.0, 8188.0, 65504.0]), shape).astype(np.float16)
    if kind == "signed":
        return rng.standard_normal(shape).astype(np.float16)
    if kind == "zero":
        return np.zeros(shape, dtype=np.float16)
    raise ValueError(f"kind={kind!r} must be one of {SCALE_KINDS}")


def make_weights(kind: str, k: int, n: int, seed: int, dtype: type = np.float32) -> np.ndarray:
    """[k, n] of ``dtype``, finite and quantisable, of one of WEIGHT_KINDS."""
    rng = np.random.default_rng(seed)
    if kind == "normal":
        w = 0.02 * rng.standard_normal((k, n))
    elif kind == "heavy_tailed":
        w = np.clip(0.02 * rng.standard_t(2, (k, n)), -1000, 1000)
    elif kind == "tiny":  # Scales come out subnormal, or at their smallest.
        w = 2.0**-22 * rng.standard_normal((k, n))
    elif kind == "large":
        w = rng.uniform(-61000, 61000, (k, n))
    elif kind == "sparse":
        w = np.where(rng.random((k, n)) < 0.01, rng.standard_normal((k, n)), 0)
    elif kind == "zero":
        w = np.zeros((k, n))
    else:
        raise ValueError(f"kind={kind!r} must be one of {WEIGHT_KINDS}")
    return w.astype(dtype)


def exact_problem(m: int, n: int, k: int, group_size: int, seed: int, spread: int = 2) -> ExactProblem:
    """Activations -1, 0, 1, all 16 codes, and scales 1, 2, ... 2**(spread - 1): no rounding anywhere.

    As many activations are non-zero as float16 can carry the sums of, but at least one to a row.
    """
    rng = np.random.default_rng(seed)
    groups = 1 if group_size in (-1, k) else k // group_size
    weight = QuantizedWeight(
        codes=make_codes("uniform", k, n, seed),
        scales=np.ldexp(1.0, rng.integers(0, spread, (groups, n))).astype(np.float16),
        group_size=group_size,
    )
    signs = rng.choice(np.array([-1, 1]), (m, k))
    rank = np.argsort(rng.random((m, k)), axis=1)  # A random permutation of 0..k-1 in every row.
    nonzeros = k
    while True:
        x = (signs * (rank < nonzeros)).astype(np.float16)
        if reference.is_exact_problem(x, weight):
            return ExactProblem(x, weight, reference.matmul(x, weight).astype(np.float16))
        if nonzeros == 1:
            raise ValueError(f"spread={spread} is too large for exact float16 results")
        nonzeros = max(1, nonzeros // 2)


def seeds() -> st.SearchStrategy[int]:
    return st.integers(0, 2**32 - 1)


@st.composite
def problems(draw, max_m: int = 64, max_n: int = 256, max_k: int = 512, group_sizes=GROUP_SIZES) -> Problem:
    """Shapes that the Marlin layout can hold: k % 16 == 0, n % 64 == 0, group_size dividing k."""
    group_size = draw(st.sampled_from([size for size in group_sizes if size <= max_k]))
    k_step = BLOCK_K if group_size == -1 else group_size
    return Problem(
        m=draw(st.integers(1, max_m)),
        n=BLOCK_N * draw(st.integers(1, max_n // BLOCK_N)),
        k=k_step * draw(st.integers(1, max_k // k_step)),
        group_size=group_size,
    )


@st.composite
def codes(draw, k: int, n: int) -> np.ndarray:
    """uint8 [k, n], 0..15."""
    return make_codes(draw(st.sampled_from(CODE_KINDS)), k, n, draw(seeds()))


@st.composite
def scales(draw, groups: int, n: int, kinds: tuple[str, ...] = SCALE_KINDS) -> np.ndarray:
    """float16 [groups, n]: powers of two, ordinary, denormal, extreme, signed or zero."""
    return make_scales(draw(st.sampled_from(kinds)), groups, n, draw(seeds()))


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
def quantized_weights(draw, problem: st.SearchStrategy[Problem] | None = None, kinds=SCALE_KINDS) -> QuantizedWeight:
    """Anything that the Marlin layout can pack."""
    shape = draw(problems() if problem is None else problem)
    return QuantizedWeight(
        codes=draw(codes(shape.k, shape.n)),
        scales=draw(scales(shape.groups, shape.n, kinds)),
        group_size=shape.group_size,
    )


@st.composite
def exact_problems(draw, problem: st.SearchStrategy[Problem] | None = None) -> ExactProblem:
    """Problems whose result is exact: see ``exact_problem``."""
    shape = draw(problems() if problem is None else problem)
    return exact_problem(shape.m, shape.n, shape.k, shape.group_size, draw(seeds()))
