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

    @given(testing.schedules())
    def test_my_kernel_needs_no_luck(schedule):
        machine = Machine(my_ptx, races=True)
        machine.run("my_kernel", seed=schedule, ...)

Shapes are kept small, because every bug in an index shows on small ones: that is what makes the failing example
readable. Arrays come from a drawn seed, not element by element: drawing a million elements is slow and shrinks to
nothing useful. What is worth shrinking (shape, group size, kind of content, seed) is drawn. ``exact_problem`` is a
plain function: use it in parametrised tests too.

By default shapes and types are those that the published kernel takes: float16, 4 bits, symmetric, n a multiple of 64. A kernel
that takes more is given ``**EVERY_SHAPE`` (of ``problems``) and ``**EVERY_TYPE`` (of ``quantized_weights`` and ``exact_problems``), or
the part of them that it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from numba_marlin import reference
from numba_marlin.emulator.schedules import COPIES, ORDERS, Schedule
from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.floats import HALF_TYPES, float_type, largest, round_to
from numba_marlin.formats.marlin import BLOCK_K, BLOCK_N, COLUMN_STEP, GROUP_SIZES
from numba_marlin.formats.types import SUPPORTED_BITS, ZEROS_KINDS

CODE_KINDS = ("uniform", "constant", "extremes", "ramp")
SCALE_KINDS = ("power_of_two", "ordinary", "denormal", "extreme", "signed", "zero")
WEIGHT_KINDS = ("normal", "heavy_tailed", "tiny", "large", "sparse", "zero")
EVERY_SHAPE = {"column_step": COLUMN_STEP, "group_sizes": (-1, 16, 32, 64, 128, 256)}
EVERY_TYPE = {"bits": SUPPORTED_BITS, "zeros_kinds": ZEROS_KINDS, "scale_dtypes": HALF_TYPES}


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
    """A problem whose every correct result is ``expected`` ([m, n] of x's type), bit for bit. bias: [n] of x's type, or None."""

    x: np.ndarray
    weight: QuantizedWeight
    expected: np.ndarray
    bias: np.ndarray | None = None


def make_codes(kind: str, k: int, n: int, seed: int, bits: int = 4) -> np.ndarray:
    """uint8 [k, n] of one of CODE_KINDS."""
    rng = np.random.default_rng(seed)
    levels, half = 1 << bits, 1 << (bits - 1)
    if kind == "uniform":
        return rng.integers(0, levels, (k, n), dtype=np.uint8)
    if kind == "constant":
        return np.full((k, n), rng.integers(0, levels), dtype=np.uint8)
    if kind == "extremes":
        return rng.choice(np.array([0, half - 1, half, levels - 1], dtype=np.uint8), (k, n))
    if kind == "ramp":  # Neighbours always differ, along k and along n.
        return ((np.arange(k)[:, None] + 3 * np.arange(n)[None, :] + seed) % levels).astype(np.uint8)
    raise ValueError(f"kind={kind!r} must be one of {CODE_KINDS}")


def make_scales(kind: str, groups: int, n: int, seed: int, dtype: str = "float16") -> np.ndarray:
    """[groups, n] of one of HALF_TYPES, of one of SCALE_KINDS, always finite."""
    rng = np.random.default_rng(seed)
    shape = (groups, n)
    if kind == "power_of_two":
        return round_to(np.ldexp(1.0, rng.integers(-14, 12, shape)), dtype)
    if kind == "ordinary":
        return round_to(rng.uniform(0.002, 0.02, shape), dtype)
    if kind == "denormal":
        mantissas = 1024 if dtype == "float16" else 128
        return rng.integers(1, mantissas, shape).astype(np.uint16).view(float_type(dtype))
    if kind == "extreme":
        return round_to(rng.choice(np.array([2.0**-24, 2.0**-14, 1.0, 8188.0, largest("float16")]), shape), dtype)
    if kind == "signed":
        return round_to(rng.standard_normal(shape), dtype)
    if kind == "zero":
        return np.zeros(shape, dtype=float_type(dtype))
    raise ValueError(f"kind={kind!r} must be one of {SCALE_KINDS}")


def make_zeros(kind: str | None, groups: int, n: int, seed: int, bits: int = 4) -> np.ndarray | None:
    """[groups, n] of one of ZEROS_KINDS: all integers of the grid, or float16 halves on it and beside it."""
    if kind not in ZEROS_KINDS:
        raise ValueError(f"kind={kind!r} must be one of {ZEROS_KINDS}")
    rng = np.random.default_rng([seed, 1])
    if kind is None:
        return None
    integers = rng.integers(0, 1 << bits, (groups, n))
    return integers.astype(np.uint8) if kind == "integer" else (integers - rng.integers(0, 4, (groups, n)) / 2).astype(np.float16)


