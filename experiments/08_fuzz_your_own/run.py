"""Does the fuzzing kit find a bug in code that it does not know? Applies it to the toy format,
kernel and ring of ``toy.py``, both correct and with a planted bug in each.

    python experiments/08_fuzz_your_own/run.py [--searches 20] [--no-record]

Needs no GPU. Searches are random and independent of each other. Appends one object per target to
results.jsonl and rewrites the table in README.md: how often the bug was found, after how many
examples, and Hypothesis's message about the smallest example.
"""

import argparse
import datetime
import importlib.metadata as metadata
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import toy

from numba_marlin import testing
from numba_marlin.bench.tables import markdown, replace_between

MARKERS = ("<!-- results:begin -->", "<!-- results:end -->")
BUGS = {
    "packing": "the second byte of four rows is read forwards",
    "kernel": "a tile of several groups uses the first one's scales",
    "ring": "the parity flips a stage early",
}


class Count:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments):
        self.calls += 1
        return self.function(*arguments)


def packing(bug):
    count = Count(toy.pack)
    unpack = toy.unpack_with_bug if bug else toy.unpack
    return (
        testing.packing_test(
            testing.Packing(count, unpack, bits=4, k_step=toy.K_STEP, n_step=toy.N_STEP),
            database=None,
        ),
        count,
    )


def kernel(bug):
    count = Count(lambda x, weight: toy.matmul(x, weight, bug))
    return (
        testing.kernel_test(
            count,
            testing.problems(max_m=8, max_n=64, max_k=128, group_sizes=(-1, 16, 32, 64)),
            database=None,
        ),
        count,
    )


def ring(bug):
    count = Count(lambda *arguments: toy.ring_verbs(*arguments, bug=bug))
    machine = testing.ring_machine(count, stages=3, consumers=2)
    return (
        lambda: run_state_machine_as_test(
            machine, settings=settings(machine.TestCase.settings, database=None)
        ),
        count,
    )


TARGETS = {"packing": packing, "kernel": kernel, "ring": ring}


def search(target, bug):
    """(message of the smallest failing example or None, calls of the thing under test, seconds)"""
    test, count = TARGETS[target](bug)
    start, found = time.perf_counter(), None
    try:
        test()
    except AssertionError as error:
        found = str(error).splitlines()[0]
    return found, count.calls, time.perf_counter() - start


def measure(target, bug, searches):
    runs = [search(target, bug) for _ in range(searches)]
    found = [each for each in runs if each[0] is not None]
    messages = [message for message, _, _ in found]
    return {
        "kind": "search",
        "target": target,
        "bug": BUGS[target] if bug else None,
        "searches": searches,
        "found": len(found),
        "median_calls": statistics.median(calls for _, calls, _ in runs),
        "median_seconds": round(statistics.median(seconds for _, _, seconds in runs), 3),
        "says": max(set(messages), key=messages.count) if messages else None,
    }


def table(rows):
    lines = []
    for row in rows:
        lines.append(
            [
                row["target"],
                row["bug"] or "none",
                f"{row['found']} of {row['searches']}",
                f"{row['median_calls']:g}",
                f"{row['median_seconds']:.2f}",
                f"`{row['says']}`" if row["says"] else "",
            ]
        )
    facts = rows[0]
    header = ["target", "bug", "searches that failed", "calls, median", "s, median", "what it says"]
    return (
        f"Run {facts['date']} at {facts['commit']}, hypothesis {facts['versions']['hypothesis']}; a"
        " search stops at 100 examples, or when it has made a failing one as small as it can.\n\n"
        + markdown(header, lines, left=2)
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--searches", type=int, default=20, help="for each target (default 20)")
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    described = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
        capture_output=True,
        text=True,
    )
    common = {
        "date": datetime.date.today().isoformat(),
        "commit": described.stdout.strip() or None,
        "versions": {"hypothesis": metadata.version("hypothesis")},
    }
    rows = []
    for target in TARGETS:
        for bug in (False, True):
            rows.append(measure(target, bug, args.searches) | common)
            print(json.dumps(rows[-1]), flush=True)
    if not args.no_record:
        with (HERE / "results.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        replace_between(HERE / "README.md", MARKERS, table(rows))
    wrong = [row for row in rows if row["found"] != (row["searches"] if row["bug"] else 0)]
    if wrong:
        raise SystemExit(f"not as it should be: {json.dumps(wrong)}")


if __name__ == "__main__":
    main()
