"""``numba-marlin bench`` on a GPU: times the problems that the file does not have yet, or tunes
them. Problems that do not fit the device, and wrong results, are listed and left out."""

from __future__ import annotations

from functools import partial


def timed(args, report, bench, recorder, work):
    """Return (rows, including those that the file already had; what could not be measured)."""
    from numba_marlin.cli.progress import bar

    known = [
        [None if args.again else recorder.done(each) for each in bench.stubs(problem, candidates)]
        for _, problem, candidates, _ in work
    ]
    missing = [not all(rows) for rows in known]
    if any(missing):
        _ceilings(args, report, bench)
    failures = []
    with bar("timing") as advance:
        for position, (label, problem, candidates, chosen) in enumerate(work):
            advance(sum(missing[:position]), sum(missing), f"{label} m={problem.m}")
            if missing[position]:
                known[position] = _attempt(
                    failures, problem, partial(bench.cell, problem, candidates, chosen, label)
                )
                for row in known[position]:
                    recorder.write(row)
        advance(sum(missing), sum(missing), "")
    return [row for rows in known for row in rows], failures


def _ceilings(args, report, bench) -> None:
    with report.step("measuring the GPU's ceilings"):
        found = bench.ceilings(args.dtype)
    report.data["ceilings"] = found.to_dict()
    report.row(
        "ceilings",
        f"reads {found.read_bytes / 1e12:.2f} TB/s, multiplies {found.matrix_flops / 1e12:.0f}"
        " TFLOP/s (measured, cuBLAS)",
    )


def _attempt(failures, problem, measure):
    """Return the rows of ``measure()``. If the problem does not fit the device or a kernel is
    wrong, there are none, and ``failures`` gets a line."""
    from numba_marlin.bench.measure import WrongResult
    from numba_marlin.bench.peers import PeerFailed
    from numba_marlin.bench.timing import torch_on_gpu
    from numba_marlin.errors import CapabilityMissing

    wrong = (WrongResult, PeerFailed)
    try:
        return measure()
    except (CapabilityMissing, *wrong, torch_on_gpu().cuda.OutOfMemoryError) as error:
        text = str(error).splitlines()[0]
        failures.append(
            {
                "m": problem.m,
                "n": problem.n,
                "k": problem.k,
                "wrong": isinstance(error, wrong),
                "error": text,
            }
        )
        return []


def tuned(args, report, bench, recorder, work):
    """Report the winners and return (rows of everything that was timed; what could not be
    measured)."""
    from numba_marlin.bench.tune import tune
    from numba_marlin.cli.progress import bar

    rows, failures, winners = [], [], []
    _ceilings(args, report, bench)
    with bar("tuning") as advance:
        for position, (label, problem, _, _) in enumerate(work):
            advance(position, len(work), f"{label} m={problem.m}")

            def measure(problem=problem):
                found = tune(bench, problem)
                winners.append(
                    {
                        **{
                            name: found.winner[name]
                            for name in ("m", "n", "k", "kernel", "config", "us", "speedup")
                        },
                        "heuristics": found.winner["chosen"],
                        "path": None if found.path is None else str(found.path),
                        "dropped": [
                            {"kernel": each.kernel, "why": why} for each, why in found.dropped
                        ],
                    }
                )
                return found.rows

            for row in _attempt(failures, problem, measure):
                recorder.write(row)
                rows.append(row)
        advance(len(work), len(work), "")
    report.data["winners"] = winners
    return rows, failures
