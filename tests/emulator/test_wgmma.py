"""Contract under test: wgmma multiplies what its registers and descriptors name, when it is waited
for, and whoever comes in between is told."""

import numpy as np
import pytest

from numba_marlin.emulator import (
    MachineError,
    UnknownInstruction,
)
from numba_marlin.emulator.state.listener import Listener
from numba_marlin.emulator.state.memory import SHARED_BASE
from numba_marlin.emulator.tensor.tensor_sums import ADDERS
from tests.emulator.number_cases import product as hopper_product
from tests.emulator.wgmma_programs import (
    BEGIN,
    FENCE,
    ONE,
    SET_UP,
    WAIT,
    integers,
    multiply,
    refused,
    run,
)


@pytest.mark.parametrize(
    "in_registers", [True, False], ids=["A in registers", "A in shared memory"]
)
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("columns, depth", [(8, 16), (24, 64), (64, 128), (256, 64)])
def test_product_of_small_integers_is_exact(columns, depth, swizzle, in_registers):
    a, b, c = (
        integers((64, depth), 1),
        integers((columns, depth), 2),
        integers((64, columns), 3, -99, 99, np.float32),
    )
    got = multiply(a, b, c, swizzle, in_registers)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64).T + c)


@pytest.mark.parametrize("columns", range(8, 257, 8))
def test_every_width(columns):
    a, b = integers((64, 16), columns), integers((columns, 16), 1)
    got = multiply(a, b, np.zeros((64, columns), np.float32), 32, True)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64).T)


@pytest.mark.parametrize("turned", [(0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("columns, depth", [(8, 16), (24, 64), (136, 32)])
def test_transposed_operands(columns, depth, swizzle, turned):
    """The elements of a k side by side, as ``layout.wgmma`` lays them out."""
    a, b = integers((64, depth), 1), integers((columns, depth), 2)
    c = integers((64, columns), 3, -99, 99, np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64).T + c
    assert np.array_equal(multiply(a, b, c, swizzle, False, turned=turned), exact)
    if not turned[0]:
        assert np.array_equal(multiply(a, b, c, swizzle, True, turned=turned), exact)


@pytest.mark.parametrize("in_registers", [True, False])
def test_bfloat16(in_registers):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a, b = (integers(shape, 4, dtype=ml_dtypes.bfloat16) for shape in ((64, 32), (16, 32)))
    c = integers((64, 16), 5, dtype=np.float32)
    got = multiply(a.view(np.uint16), b.view(np.uint16), c, 64, in_registers, kind="bf16")
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64).T + c)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_warpgroups_work_side_by_side_in_any_order(seed):
    a, b, c = (
        integers((128, 64), 6),
        integers((32, 64), 7),
        integers((128, 32), 8, dtype=np.float32),
    )
    got = multiply(a, b, c, 128, True, seed=seed, warpgroups=2)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64).T + c)


def test_16_products_and_the_accumulator_are_added_at_a_time_as_hopper_does():
    rng = np.random.default_rng(9)
    a, b = (
        rng.standard_normal((64, 32)).astype(np.float16),
        rng.standard_normal((16, 32)).astype(np.float16),
    )
    c = rng.standard_normal((64, 16)).astype(np.float32)
    want = c
    for k in (0, 16):
        left, right = (x.view(np.uint16)[None, :, k : k + 16] for x in (a, b))
        want = hopper_product(
            "f16", left, right.swapaxes(1, 2), want.view(np.uint32)[None], ADDERS["sm_90"]
        )[0].view(np.float32)
    assert np.array_equal(multiply(a, b, c, 64, True), want)


def test_scale_d_of_zero_forgets_the_accumulator():
    a, b = integers((64, 32), 10), integers((8, 32), 11)
    got = multiply(a, b, np.full((64, 8), np.nan, np.float32), 64, False, adds=False)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64).T)


def test_imm_scales_negate():
    a, b, c = integers((64, 16), 12), integers((8, 16), 13), integers((64, 8), 14, dtype=np.float32)
    for signs, factor in (("-1, 1", -1), ("1, -1", -1), ("-1, -1", 1)):
        assert np.array_equal(
            multiply(a, b, c, 32, True, signs=signs),
            factor * (a.astype(np.float64) @ b.astype(np.float64).T) + c,
        )


def test_nan_and_infinity_travel():
    a, b = np.ones((64, 16), np.float16), np.ones((8, 16), np.float16)
    a[3, 4], a[20, 5], b[2, 7] = np.nan, np.inf, -np.inf
    got = multiply(a, b, np.zeros((64, 8), np.float32), 32, True)
    assert (
        np.isnan(got[3]).all()
        and np.isinf(got[20, 0])
        and np.isnan(got[20, 2])
        and got[0, 2] == -np.inf
        and got[0, 0] == 16
    )


@pytest.mark.parametrize(
    "wrong",
    [
        ONE.replace("m64n8k16", "m64n12k16"),
        ONE.replace("m64n8k16", "m64n8k8"),
        ONE.replace("f32.f16.f16", "f16.bf16.bf16"),
        ONE.replace("f16.f16", "f16.bf16"),
        ONE.replace(".sync", ""),
        ONE.replace("1, 1, 0", "2, 1, 0"),
        ONE.replace("1, 1, 0", "1, 1, 2"),
        "wgmma.fence.sync;",
        "@%q0 wgmma.commit_group.sync.aligned;",
        "@%q0 wgmma.wait_group.sync.aligned 0;",
        "wgmma.wait_group.sync.aligned -1;",
    ],
)
def test_what_is_not_implemented_is_refused_by_name(wrong):
    refused(UnknownInstruction, SET_UP + FENCE + wrong, "wgmma")


def test_register_counts_fit_the_shape():
    refused(
        MachineError,
        SET_UP + FENCE + ONE.replace("m64n8k16", "m64n16k16"),
        "needs 8 32-bit registers",
    )
    refused(
        MachineError, SET_UP + FENCE + ONE.replace("%a2, %a3", "%a2"), "needs 4 32-bit registers"
    )


def test_reads_of_shared_memory_are_shown_to_whoever_watches():
    seen = []
    run(
        BEGIN + WAIT,
        listener=Listener(
            access=lambda access: seen.append((access.kind, access.nbytes, access.address.tolist()))
        ),
    )
    assert (
        "wgmma",
        16,
        [SHARED_BASE + 16 * i + 128 * j for i in range(8) for j in range(2)],
    ) in seen
