"""Operands of ``decode_int8`` and ``decode_fp8``, and their products."""

from dataclasses import replace

import numpy as np

from numba_marlin import quantizers
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.small_floats import encode
from numba_marlin.kernels.registry import find_kernel
from numba_marlin.quantizers.activations import quantize_rows
from tests.kernels.harness import run_kernel


def operands(m, n, k, config, exact=False):
    """x quantised, a weight, and a bias or None. exact: of integers and powers of two, of which
    nothing is rounded in fp32."""
    random = np.random.default_rng(m + n + k)
    x = random.standard_normal((m, k)).astype(float_type(config.dtype))
    weight = quantizers.quantize(
        random.standard_normal((k, n)).astype(np.float32),
        group_size=16 * config.group_blocks if config.grouped else -1,
        symmetric=config.zeros is None,
        scale_dtype=config.dtype,
    )
    kind = config.activations
    x = quantize_rows(x, kind)
    if exact:
        powers = 2.0 ** random.integers(-2, 2, weight.scales.shape)
        weight = replace(weight, scales=powers.astype(weight.scales.dtype))
        whole = random.integers(-3, 4, (m, k))
        codes = (
            whole.astype(np.int8) if kind == "int8" else encode(whole.astype(np.float32), "e4m3")
        )
        x = QuantizedActivations.of_codes(kind, codes, np.full(m, 0.5, np.float32), None, x.dtype)
    bias = random.standard_normal(n).astype(float_type(config.dtype)) if config.bias else None
    return x, weight, bias


def product(x, weight, config, bias=None, **options):
    kernel = find_kernel(f"decode_{config.activations}")
    return run_kernel(kernel, x, weight, config=config, bias=bias, **options).c
