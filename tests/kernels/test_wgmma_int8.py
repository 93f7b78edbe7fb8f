"""Contract under test: W4A8 on Hopper gives the bits of exact integer sums, scaled in fp32 in the
order of ``reference.activations``, for every configuration and shape, and touches nothing else.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import compiler, quantizers
from numba_marlin.compiler import COMPILERS, gates
from numba_marlin.emulator import Deadlock, PendingCopyRead, RegisterHazard
from numba_marlin.formats.floats import float_type
from numba_marlin.hardware import devices
from numba_marlin.heuristics import rank
from numba_marlin.kernels.w4a8 import choose
from numba_marlin.kernels.w4a8.config import MOST_K
from numba_marlin.kernels.w4a8.wgmma_int8 import KERNEL, WgmmaInt8Config
from numba_marlin.kernels.wgmma import KERNEL as WGMMA
from numba_marlin.problems import ActivationsProblem, WeightProblem
from numba_marlin.quantizers.activations import quantize_rows
from numba_marlin.reference import activations
from numba_marlin.testing.trials import SMALLS
from tests.kernels.edits import change
from tests.kernels.harness import cases, run_kernel

TRY_WAIT = r"(mbarrier\.try_wait\S+ complete, \[%\w+\]), (%\w+);"
NO_WAIT = "setp.eq.u32 complete, 0, 0;"
H200 = devices.device("H200")
SMALL = WgmmaInt8Config(tile_m=16, tile_n=64, warpgroups=1, stages=2)


def operands(m, n, k, config, seed=0):
    """x quantised, a weight, and a bias or None, of random numbers."""
    random = np.random.default_rng(seed + m + n + k)
    x = random.standard_normal((m, k)).astype(float_type(config.dtype))
    weight = quantizers.quantize(
        random.standard_normal((k, n)).astype(np.float32),
        group_size=-1 if config.group_blocks == -1 else 16 * config.group_blocks,
        symmetric=config.zeros is None,
        scale_dtype=config.dtype,
    )
    bias = random.standard_normal(n).astype(x.dtype) if config.bias else None
    return quantize_rows(x), weight, bias


def exact(m, n, k, config, run_on="machine", **options):
    x, weight, bias = operands(m, n, k, config)
    actual = run_kernel(KERNEL, x, weight, config=config, bias=bias, run_on=run_on, **options).c
    expected = activations.kernel_product(x, weight, bias)
    wrong = np.argwhere(actual.view(np.uint16) != expected.view(np.uint16))
    assert not wrong.size, (len(wrong), wrong[:4], actual[:2, :4], expected[:2, :4])


@pytest.mark.parametrize(
    "group_blocks, zeros, dtype, bias",
    cases(
        (
            (-1, None, "float16", False),
            (-1, None, "bfloat16", True),
            (-1, "integer", "float16", True),
            (2, None, "float16", True),
            (2, "integer", "bfloat16", True),
            (4, None, "bfloat16", False),
            (4, "integer", "float16", False),
            (8, None, "float16", False),
            (8, "integer", "bfloat16", False),
        ),
        # two configurations that others below compile too
        lambda *each: each[:2] in ((8, None), (-1, "integer")),
    ),
)
def test_every_type_has_the_references_bits(group_blocks, zeros, dtype, bias, run_on):
    config = replace(SMALL, group_blocks=group_blocks, zeros=zeros, dtype=dtype, bias=bias)
    exact(20, 128, 256, config, run_on)


ARRANGEMENTS = {
    "one strip": SMALL,
    "two strips": replace(SMALL, tile_n=128),
    "four strips": replace(SMALL, tile_n=256),
    "two warpgroups": replace(SMALL, tile_n=128, warpgroups=2),
    "two warpgroups, two strips": replace(SMALL, tile_n=256, warpgroups=2, zeros="integer"),
    "the default": WgmmaInt8Config(),
    "wide columns": WgmmaInt8Config(tile_n=256, group_blocks=-1, stages=4),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_every_arrangement_has_the_same_bits(name, run_on):
    exact(20, 320, 256, ARRANGEMENTS[name], run_on, sms=4)


@pytest.mark.thorough
@pytest.mark.parametrize("zeros", (None, "integer"))
def test_the_other_compiler_gives_the_same_bits(zeros):
    exact(20, 128, 256, replace(SMALL, zeros=zeros), compiled_by=COMPILERS[1], races=True)


@pytest.mark.parametrize(
    "m, n, k",
    cases(((1, 64, 256), (17, 72, 384), (33, 200, 640)), lambda m, n, k: m == 17),
)
def test_tails_of_m_and_n_and_a_ring_that_goes_round(m, n, k, run_on):
    exact(m, n, k, SMALL, run_on, sms=2)


@pytest.mark.parametrize("n, k", cases(((8, 16), (136, 144), (64, 1040)), lambda n, k: n == 136))
def test_tails_of_k(n, k, run_on):
    config = replace(SMALL, group_blocks=-1, zeros="integer", bias=True)
    exact(3, n, k, config, run_on, sms=2)


@pytest.mark.thorough
def test_the_largest_numbers_fit(run_on):
    """Codes of 0, which are -8, and x of 127: the largest sums of a group, to the last bit."""
    k, n = 256, 64
    x = quantize_rows(np.full((2, k), -3.0, np.float16))
    for zeros, codes in ((None, 0), (None, 15), ("integer", 15)):
        config = replace(SMALL, zeros=zeros)
        _, weight, _ = operands(2, n, k, config)
        fixed = {"codes": np.full((k, n), codes, np.uint8)}
        if zeros:
            fixed["zeros"] = np.zeros_like(weight.zeros)
        weight = replace(weight, **fixed)
        actual = run_kernel(KERNEL, x, weight, config=config, run_on=run_on).c
        assert (actual == activations.kernel_product(x, weight)).all()


def test_rows_of_zeros_and_of_nan(run_on):
    """A row of zeros is zeros; a row whose scale is NaN, as a device makes it, is NaN, and no other
    row is."""
    x, weight, _ = operands(4, 64, 128, SMALL)
    scales = x.scales.copy()
    scales[1], scales[2] = 0, np.nan
    x = replace(x, scales=scales)
    actual = run_kernel(KERNEL, x, weight, config=SMALL, run_on=run_on).c
    assert not actual[1].any() and np.isnan(actual[2]).all()
    assert np.isfinite(actual[[0, 3]]).all()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("warpgroups", (1, 2))
def test_any_schedule_gives_the_same_bits_without_a_race(warpgroups, seed):
    config = replace(SMALL, tile_n=64 * warpgroups, warpgroups=warpgroups)
    exact(20, 192, 640, config, seed=seed, races=True, sms=2)


# ---- broken kernels: the machine names the cause

TRIAL = SMALLS["wgmma_int8"]


@pytest.mark.parametrize(
    "broken, error, match",
    (
        # nobody waits for a stage: to be full, or to be empty
        ((TRY_WAIT, NO_WAIT, None), PendingCopyRead, "cp.async.bulk"),
        ((r"wgmma\.wait_group\S+ 0;", "", None), RegisterHazard, "still in flight"),
        ((r"mbarrier\.arrive\.shared::cta[^;]*;", "", None), Deadlock, "mbarrier"),
    ),
)
def test_a_missing_guard_is_a_hazard(broken, error, match):
    pattern, by, which = broken
    with pytest.raises(error, match=match):
        TRIAL.wrong(edit_ptx=change(pattern, by, which))


def test_swapped_columns_are_seen():
    """The registers of columns g and g + 8 exchanged: no hazard, wrong results."""
    swapped = {"25632": "30001", "30001": "25632"}  # 0x6420, 0x7531: selectors of prmt

    def edit(ptx):
        return re.sub(
            r"(prmt\.b32[^;]*, )(25632|30001);",
            lambda found: f"{found[1]}{swapped[found[2]]};",
            ptx,
        )

    assert edit(TRIAL.ptx) != TRIAL.ptx and TRIAL.wrong(edit_ptx=edit) > 0


# ---- what it is chosen for


def test_it_is_found_for_its_problem_and_no_other():
    problem = ActivationsProblem(256, 4096, 4096)
    best = rank(problem, H200)[0]
    assert best.kernel == "wgmma_int8" and best.figures["predicted_us"] > 0
    assert KERNEL.takes.refusals(WeightProblem(256, 4096, 4096)) == ("16-bit activations",)
    assert WGMMA.takes.refusals(problem) == ("8-bit activations",)


def test_the_widest_tile_that_needs_no_totals_is_chosen_for_many_rows():
    """What is expected of a step: 128 x 128 with groups, for half of the words are loaded in vain
    with 64 x 256; 128 x 256, or its transpose, without."""
    tiles = {
        group_size: rank(ActivationsProblem(4096, 8192, 8192, group_size), H200)[0].config
        for group_size in (128, -1)
    }
    assert (tiles[128].tile_m, tiles[128].tile_n) == (128, 128)
    assert tiles[-1].tile_m * tiles[-1].tile_n == 128 * 256
    assert [
        rank(ActivationsProblem(m, 8192, 8192), H200)[0].config.tile_m for m in (1, 16, 20)
    ] == [16, 16, 32]
    counted = choose.step_cycles(WgmmaInt8Config()) / choose.NOT_HIDDEN
    assert counted == pytest.approx(2 * 278, rel=0.03)


@pytest.mark.parametrize(
    "change, refused",
    (
        ({"activations": "fp8"}, "activations=fp8"),
        ({"zeros": "float16"}, "zeros=float16"),
        ({"bits": 8}, "bits=8"),
        ({"group_size": 16}, "group_size=16"),
    ),
)
def test_what_it_does_not_take_is_named(change, refused):
    problem = replace(ActivationsProblem(16, 256, 256), **change)
    assert any(refused in each for each in KERNEL.takes.refusals(problem))


def test_sums_that_do_not_fit_are_refused():
    assert MOST_K * 127 * 128 < 2**31
    with pytest.raises(ValueError, match=f"must be {MOST_K} at most"):
        rank(ActivationsProblem(16, 64, MOST_K + 16, -1), H200)
    assert rank(ActivationsProblem(16, 64, MOST_K, -1), H200)


@pytest.mark.parametrize(
    "change, match",
    (
        ({"tile_m": 24}, "tile_m=24 must be a multiple of 16"),
        ({"tile_n": 96}, "tile_n=96 must be 64, 128 or 256"),
        ({"warpgroups": 2}, "with 64 at least for each of warpgroups=2"),
        ({"group_blocks": 16}, "group_blocks=16 must be -1, 2, 4 or 8"),
        ({"tile_m": 128, "tile_n": 256}, "accumulators a thread, must be 64"),
        ({"stages": 1}, "stages=1 must be at least 2"),
        ({"stages": 60}, "bytes of shared memory"),
        ({"zeros": "float16"}, "zeros='float16' must be None or 'integer'"),
    ),
)
def test_impossible_configurations_name_the_rule(change, match):
    with pytest.raises(ValueError, match=match):
        replace(SMALL, **change)


# ---- what is compiled

PROPOSED = [
    config
    for group_size, zeros in ((128, None), (-1, None), (32, None), (128, "integer"))
    for config in choose.configurations(
        ActivationsProblem(4096, 8192, 8192, group_size, zeros=zeros), H200
    )
]


@pytest.mark.parametrize(
    "config",
    # by default the one that tests/api/test_activations.py compiles
    cases(
        ((config,) for config in PROPOSED), lambda config: config == WgmmaInt8Config(32, stages=10)
    ),
    ids=lambda config: str(config).replace(" ", ""),
)
def test_every_proposal_is_clean(config):
    """No spills, no serialised wgmma, and the products of its tile."""
    compiled = compiler.build(KERNEL, config, target="sm_90a")
    assert not gates.broken_promises(compiled)
    assert gates.opcode_count(compiled, "wgmma.mma_async") == 4 * config.strips
