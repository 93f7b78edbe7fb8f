"""Blackwell's block-scaled kernels on the PTX machine: operands, references, and a run with every
trap set. No GPU here has their instructions."""

from dataclasses import replace

import numpy as np

from numba_marlin.formats.floats import round_to
from numba_marlin.kernels.nvfp4.block_mma import KERNEL as BLOCK_MMA
from numba_marlin.kernels.nvfp4.block_mma.config import BlockMmaConfig
from numba_marlin.kernels.nvfp4.tcgen05 import KERNEL as TCGEN05
from numba_marlin.kernels.nvfp4.tcgen05.config import Tcgen05Config
from numba_marlin.quantizers.operands import quantize_blocks
from numba_marlin.reference.operands import block_scaled_bounds
from numba_marlin.testing import operands
from numba_marlin.testing.launches import on_machine
from numba_marlin.testing.operands import BlockProduct, exact_operand, values

USUAL = {TCGEN05: Tcgen05Config(), BLOCK_MMA: BlockMmaConfig()}


def random_operand(rows, k, format, seed):
    return quantize_blocks(
        np.random.default_rng(seed).standard_normal((rows, k)).astype(np.float32), format
    )


def prepare(kernel, a, b, alpha=1.0, config=None, sms=2, compiled_by="numba-cuda"):
    """-> Prepared: D poisoned with NaN, operands read-only. alpha: besides the global scales."""
    product = BlockProduct(a.with_scales("128x4"), b.with_scales("128x4"), alpha)
    config = config or replace(USUAL[kernel], format=a.format)
    return operands.prepare(product, config, sms, compiled_by=compiled_by)


def multiply(kernel, a, b, alpha=1.0, seed=None, edit_ptx=None, races=False, **options):
    """D, on the machine. options: as in ``prepare``."""
    prepared = prepare(kernel, a, b, alpha, **options)
    on_machine(prepared, seed, edit_ptx, races)
    return prepared.buffers["d"]


def check_exact(kernel, m, n, k, alpha=0.5, config=None, **options):
    """Bit for bit, one rounding to the type of D included."""
    config = config or USUAL[kernel]
    a, b = (
        exact_operand(m, k, config.format, seed=m + k),
        exact_operand(n, k, config.format, seed=n + k + 1),
    )
    got = multiply(kernel, a, b, alpha, config=config, **options)
    expected = (alpha * (values(a) @ values(b).T)).astype(np.float32).astype(got.dtype)
    assert np.array_equal(got, expected), np.argwhere(got != expected)[:4]


def check_near(kernel, a, b, alpha=1.0, **options):
    """Every element within its own bound, and not all of them exact; NaN never is."""
    expected, error = block_scaled_bounds(a, b, alpha=alpha)
    got = multiply(kernel, a, b, alpha, **options)
    low, high = (
        round_to(each, got.dtype).astype(np.float64)
        for each in (expected - error, expected + error)
    )
    assert ((low <= got) & (got <= high)).all() and (got != expected).any()
