"""Tests of a matrix multiplication: exact results bit for bit, every weight read from its own
place, real data within their error bound.

    test_my_kernel = testing.kernel_test(my_matmul)  # my_matmul(x, QuantizedWeight) -> y [m, n]
    test_my_kernel = testing.kernel_test(my_matmul, testing.problems(max_m=16), bits=(4, 8))

An assertion names the wrong output or the wrong weight. ``configurations`` draws configurations of
a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin import heuristics, reference
from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.floats import round_to
from numba_marlin.hardware.devices import Device
from numba_marlin.quantizers import dequantize
from numba_marlin.testing.exact import ExactProblem, exact_problem
from numba_marlin.testing.packing import USUAL_SETTINGS
from numba_marlin.testing.weights import Problem, problems, quantized_weights, seeds

ORDINARY_SCALES = ("power_of_two", "ordinary", "signed")
"""Kinds of scales for which no product of the strategies' problems overflows float16."""


def check_exact(y: np.ndarray, problem: ExactProblem) -> None:
    """AssertionError, naming the first wrong output, unless y is ``problem.expected`` bit for bit
    (-0 is 0)."""
    y = np.asarray(y)
    assert y.shape == problem.expected.shape, (
        f"the result has shape {y.shape}, must be {problem.expected.shape}"
    )
    assert y.dtype == problem.expected.dtype, (
        f"the result is {y.dtype}, must be {problem.expected.dtype}"
    )
    wrong = np.argwhere(y != problem.expected)  # NaN differs from everything
    if len(wrong):
        row, column = wrong[0]
        raise AssertionError(
            f"y[{row}, {column}] is {y[row, column]}, must be exactly"
            f" {problem.expected[row, column]} ({len(wrong)} of {y.size} differ)"
        )


def check_places(matmul: Callable, weight: QuantizedWeight, seed: int = 0) -> None:
    """AssertionError unless multiplying rows of the identity gives the weight's rows, to one
    rounding. The message names the weight that was read from a wrong place."""
    rows = np.random.default_rng(seed).choice(weight.k, min(weight.k, 16), replace=False)
    x = np.zeros((len(rows), weight.k), dtype=weight.scales.dtype)
    x[np.arange(len(rows)), rows] = 1
    expected = dequantize(weight)[rows]
    y = np.asarray(matmul(x, weight))
    wrong = np.argwhere(y != expected)
    if len(wrong):
        row, column = wrong[0]
        raise AssertionError(
            f"W[{rows[row]}, {column}] is read as {y[row, column]}, is {expected[row, column]}"
            f" (code {weight.codes[rows[row], column]}; {len(wrong)} of {y.size} differ)"
        )


def check_near(
    matmul: Callable,
    problem: Problem,
    weight: QuantizedWeight,
    seed: int = 0,
    method: str | None = "weights",
) -> None:
    """AssertionError unless every output of normal activations is within its own error bound
    (``reference.check``). method: as in ``kernel_test``."""
    x = round_to(
        np.random.default_rng(seed).standard_normal((problem.m, problem.k)), weight.scale_dtype
    )
    verdict = reference.check(
        np.asarray(matmul(x, weight)), x, weight, order="random", method=method
    )
    assert verdict.ok, (
        f"{verdict.failures} of {verdict.size} outputs are out of their error bounds; worst:"
        f" {verdict.worst}, {verdict.actual_at_worst:.6g} for {verdict.expected_at_worst:.6g} +-"
        f" {verdict.bound_at_worst:.3g}"
    )


def kernel_test(
    matmul: Callable,
    shapes: st.SearchStrategy[Problem] | None = None,
    *,
    bits=(4,),
    zeros_kinds=(None,),
    scale_dtypes=("float16",),
    method: str | None = "weights",
    **others,
) -> Callable[[], None]:
    """A Hypothesis test of the three checks on ``matmul(x, weight)``; x [m, k] and the result [m,
    n] have the type of the scales. Each example is one product.

    shapes: shapes that the kernel supports; default: ``problems()``. bits, zeros_kinds,
    scale_dtypes: types that it supports, as in ``quantized_weights``. method: how it may round, one
    of ``reference.METHODS``, or None for the methods of the package's own kernels; the default
    allows one rounding of each weight to 16 bits and fp32 accumulation. others: Hypothesis settings
    that override USUAL_SETTINGS of ``packing``.
    """
    shapes = problems() if shapes is None else shapes
    kinds = {"bits": bits, "zeros_kinds": zeros_kinds, "scale_dtypes": scale_dtypes}

    @settings(**USUAL_SETTINGS | others)
    @given(st.data(), shapes, st.sampled_from(("exact", "places", "near")), seeds())
    def test(data, shape, what, seed):
        if what == "exact":
            drawn = {"bits": bits, "zeros_kind": zeros_kinds, "scale_dtype": scale_dtypes}
            types = {
                name: data.draw(st.sampled_from(each), label=name) for name, each in drawn.items()
            }
            problem = exact_problem(
                shape.m,
                shape.n,
                shape.k,
                shape.group_size,
                seed,
                dtype=types["scale_dtype"],
                **types,
            )
            check_exact(matmul(problem.x, problem.weight), problem)
            return
        scales = ORDINARY_SCALES if what == "places" else ("ordinary",)
        weight = data.draw(quantized_weights(st.just(shape), scales, **kinds), label="weight")
        if what == "places":
            check_places(matmul, weight, seed)
        else:
            check_near(matmul, shape, weight, seed, method)

    return test


@st.composite
def configurations(draw, config_type: type, **fields: st.SearchStrategy) -> Any:
    """A strategy of configurations: ``config_type`` with these fields, without those for which it
    raises ValueError."""
    drawn = draw(
        st.fixed_dictionaries(fields)
        .map(lambda values: _built(config_type, values))
        .filter(lambda config: config is not None)
    )
    return drawn


def _built(config_type: type, values: dict) -> Any:
    try:
        return config_type(**values)
    except ValueError:
        return None


@st.composite
def candidates(
    draw,
    device: Device,
    shapes: st.SearchStrategy[Problem] | None = None,
    kernels: tuple[str, ...] = heuristics.LADDER,
    **types,
) -> tuple:
    """A strategy of (heuristics.Problem, Candidate): a problem and one of the configurations
    proposed for it on ``device``. types: fields of every problem."""
    shape = draw(problems() if shapes is None else shapes)
    problem = heuristics.Problem(shape.m, shape.n, shape.k, shape.group_size, **types)
    ranked = [each for each in heuristics.rank(problem, device) if each.kernel in kernels]
    return problem, draw(st.sampled_from(ranked))
