"""Is the choice fast in every cell of real layers, and could it have been better?

    # a GPU and torch; rows are appended to results.jsonl, what is there is not measured again
    python experiments/25_every_cell/run.py measure --peer humming [--seconds 450]
    python experiments/25_every_cell/run.py report      # the tables of README.md
    python experiments/25_every_cell/run.py refit       # constants of the choice; no GPU
    python experiments/25_every_cell/run.py expect      # what it will measure; no GPU

A cell is a layer of ``shapes.py`` and an m. In the same interleaved rounds (``numba_marlin.bench``:
cold L2, CUDA graphs, every result checked first) are timed: what the heuristics choose, the other
configurations that the kernels propose (those predicted to take at most FAR times as long as the
choice, ``--top`` of all), cuBLAS in fp16, and the peers. ``--peer NAME`` is ``peers/NAME.py``, or
FILE.py:FUNCTION as in ``numba-marlin bench --peer``. The regret of a cell is the time of the choice
over that of the fastest of these configurations.

Cells come in passes over all layers, the most informative m first, so that ``--seconds`` may cut
the run anywhere. A cell counts as measured if a row has today's choice on this GPU, of whatever
commit: kernels change between two visits, and a run that asked for a row of the very same sources
measured its first cells again. ``--again`` asks for that. A peer that fails in a cell is left out
there, and its row says why.
"""

import argparse
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

import refit
import report
import shapes

from numba_marlin.bench import rows
from numba_marlin.errors import CapabilityMissing
from numba_marlin.hardware import devices
from numba_marlin.heuristics import find_kernel, rank
from numba_marlin.problems import WeightProblem

RESULTS = HERE / "results.jsonl"
GROUP_SIZE = 128
TOP = 5
FAR = 1.5
PATIENCE = 3  # cells in which a peer may fail before it is given up, if it runs in none
SPARE_SECONDS = 5.0  # before the limit, if no cell took longer


def candidates_of(problem, device, top=TOP):
    """What is timed, the heuristics' choice first."""
    ranked = rank(problem, device, per_kernel=top)
    limit = FAR * ranked[0].figures["predicted_us"]
    near = [each for each in ranked[1:] if each.figures.get("predicted_us", limit + 1) <= limit]
    return (ranked[0], *near[: top - 1])


def spelled(peer):
    """``--peer``: a name of peers/ as FILE.py:FUNCTION."""
    if ":" in peer:
        return peer
    file = HERE / "peers" / f"{peer}.py"
    if not file.exists():
        there = ", ".join(sorted(each.stem for each in file.parent.glob("*.py")))
        raise ValueError(f"--peer {peer} must be one of {there}, or FILE.py:FUNCTION")
    return f"{os.path.relpath(file)}:{peer}"


def compile_all(work, device, jobs):
    """Compile, in processes, what is not in the disk cache; -> how many kernels."""
    from numba_marlin import compiler
    from numba_marlin.compiler.workers import Job
    from numba_marlin.execution import warmup
    from numba_marlin.execution.plan import target_for

    needed = {}
    for problem, candidates in work:
        for each in candidates:
            kernel = find_kernel(each.kernel)
            job = Job(each.kernel, each.config, target_for(kernel, device), "numba-cuda")
            if job not in needed and compiler.load(kernel, each.config, job.target) is None:
                needed[job] = warmup.Needed(job, (problem.m,), (problem,))
    done = warmup.compile_missing(warmup.Choice(device.name, tuple(needed.values()), {}), jobs)
    for each in done.kernels:
        if each.error is not None:
            print(f"not compiled: {each.job.kernel} {each.job.config}: {each.error}", flush=True)
    return len(needed)


def row_of(found, candidates, failed):
    """A cell's row of bench.cell's rows: the choice's, with what was timed beside it. failed:
    {peer: why it was left out}."""
    choice = found[0]
    dropped = ("bytes", "flops", "ceilings", "bandwidth_share", "compute_share", "kind", "grid")
    row = {name: each for name, each in choice.items() if name not in dropped}
    row["predicted_us"] = candidates[0].figures["predicted_us"]
    row["others"] = [
        {
            "kernel": each["kernel"],
            "config": _apart(each, choice),
            "us": each["us"],
            "predicted_us": candidate.figures["predicted_us"],
        }
        for each, candidate in zip(found[1:], candidates[1:])
    ]
    row["peers"] = {
        each["kernel"]: {
            "us": each["us"],
            "us_spread": each["us_spread"],
            "version": each["peer_version"],
            "relative_error": each["relative_error"],
        }
        for each in found[len(candidates) :]
    } | {name: {"failed": why} for name, why in failed.items()}
    return row


