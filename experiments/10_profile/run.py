"""Where does a kernel's time go on a GPU, do the parts add up to it, and what does looking cost?

    python experiments/10_profile/run.py measure [--cells NAMES] [--out results.jsonl]     # needs a GPU and torch, a minute
    python experiments/10_profile/run.py report                                            # table into this README.md

measure: for every cell the plain kernel, its instrumented build (``numba_marlin.inspect.recorder``) and cuBLAS are timed in the same interleaved rounds, cold L2,
CUDA graphs. The instrumented launches say when every warp began which section; the parts of an average warp's time from one launch's end to the next one's add
up to ``timeline_us``, which must be within 10% of the plain kernel's ``us``. Exit code 1 if one is not.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

GROUP_SIZE = 128
TOLERANCE = 0.10
CELLS = {  # name: kernel, m, n, k
    "naive": ("naive", 4, 4096, 4096),
    "tiled": ("tiled", 16, 8192, 8192),
    "ampere, small": ("ampere", 16, 4096, 4096),
    "ampere": ("ampere", 16, 8192, 8192),
    "ampere, m=64": ("ampere", 64, 8192, 8192),
    "decode, m=1": ("decode", 1, 8192, 8192),
    "decode": ("decode", 16, 8192, 8192),
    "decode, deep": ("decode", 16, 8192, 28672),
    "wgmma, m=64": ("wgmma", 64, 8192, 8192),
    "wgmma": ("wgmma", 256, 8192, 8192),
    "wgmma, m=1024": ("wgmma", 1024, 8192, 8192),
}
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def candidate_of(name, device):
    from numba_marlin import heuristics

    kernel, m, n, k = CELLS[name]
    problem = heuristics.Problem(m, n, k, GROUP_SIZE)
    return problem, heuristics.candidate(problem, device, kernel)


def build(name):
    """In a process of its own, into the disk cache."""
    from numba_marlin import compiler, driver, heuristics

    device = driver.describe(0)
    _, candidate = candidate_of(name, device)
    compiler.build(heuristics.find_kernel(candidate.kernel), candidate.config, target=device.target, line_info=True)


def row_of(observation, environment):
    from numba_marlin.inspect import records

    problem, shares = observation.problem, records.shares(list(observation.recordings))
    first = observation.recordings[-1]
    resources = [each.resources for each in (observation.compiled, observation.instrumented.compiled)]
    return {
        "kernel": observation.candidate.kernel, "config": dataclasses.asdict(observation.candidate.config), **dataclasses.asdict(problem),
        "us": round(observation.us, 3), "us_spread": [round(min(observation.rounds), 3), round(max(observation.rounds), 3)], "cublas_us": round(observation.cublas_us, 3),
        "speedup": round(observation.cublas_us / observation.us, 4), "instrumented_us": round(observation.instrumented_us, 3), "overhead": round(observation.overhead, 4),
        "timeline_us": round(observation.timeline_us, 3), "timeline_over_us": round(observation.timeline_us / observation.us, 4),
        "parts_us": {name: round(value / 1e3, 3) for name, value in shares.items() if value}, "span_us": round((first.last_ns - first.first_ns) / 1e3, 3),
        "launches_read": len(observation.recordings), "marks": observation.instrumented.marks, "clipped_warps": max(each.clipped for each in observation.recordings),
        "registers": [each.registers for each in resources], "spill_bytes": [(each.spill_stores or 0) + (each.spill_loads or 0) for each in resources],
        "multiprocessors": len(set(first.smid.tolist())), "clocks": observation.clocks, "kind": "measured", **environment,
    }


def measure(args):
    from numba_marlin import driver
    from numba_marlin.bench.environment import describe
    from numba_marlin.inspect.on_gpu import observe

    names = args.cells.split(";") if args.cells else list(CELLS)
    began = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(args.processes) as pool:
        list(pool.map(build, names))
    print(f"built {len(names)} kernels in {time.monotonic() - began:.1f} s", flush=True)
    device = driver.describe(0)
    environment, ok = describe(device.name), True
    with open(args.out, "a", encoding="utf-8") as file:
        for name in names:
            row = row_of(observe(*candidate_of(name, device), rounds=args.rounds), environment)
            file.write(json.dumps(row) + "\n")
            file.flush()
            ok = ok and abs(row["timeline_over_us"] - 1) <= TOLERANCE
            parts = ", ".join(f"{part} {value:.1f}" for part, value in row["parts_us"].items())
            print(f"{name:>14} plain {row['us']:8.2f} us, instrumented {row['instrumented_us']:8.2f} ({row['overhead']:+.1%}), parts {row['timeline_us']:8.2f} ({row['timeline_over_us']:.3f} of plain): "
                  f"{parts}{', CLIPPED' if row['clipped_warps'] else ''}", flush=True)
    print(f"{'all within' if ok else 'NOT all within'} {TOLERANCE:.0%} of the plain kernel's time; {time.monotonic() - began:.1f} s")
    return 0 if ok else 1


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("measure", help="on this machine's GPU (needs torch)")
    run.add_argument("--cells", default="", help=f"names, separated by semicolons (default: all): {'; '.join(CELLS)}")
    run.add_argument("--rounds", type=int, default=9)
    run.add_argument("--processes", type=int, default=8, help="that compile at the same time")
    run.add_argument("--out", default=str(HERE / "results.jsonl"))
    commands.add_parser("report", help="write the table from results.jsonl into README.md")
    args = parser.parse_args(argv)
    if args.command == "measure":
        return measure(args)
    import report

    return report.write(HERE / "results.jsonl", HERE / "README.md", TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
