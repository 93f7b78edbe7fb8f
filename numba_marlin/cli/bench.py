"""``numba-marlin bench``: time kernels on this computer's GPU beside cuBLAS, and relate them to the
GPU's ceilings.

It times with a cold L2 and CUDA graphs, runs contenders in interleaved rounds, and reports medians
with quartiles (``numba_marlin.bench`` describes the method). With ``--save`` every row is written
as soon as it is measured, and a row that the file already has (same problem, kernel, configuration,
device, driver and kernel sources) is not measured again.
"""

from __future__ import annotations

from numba_marlin.cli.kernels import OPERAND_FORMATS
from numba_marlin.cli.types import add_type_arguments, types_of

HELP = "time kernels beside cuBLAS on this computer's GPU, and relate them to its ceilings"
RANDOM = "the operands"
EXAMPLES = """  numba-marlin bench
  numba-marlin bench --shapes llama-3-70b,qwen-2.5-32b --m 1,16,64
  numba-marlin bench --k 4096 --n 4096,14336 --m 1,8 --kernel all
  numba-marlin bench --shapes table --save h200.jsonl --plot roofline.png
  numba-marlin bench --k 4096 --n 4096 --m 16 --autotune
  numba-marlin bench --k 4096 --n 4096 --m 1,64 --peer my_kernels.py:humming
  numba-marlin bench --backend emulator --k 512 --n 256 --m 8 --kernel all"""
DEFAULT_SHAPES = "llama-3-8b"
DEFAULT_M = "1,16,64,256"


def add_arguments(parser) -> None:
    parser.add_argument(
        "--shapes",
        metavar="NAMES",
        help=(
            "models, sets (table, ideal, ragged) or KxN, comma separated; MODEL/tpN: a GPU's part"
            f" in tensor parallelism (default {DEFAULT_SHAPES}); 'list' lists them"
        ),
    )
    parser.add_argument(
        "--n",
        metavar="N,...",
        help="columns of the weight; with --k, in place of --shapes: every pair",
    )
    parser.add_argument("--k", metavar="K,...", help="rows of the weight")
    parser.add_argument(
        "--m", metavar="M,...", default=DEFAULT_M, help=f"rows of activations (default {DEFAULT_M})"
    )
    parser.add_argument(
        "--kernel",
        metavar="NAME,...",
        default="best",
        help="best: the heuristics' choice (default); all: every candidate; or kernels by name",
    )
    parser.add_argument(
        "--group-size",
        type=int,
        metavar="G",
        help="rows that share a scale; -1: all (default 128)",
    )
    add_type_arguments(parser)
    parser.add_argument(
        "--codes",
        choices=("integer", "e2m1"),
        default="integer",
        help="e2m1: block-scaled FP4; NVFP4 with --group-size 16, MXFP4 with 32 (default integer)",
    )
    parser.add_argument(
        "--format",
        choices=OPERAND_FORMATS,
        help="both operands block-scaled, for block_scaled_matmul",
    )
    parser.add_argument("--bias", action="store_true", help="add a bias")
    parser.add_argument(
        "--batch-invariant",
        action="store_true",
        help="time configurations whose results do not depend on M (bit-identical rows)",
    )
    parser.add_argument(
        "--peer",
        action="append",
        metavar="NAME",
        help=(
            "a contender to time in the same rounds, may be repeated: cublas (default, in the same"
            " dtype), none (without cublas), or a function of yours, FILE.py:FUNCTION or"
            " MODULE:FUNCTION (docs/performance.md says what it is given)"
        ),
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=9,
        metavar="R",
        help="interleaved rounds; the median counts (default 9)",
    )
    parser.add_argument(
        "--compiler",
        choices=("numba-cuda", "numba-cuda-mlir"),
        default="numba-cuda",
        help="the compiler front end (default numba-cuda)",
    )
    parser.add_argument(
        "--backend",
        choices=("cuda", "emulator"),
        default="cuda",
        help="emulator: no times, but counted instructions, without a GPU",
    )
    parser.add_argument(
        "--autotune",
        action="store_true",
        help="measure every candidate and store the winner on this computer",
    )
    parser.add_argument("--again", action="store_true", help="also measure rows already in --save")
    parser.add_argument(
        "--plot",
        metavar="FILE.png",
        help="draw the rows under the GPU's roofline (needs matplotlib)",
    )
    parser.add_argument(
        "--save",
        metavar="FILE.jsonl",
        help="append rows here as they are measured; rows already there are not measured again",
    )


