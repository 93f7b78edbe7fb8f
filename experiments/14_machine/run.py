"""How fast does the PTX machine run the faithful kernel, and in how much memory? Targets: m=16,
n=256, k=1024 in under 3 s on 2 cores; a million warp instructions per second, after the PTX is
parsed, if many warps run side by side; m=16, n=1024, k=4096 in less than 1 GB.

A time is that of a whole run: parsing the PTX, placing the buffers, executing the grid. A second
time is that of the execution alone. The result is compared with the float64 reference before
anything is timed. Activations and weights are normal numbers, of whose products tensor cores
truncate bits, and in the last case small integers, whose products are exact. Every case runs in a
separate process, and its peak memory is that of the whole process. Appends one object per case to
results.jsonl and rewrites the table in README.md.

    python experiments/14_machine/run.py [--repeats 5] [--no-record]
"""

import argparse
import datetime
import importlib.metadata as metadata
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from numba_marlin import compiler, reference, testing
from numba_marlin.emulator import Machine
from numba_marlin.formats import marlin
from numba_marlin.kernels.ampere import KERNEL, AmpereConfig
from numba_marlin.quantizers import quantize

CASES = (  # m, n, k, blocks, numbers
    *((16, 256, 1024, blocks, "normal") for blocks in (1, 4, 16)),
    (16, 1024, 4096, 132, "normal"),
    (64, 1024, 1024, 16, "normal"),
    (64, 2048, 2048, 64, "normal"),
    (64, 2048, 2048, 64, "integers"),
)
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def run_once(compiled, x, packed, blocks):
    """-> (seconds in all, seconds of the grid, RunResult, c)."""
    m, n, k = x.shape[0], packed.n, packed.k
    partial_bytes, lock_bytes = KERNEL.workspace_bytes(compiled.config, m, n, k, blocks)
    buffers = {
        "a": x,
        "b": packed.qweight,
        "c": np.full((m, n), np.nan, np.float16),
        "scales": packed.scales,
        "partials": np.full(max(4, partial_bytes // 4), np.nan, np.float32),
        "locks": np.zeros(max(1, lock_bytes // 4), np.int32),
    }
    start = time.perf_counter()
    machine = Machine(compiled.ptx)
    addresses = [machine.memory.buffer(array, name=name).address for name, array in buffers.items()]
    placed = time.perf_counter()
    result = machine.run(
        compiled.entry,
        grid=KERNEL.grid(compiled.config, m, n, k, blocks),
        block=compiled.threads,
        shared_bytes=compiled.shared_bytes,
        args=[*addresses, m, n, k],
    )
    end = time.perf_counter()
    return end - start, end - placed, result, buffers["c"]


def peak_megabytes():
    """Return the peak resident memory of this process; None if the system does not report it.
    (ru_maxrss would include the parent's memory at the fork.)"""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return round(
        next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6
    )


def measure(m, n, k, blocks, numbers, repeats):
    generator = np.random.default_rng(0)
    if numbers == "normal":
        x = generator.standard_normal((m, k)).astype(np.float16)
        weight = quantize(generator.standard_normal((k, n)).astype(np.float32), group_size=128)
    else:
        exact = testing.exact_problem(m, n, k, 128, seed=0)
        x, weight = exact.x, exact.weight
    compiled = compiler.build(KERNEL, AmpereConfig(min(4, -(-m // 16)), 8, 8, 8), target="sm_90a")
    packed = marlin.pack(weight)
    *_, result, c = run_once(compiled, x, packed, blocks)
    report = reference.check(c, x, weight)
    if not report.ok:
        raise SystemExit(f"wrong result: {report}")
    seconds, running = (
        statistics.median(times)
        for times in zip(*(run_once(compiled, x, packed, blocks)[:2] for _ in range(repeats)))
    )
    return {
        "kernel": "ampere",
        "m": m,
        "n": n,
        "k": k,
        "group_size": 128,
        "numbers": numbers,
        "blocks": result.blocks,
        "seconds": round(seconds, 4),
        "running_seconds": round(running, 4),
        "warp_instructions": result.instructions,
        "warp_instructions_per_second": round(result.instructions / seconds),
        "warp_instructions_per_running_second": round(result.instructions / running),
        "repeats": repeats,
        "load": round(os.getloadavg()[0], 1),
        "peak_mb": peak_megabytes(),
        "cpu": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("numpy", "numba", "numba-cuda")},
        "date": datetime.date.today().isoformat(),
        "commit": (
            subprocess.run(
                ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"],
                capture_output=True,
                text=True,
            ).stdout.strip()
        ),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = [pool.apply(measure, (*case, args.repeats)) for case in CASES]
    lines = [
        f"| {r['m']} | {r['n']} | {r['k']} | {r['numbers']} | {r['blocks']} | {r['seconds']:.2f} |"
        f" {r['warp_instructions']:,} | {r['warp_instructions_per_second']:,} |"
        f" {r['warp_instructions_per_running_second']:,} | {r['peak_mb']} |"
        for r in rows
    ]
    lines = [
        (
            "| m | n | k | numbers | blocks | seconds | warp instructions | a second | once the PTX"
            " is read | peak MB |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
        *lines,
    ]
    print("\n".join(lines))
    if args.no_record:
        return
    with open(HERE / "results.jsonl", "a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    first = rows[0]
    origin = (
        f"Measured {first['date']} at {first['commit']}: Python {first['python']}, NumPy"
        f" {first['versions']['numpy']}, {len(os.sched_getaffinity(0))} cores, load"
        f" {first['load']}; medians of {first['repeats']}."
    )
    readme.write_text(
        text.split(BEGIN)[0] + "\n".join([BEGIN, origin, "", *lines, END]) + text.split(END)[1],
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
