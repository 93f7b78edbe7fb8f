"""Is a kernel as fast as it was at another commit? For changes that should not affect speed.

    git worktree add /tmp/before COMMIT
    python experiments/19_two_versions/run.py measure --before /tmp/before    # a GPU, and torch
    python experiments/19_two_versions/run.py report                          # into README.md

Every kernel is built twice, with this checkout's sources and, in another process, with those of
``--before``, in the configurations that the heuristics choose today. Both builds multiply the same
problem in the same interleaved rounds (``numba_marlin.bench``): cold L2, CUDA graphs, every product
checked. The kernels' parameters must be the same in both. Rows are appended to results.jsonl: one
per cell, with times, instructions and registers of both builds.
"""

import argparse
import concurrent.futures
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]

from numba_marlin.bench.tables import markdown, origin, replace_between

RESULTS = HERE / "results.jsonl"
MARKERS = ("<!-- table: begin -->", "<!-- table: end -->")
COMPILER = "numba-cuda"

# Runs with the sources of the other checkout: kernels to files.
BUILD = """
import importlib, json, sys
from numba_marlin import compiler
from numba_marlin.compiler.compiled import to_bytes
name, config, target, file = json.loads(sys.argv[1])
try:
    from numba_marlin.kernels.registry import find_kernel
    kernel = find_kernel(name)
except ImportError:
    kernel = importlib.import_module(f"numba_marlin.kernels.{name}").KERNEL
config = eval(config, {kernel.config_type.__name__: kernel.config_type})
open(file, "wb").write(to_bytes(compiler.build(kernel, config, target)))
"""


def cells():
    """(label, problem, kernel or None for the heuristics' choice)."""
    from numba_marlin.problems import BlockProblem, WeightProblem

    fp4 = {"group_size": 16, "codes": "e2m1"}
    for k, n in ((8192, 8192), (28672, 8192), (8192, 57344), (4096, 4096)):
        for m in (1, 16, 32, 64, 128, 256, 1024, 4096):
            yield "02_hopper", WeightProblem(m, n, k), None
    for k, n in ((8192, 8192), (4096, 4096)):
        for m in (1, 16, 32, 64, 256, 1024):
            yield "01_faithful", WeightProblem(m, n, k), "ampere"
    for m in (1, 16, 64, 256):
        yield "06_nvfp4", WeightProblem(m, 8192, 8192, **fp4), None
    for m, n, k in ((1, 8192, 8192), (32, 8192, 8192), (4096, 4096, 4096), (8192, 8192, 8192)):
        yield "11_block_scaled", BlockProblem(m, n, k), None


def built(checkout, candidate, target, folder):
    """The kernel of a candidate as the sources in ``checkout`` make it."""
    from numba_marlin.compiler.compiled import from_bytes

    file = Path(tempfile.mkstemp(dir=folder)[1])
    what = json.dumps([candidate.kernel, repr(candidate.config), target, str(file)])
    subprocess.run([sys.executable, "-c", BUILD, what], cwd=checkout, check=True)
    return from_bytes(file.read_bytes(), candidate.config)


def instructions(compiled):
    from numba_marlin.compiler.assemble import disassemble
    from numba_marlin.compiler.resources import count_sass

    listing = disassemble(compiled.cubin)
    return None if listing is None else sum(count_sass(listing).values())