def execute(args, report) -> bool:
    from numba_marlin.bench import peers, shapes
    from numba_marlin.cli.report import check_output

    if args.shapes == "list":
        return _list_shapes(report)
    _check(args)
    target = check_output(args.save, (".jsonl",), "--save")
    plot = check_output(args.plot, (".png", ".svg", ".pdf"), "--plot")
    layers = _layers(args, shapes)
    problems = [
        (layer.name, _problem(args, layer, m)) for layer in layers for m in _numbers("m", args.m)
    ]
    if args.backend == "emulator":
        return _count(args, report, problems)
    if _peers(args):
        peers.check_problem(problems[0][1])
        peers.find_all(_peers(args))  # a wrong name should be reported with or without a GPU
    if plot is not None:
        from numba_marlin.bench.roofline import pyplot

        pyplot()  # a missing library should fail before the measurement, not after
    return _measure(args, report, problems, target, plot)


def _check(args) -> None:
    if args.rounds < 1:
        raise ValueError(f"--rounds {args.rounds} must be at least 1")
    types_of(args)
    if (args.n is None) != (args.k is None):
        raise ValueError("--n and --k belong together: give both")
    if args.shapes is not None and args.n is not None:
        raise ValueError("--shapes or --n and --k, not both")
    if args.kernel not in ("best", "all"):
        from numba_marlin.heuristics import find_kernel

        for name in args.kernel.split(","):
            find_kernel(name.strip())
    if {"cublas", "none"} <= set(args.peer or ()):
        raise ValueError("--peer cublas or --peer none, not both")
    if args.autotune and args.kernel != "best":
        raise ValueError(
            f"--autotune measures every candidate, so --kernel {args.kernel} has no effect"
        )
    if args.backend == "emulator":
        for name in ("save", "plot", "autotune"):
            if getattr(args, name):
                raise ValueError(f"--{name} needs times: a GPU, not --backend emulator")
        if _peers(args):
            raise ValueError(f"--peer {_peers(args)[0]} needs times: a GPU, not --backend emulator")
        if (args.dtype, args.zeros, args.bias) != ("float16", "none", False):
            raise ValueError(
                "--backend emulator counts float16 products of symmetric weights without a bias"
            )
        if args.n is None:
            raise ValueError(
                "--backend emulator needs --n and --k, small ones: models would take hours"
            )


def _peers(args) -> tuple[str, ...]:
    """The functions that --peer names, each once."""
    named = (each.strip() for each in args.peer or ())
    return tuple(dict.fromkeys(each for each in named if each not in ("cublas", "none")))


def _numbers(name: str, text: str) -> list[int]:
    """Comma-separated positive integers, each once."""
    found: dict[int, None] = {}
    for part in text.split(","):
        try:
            value = int(part)
        except ValueError:
            raise ValueError(f"--{name} {text}: {part.strip()!r} is not an integer") from None
        if value < 1:
            raise ValueError(f"--{name} {text}: {value} must be at least 1")
        found[value] = None
    return list(found)


def _layers(args, shapes):
    if args.n is None:
        return shapes.resolve(args.shapes or DEFAULT_SHAPES)
    return tuple(
        shapes.Layer(f"{k}x{n}", n, k) for k in _numbers("k", args.k) for n in _numbers("n", args.n)
    )


def _problem(args, layer, m: int):
    from numba_marlin.api.reports import problem_of

    return problem_of(m, layer.n, layer.k, args.group_size, **types_of(args), bias=args.bias)


def _list_shapes(report) -> bool:
    from numba_marlin.bench import shapes

    report.data["shapes"] = {
        name: [{"layer": each.name, "k": each.k, "n": each.n} for each in shapes.resolve(name)]
        for name in shapes.names()
    }
    width = max(map(len, shapes.names()))
    for name in shapes.names():
        report.row(
            name, ", ".join(f"{each.k} x {each.n}" for each in shapes.resolve(name)), width=width
        )
    return True


def _candidates(args, problem, device):
    """(candidates to time, the heuristics' choice)."""
    from numba_marlin.heuristics import candidate, rank

    ranked = rank(problem, device)
    if args.kernel in ("best", "all"):
        return (ranked if args.kernel == "all" else ranked[:1]), ranked[0]
    named = [candidate(problem, device, name.strip()) for name in args.kernel.split(",")]
    return tuple({(each.kernel, each.config): each for each in named}.values()), ranked[0]


