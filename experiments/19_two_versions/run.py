"""Is a kernel as fast as it was at another commit? For changes that should not affect speed.

    git worktree add /tmp/before COMMIT
    python experiments/19_two_versions/run.py measure --before /tmp/before    # a GPU, and torch
    python -m pytest --kernels-to kernels.jsonl                               # what tests compile
    python experiments/19_two_versions/run.py compile --before /tmp/before kernels.jsonl
    python experiments/19_two_versions/run.py report                          # into README.md

Every kernel is built twice, with this checkout's sources and, in another process, with those of
``--before``, in the configurations that the heuristics choose today. Both builds multiply the same
problem in the same interleaved rounds (``numba_marlin.bench``): cold L2, CUDA graphs, every product
checked. The build of ``--before`` takes part twice, and how far these two are apart is the
noise of the run. The kernels' parameters must be the same in both. Rows are appended to
results.jsonl: one per cell, with times, instructions and registers of both builds.

``compile`` needs no GPU: it compiles every configuration of the tests with both checkouts' sources,
for numba-cuda, and leaves instructions, registers and spilled bytes in builds.jsonl. Kernels that
are not in both, or whose parameters differ, are left out.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]

from numba_marlin.bench.tables import markdown, origin, replace_between

RESULTS, BUILDS = HERE / "results.jsonl", HERE / "builds.jsonl"
MARKERS = ("<!-- table: begin -->", "<!-- table: end -->")
BUILD_MARKERS = ("<!-- builds: begin -->", "<!-- builds: end -->")
COMPILER = "numba-cuda"

# Runs with the sources of a checkout: kernels to files. Of what it cannot build there is no file.
BUILD = """
import importlib, json, sys
from numba_marlin import compiler
from numba_marlin.compiler.compiled import to_bytes
for name, config, target, file in json.load(sys.stdin):
    try:
        try:
            from numba_marlin.kernels.registry import find_kernel
            kernel = find_kernel(name)
        except ImportError:
            kernel = importlib.import_module(f"numba_marlin.kernels.{name}").KERNEL
        config = eval(config, {kernel.config_type.__name__: kernel.config_type})
        compiled = compiler.build(kernel, config, target)
    except Exception as error:
        print(name, config, target, repr(error)[:300], file=sys.stderr)
    else:
        open(file, "wb").write(to_bytes(compiled))
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


def built(checkouts, wanted, folder):
    """wanted: (kernel, configuration or its text, target) each. -> {of wanted: a CompiledKernel or
    None from each of the checkouts}. As many processes as there are processors."""
    from numba_marlin.compiler.compiled import from_bytes

    files = [
        [str(Path(folder, f"{number}-{place}.kernel")) for place in range(len(checkouts))]
        for number in range(len(wanted))
    ]
    workers = os.cpu_count() or 1

    def build(place, first):
        what = [
            [kernel, config if isinstance(config, str) else repr(config), target, paths[place]]
            for (kernel, config, target), paths in zip(
                wanted[first::workers], files[first::workers]
            )
        ]
        subprocess.run(
            [sys.executable, "-c", BUILD],
            cwd=checkouts[place],
            input=json.dumps(what),
            text=True,
            check=True,
        )

    def loaded(path, config):
        return from_bytes(Path(path).read_bytes(), config) if Path(path).exists() else None

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for done in [
            pool.submit(build, place, first)
            for first in range(workers)
            for place in range(len(checkouts))
        ]:
            done.result()
    return {each: [loaded(path, each[1]) for path in paths] for each, paths in zip(wanted, files)}


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
    wanted_builds = list({(each.kernel, each.config, target[each.kernel]) for *_, each in wanted})
    builds = {}
    with tempfile.TemporaryDirectory() as folder:
        made = built((args.before, HERE.parent.parent), wanted_builds, folder)
        for (kernel, config, _), (old, now) in made.items():
            assert [*old.parameters] == [*now.parameters], f"{kernel}: other parameters"
            builds[kernel, repr(config)] = (
                replace(now, ptx=old.ptx, cubin=old.cubin, resources=old.resources),
                now,
            )
    with RESULTS.open("a", encoding="utf-8") as out:
        for label, problem, each in wanted:
            weights = bench.weights(problem)
            batch = operands.random_batch(weights, problem.m)
            both = builds[each.kernel, repr(each.config)]
            entrants = [
                contenders.kernel(problem, each, weights, batch, COMPILER, compiled=compiled)
                for compiled in (*both, both[0])
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
                f" +- {row['spread']:.3f}  again {row['again']:.3f}",
                flush=True,
            )


