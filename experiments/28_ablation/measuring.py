"""Times of every ablation on a GPU: checked, then interleaved in CUDA graphs with a cold L2."""

import concurrent.futures
import multiprocessing
import os
import sys
import time
from dataclasses import asdict, replace

from ablations import EVERY
from plain_layout import plain_words

from numba_marlin import compiler
from numba_marlin.errors import CapabilityMissing
from numba_marlin.kernels.ampere import KERNEL
from numba_marlin.problems import WeightProblem

COMPILER = "numba-cuda"


def build(name, base, target):
    """Into the disk cache; in a process of its own."""
    ablation = EVERY[name]
    compiler.build(ablation.kernel, ablation.configured(base), target, COMPILER)


def build_all(jobs):
    """jobs: (name, base configuration, target). As many processes as there are processors."""
    jobs = sorted(set(jobs), key=repr)
    with concurrent.futures.ProcessPoolExecutor(
        min(len(jobs), os.cpu_count() or 1), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for future in [pool.submit(build, *each) for each in jobs]:
            future.result()


def measure(shapes, batches, rounds, names, write):
    """write(row) for every ablation of every problem. Returns what had to be left out, in words: a
    wrong result is never timed."""
    from numba_marlin.bench import operands
    from numba_marlin.bench.measure import Bench, Settings
    from numba_marlin.execution.plan import target_for
    from numba_marlin.heuristics import candidate

    start = time.monotonic()
    bench = Bench(Settings(rounds=rounds, compiler=COMPILER, cublas=False))
    problems = [WeightProblem(m, n, k) for k, n in shapes for m in batches]
    bases = {problem: candidate(problem, bench.device, KERNEL.name).config for problem in problems}
    target = target_for(KERNEL, bench.device)
    build_all([(name, base, target) for base in bases.values() for name in names])
    print(f"{time.monotonic() - start:6.1f} s: compiled", flush=True)
    left_out, weights, plain = [], None, None
    for problem in problems:
        if bench.weights(problem) is not weights:  # another shape
            weights, plain = bench.weights(problem), None
            plain = replace(weights, packed=[*map(plain_words, weights.packed)])
        batch = operands.random_batch(weights, problem.m)
        for row in cell(bench, problem, bases[problem], names, (weights, plain, batch), left_out):
            write(row)
        print(f"{time.monotonic() - start:6.1f} s: {problem.in_words()}", flush=True)
    return left_out


def cell(bench, problem, base, names, data, left_out):
    """The rows of one problem, all timed in the same rounds."""
    from numba_marlin.bench import contenders
    from numba_marlin.bench.measure import WrongResult, checked, least_launches, row_of, timed
    from numba_marlin.bench.summary import summarise
    from numba_marlin.bench.timing import GraphTimer, interleave

    weights, plain, batch = data
    entrants, errors = {}, {}
    for name in names:
        ablation = EVERY[name]
        config = ablation.configured(base)
        try:
            entrant = contenders.kernel(
                problem,
                contenders.candidate_of(ablation.kernel, config, problem, bench.device),
                plain if ablation.plain else weights,
                batch,
                COMPILER,
                ablation.kernel,
            )
            errors[name] = checked(entrant, batch)
        except (CapabilityMissing, WrongResult) as error:
            left_out.append(f"{name}, {problem.in_words()}: {error}")
            print(left_out[-1], file=sys.stderr, flush=True)
            continue
        entrants[name] = entrant
    bench.watch.settle()
    timers = {
        name: GraphTimer(each.launch, bench.settings.target_us, least_launches(each))
        for name, each in entrants.items()
    }
    bench.watch.clear()
    times = interleave(timers, bench.settings.rounds, bench.watch.sample)
    clocks = bench.watch.summary()
    for name, entrant in entrants.items():
        slower = summarise([ours / intact for ours, intact in zip(times[name], times["intact"])])
        yield {
            "kernel": name,
            "config": asdict(entrant.candidate.config),
            "compiler": COMPILER,
            **row_of(problem),
            "shape": f"{problem.k}x{problem.n}",
            **timed(times[name]),
            "times_intact": round(slower.median, 4),
            "times_intact_spread": [round(slower.low, 4), round(slower.high, 4)],
            "grid": list(entrant.candidate.grid),
            "registers": entrant.compiled.resources.registers,
            "relative_error": float(f"{errors[name]:.3g}"),
            "launches_per_graph": timers[name].launches,
            "rounds": bench.settings.rounds,
            "clocks": clocks,
            **bench.environment,
        }
