"""Autotuning: measures the candidates of the heuristics and stores the winner
(``heuristics.tuned``). Needs torch and a GPU.

Every candidate first runs alone; those more than ``HOPELESS`` times as slow as the fastest are
dropped, and so are those with a wrong result and those that the device cannot hold. The rest are
timed in the same rounds. Among those within ``TIE`` of the fastest, the one that the heuristics
rank first wins, so that noise does not decide. m is the upper end of its bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from numba_marlin.bench import operands
from numba_marlin.bench.measure import Bench, WrongResult, checked
from numba_marlin.bench.timing import eager_us
from numba_marlin.errors import CapabilityMissing
from numba_marlin.heuristics import Candidate, Problem, rank, tuned

HOPELESS = 3.0
TIE = 0.005


@dataclass(frozen=True)
class Tuning:
    """``problem``: the measured problem, with the bucket's m; ``rows``: of the measured candidates;
    ``winner``: one of them; ``dropped``: (candidate, why); ``path``: the file that stores the
    winner, None if no directory is writable."""

    problem: Problem
    rows: tuple[dict, ...]
    winner: dict
    choice: Candidate
    dropped: tuple[tuple[Candidate, str], ...]
    path: Path | None


def tune(bench: Bench, problem: Problem, candidates: tuple[Candidate, ...] | None = None) -> Tuning:
    """Measure the candidates (default: ``rank``'s) and store the winner. CapabilityMissing if no
    candidate runs."""
    problem = replace(problem, m=tuned.bucket(problem.m))
    ranked = rank(problem, bench.device) if candidates is None else candidates
    tried, dropped = screen(bench, problem, ranked)
    if not tried:
        raise CapabilityMissing(
            f"no candidate runs m={problem.m} n={problem.n} k={problem.k}:"
            f" {'; '.join(why for _, why in dropped)}"
        )
    hopeful = tuple(each for each, us in tried if us <= HOPELESS * min(us for _, us in tried))
    dropped += [
        (each, f"{us:.3g} us at first sight, more than {HOPELESS:g} times the fastest")
        for each, us in tried
        if each not in hopeful
    ]
    rows = bench.cell(problem, hopeful, ranked[0])
    position = winner([row["us"] for row in rows[: len(hopeful)]])
    choice = hopeful[position]
    path = tuned.remember(problem, bench.device, choice.kernel, choice.config, rows[position]["us"])
    return Tuning(problem, tuple(rows), rows[position], choice, tuple(dropped), path)


def winner(times: list[float]) -> int:
    """Index of the first time within ``TIE`` of the smallest."""
    best = min(times)
    return next(position for position, us in enumerate(times) if us <= best * (1 + TIE))


def screen(
    bench: Bench, problem: Problem, candidates
) -> tuple[list[tuple[Candidate, float]], list[tuple[Candidate, str]]]:
    """([(candidate, microseconds of an eager launch)] in the order given, [(candidate, why it does
    not run)])."""
    weights = bench.weights(problem)
    batch = operands.random_batch(weights, problem.m)
    tried, dropped = [], []
    for each in candidates:
        try:
            entrant = bench.contender(problem, each, weights, batch)
            checked(entrant, batch)
        except (CapabilityMissing, WrongResult) as error:
            dropped.append((each, str(error)))
            continue
        tried.append((each, eager_us(entrant.launch, 2)))
    return tried, dropped
