"""How near the limit of an H200 does one copy of the weights get, at every batch size?

    # needs a GPU and torch
    python experiments/02_hopper/run.py measure [--shapes ideal,8192x8192] [--m 1,16,64] \\
        [--peer libmarlin.so]
    # tables and plots into README.md
    python experiments/02_hopper/run.py report

measure: every cell of the table of goals: the heuristics' choice, the faithful kernel, cuBLAS fp16
and, with ``--peer``, the CUDA original (experiments/01_faithful/README.md says how to build it), in
the same interleaved rounds, cold L2, CUDA graphs (``numba_marlin.bench``). Rows are appended to
results.jsonl as they are measured; cells that are there already, from these kernel sources on this
device, are skipped (``--again``: measured once more). ``--invariant`` times the choice of the
batch-invariant mode beside them: the cost of bit-identical rows for every m.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

BATCHES = (1, 16, 32, 64, 128, 256, 1024, 4096)
GROUP_SIZE = 128
# Speed-up over cuBLAS fp16 in the same rounds, by shape (k, n) and batch: the goal, and what the
# best public kernel reached on an H200 (2026-11-21; Marlin CUDA, vLLM's Marlin, Humming up to m=64,
# Machete from 256 up; None: none was measured).
GOALS = {
    (135168, 33792): {
        1: (3.6, 2.59),
        16: (3.5, 2.35),
        32: (3.3, 2.04),
        64: (2.5, 1.45),
        128: (1.5, 0.81),
        256: (1.05, 0.58),
    },
    (28672, 8192): {
        1: (3.4, 2.83),
        16: (3.3, 2.40),
        32: (3.0, None),
        64: (2.3, 1.67),
        128: (1.4, None),
        256: (1.1, 1.06),
        1024: (1.05, 1.00),
        4096: (1.02, 0.98),
    },
    (8192, 57344): {
        1: (3.4, 2.90),
        16: (3.3, 2.55),
        32: (3.1, None),
        64: (2.6, 2.13),
        128: (1.8, None),
        256: (1.15, 1.12),
        1024: (1.08, 1.06),
        4096: (1.04, 1.01),
    },
    (8192, 8192): {
        1: (3.2, 2.40),
        16: (3.2, 2.24),
        32: (2.6, None),
        64: (2.1, 1.40),
        128: (1.3, None),
        256: (1.05, 0.92),
        1024: (1.05, 1.02),
        4096: (0.98, 0.90),
    },
    (4096, 4096): {
        1: (2.4, 1.73),
        16: (2.4, 1.47),
        32: (2.2, None),
        64: (1.6, 0.98),
        128: (1.3, None),
        256: (1.0, 0.73),
        1024: (1.0, 0.97),
        4096: (0.98, 0.94),
    },
}
NAMES = {(135168, 33792): "ideal"} | {(k, n): f"{k}x{n}" for k, n in GOALS if k != 135168}


def cells(shapes, batches):
    """(label, m, n, k) of the wanted cells that have a goal, shape by shape."""
    known = {name: size for size, name in NAMES.items()}
    for name in shapes:
        if name not in known:
            raise SystemExit(f"shape {name!r} must be one of {', '.join(known)}")
        k, n = known[name]
        for m in batches:
            if m in GOALS[k, n]:
                yield name, m, n, k


def measure(args):
    from numba_marlin import heuristics
    from numba_marlin.bench.measure import Bench, Settings
    from numba_marlin.bench.rows import Recorder

    bench = Bench(
        Settings(rounds=args.rounds, compiler=args.compiler, library=args.peer, seed=args.seed)
    )
    wanted = list(cells(args.shapes.split(","), [int(each) for each in args.m.split(",")]))
    with Recorder(args.out) as recorder:
        for label, m, n, k in wanted:
            problem = heuristics.Problem(m, n, k, GROUP_SIZE)
            ranked = heuristics.rank(problem, bench.device)
            faithful = next(each for each in ranked if each.kernel == "ampere")
            candidates = ranked[:1] if faithful is ranked[0] else (ranked[0], faithful)
            same_bits = dataclasses.replace(problem, batch_invariant=True)
            invariant = heuristics.rank(same_bits, bench.device)[:1] if args.invariant else ()
            stubs = [bench.stub(problem, each) for each in candidates] + [
                bench.stub(same_bits, each) for each in invariant
            ]
            if not args.again and all(map(recorder.done, stubs)):
                continue
            for row in bench.cell(problem, candidates, ranked[0], label, invariant):
                recorder.write(row)
                goal, _ = GOALS[k, n][m]
                print(
                    f"{label:>12} {m:>5}"
                    f" {row['kernel'] + (' (same bits)' if row['batch_invariant'] else ''):>18}"
                    f" {row['us']:9.2f} us, cuBLAS {row['cublas_us']:9.2f}, speed-up"
                    f" {row['speedup']:5.2f} (goal {goal:.2f}), {row['tb_per_s']:.2f} TB/s,"
                    f" {row['tflops']:4.0f} TFLOP/s, {row['limit_share']:4.0%} of the limit",
                    flush=True,
                )


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("measure", help="time on this machine's GPU (needs torch)")
    run.add_argument(
        "--shapes", default=",".join(NAMES.values()), help="names, comma separated (default: all)"
    )
    run.add_argument(
        "--m",
        default=",".join(map(str, BATCHES)),
        help="batch sizes, comma separated (default: all)",
    )
    run.add_argument(
        "--invariant",
        action="store_true",
        help="time the batch-invariant choice beside the free one",
    )
    run.add_argument(
        "--rounds", type=int, default=9, help="interleaved rounds; the median counts (default 9)"
    )
    run.add_argument(
        "--peer", default="", help="shared library of the CUDA original to time in the same rounds"
    )
    run.add_argument("--compiler", default="numba-cuda")
    run.add_argument(
        "--again", action="store_true", help="measure cells that are in the file already, too"
    )
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--out", default=str(HERE / "results.jsonl"))
    commands.add_parser(
        "report",
        help="write tables and plots from results.jsonl into this README.md and the project's",
    )
    args = parser.parse_args(argv)
    if args.command == "measure":
        measure(args)
    else:
        import report

        report.write(
            HERE / "results.jsonl",
            HERE / "README.md",
            HERE.parent.parent / "docs" / "performance.md",
            HERE / "speedup.png",
            HERE / "roofline.png",
            GOALS,
        )


if __name__ == "__main__":
    main()