def _apart(other, choice):
    """The fields of a configuration that differ from the choice's; all, if its kernel does."""
    same = choice["config"] if other["kernel"] == choice["kernel"] else {}
    return {name: each for name, each in other["config"].items() if same.get(name, ...) != each}


def measured(bench, problem, candidates, label, hopeless):
    """A cell's row. Peers that fail are left out, and so are the ``hopeless``, {peer: why}; if a
    candidate does not fit the device, the choice stays alone."""
    from numba_marlin.bench.measure import WrongResult
    from numba_marlin.bench.peers import PeerFailed

    failed = dict(hopeless)
    while True:
        try:
            found = bench.cell(problem, candidates, candidates[0], label, without=tuple(failed))
        except (PeerFailed, WrongResult) as error:
            if error.name not in {each.name for each in bench.peers}:
                raise
            failed[error.name] = str(error)
        except CapabilityMissing:
            if len(candidates) == 1:
                raise
            candidates = candidates[:1]
        else:
            return row_of(found, candidates, failed)


def hopeless_peers(measured_rows):
    """{peer: why it failed first} of those that failed in PATIENCE cells and ran in none."""
    tried = {}
    for row in measured_rows:
        for name, each in row["peers"].items():
            tried.setdefault(name, []).append(each.get("failed"))
    return {
        name: reasons[0]
        for name, reasons in tried.items()
        if len(reasons) >= PATIENCE and all(reasons)
    }


def identity(row):
    """Of a row, whatever sources its kernel was compiled from."""
    return rows.cell(row), rows.contender(row), row["device"]


def is_done(row, peers, retry=False):
    """Whether an earlier row, or None, makes a measurement with these peers needless. retry: not
    if one of them failed in it."""
    there = {} if row is None else row["peers"]
    known = {name for name, each in there.items() if not (retry and "failed" in each)}
    return row is not None and set(peers) <= known


def measure(args):
    """Time the cells that results.jsonl does not have yet; needs a GPU and torch."""
    from numba_marlin.bench.measure import Bench, Settings, WrongResult
    from numba_marlin.bench.timing import torch_on_gpu

    start = time.monotonic()
    wanted = shapes.cells(args.cells)
    bench = Bench(
        Settings(
            rounds=args.rounds,
            target_us=args.graph_us,
            peers=tuple(spelled(each) for each in args.peer),
            kept=len(shapes.LAYERS),
            settle_seconds=0.2,
        )
    )
    bench.ceilings("float16")
    wrong, hopeless = [], {}
    with rows.Recorder(args.out) as recorder:
        names = [each.name for each in bench.peers]
        earlier = rows.read(args.out) if args.out.exists() else []
        known = {} if args.again else {identity(each): each for each in earlier}
        work = []
        for layer, m in wanted:
            problem = WeightProblem(m, layer.n, layer.k, GROUP_SIZE)
            candidates = candidates_of(problem, bench.device, args.top)
            stub = bench.stub(problem, candidates[0])
            row = recorder.done(stub) or known.get(identity(stub))
            if not is_done(row, names, args.retry):
                work.append((layer, problem, candidates))
        count = compile_all([each[1:] for each in work], bench.device, args.jobs)
        print(
            f"{len(work)} of {len(wanted)} cells to measure; {count} kernels compiled;"
            f" {time.monotonic() - start:.0f} s",
            flush=True,
        )
        before, longest = time.monotonic(), SPARE_SECONDS
        for position, (layer, problem, candidates) in enumerate(work):
            longest = max(longest, time.monotonic() - before)
            before = time.monotonic()
            if before - start > args.seconds - longest:
                print(f"stopped before --seconds {args.seconds:g}: {len(work) - position} to go")
                break
            try:
                row = measured(bench, problem, candidates, layer.name, hopeless)
            except (CapabilityMissing, WrongResult, torch_on_gpu().cuda.OutOfMemoryError) as error:
                wrong.append(f"{layer.k}x{layer.n}@{problem.m}: {str(error).splitlines()[0]}")
                print(f"NOT MEASURED {wrong[-1]}", flush=True)
                continue
            recorder.write(row)
            hopeless = hopeless_peers(recorder.rows)
            said = [f"{name} {_beside(each, row)}" for name, each in row["peers"].items()]
            print(
                f"{time.monotonic() - start:4.0f} s {layer.k}x{layer.n}@{problem.m}"
                f" {row['kernel']} {row['us']:.2f} us, cuBLAS {row['speedup']:.2f},"
                f" {', '.join(said)}{', ' if said else ''}regret {report.regret(row):.1%}",
                flush=True,
            )
    if wrong:
        raise SystemExit(f"{len(wrong)} cells could not be measured")


