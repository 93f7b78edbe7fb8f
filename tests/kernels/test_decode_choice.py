"""Contract under test: the choices for the decode kernel are configurations that exist, compile to clean code, and lead where they led on an H200."""
import pytest

from numba_marlin import compiler
from numba_marlin.compiler import gates
from numba_marlin.kernels.decode import KERNEL
from numba_marlin.kernels.decode_choice import ARRANGEMENTS, choices

MEASURED = {  # (m, n, k) -> microseconds of the fastest on an H200, g = 128, launches back to back
    (1, 8192, 8192): 11.4, (8, 8192, 8192): 12.6, (16, 8192, 8192): 15.0, (32, 8192, 8192): 20.3, (1, 8192, 28672): 30.9, (16, 8192, 28672): 35.3,
    (1, 57344, 8192): 57.0, (16, 57344, 8192): 63.3, (1, 33792, 33792): 127.1, (8, 33792, 33792): 129.6, (16, 33792, 33792): 136.7, (32, 33792, 33792): 206.0,
}


@pytest.mark.parametrize("problem", MEASURED)
def test_the_first_choice_takes_about_as_long_as_the_fastest_did(problem):
    best = choices(*problem, 128, 132)[0]
    assert best.microseconds == pytest.approx(MEASURED[problem], rel=0.1)


@pytest.mark.parametrize("m", (1, 9, 33))
@pytest.mark.parametrize("n, k, group_size", ((8, 16, -1), (576, 7168, 32), (7392, 10944, 64), (131072, 131072, 256)))
def test_any_problem_has_choices_and_they_fit_it(m, n, k, group_size):
    for choice in choices(m, n, k, group_size, 132, bias=True):
        config = choice.config
        assert choice.microseconds > 0 and config.bias
        assert config.ragged or (k % config.stage_k == 0 and n % config.columns == 0)
        assert 1 <= config.grid(m, n, k, 132)[0] <= 132


def test_all_choices_share_nothing_but_what_they_must():
    assert {config.whole for config in (choice.config for choice in choices(1, 8192, 8192, 128, 132))} == {False, True}


@pytest.mark.parametrize("group_size, n, dtype, bias", ((128, 8192, "float16", False), (-1, 8200, "bfloat16", True), (32, 8200, "float16", True)))
@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=str)
def test_every_choice_compiles_to_clean_code(arrangement, group_size, n, dtype, bias):
    config = next(choice.config for choice in choices(5, n, 8192, group_size, 132, dtype, bias=bias)
                  if (choice.config.batch, choice.config.warps_n, choice.config.warps_k) == (arrangement.batch, arrangement.warps_n, arrangement.warps_k))
    compiled = compiler.build(KERNEL, config, target="sm_90a")
    assert not gates.broken_promises(compiled)
    rows = config.rows_per_warp + (1 if config.ragged else 0)  # the loop over a stage, and the row at a time of its tail
    mma = "mma.sync.aligned.m16n8k16"
    assert gates.opcode_count(compiled, mma) == rows * 4 * config.batch_blocks
