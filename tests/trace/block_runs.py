"""Recorded runs of kernels that multiply two block-scaled operands: configurations that other tests
compile too, each run once."""

import functools
from dataclasses import asdict

from numba_marlin import trace
from numba_marlin.emulator import Machine
from numba_marlin.problems import BlockProblem
from numba_marlin.testing.launches import launch_on
from numba_marlin.testing.operands import small_integers
from tests.kernels import blackwell, block_problems

RUNS = {
    "block_scaled": (130, 64, 288),
    "block_decode": (9, 136, 1056),
    "tcgen05": (140, 136, 544),
    "block_mma": (130, 24, 288),
}
BASE = 0x400  # of shared memory, on the machine


def prepared(name, seed=0, change=lambda found: None):
    """(operands, a testing.launches.Prepared)"""
    m, n, k = RUNS[name]
    if name in ("block_scaled", "block_decode"):
        problem = small_integers(m, n, k, seed, c_dtype="float16", bias=True)
        found = block_problems.prepare(
            problem,
            {"block_scaled": block_problems.SMALL, "block_decode": block_problems.FEW_ROWS}[name],
            sms=2,
        )
        operands = problem.a, problem.b
    else:
        kernel = blackwell.TCGEN05 if name == "tcgen05" else blackwell.BLOCK_MMA
        operands = tuple(blackwell.exact_operand(rows, k, "nvfp4", seed + rows) for rows in (m, n))
        found = blackwell.prepare(kernel, *operands, sms=2)
    change(found)
    return operands, found


def record(name, **options):
    operands, found = prepared(name, **options)
    machine = Machine(found.compiled.ptx)
    about = {
        "kernel": name,
        "kind": "operands",
        "problem": BlockProblem.of(found.config, *RUNS[name]).to_dict(),
        "config": asdict(found.config),
        "boxes": found.binding.boxes,
        **found.kernel.about.of_run(found.config, BASE),
    }
    return trace.record(machine, about=about, **launch_on(machine, found)), operands, found


@functools.cache
def recorded(name):
    """(trace, (A, B), a testing.launches.Prepared: its buffer d has the result)"""
    return record(name)
