"""Do round trips between every pair of formats hold on a million random codes?

Random weights of every kind that both formats of a pair can store (sizes of codes, zero points,
activation order, types of scales) are written in the first format, read, written in the second,
read, and written in the first again. The numbers and the bytes must be the same. Writes
results.jsonl, one object per pair, and the table in README.md.

    python experiments/15_round_trips/run.py [--codes 1000000] [--seed 0] [--no-record]
"""

import argparse
import datetime
import json
import math
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from numba_marlin import hostloops
from numba_marlin.bench.environment import commit, cpu_model, versions
from numba_marlin.formats import conformance
from numba_marlin.formats.files import find_stored

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def measure(source, target, wanted, seed):
    """Return the row of one pair of formats. Raises AssertionError if a weight changes."""
    forms, codec = (find_stored(source), find_stored(target)), hostloops.Compiled()
    held = conformance.round_trips(*forms, conformance.probes(), codec)
    size = math.isqrt(-(-wanted // held) - 1) + 1
    weights = conformance.probes(size, seed)
    start = time.perf_counter()
    codes = conformance.round_trips(*forms, weights, codec)
    return {
        "source": source,
        "target": target,
        "codes": codes,
        "seconds": round(time.perf_counter() - start, 3),
    }


def table(rows, head):
    names = list(dict.fromkeys(row["source"] for row in rows))
    codes = {(row["source"], row["target"]): f"{row['codes'] / 1e6:.2f}" for row in rows}
    lines = [
        f"| from \\ to, millions of codes | {' | '.join(names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    lines += [
        f"| {source} | {' | '.join(codes.get((source, target), '') for target in names)} |"
        for source in names
    ]
    return "\n".join([BEGIN, head, "", *lines, END])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--codes", type=int, default=1_000_000, help="at least so many a pair")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    pairs = [
        (row.form.name, other)
        for row in conformance.rows()
        for other in (row.form.name, *row.exact, *row.sometimes)
    ]
    rows = [measure(*pair, args.codes, args.seed) for pair in pairs]
    facts = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "cpu": cpu_model(),
        "versions": versions(),
        "seed": args.seed,
    }
    total, seconds = sum(row["codes"] for row in rows), sum(row["seconds"] for row in rows)
    head = (
        f"Run {facts['date']} at {facts['commit']} with seed {args.seed}: {len(rows)} pairs,"
        f" {total / 1e6:.1f} million codes, {seconds:.0f} s; every one came back."
    )
    text = table(rows, head)
    print(text)
    if args.no_record:
        return
    (HERE / "results.jsonl").write_text(
        "".join(json.dumps(row | facts) + "\n" for row in rows), encoding="utf-8"
    )
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    (HERE / "README.md").write_text(
        readme.split(BEGIN)[0] + text + readme.split(END)[1], encoding="utf-8"
    )


if __name__ == "__main__":
    main()
