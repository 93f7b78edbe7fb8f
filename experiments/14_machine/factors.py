"""What does it cost to look for races, in time and in memory, and how fast are atomics? Targets:
races=True at most three times slower than a plain run, linear in blocks up to 4096.

Kernels of ordinary.cu by NVRTC, the ladder's ampere (m=16 n=256 k=1024 on few blocks, with k
growing with the grid, up to 132), and what experiment 16 breaks of wgmma in pairs of blocks (m=72
n=136 k=272, four blocks). Every case runs in a process of its own, whose peak memory beyond
what it had before the run is recorded; a time is the best of ``--repeats``, of process time, of
Machine.run alone. Results are compared with NumPy's. Appends one object per case to factors.jsonl,
under ``--label`` (the state of the machine that was measured); ``--table`` writes README.md's from
the latest.

    python experiments/14_machine/factors.py --label after [--blocks 16 256] [--kernels scan ...]
    python experiments/14_machine/factors.py --table
"""

import argparse
import datetime
import json
import multiprocessing
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
sys.path.insert(0, str(HERE))

from reading import compiled

from numba_marlin.emulator import Machine

BEGIN, END = "<!-- factors: begin -->", "<!-- factors: end -->"
RESULTS, LABELS = HERE / "factors.jsonl", ("before", "after")
THREADS = 128


def vector_add(blocks, rng):
    n = blocks * THREADS
    x, y = rng.random((2, n), np.float32)
    return {"x": x, "y": y, "out": np.zeros(n, np.float32)}, [n], {"out": x + y}


def matmul(blocks, rng):
    side = 16 * max(1, round(blocks**0.5))
    a = rng.integers(-4, 5, (side, 64)).astype(np.float32)
    b = rng.integers(-4, 5, (64, side)).astype(np.float32)
    return {"a": a, "b": b, "c": np.zeros((side, side), np.float32)}, [side, 64], {"c": a @ b}


def numbers(blocks, rng):
    return rng.integers(0, 16, blocks * THREADS).astype(np.int32)


def reduction(blocks, rng):
    x = numbers(blocks, rng)
    return {"x": x, "out": np.zeros(1, np.int32)}, [], {"out": x.sum(keepdims=True)}


def histogram(blocks, rng):
    x = numbers(blocks, rng)
    bins = np.zeros(16, np.int32)
    return {"x": x, "bins": bins}, [x.size], {"bins": np.bincount(x, minlength=16)}


def scan(blocks, rng):
    x = numbers(blocks, rng)
    sums = np.cumsum(x.reshape(blocks, THREADS), axis=1).reshape(-1)
    return {"x": x, "out": np.zeros_like(x)}, [], {"out": sums}


def append(blocks, rng):
    x = numbers(blocks, rng)
    places = np.flatnonzero(x & 1)
    buffers = {"x": x, "count": np.zeros(1, np.int32), "list": np.zeros_like(x)}
    return buffers, [x.size], {"count": np.array([places.size])}


def rows(blocks, rng):
    width, height = blocks * THREADS, 5
    table = np.zeros((height, width), np.int32)
    wanted = np.repeat(np.arange(height), width).reshape(height, width)
    return {"table": table, "arrived": np.zeros(1, np.int32)}, [width, height], {"table": wanted}


KERNELS = {
    "vector_add": vector_add,
    "matmul": matmul,
    "reduction": reduction,
    "histogram": histogram,
    "shared_histogram": histogram,
    "scan": scan,
    "append": append,
    "rows": rows,
}
OURS = ("ampere", "wgmma_pairs")


def ordinary(name, ptx, blocks, races):
    """-> (seconds, RunResult) of one run."""
    buffers, sizes, wanted = KERNELS[name](blocks, np.random.default_rng(0))
    machine = Machine(ptx, races=races)
    machine.kernel(name)
    args = [machine.memory.buffer(array, name=each).address for each, array in buffers.items()]
    side = buffers["c"].shape[0] // 16 if name == "matmul" else 0
    grid, block = ((side, side), (16, 16)) if side else (blocks, THREADS)
    start = time.process_time()
    result = machine.run(name, grid=grid, block=block, args=[*args, *sizes])
    seconds = time.process_time() - start
    for each, value in wanted.items():
        assert np.array_equal(buffers[each], value), f"{name}: {each} is wrong"
    return seconds, result