def described(label, problem, candidate, both, times):
    """ratio: of the medians, now over before; again: before, timed once more in the same rounds,
    over before; spread: half the distance between the quartiles of the rounds' ratios."""
    import statistics

    before, now, again = (statistics.median(times[position]) for position in range(3))
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
        "again": round(again / before, 4),
        "spread": round((ratios[-1 - quarter] - ratios[quarter]) / 2, 4),
        "registers_before": old.resources.registers,
        "registers": new.resources.registers,
        "instructions_before": instructions(old),
        "instructions": instructions(new),
        "spills_before": old.resources.spill_stores,
        "spills": new.resources.spill_stores,
    }


def compare_builds(args):
    """Every configuration in the file, built with both checkouts' sources."""
    wanted = set()
    for line in args.kernels.read_text(encoding="utf-8").splitlines():
        kernel, config, target, compiler = json.loads(line)
        if compiler == COMPILER:
            wanted.add((kernel, config, target))

    with tempfile.TemporaryDirectory() as folder:
        made = built((args.before, HERE.parent.parent), sorted(wanted), folder)
    comparable = {
        what: pair
        for what, pair in made.items()
        if None not in pair and [*pair[0].parameters] == [*pair[1].parameters]
    }
    # a disassembler in a process of its own for each
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        rows = list(pool.map(compared, comparable.items()))
    BUILDS.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    left_out = len(wanted) - len(rows)
    print(f"{len(wanted)} builds, {left_out} of them left out: not in both, or other parameters")


def compared(what_and_pair):
    """-> a row of builds.jsonl, of ((kernel, configuration, target), (before, now))."""
    (kernel, config, target), pair = what_and_pair
    row = {"kernel": kernel, "config": config, "target": target}
    for name, build in zip(("_before", ""), pair):
        row["instructions" + name] = instructions(build)
        row["registers" + name] = build.resources.registers
        row["spills" + name] = build.resources.spill_stores
    return row | {"assembler": pair[1].resources.assembler}


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
            f"{row['again']:.3f}" if "again" in row else "",
            f"{row['instructions_before']} -> {row['instructions']}",
            f"{row['registers_before']} -> {row['registers']}",
        ]
        for row in found
    ]
    header = ["cells of", "kernel", "m", "k x n", "before, us", "now, us", "now : before"]
    header.append("again : before")
    body = markdown([*header, "instructions", "registers"], lines, left=2)
    replace_between(HERE / "README.md", MARKERS, f"{body}\n\n{origin(found)}")
    report_builds()


def report_builds():
    """A line per kernel, then each build that takes more of anything than before."""
    import statistics

    rows = [json.loads(line) for line in BUILDS.read_text(encoding="utf-8").splitlines()]
    kernels, more = {}, []
    for row in rows:
        kernels.setdefault(row["kernel"], []).append(row)
        if any(row[what] > row[what + "_before"] for what in ("registers", "spills")) or (
            row["instructions"] > row["instructions_before"]
        ):
            more.append(row)
    lines = []
    for kernel, of_kernel in kernels.items():
        ratios = sorted(row["instructions"] / row["instructions_before"] for row in of_kernel)
        change = [row["registers"] - row["registers_before"] for row in of_kernel]
        lines.append(
            [
                kernel,
                str(len(of_kernel)),
                f"{ratios[0]:.2f}",
                f"{statistics.median(ratios):.2f}",
                f"{ratios[-1]:.2f}",
                f"{sum(c < 0 for c in change)}, {change.count(0)}, {sum(c > 0 for c in change)}",
                str(sum(row["spills"] for row in of_kernel)),
            ]
        )
    header = ["kernel", "builds", "instructions, least", "median", "most"]
    header += ["registers: fewer, same, more", "bytes spilled"]
    body = markdown(header, lines, left=1)
    listed = markdown(
        ["with more of something", "target", "instructions", "registers", "spilled"],
        [
            [
                row["config"],
                row["target"],
                *(
                    f"{row[what + '_before']} -> {row[what]}"
                    for what in ("instructions", "registers", "spills")
                ),
            ]
            for row in more
        ],
        left=1,
    )
    replace_between(HERE / "README.md", BUILD_MARKERS, f"{body}\n\n{listed}" if more else body)


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
    compiling = commands.add_parser("compile")
    compiling.add_argument("--before", required=True, metavar="CHECKOUT")
    compiling.add_argument("kernels", type=Path, metavar="KERNELS.jsonl")
    compiling.set_defaults(run=compare_builds)
    commands.add_parser("report").set_defaults(run=report)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
