"""Contract under test: decode, wgmma and general multiply by block-scaled FP4 exactly: every code
times every scale, every shape and type they take, whatever the order of events.

``pytest --run-on cuda`` runs the same tests on a GPU.
"""

from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import compiler, reference, testing
from numba_marlin.compiler import gates
from numba_marlin.formats import BlockWeight
from numba_marlin.formats.floats import round_to
from numba_marlin.kernels.decode import KERNEL as DECODE
from numba_marlin.kernels.decode import DecodeConfig
from numba_marlin.kernels.general import KERNEL as GENERAL
from numba_marlin.kernels.general import GeneralConfig
from numba_marlin.kernels.wgmma import KERNEL as WGMMA
from numba_marlin.kernels.wgmma import WgmmaConfig
from numba_marlin.quantizers import dequantize
from tests.kernels.configurations import (
    BLOCKS,
    FEW_ROWS,
    MANY_ROWS,
    ONE_WORD,
    SINGLE_ROWS,
    SLOW,
    TWO_WORDS,
    configured,
)
from tests.kernels.harness import cases, run_kernel, target_of

pytest.importorskip("ml_dtypes")

# The usual ones have between them both kernels, both kinds, both types, and every way that scales
# get to registers but one.
EVERY = [
    (config, kind, dtype)
    for kind, dtype in (
        ("nvfp4", "float16"),
        ("mxfp4", "bfloat16"),
        ("mxfp4", "float16"),
        ("nvfp4", "bfloat16"),
    )
    for config in (FEW_ROWS, SINGLE_ROWS, MANY_ROWS, TWO_WORDS, ONE_WORD, SLOW)
]
USUAL = [
    (FEW_ROWS, "nvfp4", "float16"),
    (SINGLE_ROWS, "mxfp4", "bfloat16"),
    (MANY_ROWS, "nvfp4", "bfloat16"),
    (ONE_WORD, "mxfp4", "float16"),
    (SLOW, "nvfp4", "float16"),
]
CONFIGURATIONS = cases(EVERY, lambda *each: each in USUAL)
# m, n, k
SHAPES = ((2, 256, 640), (5, 72, 112), (1, 8, 16), (3, 64, 48), (33, 200, 336), (17, 136, 32))


def kernel_of(config):
    return {DecodeConfig: DECODE, WgmmaConfig: WGMMA, GeneralConfig: GENERAL}[type(config)]


def run(config, x, weight, bias, run_on, **options):
    """bias: None for one of zeros, if the configuration adds one."""
    bias = np.zeros(weight.n, x.dtype) if bias is None else bias
    return run_kernel(
        kernel_of(config),
        x,
        weight,
        bias=bias if config.bias else None,
        config=config,
        run_on=run_on,
        **options,
    ).c


def wrong_places(actual, expected):
    return np.argwhere(actual.astype(np.float64) != expected.astype(np.float64))


@pytest.mark.parametrize("config, kind, dtype", CONFIGURATIONS)
def test_every_shape_is_exact_on_small_integers(config, kind, dtype, run_on):
    config = configured(config, kind, dtype)
    for m, n, k in SHAPES:
        k = max(k, 16 * BLOCKS[kind])
        problem = testing.exact_blocks(kind, m, n, k, seed=m + n + k, dtype=dtype, bias=config.bias)
        wrong = wrong_places(
            run(config, problem.x, problem.weight, problem.bias, run_on, a_stride=k + 8),
            problem.expected,
        )
        assert not len(wrong), (
            f"m={m}, n={n}, k={k}: {len(wrong)} wrong, the first at {wrong[:4].tolist()}"
        )


def every_code_times_every_scale(kind):
    """[32, 512] or so: each column has one scale, or two, and each block every code."""
    rng = np.random.default_rng(5)
    codes = np.stack(
        [
            rng.permutation(
                np.tile(np.arange(16, dtype=np.uint8), 2).reshape(2, 16), axis=1
            ).reshape(32)
            for _ in range(512)
        ],
        axis=1,
    )
    if kind == "nvfp4":
        scales = np.delete(np.arange(256), (0x7F, 0xFF)).astype(np.uint8)
        return BlockWeight(
            codes,
            "e2m1",
            np.resize(np.stack([scales, scales[::-1]]), (2, 254))[:, np.arange(512) % 254].astype(
                np.uint8
            ),
            "e4m3",
            (16, 1),
        )
    return BlockWeight(
        codes, "e2m1", (np.arange(512) % 255).astype(np.uint8)[None], "e8m0", (32, 1)
    )


