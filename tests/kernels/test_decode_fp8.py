"""Contract under test: ``decode_fp8`` gives the bits of exact sums where nothing is rounded in
fp32, and else what is within the bound of fp8, whoever shares a tile. And it touches nothing else.
"""

from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import compiler
from numba_marlin.compiler import COMPILERS, gates
from numba_marlin.emulator import Deadlock, PendingCopyRead
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.hardware import devices
from numba_marlin.heuristics import rank
from numba_marlin.kernels.decode import choose as decode
from numba_marlin.kernels.w4a8.decode_fp8 import KERNEL
from numba_marlin.kernels.w4a8.few_rows import choose
from numba_marlin.problems import ActivationsProblem
from numba_marlin.reference import activations
from numba_marlin.testing.activations import check_product
from numba_marlin.testing.trials import SMALLS
from tests.kernels.edits import change
from tests.kernels.few_rows import operands, product
from tests.kernels.harness import cases

H200 = devices.device("H200")
TRIAL = SMALLS["decode_fp8"]
SMALL = TRIAL.config
TRY_WAIT = r"(mbarrier\.try_wait\S+ complete, \[%\w+\]), (%\w+);"
NO_WAIT = "setp.eq.u32 complete, 0, 0;"
COLUMNS = replace(SMALL, group_blocks=-1, ragged=True, zeros="integer", bias=True)
ALONE = replace(SMALL, warps_k=1, whole=True, zeros="integer")
BRAIN = {"dtype": "bfloat16", "scale_dtype": "bfloat16"}
ARRANGEMENTS = {
    "shared tiles": SMALL,
    "columns, ragged": COLUMNS,
    "columns, ragged, 24 rows, bfloat16": replace(COLUMNS, batch=24, zeros=None, **BRAIN),
    "columns, 32 rows": replace(ALONE, batch=32, group_blocks=-1, zeros=None),
    "groups of 32 in order": replace(ALONE, group_blocks=2),
    "groups of 64 in order, 16 rows": replace(ALONE, batch=16, bias=True, **BRAIN),
    "groups of 128 in order, 32 rows": replace(ALONE, batch=32, group_blocks=8, zeros=None),
    "groups of 128 in two warps, ragged": replace(SMALL, group_blocks=8, ragged=True),
    "groups of 32, ragged, zero points": replace(
        SMALL, group_blocks=2, ragged=True, zeros="integer", bias=True, batch=16, **BRAIN
    ),
    "groups of 64, ragged, 32 rows": replace(
        SMALL, ragged=True, zeros="integer", batch=32, warps_k=1
    ),
    "eight warps along k": replace(SMALL, warps_n=1, warps_k=8, stage_k=256, group_blocks=8),
}


@pytest.mark.parametrize(
    "name",
    cases(
        ((name,) for name in ARRANGEMENTS), lambda name: name in ("shared tiles", "columns, ragged")
    ),
)
def test_every_arrangement_is_right(name, run_on):
    """To the last bit where nothing is rounded, else within the bound."""
    config = ARRANGEMENTS[name]
    m, n, k = (19, 200, 656 + 240) if config.ragged else (19, 256, 768)
    x, weight, bias = operands(m, n, k, config, exact=True)
    actual = product(x, weight, config, bias, run_on=run_on, sms=3)
    expected = activations.kernel_product(x, weight, bias)
    assert np.array_equal(actual.view(np.uint16), expected.view(np.uint16))
    x, weight, bias = operands(m, n, k, config)
    check_product(
        product(x, weight, config, bias, run_on=run_on, sms=3), x, weight, bias, offsets=False
    )


def test_every_number_of_e4m3_meets_every_code(run_on):
    """A row of x for each finite number of e4m3: one product each, so that nothing is rounded in
    fp32, at every position of 16 of k."""
    config = replace(SMALL, group_blocks=8, zeros="integer")
    numbers = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    m, n, k = len(numbers), 128, 128
    _, weight, _ = operands(m, n, k, config)
    codes = np.arange(k * n).reshape(k, n) // 8 % 16
    weight = replace(
        weight,
        codes=codes.astype(np.uint8),
        zeros=(np.arange(n) % 16)[None].astype(weight.zeros.dtype),
        scales=np.ones_like(weight.scales),
    )
    x = np.zeros((m, k), np.uint8)
    x[np.arange(m), 37 * np.arange(m) % k] = numbers
    x = QuantizedActivations.of_codes("fp8", x, np.ones(m, np.float32), None, "float16")
    actual = product(x, weight, config, run_on=run_on, sms=3)
    assert np.array_equal(actual, activations.kernel_product(x, weight))