def ampere(blocks):
    """-> a function: races -> (seconds, RunResult) of one run; ``blocks`` at most 132."""
    from numba_marlin import compiler
    from numba_marlin.formats import marlin
    from numba_marlin.kernels.ampere import KERNEL, AmpereConfig
    from numba_marlin.quantizers import quantize

    m, n, k = 16, 256 if blocks < 64 else 1024, 1024 if blocks < 64 else 4096
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, k)).astype(np.float16)
    packed = marlin.pack(quantize(rng.standard_normal((k, n)).astype(np.float32), group_size=128))
    built = compiler.build(KERNEL, AmpereConfig(1, 8, 8, 8), target="sm_90a")
    partial_bytes, lock_bytes = KERNEL.workspace_bytes(built.config, m, n, k, blocks)

    def run(races):
        buffers = {
            "a": x,
            "b": packed.qweight,
            "c": np.full((m, n), np.nan, np.float16),
            "scales": packed.scales,
            "partials": np.full(max(4, partial_bytes // 4), np.nan, np.float32),
            "locks": np.zeros(max(1, lock_bytes // 4), np.int32),
        }
        machine = Machine(built.ptx, races=races)
        args = [machine.memory.buffer(array, name=each).address for each, array in buffers.items()]
        start = time.process_time()
        result = machine.run(
            built.entry,
            grid=KERNEL.grid(built.config, m, n, k, blocks),
            block=built.threads,
            shared_bytes=built.shared_bytes,
            args=[*args, m, n, k],
        )
        return time.process_time() - start, result

    return run


def wgmma_pairs():
    """-> a function: races -> (seconds, RunResult) of one run."""
    sys.path.insert(0, str(HERE.parent / "16_mutants"))
    from cells import CELLS

    cell = CELLS["wgmma, pairs of blocks, two rows of consumers"]
    launch, ptx = cell.launches[0], cell.compiled.ptx

    def run(races):
        machine = Machine(ptx, races=races)
        machine.kernel(launch.entry)
        start = time.process_time()
        result, after = launch.run(machine, None)
        seconds = time.process_time() - start
        assert launch.wrong(after) is None
        return seconds, result

    return run


def megabytes(what):
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) * 1024 / 1e6


def measure(name, blocks, races, repeats):
    if name == "ampere":
        run = ampere(blocks)
    elif name == "wgmma_pairs":
        run = wgmma_pairs()
    else:
        source = (HERE / "ordinary.cu").read_text(encoding="utf-8")
        ptx = compiled(source)
        run = lambda asked: ordinary(name, ptx, blocks, asked)  # noqa: E731
    before = megabytes("VmRSS")
    seconds, result = run(races)
    peak = max(0, megabytes("VmHWM") - before)
    spent = seconds
    for _ in range(repeats - 1):
        if spent > 20:
            break
        again, result = run(races)
        seconds, spent = min(seconds, again), spent + again
    return {
        "kernel": name,
        "blocks": blocks,
        "races": races,
        "seconds": round(seconds, 4),
        "warp_instructions": result.instructions,
        "a_second": round(result.instructions / seconds),
        "peak_mb": round(peak),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.date.today().isoformat(),
        "commit": subprocess.run(
            ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
        ).stdout.strip(),
    }


def row(kernel, blocks, found):
    """A line of the table: of each label, plain and looking for races."""
    cells = [kernel.replace("_", " "), f"{blocks:,}"]
    for label in LABELS:
        plain, looking = (found.get((kernel, blocks, label, races)) for races in (False, True))
        cells += (
            5 * [""]
            if plain is None
            else [
                f"{plain['a_second']:,}",
                f"{plain['seconds']:.3g}",
                "" if looking is None else f"{looking['seconds']:.3g}",
                "" if looking is None else f"{looking['seconds'] / plain['seconds']:.1f}",
                "" if looking is None else f"{plain['peak_mb']} / {looking['peak_mb']}",
            ]
        )
    return f"| {' | '.join(cells)} |"


def write_table():
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    found = {(r["kernel"], r["blocks"], r["label"], r["races"]): r for r in rows}
    of = ("warp instructions a second", "plain s", "races s", "factor", "MB plain / races")
    head = ["kernel", "blocks", *(f"{label}: {each}" for label in LABELS for each in of)]
    places = dict.fromkeys(
        (name, r["blocks"])
        for name in (*KERNELS, *OURS)
        for r in sorted(rows, key=lambda r: r["blocks"])
        if r["kernel"] == name
    )
    commits = ", ".join(
        f"{label} at {' and '.join(dict.fromkeys(r['commit'] for r in shown))}"
        for label in LABELS
        if (shown := [r for r in found.values() if r["label"] == label])
    )
    dates, last = ", ".join(sorted({r["date"] for r in found.values()})), rows[-1]
    lines = [
        f"Measured {dates}, {commits}: Python {last['python']}, NumPy {last['numpy']}.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(row(*place, found) for place in places),
    ]
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(
        text.split(BEGIN)[0] + "\n".join([BEGIN, *lines, END]) + text.split(END)[1],
        encoding="utf-8",
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--label", default="after")
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 256, 1024])
    parser.add_argument("--kernels", nargs="+", default=[*KERNELS, *OURS])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-record", action="store_true", help="print only")
    parser.add_argument("--table", action="store_true", help="write README.md's, measure nothing")
    args = parser.parse_args()
    if args.table:
        write_table()
        return
    for name in args.kernels:
        for blocks in args.blocks:
            if name == "ampere":
                blocks = min(blocks, 132)
            if name == "wgmma_pairs":
                blocks = 4
            for races in (False, True):
                context = multiprocessing.get_context("spawn")
                with context.Pool(1, maxtasksperchild=1) as pool:
                    row = {"label": args.label}
                    row |= pool.apply(measure, (name, blocks, races, args.repeats))
                print(json.dumps(row), flush=True)
                if not args.no_record:
                    with open(RESULTS, "a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
