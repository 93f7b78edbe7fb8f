"""How fast is W4A8, activations quantised to int8 or fp8 on the way, beside 16-bit activations?

    python experiments/23_w4a8/run.py check         # products of small problems; Hopper and torch
    python experiments/23_w4a8/run.py measure [--shapes 8192x8192] [--m 1024,4096] [--groups 128]
        [--humming] [--seconds 400]
    python experiments/23_w4a8/run.py report        # the table into README.md
    python experiments/23_w4a8/run.py expect        # what is expected; no GPU

In each cell, in the same interleaved rounds (cold L2, CUDA graphs): ``cublas``, fp16;
``w4a16``, what ``nm.matmul`` chooses for 16-bit activations; ``int8`` and ``fp8``, quantisation of
x and the product, two launches; ``quantize_int8`` and ``quantize_fp8``, their first launches alone;
with --humming (PyPI: humming-kernels) ``humming_int8`` and ``humming_fp8``, which quantise x too.
Results are checked before anything is timed: codes and scales of x equal to the rule's, bit for
bit, products within the error of 8-bit activations; Humming is left out where it fails or is wrong,
and the run says why. Rows are appended to results.jsonl (in OUT, or here); the newest of a cell
counts. "Expected" is modelled: the time that ``kernels.w4a8.choose`` reckons, and 3 bytes of memory
traffic for each number that is quantised.
"""

import argparse
import itertools
import math
import os
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

import beside
import picture
import tables
from layers import (
    BATCHES,
    ENTRANTS,
    GROUPS,
    KINDS,
    LARGEST_ERROR,
    SHAPES,
    cells,
    expected_us,
    quantized,
)
from peer import peer_of

from numba_marlin.bench import rows
from numba_marlin.bench.tables import origin, replace_between

RESULTS = HERE / "results.jsonl"
MARKERS = ("<!-- table: begin -->", "<!-- table: end -->")
CODES = {"int8": "int8", "fp8": "uint8"}


def quantizer(batch, kind):
    """(its launch: a function of its number; {"codes", "scales", of fp8 "offsets": tensor}) for the
    batch's x."""
    import torch

    from numba_marlin.execution import driver, gpu, quantizing
    from numba_marlin.kernels.quantize_activations import RowTypes
    from numba_marlin.layout.offsets import offset_shape

    ordinal = torch.cuda.current_device()
    m, k = batch.x.shape
    binding = quantizing.binding(RowTypes(kind), m, k, driver.describe(ordinal).target)
    made = {
        "codes": torch.empty((m, k), dtype=getattr(torch, CODES[kind]), device="cuda"),
        "scales": torch.empty((m,), dtype=torch.float32, device="cuda"),
    }
    if binding.config.offsets:
        made["offsets"] = torch.empty(
            offset_shape(m, k, "float16"), dtype=batch.x.dtype, device="cuda"
        )
    addresses = {name: each.data_ptr() for name, each in {**made, "x": batch.x}.items()}
    launcher, arguments = (
        gpu.loaded(binding, ordinal),
        gpu.arguments(binding, addresses, ordinal),
    )

    def launch(index):
        stream = torch.cuda.current_stream().cuda_stream
        launcher(binding.grid, arguments, stream)

    return launch, made


class Quantised:
    """A batch whose x is quantised, as ``bench.contenders.kernel`` wants it."""

    scaling = None

    def __init__(self, batch, made):
        names = {"codes": "a", "scales": "a_scales", "offsets": "offsets"}
        self.x, self.fixed = batch.x, {names[name]: each for name, each in made.items()}
        self.error = batch.error


def check_codes(batch, kind, made):
    """ValueError unless the first rows are quantised as the rule says, bit for bit."""
    from numba_marlin.quantizers.activations import quantize_rows

    few = min(16, len(batch.x))
    wanted = quantize_rows(batch.x[:few].cpu().numpy(), kind)
    for name, found in made.items():
        if found[:few].cpu().numpy().tobytes() != getattr(wanted, name).tobytes():
            raise ValueError(f"{name} of x {tuple(batch.x.shape)} are not those of the rule")


def in_turn(*launches):
    """A launch of all of them, one after the other."""

    def launch(index):
        for each in launches:
            each(index)

    return launch