@pytest.mark.thorough
@pytest.mark.parametrize("zeros, code", ((None, 15), ("integer", 15)))
def test_deep_sums_of_one_sign_are_within_the_bound(zeros, code, run_on):
    """Of one accumulator, in which partial sums are as large as can be."""
    config = replace(ALONE, group_blocks=-1, zeros=zeros)
    x, weight, _ = operands(2, 128, 28672, config)
    weight = replace(weight, codes=np.full_like(weight.codes, code))
    if zeros:
        weight = replace(weight, zeros=np.zeros_like(weight.zeros))
    codes = x.codes.view(np.uint8) & 0x7F
    codes[1] = 0x7E
    x = QuantizedActivations.of_codes("fp8", codes, np.full(2, 1e-6, np.float32), None, x.dtype)
    check_product(product(x, weight, config, run_on=run_on, sms=4), x, weight, offsets=False)


@pytest.mark.thorough
@pytest.mark.parametrize("config", (SMALL, COLUMNS))
def test_the_other_compiler_gives_the_same_bits(config):
    m, n, k = (3, 136, 656) if config.ragged else (3, 128, 640)
    x, weight, bias = operands(m, n, k, config)
    one, other = (
        product(x, weight, config, bias, sms=3, compiled_by=each, races=True) for each in COMPILERS
    )
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))


@pytest.mark.parametrize(
    "pattern, by, error",
    (
        (TRY_WAIT, NO_WAIT, PendingCopyRead),
        (r"mbarrier\.arrive\.shared::cta[^;]*;", "", Deadlock),
    ),
)
def test_a_missing_guard_is_a_hazard(pattern, by, error):
    with pytest.raises(error):
        TRIAL.wrong(edit_ptx=change(pattern, by, None))


@pytest.mark.parametrize(
    "pattern, by",
    (
        (r"(cvt\.rn\.f16x2\.e4m3x2 %\w+), high;", r"\1, low;"),
        (r"1677747200;", "1610637312;"),  # 1024 in a pair of halves, into which a code goes: 512
    ),
)
def test_a_wrong_half_is_seen(pattern, by):
    assert TRIAL.wrong(edit_ptx=change(pattern, by, None)) > 0


# ---- what it is chosen for


@pytest.mark.parametrize("m, chosen", ((1, True), (8, True), (65, False), (512, False)))
def test_it_is_chosen_for_few_rows_and_says_whose_time_that_is(m, chosen):
    best = rank(ActivationsProblem(m, 8192, 8192, activations="fp8"), H200)[0]
    assert best.kernel == ("decode_fp8" if chosen else "wgmma_fp8")
    assert any("behind the quantisation of x" in each for each in best.reasons) == chosen


def test_only_whole_tiles_have_an_order_of_sums():
    assert SMALL.order_of_sums is None and COLUMNS.order_of_sums is None
    orders = {replace(ALONE, batch=batch).order_of_sums for batch in (8, 16, 32)}
    assert len(orders) == 1 and None not in orders


def test_arrangements_are_those_that_do_not_spill_with_one_block_on_a_multiprocessor():
    alone = {each for each in decode.FITTED if each.resident == 1}
    assert alone < set(choose.FITTED["fp8"])
    every = {(each.batch, each.warps_n, each.warps_k) for each in choose.FITTED["fp8"]}
    assert all(each.resident == 1 for fitted in choose.FITTED.values() for each in fitted)
    for group_size, zeros, spill in (
        (-1, None, set()),
        (-1, "integer", set()),
        (128, None, {(32, 8, 1)}),
        (64, "integer", {(32, 8, 1), (16, 8, 1)}),
    ):
        problem = ActivationsProblem(16, 8192, 8192, group_size, zeros=zeros, activations="fp8")
        found = choose.configurations(problem, H200)
        assert {(each.batch, each.warps_n, each.warps_k) for each in found} == every - spill
    assert choose.configurations(ActivationsProblem(65, 8192, 8192, activations="fp8"), H200) == []


PROPOSED = [
    config
    for group_size, zeros in ((128, None), (-1, "integer"), (32, "integer"))
    for config in choose.configurations(
        ActivationsProblem(16, 8192, 8192, group_size, zeros=zeros, activations="fp8"), H200
    )
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config",
    cases(((each,) for each in PROPOSED), lambda config: config == PROPOSED[0]),
    ids=lambda config: str(config).replace(" ", ""),
)
def test_every_proposal_is_clean_and_converts_every_byte_of_x_once(config):
    compiled = compiler.build(KERNEL, config, target="sm_90a")
    assert not gates.broken_promises(compiled)
    rows = config.rows_per_warp
    assert gates.opcode_count(compiled, "mma.sync.aligned.m16n8k16") == rows * 4 * config.n8_blocks
    assert gates.opcode_count(compiled, "cvt.rn.f16x2.e4m3x2") == rows * 2 * config.n8_blocks


@pytest.mark.parametrize(
    "wrong, match",
    (
        ({"bits": 8}, "bits=8"),
        ({"zeros": "float16"}, "zeros='float16' must be None or 'integer'"),
        ({"group_blocks": 16}, "group_blocks=16 must be -1, 2, 4 or 8"),
        ({"scale_dtype": "bfloat16"}, "must be dtype='float16'"),
    ),
)
def test_what_cannot_be_is_refused(wrong, match):
    with pytest.raises(ValueError, match=match):
        replace(SMALL, **wrong)
