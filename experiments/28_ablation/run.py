"""What is each technique of Marlin worth? The faithful kernel without it, one at a time.

    python experiments/28_ablation/run.py list                # what is taken away
    python experiments/28_ablation/run.py show no_swizzle     # the lines exchanged, as a diff
    python experiments/28_ablation/run.py count               # on the PTX machine, no GPU
    python experiments/28_ablation/run.py sass                # machine code by unit, no GPU
    python experiments/28_ablation/run.py measure             # a GPU and torch: two minutes
    python experiments/28_ablation/run.py report              # tables and pictures into README.md

Rows of ``measure`` are appended to results.jsonl, the newest of a cell counts; ``count`` and
``sass`` rewrite counts.jsonl and sass.jsonl.
"""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import measuring
import report
from ablations import EVERY
from edited import difference

from numba_marlin.bench import rows
from numba_marlin.bench.environment import commit

RESULTS, COUNTS, SASS = (HERE / f"{name}.jsonl" for name in ("results", "counts", "sass"))
SHAPES = ((4096, 4096), (8192, 8192))  # k, n
BATCHES = (1, 16, 64, 256)


def listed(args):
    for name, ablation in EVERY.items():
        print(f"{name:18s} without {ablation.without}")


def show(args):
    print(difference(EVERY[args.name].edits) or "no line of source changes, only a configuration")


def measure(args):
    shapes, batches = (((1024, 1024),), (16,)) if args.tiny else (SHAPES, BATCHES)
    names = ["intact", *(name for name in args.only or EVERY if name != "intact")]
    with rows.Recorder(None if args.tiny else RESULTS) as out:

        def write(row):
            out.write(row)
            print(
                f"m={row['m']:4d} {row['shape']:>10s} {row['kernel']:18s} {row['us']:8.2f} us"
                f" {row['times_intact']:7.3f}",
                flush=True,
            )

        left_out = measuring.measure(shapes, batches, args.rounds, names, write)
    if left_out:
        sys.exit("left out:\n" + "\n".join(left_out))


def write_lines(path, found):
    """``found``: objects, one after the other as they are made. The file is replaced at the end."""
    lines = []
    for row in found:
        lines.append(json.dumps({**row, "commit": commit()}) + "\n")
        print(f"{row['name']:18s} {row.get('m', row.get('rows'))} rows", flush=True)
    path.write_text("".join(lines), encoding="utf-8")


def count(args):
    import counting  # needs hypothesis

    write_lines(COUNTS, counting.rows())


def sass(args):
    import sass

    write_lines(SASS, sass.rows())


def reported(args):
    report.write(HERE, *(rows_of(path) for path in (RESULTS, COUNTS, SASS)))


def rows_of(path):
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if path.exists()
        else []
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    commands.add_parser("list").set_defaults(run=listed)
    showing = commands.add_parser("show")
    showing.add_argument("name", choices=EVERY)
    showing.set_defaults(run=show)
    for name, function in (("count", count), ("sass", sass), ("report", reported)):
        commands.add_parser(name).set_defaults(run=function)
    timing = commands.add_parser("measure")
    timing.add_argument("--rounds", type=int, default=9)
    timing.add_argument("--only", action="append", choices=EVERY, help="may be given again")
    timing.add_argument("--tiny", action="store_true", help="one small problem, nothing recorded")
    timing.set_defaults(run=measure)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
