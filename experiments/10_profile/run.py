"""Where does a kernel's time go on a GPU, do the parts add up to it, and what does measuring cost?

    python experiments/10_profile/run.py measure [--cells NAMES] [--out results.jsonl]     # needs a
        GPU and torch, three minutes
    python experiments/10_profile/run.py keep [--try]    # needs a GPU and torch: a profile of every
        kernel, to h200_KERNEL.json; about a minute a kernel
    python experiments/10_profile/run.py counters        # needs ncu too: the hardware's counters of
        the kept profiles' launches, into them
    python experiments/10_profile/run.py report                                            # tables
        into this README.md
    python experiments/10_profile/run.py pictures                                          # needs
        playwright and a Chromium

measure: for every cell the plain kernel, its instrumented builds (``numba_marlin.profile``:
``totals`` of each section, ``recorder`` of every event) and cuBLAS are timed in the same
interleaved rounds, cold L2, CUDA graphs. The parts of an average warp's time from one launch's end
to the next one's add up to ``timeline_us``. It must be within 10% of the plain kernel's time with
launches that do not overlap (``alone_us``), although it comes from other builds and is not scaled;
otherwise the exit code is 1. ``raw_timeline_us`` comes from the one build that measures all
sections at once.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import sys
import time
import warnings
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
    "block_scaled": ("block_scaled", 4096, 4096, 4096),
    "block_decode": ("block_decode", 16, 8192, 8192),
}
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def candidate_of(name, device):
    from numba_marlin import heuristics
    from numba_marlin.problems import OPERANDS, BlockProblem, WeightProblem

    kernel, m, n, k = CELLS[name]
    both = heuristics.find_kernel(kernel).kind == OPERANDS
    problem = BlockProblem(m, n, k) if both else WeightProblem(m, n, k, GROUP_SIZE)
    return problem, heuristics.candidate(problem, device, kernel)


def build(name):
    """Compile into the disk cache, in a separate process."""
    from numba_marlin import compiler
    from numba_marlin.execution import driver
    from numba_marlin.profile.sources.on_machine import definition_of

    # lambdas of the kernels
    warnings.filterwarnings("ignore", message=".*Could not find source for function.*")
    device = driver.describe(0)
    _, candidate = candidate_of(name, device)
    compiler.build(
        definition_of(candidate.kernel), candidate.config, target=device.target, line_info=True
    )


def row_of(observation, environment):
    problem, shares = observation.problem, observation.shares_us
    last = observation.recordings[-1]
    builds = {
        "plain": observation.compiled,
        "light": observation.light.compiled,
        "detailed": observation.detailed.compiled,
    }
    resources = {name: each.resources for name, each in builds.items()}
    return {
        "kernel": observation.candidate.kernel,
        "config": dataclasses.asdict(observation.candidate.config),
        **dataclasses.asdict(problem),
        "us": round(observation.us, 3),
        "alone_us": round(observation.alone_us, 3),
        "us_spread": [round(min(observation.rounds), 3), round(max(observation.rounds), 3)],
        "cublas_us": round(observation.cublas_us, 3),
        "speedup": round(observation.cublas_us / observation.us, 4),
        "light_us": round(observation.light_us, 3),
        "detailed_us": round(observation.detailed_us, 3),
        "ends_us": round(observation.ends_us, 3),
        "work_us": None if observation.work_us is None else round(observation.work_us, 3),
        "finer_us": {name: round(each, 3) for name, each in observation.finer_us.items()},
        "timeline_us": round(observation.timeline_us, 3),
        "timeline_over_us": round(observation.timeline_us / observation.alone_us, 4),
        "raw_timeline_us": round(observation.raw_timeline_us, 3),
        "raw_timeline_over_light_us": round(observation.raw_timeline_us / observation.light_us, 4),
        "parts_us": {name: round(value, 3) for name, value in shares.items() if value},
        "raw_parts_us": {
            name: round(value, 3) for name, value in observation.raw_us.items() if value
        },
        "span_us": round((last.last_ns - last.first_ns) / 1e3, 3),
        "marks": observation.light.marks,
        "clipped_warps": max(each.clipped for each in observation.recordings),
        "registers": {name: each.registers for name, each in resources.items()},
        "spill_bytes": {
            name: (each.spill_stores or 0) + (each.spill_loads or 0)
            for name, each in resources.items()
        },
        "multiprocessors": len(set(last.smid.tolist())),
        "clocks": observation.clocks,
        "kind": "measured",
        **environment,
    }


def described(name, row):
    """Lines for the terminal."""

    def more(us):
        return f"{us / row['alone_us'] - 1:+.1%}"

    def parts(found):
        return ", ".join(f"{part} {value:.2f}" for part, value in found.items())

    builds = {
        "ends": row["ends_us"],
        "work": row["work_us"],
        **row["finer_us"],
        "all at once": row["light_us"],
        "events": row["detailed_us"],
    }
    slower = ", ".join(f"{build} {more(us)}" for build, us in builds.items() if us)
    clipped = "; CLIPPED" if row["clipped_warps"] else ""
    return (
        f"{name}: plain {row['alone_us']:.2f} us ({row['us']:.2f} overlapping); builds:"
        f" {slower}{clipped}\n"
        f"    parts       {row['timeline_us']:8.2f} ({more(row['timeline_us'])}):"
        f" {parts(row['parts_us'])}\n    all at once {row['raw_timeline_us']:8.2f}"
        f" ({more(row['raw_timeline_us'])}): {parts(row['raw_parts_us'])}"
    )


def measure(args):
    from numba_marlin.bench.environment import describe
    from numba_marlin.execution import driver
    from numba_marlin.profile.sources.on_gpu import observe

    names = [each.strip() for each in args.cells.split(";")] if args.cells else list(CELLS)
    began = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(args.processes) as pool:
        list(pool.map(build, names))
    print(f"built {len(names)} kernels in {time.monotonic() - began:.1f} s", flush=True)
    device = driver.describe(0)
    environment, ok = describe(device.name), True
    with open(args.out, "a", encoding="utf-8") as file:
        for name in names:
            row = row_of(
                observe(*candidate_of(name, device), rounds=args.rounds, ends=True), environment
            )
            file.write(json.dumps(row) + "\n")
            file.flush()
            ok = ok and abs(row["timeline_over_us"] - 1) <= TOLERANCE
            print(described(name, row), flush=True)
    print(
        f"{'all within' if ok else 'NOT all within'} {TOLERANCE:.0%} of the plain kernel's time;"
        f" {time.monotonic() - began:.1f} s"
    )
    return 0 if ok else 1


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("measure", help="on this machine's GPU (needs torch)")
    run.add_argument(
        "--cells",
        default="",
        help=f"names, separated by semicolons (default: all): {'; '.join(CELLS)}",
    )
    run.add_argument("--rounds", type=int, default=9)
    run.add_argument("--processes", type=int, default=8, help="that compile at the same time")
    run.add_argument("--out", default=str(HERE / "results.jsonl"))
    kept_ = commands.add_parser("keep", help="a profile of every kernel, a small file each")
    kept_.add_argument("--kernels", default="", help="names, separated by commas (default: all)")
    kept_.add_argument(
        "--try", dest="tried", action="store_true", help="also try neighbouring configurations"
    )
    kept_.add_argument("--device", default="", help="model this GPU; needs --out")
    kept_.add_argument("--out", default=str(HERE), help="the folder")
    counted = commands.add_parser("counters", help="those that ncu reads, into the kept profiles")
    counted.add_argument("--out", default=str(HERE), help="the profiles' folder")
    commands.add_parser(
        "report", help="write the tables into README.md, the first from results.jsonl"
    )
    commands.add_parser("pictures", help="take the pictures of the kept profile")
    args = parser.parse_args(argv)
    if args.command == "measure":
        return measure(args)
    sys.path.insert(0, str(HERE))
    import kept
    import report

    if args.command == "keep":
        return kept.keep(args)
    if args.command == "counters":
        return kept.counters(args)
    if args.command == "pictures":
        report.pictures()
        return 0
    return report.write(HERE / "results.jsonl", HERE / "README.md", TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
