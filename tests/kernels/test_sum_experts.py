"""Contract under test: the pass ``sum_experts`` adds up a token's rows times their weights in fp32,
in the order of the slots, rounds once, and touches nothing else: on the PTX machine with every trap
set and races looked for, or on a GPU between guard bands (``--run-on cuda``)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin import compiler
from numba_marlin.compiler import COMPILERS
from numba_marlin.emulator.errors import MachineError
from numba_marlin.execution.summing import Sum
from numba_marlin.formats.floats import round_to
from numba_marlin.kernels import registry
from numba_marlin.kernels.experts.sum_experts import AT_ONCE, BLOCK_COLUMNS, PASS, SumConfig
from numba_marlin.kernels.language.definition import Configured
from numba_marlin.problems.experts import ExpertsProblem
from numba_marlin.testing import launches
from tests.kernels.harness import cases, on_gpu, target_of

pytest.importorskip("ml_dtypes")


def prepared(rows, weights, dtype="float16", run_on="machine", compiled_by=COMPILERS[0]):
    """rows [m, top_k, n], weights [m, top_k]"""
    m, top_k, n = rows.shape
    config = SumConfig(dtype)
    problem = ExpertsProblem(m, n, 64, 64, dtype, experts=top_k, top_k=top_k, combine=True)
    built = compiler.build(PASS, config, target=target_of(run_on), compiler=compiled_by)
    launch = Configured(PASS, config)
    binding = Sum(problem, launch, built).binding(rows.reshape(-1, n), weights)
    return launches.Prepared.of(binding)


def run(rows, weights, dtype="float16", run_on="machine", edit_ptx=None, **options):
    launch = prepared(rows, weights, dtype, run_on, **options)
    if run_on == "cuda":
        return on_gpu(launch).launched().collect()["c"]
    launches.on_machine(launch, races=True, edit_ptx=edit_ptx)
    return launch.buffers["c"]


def fused(weight, row, total):
    """fp32 fma: a product of two fp32 is exact in float64, and where the sum of it and an fp32 is
    not, the numbers of ``drawn`` are short enough to make it so."""
    return (weight.astype(np.float64) * row + total).astype(np.float32)


def wanted(rows, weights, dtype):
    total = np.zeros(rows[:, 0].shape, np.float32)
    for slot in range(rows.shape[1]):
        total = fused(weights[:, slot, None], rows[:, slot], total)
    return round_to(total, dtype)


def drawn(seed, m, top_k, n):
    """Of 12 bits, and some exponents: products and sums are exact in float64, and not in fp32."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-4096, 4096, (m, top_k, n)) * 2.0 ** rng.integers(-12, 4, (m, top_k, n))
    weights = rng.integers(-4096, 4096, (m, top_k)) * 2.0**-12
    return rows.astype(np.float32), weights.astype(np.float32)


def check(seed, m, top_k, n, dtype="float16", **options):
    rows, weights = drawn(seed, m, top_k, n)
    assert np.array_equal(run(rows, weights, dtype, **options), wanted(rows, weights, dtype))


# more columns than a block has, with a rest; a lane alone; a token's rows in one round of loads, in
# two with a rest and without one; one expert
SHAPES = ((2, 3, BLOCK_COLUMNS + 136), (1, 2 * AT_ONCE, 8), (3, AT_ONCE + 1, 200), (5, 1, 64))


@pytest.mark.parametrize(
    "m, top_k, n, dtype",
    cases(
        ((*shape, dtype) for shape in SHAPES for dtype in ("float16", "bfloat16")),
        lambda m, top_k, n, dtype: dtype == "float16",
    ),
)
def test_sums_are_exact(m, top_k, n, dtype, run_on):
    check(1, m, top_k, n, dtype, run_on=run_on)


@pytest.mark.parametrize("top_k", range(1, 2 * AT_ONCE + 2))
def test_any_number_of_experts(top_k, run_on):
    check(top_k, 2, top_k, 24, run_on=run_on)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 11), st.integers(1, 90))
