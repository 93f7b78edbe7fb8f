"""What a step should take, by bytes and operations, before it is measured.

*floor*: each linear layer's bytes over the reading rate or operations over the matrix rate,
whichever is more, and the cache's bytes; nothing else. *expected*: the floor of each layer, and
what experiment 02 measured beyond it on the H200 at its shapes (a fixed time a launch, and a factor
at 64 rows), and a fixed time for each kernel between layers.
"""

from __future__ import annotations

from dataclasses import dataclass

READ = 4.39e12  # bytes/s: a sum over memory, experiment 02
MATRIX = 765e12  # operations/s: cuBLAS on square matrices, experiment 02
CUBLAS_READ = 4.25e12  # bytes/s that cuBLAS reaches at 8192 x 57344 and 28672 x 8192, m=1
CUBLAS_FIXED = 5e-6  # seconds beyond that at 4096 x 4096 and 8192 x 8192
# rows of x -> (factor on the floor, seconds a launch): the kernels' times at 4096 x 4096 to
# 28672 x 8192 in experiment 02
OURS = {1: (1.0, 3.0e-6), 4: (1.0, 3.5e-6), 16: (1.05, 4.9e-6), 64: (1.4, 5.5e-6)}
KERNEL = 2.0e-6  # seconds of a small kernel in a graph
KERNELS = 7  # a block's kernels besides its linear layers: norms 2, turn 2, attention 2, gate 1
# seconds of a small all-reduce over two GPUs; of ``join`` beyond the norm that it has in it
REDUCE = {"NCCL": 12e-6, "one-shot": 6e-6, "join": 4e-6}
BITS = 4 + 16 / 128


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step."""

    floor: float
    expected: float


def linear(k: int, n: int, m: int, kind: str) -> Prediction:
    """kind: "fp16" or "int4"."""
    other = 2 * m * (k + n)
    work = 2 * m * n * k / MATRIX
    if kind == "fp16":
        nbytes = 2 * k * n + other
        return Prediction(max(nbytes / READ, work), max(nbytes / CUBLAS_READ, work) + CUBLAS_FIXED)
    floor = max((k * n * BITS / 8 + other) / READ, work)
    factor, fixed = OURS.get(m, (1.02, 5.5e-6))
    return Prediction(floor, factor * floor + fixed)


def block(shape, m: int, context: int, kind: str) -> Prediction:
    each = [linear(k, n, m, kind) for k, n in shape.linears().values()]
    kept = m * context * 4 * shape.own_kv_heads * shape.head / READ
    return Prediction(
        sum(one.floor for one in each) + kept,
        sum(one.expected for one in each) + kept + KERNELS * KERNEL,
    )


def step(shape, m: int, context: int, kind: str, head: str | None = None) -> Prediction:
    """One decode step of a batch of m. head: the kind of the layer of logits (default: kind)."""
    one, last = block(shape, m, context, kind), linear(*shape.output(), m, head or kind)
    return Prediction(
        shape.layers * one.floor + last.floor,
        shape.layers * one.expected + last.expected + 2 * KERNEL,
    )


def divided(shape, m: int, context: int, kind: str, reduce: str) -> Prediction:
    """One decode step on ``shape.world`` GPUs: two all-reduces a layer, and a gather."""
    alone = step(shape, m, context, kind)
    return Prediction(alone.floor, alone.expected + (2 * shape.layers + 1) * REDUCE[reduce])


def prefill(shape, tokens: int, kind: str) -> Prediction:
    """Matrix products at the matrix rate, elementwise kernels at the reading rate."""
    each = [linear(k, n, tokens, kind) for k, n in shape.linears().values()]
    work = sum(2 * tokens * k * n for k, n in shape.linears().values()) / MATRIX
    attention = 2 * tokens * tokens * shape.hidden / (MATRIX / 2)  # causal: half of 4 t t h
    width = 12 * shape.hidden + 3 * shape.mlp + 6 * shape.own_kv_heads * shape.head
    glue = 2 * tokens * width / READ
    over = sum(one.expected for one in each) - sum(one.floor for one in each)
    floor = shape.layers * (work + attention)
    return Prediction(floor, floor + shape.layers * (2 * glue + over))
