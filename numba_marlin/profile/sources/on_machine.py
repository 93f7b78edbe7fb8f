"""Counts of a kernel on the PTX machine: of all of a small problem, or of the share of a large one
that belongs to as many SMs as can be run in seconds.

``observe(problem, chosen, device)`` -> ``Counted``. A large problem is cut to ``part``: fewer
columns for fewer SMs (then fewer rows), so that a block does the same work as in the
whole; counts of the part times ``factor`` are those of the whole, except for the rounding to whole
tiles. ``factor`` is 1 if all of it ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from numba_marlin import compiler, counts
from numba_marlin.emulator import Machine
from numba_marlin.emulator.state.listener import Listener
from numba_marlin.execution import expected, machine
from numba_marlin.execution.plan import target_for
from numba_marlin.hardware.devices import Device
from numba_marlin.heuristics import Candidate, find_kernel
from numba_marlin.problems import EXPERTS, Problem
from numba_marlin.profile.instrument import recorder, records, sections
from numba_marlin.profile.sources import access
from numba_marlin.profile.sources.execution import Execution
from numba_marlin.profile.sources.samples import sample

WORK = 1.5  # seconds that a run takes, about; it is run twice
CAPACITY = 1016


@dataclass(frozen=True, eq=False)
class Counted:
    """A launch, or a part of it, run on the PTX machine."""

    #: What is profiled.
    problem: Problem
    #: The part of it that ran.
    part: Problem
    #: Times ``part`` is in the problem.
    factor: float
    #: SMs that the machine played.
    sms: int
    grid: tuple
    candidate: Candidate
    compiled: object
    instrumented: recorder.Instrumented
    #: Of ``part``.
    counts: counts.Counts
    #: Of every pc.
    sections: tuple[str, ...]
    #: Of the instrumented build, in the machine's warp instructions, not in time.
    recording: records.Recording
    kernel: object
    #: Its first memory accesses (``access``).
    first: list
    #: What it executed, instruction by instruction.
    execution: Execution
    #: One word of the weight taken apart (``words``), None where the format has no such thing.
    word: dict | None

    @property
    def whole(self) -> bool:
        return self.factor == 1


def observe(
    problem: Problem,
    chosen: Candidate,
    device: Device,
    compiled=None,
    seed: int = 0,
    work: float = WORK,
) -> Counted:
    """``compiled``: the kernel with line numbers, if it has been compiled already. Raises
    ValueError for a kernel that the machine cannot run (it needs line numbers, which numba-cuda
    writes)."""
    definition = find_kernel(chosen.kernel)
    compiled = compiled or compiler.build(
        definition, chosen.config, target=target_for(definition, device), line_info=True
    )
    part, sms = cut(problem, chosen, device, work)
    drawn = sample(part, np.random.default_rng(seed))
    binding = drawn.bound(chosen, sms, compiled)
    counting = machine.set_up(binding)
    _, found = counts.count(counting.machine, **counting.launch)
    instrumented = recorder.instrument(compiled, CAPACITY, machine_code=False)
    blocks = math.prod(binding.grid)
    buffer = np.zeros(instrumented.nbytes(blocks) + instrumented.slot_bytes, np.uint8)
    recorded = Machine(instrumented.compiled.ptx)
    start = recorded.memory.buffer(buffer, name=recorder.PARAMETER, readonly=False).address
    pad = -start % instrumented.slot_bytes
    first, execution = access.FirstAccesses("%nmr_to"), Execution("%nmr_")
    machine.set_up(
        binding, machine=recorded, compiled=instrumented.compiled, more=(start + pad,)
    ).run(listener=Listener(before=execution, access=first, request=first))
    recording = records.align([records.raw(buffer[pad:], instrumented, blocks)])[0]
    factor = (problem.m * problem.n) / (part.m * part.n)
    parsed = counting.machine.kernel(compiled.entry)
    of_pc = sections.sections(counting.machine.module, parsed)
    return Counted(
        problem,
        part,
        factor,
        sms,
        binding.grid,
        chosen,
        compiled,
        instrumented,
        found,
        tuple(of_pc),
        recording,
        parsed,
        first.found,
        execution,
        drawn.word,
    )


def cut(
    problem: Problem, candidate: Candidate, device: Device, work: float = WORK
) -> tuple[Problem, int]:
    """(the problem, or a part of it that takes ``work`` seconds at most, or the least that stands
    for it; the SMs that would run it)"""

    def cost(m: int, n: int) -> float:
        share = m * n / (problem.m * problem.n)
        grid = (max(1, round(math.prod(candidate.grid) * share)), 1, 1)
        part = replace(problem, m=m, n=n)
        return expected.launch(part, replace(candidate, grid=grid)).seconds

    if cost(problem.m, problem.n) <= work:
        return problem, device.sms
    tiles = candidate.figures.get("tiles", {})
    columns = -(-problem.n // tiles["n"]) if "n" in tiles else 64
    rows = -(-problem.m // tiles["m"]) if "m" in tiles else 16
    if problem.kind == EXPERTS:  # fewer tokens would go to fewer experts
        rows = problem.m
    columns = -(-columns // 64) * 64
    for sms in (8, 4, 2, 1):
        n = min(problem.n, max(columns, round(problem.n * sms / device.sms / columns) * columns))
        if cost(problem.m, n) <= work or sms == 1:
            break
    m = problem.m
    while m > rows and cost(m, n) > work:
        m = max(rows, m // 2)
    share = m * n / (problem.m * problem.n)
    return replace(problem, m=m, n=n), max(1, round(device.sms * share))
