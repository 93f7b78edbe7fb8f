"""Contract under test: ``decode_int8`` gives, with one scale per column, the bits of exact sums
whoever shares a tile; of groups the same where a warp has them in order, or where nothing is
rounded, and else what is within the bound of parts of 16. And it touches nothing else.
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
from numba_marlin.kernels.w4a8.decode_int8 import KERNEL
from numba_marlin.kernels.w4a8.few_rows import choose
from numba_marlin.kernels.w4a8.wgmma_int8 import WgmmaInt8Config
from numba_marlin.problems import ActivationsProblem
from numba_marlin.reference import activations
from numba_marlin.testing.activations import check_product
from numba_marlin.testing.trials import SMALLS
from tests.kernels.edits import change
from tests.kernels.few_rows import operands, product
from tests.kernels.harness import cases

H200 = devices.device("H200")
TRIAL = SMALLS["decode_int8"]
SMALL = TRIAL.config
TRY_WAIT = r"(mbarrier\.try_wait\S+ complete, \[%\w+\]), (%\w+);"
NO_WAIT = "setp.eq.u32 complete, 0, 0;"
COLUMNS = replace(SMALL, group_blocks=-1, ragged=True, zeros="integer", bias=True)
ALONE = replace(SMALL, warps_k=1, whole=True, zeros="integer")
ARRANGEMENTS = {
    "columns, ragged, shared tiles": COLUMNS,
    "columns, 24 rows": replace(COLUMNS, batch=24, zeros=None),
    "groups of 32 in order": replace(ALONE, group_blocks=2),
    "groups of 64 in order, 16 rows": replace(
        ALONE, batch=16, dtype="bfloat16", scale_dtype="bfloat16"
    ),
    "groups of 128 in order, 32 rows": replace(ALONE, batch=32, group_blocks=8, zeros=None),
}
PARTS = {
    "shared tiles": SMALL,
    "groups of 128 in two warps, ragged": replace(SMALL, group_blocks=8, ragged=True),
    "groups of 32, ragged, zero points": replace(
        SMALL, group_blocks=2, ragged=True, zeros="integer", bias=True, batch=16
    ),
    "eight warps along k": replace(SMALL, warps_n=1, warps_k=8, stage_k=256, group_blocks=8),
}


@pytest.mark.parametrize(
    "name", cases(((name,) for name in ARRANGEMENTS), lambda name: name.startswith("columns, rag"))
)
def test_bits_are_those_of_exact_sums(name, run_on):
    config = ARRANGEMENTS[name]
    m, n, k = (19, 200, 656) if config.ragged else (19, 256, 640)
    x, weight, bias = operands(m, n, k, config)
    check_product(product(x, weight, config, bias, run_on=run_on, sms=3), x, weight, bias)


@pytest.mark.parametrize(
    "name", cases(((name,) for name in PARTS), lambda name: name == "shared tiles")
)
def test_parts_of_groups_are_right(name, run_on):
    """To the last bit where nothing is rounded, else within the bound."""
    config = PARTS[name]
    m, n, k = (11, 200, 896) if config.ragged else (11, 256, 768)
    x, weight, bias = operands(m, n, k, config, exact=True)
    check_product(product(x, weight, config, bias, run_on=run_on, sms=3), x, weight, bias)
    x, weight, bias = operands(m, n, k, config)
    check_product(product(x, weight, config, bias, run_on=run_on, sms=3), x, weight, bias, depth=16)


@pytest.mark.thorough
def test_the_largest_sums_are_exact(run_on):
    """k as deep as is taken, all codes as far from their zero points, all x, as they can be."""
    for zeros, code in ((None, 0), ("integer", 15)):
        config = replace(COLUMNS, zeros=zeros, bias=False)
        k = config.most_k
        x, weight, _ = operands(1, 64, k, config)
        weight = replace(weight, codes=np.full((k, 64), code, np.uint8))
        if zeros:
            weight = replace(weight, zeros=np.zeros_like(weight.zeros))
        codes = np.full((1, k), 127, np.int8)
        codes[0, :: k // 2] = 126
        x = QuantizedActivations.of_codes(
            "int8", codes, np.full(1, 1e-4, np.float32), None, x.dtype
        )
        check_product(product(x, weight, config, run_on=run_on, sms=4), x, weight)
        with pytest.raises(ValueError, match=f"must be {k} at most"):
            config.grid(1, 64, k + 16, 4)


@pytest.mark.thorough
@pytest.mark.parametrize("zeros", (None, "integer"))
def test_deeper_sums_are_within_the_bound(zeros, run_on):
    """Codes and x as large as can be, all of one sign: four times as many as fp32 has exactly."""
    config = replace(COLUMNS, zeros=zeros, deep=True)
    k = 4 * config.most_k
    x, weight, bias = operands(2, 64, k, config)
    weight = replace(weight, codes=np.full((k, 64), 15, np.uint8))
    if zeros:
        weight = replace(weight, zeros=np.zeros_like(weight.zeros))
    codes = np.full((2, k), 127, np.int8)
    codes[0] = np.random.default_rng(k).integers(1, 128, k)
    x = QuantizedActivations.of_codes("int8", codes, np.full(2, 1e-6, np.float32), None, x.dtype)
    check_product(product(x, weight, config, bias, run_on=run_on, sms=4), x, weight, bias, depth=16)


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
        (r"25632;", "30001;"),  # selectors of prmt: columns g + 8 in place of g
        (r"-2139062144;|2155905152;", "0;"),  # the flipped highest bit: 16 (c - 8)
    ),
)
def test_a_wrong_byte_is_seen(pattern, by):
    assert TRIAL.wrong(edit_ptx=change(pattern, by, None)) > 0


# ---- what it is chosen for


@pytest.mark.parametrize("m, chosen", ((1, True), (8, True), (65, False), (512, False)))
def test_it_is_chosen_for_few_rows_and_says_whose_time_that_is(m, chosen):
    best = rank(ActivationsProblem(m, 8192, 8192), H200)[0]
    assert (best.kernel == "decode_int8") == chosen
    assert any("behind the quantisation of x" in each for each in best.reasons) == chosen


def test_the_order_of_sums_is_that_of_wgmma_int8_where_bits_are():
    key = WgmmaInt8Config().order_of_sums
    assert all(each.order_of_sums == key for each in ARRANGEMENTS.values())
    assert all(each.order_of_sums is None for each in PARTS.values())
    assert replace(SMALL, whole=True).order_of_sums not in (None, key)


def test_sums_that_fp32_rounds_claim_no_order():
    key = WgmmaInt8Config().order_of_sums
    for zeros in (None, "integer"):
        most = replace(COLUMNS, zeros=zeros).most_k
        for k, deep in ((most, False), (most + 16, True)):
            problem = ActivationsProblem(1, 8192, k, -1, zeros=zeros)
            best = rank(problem, H200)[0]
            assert best.kernel == "decode_int8" and best.config.deep == deep
            found = choose.configurations(problem, H200)
            assert {each.order_of_sums == key for each in found} == {not deep}
    alone = replace(ALONE, group_blocks=-1, deep=True)
    assert alone.order_of_sums not in (None, key)
    grouped = choose.configurations(ActivationsProblem(1, 8192, 2**15, 128), H200)
    assert not any(each.deep for each in grouped)


PROPOSED = [
    config
    for group_size, zeros in ((128, None), (-1, None), (32, "integer"))
    for config in choose.configurations(
        ActivationsProblem(16, 8192, 8192, group_size, zeros=zeros), H200
    )
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config",
    cases(((each,) for each in PROPOSED), lambda config: config == PROPOSED[0]),
    ids=lambda config: str(config).replace(" ", ""),
)
def test_every_proposal_is_clean_and_has_half_as_many_products_as_decode(config):
    compiled = compiler.build(KERNEL, config, target="sm_90a")
    assert not gates.broken_promises(compiled)
    products = config.pairs * 4 * config.n8_blocks
    assert gates.opcode_count(compiled, "mma.sync.aligned.m16n8k32") == products


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


def test_arrangements_are_those_of_decode_and_more_with_one_block_on_a_multiprocessor():
    of_decode = {each for each in decode.FITTED if each.batch <= 16 and each.resident == 1}
    assert of_decode < set(choose.FITTED["int8"])
    assert len(PROPOSED) == 3 * len(choose.FITTED["int8"])
    assert all(each.resident == 1 for each in PROPOSED)
    assert choose.configurations(ActivationsProblem(65, 8192, 8192), H200) == []


def test_the_bound_of_parts_is_not_less_than_that_of_groups():
    x, weight, bias = operands(2, 64, 256, SMALL)
    whole = activations.error_bound(x, weight, bias)
    assert (activations.error_bound(x, weight, bias, depth=16) >= whole).all()