@pytest.mark.parametrize("config, kind, dtype", CONFIGURATIONS)
def test_every_code_times_every_scale_comes_out_bit_for_bit(config, kind, dtype, run_on):
    """Rows of the identity: the result is the weight, through all of the kernel. bfloat16 has room
    for all of e8m0 but its largest products."""
    config, weight = configured(config, kind, dtype), every_code_times_every_scale(kind)
    assert all(
        len(np.unique(weight.codes[first : first + 16, column])) == 16
        for column in (0, 511)
        for first in (0, 16)
    )
    x = round_to(np.eye(32), dtype)
    expected = round_to(dequantize(weight, "float64"), dtype)
    actual = run(config, x, weight, None, run_on)
    wrong = wrong_places(actual, expected)
    assert not len(wrong), (
        f"{len(wrong)} wrong, the first at {wrong[:4].tolist()}: {actual[tuple(wrong[0])]}, is"
        f" {expected[tuple(wrong[0])]}"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("config, kind, dtype", CONFIGURATIONS)
def test_real_data_is_within_its_bound(config, kind, dtype, run_on):
    config, m, n, k = configured(config, kind, dtype), 9, 200, 1040
    weight = testing.make_blocks(
        kind,
        k,
        n,
        7,
        global_scale=float(np.float32(0.0037)),
        divides=kind == "mxfp4",
        ordinary=True,
    )
    rng = np.random.default_rng(11)
    x, bias = (
        round_to(rng.standard_normal((m, k)), dtype),
        round_to(100 * rng.standard_normal(n), dtype),
    )
    verdict = reference.check(
        run(config, x, weight, bias, run_on),
        x,
        weight,
        bias if config.bias else None,
        order="random",
        method=kernel_of(config).method(config),
    )
    assert verdict.ok, verdict


@pytest.mark.parametrize(
    "factor, expected", [(2.0**60, "inf"), (2.0**-60, "zero"), (2.0**-20, "small")]
)
def test_the_global_scale_meets_the_sum_in_float32(factor, expected, run_on):
    """Products that fit in no half, times a factor that brings them back; results that do not fit
    are infinite, never NaN."""
    config = configured(FEW_ROWS, "nvfp4", "float16")
    codes, scales = np.full((64, 64), 7, np.uint8), np.full((4, 64), 0x7E, np.uint8)  # 6 * 448
    weight = BlockWeight(codes, "e2m1", scales, "e4m3", (16, 1), factor)
    x = np.full((2, 64), 512, np.float16)
    y = run(config, x, weight, None, run_on)
    assert (y == {"inf": np.inf, "zero": 0, "small": 64 * 512 * 6 * 448 * 2.0**-20}[expected]).all()


@pytest.mark.thorough
def test_races_and_schedules():
    for config, kind, dtype in (USUAL[0], USUAL[3]):
        config, (m, n, k) = configured(config, kind, dtype), (18, 200, 336)
        problem = testing.exact_blocks(kind, m, n, k, seed=1, dtype=dtype, bias=config.bias)
        for seed in (None, 1):
            actual = run(
                config, problem.x, problem.weight, problem.bias, "machine", seed=seed, races=True
            )
            assert not len(wrong_places(actual, problem.expected)), f"schedule {seed}"


@pytest.mark.thorough
@pytest.mark.parametrize("config, kind, dtype", EVERY)
def test_both_compilers_give_the_same_bits(config, kind, dtype, run_on):
    pytest.importorskip("numba_cuda_mlir")
    if config == ONE_WORD:
        pytest.skip("numba-cuda-mlir 0.6 cannot compile it, with whatever weights")
    config, (m, n, k) = configured(config, kind, dtype), (5, 72, 336)
    weight = testing.make_blocks(kind, k, n, 3, ordinary=True)
    x, bias = (
        round_to(np.random.default_rng(1).standard_normal((m, k)), dtype),
        round_to(np.ones(n), dtype),
    )
    one, other = (
        run(config, x, weight, bias, run_on, compiled_by=by)
        for by in ("numba-cuda", "numba-cuda-mlir")
    )
    assert (one == other).all()


@pytest.mark.parametrize("config, kind, dtype", CONFIGURATIONS)
def test_code_is_clean_and_expands_without_a_multiplication(config, kind, dtype):
    """No spills, no local memory, no float64; and multiplications by scales alone: four for four
    registers of codes."""
    config = configured(config, kind, dtype)
    if config.codes == "e2m1" and isinstance(config, GeneralConfig):
        pytest.skip("it multiplies floats of 32 bits")
    compiled = compiler.build(kernel_of(config), config, target=target_of("machine"))
    assert not gates.broken_promises(compiled)
    products = (
        compiled.ptx.count("mul.f16x2") + compiled.ptx.count("mul.rn.f16x2")
        if dtype == "float16"
        else compiled.ptx.count("fma.rn.bf16x2")
    )
    if isinstance(config, DecodeConfig):
        rows = config.rows_per_warp + 1  # and the row at a time of a stage's tail
        assert products == rows * 4 * 4
    else:
        assert products % (4 * config.strips * 4) == 0 < products


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(group_blocks=8), "codes='e2m1' with group_blocks=8"),
        (dict(bits=8), "bits=8"),
        (dict(zeros="integer"), "zeros=integer"),
        (dict(codes="e3m2"), "codes='e3m2' must be one of"),
    ],
)
def test_configurations_that_cannot_be_are_refused(change, message):
    for config in (
        configured(FEW_ROWS, "nvfp4", "float16"),
        configured(MANY_ROWS, "nvfp4", "float16"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(config, **change)
