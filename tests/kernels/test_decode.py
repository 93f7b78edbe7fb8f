"""Contract under test: the decode kernel computes C = A @ W in every configuration, for every shape it takes, whoever shares a tile with whom.

``pytest --run-on cuda`` runs the same tests on a GPU.
"""
from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import reference, testing
from numba_marlin.formats.floats import float_type
from numba_marlin.kernels.decode import KERNEL, DecodeConfig
from numba_marlin.quantize import quantize
from tests.kernels.harness import run_kernel

NARROW = DecodeConfig(warps_n=1, warps_k=2, stage_k=64, stages=3)
SHAPES = {
    "one warp": DecodeConfig(warps_n=1, warps_k=1, stage_k=64, stages=2),
    "wide": DecodeConfig(warps_n=4, warps_k=1, stage_k=64, stages=3),
    "deep": DecodeConfig(warps_n=1, warps_k=4, stage_k=128, stages=3),
    "deepest": DecodeConfig(warps_n=1, warps_k=8, stage_k=256, stages=2),
    "both": DecodeConfig(warps_n=2, warps_k=2, stage_k=128, stages=3),
}


def exact(m, n, k, group_size, config, run_on, **options):
    problem = testing.exact_problem(m, n, k, group_size, seed=m + n + k)
    config = replace(config, group_blocks=-1 if group_size == -1 else group_size // 16)
    actual = run_kernel(KERNEL, problem.x, problem.weight, config=config, run_on=run_on, **options).c
    assert (actual == problem.expected).all(), np.argwhere(actual != problem.expected)[:4]


@pytest.mark.parametrize("name", SHAPES)
def test_every_arrangement_of_warps_is_exact(name, run_on):
    exact(5, 512, 512, 128, SHAPES[name], run_on, sms=2)


@pytest.mark.parametrize("group_size", (-1, 32, 64, 128, 256))
@pytest.mark.parametrize("stage_k", (64, 256))
def test_groups_larger_and_smaller_than_a_stage(stage_k, group_size, run_on):
    exact(3, 128, 512, group_size, DecodeConfig(warps_n=2, warps_k=2, stage_k=stage_k, stages=3), run_on, sms=2)


@pytest.mark.parametrize("batch, m", ((8, 1), (8, 8), (16, 9), (16, 16), (24, 20), (32, 31)))
def test_rows_that_do_not_exist_are_never_written(batch, m, run_on):
    exact(m, 128, 256, 64, replace(NARROW, batch=batch), run_on, sms=1)


def test_several_tiles_of_rows_share_one_launch(run_on):
    exact(19, 128, 128, 64, NARROW, run_on, sms=3)


@pytest.mark.parametrize("sms", (1, 2, 3, 5, 7, 16))
def test_stripes_of_any_number_of_blocks(sms, run_on):
    """Tiles cut at every place: whole ones, one shared by many blocks, a block with parts of two."""
    exact(2, 192, 640, 64, NARROW, run_on, sms=sms)


@pytest.mark.parametrize("sms", (1, 2, 5))
def test_whole_tiles_need_no_workspace(sms, run_on):
    exact(2, 256, 320, 64, replace(NARROW, whole=True), run_on, sms=sms)


@pytest.mark.parametrize("n", (8, 64, 72, 200))
@pytest.mark.parametrize("k, group_size", ((16, -1), (144, -1), (192, 64), (224, 32)))
def test_tails_of_k_and_n(k, group_size, n, run_on):
    exact(3, n, k, group_size, DecodeConfig(warps_n=2, warps_k=2, stage_k=128, stages=2, ragged=True), run_on, sms=2)


def test_rows_of_activations_may_lie_apart(run_on):
    exact(4, 64, 128, 64, NARROW, run_on, sms=1, a_stride=136)


@pytest.mark.parametrize("group_size", (-1, 128))
def test_real_data_stays_under_the_elementwise_bound(group_size, run_on):
    generator = np.random.default_rng(0)
    x, weight = generator.standard_normal((11, 512)).astype(np.float16), quantize(generator.standard_normal((512, 128)).astype(np.float32), group_size=group_size)
    config = DecodeConfig(batch=16, warps_n=1, warps_k=2, stage_k=128, stages=3, group_blocks=-1 if group_size == -1 else 8)
    report = reference.check(run_kernel(KERNEL, x, weight, config=config, sms=3, run_on=run_on).c, x, weight, method=KERNEL.method(config))
    assert report.ok, report


@pytest.mark.parametrize("dtype, scale_dtype", (("float16", "bfloat16"), ("bfloat16", "float16"), ("bfloat16", "bfloat16")))
@pytest.mark.parametrize("group_size", (-1, 64))
def test_every_type_stays_under_the_bound_with_a_bias(group_size, dtype, scale_dtype, run_on):
    generator = np.random.default_rng(4)
    kind, k, n = float_type(dtype), 256, 72
    x, bias = generator.standard_normal((6, k)).astype(kind), generator.standard_normal(n).astype(kind)
    weight = quantize(generator.standard_normal((k, n)).astype(np.float32), group_size=group_size, scale_dtype=scale_dtype)
    config = DecodeConfig(warps_n=2, warps_k=2, stage_k=64, stages=3, group_blocks=-1 if group_size == -1 else 4, ragged=True, dtype=dtype,
                          scale_dtype=scale_dtype, bias=True)
    report = reference.check(run_kernel(KERNEL, x, weight, config=config, bias=bias, sms=2, run_on=run_on).c, x, weight, bias, method="sums")
    assert report.ok, report


@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_which_blocks_come_changes_no_bit(seed, run_on):
    if run_on == "cuda":
        pytest.skip("only the machine can choose the order; tests/kernels/test_original_suite.py repeats launches on a GPU")
    generator = np.random.default_rng(1)
    x, weight = generator.standard_normal((2, 512)).astype(np.float16), quantize(generator.standard_normal((512, 64)).astype(np.float32), group_size=64)
    config = replace(NARROW, group_blocks=4)
    bits = [run_kernel(KERNEL, x, weight, config=config, sms=5, seed=each).c.view(np.uint16) for each in (None, seed)]
    assert (bits[0] == bits[1]).all()


@pytest.mark.parametrize("wrong, rule", (({"batch": 12}, "batch=12"), ({"warps_n": 3}, "warps_n=3"), ({"warps_k": 3}, "warps_k=3"), ({"stage_k": 96}, "stage_k=96"),
                                         ({"warps_n": 1, "warps_k": 8}, "stage_k=128 must be at least 256"), ({"stages": 1}, "stages=1"), ({"group_blocks": 3}, "group_blocks=3"),
                                         ({"blocks_per_sm": 3}, "blocks_per_sm=3"), ({"dtype": "float32"}, "dtype='float32'"), ({"stages": 7}, "shared memory")))
def test_what_cannot_be_is_refused_by_name(wrong, rule):
    with pytest.raises(ValueError, match=rule):
        DecodeConfig(**wrong)