def quantised(batch, kind):
    """(launch that quantises the batch's x, the batch with its codes), which are checked."""
    import torch

    quantize, made = quantizer(batch, kind)
    quantize(0)
    torch.cuda.synchronize()
    check_codes(batch, kind, made)
    return quantize, Quantised(batch, made)


def product(problem, candidate, weights, batch):
    """(contender, its error) of a product in 8 bits. ValueError if it is wrong."""
    from numba_marlin.bench import contenders
    from numba_marlin.bench.measure import relative_error

    found = contenders.kernel(problem, candidate, weights, batch)
    error = relative_error(found, batch)
    if not error < LARGEST_ERROR[problem.activations]:
        raise ValueError(f"{problem.in_words()}, {candidate.config}: relative error {error:.3g}")
    return found, error


def entrants(bench, problem, humming=False):
    """{name: (launch, copies of its weights, configuration, error)}, every result checked."""
    from dataclasses import asdict

    from numba_marlin.bench import contenders, operands
    from numba_marlin.bench.measure import checked
    from numba_marlin.heuristics import rank

    weights = bench.weights(problem)
    batch = operands.random_batch(weights, problem.m)
    cublas = contenders.cublas(weights, batch)
    half = bench.contender(problem, rank(problem, bench.device)[0], weights, batch)
    checked(half, batch)
    config = {"kernel": half.name, **asdict(half.candidate.config)}
    found = {
        "cublas": (cublas.launch, cublas.copies, {}, 0),
        "w4a16": (half.launch, half.copies, config, 0),
    }
    for kind in KINDS:
        quantize, codes = quantised(batch, kind)
        best = rank(quantized(problem, kind), bench.device)[0]
        eight, error = product(quantized(problem, kind), best, weights, codes)
        config = {"kernel": best.kernel, **asdict(best.config)}
        found[kind] = in_turn(quantize, eight.launch), eight.copies, config, error
        found[f"quantize_{kind}"] = quantize, 1, {}, 0
        if humming and (theirs := peer_of(kind, weights, batch)):
            peer, error = theirs
            found[peer.name] = peer.launch, peer.copies, peer.fields, error
    return found


def row_of(name, config, problem, us, environment, **more):
    """us: one for each round."""
    from numba_marlin.bench.measure import timed

    return {
        "kernel": name,
        "config": config,
        "compiler": "numba-cuda",
        "kind": "measured",
        **problem.to_dict(),
        **timed(us),
        **more,
        **environment,
    }


def compile_all(problems, device):
    """What is chosen, in 16 and in 8 bits, to the disk cache, on all cores."""
    from numba_marlin.heuristics import rank

    each_type = [each for p in problems for each in (p, *(quantized(p, kind) for kind in KINDS))]
    work = [(each, rank(each, device)[:1]) for each in each_type]
    count = beside.script("25_every_cell/run.py").compile_all(work, device, os.cpu_count())
    print(f"{count} kernels compiled", flush=True)


def measure(args):
    from numba_marlin.bench.measure import Bench, Settings
    from numba_marlin.bench.timing import GraphTimer, interleave

    bench = Bench(Settings(rounds=args.rounds))
    compile_all(list(cells(args.m, args.shapes, args.groups)), bench.device)
    start = time.monotonic()
    with rows.Recorder(Path(os.environ.get("OUT", HERE)) / "results.jsonl") as out:
        for problem in cells(args.m, args.shapes, args.groups):
            if time.monotonic() - start > args.seconds:
                print(f"stopped after --seconds {args.seconds:g}, before {problem.in_words()}")
                return
            found = entrants(bench, problem, args.humming)
            timers = {
                name: GraphTimer(launch, least=max(3, copies))
                for name, (launch, copies, _, _) in found.items()
            }
            bench.watch.settle()
            bench.watch.clear()
            times = interleave(timers, args.rounds, bench.watch.sample)
            more = {"rounds": args.rounds, "clocks": bench.watch.summary()}
            for name, us in times.items():
                _, _, config, error = found[name]
                error = {"relative_error": float(f"{error:.3g}")} if error else {}
                out.write(row_of(name, config, problem, us, bench.environment, **more, **error))
            medians = {name: round(median(us), 1) for name, us in times.items()}
            seconds = time.monotonic() - start
            print(f"{seconds:4.0f} s {problem.in_words()}", medians, flush=True)


