"""Problems of the block-scaled kernels with every trap set (``numba_marlin.testing.operands``), and
their results, on the PTX machine or a GPU."""

import numpy as np

from numba_marlin.formats.floats import round_to
from numba_marlin.formats.operands import BLOCK_FORMATS, BlockScaled, pack_codes
from numba_marlin.kernels.nvfp4.block_decode.config import BlockDecodeConfig
from numba_marlin.kernels.nvfp4.block_scaled.config import BlockScaledConfig
from numba_marlin.problems import BlockProblem
from numba_marlin.quantizers.operands import quantize_blocks
from numba_marlin.testing import operands
from numba_marlin.testing.launches import check_locks, on_machine
from tests.kernels.harness import on_gpu, target_of

SMALL = BlockScaledConfig(
    tile_m=128, tile_n=64, stages=2, expanded_stages=3, source=True, bias=True
)
FEW_ROWS = BlockDecodeConfig(tokens=8, k_warps=2, split=2, stages=2, source=True, bias=True)


def every_code_and_scale(rows):
    """(``rows`` rows in which every code stands with the scale of the row's number, ones on a
    diagonal): one product a result. k is 32."""
    k = 32
    codes, ones = np.zeros((rows, k), np.uint8), np.zeros((16, k), np.uint8)
    codes[:, :16] = np.arange(16)
    ones[np.arange(16), np.arange(16)] = 2
    a = BlockScaled(
        "nvfp4",
        (rows, k),
        pack_codes(codes, 4),
        np.repeat(np.arange(rows, dtype=np.uint8)[:, None], 2, axis=1),
    ).with_scales("128x4")
    return a, BlockScaled(
        "nvfp4", (16, k), pack_codes(ones, 4), np.full((16, 2), 0x38, np.uint8)
    ).with_scales("128x4")


def prepare(problem, config, sms=3, run_on="machine", compiled_by="numba-cuda"):
    target = None if run_on == "machine" else target_of(run_on)  # None: what the kernel asks for
    return operands.prepare(problem, config, sms, target, compiled_by)


def run(problem, config, *, run_on="machine", seed=None, edit_ptx=None, races=False, **options):
    """-> D as the kernel left it, a BlockScaled where it has scales. The counter must be zero
    again."""
    prepared = prepare(problem, config, run_on=run_on, **options)
    if run_on == "machine":
        on_machine(prepared, seed, edit_ptx, races)
        left = prepared.buffers
    else:
        left = on_gpu(prepared).launched().collect()
    check_locks(left)
    if "sfd" not in prepared.buffers:
        return left["d"]
    form = BLOCK_FORMATS[config.result]
    made = BlockProblem.of(config, *problem.sizes)
    return BlockScaled(
        config.result,
        (made.m, made.columns),
        left["d"],
        left["sfd"],
        problem.global_scale if form.has_global_scale else 1.0,
        "128x4",
    )


def check_exact(problem, config, **options):
    expected, _ = problem.bounds(config.activation)
    assert np.array_equal(round_to(expected, config.result).astype(np.float64), expected), (
        "this problem is not exact"
    )
    actual = run(problem, config, **options).astype(np.float64)
    assert np.array_equal(actual, expected), np.argwhere(actual != expected)[:4]


def check_near(problem, config, **options):
    """Every element within its own bound; NaN never is."""
    expected, error = problem.bounds(config.activation)
    actual = run(problem, config, **options).astype(np.float64)
    low, high = (
        round_to(each, config.result).astype(np.float64)
        for each in (expected - error, expected + error)
    )
    assert ((low <= actual) & (actual <= high)).all(), np.argwhere(
        ~((low <= actual) & (actual <= high))
    )[:4]


def check_quantised(problem, config, numbers, **options):
    """The kernel's codes and scales are those of the quantiser, of ``numbers``: the same kernel's
    float32 result."""
    actual = run(problem, config, **options)
    expected = quantize_blocks(
        numbers,
        config.result,
        rounding=config.rounding,
        **({"global_scale": problem.global_scale} if actual.form.has_global_scale else {}),
    ).with_scales("128x4")
    assert np.array_equal(actual.data, expected.data), np.argwhere(actual.data != expected.data)[:4]
    assert np.array_equal(actual.scales, expected.scales), np.argwhere(
        actual.scales != expected.scales
    )[:4]
