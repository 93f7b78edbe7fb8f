"""Random operands of a problem of any kind, bound to a kernel, which is run to be profiled.

``sample(problem, random)`` -> ``Sample``; ``of_blocks`` makes a Sample of two
given block-scaled matrices. C and the bias are random if the problem has them; a result's global
scale, if it has one, follows from the product's largest magnitude.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numba_marlin.execution.binding import (
    Binding,
    Scaling,
    activation_operands,
    activation_rows,
    bind,
    block_operands,
    experts_operands,
    routing_operands,
    weight_operands,
)
from numba_marlin.formats import BlockWeight, PackedBlocks, PackedWeight, find_format
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.formats.files import find_stored
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.marlin import packed_columns
from numba_marlin.formats.operands import BLOCK_FORMATS, BlockScaled
from numba_marlin.formats.routing import Routing
from numba_marlin.formats.small_floats import decode
from numba_marlin.heuristics import Candidate, find_kernel
from numba_marlin.problems import (
    ACTIVATIONS,
    EXPERTS,
    OPERANDS,
    WEIGHTS,
    ActivationsProblem,
    BlockProblem,
    ExpertsProblem,
    Problem,
    WeightProblem,
)
from numba_marlin.profile.sources.words import Layer
from numba_marlin.quantizers import dequantize
from numba_marlin.quantizers.activations import quantize_rows
from numba_marlin.quantizers.operands import default_global_scale, inverse_of, quantize_blocks


@dataclass(frozen=True, eq=False)
class Sample:
    """operands: {parameter: array}; scaling: that of two block-scaled operands; global_scale: the
    result's, if it has one; word: the first word of the second operand taken apart, None if the
    format has no packed words."""

    problem: Problem
    operands: dict[str, Any]
    scaling: Scaling | None
    word: dict | None
    global_scale: float = 1.0

    def bound(self, candidate: Candidate, sms: int, compiled) -> Binding:
        return bind(
            find_kernel(candidate.kernel),
            candidate.config,
            self.problem,
            self.operands,
            sms=sms,
            compiled=compiled,
            scaling=self.scaling,
        )

    def result(self, results: dict[str, np.ndarray]):
        """D as the kernel left it: an array, or a BlockScaled."""
        first, *scales = results.values()
        if not scales:
            return first
        return BlockScaled(
            self.problem.result,
            (self.problem.m, self.problem.columns),
            first,
            *scales,
            self.global_scale,
            "128x4",
        )


def sample(problem: Problem, random: np.random.Generator) -> Sample:
    return _SAMPLES[problem.kind](problem, random)


def of_weight(problem: WeightProblem, random: np.random.Generator) -> Sample:
    """Random codes, scales and zero points in Marlin's order."""
    kind = float_type(problem.dtype)
    integer = problem.codes == "integer"
    weight = (random_weight if integer else random_fp4)(problem, random)
    x = random.standard_normal((problem.m, problem.k)).astype(kind)
    bias = random.standard_normal(problem.n).astype(kind) if problem.bias else None
    operands = {"a": x, **weight_operands(weight), "bias": bias}
    return Sample(problem, operands, None, word_of(weight) if integer else None)


def of_activations(problem: ActivationsProblem, random: np.random.Generator) -> Sample:
    """The same, and x in 8 bits."""
    drawn = of_weight(problem, random)
    x = quantize_rows(drawn.operands["a"], problem.activations)
    return replace(drawn, operands=drawn.operands | activation_operands(x))


