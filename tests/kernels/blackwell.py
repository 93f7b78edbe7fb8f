"""Blackwell's block-scaled kernels on the PTX machine: operands, references, and a run with every
trap set. No GPU here has their instructions."""

from dataclasses import replace

import numpy as np

from numba_marlin import compiler
from numba_marlin.execution.binding import Scaling, bind, block_operands
from numba_marlin.formats.floats import round_to
from numba_marlin.formats.operands import BLOCK_FORMATS, BlockScaled, pack_codes
from numba_marlin.kernels.nvfp4.block_mma import KERNEL as BLOCK_MMA
from numba_marlin.kernels.nvfp4.block_mma.config import BlockMmaConfig
from numba_marlin.kernels.nvfp4.tcgen05 import KERNEL as TCGEN05
from numba_marlin.kernels.nvfp4.tcgen05.config import Tcgen05Config
from numba_marlin.problems import BlockProblem
from numba_marlin.quantizers import dequantize
from numba_marlin.quantizers.operands import quantize_blocks
from numba_marlin.reference.operands import block_scaled_bounds
from tests.kernels.harness import Prepared, on_machine

TARGETS = {"tcgen05": "sm_100a", "block_mma": "sm_120a"}
USUAL = {TCGEN05: Tcgen05Config(), BLOCK_MMA: BlockMmaConfig()}
SCALES = {"e4m3": (0x30, 0x38, 0x40), "e8m0": (126, 127, 128)}  # 1/2, 1, 2


def exact_operand(rows, k, format, seed):
    """Small codes and scales of 1/2, 1 and 2: every sum is exact in fp32, in any order."""
    form, rng = BLOCK_FORMATS[format], np.random.default_rng(seed)
    codes = (
        rng.integers(0, 16, (rows, k))
        if form.bits == 4
        else rng.choice([0x30, 0x38, 0x3C, 0x40, 0xB8, 0xC4, 0], (rows, k))
    )
    scales = rng.choice(SCALES[form.scale_grid], (rows, k // form.block)).astype(np.uint8)
    return BlockScaled(format, (rows, k), pack_codes(codes.astype(np.uint8), form.bits), scales)


def random_operand(rows, k, format, seed):
    return quantize_blocks(
        np.random.default_rng(seed).standard_normal((rows, k)).astype(np.float32), format
    )


def values(matrix):
    """float64 [rows, k], the global scale included."""
    return dequantize(matrix, np.float64)


def prepare(kernel, a, b, alpha=1.0, config=None, sms=2, compiled_by="numba-cuda"):
    """-> Prepared: D poisoned with NaN, operands read-only. alpha: besides the global scales."""
    config = config or replace(USUAL[kernel], format=a.format)
    compiled = compiler.build(kernel, config, TARGETS[kernel.name], compiled_by)
    problem = BlockProblem.of(config, a.shape[0], b.shape[0], a.shape[1])
    return Prepared.of(
        bind(
            kernel,
            config,
            problem,
            block_operands(a.with_scales("128x4"), b.with_scales("128x4")),
            sms=sms,
            compiled=compiled,
            scaling=Scaling(alpha * a.global_scale * b.global_scale),
        )
    )


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
