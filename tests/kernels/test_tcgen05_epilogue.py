"""Contract under test: Blackwell's epilogue, activation(alpha * A @ B^T + beta * C + bias),
on the PTX machine: no GPU here has its instructions."""

import re

import numpy as np
import pytest

from numba_marlin import compiler
from numba_marlin.compiler import gates
from numba_marlin.formats.floats import round_to
from numba_marlin.hardware import devices
from numba_marlin.heuristics import rank
from numba_marlin.kernels.nvfp4.tcgen05.config import Tcgen05Config
from numba_marlin.problems import BlockProblem
from numba_marlin.testing import operands
from numba_marlin.testing.launches import on_machine
from numba_marlin.testing.operands import real_numbers, small_integers
from tests.kernels.blackwell import TCGEN05

ADDING = Tcgen05Config(source=True, bias=True, c_dtype="float32")
CONFIGS = [
    ADDING,
    Tcgen05Config(source=True, bias=True, activation="gelu"),
    pytest.param(Tcgen05Config(bias=True, activation="relu"), marks=pytest.mark.thorough),
    pytest.param(
        Tcgen05Config(result="bfloat16", source=True, c_dtype="float16"), marks=pytest.mark.thorough
    ),
    pytest.param(
        Tcgen05Config(256, 3, "nvfp4", "float32", True, True, "silu", "bfloat16"),
        marks=pytest.mark.thorough,
    ),
]


def product_of(config, problem, edit_ptx=None, seed=None, **options):
    prepared = operands.prepare(problem, config, sms=2, **options)
    on_machine(prepared, seed, edit_ptx, False)
    return prepared.buffers["d"].astype(np.float64)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_epilogue_stays_within_its_bounds(config):
    """Rows and columns behind which D, C and the bias end, in the middle of a tile."""
    problem = real_numbers(140, 136, 160, c_dtype=config.source_dtype, bias=config.bias)
    expected, error = problem.bounds(config.activation)
    found = product_of(config, problem)
    low, high = (round_to(each, config.result) for each in (expected - error, expected + error))
    assert ((low.astype(np.float64) <= found) & (found <= high.astype(np.float64))).all()
    assert not gates.broken_promises(compiler.build(TCGEN05, config, "sm_100a"))


def exact(seed=0):
    problem = small_integers(130, 136, 96, seed=seed, c_dtype="float32", bias=True)
    return problem, problem.bounds()[0]


def test_small_integers_are_exact_with_a_source_and_a_bias():
    problem, expected = exact()
    assert np.array_equal(product_of(ADDING, problem), expected)


@pytest.mark.thorough
def test_both_compilers_give_the_same_bits():
    pytest.importorskip("numba_cuda_mlir")
    problem = real_numbers(140, 136, 160, c_dtype="float32", bias=True)
    first, second = (
        product_of(ADDING, problem, compiled_by=name) for name in ("numba-cuda", "numba-cuda-mlir")
    )
    assert np.array_equal(first, second)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
def test_any_schedule_gives_the_same(seed):
    problem, expected = exact(seed)
    assert np.array_equal(product_of(ADDING, problem, seed=seed), expected)


def test_a_source_that_is_not_added_is_noticed():
    """The multiply-adds by beta become moves of what they were to be added to."""

    def without_c(ptx):
        loads = re.compile(r"ld\.global\.v4\.f32 \{(\S+), (\S+), (\S+), (\S+)\}, \[(\S+)\];")
        zero = "; ".join("mov.f32 {}, 0f00000000" for _ in range(4)).format
        edited, count = loads.subn(lambda found: zero(*found.groups()[:4]) + ";", ptx)
        assert count
        return edited

    problem, expected = exact()
    assert not np.array_equal(product_of(ADDING, problem, edit_ptx=without_c), expected)


def test_the_kernel_is_named_for_what_it_takes():
    device = devices.device("B200")
    problem = BlockProblem(128, 256, 256, source=True, bias=True, activation="silu")
    (candidate,) = [each for each in rank(problem, device) if each.kernel == "tcgen05"]
    assert candidate.config == Tcgen05Config(source=True, bias=True, activation="silu")


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"activation": "gated_silu"}, "activation='gated_silu' must be one of"),
        ({"c_dtype": "float32"}, "c_dtype='float32' with source=False"),
        ({"source": True, "result": "float32"}, "c_dtype must say the type of C"),
    ],
)
def test_a_configuration_that_exists_can_run(fields, message):
    with pytest.raises(ValueError, match=message):
        Tcgen05Config(**fields)
