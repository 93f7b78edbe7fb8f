"""Contract under test: W4A8 on Hopper gives, for every configuration and shape, the bits of exact
sums, scaled in fp32 in the order of ``reference.activations``: in int8 always, in fp8 of small
integers; of other numbers fp8 is within its error bound. And it touches nothing else.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import compiler
from numba_marlin.compiler import COMPILERS, gates
from numba_marlin.emulator import Deadlock, PendingCopyRead, RegisterHazard
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.small_floats import encode
from numba_marlin.hardware import devices
from numba_marlin.heuristics import candidate, rank
from numba_marlin.kernels.w4a8 import choose
from numba_marlin.kernels.w4a8.config import MOST_K, WgmmaFp8Config, WgmmaInt8Config
from numba_marlin.kernels.wgmma import KERNEL as WGMMA
from numba_marlin.problems import ActivationsProblem, WeightProblem
from numba_marlin.quantizers.activations import quantize_rows
from numba_marlin.reference import activations
from numba_marlin.testing.trials import SMALLS
from tests.kernels.edits import change
from tests.kernels.harness import cases
from tests.kernels.many_rows import (
    KERNELS,
    KINDS,
    PAIR,
    SMALL,
    SMALLEST,
    operands,
    product,
    right,
    same_bits,
)

TRY_WAIT = r"(mbarrier\.try_wait\S+ complete, \[%\w+\]), (%\w+);"
NO_WAIT = "setp.eq.u32 complete, 0, 0;"
H200 = devices.device("H200")


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
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_is_right(kind, group_blocks, zeros, dtype, bias, run_on):
    config = replace(SMALLEST[kind], group_blocks=group_blocks, zeros=zeros, dtype=dtype, bias=bias)
    right(20, 128, 256, config, run_on)
    same_bits(20, 128, 256, config, run_on)


ARRANGEMENTS = {
    "one strip": {},
    "two strips": {"tile_n": 128},
    "four strips": {"tile_n": 256},
    "two warpgroups": {"tile_n": 128, "warpgroups": 2},
    "two warpgroups, two strips": {"tile_n": 256, "warpgroups": 2, "zeros": "integer"},
    "in turns": PAIR,
    "in turns, two strips, groups of 32": PAIR | {"tile_n": 256, "group_blocks": 2},
    "in turns, 192 rows": PAIR | {"tile_m": 192, "stages": 5},
    "128 x 128": {"tile_m": 128, "tile_n": 128, "warpgroups": 2, "stages": 6},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ARRANGEMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_arrangement_is_right(kind, name, run_on):
    config = replace(SMALLEST[kind], **ARRANGEMENTS[name])
    right(20, 320, 256, config, run_on, sms=4)
    same_bits(20, 320, 256, config, run_on, sms=4)


@pytest.mark.thorough
def test_wide_columns_are_right(run_on):
    """Where nothing is promoted there is room for twice the sums."""
    right(20, 320, 256, WgmmaInt8Config(tile_n=256, group_blocks=-1, stages=4), run_on, sms=4)


@pytest.mark.thorough
@pytest.mark.parametrize("zeros", (None, "integer"))
@pytest.mark.parametrize("kind", KINDS)
def test_the_other_compiler_gives_the_same_bits(kind, zeros):
    config = replace(SMALLEST[kind], zeros=zeros, **PAIR)
    same_bits(20, 128, 256, config, compiled_by=COMPILERS[1], races=True)


@pytest.mark.parametrize("zeros", (None, "integer"))
@pytest.mark.parametrize("kind", KINDS)
def test_every_code_and_zero_point_is_its_number(kind, zeros, run_on):
    """x is 1 at one k of each row: the product is a row of the weight, all codes and zero points
    in it."""
    config = replace(SMALLEST[kind], zeros=zeros)
    m, n, k = 16, 256, 128
    x, weight, _ = operands(m, n, k, config)
    number = np.arange(n) + 16 * np.arange(k)[:, None] % 256
    fixed = {"codes": (number % 16).astype(np.uint8), "scales": np.ones_like(weight.scales)}
    if zeros:
        fixed["zeros"] = (np.arange(n)[None] // 16 % 16).astype(weight.zeros.dtype)
    weight = replace(weight, **fixed)
    one = np.zeros((m, k), np.float32)
    one[np.arange(m), 8 * np.arange(m) + np.arange(m) % 8] = 1
    codes = one.astype(np.int8) if kind == "int8" else encode(one, "e4m3")
    x = QuantizedActivations.of_codes(kind, codes, np.ones(m, np.float32), None, x.dtype)
    actual = product(x, weight, config, run_on=run_on)
    rows = 8 * np.arange(m) + np.arange(m) % 8
    zero = fixed["zeros"].astype(int) if zeros else 8
    assert np.array_equal(actual, fixed["codes"].astype(int)[rows] - zero)


@pytest.mark.parametrize(
    "m, n, k",
    cases(((1, 64, 256), (17, 72, 384), (33, 200, 640)), lambda m, n, k: m == 17),
)
@pytest.mark.parametrize("kind", KINDS)
def test_tails_of_m_and_n_and_a_ring_that_goes_round(kind, m, n, k, run_on):
    right(m, n, k, SMALLEST[kind], run_on, sms=2)


@pytest.mark.parametrize("n, k", cases(((8, 16), (136, 144), (64, 1040)), lambda n, k: n == 136))
@pytest.mark.parametrize("kind", KINDS)
def test_tails_of_k(kind, n, k, run_on):
    config = replace(SMALLEST[kind], group_blocks=-1, zeros="integer", bias=True)
    right(3, n, k, config, run_on, sms=2)


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
        actual = product(x, weight, config, run_on=run_on)
        assert (actual == activations.kernel_product(x, weight)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_zeros_and_of_nan(kind, run_on):
    """A row of zeros is zeros; a row whose scale is NaN, as a device makes it, is NaN, and no other
    row is."""
    x, weight, _ = operands(4, 64, 128, SMALLEST[kind])
    scales = x.scales.copy()
    scales[1], scales[2] = 0, np.nan
    x = replace(x, scales=scales)
    actual = product(x, weight, SMALLEST[kind], run_on=run_on)
    assert not actual[1].any() and np.isnan(actual[2]).all()
    assert np.isfinite(actual[[0, 3]]).all()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "change",
    (
        {},
        {"tile_n": 128, "warpgroups": 2},
        PAIR,
        PAIR | {"group_blocks": 2},
        PAIR | {"parts": 2},
        {"parts": 3, "group_blocks": -1},
    ),
)
@pytest.mark.parametrize("kind", KINDS)
def test_any_schedule_gives_the_same_bits_without_a_race(kind, change, seed):
    config = replace(SMALLEST[kind], **change)
    same_bits(20, 192, 640, config, seed=seed, races=True, sms=2 * config.parts)


# ---- broken kernels: the machine names the cause

TRIAL = SMALLS["wgmma_int8"]
ORDERED = SMALLS["wgmma_fp8, two warpgroups in turns"]


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


@pytest.mark.thorough
@pytest.mark.parametrize("which", (0, 1))
def test_a_turn_that_is_not_given_over_is_a_deadlock(which):
    """0: before the first, 1: after a group."""
    with pytest.raises(Deadlock):
        ORDERED.wrong(edit_ptx=change(r"bar\.arrive[^;]*;", "", which))


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


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_found_for_its_problem_and_no_other(kind):
    problem = ActivationsProblem(256, 4096, 4096, activations=kind)
    best = rank(problem, H200)[0]
    assert best.kernel == f"wgmma_{kind}" and best.figures["predicted_us"] > 0
    refusals = KERNELS[kind].takes.refusals
    assert refusals(WeightProblem(256, 4096, 4096)) == ("16-bit activations times one weight",)
    assert WGMMA.takes.refusals(problem) == ("8-bit activations",)


@pytest.mark.parametrize("kind", KINDS)
def test_the_widest_tile_that_there_is_room_for_is_chosen_for_many_rows(kind):
    """192 rows with totals beside the sums, 128 x 256, or its transpose, without."""
    tiles = {
        group_size: rank(ActivationsProblem(4096, 8192, 8192, group_size, activations=kind), H200)[
            0
        ].config
        for group_size in (128, -1)
    }
    promoted = [each for each in tiles.values() if each.promotes]
    assert len(promoted) == {"int8": 1, "fp8": 2}[kind]
    fp8 = kind == "fp8"  # with offsets turns gain nothing in tiles so high
    assert all(
        (each.tile_m, each.tile_n, each.ordered, each.offsets) == (192, 128, not fp8, fp8)
        for each in promoted
    )
    if kind == "int8":
        assert tiles[-1].tile_m * tiles[-1].tile_n == 128 * 256
    assert [
        candidate(
            ActivationsProblem(m, 57344, 8192, activations=kind), H200, f"wgmma_{kind}"
        ).config.tile_m
        for m in (1, 16, 20)
    ] == [16, 16, 32]


@pytest.mark.parametrize(
    "config, sass",
    (
        (WgmmaInt8Config(), 278),
        (WgmmaInt8Config(zeros="integer"), 315),
        (WgmmaInt8Config(64, 256), 324),
        (WgmmaFp8Config(), 190),
        (WgmmaFp8Config(zeros="integer"), 205),
        (WgmmaFp8Config(64, 256), 276),
        (WgmmaFp8Config(192, 128, stages=5, ordered=True), 228),
        (WgmmaFp8Config(192, 128, stages=5, offsets=True), 183),
    ),
)
def test_instructions_are_counted_as_the_assembler_makes_them(config, sass):
    assert choose.instructions(config) == pytest.approx(sass, rel=0.04)


@pytest.mark.parametrize(
    "change, refused",
    (
        ({"zeros": "float16"}, "zeros=float16"),
        ({"bits": 8}, "bits=8"),
        ({"group_size": 16}, "group_size=16"),
    ),
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_does_not_take_is_named(kind, change, refused):
    problem = replace(ActivationsProblem(16, 256, 256, activations=kind), **change)
    assert any(refused in each for each in KERNELS[kind].takes.refusals(problem))
    other = replace(problem, activations=KINDS[1 - KINDS.index(kind)])
    assert f"activations={other.activations}" in KERNELS[kind].takes.refusals(other)


def test_sums_that_do_not_fit_are_refused():
    assert MOST_K * 127 * 128 < 2**31
    with pytest.raises(ValueError, match=f"must be {MOST_K} at most"):
        rank(ActivationsProblem(65, 64, MOST_K + 16, -1), H200)
    assert rank(ActivationsProblem(65, 64, MOST_K, -1), H200)
    # decode_int8 adds up parts in fp32
    few = rank(ActivationsProblem(16, 64, MOST_K + 16, -1), H200)
    assert {each.kernel for each in few} == {"decode_int8"}


@pytest.mark.parametrize(
    "change, match",
    (
        ({"tile_m": 24}, "tile_m=24 must be a multiple of 16"),
        ({"tile_n": 96}, "tile_n=96 must be 64, 128 or 256"),
        ({"warpgroups": 2}, "with 64 at least for each of warpgroups=2"),
        ({"group_blocks": 16}, "group_blocks=16 must be -1, 2, 4 or 8"),
        ({"tile_m": 128, "tile_n": 256}, "accumulators a thread, must be 96"),
        ({"ordered": True}, "ordered=True needs warpgroups=1 to be 2"),
        (PAIR | {"group_blocks": -1}, "and sums to promote"),
        ({"stages": 1}, "stages=1 must be at least 2"),
        ({"stages": 60}, "bytes of shared memory"),
        ({"zeros": "float16"}, "zeros='float16' must be None or 'integer'"),
        ({"parts": 5}, "parts=5 must be 1 or one of"),
    ),
)
def test_impossible_configurations_name_the_rule(change, match):
    with pytest.raises(ValueError, match=match):
        replace(SMALL, **change)


# ---- what is compiled

PROPOSED = dict.fromkeys(
    config
    for group_size, zeros in ((128, None), (-1, None), (32, None), (128, "integer"))
    for kind in KINDS
    for m, n in ((4096, 8192), (64, 8192), (128, 2048), (256, 8192))
    for config in choose.configurations(
        ActivationsProblem(m, n, 8192, group_size, zeros=zeros, activations=kind), H200
    )
)


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
    compiled = compiler.build(KERNELS[config.activations], config, target="sm_90a")
    assert not gates.broken_promises(compiled)
    # with offsets the last stage's and a block of offsets' beside those of the loop
    products = 4 * (3 if config.offsets else 1)
    assert gates.opcode_count(compiled, "wgmma.mma_async") == products * config.strips
