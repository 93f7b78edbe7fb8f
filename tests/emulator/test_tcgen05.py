"""Contract under test: tcgen05 multiplies what its descriptors and its tensor memory name, when its
commit is waited for, and whoever misuses it is told why."""

import numpy as np
import pytest

from numba_marlin.emulator import (
    Schedule,
)
from numba_marlin.emulator.tensor import block_scales as block_scaled
from numba_marlin.formats import small_floats
from tests.emulator.ptx_cases import snippet
from tests.emulator.tcgen05_programs import (
    COMMIT,
    END_ONE,
    MXFP4,
    MXFP8,
    NVFP4,
    ONLY_ONE,
    WAIT,
    Case,
    draw,
    reference,
)


@pytest.mark.parametrize(
    "kind, n, steps, swizzle",
    [
        (NVFP4, 128, 4, 128),
        (NVFP4, 8, 1, 32),
        (NVFP4, 200, 2, 64),
        (NVFP4, 256, 1, 0),
        (MXFP4, 64, 3, 128),
        (MXFP4, 136, 4, 32),
        (MXFP8, 24, 5, 128),
        (MXFP8, 128, 2, 64),
    ],
)
def test_products_are_exact_where_sums_are(kind, n, steps, swizzle):
    operands = draw(kind, n, steps, seed=n + steps)
    left, right = reference(kind, *operands)
    assert np.array_equal(Case(kind, *operands, swizzle=swizzle).run(), left @ right.T)


@pytest.mark.parametrize("kind", [NVFP4, MXFP4, MXFP8], ids=lambda kind: kind.name)
def test_scales_of_every_size_stay_within_fp32_rounding(kind):
    operands = draw(kind, 32, 2, seed=3, exact=False)
    left, right = reference(kind, *operands)
    got, blocks = Case(kind, *operands).run().astype(np.float64), kind.vectors * 2
    sizes = np.abs(left) @ np.abs(right).T
    assert (np.abs(got - left @ right.T) <= blocks * 2.0**-24 * sizes).all() and (
        got != left @ right.T
    ).any()


def test_the_sum_is_the_documented_one():
    """Blocks one after the other in order of k, each rounded to nearest even in fp32."""
    a, b, sfa, sfb = draw(NVFP4, 16, 2, seed=9, exact=False)
    left, right = reference(NVFP4, a, b, sfa, sfb)
    total = np.zeros((128, 16), np.float32)
    for block in range(8):
        part = slice(16 * block, 16 * block + 16)
        total = (
            total.astype(np.longdouble) + (left[:, part] @ right[:, part].T).astype(np.longdouble)
        ).astype(np.float32)
    assert np.array_equal(Case(NVFP4, a, b, sfa, sfb).run(), total)


def test_signs_of_the_descriptor_negate():
    operands = draw(NVFP4, 16, 1, seed=4)
    left, right = reference(NVFP4, *operands)
    for negate, sign in (((True, False), -1), ((False, True), -1), ((True, True), 1)):
        assert np.array_equal(Case(NVFP4, *operands, negate=negate).run(), sign * (left @ right.T))


def test_nan_scales_reach_their_rows_and_columns_only():
    a, b, sfa, sfb = draw(NVFP4, 16, 1, seed=5)
    sfa[77, 2] = 0x7F
    got = Case(NVFP4, a, b, sfa, sfb).run()
    assert np.isnan(got[77]).all() and np.isfinite(np.delete(got, 77, axis=0)).all()


@pytest.mark.parametrize("kind", ["e2m1", "e4m3", "e8m0"])
def test_codes_are_worth_what_the_formats_say(kind):
    assert np.array_equal(
        block_scaled.VALUES[kind].astype(np.float32), small_floats.table(kind), equal_nan=True
    )


SCHEDULES = [None, *range(6), Schedule(7, copies="early"), Schedule(8, order="reverse")]


@pytest.mark.parametrize("seed", SCHEDULES, ids=str)
def test_any_schedule_gives_the_same_bits(seed):
    operands = draw(NVFP4, 24, 4, seed=6, exact=False)
    assert np.array_equal(
        Case(NVFP4, *operands).run(seed=seed, races=True), Case(NVFP4, *operands).run()
    )


def test_what_was_stored_is_loaded_and_added_to():
    case = Case(NVFP4, *draw(NVFP4, 8, 1, seed=7))
    left, right = reference(NVFP4, *draw(NVFP4, 8, 1, seed=7))
    store = (
        "shl.b32 %m, %w, 21; add.u32 %x5, %base, %m; cvt.rn.f32.u32 %d9, %t;\n"
        + snippet("tcgen05_st_32x32b_f32", "%x5", ("%d9",) * 8, n=8)
        + snippet("tcgen05_wait_st")
    )
    store += (
        snippet("tcgen05_fence_before_thread_sync")
        + "bar.sync 0;\n"
        + snippet("tcgen05_fence_after_thread_sync")
    )
    got = case.run(
        case.set_up()
        + store
        + ONLY_ONE
        + case.copies()
        + case.product(0, adds=True)
        + COMMIT
        + END_ONE
        + case.read_back(WAIT)
        + case.finish()
    )
    assert np.array_equal(got, left @ right.T + np.arange(128)[:, None])
