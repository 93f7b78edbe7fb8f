"""Is Marlin, written in Python, as fast as Marlin written in CUDA?

    # needs a GPU and torch
    python experiments/01_faithful/run.py measure [--shapes ideal,8192x8192] [--m 1,16,64] \\
        [--peer libpeer.so]
    # table and plot into README.md
    python experiments/01_faithful/run.py report

measure: for every shape and batch size, this project's ``ampere`` kernel beside cuBLAS fp16
(``torch.matmul``), in one process, interleaved: cold L2, CUDA graphs, medians of rounds with their
spread, and the result compared before it is timed (``numba_marlin.bench``).
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

SHAPES = {  # k, n
    "ideal": (135168, 33792),
    "8192x8192": (8192, 8192),
    "28672x8192": (28672, 8192),
    "8192x57344": (8192, 57344),
    "4096x4096": (4096, 4096),
    "10752x4096": (10752, 4096),
}
BATCHES = (1, 16, 32, 64, 128, 256, 1024, 4096)
# Marlin CUDA (IST-DASLab/marlin built for sm_90, g=128) over cuBLAS fp16 on one H200, same
# protocol, 2026-11-21: what "not slower" means.
MARLIN_CUDA = {
    "ideal": {1: 2.59, 16: 2.35, 32: 2.04, 64: 1.45, 128: 0.81, 256: 0.58},
    "8192x8192": {1: 2.10, 16: 2.25, 64: 1.07, 256: 0.56, 1024: 0.46, 4096: 0.50},
    "28672x8192": {1: 1.72, 16: 1.91, 64: 1.22, 256: 0.57, 1024: 0.45, 4096: 0.57},
    "8192x57344": {1: 1.74, 16: 1.77, 64: 1.74, 256: 0.58},
    "4096x4096": {1: 1.22, 16: 1.30, 64: 0.50, 256: 0.55},
    "10752x4096": {1: 1.55, 16: 1.77, 64: 0.86, 256: 0.61},
}
GROUP_SIZE = 128


def ampere_candidates(problem, device, with_others):
    """The heuristics' choice for the faithful kernel first, and with ``with_others`` its other tile
    shape too."""
    from numba_marlin import heuristics

    ranked = tuple(each for each in heuristics.rank(problem, device) if each.kernel == "ampere")
    return ranked if with_others else ranked[:1]


def measure_shape(bench, label, batches, with_others, write):
    from numba_marlin.heuristics import Problem

    k, n = SHAPES[label]
    for m in batches:
        problem = Problem(m, n, k, GROUP_SIZE)
        candidates = ampere_candidates(problem, bench.device, with_others)
        *ours, last = bench.cell(problem, candidates, chosen=candidates[0], label=label)
        if last["kernel"] == "ampere":
            ours, original = [*ours, last], {}
        else:
            original = {
                "marlin_cuda_us": last["us"],
                "marlin_cuda_relative_error": last["relative_error"],
            }
        for row in ours:
            write(row | original)


def measure(args):
    from numba_marlin.bench.measure import Bench, Settings
    from numba_marlin.bench.rows import Recorder

    bench = Bench(
        Settings(
            rounds=args.rounds,
            target_us=args.target_us,
            compiler=args.compiler,
            library=args.peer,
            seed=args.seed,
        )
    )
    print(
        f"{'shape':>12} {'m':>5} {'tile':>6} {'us':>9} {'cuBLAS us':>9} {'speed-up':>8} {'CUDA':>6}"
        f" {'CUDA us':>9} {'TB/s':>6} {'TF':>6} {'regs':>4}"
    )

    with Recorder(args.out) as recorder:

        def write(row):
            recorder.write(row)
            published = MARLIN_CUDA[row["shape"]].get(row["m"])
            tile = (
                f"{row['config']['thread_n_blocks'] * 16}x{row['config']['thread_k_blocks'] * 16}"
            )
            print(
                f"{row['shape']:>12} {row['m']:>5} {tile:>6} {row['us']:9.1f}"
                f" {row['cublas_us']:9.1f} {row['speedup']:8.2f} {published or float('nan'):6.2f}"
                f" {row.get('marlin_cuda_us', float('nan')):9.1f} {row['tb_per_s']:6.2f}"
                f" {row['tflops']:6.0f} {row['registers']:>4}",
                flush=True,
            )

        for label in args.shapes.split(","):
            batches = (
                [m for m in map(int, args.m.split(","))]
                if args.m
                else [m for m in BATCHES if not (label == "ideal" and m > 256)]
            )
            measure_shape(bench, label, batches, args.all, write)


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("measure", help="time on this machine's GPU (needs torch)")
    run.add_argument(
        "--shapes", default=",".join(SHAPES), help="names, comma separated (default: all)"
    )
    run.add_argument("--m", default="", help="batch sizes, comma separated (default: all)")
    run.add_argument(
        "--rounds", type=int, default=9, help="interleaved rounds; the median counts (default 9)"
    )
    run.add_argument(
        "--target-us",
        type=float,
        default=3000,
        help="length of one graph in microseconds (default 3000)",
    )
    run.add_argument(
        "--peer",
        default="",
        help="shared library of the CUDA original to time in the same rounds (README)",
    )
    run.add_argument("--compiler", default="numba-cuda")
    run.add_argument(
        "--all", action="store_true", help="time every tile shape, not only the heuristic's"
    )
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--out", default=str(HERE / "results.jsonl"))
    commands.add_parser(
        "report", help="write the table and the plot from results.jsonl into README.md"
    )
    args = parser.parse_args(argv)
    if args.command == "measure":
        measure(args)
    else:
        from report import report

        report(
            HERE / "results.jsonl",
            HERE / "README.md",
            HERE.parent.parent / "docs" / "performance.md",
            HERE / "speedup.png",
            SHAPES,
            MARLIN_CUDA,
        )


if __name__ == "__main__":
    main()