def make_quantized(
    code_kind: str, scale_kind: str, k: int, n: int, group_size: int, seed: int, *, bits: int = 4, zeros_kind: str | None = None, scale_dtype: str = "float16"
) -> QuantizedWeight:
    """A weight of these kinds of codes, scales and zero points."""
    groups = 1 if group_size == -1 or group_size >= k else k // group_size
    return QuantizedWeight(
        codes=make_codes(code_kind, k, n, seed, bits),
        scales=make_scales(scale_kind, groups, n, seed, scale_dtype),
        zeros=make_zeros(zeros_kind, groups, n, seed, bits),
        bits=bits,
        group_size=group_size,
    )


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


def exact_problem(
    m: int, n: int, k: int, group_size: int, seed: int, spread: int = 2, *, dtype: str = "float16", bits: int = 4, zeros_kind: str | None = None,
    scale_dtype: str = "float16", bias: bool = False,
) -> ExactProblem:
    """Activations -1, 0, 1, all codes, and scales 1, 2, ... 2**(spread - 1): no rounding anywhere, whatever the kernel's method.

    As many activations are non-zero as float16 can carry the sums of, but at least one to a row. Where results are too coarse for
    that (bfloat16), or weights too large (8 bits, zero points), it is fp32 that must carry the sums, and ``expected`` is rounded once, from
    exact ones. bias: small integers.
    """
    rng = np.random.default_rng(seed)
    groups = 1 if group_size == -1 or group_size >= k else k // group_size
    zeros = make_zeros(zeros_kind, groups, n, seed, bits)
    if zeros_kind == "float16" and (dtype, bits) == ("bfloat16", 8):
        zeros = np.abs(np.floor(zeros))  # a code of 8 bits minus half a step does not fit in 8 significant bits
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


def seeds() -> st.SearchStrategy[int]:
    return st.integers(0, 2**32 - 1)


@st.composite
def schedules(draw, places: tuple[int, ...] = ()) -> Schedule:
    """Orders in which a run on the PTX machine makes progress. ``places``: numbers of resident blocks to choose from besides all."""
    return Schedule(draw(seeds()), draw(st.sampled_from(ORDERS)), draw(st.sampled_from(COPIES)), draw(st.sampled_from((None, *places))))


@st.composite
def problems(draw, max_m: int = 64, max_n: int = 256, max_k: int = 512, group_sizes=GROUP_SIZES, column_step: int = BLOCK_N) -> Problem:
    """Shapes that the Marlin layout can hold: k % 16 == 0, n % column_step == 0, group_size dividing k."""
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
def scales(draw, groups: int, n: int, kinds: tuple[str, ...] = SCALE_KINDS, dtype: str = "float16") -> np.ndarray:
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
    draw, problem: st.SearchStrategy[Problem] | None = None, kinds=SCALE_KINDS, *, bits=(4,), zeros_kinds=(None,), scale_dtypes=("float16",)
) -> QuantizedWeight:
    """Anything that the Marlin layout can pack, of these types."""
    shape = draw(problems() if problem is None else problem)
    return make_quantized(
        draw(st.sampled_from(CODE_KINDS)), draw(st.sampled_from(kinds)), shape.k, shape.n, shape.group_size, draw(seeds()),
        bits=draw(st.sampled_from(bits)), zeros_kind=draw(st.sampled_from(zeros_kinds)), scale_dtype=draw(st.sampled_from(scale_dtypes)),
    )


@st.composite
def exact_problems(
    draw, problem: st.SearchStrategy[Problem] | None = None, *, dtypes=("float16",), bits=(4,), zeros_kinds=(None,), scale_dtypes=("float16",), bias=(False,)
) -> ExactProblem:
    """Problems whose result is exact: see ``exact_problem``."""
    shape = draw(problems() if problem is None else problem)
    return exact_problem(
        shape.m, shape.n, shape.k, shape.group_size, draw(seeds()), dtype=draw(st.sampled_from(dtypes)), bits=draw(st.sampled_from(bits)),
        zeros_kind=draw(st.sampled_from(zeros_kinds)), scale_dtype=draw(st.sampled_from(scale_dtypes)), bias=draw(st.sampled_from(bias)),
    )
