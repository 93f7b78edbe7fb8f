"""What does each kernel of the ladder gain over the one below it?

    python experiments/18_ladder/run.py measure     # needs a GPU and torch; about a minute
    python experiments/18_ladder/run.py report      # the table into README.md

All kernels for quantised weights multiply the same problem (INT4, groups of 128, fp16) in the same
interleaved rounds: cold L2, CUDA graphs, every product checked (``numba_marlin.bench``). Rows are
appended to results.jsonl; the newest of a cell counts.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]

from numba_marlin.bench import rows
from numba_marlin.bench.tables import markdown, origin, replace_between

RESULTS = HERE / "results.jsonl"
MARKERS = ("<!-- table: begin -->", "<!-- table: end -->")
K, N = 4096, 4096
BATCHES = (1, 16, 64, 256)


def rungs():
    """Return the names of the kernels of the ladder, each of which adds an idea to the previous
    one."""
    from numba_marlin.kernels import registry
    from numba_marlin.problems import WEIGHTS

    return [each.name for each in registry.kernels(WEIGHTS) if each.rung > 0]


def measure(args):
    from numba_marlin.bench.measure import Bench, Settings
    from numba_marlin.heuristics import Problem, candidate

    bench = Bench(Settings(rounds=args.rounds))
    with rows.Recorder(RESULTS) as out:
        for m in BATCHES:
            problem = Problem(m, N, K)
            entrants = tuple(candidate(problem, bench.device, kernel) for kernel in rungs())
            for row in bench.cell(problem, entrants, label=f"{K}x{N}"):
                out.write(row)
                print(f"m={m:4d}  {row['kernel']:10s} {row['us']:10.1f} us", flush=True)


def table(found):
    """Microseconds of every kernel at every m, and how many times as fast as the rung below."""
    times = {(row["kernel"], row["m"]): row["us"] for row in found}
    batches = sorted({m for _, m in times})
    lines: list[list[str]] = []
    below = None
    for kernel in rungs():
        cells = [kernel]
        for m in batches:
            us = times[kernel, m]
            gain = "" if below is None else f" ({times[below, m] / us:.2f})"
            cells.append(f"{us:.1f}{gain}")
        lines.append(cells)
        below = kernel
    return markdown(["kernel", *(f"m={m}" for m in batches)], lines)


def report(args):
    found = list(rows.newest(rows.read(RESULTS)).values())
    body = f"{table(found)}\n\n{origin(found)}"
    replace_between(HERE / "README.md", MARKERS, body)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--rounds", type=int, default=7)
    measuring.set_defaults(run=measure)
    commands.add_parser("report").set_defaults(run=report)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
