"""Random operands on the GPU, and a check of their product. Needs torch.

``Weights``: random codes, scales and zero points as Marlin's bytes, in enough copies that
no launch finds any of them in the L2 cache, and the same weights in 16 bits, with as many copies,
for cuBLAS. ``Batch``: x [m, k], and the float32 product on a sample of columns, with which
``error`` compares results. Data is random because zeros draw less power and so run faster. Only the
packed arrays pad columns to blocks of 64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.bench import block_operands, fp4_operands
from numba_marlin.bench.timing import torch_on_gpu
from numba_marlin.formats.marlin import packed_columns
from numba_marlin.formats.marlin_order import (
    BLOCK_K,
    BLOCK_N,
    COLUMN_SCALE_PERM,
    GROUP_SCALE_PERM,
    code_order,
)
from numba_marlin.problems import OPERANDS, WEIGHTS, Problem, WeightProblem

COLD_FACTOR = 5  # all copies together have this many times the size of the L2 cache
SLAB_WEIGHTS = 1 << 28  # converted at once: the index arithmetic needs 8 bytes per weight
SAMPLE_COLUMNS = 256
# norm-wise, for a product of random data; an indexing error gives about 1
LARGEST_ERROR = {"float16": 2e-3, "bfloat16": 1.2e-2}


@dataclass(eq=False)
class Weights:
    """Copies of a weight. problem: its m is not used. packed: int32 [k/16, n' bits/2] per copy, n'
    = n rounded up to 64; scales [groups, n'] in the kernel's order; zeros as in ``formats.marlin``,
    or None; bias [n] or None; dense: [k, n] per copy; cold_scales: as many copies of the scales.
    For FP4, packed, scales and factors [n'] are as in ``formats.fp4_marlin``."""

    problem: Problem
    packed: list
    scales: object
    zeros: object
    bias: object
    dense: list
    cold_scales: list
    factors: object = None

    @property
    def fixed(self) -> dict:
        """{parameter: tensor} that all launches read."""
        return {"zeros": self.zeros, "factors": self.factors, "bias": self.bias}

    @property
    def copies(self) -> list[dict]:
        """A {parameter: tensor} per copy; launches use them in turn."""
        return [
            {"b": packed, "scales": scales} for packed, scales in zip(self.packed, self.cold_scales)
        ]


@dataclass(eq=False)
class Batch:
    """x [m, k] of the problem's dtype; columns: the sample; expected float32 [m, columns]."""

    x: object
    columns: object
    expected: object
    scaling = None  # for two block-scaled operands

    @property
    def fixed(self) -> dict:
        """{parameter: tensor} of the operands besides the weight."""
        return {"a": self.x}

    def error(self, output) -> float:
        """Norm-wise relative error of ``output`` [m, n] on the sample of columns; NaN if anything
        in it is."""
        return error(self, output)

    def is_wrong(self, relative_error: float) -> bool:
        return is_wrong(self, relative_error)


def random_weights(problem: Problem, cold_bytes: int | None = None) -> Weights:
    """Weights for a problem of any kind: ``Weights``, or ``block_operands.BlockWeights``.
    ``cold_bytes``: minimum size of all copies together; default: ``COLD_FACTOR`` times the L2
    cache."""
    torch = torch_on_gpu()
    if cold_bytes is None:
        cold_bytes = (
            COLD_FACTOR
            * torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        )
    return {WEIGHTS: _weights, OPERANDS: block_operands.random_weights}[problem.kind](
        problem, cold_bytes
    )


def _weights(problem: WeightProblem, cold_bytes: int) -> Weights:
    torch = torch_on_gpu()
    k, n, bits, kind = problem.k, problem.n, problem.bits, getattr(torch, problem.dtype)
    columns, fp4 = packed_columns(n), problem.codes == "e2m1"
    # symmetric: none below -(2**(bits - 1) - 1), or sign and magnitude could not hold it (peers)
    lowest = 0 if fp4 or problem.zeros else 1
    if fp4:
        scales, factors, values, factor = fp4_operands.random_scales(problem, columns)
    else:
        factors, scales, plain_zeros, zeros = None, *_random_scales(torch, problem, columns)
    packed = torch.empty((k // BLOCK_K, columns * bits // 2), dtype=torch.int32, device="cuda")
    dense = torch.empty((k, n), dtype=kind, device="cuda")
    rows = max(BLOCK_K, SLAB_WEIGHTS // columns // BLOCK_K * BLOCK_K)
    for first in range(0, k, rows):
        last = min(k, first + rows)
        codes = torch.randint(
            lowest, 1 << bits, (last - first, columns), device="cuda", dtype=torch.uint8
        )
        words = _pack_codes(torch, codes, bits)
        packed[first // BLOCK_K : last // BLOCK_K] = (
            fp4_operands.turn(words, problem.dtype) if fp4 else words
        )
        if fp4:
            dense[first:last] = fp4_operands.dense(codes[:, :n], first, problem, values, factor).to(
                kind
            )
        else:
            group = torch.arange(first, last, device="cuda") // (k // problem.groups)
            dense[first:last] = (
                codes[:, :n].to(kind) - plain_zeros[group][:, :n].to(kind)
            ) * scales[group][:, :n].to(kind)
        del codes, words
    if not fp4:
        scales = _permuted(
            torch, scales, COLUMN_SCALE_PERM if problem.groups == 1 else GROUP_SCALE_PERM
        )
    bias = torch.randn(n, device="cuda").to(kind) if problem.bias else None
    copies = _copies(packed, cold_bytes)
    cold_scales = [scales, *(scales.clone() for _ in copies[1:])]
    return Weights(
        problem,
        copies,
        scales,
        None if fp4 else zeros,
        bias,
        _copies(dense, cold_bytes),
        cold_scales,
        factors,
    )


def _random_scales(torch, problem: Problem, columns: int):
    """(scales [groups, columns], zero points [groups, columns] as numbers, zero points as the
    kernel reads them or None)."""
    scales = (torch.rand((problem.groups, columns), device="cuda") * 0.02 + 0.005) * (
        8 / (1 << problem.bits - 1)
    )
    return scales.to(getattr(torch, problem.scale_dtype)), *_random_zeros(torch, problem, columns)


def _random_zeros(torch, problem: Problem, columns: int):
    """(zero points [groups, columns] as numbers, the same as the kernel reads them or None)."""
    bits, shape = problem.bits, (problem.groups, columns)
    if problem.zeros is None:
        return torch.full(shape, 1 << bits - 1, device="cuda"), None
    if problem.zeros == "integer":
        plain = torch.randint(0, 1 << bits, shape, device="cuda", dtype=torch.uint8)
        return plain, _words(
            torch, _permuted(torch, plain, code_order(bits).zeros_perm), bits
        ).view(problem.groups, -1)
    plain = (torch.rand(shape, device="cuda") * ((1 << bits) - 1)).half()
    return plain, _permuted(torch, plain, GROUP_SCALE_PERM)


def _permuted(torch, values, order):
    index = torch.from_numpy(order.copy()).to(values.device)
    return values.reshape(-1, index.numel())[:, index].reshape(values.shape).contiguous()


def _pack_codes(torch, codes, bits: int):
    """uint8 [rows, columns] -> Marlin's words, int32 [rows/16, columns bits/2]."""
    rows, columns = codes.shape
    blocks = (
        codes.view(rows // BLOCK_K, BLOCK_K, columns // BLOCK_N, BLOCK_N)
        .permute(0, 2, 1, 3)
        .reshape(-1, BLOCK_K * BLOCK_N)
    )
    return _words(torch, _permuted(torch, blocks, code_order(bits).perm), bits).view(
        rows // BLOCK_K, -1
    )


def _words(torch, codes, bits: int):
    """uint8, the codes of a word side by side -> int32, flat; the first code is the lowest."""
    codes = codes.reshape(-1, 32 // bits)
    words = torch.zeros(codes.shape[0], dtype=torch.int32, device=codes.device)
    for number in range(codes.shape[1]):
        words |= codes[:, number].int() << (bits * number)
    return words


def _unpack_codes(torch, words, bits: int):
    """Marlin's words, int32 [rows/16, columns bits/2] -> uint8 [rows, columns]."""
    blocks, columns = words.shape[0], words.shape[1] * 2 // bits
    codes = _permuted(
        torch,
        _fields(torch, words, bits).view(-1, BLOCK_K * BLOCK_N),
        np.argsort(code_order(bits).perm),
    )
    return (
        codes.view(blocks, columns // BLOCK_N, BLOCK_K, BLOCK_N)
        .permute(0, 2, 1, 3)
        .reshape(-1, columns)
    )


def _fields(torch, words, bits: int):
    """int32 -> uint8, the codes of a word side by side, flat: ``_words`` undone."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return (words.reshape(-1, 1) >> shifts & (1 << bits) - 1).to(torch.uint8).flatten()


def plain_codes(weights: Weights):
    """The codes of integer weights, uint8 [k, n]."""
    torch, problem, packed = torch_on_gpu(), weights.problem, weights.packed[0]
    codes = torch.empty((problem.k, problem.n), dtype=torch.uint8, device=packed.device)
    blocks = max(1, SLAB_WEIGHTS // packed_columns(problem.n) // BLOCK_K)
    for first in range(0, packed.shape[0], blocks):
        slab = _unpack_codes(torch, packed[first : first + blocks], problem.bits)
        codes[first * BLOCK_K : first * BLOCK_K + slab.shape[0]] = slab[:, : problem.n]
    return codes


def plain_scales(weights: Weights):
    """The scales of integer weights, [groups, n]."""
    order = COLUMN_SCALE_PERM if weights.problem.groups == 1 else GROUP_SCALE_PERM
    return _columns(weights, _permuted(torch_on_gpu(), weights.scales, np.argsort(order)))


def plain_zeros(weights: Weights):
    """The zero points of integer weights, [groups, n], or None."""
    torch, problem, zeros = torch_on_gpu(), weights.problem, weights.zeros
    if zeros is None:
        return None
    order = GROUP_SCALE_PERM
    if problem.zeros == "integer":
        zeros = _fields(torch, zeros, problem.bits).view(problem.groups, -1)
        order = code_order(problem.bits).zeros_perm
    return _columns(weights, _permuted(torch, zeros, np.argsort(order)))


def _columns(weights: Weights, values):
    return values[:, : weights.problem.n].contiguous()


def _copies(tensor, cold_bytes: int) -> list:
    count = max(1, -(-cold_bytes // (tensor.numel() * tensor.element_size())))
    return [tensor, *(tensor.clone() for _ in range(count - 1))]


def random_batch(weights: Weights, m: int) -> Batch:
    """Activations for weights of any kind: a ``Batch``, or a ``block_operands.BlockBatch``."""
    return {WEIGHTS: _batch, OPERANDS: block_operands.random_batch}[weights.problem.kind](
        weights, m
    )


def _batch(weights: Weights, m: int) -> Batch:
    torch = torch_on_gpu()
    problem = weights.problem
    x = (torch.randn((m, problem.k), device="cuda") * 0.1).to(getattr(torch, problem.dtype))
    columns = torch.randint(0, problem.n, (min(SAMPLE_COLUMNS, problem.n),), device="cuda")
    expected = x.float() @ weights.dense[0][:, columns].float()
    return Batch(
        x, columns, expected if weights.bias is None else expected + weights.bias[columns].float()
    )


def error(batch: Batch, output) -> float:
    """Norm-wise relative error of ``output`` [m, n] on the sample of columns; NaN if anything in it
    is."""
    if bool(output.isnan().any()):
        return float("nan")
    return float((output[:, batch.columns].float() - batch.expected).norm() / batch.expected.norm())


def is_wrong(batch: Batch, relative_error: float) -> bool:
    return not relative_error < LARGEST_ERROR[str(batch.x.dtype).removeprefix("torch.")]
