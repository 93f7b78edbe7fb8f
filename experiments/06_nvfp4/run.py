"""How fast and how accurate are block-scaled FP4 weights, compared with INT4?

    python experiments/06_nvfp4/run.py measure [--shapes 8192x8192,28672x8192] [--m 1,16,64]
        [--every]    # needs a GPU and torch
    python experiments/06_nvfp4/run.py accuracy
        # a CPU
    python experiments/06_nvfp4/run.py report
        # tables and plots into README.md
    python experiments/06_nvfp4/sanitize.py all
        # compute-sanitizer: a GPU

measure: times NVFP4, MXFP4 and INT4 with groups of 128 and of 32, each as the heuristics run it,
and cuBLAS fp16, all of a cell in the same interleaved rounds, with cold L2 and CUDA graphs
(``numba_marlin.bench``). ``--every`` times all ranked configurations, not only the first. Rows are
appended to results.jsonl. Cells that it already has from these kernel sources on this device are
skipped, unless ``--again`` is given. accuracy: runs ``accuracy.py`` and rewrites accuracy.jsonl.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

SHAPES = ((4096, 4096), (8192, 8192), (28672, 8192), (8192, 57344), (135168, 33792))  # k, n
NAMES = {f"{k}x{n}": (k, n) for k, n in SHAPES}
BATCHES = (1, 16, 32, 64, 128, 256, 1024, 4096)
# larger m takes long and shows nothing that 28672 x 8192 does not show
LARGEST = {(135168, 33792): 64}
KINDS = {
    "nvfp4": {"group_size": 16, "codes": "e2m1"},
    "mxfp4": {"group_size": 32, "codes": "e2m1"},
    "int4-g128": {"group_size": 128},
    "int4-g32": {"group_size": 32},
}
KERNELS = ("decode", "wgmma")
HOPELESS = 1.6  # configurations slower than the fastest prediction by this factor are not measured


def problems(m, n, k, kinds, dtype):
    from numba_marlin.heuristics import Problem

    return {
        kind: Problem(
            m,
            n,
            k,
            **KINDS[kind],
            dtype=dtype,
            **({} if "codes" in KINDS[kind] else {"scale_dtype": dtype}),
        )
        for kind in kinds
    }


def candidates(problem, device, every):
    from numba_marlin import heuristics

    ranked = [each for each in heuristics.rank(problem, device) if each.kernel in KERNELS]
    worth = [
        each
        for each in ranked
        if each.figures["predicted_us"] < HOPELESS * ranked[0].figures["predicted_us"]
    ]
    return worth if every else ranked[:1]


def compile_one(kernel, config, target, compiler):
    from numba_marlin.execution.plan import compiled_kernel

    compiled_kernel(kernel, config, target, compiler)


def warm(wanted, target, compiler):
    """Compile all that is needed once, in processes side by side."""
    with concurrent.futures.ProcessPoolExecutor(
        mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for future in [pool.submit(compile_one, *each, target, compiler) for each in wanted]:
            future.result()


class Cells:
    """A shape's weights of every kind at a time, and what ``bench`` needs to time them together."""

    def __init__(self, settings, kinds, dtype, every):
        from numba_marlin.bench.measure import Bench

        self.bench, self.kinds, self.dtype, self.every = Bench(settings), kinds, dtype, every
        self._size, self._weights = None, {}

    def candidates(self, m, n, k):
        """[(kind, problem, candidate, whether the heuristics choose it)]"""
        found = []
        for kind, problem in problems(m, n, k, self.kinds, self.dtype).items():
            ranked = candidates(problem, self.bench.device, self.every)
            found += [(kind, problem, each, position == 0) for position, each in enumerate(ranked)]
        return found

    def weights(self, m, n, k):
        from numba_marlin.bench import operands

        if self._size != (k, n):
            self._size, self._weights = (k, n), {}
            for kind, problem in problems(m, n, k, self.kinds, self.dtype).items():
                made = operands.random_weights(problem)
                # cuBLAS multiplies those of one kind
                made.dense = made.dense if kind == self.kinds[0] else made.dense[:1]
                self._weights[kind] = made
        return self._weights

    def rows(self, m, n, k, label):
        from dataclasses import asdict

        from numba_marlin.bench import contenders, measure, operands
        from numba_marlin.bench.timing import GraphTimer, interleave

        bench, settings, ceilings = self.bench, self.bench.settings, self.bench.ceilings(self.dtype)
        weights, wanted = self.weights(m, n, k), self.candidates(m, n, k)
        batches = {kind: operands.random_batch(each, m) for kind, each in weights.items()}
        entrants = [
            bench.contender(problem, each, weights[kind], batches[kind])
            for kind, problem, each, _ in wanted
        ]
        errors = [
            measure.checked(entrant, batches[kind]) for entrant, (kind, *_) in zip(entrants, wanted)
        ]
        bench.watch.settle()
        timers = {
            number: GraphTimer(each.launch, settings.target_us, measure.least_launches(each))
            for number, each in enumerate(entrants)
        }
        peer = contenders.cublas(weights[self.kinds[0]], batches[self.kinds[0]])
        timers["cublas"] = GraphTimer(peer.launch, settings.target_us, measure.least_launches(peer))
        bench.watch.clear()
        times = interleave(timers, settings.rounds, bench.watch.sample)
        for number, (entrant, error, (kind, problem, candidate, chosen)) in enumerate(
            zip(entrants, errors, wanted)
        ):
            yield {
                "experiment": "speed",
                "weights": kind,
                "kernel": candidate.kernel,
                "config": asdict(candidate.config),
                "chosen": chosen,
                "compiler": settings.compiler,
                "kind": "measured",
                "grid": list(candidate.grid),
                "registers": entrant.compiled.resources.registers,
                **entrant.options,
                **asdict(problem),
                **measure.timed(times[number], times["cublas"]),
                **measure.shares(problem, times[number], ceilings),
                "relative_error": float(f"{error:.3g}"),
                "shape": label,
                "rounds": settings.rounds,
                "clocks": bench.watch.summary(),
                "ceilings": ceilings.to_dict(),
                **bench.environment,
            }


