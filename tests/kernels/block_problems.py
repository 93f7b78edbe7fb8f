"""Problems of the block-scaled kernel with every trap set, and their results, on the PTX machine or
a GPU: ``tests.kernels.harness`` for its parameters."""

from dataclasses import dataclass

import numpy as np

from numba_marlin import compiler
from numba_marlin.execution.binding import Scaling, bind, block_operands
from numba_marlin.formats.floats import float_type, round_to
from numba_marlin.formats.operands import BLOCK_FORMATS, BlockScaled, pack_codes
from numba_marlin.kernels.nvfp4.block_decode.config import BlockDecodeConfig
from numba_marlin.kernels.nvfp4.block_scaled.config import BlockScaledConfig
from numba_marlin.kernels.registry import kernel_of
from numba_marlin.problems import BlockProblem as Problem
from numba_marlin.quantizers.operands import inverse_of, quantize_blocks
from numba_marlin.reference.operands import block_scaled_bounds
from tests.kernels.harness import Prepared, on_gpu, on_machine, target_of

SMALL = BlockScaledConfig(
    tile_m=128, tile_n=64, stages=2, expanded_stages=3, source=True, bias=True
)
FEW_ROWS = BlockDecodeConfig(tokens=8, k_warps=2, split=2, stages=2, source=True, bias=True)


@dataclass(frozen=True, eq=False)
class BlockProblem:
    """a [m, k], b [n, k]: BlockScaled with scales in 128x4 order; global_scale: of D, if it has
    one; the other fields as in ``reference.operands``."""

    a: BlockScaled
    b: BlockScaled
    alpha: float = 1.0
    beta: float = 0.0
    c: np.ndarray | None = None
    bias: np.ndarray | None = None
    global_scale: float = 1.0

    @property
    def sizes(self):
        return self.a.shape[0], self.b.shape[0], self.a.shape[1]

    def bounds(self, activation=None):
        return block_scaled_bounds(
            self.a,
            self.b,
            alpha=self.alpha,
            beta=self.beta,
            c=self.c,
            bias=self.bias,
            activation=activation,
        )


def small_integers(m, n, k, seed=0, c_dtype=None, bias=False):
    """Codes of small integers and scales that are small powers of two: the result is exact in fp16,
    whatever the order of the sums. Scales are negligible where sums would get too large."""
    rng = np.random.default_rng(seed)

    def operand(rows):
        # 0, 1, -1, 2, -2, 3
        codes = rng.choice(np.array([0, 0, 0, 0, 0, 0, 2, 10, 4, 12, 5], np.uint8), (rows, k))
        scales = rng.choice(np.array([0x30, 0x38, 0x40], np.uint8), (rows, k // 16))  # 1/2, 1, 2
        return BlockScaled("nvfp4", (rows, k), pack_codes(codes, 4), scales).with_scales("128x4")

    c = rng.integers(-8, 9, (m, n)).astype(float_type(c_dtype)) if c_dtype else None
    return BlockProblem(
        operand(m),
        operand(n),
        0.5,
        2.0 if c_dtype else 0.0,
        c,
        rng.integers(-8, 9, n).astype(np.float32) if bias else None,
    )


def real_numbers(m, n, k, seed=0, c_dtype=None, bias=False, global_scale=1.0):
    """Heavy-tailed rows of very different sizes: every code and most scales."""
    rng = np.random.default_rng(seed)
    a = quantize_blocks(
        (rng.standard_t(4, (m, k)) * np.exp2(rng.integers(-6, 3, (m, 1)))).astype(np.float32)
    ).with_scales("128x4")
    b = quantize_blocks((rng.standard_t(4, (n, k)) / np.sqrt(k)).astype(np.float32)).with_scales(
        "128x4"
    )
    c = rng.normal(size=(m, n)).astype(float_type(c_dtype)) if c_dtype else None
    return BlockProblem(
        a,
        b,
        0.75,
        -0.5 if c_dtype else 0.0,
        c,
        rng.normal(size=n).astype(np.float32) if bias else None,
        global_scale,
    )


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
    kernel = kernel_of(config)
    compiled = compiler.build(kernel, config, target=target_of(run_on), compiler=compiled_by)
    global_scales = problem.a.global_scale * problem.b.global_scale
    return Prepared.of(
        bind(
            kernel,
            config,
            Problem.of(config, *problem.sizes),
            {**block_operands(problem.a, problem.b), "c": problem.c, "bias": problem.bias},
            sms=sms,
            compiled=compiled,
            scaling=Scaling(
                problem.alpha * global_scales, problem.beta, inverse_of(problem.global_scale)
            ),
        )
    )


def run(problem, config, *, run_on="machine", seed=None, edit_ptx=None, races=False, **options):
    """-> D as the kernel left it, a BlockScaled where it has scales. The counter must be zero
    again."""
    prepared = prepare(problem, config, run_on=run_on, **options)
    if run_on == "machine":
        on_machine(prepared, seed, edit_ptx, races)
        left = prepared.buffers
    else:
        left = on_gpu(prepared).launched().collect()
    if "locks" in left:
        assert not left["locks"].any(), f"the counter is {left['locks']} after the launch"
    if "sfd" not in prepared.buffers:
        return left["d"]
    form = BLOCK_FORMATS[config.result]
    m, n, _ = problem.sizes
    return BlockScaled(
        config.result,
        (m, n // 2 if config.gated else n),
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
