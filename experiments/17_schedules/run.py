"""Does any of a thousand schedules per kernel change a bit of its result, or show a race?

The problems, and the schedules that Hypothesis draws, are those of tests/kernels/test_schedules.py:
orders of warps, blocks and copies, fewer places than blocks, every run with the race detector on.
Schedules are run in batches of a hundred, each of which has its own seed and one object in
results.jsonl. The run may be stopped at any time: a later call continues with the batches that are
missing for the current PTX of a kernel. Rows of other PTX stay (another compiler's, or an earlier
kernel's); the table takes them where there are none of the current one, and says so. The commit
identifies the version of the PTX machine; remove the file to run everything again. A failure ends
the run and names its Schedule.

    python experiments/17_schedules/run.py [--schedules 1000] [--kernel NAME ...] [--processes N]
        # no GPU; then the table in README.md
    python experiments/17_schedules/run.py --report                                  # the table
        alone
"""

import argparse
import datetime
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT)]
# a process a core; before NumPy is imported
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import HealthCheck, Phase, given, seed, settings

from numba_marlin import testing
from numba_marlin.bench.environment import commit, cpu_model
from numba_marlin.bench.tables import markdown, replace_between
from numba_marlin.testing.trials import SMALLS

RESULTS, MARKERS = HERE / "results.jsonl", ("<!-- results:begin -->", "<!-- results:end -->")
HUNDRED = 100


def judged_by(small):
    """Return a digest of what a row depends on: the kernel's PTX and its problem."""
    return hashlib.sha256(
        "\n".join([small.ptx, *map(repr, (small.shape, small.sms, small.places))]).encode()
    ).hexdigest()[:16]


def a_hundred(name, number):
    """Run batch ``number`` of the kernel and return its row. Raises AssertionError, or the PTX
    machine's error, with the Schedule in a note."""
    small, seen = SMALLS[name], Counter()
    start = time.process_time()

    @seed(number)
    @settings(
        max_examples=HUNDRED,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(testing.schedules(small.places))
    def holds(schedule):
        assert small.wrong(seed=schedule, races=True) == 0, f"{name}: {schedule} changes the result"
        seen.update(
            [
                schedule.order,
                f"copies {schedule.copies}",
                (
                    "all blocks resident"
                    if schedule.resident_blocks is None
                    else "fewer places than blocks"
                ),
            ]
        )
        seen["schedules"] += 1

    holds()
    return {
        "kernel": name,
        "number": number,
        "schedules": seen.pop("schedules"),
        "drawn": dict(sorted(seen.items())),
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def a_batch(wanted):
    return a_hundred(*wanted)


def read():
    return (
        [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
        if RESULTS.exists()
        else []
    )


def place(row):
    """The order of rows: a diff shows what changed. Kernels that are no more stand last."""
    names = list(SMALLS)
    known = row["kernel"] in names
    return names.index(row["kernel"]) if known else len(names), row["ptx"], row["number"]


def shown(rows, name, digest):
    """Those of a kernel that the table counts: of its current PTX, else of the PTX that was run
    last."""
    mine = [row for row in rows if row["kernel"] == name]
    if mine and digest not in {row["ptx"] for row in mine}:
        digest = max(mine, key=lambda row: row["date"])["ptx"]
    return [row for row in mine if row["ptx"] == digest]


def table(rows, digests):
    """Return one line per kernel, and how often each kind of schedule was drawn. digests: of the
    kernels' current PTX."""
    lines, drawn, counted = [], Counter(), []
    for name in SMALLS:
        mine = shown(rows, name, digests[name])
        counted += mine
        for row in mine:
            drawn.update(row["drawn"])
        current = digests[name] in {row["ptx"] for row in mine}
        lines.append(
            [
                name,
                SMALLS[name].label,
                f"{sum(row['schedules'] for row in mine):,}",
                "0" if mine else "-",
                f"{sum(row['cpu_seconds'] for row in mine):.0f}",
                "current" if current else "other" if mine else "-",
            ]
        )
    rows = counted
    said = ", ".join(f"{kind} {count:,}" for kind, count in sorted(drawn.items()))
    dates = sorted({row["date"] for row in rows})
    head = (
        f"{sum(row['schedules'] for row in rows):,} schedules, {dates[0]} to {dates[-1]},"
        f" {', '.join(sorted({row['cpu'] for row in rows}))}. Drawn: {said}."
    )
    return "\n\n".join(
        [
            head,
            markdown(
                ["kernel", "problem", "schedules", "races or wrong results", "CPU seconds", "PTX"],
                lines,
            ),
        ]
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=1000, help="a kernel, in hundreds")
    parser.add_argument(
        "--kernel", action="append", choices=SMALLS, help="only this one; may be given again"
    )
    parser.add_argument("--processes", type=int, default=1, help="of a batch each (default 1)")
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args()
    digests = {name: judged_by(small) for name, small in SMALLS.items()}
    rows = read()
    known = {
        (row["kernel"], row["number"]) for row in rows if digests.get(row["kernel"]) == row["ptx"]
    }
    origin = {"date": datetime.date.today().isoformat(), "commit": commit(), "cpu": cpu_model()}
    wanted = (
        []
        if args.report
        else [
            (name, number)
            for number in range(args.schedules // HUNDRED)
            for name in args.kernel or SMALLS
        ]
    )
    wanted = [each for each in wanted if each not in known]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for row in pool.imap_unordered(a_batch, wanted):
            row |= {"ptx": digests[row["kernel"]]} | origin
            rows = sorted([*rows, row], key=place)
            print(f"{row['kernel']}: hundred {row['number']}, {row['cpu_seconds']} s", flush=True)
            RESULTS.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    if rows:
        text = table(rows, digests)
        replace_between(HERE / "README.md", MARKERS, text)
        print(text)


if __name__ == "__main__":
    main()
