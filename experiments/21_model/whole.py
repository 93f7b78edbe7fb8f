"""The parts ``ceilings``, ``check``, ``decode`` and ``prefill``: the 8B shape on one GPU."""

from __future__ import annotations

import contextlib
import time

import clock
import prediction
import torch
from decoder import (
    PLAIN,
    Decoder,
    Place,
    dense_twin,
    four_bit,
    glue_named,
    half,
    random_decoder,
)
from peers import KERNELS, PEERS

from numba_marlin.bench.ceilings import measure as measure_ceilings
from numba_marlin.bench.timing import interleave
from numba_marlin.emulator import Schedule
from numba_marlin.emulator.scheduling.schedules import OF_WARPS

# Norm-wise, of logits of two layers in fp16 with a float32 twin: 17 tensors on the way are rounded,
# each by at most 2**-11 of itself; if independently, that adds up to sqrt(17) * 2**-11 = 0.002.
LARGEST_ERROR = 5e-3
FLOAT, INT = "fp16", "int4"
FP16_HEAD = "int4, fp16 head"


def relative(found, expected) -> float:
    """Norm-wise error; NaN if anything is NaN."""
    difference = found.double() - expected.double()
    return float(difference.norm() / expected.double().norm())


def ceilings(options, rows) -> None:
    """Bytes and operations a second that this GPU reaches today."""
    if options.device != "cuda":
        return
    found = measure_ceilings().to_dict()
    read, work = found["read_bytes"] / 1e12, found["matrix_flops"] / 1e12
    row = {"part": "ceilings", "m": None, **found}
    rows.add(row, f"reads {read:.2f} TB/s, multiplies {work:.0f} TFLOP/s")


def check(options, rows) -> None:
    """Two layers: the logits against a float32 twin with dequantised weights, and a captured step
    against the eager one, with other tokens than those it was captured with. What is wrong goes
    into ``options.failures``."""
    place, shape = Place(options.device, torch.float16), options.shape
    model = random_decoder(shape, four_bit, place, layers=2)
    twin, same_type = dense_twin(model, torch.float32), dense_twin(model, torch.float16)
    context = min(options.context, 256)
    for batch in options.batches:
        tokens, cache, position = inputs(model, batch, context)
        expected = twin.step(tokens, [each.float() for each in cache], position)
        error, plain = (
            relative(each.step(tokens, copies(cache), position), expected)
            for each in (model, same_type)
        )
        report_error(options, rows, shape, "step", batch, context, error, plain)
    length = min(options.tokens, 256)
    tokens, cache, _ = inputs(model, 1, length)
    tokens = torch.randint(0, shape.vocabulary, (length,), device=options.device)
    expected = twin.prefill(tokens, [each.float() for each in cache])
    error, plain = (
        relative(each.prefill(tokens, copies(cache)), expected) for each in (model, same_type)
    )
    report_error(options, rows, shape, "prefill", length, length, error, plain)
    for glue in glues(options):
        before = len(options.failures)
        for batch in options.batches:
            with failing(options, f"replay with {glue.name} glue, m={batch}"):
                replayed(model.with_glue(glue), batch, options, rows)
        if len(options.failures) > before:  # it is not timed
            options.glue = [name for name in options.glue if name != glue.name] or ["plain"]


def report_error(options, rows, shape, what, m, context, error, plain) -> None:
    row = {
        "part": "check",
        "what": what,
        "shape": shape.name,
        "m": m,
        "context": context,
        "relative_error": error,
        "dense_fp16_error": plain,
        "bound": LARGEST_ERROR,
    }
    said = (
        f"{what} m={m}: error {error:.1e}, of the same in fp16 {plain:.1e}, bound {LARGEST_ERROR}"
    )
    rows.add(row, said)
    fail_unless(options, error < LARGEST_ERROR, said)


def fail_unless(options, right: bool, said: str) -> None:
    if not right:
        print(f"  WRONG: {said}", flush=True)
        options.failures.append(said)


