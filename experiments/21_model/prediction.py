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


# ---- blocks with a mixture of experts

ROUTING = 23  # small kernels from logits to a kernel's lists: numba_marlin.torch's, in torch
GATHERS = 7  # more around grouped products: rows, their experts and places, an activation
MIXTURE_KERNELS = 6  # as ``KERNELS``, without the gate
# {(shape, contender): {tokens: (gate_up, down)}}: microseconds of the experts' products that
# experiment 26 measured on H200s: "moe" or "moe_wgmma", the faster; "grouped" and "grouped + sum"
EXPERTS_US = {
    ("Mixtral 8x7B", "int4"): {
        1: (38.3, 28.0),
        4: (77.0, 50.8),
        16: (117.9, 65.4),
        64: (171.6, 89.0),
        1024: (780.2, 410.1),
        4096: (2878.0, 1605.1),
    },
    ("Mixtral 8x7B", "bf16"): {
        1: (227.1, 98.7),
        4: (526.0, 253.1),
        16: (704.8, 327.7),
        64: (693.5, 331.4),
        1024: (1117.0, 606.3),
        4096: (3210.2, 1706.6),
    },
    ("gpt-oss-120b", "mxfp4"): {
        1: (18.7, 14.8),
        4: (47.1, 30.3),
        16: (144.7, 78.1),
        64: (294.2, 159.5),
        1024: (458.7, 278.0),
        4096: (1174.3, 617.5),
    },
    ("gpt-oss-120b", "bf16"): {
        1: (67.7, 45.7),
        4: (204.5, 124.3),
        16: (641.7, 321.0),
        64: (1266.9, 655.6),
        1024: (1397.8, 754.9),
        4096: (1932.3, 1122.3),
    },
}
EXPERT_BITS = {"int4": BITS, "mxfp4": 4 + 8 / 32, "bf16": 16}


def experts_seconds(shape, m: int, contender: str) -> float | None:
    """Of a layer's experts, between two numbers of tokens in proportion; None for a shape that was
    not measured."""
    measured = EXPERTS_US.get((shape.name, contender))
    if measured is None:
        return None
    above = min(each for each in measured if each >= m)
    below = max(each for each in measured if each <= m)
    part = 0 if above == below else (m - below) / (above - below)
    low, high = sum(measured[below]), sum(measured[above])
    return (low + part * (high - low)) * 1e-6


def experts_floor(shape, m: int, contender: str) -> float:
    """Seconds to read the experts that are touched if each token chooses at random, or to
    multiply."""
    weights = sum(k * n for k, n in shape.products().values())
    some = shape.experts * (1 - (1 - shape.top_k / shape.experts) ** m)
    nbytes = some * weights * EXPERT_BITS[contender] / 8
    return max(nbytes / READ, 2 * m * shape.top_k * weights / MATRIX)


def mixture(shape, m: int, context: int, contender: str, what: str) -> Prediction | None:
    """A block; what: "decode" or "prefill". contender: "bf16", or ``shape.kind``."""
    experts = experts_seconds(shape, m, contender)
    if experts is None:
        return None
    kind = "int4" if contender == "int4" else "fp16"
    each = [linear(k, n, m, kind) for k, n in shape.linears().values()]
    router = linear(shape.hidden, shape.experts, m, "fp16")
    floor = sum(one.floor for one in each) + router.floor + experts_floor(shape, m, contender)
    small = MIXTURE_KERNELS + ROUTING + (GATHERS if contender == "bf16" else 0)
    expected = sum(one.expected for one in each) + router.expected + experts + small * KERNEL
    width = shape.heads * shape.head
    if what == "decode":
        attention, more = m * context * 4 * shape.kv_heads * shape.head / READ, 0.0
    else:
        attention = 2 * m * m * width / (MATRIX / 2)  # causal: half of 4 m m width
        more = 2 * m * (12 * shape.hidden + 6 * shape.kv_heads * shape.head) * 2 / READ
    return Prediction(floor + attention, expected + attention + more)
