"""Contract under test: ``wgmma_fp8`` with offsets, whose bytes of weights are codes, gives results
within the bound of fp8, and the bits of exact sums where sums are small integers and scales powers
of two; it loses little whatever the signs of x; and it is used where it serves.
"""

from dataclasses import replace

import numpy as np
import pytest

from numba_marlin.hardware import devices
from numba_marlin.kernels.w4a8 import choose
from numba_marlin.problems import ActivationsProblem
from numba_marlin.quantizers.activations import quantize_rows
from numba_marlin.reference import activations
from tests.kernels.harness import cases
from tests.kernels.many_rows import PAIR, SMALL_FP8, integers, operands, product, right

H200 = devices.device("H200")
OFFSETS = replace(SMALL_FP8, offsets=True)


def powers_of_two(weight):
    """The weight with scales of 1 to 8: the order of fp32 sums of integers then does not matter."""
    exponents = np.random.default_rng(weight.n).integers(0, 4, weight.scales.shape)
    return replace(weight, scales=(2.0**exponents).astype(weight.scales.dtype))


@pytest.mark.parametrize(
    "m, n, k, change",
    cases(
        (
            (20, 72, 384, {}),
            (20, 72, 384, {"dtype": "bfloat16", "bias": True}),
            (3, 136, 1040, {"group_blocks": -1}),
            (3, 64, 144, {"group_blocks": -1, "dtype": "bfloat16"}),
            (20, 320, 256, PAIR),
            (20, 320, 256, PAIR | {"tile_n": 256}),
            (200, 136, 640, PAIR | {"tile_m": 192, "stages": 5}),
            (5, 64, 8320, {}),
            (5, 64, 8208, {"group_blocks": -1}),
            (5, 64, 8320, {"dtype": "bfloat16"}),
            # parts: one of two has all offsets; one stage each, of three; two of four have none;
            # the second of two has two stages
            (20, 72, 640, {"parts": 2}),
            (5, 64, 16640, {"parts": 3, "dtype": "bfloat16"}),
            (5, 64, 8208, {"parts": 4, "group_blocks": -1}),
            (5, 64, 16512, {"parts": 2, "dtype": "bfloat16"}),
            (20, 136, 640, PAIR | {"parts": 2}),
        ),
        lambda m, n, k, change: change in ({}, {"group_blocks": -1}, {"parts": 2}),
    ),
)
def test_codes_with_offsets_are_right(m, n, k, change, run_on):
    """Those of k above 8192 have more groups than a stage has offsets of."""
    config = replace(OFFSETS, **change)
    sms = 2 * config.parts
    right(m, n, k, config, run_on, sms=sms)
    x, weight, bias = integers(m, n, k, config)
    weight = powers_of_two(weight)
    actual = product(x, weight, config, bias=bias, run_on=run_on, sms=sms)
    expected = activations.kernel_product(x, weight, bias)
    assert np.array_equal(actual.view(np.uint16), expected.view(np.uint16))


def test_offsets_lose_little_of_x_of_one_sign(run_on):
    """Of the result's root mean square: 0.0005 (experiments/23_w4a8/losses.py), where bytes 0 to 15
    lose 0.0076, and rounding x 0.026."""
    x, weight, _ = operands(8, 64, 512, OFFSETS)
    x = quantize_rows(np.abs(x.dequantized()), "fp8")
    actual, exact = product(x, weight, OFFSETS, run_on=run_on), activations.matmul(x, weight)
    lost = np.sqrt(np.mean((actual - exact) ** 2) / np.mean(exact**2))
    assert lost < 0.001


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("change", ({}, {"group_blocks": -1}, PAIR, {"parts": 2}))
def test_any_schedule_with_offsets_gives_the_same_bits_without_a_race(change, seed):
    config = replace(OFFSETS, **change)
    x, weight, _ = integers(20, 192, 640, config, seed)
    weight = powers_of_two(weight)
    actual = product(x, weight, config, seed=seed, races=True, sms=2 * config.parts)
    assert np.array_equal(actual, activations.kernel_product(x, weight))


@pytest.mark.parametrize("change", ({"zeros": "integer"}, {"group_blocks": 4}))
def test_offsets_need_symmetric_weights_and_groups_of_128(change):
    with pytest.raises(ValueError, match="offsets=True needs"):
        replace(OFFSETS, **change)


@pytest.mark.parametrize(
    "group_size, zeros, wanted", ((128, None, True), (-1, None, True), (64, None, False))
)
def test_offsets_are_used_where_they_serve(group_size, zeros, wanted):
    problem = ActivationsProblem(1024, 8192, 8192, group_size, zeros=zeros, activations="fp8")
    found = choose.configurations(problem, H200)
    assert {each.offsets for each in found} == {wanted}