def same_attention() -> None:
    """One attention kernel for all contenders."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def replayed(model: Decoder, batch: int, options, rows) -> None:
    """A captured step against an eager one, and that against one with plain glue."""
    context = min(options.context, 256)
    tokens, cache, position = inputs(model, batch, context)
    start = copies(cache)
    held = clock.timer(options.device, lambda index: model.step(tokens, cache, position))
    tokens.copy_(torch.randint_like(tokens, model.shape.vocabulary))
    for kept, each in zip(cache, start):
        kept.copy_(each)
    held.replay()
    found, glue = held.output.clone(), model.glue
    equal = torch.equal(found, model.step(tokens, copies(start), position))
    error = relative(found, model.with_glue(PLAIN).step(tokens, start, position))
    row = {
        "part": "check",
        "what": "replay",
        "shape": model.shape.name,
        "glue": glue.name,
        "m": batch,
        "equal": equal,
        "relative_error": error,
        "bound": LARGEST_ERROR,
    }
    said = f"replay of m={batch}, {glue.name}: equal to eager: {equal}, error to plain {error:.1e}"
    rows.add(row, said)
    fail_unless(options, equal and error < LARGEST_ERROR, said)


def inputs(model: Decoder, batch: int, context: int):
    """Random tokens [batch], a cache, and the position of its last place."""
    device = model.embedding.device
    tokens = torch.randint(0, model.shape.vocabulary, (batch,), device=device)
    return tokens, model.cache(batch, context), torch.tensor([context - 1], device=device)


def copies(cache):
    return [each.clone() for each in cache]


def glues(options):
    """The kinds of glue that were asked for and that can be made here."""
    found = []
    for name in options.glue:
        with told(f"{name} glue"):
            if name == "fused" and options.device != "cuda":
                raise RuntimeError("it needs a GPU; the part glue runs it on the PTX machine")
            found.append(glue_named(name))
    return found


# ---- models


def models(options, rows, peers: bool) -> dict[str, Decoder]:
    """{contender: decoder}; "int4, fp16 head" shares the blocks of "int4"."""
    place = Place(options.device, torch.float16)
    start = time.perf_counter()
    found = {
        FLOAT: random_decoder(options.shape, half, place),
        INT: random_decoder(options.shape, four_bit, place),
    }
    int4 = found[INT]
    found[FP16_HEAD] = Decoder(int4.shape, int4.blocks, int4.embedding, found[FLOAT].head)
    if peers and options.peers:
        found |= peers_there(options, rows)
    if options.device == "cuda":
        torch.cuda.synchronize()
        gb = torch.cuda.memory_allocated() / 1e9
        print(f"  weights: {gb:.1f} GB made in {time.perf_counter() - start:.1f} s", flush=True)
    return found


def peers_there(options, rows) -> dict[str, Decoder]:
    """Of other projects' layers; a row says why one is left out."""
    found = {}
    for name, (make, dtype) in PEERS.items():
        try:
            made = random_decoder(options.shape, make, Place(options.device, dtype))
            made.step(*inputs(made, 1, 16))
            found[name] = made
        except Exception as error:  # whatever a peer raises
            why = f"{type(error).__name__}: {str(error)[:200]}"
            row = {"part": "peer", "contender": name, "m": None, "left_out": why}
            rows.add(row, f"{name} is left out: {why}")
    return found


def glue_on_machine(options, rows) -> None:
    """The Triton kernels of glue fused and of ``join`` on the PTX machine, which looks for races,
    in several orders. Needs Triton, no GPU."""
    try:
        import glue_cases
    except ImportError as error:
        print(f"  left out: {error}", flush=True)
        return
    from importlib.metadata import version

    orders = [None, *(Schedule(21, order) for order in OF_WARPS)]
    for case in glue_cases.cases():
        with failing(options, f"{case.kernel}, {case.what}"):
            worst = max(case.run(schedule) for schedule in orders)
            row = {
                "part": "glue",
                "contender": case.kernel,
                "what": case.what,
                "m": case.m,
                "orders": len(orders),
                "worst": round(worst, 3),
                "triton": version("triton"),
            }
            said = f"{case.kernel}, {case.what}: {worst:.2f} of its bound in {len(orders)} orders"
            rows.add(row, said)
            fail_unless(options, worst <= 1, said)


@contextlib.contextmanager
def failing(options, name: str):
    """What raises counts as wrong."""
    try:
        yield
    except Exception as error:
        fail_unless(options, False, f"{name}: {type(error).__name__}: {str(error)[:300]}")


@contextlib.contextmanager
def told(name: str):
    """What cannot run here is said, and left out."""
    try:
        yield
    except Exception as error:  # whatever a peer raises
        print(f"  {name} is left out: {type(error).__name__}: {str(error)[:200]}", flush=True)


