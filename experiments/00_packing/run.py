"""How fast are weights packed and unpacked on the CPU? Target: 1 GB/s of packed output on 2 cores.

Times ``hostloops`` (compiled loops) and, for small weights, the NumPy specification. A time is that
of a whole call, including the allocation of its result. A GB is 10**9 bytes of packed codes
(k * n / 2). Appends one object per shape and operation to results.jsonl and
rewrites the table in README.md from this run.

    python experiments/00_packing/run.py [--shapes 4096x4096,8192x8192] [--repeats 9] [--threads 2]
    [--no-record]
"""

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import numba
import numpy as np

from numba_marlin import hostloops
from numba_marlin.bench.environment import commit, cpu_model
from numba_marlin.formats import marlin

SHAPES = "1024x1024,4096x4096,8192x8192,28672x8192,8192x57344"
LARGEST_FOR_NUMPY = 1 << 26
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
TARGET_GB_PER_S = 1.0


def seconds(function, argument, repeats):
    """Return the times of ``repeats`` calls, after one call that compiles and warms up."""
    function(argument)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function(argument)
        times.append(time.perf_counter() - start)
    return times


def measure(k, n, repeats):
    """Return one result for each operation on one shape."""
    codes = np.random.default_rng(0).integers(0, 16, (k, n), dtype=np.uint8)
    words = hostloops.pack_marlin_codes(codes)
    if not np.array_equal(hostloops.unpack_marlin_codes(words), codes):
        raise AssertionError(f"{k} x {n} did not survive a round trip")
    operations = {
        "pack": (hostloops.pack_marlin_codes, codes),
        "unpack": (hostloops.unpack_marlin_codes, words),
    }
    if k * n <= LARGEST_FOR_NUMPY:
        if not np.array_equal(marlin.pack_codes(codes), words):
            raise AssertionError(f"{k} x {n} differs from the specification")
        operations["pack (NumPy)"] = marlin.pack_codes, codes
        operations["unpack (NumPy)"] = marlin.unpack_codes, words
    for name, (function, argument) in operations.items():
        times = seconds(function, argument, 2 if "NumPy" in name else repeats)
        best, median = min(times), statistics.median(times)
        yield {
            "operation": name,
            "k": k,
            "n": n,
            "us": round(median * 1e6, 1),
            "gb_per_s": round(k * n / 2 / median / 1e9, 3),
            "best_gb_per_s": round(k * n / 2 / best / 1e9, 3),
            "repeats": len(times),
        }


def table(results):
    """Markdown: a line per shape, a column per operation, median (best)."""
    operations = ["pack", "unpack", "pack (NumPy)", "unpack (NumPy)"]
    lines = ["| k x n | " + " | ".join(operations) + " |", "|---" * (1 + len(operations)) + "|"]
    for k, n in dict.fromkeys((result["k"], result["n"]) for result in results):
        cells = []
        for operation in operations:
            found = [r for r in results if (r["k"], r["n"], r["operation"]) == (k, n, operation)]
            cells.append(
                f"{found[0]['gb_per_s']:.2f} ({found[0]['best_gb_per_s']:.2f})"
                if found
                else "not run"
            )
        lines.append(f"| {k} x {n} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shapes", default=SHAPES, help="comma-separated KxN (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=min(2, numba.config.NUMBA_NUM_THREADS))
    parser.add_argument(
        "--no-record",
        action="store_true",
        help="print only; leave results.jsonl and README.md alone",
    )
    arguments = parser.parse_args()
    numba.set_num_threads(arguments.threads)
    where = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_model(),
        "threads": arguments.threads,
        "versions": {
            "python": platform.python_version(),
            "numba": numba.__version__,
            "numpy": np.__version__,
        },
    }
    results = []
    for shape in arguments.shapes.split(","):
        for result in measure(*map(int, shape.split("x")), arguments.repeats):
            print(
                f"{shape:>12}  {result['operation']:<15} {result['gb_per_s']:8.2f} GB/s", flush=True
            )
            results.append(result)
    compiled = [r["gb_per_s"] for r in results if "NumPy" not in r["operation"]]
    verdict = (
        f"slowest compiled operation {min(compiled):.2f} GB/s, target {TARGET_GB_PER_S:g} GB/s"
    )
    print(verdict)
    if not arguments.no_record:
        with open(HERE / "results.jsonl", "a", encoding="utf-8") as file:
            file.writelines(json.dumps({**result, **where}) + "\n" for result in results)
        versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
        text = (
            f"Measured {where['date'][:10]} at {where['commit']}: {where['cpu']},"
            f" {arguments.threads} threads, {versions}. GB/s of packed codes, median (best) of"
            f" {arguments.repeats} calls; {verdict}.\n\n{table(results)}"
        )
        readme = HERE / "README.md"
        before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    return 0 if min(compiled) >= TARGET_GB_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
