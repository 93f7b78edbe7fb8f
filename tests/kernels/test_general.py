"""Contract under test: the general kernel multiplies every type and shape that a weight can have,
the pattern for the kernels above it.

Bit for bit on problems whose sums are exact, within the elementwise bound on real data. ``pytest
--run-on cuda`` runs the same on a GPU.
"""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numba_marlin import compiler, reference, testing
from numba_marlin.compiler import gates
from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.floats import round_to
from numba_marlin.heuristics import Problem
from numba_marlin.kernels.general import KERNEL, GeneralConfig
from numba_marlin.quantizers import dequantize, quantize
from tests.kernels.harness import cases, run_kernel

pytest.importorskip("ml_dtypes")

DTYPES, BITS, ZEROS = ("float16", "bfloat16"), (4, 8), (None, "integer", "float16")
# Every pair of values of any two parameters occurs, and every (bits, zeros) with both kinds of
# groups.
TYPES = [
    ("float16", 4, None, "float16", True, -1),
    ("bfloat16", 4, None, "bfloat16", False, 64),
    ("bfloat16", 8, None, "float16", True, 32),
    ("float16", 8, None, "bfloat16", False, -1),
    ("float16", 4, "integer", "bfloat16", True, 16),
    ("bfloat16", 4, "integer", "float16", False, -1),
    ("float16", 8, "integer", "float16", False, 128),
    ("bfloat16", 8, "integer", "bfloat16", True, -1),
    ("bfloat16", 4, "float16", "float16", True, -1),
    ("float16", 4, "float16", "bfloat16", False, 32),
    ("bfloat16", 8, "float16", "bfloat16", False, 16),
    ("float16", 8, "float16", "float16", True, -1),
]


def config_of(x, weight, bias):
    problem = Problem.of(x.shape[0], weight, x.dtype.name, bias is not None)
    return GeneralConfig(
        **{field.name: getattr(problem, field.name) for field in fields(GeneralConfig)}
    )


def run(x, weight, bias=None, run_on="machine", **options):
    return run_kernel(
        "general", x, weight, bias=bias, config=config_of(x, weight, bias), run_on=run_on, **options
    ).c


def assert_exact(problem, run_on, **options):
    actual = run(problem.x, problem.weight, problem.bias, run_on, **options)
    assert actual.dtype == problem.expected.dtype and np.array_equal(
        actual.astype(np.float64), problem.expected.astype(np.float64)
    )


@pytest.mark.parametrize("dtype, bits, zeros, scale_dtype, bias, group_size", TYPES)
def test_every_type_matches_bit_for_bit(dtype, bits, zeros, scale_dtype, bias, group_size, run_on):
    """n completed by 56 columns, rows of x apart from each other, more than one block of
    threads."""
    problem = testing.exact_problem(
        3,
        136,
        256,
        group_size,
        1,
        dtype=dtype,
        bits=bits,
        zeros_kind=zeros,
        scale_dtype=scale_dtype,
        bias=bias,
    )
    assert_exact(problem, run_on, a_stride=264)


@pytest.mark.parametrize("dtype, bits, zeros, scale_dtype, bias, group_size", TYPES)
def test_real_data_stays_under_the_elementwise_bound(
    dtype, bits, zeros, scale_dtype, bias, group_size, run_on
):
    generator = np.random.default_rng(5)
    weight = quantize(
        generator.standard_normal((256, 72)), bits, group_size, zeros is None, scale_dtype
    )
    if zeros == "float16":
        moved = weight.zeros + generator.uniform(-0.5, 0.5, weight.zeros.shape)
        weight = QuantizedWeight(
            weight.codes, weight.scales, moved.astype(np.float16), bits, group_size
        )
    x = round_to(generator.standard_normal((4, 256)), dtype)
    addend = round_to(generator.standard_normal(72), dtype) if bias else None
    result = run(x, weight, addend, run_on)
    report = reference.check(
        result, x, weight, addend, method=KERNEL.method(config_of(x, weight, addend))
    )
    assert report.ok and report.max_error > 0, report


@pytest.mark.thorough
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    problem=testing.exact_problems(
        testing.problems(max_m=5, max_n=200, max_k=512, **testing.EVERY_SHAPE),
        dtypes=DTYPES,
        bits=BITS,
        zeros_kinds=ZEROS,
        scale_dtypes=DTYPES,
        bias=(False, True),
    ),
    gap=st.integers(0, 2),
)
def test_any_shape_and_type_is_exact(problem, gap, run_on):
    assert_exact(problem, run_on, a_stride=problem.x.shape[1] + 8 * gap)


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group_size", (-1, 16))
def test_identity_activations_return_the_dequantised_weight(bits, zeros, group_size, run_on):
    """With x = I the output *is* the decoded weight. (fp32 rounds code - zero first where a float16
    zero point asks for more bits: not here.)"""
    weight = testing.make_quantized(
        "uniform", "ordinary", 64, 72, group_size, 3, bits=bits, zeros_kind=zeros
    )
    assert np.array_equal(
        run(np.eye(64, dtype=np.float16), weight, run_on=run_on), dequantize(weight)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_beyond_n_are_not_written(dtype, run_on):
    """One column too many of the last row would be out of bounds; of any other row, it would be the
    next row's first."""
    problem = testing.exact_problem(2, 8, 32, 16, seed=2, dtype=dtype)
    assert_exact(problem, run_on)


def test_the_bias_is_added_before_the_only_rounding(run_on):
    """2048 + 1 is not in float16: rounded first, the product would lose the bias's company. 2049 -
    2047 = 2."""
    weight = QuantizedWeight(np.full((16, 8), 9, np.uint8), np.ones((1, 8), np.float16))
    x = np.zeros((1, 16), np.float16)
    x[0, :2] = 2048, 1
    assert (run(x, weight, np.full(8, -2047, np.float16), run_on) == 2).all()


@pytest.mark.parametrize(
    "bits, zeros",
    cases(((4, None), (8, "integer"), (4, "float16")), lambda bits, zeros: bits == 8),
)
def test_both_compilers_give_the_same_bits(bits, zeros, run_on):
    if len(compiler.available_compilers()) < 2:
        pytest.skip(
            "only one compiler is installed here: the other is numba-cuda-mlir (extra mlir)"
        )
    weight = testing.make_quantized(
        "uniform", "ordinary", 64, 72, 32, 3, bits=bits, zeros_kind=zeros, scale_dtype="bfloat16"
    )
    x = round_to(np.random.default_rng(0).standard_normal((3, 64)), "bfloat16")
    results = [
        run(x, weight, x[0, :1].repeat(72), run_on, compiled_by=by)
        for by in compiler.available_compilers()
    ]
    assert np.array_equal(results[0].view(np.uint16), results[1].view(np.uint16))


@pytest.mark.parametrize("dtype, bits, zeros, scale_dtype, bias, group_size", TYPES[::2])
def test_static_promises_are_kept(dtype, bits, zeros, scale_dtype, bias, group_size):
    config = GeneralConfig(group_size, dtype, bits, zeros, scale_dtype, bias)
    assert not gates.broken_promises(compiler.build(KERNEL, config, target="sm_90a"))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dtype": "float32"}, "dtype='float32'"),
        ({"bits": 2}, "bits=2"),
        ({"zeros": True}, "zeros=True"),
        ({"scale_dtype": "int8"}, "scale_dtype='int8'"),
        ({"group_size": 24}, "group_size=24"),
    ],
)
def test_configurations_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GeneralConfig(**options)