def decode(options, rows, made: dict[str, Decoder]) -> None:
    for glue in glues(options):
        for batch in options.batches:
            if ("decode", glue.name, batch, None, None) in options.done:
                continue
            begin = time.perf_counter()
            timers = {}
            for name, model in made.items():
                with told(f"{name} with {glue.name} glue at m={batch}"):
                    timers[name] = step_timer(options, model.with_glue(glue), batch)
            said = f"m={batch} {glue.name}: captured in {time.perf_counter() - begin:.1f} s"
            print(f"  {said}", flush=True)
            times = in_rounds(options, timers)
            add_rows(options, rows, "decode", batch, glue.name, times)
            del timers  # their graphs' memory


def in_rounds(options, timers: dict) -> dict:
    """{contender: microseconds in each round}, of what could be captured."""
    options.watch.settle()
    return interleave(timers, options.rounds, options.watch.sample) if timers else {}


def step_timer(options, model: Decoder, batch: int):
    tokens, cache, position = inputs(model, batch, options.context)
    return clock.timer(
        options.device, lambda index: model.step(tokens, cache, position), options.repeats
    )


def prefill(options, rows, made: dict[str, Decoder]) -> None:
    for glue in glues(options):
        timers = {}
        for name in (FLOAT, INT):
            with told(f"prefill of {name} with {glue.name} glue"):
                timers[name] = prefill_timer(options, made[name].with_glue(glue))
        times = in_rounds(options, timers)
        add_rows(options, rows, "prefill", options.tokens, glue.name, times)


def prefill_timer(options, model: Decoder):
    tokens = torch.randint(0, model.shape.vocabulary, (options.tokens,), device=options.device)
    cache = model.cache(1, options.tokens)
    return clock.timer(options.device, lambda index: model.prefill(tokens, cache))


def add_rows(options, rows, part: str, m: int, glue: str, times: dict) -> None:
    """A row for each contender; tokens a second: a step makes one for each sequence of a batch, a
    prefill reads m."""
    shape = options.shape
    clocks = options.watch.summary()
    options.watch.clear()
    for name, each in times.items():
        row = {
            "part": part,
            "shape": shape.name,
            "contender": name,
            "glue": glue,
            "m": m,
            "context": options.context if part == "decode" else m,
            "n": shape.vocabulary,
            "k": shape.hidden,
            "layers": shape.layers,
            "linears": {layer: list(size) for layer, size in shape.linears().items()},
            "group_size": 128,
            "kernel": kernels(options, part, m, name),
            "repeats": options.repeats if part == "decode" else 1,
            **clock.spread(each),
            "clocks": clocks,
        }
        row["tokens_per_s"] = round(m / row["us"] * 1e6, 1)
        if name != FLOAT and FLOAT in times:
            row |= clock.ratio(times[FLOAT], each)
        expected = predicted(part, shape, m, options.context, name)
        if expected is not None:
            row["floor_us"] = round(expected.floor * 1e6, 1)
            row["expected_us"] = round(expected.expected * 1e6, 1)
        rows.add(row, sentence(row))


def kernels(options, part: str, m: int, name: str):
    """{layer: kernel} of a contender, or the one that it has; logits of a prefill are of a row."""
    alone = {FLOAT: "cublas", **KERNELS}
    if name in alone:
        return alone[name]
    found = dict(options.kernels(options.shape, m))
    last = options.kernels(options.shape, m if part == "decode" else 1)["head"]
    return found | {"head": "cublas" if name == FP16_HEAD else last}


def predicted(part: str, shape, m: int, context: int, name: str):
    if name in PEERS:
        return None
    if part == "prefill":
        return prediction.prefill(shape, m, name)
    head = FLOAT if name == FP16_HEAD else name
    return prediction.step(shape, m, context, name.partition(",")[0], head)


def sentence(row: dict) -> str:
    low, high = row["us_spread"]
    said = (
        f"{row['part']} {row['shape']} m={row['m']:<5} {row['contender']:24} {row['glue']:9}"
        f" {row['us'] / 1e3:9.3f} ms ({low / 1e3:.3f} to {high / 1e3:.3f})"
        f" {row['tokens_per_s']:10.0f} tokens/s"
    )
    if "speedup" in row:
        said += f"  {row['speedup']:.2f} x fp16"
    if "expected_us" in row:
        said += f"  (predicted {row['expected_us'] / 1e3:.2f} ms)"
    return said
