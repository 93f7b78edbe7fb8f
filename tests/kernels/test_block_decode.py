"""Contract under test: the kernel for few rows of A computes D = activation(alpha * A @ B^T + beta
* C + bias) of NVFP4 matrices, for every shape it takes, whoever shares k.

``pytest --run-on cuda`` runs the same tests on a GPU.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import compiler
from numba_marlin.compiler import gates
from numba_marlin.emulator import MachineError, Schedule
from numba_marlin.formats.operands import BlockScaled
from numba_marlin.kernels.language.definition import TooMuchSharedMemory
from numba_marlin.kernels.nvfp4.block_decode import KERNEL
from numba_marlin.kernels.nvfp4.block_decode.config import BlockDecodeConfig
from numba_marlin.testing.launches import on_machine
from numba_marlin.testing.operands import real_numbers, small_integers
from tests.kernels.block_problems import FEW_ROWS as SMALL
from tests.kernels.block_problems import check_exact, check_near, every_code_and_scale, prepare, run
from tests.kernels.broken import NO_WAIT, POLLS, TRY_WAIT, polls

FLOATS = replace(SMALL, result="float32", source=False, bias=False)
ALONE = replace(SMALL, split=1, k_warps=4)


@pytest.mark.parametrize("m, n, k", ((1, 8, 32), (3, 136, 96), (8, 128, 512), (9, 200, 544)))
def test_small_integers_are_exact_at_every_edge(m, n, k, run_on):
    check_exact(small_integers(m, n, k, seed=m, c_dtype="float16", bias=True), SMALL, run_on=run_on)


SHARED_OUT = [
    replace(FLOATS, tokens=tokens, k_warps=k_warps, split=split, stages=max(2, k_warps // 2))
    for tokens, k_warps, split in (
        (8, 2, 1),
        (8, 4, 4),
        (16, 2, 2),
        (16, 4, 1),
        (32, 2, 8),
        (32, 4, 2),
        (8, 8, 2),
    )
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            each,
            # most tokens with most blocks, fewest with most warps
            marks=() if number in (4, 6) else pytest.mark.thorough,
            id=f"{each.tokens}, {each.k_warps} by {each.split}",
        )
        for number, each in enumerate(SHARED_OUT)
    ],
)
def test_k_is_shared_out_without_a_rest(config, run_on):
    """Fewer steps than shares, as many, and some more; more tokens than a block has."""
    for m, k in ((5, 64), (19, 1024), (40, 2336)):
        check_exact(small_integers(m, 136, k, seed=k), config, run_on=run_on)


def test_real_numbers_stay_within_their_bounds(run_on):
    check_near(real_numbers(13, 136, 1056, c_dtype="float16", bias=True), SMALL, run_on=run_on)
    check_near(real_numbers(13, 136, 1056, seed=1), replace(FLOATS, tokens=16), run_on=run_on)


def test_every_pair_of_codes_and_scales_is_exact(run_on):
    """One product a result: B has every code with every scale, A ones; and the other way round."""
    every, ones = every_code_and_scale(120)
    base = small_integers(16, 120, 32)
    check_exact(replace(base, a=ones, b=every, alpha=1.0), FLOATS, run_on=run_on)
    check_exact(replace(base, a=every, b=ones, alpha=-2.0), FLOATS, run_on=run_on)


OTHERS = [
    pytest.param(replace(FLOATS, **fields), id=str(fields), marks=pytest.mark.thorough)
    for fields in (
        {"activation": "relu", "bias": True},
        {"activation": "silu"},
        {"activation": "gelu", "bias": True},
        {"result": "bfloat16", "source": True, "activation": "silu"},
        {"result": "float16"},
        {"stages": 3},
    )
]


@pytest.mark.parametrize("config", OTHERS)
def test_every_epilogue_stays_within_its_bounds(config, run_on):
    check_near(
        real_numbers(
            11, 208, 736, c_dtype=config.result if config.source else None, bias=config.bias
        ),
        config,
        run_on=run_on,
    )


def test_nan_stays_where_it_is(run_on):
    problem = small_integers(3, 136, 64, c_dtype="float16", bias=True)
    problem.bias[5] = np.nan
    problem.c[1, 130] = np.nan
    result = run(problem, SMALL, run_on=run_on)
    assert (
        np.isnan(result[:, 5]).all()
        and np.isnan(result[1, 130])
        and np.isfinite(np.delete(result, 5, axis=1)).sum() == 3 * 135 - 1
    )


@pytest.mark.thorough
@pytest.mark.parametrize("config", (SMALL, ALONE), ids=("two blocks", "one block"))
def test_both_compilers_give_the_same_bits(config):
    pytest.importorskip("numba_cuda_mlir")
    problem = real_numbers(13, 136, 1056, c_dtype="float16", bias=True)
    first, second = (
        run(problem, config, compiled_by=name) for name in ("numba-cuda", "numba-cuda-mlir")
    )
    assert np.array_equal(first, second)


def test_a_row_has_the_same_bits_in_any_company(run_on):
    """Whatever m is, and wherever the row stands: k is shared out in the same way."""
    whole = real_numbers(16, 136, 1056, seed=4)
    together = run(whole, replace(FLOATS, tokens=16), run_on=run_on)
    for row in (0, 7, 13):
        alone = replace(
            whole,
            a=BlockScaled(
                "nvfp4",
                (1, 1056),
                whole.a.data[row : row + 1],
                whole.a.with_scales("plain").scales[row : row + 1],
                whole.a.global_scale,
            ).with_scales("128x4"),
        )
        assert np.array_equal(run(alone, FLOATS, run_on=run_on)[0], together[row])


# ---- hazards

WAITING = small_integers(9, 136, 2336)
WAITS = 2
SHARED = (FLOATS, replace(FLOATS, split=1, k_warps=4))


@pytest.mark.parametrize("config", SHARED, ids=("two blocks", "one block"))
@pytest.mark.parametrize("wait", range(WAITS))
def test_no_wait_can_be_left_out(wait, config):
    assert not caught(config, None, None)
    assert any(
        caught(config, polls(wait, NO_WAIT), schedule)
        for schedule in (
            None,
            Schedule(1, "reverse"),
            Schedule(0, "any"),
            Schedule(2, "any"),
            Schedule(3, "reverse"),
        )
    )


def test_these_are_all_waits():
    assert len(re.findall(TRY_WAIT, prepare(WAITING, FLOATS).compiled.ptx)) == POLLS * WAITS


def caught(config, edit, schedule):
    prepared = prepare(WAITING, config)
    try:
        on_machine(prepared, schedule, edit, True)
    except MachineError:
        return True
    return not np.array_equal(prepared.buffers["d"].astype(np.float64), WAITING.bounds()[0])


# ---- configurations


@pytest.mark.parametrize(
    "fields, error, message",
    (
        ({"tokens": 4}, ValueError, "tokens=4 must be 8, 16 or 32"),
        ({"k_warps": 3}, ValueError, "k_warps=3 must be 2, 4 or 8"),
        ({"split": 3}, ValueError, "split=3 must be 1, 2, 4 or 8"),
        ({"result": "nvfp4"}, ValueError, "result='nvfp4' must be one of"),
        ({"result": "float32", "source": True}, ValueError, "C is read as 16-bit"),
        ({"activation": "gated_silu"}, ValueError, "activation='gated_silu' must be one of"),
        (
            {"tokens": 32, "k_warps": 8, "stages": 4},
            ValueError,
            "do not fit into shared memory together",
        ),
        ({"stages": 1, "k_warps": 2}, ValueError, "must be at least 2"),
        ({"stages": 3}, ValueError, "stages=3 must be at least 2 and a multiple of k_warps"),
        ({"stages": 12}, TooMuchSharedMemory, "bytes of shared memory"),
    ),
)
def test_a_configuration_that_exists_can_run(fields, error, message):
    with pytest.raises(error, match=message):
        BlockDecodeConfig(**fields)


@pytest.mark.parametrize(
    "config",
    (
        SMALL,
        pytest.param(BlockDecodeConfig(), marks=pytest.mark.thorough),
        # as tests/api/test_block_scaled.py has it chosen
        BlockDecodeConfig(tokens=32, split=2, result="bfloat16", source=True, bias=True),
    ),
    ids=("small", "usual", "32 tokens"),
)
def test_the_assembler_keeps_its_promises(config):
    assert gates.broken_promises(compiler.build(KERNEL, config, target="sm_90a")) == []