def random_weight(problem: WeightProblem, random: np.random.Generator) -> PackedWeight:
    columns, groups = packed_columns(problem.n), problem.groups
    words = random.integers(
        -(2**31), 2**31, (problem.k // 16, columns * problem.bits // 2), dtype=np.int64
    ).astype(np.int32)
    scales = random.uniform(0.002, 0.02, (groups, columns)).astype(float_type(problem.scale_dtype))
    zeros = None
    if problem.zeros == "integer":
        zeros = random.integers(
            -(2**31), 2**31, (groups, columns * problem.bits // 32), dtype=np.int64
        ).astype(np.int32)
    elif problem.zeros == "float16":
        zeros = random.uniform(0, 15, (groups, columns)).astype(np.float16)
    return PackedWeight(
        "marlin", words, scales, problem.bits, problem.group_size, problem.k, problem.n, zeros
    )


def random_fp4(problem: WeightProblem, random: np.random.Generator) -> PackedBlocks:
    """Random codes, and scales near 1, in Marlin's order for FP4."""
    shape = (problem.groups, problem.n)
    blocks = BlockWeight(
        random.integers(0, 16, (problem.k, problem.n), dtype=np.uint8),
        "e2m1",
        random.integers(0x30, 0x40, shape, dtype=np.uint8),
        "e4m3",
        (problem.group_size, 1),
    )
    return find_format("marlin-fp4").pack(blocks, dtype=problem.dtype)


def of_experts(problem: ExpertsProblem, random: np.random.Generator) -> Sample:
    """Random weights of each expert, and every token to random ones of them."""
    integer, kind = problem.codes == "integer", float_type(problem.dtype)
    draw = random_weight if integer else random_fp4
    experts = PackedExperts.of(draw(problem, random) for _ in range(problem.experts))
    order = np.argsort(random.random((problem.m, problem.experts)), axis=1)
    ids = order[:, : problem.top_k]
    routing = Routing.of(ids, random.random(ids.shape), problem.experts)
    rows = problem.pairs if problem.x_of_pairs else problem.m
    shape = (problem.experts, problem.n)
    x = random.standard_normal((rows, problem.k)).astype(kind)
    of_x = {"a": x}
    if problem.activations is not None:
        of_x = activation_rows(quantize_rows(x, problem.activations))
    operands = {
        **of_x,
        **experts_operands(experts),
        **routing_operands(routing),
        "bias": random.standard_normal(shape).astype(kind) if problem.bias else None,
    }
    return Sample(problem, operands, None, word_of(experts[0]) if integer else None)


def of_two(problem: BlockProblem, random: np.random.Generator) -> Sample:
    a, b = (
        quantize_blocks(
            random.standard_normal((rows, problem.k)).astype(np.float32), problem.format
        )
        for rows in (problem.m, problem.n)
    )
    return of_blocks(problem, a, b, random)


def of_blocks(
    problem: BlockProblem, a: BlockScaled, b: BlockScaled, random: np.random.Generator
) -> Sample:
    c = bias = None
    if problem.source:
        c = random.standard_normal((problem.m, problem.n)).astype(float_type(problem.source_dtype))
    if problem.bias:
        bias = random.standard_normal(problem.n).astype(np.float32)
    global_scale = 1.0
    if problem.result in BLOCK_FORMATS and BLOCK_FORMATS[problem.result].has_global_scale:
        product = dequantize(a, np.float32) @ dequantize(b, np.float32).T
        total = product if c is None else product + c.astype(np.float32)
        global_scale = default_global_scale(float(np.abs(total).max()))
    return Sample(
        problem,
        {
            **block_operands(a.with_scales("128x4"), b.with_scales("128x4")),
            "c": c,
            "bias": bias,
        },
        Scaling(a.global_scale * b.global_scale, float(problem.source), inverse_of(global_scale)),
        word_of_rows(b),
        global_scale,
    )


_SAMPLES: dict[str, Callable[..., Sample]] = {
    WEIGHTS: of_weight,
    OPERANDS: of_two,
    ACTIVATIONS: of_activations,
    EXPERTS: of_experts,
}


def word_of(weight: PackedWeight) -> dict | None:
    """The first word of the weight, bit by bit."""
    if weight.n != weight.n_packed or weight.zeros_kind == "float16":
        return None
    zeros = {} if weight.zeros is None else {"qzeros": weight.zeros}
    return (
        Layer(
            find_stored("vllm-marlin"),
            {"qweight": weight.qweight, "scales": weight.scales, **zeros},
        )
        .word("qweight", 0, 0)
        .to_dict()
    )


def word_of_rows(operand) -> dict:
    """The same for a ``formats.BlockScaled``, whose codes lie side by side: the first word of its
    first row."""
    form, codes = operand.form, operand.codes()[0]
    scale = float(decode(operand.plain_scales()[0, :1], form.scale_grid)[0]) * operand.global_scale
    found = []
    for number in range(32 // form.bits):
        code, low = int(codes[number]), number * form.bits
        found.append(
            {
                "low": low,
                "high": low + form.bits - 1,
                "code": code,
                "k": number,
                "n": 0,
                "zero": 0.0,
                "scale": scale,
                "value": float(decode(codes[number : number + 1], form.element)[0]) * scale,
            }
        )
    value = int(operand.data[0, :4].copy().view(np.uint32)[0])
    return {
        "value": value,
        "bits": 32,
        "hex": f"{value:#010x}",
        "codes": found,
        "element": form.element,
    }