def measure(args):
    from numba_marlin.bench import contenders, measure, operands
    from numba_marlin.bench.measure import Bench, Settings
    from numba_marlin.bench.timing import GraphTimer, interleave
    from numba_marlin.execution.plan import target_for
    from numba_marlin.heuristics import candidate, find_kernel, rank

    bench = Bench(Settings(rounds=args.rounds))
    wanted = []
    for label, problem, kernel in cells():
        if args.only and label not in args.only.split(","):
            continue
        chosen = (
            candidate(problem, bench.device, kernel) if kernel else rank(problem, bench.device)[0]
        )
        wanted.append((label, problem, chosen))
    target = {
        each.kernel: target_for(find_kernel(each.kernel), bench.device) for *_, each in wanted
    }
    configurations = {(each.kernel, repr(each.config)): each for *_, each in wanted}
    builds = {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor() as pool:
        made = {
            key: [
                pool.submit(built, checkout, each, target[each.kernel], folder)
                for checkout in (args.before, HERE.parent.parent)
            ]
            for key, each in configurations.items()
        }
        for key, both in made.items():
            old, now = (each.result() for each in both)
            assert [*old.parameters] == [*now.parameters], f"{key}: other parameters"
            builds[key] = replace(now, ptx=old.ptx, cubin=old.cubin, resources=old.resources), now
    with RESULTS.open("a", encoding="utf-8") as out:
        for label, problem, each in wanted:
            weights = bench.weights(problem)
            batch = operands.random_batch(weights, problem.m)
            both = builds[each.kernel, repr(each.config)]
            entrants = [
                contenders.kernel(problem, each, weights, batch, COMPILER, compiled=compiled)
                for compiled in both
            ]
            for entrant in entrants:
                measure.checked(entrant, batch)
            bench.watch.settle()
            timers = {
                position: GraphTimer(
                    entrant.launch, bench.settings.target_us, measure.least_launches(entrant)
                )
                for position, entrant in enumerate(entrants)
            }
            times = interleave(timers, bench.settings.rounds, bench.watch.sample)
            row = described(label, problem, each, both, times) | bench.environment
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(
                f"{label:16s} {each.kernel:12s} m={problem.m:5d} n={problem.n:6d} k={problem.k:6d}"
                f"  {row['us_before']:9.1f} -> {row['us']:9.1f} us  {row['ratio']:.3f}"
                f" +- {row['spread']:.3f}",
                flush=True,
            )


def described(label, problem, candidate, both, times):
    """ratio: the median time now divided by the one before; spread: half the distance between the
    quartiles of the rounds' ratios."""
    import statistics

    before, now = (statistics.median(times[position]) for position in (0, 1))
    ratios = sorted(b / a for a, b in zip(times[0], times[1]))
    quarter = len(ratios) // 4
    old, new = both
    return {
        "cell": label,
        "kernel": candidate.kernel,
        "config": repr(candidate.config),
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "us_before": round(before, 3),
        "us": round(now, 3),
        "ratio": round(now / before, 4),
        "spread": round((ratios[-1 - quarter] - ratios[quarter]) / 2, 4),
        "registers_before": old.resources.registers,
        "registers": new.resources.registers,
        "instructions_before": instructions(old),
        "instructions": instructions(new),
        "spills_before": old.resources.spill_stores,
        "spills": new.resources.spill_stores,
    }


def newest():
    found = {}
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found[row["cell"], row["kernel"], row["m"], row["n"], row["k"]] = row
    return list(found.values())


def report(args):
    found = newest()
    lines = [
        [
            row["cell"],
            row["kernel"],
            str(row["m"]),
            f"{row['k']} x {row['n']}",
            f"{row['us_before']:.1f}",
            f"{row['us']:.1f}",
            f"{row['ratio']:.3f}",
            f"{row['instructions_before']} -> {row['instructions']}",
            f"{row['registers_before']} -> {row['registers']}",
        ]
        for row in found
    ]
    header = ["cells of", "kernel", "m", "k x n", "before, us", "now, us", "now : before"]
    body = markdown([*header, "instructions", "registers"], lines, left=2)
    replace_between(HERE / "README.md", MARKERS, f"{body}\n\n{origin(found)}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--before", required=True, metavar="CHECKOUT")
    measuring.add_argument("--rounds", type=int, default=9)
    measuring.add_argument("--only", default="", help="such as 01_faithful,06_nvfp4")
    measuring.set_defaults(run=measure)
    commands.add_parser("report").set_defaults(run=report)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