def proposals(problem, device):
    """Candidates of all configurations that the kernel proposes."""
    from numba_marlin.heuristics import candidates
    from numba_marlin.kernels import registry

    for kernel in registry.kernels(problem.kind):
        if not kernel.takes.refusals(problem):
            for config in kernel.chooser.configurations(problem, device):
                yield candidates.candidate(problem, device, kernel.name, config)


def likely(candidates, within):
    """Those that are expected to take at most so many times what the best takes."""
    found = sorted(candidates, key=lambda each: each.figures["predicted_us"])
    most = within * found[0].figures["predicted_us"]
    return [each for each in found if each.figures["predicted_us"] <= most]


def check(args):
    """The first ``--most`` configurations that are proposed for a small problem: int8 bit for bit,
    fp8 within its bound. ``--backend emulator --shapes 256x136 --m 3``: without a GPU."""
    import numpy as np

    import numba_marlin as nm
    from numba_marlin.problems import ActivationsProblem
    from numba_marlin.testing.activations import check_product

    random, (k, n), m = np.random.default_rng(1), args.shapes[0], args.m[0]
    x = random.standard_normal((m, k)).astype(np.float16)
    w, done = random.standard_normal((k, n)).astype(np.float32), 0
    for group_size, symmetric in itertools.product(args.groups, (True, False)):
        weight = nm.quantize(w, group_size=group_size, symmetric=symmetric)
        packed = nm.pack(weight)
        for kind in args.kinds:
            codes = nm.quantize_activations(x, kind)
            problem = ActivationsProblem.of_quantized(codes, weight)
            for each in list(proposals(problem, target()))[: args.most]:
                y = nm.matmul(codes, packed, args.backend, kernel=each.kernel, config=each.config)
                check_product(y, codes, weight)
                done += 1
    print(f"{done} products are right")


def target():
    """The GPU of this computer, or the H200's entry."""
    from numba_marlin.execution import driver
    from numba_marlin.hardware import devices

    return driver.describe(0) if driver.probe().usable else devices.device("H200")


def report(args):
    from numba_marlin.hardware import devices

    found = list(rows.newest(rows.read(RESULTS)).values())
    parts = [
        tables.beside_humming(found),
        tables.table(found, devices.device("H200")),
        origin(found),
    ]
    body = "\n\n".join(each for each in parts if each)
    replace_between(HERE / "README.md", MARKERS, body)
    picture.draw(found, ENTRANTS, HERE / "speed.png")


def expect(args):
    from numba_marlin.hardware import devices

    device = devices.device("H200")
    for problem in cells(args.m, args.shapes, args.groups):
        for kind in args.kinds:
            eight = quantized(problem, kind)
            print(f"{expected_us(eight, device):10.1f} us  {eight.in_words()}")


def numbers(text):
    return [int(each) for each in text.split(",")]


def sizes(text):
    """ "8192x57344,4096x4096", k by n"""
    return [tuple(map(int, each.split("x"))) for each in text.split(",")]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for run in (check, measure, report, expect):
        command = commands.add_parser(run.__name__)
        command.add_argument("--rounds", type=int, default=9)
        small = run is check
        if run is measure:
            command.add_argument("--humming", action="store_true", help="beside Humming's")
            command.add_argument(
                "--seconds", type=float, default=math.inf, help="begin no cell after these"
            )
        command.add_argument("--m", type=numbers, default=[200] if small else list(BATCHES))
        command.add_argument("--shapes", type=sizes, default=[(1024, 520)] if small else SHAPES)
        command.add_argument("--groups", type=numbers, default=GROUPS)
        command.add_argument("--kinds", type=lambda text: text.split(","), default=KINDS)
        if small:
            command.add_argument("--backend", default="cuda")
            command.add_argument("--most", type=int, default=2)
        command.set_defaults(run=run)
    args = parser.parse_args(arguments)
    args.run(args)


if __name__ == "__main__":
    main()