def test_any_sizes(seed, m, top_k, eighths):
    check(seed, m, top_k, 8 * eighths)


def test_the_order_is_that_of_the_slots(run_on):
    """2**24 + 1 is 2**24 in fp32: only in this order the ones are lost, or are not."""
    big = np.float32(2.0**24)
    for column, expected in (([big, 1, -big], 0.0), ([big, -big, 1], 1.0), ([1, big, -big], 0.0)):
        rows = np.repeat(np.array(column, np.float32)[None, :, None], 8, axis=2)
        c = run(rows, np.ones((1, 3), np.float32), run_on=run_on)
        assert (c == expected).all(), column


def test_products_are_not_rounded(run_on):
    """A weight times a row, less the product in fp32: 0 if it were rounded before."""
    value = np.float32(1 + 2.0**-12)
    rounded = np.float32(value * value)
    rows = np.full((1, 2, 8), 1, np.float32)
    rows[0, 0], rows[0, 1] = -rounded, value
    c = run(rows, np.array([[1, value]], np.float32), run_on=run_on)
    assert (c == np.float16(2.0**-24)).all()


def test_what_is_not_finite_is_so_in_its_column_alone(run_on):
    rows, weights = drawn(3, 2, 3, 40)
    rows[0, 1, 5], rows[1, 2, 39] = np.nan, np.inf
    c = run(rows, weights, run_on=run_on)
    assert np.isnan(c[0, 5]) and np.isinf(c[1, 39])
    assert np.isfinite(c).sum() == c.size - 2


def test_a_sum_of_zeros_has_the_sign_of_the_fused_one():
    """0 + (-1 * 0) is 0 in the first multiply-add: no -0 comes out."""
    rows = np.zeros((1, 2, 8), np.float32)
    c = run(rows, np.full((1, 2), -1, np.float32))
    assert not np.signbit(c).any()


def test_nothing_is_read_before_the_launch_before_has_ended():
    rows, weights = drawn(1, 1, 2, 8)

    def without(text):
        assert "griddepcontrol.wait" in text
        return text.replace("griddepcontrol.wait;", "")

    with pytest.raises(MachineError, match="griddepcontrol.wait"):
        run(rows, weights, edit_ptx=without)


@pytest.mark.thorough
def test_the_other_compiler_gives_the_same_bits():
    check(2, 2, 3, 72, compiled_by=COMPILERS[1])


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_nothing_spills_and_as_many_loads_are_in_flight_as_it_says(dtype):
    built = compiler.build(PASS, SumConfig(dtype), target=launches.TARGET)
    assert built.resources.spill_loads == built.resources.stack == 0
    first, rest = (
        [line.split()[0] for line in part.splitlines() if line.strip()[:3] in ("ld.", "fma")]
        for part in built.ptx.partition("fma.rn.f32")[::2]
    )
    assert first.count("ld.global.v4.f32") == AT_ONCE, "loads before the first multiply-add"
    assert rest.count("ld.global.v4.f32") == AT_ONCE - 1
    assert built.resources.registers <= 64  # so that 1,024 threads are on an SM


def test_it_is_no_rung_of_a_ladder_and_is_found_by_name():
    assert not registry.is_kernel(PASS.name) and PASS.name not in registry.names()
    assert registry.find_definition(PASS.name) is PASS
    assert registry.find_definition("moe") is registry.find_kernel("moe")
    with pytest.raises(ValueError, match="kernel='sums' must be one of"):
        registry.find_definition("sums")


def test_wrong_sizes_and_types_are_refused():
    with pytest.raises(ValueError, match="n=20 must be a multiple of 8"):
        SumConfig().grid(2, 20)
    with pytest.raises(ValueError, match=r"4294967294 blocks, must be less than 2\*\*31"):
        SumConfig().grid(2**31 - 1, 1024)
    with pytest.raises(ValueError, match="dtype='float32' must be one of float16, bfloat16"):
        SumConfig("float32")