def measure(args):
    from numba_marlin.bench.measure import Settings
    from numba_marlin.bench.rows import Recorder

    cells = Cells(
        Settings(rounds=args.rounds, compiler=args.compiler, seed=args.seed),
        tuple(args.kinds.split(",")),
        args.dtype,
        args.every,
    )
    sizes = [(label, *NAMES[label]) for label in args.shapes.split(",")]
    wanted = [
        (label, int(m), n, k)
        for label, k, n in sizes
        for m in args.m.split(",")
        if int(m) <= LARGEST.get((k, n), 4096)
    ]
    compiled = dict.fromkeys(
        (each.kernel, each.config)
        for _, m, n, k in wanted
        for _, _, each, _ in cells.candidates(m, n, k)
    )
    warm(compiled, cells.bench.device.target, args.compiler)
    with Recorder(args.out) as recorder:
        for label, m, n, k in wanted:
            stubs = [
                cells.bench.stub(problem, each) for _, problem, each, _ in cells.candidates(m, n, k)
            ]
            if not args.again and all(map(recorder.done, stubs)):
                continue
            for row in cells.rows(m, n, k, label):
                recorder.write(row)
                config = ", ".join(
                    f"{name}={value}"
                    for name, value in row["config"].items()
                    if name
                    in (
                        "batch",
                        "warps_n",
                        "warps_k",
                        "whole",
                        "tile_m",
                        "tile_n",
                        "k_groups",
                        "parts",
                        "split",
                    )
                )
                print(
                    f"{label:>12} {m:>5} {row['weights']:>10} {row['us']:9.2f} us, speed-up"
                    f" {row['speedup']:5.2f}, {row['tb_per_s']:.2f} TB/s, {row['tflops']:4.0f}"
                    f" TFLOP/s, {row['limit_share']:4.0%} of the limit,"
                    f" {'*' if row['chosen'] else ' '} {row['kernel']} {config}",
                    flush=True,
                )


def accuracy(args):
    import accuracy as module

    with Path(args.out).open("w", encoding="utf-8") as file:
        for row in module.rows(args.k, args.n, args.seed):
            print(
                f"{row['data']:>16} {row['weights']:>14} {row['bits_per_weight']:.3f} bits, rms"
                f" error {row['relative_rms']:.2%}, of outputs {row['relative_output']:.2%}",
                flush=True,
            )
            file.write(json.dumps(row) + "\n")


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("measure", help="time on this machine's GPU (needs torch)")
    run.add_argument(
        "--shapes", default=",".join(NAMES), help="names, comma separated (default: all)"
    )
    run.add_argument(
        "--m",
        default=",".join(map(str, BATCHES)),
        help="batch sizes, comma separated (default: all)",
    )
    run.add_argument(
        "--kinds", default=",".join(KINDS), help="kinds of weights, comma separated (default: all)"
    )
    run.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"))
    run.add_argument("--every", action="store_true", help="time every configuration that is ranked")
    run.add_argument(
        "--rounds", type=int, default=9, help="interleaved rounds; the median counts (default 9)"
    )
    run.add_argument("--compiler", default="numba-cuda")
    run.add_argument(
        "--again", action="store_true", help="measure cells that are in the file already, too"
    )
    check = commands.add_parser("accuracy", help="errors of the formats, on a CPU")
    check.add_argument("--k", type=int, default=4096)
    check.add_argument("--n", type=int, default=1024)
    for each, name in ((run, "results.jsonl"), (check, "accuracy.jsonl")):
        each.add_argument("--seed", type=int, default=0)
        each.add_argument("--out", default=str(HERE / name))
    commands.add_parser("report", help="write tables and plots from results.jsonl into README.md")
    args = parser.parse_args(argv)
    if args.command == "report":
        import report

        report.write(
            HERE / "results.jsonl",
            HERE / "accuracy.jsonl",
            HERE / "README.md",
            HERE / "speed.png",
            HERE / "accuracy.png",
        )
    else:
        {"measure": measure, "accuracy": accuracy}[args.command](args)


if __name__ == "__main__":
    main()
