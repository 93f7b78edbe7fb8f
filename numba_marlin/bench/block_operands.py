"""Random block-scaled operands on the GPU, as ``operands`` makes weights: the arrays that kernels
read, and the same numbers in fp16 for cuBLAS. Needs torch.

``random_weights(problem)`` -> ``BlockWeights``, B in enough copies that no launch finds any of it
in the L2 cache; ``random_batch(weights, m)`` -> ``BlockBatch``, A and what the
epilogue adds. Codes are random and scales near 1, so that fp16 holds every number exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from numba_marlin.bench.timing import torch_on_gpu
from numba_marlin.execution.binding import Scaling
from numba_marlin.formats.operands import BLOCK_FORMATS
from numba_marlin.formats.small_floats import table
from numba_marlin.layout.block_scales import to_tiles
from numba_marlin.problems import BlockProblem

MOST_COPIES = 64
SAMPLE_COLUMNS = 256
# relative to the norm, for float results; an indexing error gives about 1
LARGEST_ERROR = {"float16": 2e-3, "bfloat16": 1.2e-2, "float32": 2e-3}
SCALES = {"e4m3": (0x28, 0x40), "e8m0": (123, 128)}  # codes of scales: 1/4 to 2, 1/16 to 1
GELU_LINEAR, GELU_CUBIC = 0.7978845608028654, 0.044715


@dataclass(eq=False)
class BlockWeights:
    """Copies of B. problem: its m is not used. copies: a {parameter: tensor} per copy; dense: an
    fp16 [k, n] per copy."""

    problem: BlockProblem
    copies: list
    dense: list
    bias = None  # cuBLAS is timed without a bias

    @property
    def fixed(self) -> dict:
        return {}


@dataclass(eq=False)
class BlockBatch:
    """x [m, k]: A in fp16; fixed: {parameter: tensor} of A, C and the bias; columns: a sample of
    D's columns; expected: float32 [m, columns], None for a block-scaled result."""

    problem: BlockProblem
    x: object
    fixed: dict
    scaling: Scaling
    columns: object
    expected: object

    def error(self, output) -> float | None:
        """Norm-wise relative error of D on the sample, NaN if any element is NaN; None if D is
        block-scaled, which is not compared."""
        if self.expected is None:
            return None
        if bool(output.isnan().any()):
            return float("nan")
        difference = output[:, self.columns].float() - self.expected
        return float(difference.norm() / self.expected.norm())

    def is_wrong(self, error: float | None) -> bool:
        return error is not None and not error < LARGEST_ERROR[self.problem.result]


def random_weights(problem: BlockProblem, cold_bytes: int) -> BlockWeights:
    data, scales, half = _random(problem, problem.n)
    copies = max(1, min(MOST_COPIES, -(-cold_bytes // problem.operand_bytes(problem.n))))
    halves = max(1, min(copies, -(-cold_bytes // (2 * problem.n * problem.k))))
    return BlockWeights(
        problem,
        [
            {"b": data, "sfb": scales},
            *({"b": data.clone(), "sfb": scales.clone()} for _ in range(copies - 1)),
        ],
        [half.T, *(half.clone().T for _ in range(halves - 1))],
    )


def random_batch(weights: BlockWeights, m: int) -> BlockBatch:
    torch, problem = torch_on_gpu(), replace(weights.problem, m=m)
    data, scales, x = _random(problem, m)
    c = bias = None
    if problem.source:
        kind = getattr(torch, problem.source_dtype)
        c = torch.randn((m, problem.n), device="cuda").to(kind)
    if problem.bias:
        bias = torch.randn(problem.n, device="cuda")
    scaling = Scaling(0.5 / problem.k**0.5, float(problem.source))
    columns = torch.randint(
        0, problem.columns, (min(SAMPLE_COLUMNS, problem.columns),), device="cuda"
    )
    expected = None
    if problem.result not in BLOCK_FORMATS:
        sums = _sums(problem, x, weights.dense[0], scaling, c, bias, columns)
        expected = _activated(torch, sums, problem.activation)
    return BlockBatch(
        problem,
        x,
        {"a": data, "sfa": scales, "c": c, "bias": bias},
        scaling,
        columns,
        expected,
    )


def _sums(problem: BlockProblem, x, dense, scaling: Scaling, c, bias, columns) -> list:
    """The inputs of the activation for these columns of D; for a gate, also those of the columns
    that it multiplies."""
    places = [columns]
    if problem.gated:  # eight columns of the gate, then the eight that they multiply
        first = columns // 8 * 16 + columns % 8
        places = [first, first + 8]
    found = []
    for place in places:
        sums = scaling.alpha * (x.float() @ dense[:, place].float())
        sums += 0 if c is None else scaling.beta * c[:, place].float()
        sums += 0 if bias is None else bias[place]
        found.append(sums)
    return found


def _activated(torch, sums: list, activation: str | None):
    first = sums[0]
    gelu = GELU_LINEAR * (first + GELU_CUBIC * first**3)
    return {
        None: lambda: first,
        "relu": first.relu,
        "gelu": lambda: first * torch.sigmoid(2 * gelu),
        "silu": lambda: first * torch.sigmoid(first),
        "gated_silu": lambda: first * torch.sigmoid(first) * sums[1],
    }[activation]()


def _random(problem: BlockProblem, rows: int):
    """(codes as bytes, scales in 128x4 order, the numbers [rows, k] in fp16)"""
    torch, form, k = torch_on_gpu(), BLOCK_FORMATS[problem.format], problem.k
    data = torch.randint(0, 256, (rows, k * form.bits // 8), dtype=torch.uint8, device="cuda")
    # 8-bit codes: any sign, magnitudes from 1/8 to 2
    data = data if form.bits == 4 else (data & 0x9F) + 0x20
    low, high = SCALES[form.scale_grid]
    scales = torch.randint(low, high, (rows, k // form.block), dtype=torch.uint8, device="cuda")
    codes = torch.stack((data & 15, data >> 4), dim=2).reshape(rows, k) if form.bits == 4 else data
    values, factors = (
        torch.nan_to_num(torch.tensor(table(name).astype("float32"), device="cuda"))
        for name in (form.element, form.scale_grid)
    )
    numbers = values[codes.int()].reshape(rows, -1, form.block) * factors[scales.int()][:, :, None]
    tiles = torch.from_numpy(to_tiles(scales.cpu().numpy())).cuda()
    return data, tiles, numbers.reshape(rows, k).half()
