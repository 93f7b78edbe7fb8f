"""Contract under test: results of the Hopper kernel that round stay under their bounds, and have
the same bits in any order of warps.

``pytest --run-on cuda`` runs the same tests on a GPU.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from numba_marlin import reference, testing
from numba_marlin.formats.floats import float_type
from numba_marlin.kernels.wgmma import KERNEL
from numba_marlin.quantizers import quantize
from tests.kernels.configurations import ARRANGEMENTS
from tests.kernels.harness import cases, run_kernel


def real_problem(m, n, k, group_size):
    generator = np.random.default_rng(m + n + k)
    x = generator.standard_normal((m, k)).astype(np.float16)
    return x, quantize(generator.standard_normal((k, n)).astype(np.float32), group_size=group_size)


@pytest.mark.parametrize("name", ("two warpgroups, two words", "pairs, two rows of consumers"))
def test_real_data_stays_under_the_elementwise_bound(name, run_on):
    x, weight = real_problem(20, 256, 256, 64)
    config = replace(ARRANGEMENTS[name], group_blocks=4)
    report = reference.check(
        run_kernel(KERNEL, x, weight, config=config, run_on=run_on, sms=4).c, x, weight
    )
    assert report.ok, report


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name, group_size, dtype",
    cases(
        product(("four words", "a pair of blocks"), (-1, 64), ("float16", "bfloat16")),
        lambda name, group_size, dtype: (
            (name, group_size, dtype)
            in (("four words", 64, "bfloat16"), ("a pair of blocks", -1, "float16"))
        ),
    ),
)
def test_every_type_stays_under_the_bound_with_a_bias(name, group_size, dtype, run_on):
    generator = np.random.default_rng(4)
    kind, k, n = float_type(dtype), 256, 72
    x, bias = (
        generator.standard_normal((20, k)).astype(kind),
        generator.standard_normal(n).astype(kind),
    )
    weight = quantize(
        generator.standard_normal((k, n)).astype(np.float32),
        group_size=group_size,
        scale_dtype=dtype,
    )
    config = replace(
        ARRANGEMENTS[name], group_blocks=-1 if group_size == -1 else 4, dtype=dtype, bias=True
    )
    report = reference.check(
        run_kernel(KERNEL, x, weight, config=config, bias=bias, sms=2, run_on=run_on).c,
        x,
        weight,
        bias,
    )
    assert report.ok, report


COMPILED = {  # types that test_wgmma compiles too: in which arrangement, and whether with a bias
    ("float16", 4, "float16", 128): ("four words", True),
    ("bfloat16", 8, "integer", -1): ("pairs, two rows of consumers", False),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "dtype, bits, zeros, group_size",
    cases(
        (
            (*types, group_size)
            for group_size in (-1, 128)
            for types in (
                ("float16", 8, None),
                ("float16", 4, "integer"),
                ("float16", 4, "float16"),
                ("bfloat16", 8, "integer"),
                ("bfloat16", 4, "float16"),
            )
        ),
        lambda dtype, bits, zeros, group_size: (dtype, bits, zeros, group_size) in COMPILED,
    ),
)
def test_other_types_stay_under_the_bound(dtype, bits, zeros, group_size, run_on):
    """Zero points off the grid are rounded away from codes as the bound says, in either type."""
    generator = np.random.default_rng(5)
    name, has_bias = COMPILED.get((dtype, bits, zeros, group_size), ("two words", False))
    x = generator.standard_normal((5, 256)).astype(float_type(dtype))
    bias = generator.standard_normal(128).astype(float_type(dtype)) if has_bias else None
    weight = testing.make_quantized(
        "uniform",
        "ordinary",
        256,
        128,
        group_size,
        3,
        bits=bits,
        zeros_kind=zeros,
        scale_dtype=dtype,
    )
    if zeros == "float16":
        weight = replace(
            weight, zeros=generator.uniform(0, 2**bits, weight.zeros.shape).astype(np.float16)
        )
    config = replace(
        ARRANGEMENTS[name],
        group_blocks=-1 if group_size == -1 else group_size // 16,
        dtype=dtype,
        bits=bits,
        zeros=zeros,
        bias=has_bias,
    )
    report = reference.check(
        run_kernel(KERNEL, x, weight, config=config, bias=bias, sms=2, run_on=run_on).c,
        x,
        weight,
        bias,
        method=KERNEL.method(config),
    )
    assert report.ok, report


@pytest.mark.parametrize(
    "name, group_size", (("one word, one warpgroup", 64), ("pairs, two rows of consumers", -1))
)
def test_any_order_of_warps_gives_the_same_bits(name, group_size, run_on):
    """Whoever comes last adds up, and in the same order."""
    x, weight = real_problem(20, 192, 320, group_size)
    config = replace(ARRANGEMENTS[name], group_blocks=-1 if group_size == -1 else group_size // 16)
    bits = [
        run_kernel(KERNEL, x, weight, config=config, run_on=run_on, sms=4, seed=seed).c.view(
            np.uint16
        )
        for seed in range(3)
    ]
    assert all((other == bits[0]).all() for other in bits[1:])


@pytest.mark.thorough
def test_per_column_scales_are_applied_before_the_cast(run_on):
    """Sums of 2^20 meet scales of 2^-10, in registers and across a cluster."""
    weight = testing.exact_problem(2, 64, 256, -1, seed=1).weight
    weight = replace(
        weight,
        codes=np.full((256, 64), 12, np.uint8),
        scales=np.full((1, 64), 2.0**-10, np.float16),
    )
    for name in ("two words", "a pair of blocks"):
        config = replace(ARRANGEMENTS[name], group_blocks=-1)
        assert (
            run_kernel(
                KERNEL,
                np.full((2, 256), 1024, np.float16),
                weight,
                config=config,
                run_on=run_on,
                sms=2,
            ).c
            == 1024
        ).all()