def _beside(peer, row):
    return peer.get("failed") or f"{peer['us'] / row['us']:.2f}"


def todays_choices(cells):
    """{(layer, m): (kernel, {field: value})}"""
    device = devices.device("H200")
    found = {
        (layer, m): rank(WeightProblem(m, layer.n, layer.k, GROUP_SIZE), device)[0]
        for layer, m in cells
    }
    return {key: (each.kernel, asdict(each.config)) for key, each in found.items()}


def cells_of_today(out):
    cells = report.newest(rows.read(out) if out.exists() else [])
    return report.of_today(cells, todays_choices(cells))


def write_report(args):
    """The tables of README.md, of what results.jsonl has, for today's choices."""
    report.write(cells_of_today(args.out), HERE / "README.md")


def write_refit(args):
    """Fit the constants of the choice to results.jsonl, with layers held out; prints, no GPU."""
    refit.write(rows.read(args.out) if args.out.exists() else [], list(shapes.layers()))


SECONDS_A_CELL, SECONDS_A_LAYER, SECONDS_A_KERNEL = 0.35, 13.0, 2.5  # reckoned, with one peer


def expect(args):
    """For each pass its cells, configurations, new kernels, and seconds until its end."""
    device, seen, total, layers = devices.device("H200"), set(), 0.0, 0
    chosen = set(args.cells and shapes.cells(args.cells))
    for batches in shapes.PASSES:
        cells = [each for each in shapes.cells() if each in chosen and each[1] in batches]
        contenders, kernels = 0, set()
        for layer, m in cells:
            problem = WeightProblem(m, layer.n, layer.k, GROUP_SIZE)
            found = candidates_of(problem, device, args.top)
            contenders += len(found)
            kernels |= {(each.kernel, each.config) for each in found}
        new = len({layer for layer, _ in cells}) if layers == 0 else 0
        layers += new
        total += len(cells) * SECONDS_A_CELL + new * SECONDS_A_LAYER
        total += len(kernels - seen) * SECONDS_A_KERNEL / args.jobs
        print(
            f"m = {', '.join(map(str, batches)):>14}: {len(cells):4} cells,"
            f" {contenders:5} configurations, {len(kernels - seen):3} more kernels,"
            f" {total:4.0f} s until then"
        )
        seen |= kernels


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for run in (measure, write_report, write_refit, expect):
        command = commands.add_parser(run.__name__.removeprefix("write_"), help=run.__doc__)
        command.add_argument("--out", type=Path, default=RESULTS, help="the rows' file")
        command.set_defaults(run=run)
        if run not in (measure, expect):
            continue
        command.add_argument(
            "--cells",
            type=lambda text: text.split(","),
            default=["*"],
            metavar="KxN@M,...",
            help="with * and ?: '5120x*@64,*@1' (default: all)",
        )
        command.add_argument(
            "--top", type=int, default=TOP, help=f"configurations of a cell (default {TOP})"
        )
        command.add_argument(
            "--jobs", type=int, default=os.cpu_count(), help="compilers (default: one a core)"
        )
        if run is measure:
            command.add_argument(
                "--peer", action="append", default=[], metavar="NAME", help="may be repeated"
            )
            command.add_argument(
                "--seconds", type=float, default=float("inf"), help="stop before this many"
            )
            command.add_argument(
                "--retry", action="store_true", help="also the cells in which a peer failed"
            )
            command.add_argument(
                "--again", action="store_true", help="also cells with rows of other sources"
            )
            command.add_argument("--rounds", type=int, default=7)
            command.add_argument(
                "--graph-us", type=float, default=1500.0, help="length of a graph (default 1500)"
            )
    args = parser.parse_args(arguments)
    if getattr(args, "top", 1) < 1:
        parser.error(f"--top {args.top} must be at least 1")
    try:
        args.run(args)
    except (ValueError, CapabilityMissing) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


if __name__ == "__main__":
    main()
