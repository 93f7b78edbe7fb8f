"""What the tests of ``wgmma_int8`` and ``wgmma_fp8`` share: small configurations, operands, and
launches."""

import numpy as np

from numba_marlin import quantizers
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.small_floats import encode
from numba_marlin.kernels.registry import find_kernel
from numba_marlin.kernels.w4a8.config import CONFIGS
from numba_marlin.quantizers.activations import quantize_rows
from numba_marlin.reference import activations
from numba_marlin.testing.activations import check_product
from tests.kernels.harness import run_kernel

KINDS = tuple(CONFIGS)
KERNELS = {kind: find_kernel(f"wgmma_{kind}") for kind in KINDS}
SMALLEST = {kind: CONFIGS[kind](tile_m=16, tile_n=64, warpgroups=1, stages=2) for kind in KINDS}
SMALL, SMALL_FP8 = SMALLEST["int8"], SMALLEST["fp8"]
PAIR = {"tile_n": 128, "warpgroups": 2, "ordered": True}


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
    return quantize_rows(x, config.activations), weight, bias


def product(x, weight, config, **options):
    return run_kernel(KERNELS[config.activations], x, weight, config=config, **options).c


def right(m, n, k, config, run_on="machine", **options):
    x, weight, bias = operands(m, n, k, config)
    actual = product(x, weight, config, bias=bias, run_on=run_on, **options)
    check_product(actual, x, weight, bias, offsets=config.offsets, parts=config.parts)


def integers(m, n, k, config, seed=0):
    """As ``operands``, of which sums are exact in the tensor cores too: x of -3 to 3."""
    x, weight, bias = operands(m, n, k, config, seed)
    whole = np.random.default_rng(seed).integers(-3, 4, (m, k)).astype(np.float32)
    codes = whole.astype(np.int8) if x.kind == "int8" else encode(whole, "e4m3")
    return QuantizedActivations.of_codes(x.kind, codes, x.scales, None, x.dtype), weight, bias


def same_bits(m, n, k, config, run_on="machine", **options):
    x, weight, bias = integers(m, n, k, config)
    actual = product(x, weight, config, bias=bias, run_on=run_on, **options)
    expected = activations.kernel_product(x, weight, bias, config.parts)
    assert np.array_equal(actual.view(np.uint16), expected.view(np.uint16))
