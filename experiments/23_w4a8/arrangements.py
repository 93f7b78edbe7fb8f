"""Which arrangement of a W4A8 kernel is the fastest behind the quantisation of x, and the constants
of the models that choose one.

    python experiments/23_w4a8/arrangements.py measure [--shapes 8192x8192] [--m 16] [--seconds 200]
    python experiments/23_w4a8/arrangements.py fit          # no GPU; from arrangements.jsonl

``measure``: in each cell, in the same interleaved rounds (cold L2, CUDA graphs), every arrangement
that is expected to take at most ``WITHIN`` times what the best takes, ``MOST`` at most, the
quantisation of x and the product, two launches; the first alone; and what is chosen for 16-bit
activations. Products are checked before they are timed. A line of arrangements.jsonl (in OUT, or
here) is a cell; the newest counts.

``fit``: the constants of ``kernels.w4a8.choose`` for tiles in parts, and all of
``kernels.w4a8.few_rows.choose``, fitted to both launches less the first; how far off the models are
with today's and with these, and the regret: the time of what they choose over that of the fastest,
less 1.
"""

import argparse
import json
import math
import os
import sys
import time
from dataclasses import fields
from pathlib import Path
from statistics import mean, median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

import beside
import run
from layers import GROUPS, KINDS, cells, quantized

from numba_marlin.hardware import devices
from numba_marlin.kernels.decode import choose as decode
from numba_marlin.kernels.registry import find_kernel
from numba_marlin.kernels.w4a8 import choose
from numba_marlin.kernels.w4a8.few_rows import choose as few_rows
from numba_marlin.problems import ActivationsProblem

RESULTS = HERE / "arrangements.jsonl"
# k, n; 8192 x 57344 up to FEW rows, from which on its tiles are enough
SHAPES = ((28672, 8192), (4096, 4096), (8192, 8192), (14336, 4096), (5120, 5120), (8192, 57344))
BATCHES, FEW, WIDE = (64, 16, 256, 32, 8, 128, 1), 16, 57344
WITHIN, MOST, ROUNDS = 1.45, 9, 5
H200 = devices.device("H200")
# constants of ``choose``
OF_PARTS = (
    "PARTS_US",
    "PART_US",
    "WIDE_IN_PARTS",
    "BYTES_NS",
    "NARROW_IN_TURNS",
)


# ---- on a GPU


def timed_cells(shapes, batches):
    for shape in shapes:
        for m in batches:
            if shape[1] != WIDE or m <= FEW:
                yield from cells([m], [shape], GROUPS)


def likely(problem, device):
    return run.likely(run.proposals(problem, device), WITHIN)[:MOST]


def measure(args):
    from numba_marlin.bench.measure import Bench, Settings
    from numba_marlin.heuristics import rank

    bench = Bench(Settings(rounds=ROUNDS))
    problems = list(timed_cells(args.shapes, args.m))
    work = [
        (each, likely(each, bench.device)) for p in problems for each in map_kinds(p).values()
    ] + [(p, rank(p, bench.device)[:1]) for p in problems]
    every_cell = beside.script("25_every_cell/run.py")
    print(
        every_cell.compile_all(work, bench.device, os.cpu_count()), "kernels compiled", flush=True
    )
    start = time.monotonic()
    with open(Path(os.environ.get("OUT", HERE)) / RESULTS.name, "a") as out:
        for problem in problems:
            if time.monotonic() - start > args.seconds:
                print(f"stopped after --seconds {args.seconds:g}, before {problem.in_words()}")
                return
            for row in cell(bench, problem):
                out.write(json.dumps(row) + "\n")
                fastest = " ".join(f"{name} {us:.1f}" for name, *_, us in row["times"][:4])
                print(f"{row['problem']} {row['w4a16_us']:.1f}: {fastest}", flush=True)


def map_kinds(problem):
    return {kind: quantized(problem, kind) for kind in KINDS}


def cell(bench, problem):
    """-> a row for each type of activations: its times are [name, kernel, fields that are not by
    default, us], fastest first."""
    from numba_marlin.bench import operands
    from numba_marlin.bench.timing import GraphTimer, interleave
    from numba_marlin.heuristics import rank

    weights = bench.weights(problem)
    batch = operands.random_batch(weights, problem.m)
    half = bench.contender(problem, rank(problem, bench.device)[0], weights, batch)
    timers, made = {"w4a16": GraphTimer(half.launch, least=max(3, half.copies))}, {}
    for kind, eight in map_kinds(problem).items():
        quantize, codes = run.quantised(batch, kind)
        timers[kind, None] = GraphTimer(quantize, least=3)
        for candidate in likely(eight, bench.device):
            contender, _ = run.product(eight, candidate, weights, codes)
            key = kind, len(made)
            made[key] = candidate
            both = run.in_turn(quantize, contender.launch)
            timers[key] = GraphTimer(both, least=max(3, contender.copies))
    bench.watch.settle()
    bench.watch.clear()
    us = {
        name: median(each) for name, each in interleave(timers, ROUNDS, bench.watch.sample).items()
    }
    for kind, eight in map_kinds(problem).items():
        times = [
            [label(each.config), each.kernel, changed(each.config), round(us[key], 3)]
            for key, each in made.items()
            if key[0] == kind
        ]
        yield {
            "problem": {name: eight.to_dict()[name] for name in ("m", "n", "k", "group_size")},
            "activations": kind,
            "times": sorted(times, key=lambda each: each[3]),
            "quantize_us": round(us[kind, None], 3),
            "w4a16_us": round(us["w4a16"], 3),
            **bench.environment,
        }


