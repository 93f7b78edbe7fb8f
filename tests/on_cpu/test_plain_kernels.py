"""Contract under test: the plain kernels of the README's ladder, launched as their files say, run
under the switch, unchanged and with races looked for."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import on_cpu

M, N, K, THREADS = 16, 64, 128, 128
GRIDS = {
    "naive": M * N // THREADS,
    "tiled": (N // 64, M // 16),
    "buffered": (N // 64, M // 16),
}


@pytest.mark.filterwarnings("ignore:Host array used in CUDA kernel")
@pytest.mark.parametrize(
    "name",
    ["naive", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("tiled", "buffered"))],
)
def test_a_kernel_of_the_ladder_multiplies(name):
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (M, K)).astype(np.float16)
    quantized = nm.quantize(rng.standard_normal((K, N)).astype(np.float32), group_size=64)
    scales = np.full_like(quantized.scales, 0.5)  # a power of two: every sum is exact
    packed = nm.pack(replace(quantized, scales=scales))
    wanted = (x.astype(np.float64) @ nm.dequantize(packed, np.float64)).astype(np.float16)
    y = np.full((M, N), np.nan, np.float16)
    with on_cpu.cuda(races=True):
        kernel = getattr(import_module(f"numba_marlin.kernels.{name}.kernel"), name)
        kernel[GRIDS[name], THREADS](x, packed.qweight, packed.scales, y)
    assert (y == wanted).all()
