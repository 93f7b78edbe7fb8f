"""Contract under test: the block-scaled kernel computes D = activation(alpha * A @ B^T + beta * C +
bias) of NVFP4 matrices, for every shape it takes, with every epilogue, and writes block-scaled
results as the quantiser would.

``pytest --run-on cuda`` runs the same tests on a GPU.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import compiler
from numba_marlin.compiler import gates
from numba_marlin.emulator import MachineError, ProxyHazard, Schedule
from numba_marlin.kernels.language.definition import TooMuchSharedMemory
from numba_marlin.kernels.nvfp4.block_scaled import KERNEL
from numba_marlin.kernels.nvfp4.block_scaled.config import BlockScaledConfig
from numba_marlin.kernels.nvfp4.result_codes import ELEMENTS, power_offset
from numba_marlin.quantizers import operands as quantiser
from numba_marlin.testing.launches import on_machine
from numba_marlin.testing.operands import c_dtype_of, real_numbers, small_integers
from tests.kernels.block_problems import (
    SMALL,
    check_exact,
    check_near,
    check_quantised,
    every_code_and_scale,
    prepare,
    run,
)
from tests.kernels.broken import NO_WAIT, POLLS, TRY_WAIT, polls
from tests.kernels.edits import change

FLOATS = replace(SMALL, result="float32", source=False, bias=False)
BLOCKS = replace(FLOATS, result="nvfp4")
LARGE = BlockScaledConfig()


@pytest.mark.parametrize("m, n, k", ((1, 8, 32), (130, 72, 96), (128, 64, 128), (300, 200, 416)))
def test_small_integers_are_exact_at_every_edge(m, n, k, run_on):
    check_exact(small_integers(m, n, k, seed=m, c_dtype="float16", bias=True), SMALL, run_on=run_on)


@pytest.mark.parametrize("blocks", (1, 2, 5, 40))
def test_any_number_of_blocks_shares_the_tiles(blocks, run_on):
    """A block with many tiles, blocks with one or two, blocks that outnumber the tiles: rings go
    round across tiles, and the counter is zero again."""
    check_exact(small_integers(260, 200, 160), FLOATS, sms=blocks, run_on=run_on)


@pytest.mark.thorough
def test_tiles_of_two_blocks_of_rows(run_on):
    check_exact(small_integers(300, 264, 288, seed=3), LARGE, run_on=run_on)


def test_real_numbers_stay_within_their_bounds(run_on):
    check_near(real_numbers(140, 136, 512, c_dtype="float16", bias=True), SMALL, run_on=run_on)
    check_near(real_numbers(140, 136, 512, seed=1), FLOATS, run_on=run_on)


@pytest.mark.parametrize(
    "m, n, global_scale", ((140, 144, 1.0), (129, 96, float(np.float32(0.0371))))
)
def test_nvfp4_results_are_those_of_the_quantiser(m, n, global_scale, run_on):
    problem = real_numbers(m, n, 160, seed=m, global_scale=global_scale)
    check_quantised(problem, BLOCKS, run(problem, FLOATS, run_on=run_on), run_on=run_on)


def test_results_of_extreme_size_are_quantised_alike(run_on):
    """Sums that vanish, overflow the scale, or are zeros: alpha moves them there."""
    for alpha in (2.0**-40, 2.0**-12, 2.0**18, 2.0**60):
        problem = replace(real_numbers(9, 64, 64, seed=5), alpha=alpha)
        check_quantised(problem, BLOCKS, run(problem, FLOATS, run_on=run_on), run_on=run_on)


def test_every_pair_of_codes_and_scales_is_exact(run_on):
    """One product a result: A has every code with every scale, B ones; and the other way round."""
    m, k = 127, 32
    a, b = every_code_and_scale(m)
    base = small_integers(m, 16, k)
    check_exact(replace(base, a=a, b=b, alpha=1.0), FLOATS, run_on=run_on)
    check_exact(
        replace(
            base, a=b, b=replace(a, shape=(m - 7, k), data=a.data[:-7], scales=a.scales), alpha=-2.0
        ),
        FLOATS,
        run_on=run_on,
    )


OTHERS = [
    pytest.param(replace(FLOATS, **fields), marks=pytest.mark.thorough, id=str(fields))
    for fields in (
        {"activation": "relu", "bias": True},
        {"activation": "silu"},
        {"activation": "gelu", "bias": True},
        {"activation": "gated_silu", "bias": True},
        {"tile_n": 128},
        {"tile_m": 256},
        {"result": "bfloat16", "source": True, "activation": "silu"},
        {"result": "float16", "activation": "gated_silu", "tile_n": 128},
        {"group_m": 1},
        {"stages": 3, "expanded_stages": 5},
    )
]


@pytest.mark.parametrize("config", OTHERS)
def test_every_epilogue_stays_within_its_bounds(config, run_on):
    check_near(
        real_numbers(
            150, 208, 224, c_dtype=config.result if config.source else None, bias=config.bias
        ),
        config,
        run_on=run_on,
    )


# type of D, type of C
SOURCES = [
    ("float16", "float32"),
    pytest.param("bfloat16", "float16", marks=pytest.mark.thorough),
    pytest.param("float32", "bfloat16", marks=pytest.mark.thorough),
    pytest.param("float32", "float32", marks=pytest.mark.thorough),
]


@pytest.mark.thorough  # one more than the next test, whose result is quantised
@pytest.mark.parametrize("result, c_dtype", SOURCES)
def test_a_source_of_another_type_than_the_result_is_added(result, c_dtype, run_on):
    """Of rows and columns that do not fill a tile, behind the last of which C ends."""
    config = replace(SMALL, result=result, c_dtype=c_dtype)
    if result != "bfloat16":  # which has too few bits for these integers
        check_exact(small_integers(130, 72, 96, c_dtype=c_dtype, bias=True), config, run_on=run_on)
    check_near(real_numbers(140, 136, 160, c_dtype=c_dtype, bias=True), config, run_on=run_on)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "result, c_dtype",
    [
        ("nvfp4", "float32"),
        pytest.param("nvfp4", "float16", marks=pytest.mark.thorough),
        pytest.param("mxfp4", "float32", marks=pytest.mark.thorough),
        pytest.param("mxfp8-e4m3", "bfloat16", marks=pytest.mark.thorough),
    ],
)
def test_a_block_scaled_result_may_have_a_source(result, c_dtype, run_on):
    """The quantiser's codes and scales, of the same kernel's float32 result, bit for bit."""
    scale = 0.125 if result == "nvfp4" else 1.0
    config = replace(BLOCKS, result=result, source=True, c_dtype=c_dtype, bias=True)
    problem = real_numbers(140, 192, 160, seed=9, c_dtype=c_dtype, bias=True, global_scale=scale)
    numbers = run(problem, replace(config, result="float32"), run_on=run_on)
    check_quantised(problem, config, numbers, run_on=run_on)
    without = replace(problem, c=None, beta=0.0)
    plain = run(without, replace(config, result="float32", source=False, c_dtype=None))
    assert not np.array_equal(plain, numbers), "C has made a difference"


def test_a_source_of_the_results_type_is_one_configuration():
    said = replace(SMALL, c_dtype="float16")
    assert said == SMALL and said.source_tiles and hash(said) == hash(SMALL)
    other = replace(SMALL, c_dtype="float32")
    assert not other.source_tiles and other.source and other.source_bytes == 4


@pytest.mark.thorough
@pytest.mark.parametrize("activation", (None, "relu", "silu", "gelu"))
def test_nan_stays_nan(activation, run_on):
    problem = small_integers(3, 16, 32, bias=True)
    problem.bias[5] = np.nan
    result = run(problem, replace(FLOATS, bias=True, activation=activation), run_on=run_on)
    assert np.isnan(result[:, 5]).all() and np.isfinite(np.delete(result, 5, axis=1)).all()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fields",
    (
        {},
        {"activation": "gated_silu", "bias": True},
        {"rounding": "ceil"},
        {"tile_n": 128, "tile_m": 256},
    ),
    ids=str,
)
@pytest.mark.parametrize("result", ELEMENTS)
def test_every_block_scaled_result_is_that_of_the_quantiser(result, fields, run_on):
    config = replace(BLOCKS, result=result, **fields)
    problem = real_numbers(
        140, 192, 160, seed=9, bias=config.bias, global_scale=0.125 if result == "nvfp4" else 1.0
    )
    check_quantised(
        problem,
        config,
        run(problem, replace(config, result="float32", rounding="floor"), run_on=run_on),
        run_on=run_on,
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config",
    (SMALL, BLOCKS, replace(BLOCKS, source=True, c_dtype="float32", bias=True)),
    ids=("halves", "blocks", "adding"),
)
def test_both_compilers_give_the_same_bits(config):
    pytest.importorskip("numba_cuda_mlir")
    problem = real_numbers(140, 96, 160, c_dtype=c_dtype_of(config), bias=config.bias)
    first, second = (
        run(problem, config, compiled_by=name) for name in ("numba-cuda", "numba-cuda-mlir")
    )
    pairs = (
        ((first.data, second.data), (first.scales, second.scales))
        if config.kind == "scaled"
        else ((first, second),)
    )
    assert all(np.array_equal(one, other) for one, other in pairs)


# ---- order and hazards

FENCE = r"fence\.proxy\.async\.shared::cta;"


@pytest.mark.parametrize("which", range(3))
def test_no_fence_can_be_left_out(which):
    """Both halves of expanded B on their way to wgmma, D on its way to the tensor store."""
    prepared = prepare(WAITING, SMALL, sms=1)
    with pytest.raises(ProxyHazard):
        on_machine(prepared, Schedule(1, "slowest warp", "early"), change(FENCE, "", which), True)


WAITING = small_integers(140, 72, 352, c_dtype="float16", bias=True)
WAITS = 20


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param(wait, marks=() if wait % 6 == 0 else pytest.mark.thorough)
        for wait in range(WAITS)
    ],
)
def test_no_wait_can_be_left_out(wait):
    """A wait that is passed at once: the machine, or the result, says so in some order of
    progress."""
    assert any(
        caught(polls(wait, NO_WAIT), schedule)
        for schedule in (
            None,
            Schedule(1, "reverse"),
            Schedule(0, "any"),
            Schedule(2, "any"),
            Schedule(3, "reverse"),
        )
    )


def test_these_are_all_waits():
    assert len(re.findall(TRY_WAIT, prepare(WAITING, SMALL).compiled.ptx)) == POLLS * WAITS


def caught(edit, schedule):
    prepared = prepare(WAITING, SMALL, sms=1)
    try:
        on_machine(prepared, schedule, edit, True)
    except MachineError:
        return True
    expected, _ = WAITING.bounds()
    return bool(prepared.buffers["locks"].any()) or not np.array_equal(
        prepared.buffers["d"].astype(np.float64), expected
    )


def late_lane(which):
    """Edit: in the ``which``-th place where a warp fetches a tile's number, lane 5 has a copy of
    the code from the poll to the shuffle to itself, and comes to it late. Threads of a warp are
    scheduled independently: PTX does not say that lanes leave a loop together."""

    def edit(ptx):
        polls = [match.start() for match in re.finditer(r"\{\s*\.reg \.pred complete;", ptx)]
        fetches = []
        for shuffle in re.finditer(r"shfl\.sync\.idx", ptx):
            before = [poll for poll in polls if poll < shuffle.start()]
            # only a fetch reads a word between the polls of a wait and a shuffle; the loop of one
            # poll begins with a label
            if before and "ld.shared.b32" in ptx[before[-1] : shuffle.start()]:
                first = before[-2] if POLLS == 2 else ptx.rindex("$L", 0, before[-1])
                fetches.append((first, shuffle.start()))
        assert len(fetches) == FETCHES
        start, end = fetches[which]
        own = re.sub(r"(\$L\w+)", r"\1_late", ptx[start:end])
        assert all(f"{label}:" in own for label in re.findall(r"\$L\w+", own))
        late = (
            "{ .reg .pred late; .reg .b32 lane; mov.u32 lane, %laneid;"
            " setp.ne.u32 late, lane, 5; @late bra $IN_TIME; }"
            "{ .reg .pred more; .reg .b32 left; mov.u32 left, 3000;"
            " $LATER: sub.u32 left, left, 1; setp.ne.u32 more, left, 0; @more bra $LATER; }"
            f"{own} bra.uni $TOGETHER; $IN_TIME: "
        )
        return ptx[:start] + late + ptx[start:end] + " $TOGETHER: " + ptx[end:]

    return edit


FETCHES = 4  # two roles are whole warps, each fetches before its loop and in it


@pytest.mark.thorough
@pytest.mark.parametrize(
    "which", [0, *(pytest.param(each, marks=pytest.mark.thorough) for each in range(1, FETCHES))]
)
def test_a_lane_that_polls_late_misses_no_tile(which):
    assert not caught(late_lane(which), None)


# ---- configurations


@pytest.mark.parametrize(
    "fields, error, message",
    (
        ({"tile_m": 64}, ValueError, "tile_m=64 must be 128 or 256"),
        ({"tile_n": 256}, ValueError, "tile_n=256 must be 64 or 128"),
        ({"result": "int8"}, ValueError, "result='int8' must be one of"),
        ({"result": "nvfp4", "source": True}, ValueError, "c_dtype must say the type of C"),
        ({"result": "float32", "source": True}, ValueError, "c_dtype must say the type of C"),
        ({"c_dtype": "float32"}, ValueError, "c_dtype='float32' with source=False"),
        ({"source": True, "c_dtype": "float64"}, ValueError, "c_dtype='float64' with source=True"),
        ({"activation": "tanh"}, ValueError, "activation='tanh' must be one of"),
        ({"activation": "gated_silu", "source": True}, ValueError, "half as many columns"),
        ({"rounding": "up"}, ValueError, "rounding='up'"),
        ({"stages": 1}, ValueError, "must be at least 2"),
        ({"activation": "gated_silu", "tile_n": 64}, ValueError, "tile_n=64 must be 128 with"),
        ({"expander_registers": 70}, ValueError, "expander_registers=70"),
        ({"group_m": 0}, ValueError, "group_m=0"),
        ({"stages": 6}, TooMuchSharedMemory, "bytes of shared memory"),
    ),
)
def test_a_configuration_that_exists_can_run(fields, error, message):
    with pytest.raises(error, match=message):
        BlockScaledConfig(**fields)


@pytest.mark.parametrize("element", ("e2m1", "e4m3", "e5m2"))
@pytest.mark.parametrize("rounding", quantiser.ROUNDINGS)
def test_kernel_and_quantiser_choose_powers_alike(element, rounding):
    assert power_offset(element, rounding) == quantiser.power_offset(element, rounding)


ADDING = replace(LARGE, result="nvfp4", source=True, c_dtype="float32", bias=True)


@pytest.mark.parametrize(
    "config",
    (SMALL, LARGE, BLOCKS, pytest.param(ADDING, marks=pytest.mark.thorough)),
    ids=("small", "large", "blocks", "adding"),
)
def test_the_assembler_keeps_its_promises(config):
    """No spilled register, no wgmma that waits for another, no 64-bit float."""
    assert not gates.broken_promises(compiler.build(KERNEL, config, target="sm_90a"))