def _measure(args, report, problems, target, plot) -> bool:
    from numba_marlin.bench.measure import Bench, Settings
    from numba_marlin.bench.rows import Recorder
    from numba_marlin.cli.bench_rounds import timed, tuned
    from numba_marlin.errors import CapabilityMissing
    from numba_marlin.execution import driver

    probe = driver.probe()
    if not probe.usable:
        raise CapabilityMissing(
            f"bench needs a GPU: {probe.reason} (--backend emulator counts instructions without"
            " one)"
        )
    bench = Bench(
        Settings(
            rounds=args.rounds,
            compiler=args.compiler,
            cublas="none" not in (args.peer or ()),
            peers=_peers(args),
            seed=args.seed,
        )
    )
    # reports impossible problems before any is timed
    work = [
        (label, problem, *_candidates(args, problem, bench.device)) for label, problem in problems
    ]
    report.row(
        "device",
        f"{bench.device.name}, driver {bench.environment['driver']}, commit"
        f" {bench.environment['commit']}",
    )
    if bench.watch.missing:
        report.row("", bench.watch.missing)
    report.data |= {"device": bench.environment, "ceilings": None}
    with Recorder(target) as recorder:
        rows, failures = (tuned if args.autotune else timed)(args, report, bench, recorder, work)
    report.data |= {
        "rows": rows,
        "measured": len(recorder.rows),
        "resumed": len(rows) - len(recorder.rows),
        "failures": failures,
    }
    _say(args, report, rows, recorder, failures)
    if plot is not None and rows:
        _plot(report, rows, plot)
    return not any(each["wrong"] for each in failures)


def _say(args, report, rows, recorder, failures) -> None:
    from numba_marlin.bench.tables import clocks
    from numba_marlin.cli.bench_view import rows_table, sizes
    from numba_marlin.cli.report import RED

    if report.as_json:
        return
    if rows:
        print()
        rows_table(rows)
    if clocks(rows):
        report.row("clocks", clocks(rows))
    for each in report.data.get("winners", ()):
        report.row(
            "winner",
            f"{sizes(each)}, m={each['m']}: {each['kernel']}, {each['us']:.2f} us"
            + (", the heuristics' choice" if each["heuristics"] else f"; {each['config']}"),
        )
    for each in failures:
        report.row(
            "wrong" if each["wrong"] else "skipped",
            f"{sizes(each)}, m={each['m']}: {each['error']}",
            RED,
        )
    if recorder.path is not None:
        report.row(
            "wrote",
            f"{recorder.path}: {len(recorder.rows)} measured now, {len(rows) - len(recorder.rows)}"
            " there already",
        )


def _plot(report, rows, plot) -> None:
    from numba_marlin.bench.roofline import draw

    draw(rows, plot)
    report.row("drew", str(plot))
    report.data["plot"] = str(plot)


def _count(args, report, problems) -> bool:
    """Count the instructions that the PTX machine executes, without timing: the same PTX as on a
    GPU, on the small device that the machine models."""
    from numba_marlin.cli.bench_view import counted_table
    from numba_marlin.cli.progress import bar
    from numba_marlin.hardware import devices

    work = [
        (problem, each)
        for _, problem in problems
        for each in _candidates(args, problem, devices.MODEL)[0]
    ]
    rows = []
    with bar("running") as advance:
        for done, (problem, each) in enumerate(work):
            advance(done, len(work), f"{each.kernel} m={problem.m} n={problem.n} k={problem.k}")
            rows.append(_counted(args, problem, each))
        advance(len(work), len(work), "")
    report.data |= {"rows": rows, "counted_on": devices.MODEL.to_dict()}
    report.row("counted", "warp instructions that the PTX machine executed; no time is implied")
    if not report.as_json:
        print()
        counted_table(rows)
    return True


def _counted(args, problem, candidate) -> dict:
    from dataclasses import asdict

    import numpy as np

    from numba_marlin.execution.machine import set_up
    from numba_marlin.execution.plan import Plan, machine_for
    from numba_marlin.profile.sources.samples import sample

    plan = Plan("emulator", "asked for", machine_for(candidate.kernel), candidate)
    drawn = sample(problem, np.random.default_rng(args.seed))
    binding = drawn.bound(candidate, plan.device.sms, plan.compile(args.compiler, problem))
    return {
        "kind": "counted",
        "kernel": candidate.kernel,
        "config": asdict(candidate.config),
        "compiler": args.compiler,
        **problem.to_dict(),
        "grid": list(candidate.grid),
        "instructions": set_up(binding).run().instructions,
    }