def label(config):
    if hasattr(config, "tile_m"):
        parts = f" in {config.parts} parts" if config.parts > 1 else ""
        turns = " in turns" if config.ordered else ""
        return f"{config.tile_m} x {config.tile_n}{turns}{parts}"
    return f"{config.batch} rows, {config.warps_n} by {config.warps_k} warps, {config.stage_k}"


def changed(config):
    return {
        each.name: getattr(config, each.name)
        for each in fields(config)
        if getattr(config, each.name) != each.default
    }


# ---- from the rows


class Timed:
    """A configuration in a cell. us: without the quantisation of x."""

    def __init__(self, row, name, kernel, changes, us):
        self.problem = ActivationsProblem(**row["problem"], activations=row["activations"])
        self.few = kernel.startswith("decode")
        self.config = find_kernel(kernel).config_type(**changes)
        self.name, self.us = name, us - row["quantize_us"]
        fitted = few_rows.FITTED[row["activations"]]
        self.is_proposed = not self.few or any(each.like(self.config) for each in fitted)


def read():
    """-> {cell: [Timed]}"""
    newest = {}
    for line in RESULTS.read_text().splitlines():
        row = json.loads(line)
        newest[(*row["problem"].values(), row["activations"])] = row
    found = {key: [Timed(row, *each) for each in row["times"]] for key, row in newest.items()}
    return {key: [each for each in timed if each.is_proposed] for key, timed in found.items()}


def put(numbers):
    for name, number in zip(OF_PARTS, numbers):
        setattr(choose, name, float(number))


def costs_of(kind, numbers):
    """Those of ``few_rows``: numbers are x's share, what is read ahead, and three for each
    arrangement."""
    x_share, read_ahead, *rest = map(float, numbers)
    threes = [tuple(rest[i : i + 3]) for i in range(0, len(rest), 3)]
    return few_rows.Costs(x_share, read_ahead, dict(zip(timed_of(kind), threes)))


def timed_of(kind):
    return [each for each in few_rows.FITTED[kind] if each.batch < 32]


def many_us(timed):
    return choose.described(timed.problem, timed.config, H200).us


def few_us(timed, costs=None):
    costs = costs or few_rows.COSTS[timed.problem.activations]
    return decode.predicted_us(timed.problem, timed.config, H200, costs)


def off(some, us_of):
    """Logarithms of the modelled over the measured."""
    return [math.log(us_of(each) / each.us) for each in some]


def fit_parts(some):
    from scipy.optimize import least_squares

    def errors(numbers):
        put(numbers)
        return off(some, many_us)

    start = [getattr(choose, name) for name in OF_PARTS]
    put(least_squares(errors, start, loss="soft_l1", f_scale=0.05, x_scale=start).x)


def fit_few(kind, some):
    from scipy.optimize import least_squares

    fitted = few_rows.FITTED[kind]
    start = [few_rows.X_SHARE[kind], few_rows.READ_AHEAD[kind]]
    start += [number for each in timed_of(kind) for number in fitted[each]]

    def errors(numbers):
        costs = costs_of(kind, numbers)
        return off(some, lambda each: few_us(each, costs))

    bounds = [0] * len(start), [3, 1] + [60] * (len(start) - 2)
    return costs_of(
        kind, least_squares(errors, start, bounds=bounds, loss="soft_l1", f_scale=0.05).x
    )


def report(found, few_costs, what):
    def us_of(timed):
        return few_us(timed, few_costs[timed.problem.activations]) if timed.few else many_us(timed)

    for kind in KINDS:
        here = {key: each for key, each in found.items() if key[-1] == kind}
        regrets = {
            key: min(each, key=us_of).us / min(timed.us for timed in each) - 1
            for key, each in here.items()
        }
        errors = [abs(error) for each in here.values() for error in off(each, us_of)]
        worst = max(regrets, key=regrets.get)
        print(
            f"{what:8} {kind}: {len(errors)} times, {mean(errors):.1%} off; regret in"
            f" {len(regrets)} cells {mean(regrets.values()):.1%}, at most {regrets[worst]:.1%}"
            f" (m, n, k, group size: {worst[:-1]})"
        )


def fit(args):
    found = read()
    everything = [timed for each in found.values() for timed in each]
    report(found, few_rows.COSTS, "today's")
    fit_parts([each for each in everything if not each.few and each.config.tile_m <= 128])
    few_costs = {
        kind: fit_few(
            kind,
            [
                each
                for each in everything
                if each.few and each.problem.activations == kind and each.config.batch < 32
            ],
        )
        for kind in KINDS
    }
    report(found, few_costs, "fitted")
    for name in OF_PARTS:
        print(f"    {name}: {getattr(choose, name):.4g}")
    for kind, costs in few_costs.items():
        print(f"    {kind}: x_share {costs.x_share:.3f}, read_ahead {costs.read_ahead:.3f}")
        for arrangement, (us, grouped, columns) in costs.fitted.items():
            print(f"        {arrangement}: ({us:.2f}, {grouped:.1f}, {columns:.1f}),")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for command in (measure, fit):
        each = commands.add_parser(command.__name__)
        each.set_defaults(run=command)
        if command is measure:
            each.add_argument("--shapes", type=run.sizes, default=SHAPES)
            each.add_argument("--m", type=run.numbers, default=BATCHES)
            each.add_argument("--seconds", type=float, default=math.inf)
    args = parser.parse_args(arguments)
    args.run(args)


if __name__ == "__main__":
    main()
