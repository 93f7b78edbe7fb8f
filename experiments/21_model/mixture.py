"""The part ``mixture``: a decoder block with a mixture of experts, of Mixtral 8x7B's and of
gpt-oss-120b's shape, beside the same block in bfloat16, whose experts are ``torch._grouped_mm``.

A call has ``shape.layers`` blocks, which are different: what is read of one is not in L2 when its
turn comes again. Attention is the decoder's, without gpt-oss's sinks and windows. Its products are
in 4 bits in Mixtral's block and in 16 in gpt-oss's, as in the files of the two; the router is in 16
bits. All contenders have the same numbers. Routing is ``numba_marlin.torch.Mixture``'s, on the
device, and nothing waits for it.

Nothing is timed before every block has given the results of one in float32 with dequantised
weights, at each number of tokens that is timed, and a captured step those of an eager one, bit for
bit. For the first the routers of all repeat what those of the packed blocks said: a rounding may
change which of two experts comes last.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import clock
import prediction
import torch
import whole
from decoder import Decoder, Glue, Place
from experts import float_twin, of_blocks, random_block
from sizes import GROUP, MixtureShape
from torch import Tensor

from numba_marlin.execution.routing import chosen_experts
from numba_marlin.problems import WeightProblem
from numba_marlin.problems.experts import ExpertsProblem

PART, FLOAT = "mixture", "bf16"
# Norm-wise, of two blocks in bfloat16 with a twin in float32: 28 tensors on the way are rounded,
# weights among them, each by at most 2**-9 of itself; if independently, that adds up to
# sqrt(28) * 2**-9 = 0.010.
LARGEST_ERROR = 2.5e-2
STRIP = 1024  # rows that ``numba_marlin.torch.dequantize`` makes at a time on a GPU


def problems(shape: MixtureShape) -> dict[str, WeightProblem]:
    """{packed layer: its product, of one token}"""
    bf16, integers = {"dtype": "bfloat16"}, {"scale_dtype": "bfloat16"}
    found = {}
    if shape.kind == "int4":
        for name, (k, n) in shape.linears().items():
            found[name] = WeightProblem(m=1, n=n, k=k, group_size=GROUP, **bf16, **integers)
    codes = integers if shape.kind == "int4" else {"codes": "e2m1"}
    common = {"group_size": shape.group, "experts": shape.experts, "top_k": shape.top_k}
    common |= {"bias": shape.biases, **bf16, **codes}
    of_product = {
        "gate_up": {"activation": shape.activation},
        "down": {"x_of_pairs": True, "combine": True},
    }
    for name, (k, n) in shape.products().items():
        found[name] = ExpertsProblem(m=1, n=n, k=k, **common, **of_product[name])
    return found


def dequantised(shape: MixtureShape) -> dict[str, WeightProblem]:
    """The products of one expert by which ``dequantize`` makes floats of it."""
    codes = {"scale_dtype": "bfloat16"} if shape.kind == "int4" else {"codes": "e2m1"}
    return {
        f"{name}, {m} rows": WeightProblem(m, n, k, shape.group, dtype="bfloat16", **codes)
        for name, (k, n) in shape.products().items()
        for m in {min(STRIP, k), k % STRIP or STRIP}
    }


# ---- calls


@dataclass
class Given:
    """x and what is added to it first, [calls, m, hidden]; the blocks' cache; position: of the
    tokens of a step, None where the m tokens are one sequence."""

    x: Tensor
    more: Tensor
    cache: list[Tensor]
    position: Tensor | None

    @property
    def m(self) -> int:
        return self.x.shape[1]

    @property
    def what(self) -> str:
        return "prefill" if self.position is None else "decode"


def given(options, model: Decoder, m: int, calls: int = 1) -> Given:
    """A step of m sequences, or a prefill, of ``options.tokens``."""
    like, shape = model.embedding, (calls, m, model.shape.hidden)
    x, more = (torch.randn(shape, dtype=like.dtype, device=like.device) for _ in range(2))
    if m == options.tokens:
        return Given(x, more, model.cache(1, m), None)
    position = torch.tensor([options.context - 1], device=like.device)
    return Given(x, more, model.cache(m, options.context), position)


def called(model: Decoder, held: Given, call: int = 0) -> tuple[Tensor, Tensor]:
    """All blocks on one call's tokens, whose keys and values are written anew: the residual, and
    what the last mixture adds to it. Calls take turns of those that there are."""
    turn = call % len(held.x)
    x, more = held.x[turn], held.more[turn]
    if held.position is None:
        return model.prefill_body(x, held.cache, more)
    return model.body(x, held.cache, held.position, more)


@contextlib.contextmanager
def routers(model: Decoder, change: Callable):
    """Inside, ``change(block's number, logits)`` takes the place of a router's logits, if it is not
    None."""
    held = [
        block.mixture.router.register_forward_hook(
            lambda module, x, logits, number=number: change(number, logits)
        )
        for number, block in enumerate(model.blocks)
    ]
    try:
        yield
    finally:
        for each in held:
            each.remove()


def touched(model: Decoder, held: Given) -> float:
    """Experts that a block's tokens go to, on average over blocks and calls."""
    found: list[int] = []

    def count(number: int, logits: Tensor) -> None:
        ids, _ = chosen_experts(logits, model.shape.top_k)
        found.append(len(ids.unique()))

    with routers(model, count):
        for call in range(len(held.x)):
            called(model, held, call)
    return sum(found) / len(found)


# ---- the part


def mixtures(options, rows) -> None:
    for shape in options.mixtures:
        start = time.perf_counter()
        place = Place(options.device, torch.bfloat16)
        packed = of_blocks(shape, [random_block(shape, place) for _ in range(shape.layers)])
        models = {FLOAT: float_twin(packed, torch.bfloat16), shape.kind: packed}
        print(f"  {shape.name}: made in {time.perf_counter() - start:.1f} s", flush=True)
        found, before = glues(options, shape), len(options.failures)
        check(options, rows, models, found)
        if len(options.failures) > before:
            continue  # it is not timed
        for glue in found:
            for m in sizes(options):
                if (PART, glue.name, m, None, shape.name) not in options.done:
                    measure(options, rows, glue, m, models)


def sizes(options) -> list[int]:
    """Numbers of tokens: those of steps, and that of a prefill."""
    return [*options.batches, options.tokens]


def glues(options, shape: MixtureShape) -> list[Glue]:
    """What can be between the products of this shape."""
    found = whole.glues(options)
    if shape.hidden & (shape.hidden - 1):  # no power of two: ``norm.check_width``
        found = [each for each in found if each.name != "fused"]
    return found


def measure(options, rows, glue: Glue, m: int, models: dict[str, Decoder]) -> None:
    packed = models[models[FLOAT].shape.kind]
    held = given(options, packed, m, 1 if m == options.tokens else options.repeats)
    timers = {}
    for name, model in models.items():
        with whole.told(f"{name} with {glue.name} glue at m={m}"):
            call = partial(called, model.with_glue(glue), held)
            timers[name] = clock.timer(options.device, call, len(held.x))
    times = {
        name: [us / packed.shape.layers for us in each]
        for name, each in whole.in_rounds(options, timers).items()
    }
    add_rows(options, rows, packed.shape, held, glue, times, touched(packed, held))


def add_rows(options, rows, shape, held: Given, glue: Glue, times: dict, experts: float) -> None:
    """A row of each contender: microseconds of a block."""
    clocks = options.watch.summary()
    options.watch.clear()
    attention = {name: "cublas" for name in (*shape.linears(), "router")}
    for name, each in times.items():
        row = {
            "part": PART,
            "what": held.what,
            "shape": shape.name,
            "layer": shape.name,
            "contender": name,
            "glue": glue.name,
            "m": held.m,
            "context": held.cache[0].shape[1],
            "n": shape.hidden,
            "k": shape.hidden,
            "linears": {key: list(size) for key, size in shape.linears().items()},
            "products": {key: list(size) for key, size in shape.products().items()},
            "experts": shape.experts,
            "top_k": shape.top_k,
            "touched": round(experts, 2),
            "group_size": shape.group,
            "kernel": attention
            | (
                {"gate_up": "_grouped_mm", "down": "_grouped_mm"}
                if name == FLOAT
                else options.kernels(shape, held.m)
            ),
            "repeats": len(held.x),
            **clock.spread(each),
            "clocks": clocks,
        }
        if name != FLOAT and FLOAT in times:
            row |= clock.ratio(times[FLOAT], each)
        expected = prediction.mixture(shape, held.m, row["context"], name, held.what)
        if expected is not None:
            row["floor_us"] = round(expected.floor * 1e6, 1)
            row["expected_us"] = round(expected.expected * 1e6, 1)
        rows.add(row, sentence(row))


def sentence(row: dict) -> str:
    low, high = row["us_spread"]
    said = (
        f"{row['what']} {row['shape']} m={row['m']:<5} {row['contender']:6} {row['glue']:9}"
        f" {row['us']:9.1f} us a block ({low:.1f} to {high:.1f}), {row['touched']:.1f} experts"
    )
    if "speedup" in row:
        said += f"  {row['speedup']:.2f} x {FLOAT}"
    if "expected_us" in row:
        said += f"  (predicted {row['expected_us']:.0f})"
    return said


# ---- right or wrong


def check(options, rows, models: dict[str, Decoder], found: list[Glue]) -> None:
    """What is wrong goes into ``options.failures``."""
    shape = models[FLOAT].shape
    twin = float_twin(models[shape.kind], torch.float32)
    for glue in found:
        for m in sizes(options):
            with whole.failing(options, f"{shape.name} with {glue.name} glue, m={m}"):
                errors = errors_of(options, models, twin, glue, m)
                equal = is_replayed(options, models[shape.kind].with_glue(glue), m)
                row = {
                    "part": f"{PART} check",
                    "what": "prefill" if m == options.tokens else "decode",
                    "shape": shape.name,
                    "glue": glue.name,
                    "m": m,
                    "equal": equal,
                    "relative_error": errors[shape.kind],
                    "bf16_error": errors[FLOAT],
                    "bound": LARGEST_ERROR,
                }
                said = (
                    f"{shape.name} m={m}, {glue.name}: error {errors[shape.kind]:.1e}, of bf16"
                    f" {errors[FLOAT]:.1e}, bound {LARGEST_ERROR}; replay equal to eager: {equal}"
                )
                rows.add(row, said)
                right = equal and all(each < LARGEST_ERROR for each in errors.values())
                whole.fail_unless(options, right, said)


def errors_of(options, models: dict, twin: Decoder, glue: Glue, m: int) -> dict[str, float]:
    """{contender: norm-wise error}, with the routing of the packed blocks; of the residual or of
    the last mixture's result, whichever is more."""
    packed = models[twin.shape.kind]
    held, said = given(options, packed, m), []
    with routers(packed, lambda number, logits: said.append(logits)):
        found = {twin.shape.kind: called(packed.with_glue(glue), held)}
    with routers(models[FLOAT], lambda number, logits: said[number]):
        found[FLOAT] = called(models[FLOAT].with_glue(glue), held)
    as_float = replace(
        held,
        x=held.x.float(),
        more=held.more.float(),
        cache=[each.float() for each in held.cache],
    )
    with routers(twin, lambda number, logits: said[number].float()):
        expected = called(twin, as_float)
    return {
        name: max(map(whole.relative, results, expected), key=lambda error: (error != error, error))
        for name, results in found.items()
    }


def is_replayed(options, model: Decoder, m: int) -> bool:
    """Whether a captured call on other numbers than it was captured with gives what an eager one
    gives."""
    held = given(options, model, m)
    captured = clock.timer(options.device, partial(called, model, held))
    for each in (held.x, held.more):
        each.normal_()
    captured.replay()
    found = [each.clone() for each in captured.output]
    return all(map(torch.equal, found, called(model, held)))
