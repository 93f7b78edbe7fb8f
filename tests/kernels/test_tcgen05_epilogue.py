"""Contract under test: Blackwell's epilogue, activation(alpha * A @ B^T + beta * C + bias), a
block-scaled D of it, C that a warp of its own loads ahead, and the scheduler that hands tiles out,
on the PTX machine: no GPU here has its instructions."""

import re
from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import compiler, counts
from numba_marlin.compiler import gates
from numba_marlin.emulator import Machine, MachineError, Schedule
from numba_marlin.formats.floats import round_to
from numba_marlin.hardware import devices
from numba_marlin.heuristics import rank
from numba_marlin.kernels.nvfp4.result_codes import ELEMENTS
from numba_marlin.kernels.nvfp4.tcgen05.config import Tcgen05Config
from numba_marlin.problems import BlockProblem
from numba_marlin.testing import operands
from numba_marlin.testing.launches import launch_on, on_machine
from numba_marlin.testing.operands import real_numbers, small_integers
from tests.kernels.blackwell import TCGEN05
from tests.kernels.block_problems import check_exact, check_quantised, run
from tests.kernels.broken import NO_WAIT, POLLS, TRY_WAIT, polls
from tests.kernels.edits import change

ADDING = Tcgen05Config(source=True, bias=True, c_dtype="float32")
BLOCKS = Tcgen05Config(result="nvfp4", source=True, bias=True, c_dtype="float32")
CONFIGS = [
    ADDING,
    pytest.param(
        Tcgen05Config(source=True, bias=True, activation="gelu"), marks=pytest.mark.thorough
    ),
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


@pytest.mark.parametrize(
    "c_dtype", ["float32", pytest.param("float16", marks=pytest.mark.thorough)]
)
def test_small_integers_are_exact_with_a_source_and_a_bias(c_dtype):
    """A block has several tiles, so that the rings of C and of numbers go round; races looked for;
    the counter is zero again."""
    config = replace(ADDING, c_dtype=c_dtype)
    problem = small_integers(260, 136, 96, c_dtype=c_dtype, bias=True)
    check_exact(problem, config, sms=1, races=True)


@pytest.mark.thorough
@pytest.mark.parametrize("blocks", (2, 3, 40))
def test_any_number_of_blocks_shares_the_tiles(blocks):
    problem = small_integers(300, 264, 96, c_dtype="float32", bias=True)
    check_exact(problem, replace(ADDING, group_m=2), sms=blocks)


def numbers_of(problem, config, **options):
    """The same kernel's result before it is quantised."""
    return run(problem, replace(config, result="float32", rounding="floor"), **options)


def test_an_exact_product_is_quantised_as_the_quantiser_does():
    """Of rows and columns that do not fill a tile; the last scale block stands alone in its 32."""
    problem = small_integers(140, 144, 96, c_dtype="float32", bias=True)
    check_quantised(problem, BLOCKS, problem.bounds()[0].astype(np.float32), sms=1, races=True)


@pytest.mark.thorough
def test_nvfp4_results_are_those_of_the_quantiser():
    """A global scale, and every code and scale; C has made a difference."""
    problem = real_numbers(
        140, 144, 160, seed=9, c_dtype="float32", bias=True, global_scale=float(np.float32(0.0371))
    )
    numbers = numbers_of(problem, BLOCKS)
    check_quantised(problem, BLOCKS, numbers, sms=1, races=True)
    without = numbers_of(replace(problem, c=None, beta=0.0), Tcgen05Config(bias=True))
    assert not np.array_equal(without, numbers)


@pytest.mark.thorough
@pytest.mark.parametrize("rounding", ("floor", "ceil"))
@pytest.mark.parametrize("result", ELEMENTS)
def test_every_block_scaled_result_is_that_of_the_quantiser(result, rounding):
    config = Tcgen05Config(256, 3, result=result, rounding=rounding, activation="silu")
    scale = 0.125 if result == "nvfp4" else 1.0
    problem = real_numbers(140, 288, 160, seed=4, global_scale=scale)
    check_quantised(problem, config, numbers_of(problem, config))


@pytest.mark.thorough
def test_results_of_extreme_size_are_quantised_alike():
    """Sums that vanish, overflow the scale, or are zeros: alpha moves them there."""
    config = Tcgen05Config(result="nvfp4")
    for alpha in (2.0**-40, 2.0**-12, 2.0**18, 2.0**60):
        problem = replace(real_numbers(9, 64, 64, seed=5), alpha=alpha)
        check_quantised(problem, config, numbers_of(problem, config))


@pytest.mark.parametrize(
    "config",
    [
        ADDING,
        pytest.param(Tcgen05Config(source=True), marks=pytest.mark.thorough),
        pytest.param(replace(BLOCKS, c_dtype="float16"), marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_no_access_to_c_or_results_conflicts(config):
    problem = small_integers(128, 128, 64, c_dtype=config.source_dtype, bias=config.bias)
    prepared = operands.prepare(problem, config, sms=1)
    machine = Machine(prepared.compiled.ptx)
    total = counts.count(machine, **launch_on(machine, prepared))[1].total.tally
    assert total.shared.conflicts == 0
    of_c_and_d = 128 * 128 * (config.source_bytes + config.result_bytes)
    assert total.copied["tensor"] == config.copied_bytes + of_c_and_d


def test_lone_threads_are_elected():
    for config, roles in ((ADDING, 4), (Tcgen05Config(), 3)):
        ptx = compiler.build(TCGEN05, config, "sm_100a").ptx
        assert len(re.findall(r"elect\.sync", ptx)) == roles


def test_nothing_is_read_before_the_launch_before_has_ended():
    """The launch is a dependent one: the machine refuses to read what may not be written yet."""
    problem, _ = exact()
    with pytest.raises(MachineError, match="griddepcontrol.wait"):
        run(problem, ADDING, edit_ptx=change(r"griddepcontrol\.wait;"), races=True)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "config",
    (ADDING, replace(BLOCKS, tile_n=64), replace(BLOCKS, result="mxfp8-e4m3")),
    ids=("adding", "blocks", "eight bits"),
)
def test_both_compilers_give_the_same_bits(config):
    """numba-cuda-mlir takes minutes."""
    pytest.importorskip("numba_cuda_mlir")
    problem = real_numbers(140, 160, 160, c_dtype="float32", bias=True)
    first, second = (
        run(problem, config, compiled_by=name) for name in ("numba-cuda", "numba-cuda-mlir")
    )
    assert same(first, second, config)


def same(first, second, config):
    """Bit for bit, scales too."""
    if not config.scaled:
        return np.array_equal(first, second)
    return np.array_equal(first.data, second.data) and np.array_equal(first.scales, second.scales)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
def test_any_schedule_gives_the_same(seed):
    problem, expected = exact(seed)
    assert np.array_equal(product_of(ADDING, problem, seed=seed), expected)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("config", (ADDING, BLOCKS), ids=("adding", "blocks"))
def test_forty_schedules(config):
    """Of blocks with several tiles each, with races looked for."""
    problem = real_numbers(260, 144, 288, seed=6, c_dtype="float32", bias=True)
    expected = run(problem, config)
    for number in range(40):
        found = run(problem, config, sms=1 + number % 2, seed=Schedule.drawn(number), races=True)
        assert same(found, expected, config), number


WAITING = small_integers(260, 136, 352, c_dtype="float32", bias=True)
WAITS = 21


@pytest.mark.parametrize(
    "wait",
    [pytest.param(wait, marks=() if wait == 17 else pytest.mark.thorough) for wait in range(WAITS)],
)
def test_no_wait_can_be_left_out(wait):
    """A wait that is passed at once: the machine, or the result, says so in some order of
    progress."""
    assert any(
        caught(polls(wait, NO_WAIT), schedule)
        for schedule in (None, Schedule(1, "reverse"), Schedule(0, "any"), Schedule(2, "any"))
    )


def test_these_are_all_waits():
    ptx = compiler.build(TCGEN05, ADDING, "sm_100a").ptx
    assert len(re.findall(TRY_WAIT, ptx)) == POLLS * WAITS


def caught(edit, schedule):
    prepared = operands.prepare(WAITING, ADDING, sms=1)
    try:
        on_machine(prepared, schedule, edit, True)
    except MachineError:
        return True
    return bool(prepared.buffers["locks"].any()) or not np.array_equal(
        prepared.buffers["d"].astype(np.float64), WAITING.bounds()[0]
    )


def test_c_is_kept_until_all_lanes_have_read_it():
    """Without the warp's barrier behind the reads lane 0 gives a stage back before others have."""
    early = change(r"bar\.warp\.sync[^;]*;", which=2)
    assert any(caught(early, Schedule(each, "any")) for each in range(3))


def test_a_source_that_is_not_added_is_noticed():
    """What is read of C becomes zeros."""

    def without_c(ptx):
        loads = re.compile(r"ld\.shared\.v4\.f32 \{(\S+), (\S+), (\S+), (\S+)\}, \[[^\]]+\];")
        zero = "; ".join("mov.f32 {}, 0f00000000" for _ in range(4)).format
        edited, count = loads.subn(lambda found: zero(*found.groups()) + ";", ptx)
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
        ({"source": True, "result": "nvfp4"}, "c_dtype must say the type of C"),
    ],
)
def test_a_configuration_that_exists_can_run(fields, message):
    with pytest.raises(ValueError, match=message):
        Tcgen05Config(**fields)
