"""Observes a kernel on this computer's GPU: its time, and its distribution over sections. Needs
torch.

``observe(problem, candidate)`` -> ``Observation``. The plain kernel, its instrumented builds
(``totals``: how long in each section; ``recorder``: when) and cuBLAS are timed in the same rounds
with a cold L2 (``bench``). Launches are kept apart: if they overlapped, the time from one end to
the next would be less than a launch takes. Totals are read after every round, events once. All
builds come from the same PTX with line numbers, which change no instruction. The timeline does not
show the plain kernel's time: the duration comes from the build that does not separate waits from
work, the breakdown from the builds that do (``totals.divided``). If the former is not faster, the
build that separates everything is used unchanged.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

from numba_marlin import compiler
from numba_marlin.bench import contenders, operands
from numba_marlin.bench.clocks import ClockWatch
from numba_marlin.bench.measure import checked, least_launches
from numba_marlin.bench.timing import GraphTimer, interleave, torch_on_gpu
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import driver, launch
from numba_marlin.execution.plan import target_for
from numba_marlin.heuristics import Candidate, Problem
from numba_marlin.kernels.registry import find_kernel
from numba_marlin.problems import BlockProblem
from numba_marlin.profile.instrument import recorder, records, totals
from numba_marlin.profile.sources.device_state import Monitor

CAPACITY = 4088  # sections per warp: slots of 32 KiB
LAUNCHES, READ = 8, 64  # launches of a replay, its last, of which events and totals are kept
MOST_BYTES = 2 << 30  # of the buffers
ROUNDS = 9
WATCHED = 1.6  # seconds of launches that NVML looks at


@dataclass(frozen=True, eq=False)
class Observation:
    """One launch, timed and divided into sections on a GPU. Times are microseconds, medians of the
    rounds; those of instrumented builds, ``alone_us`` and cuBLAS are of launches kept apart."""

    problem: Problem | BlockProblem
    candidate: Candidate
    compiled: object
    #: The build that adds up cycles per section.
    light: recorder.Instrumented
    #: The build that records every event.
    detailed: recorder.Instrumented
    #: Of the plain kernel as it is launched, overlapping where it can.
    us: float
    #: Of the plain kernel, launches kept apart.
    alone_us: float
    #: Of ``light``.
    light_us: float
    #: Of ``detailed``.
    detailed_us: float
    #: Of a build that records ends alone.
    ends_us: float | None
    #: Of the light build that does not tell waits from work.
    work_us: float | None
    #: Of the light builds that tell one kind of wait, by wait.
    finer_us: dict[str, float]
    #: Of cuBLAS on the same sizes.
    cublas_us: float
    #: Of the plain kernel, each.
    rounds: tuple[float, ...]
    #: Where the time of a launch goes.
    shares_us: dict[str, float]
    #: The same as the light build saw it that tells everything apart.
    raw_us: dict[str, float]
    #: Of launches that followed each other.
    recordings: tuple[records.Recording, ...]
    clocks: dict | None
    resident_blocks: int
    state: dict

    @property
    def timeline_us(self) -> float:
        """The sum of the parts."""
        return sum(self.shares_us.values())

    @property
    def raw_timeline_us(self) -> float:
        return sum(self.raw_us.values())


class Buffers:
    """Memory for the records of ``count`` launches; launch ``index`` of a graph writes to number
    ``index % count``."""

    def __init__(self, torch, build: recorder.Instrumented, blocks: int, count: int) -> None:
        self.build, self.blocks, self.count, self.nbytes = (
            build,
            blocks,
            count,
            build.nbytes(blocks),
        )
        self.memory = torch.zeros(
            count * self.nbytes + build.slot_bytes, dtype=torch.uint8, device="cuda"
        )
        self.offset = -self.memory.data_ptr() % build.slot_bytes

    @property
    def arguments(self) -> tuple[tuple[int], ...]:
        return tuple(
            (self.memory.data_ptr() + self.offset + number * self.nbytes,)
            for number in range(self.count)
        )

    def read(self, raw, launches: int) -> list:
        """The last launches of a graph of this many, in order, each as ``raw`` returns it."""
        host = self.memory.cpu().numpy()[self.offset :]
        numbers = [index % self.count for index in range(max(0, launches - self.count), launches)]
        return [
            raw(host[number * self.nbytes : (number + 1) * self.nbytes], self.build, self.blocks)
            for number in numbers
        ]


class ReadTimer:
    """A GraphTimer whose records are read after every replay: ``found`` has the ``shares`` of each
    replay, ``shares_us`` their medians."""

    def __init__(self, timer: GraphTimer, buffers: Buffers) -> None:
        self.timer, self.buffers, self.found = timer, buffers, []

    def replay(self, during=None) -> float:
        us = self.timer.replay(during)
        self.found.append(
            totals.shares(
                totals.align(self.buffers.read(totals.raw, self.timer.launches)), apart=True
            )
        )
        return us

    @property
    def shares_us(self) -> dict[str, float]:
        return {
            name: statistics.median(each[name] for each in self.found) / 1e3
            for name in self.found[0]
        }


def observe(
    problem: Problem | BlockProblem,
    candidate: Candidate,
    rounds: int = ROUNDS,
    capacity: int = CAPACITY,
    ends: bool = False,
) -> Observation:
    """ends: also time a build that records only its warps' ends. Raises CapabilityMissing without
    torch or a GPU, and WrongResult if the kernel, plain or instrumented, multiplies wrongly."""
    torch = torch_on_gpu()
    torch.manual_seed(0)
    definition, config = find_kernel(candidate.kernel), candidate.config
    ordinal = torch.cuda.current_device()
    compiled = compiler.build(
        definition,
        config,
        target=target_for(definition, driver.describe(ordinal)),
        line_info=True,
    )
    blocks = math.prod(candidate.grid)
    light, interrupts = totals.builds(compiled)
    builds = {**light, "detailed": recorder.instrument(compiled, capacity)}
    if ends:
        builds["ends"] = totals.instrument(compiled, ends_only=True)
    counts = {name: READ for name in builds} | {
        "detailed": max(3, min(LAUNCHES, MOST_BYTES // builds["detailed"].nbytes(blocks)))
    }
    buffers = {name: Buffers(torch, build, blocks, counts[name]) for name, build in builds.items()}
    entrants = _entrants(problem, candidate, compiled, builds, buffers)
    clocks = ClockWatch()
    clocks.settle()
    timers: dict = {
        name: GraphTimer(each.launch, least=max(8, least_launches(each)))
        for name, each in entrants.items()
    }
    for name in light:
        timers[name] = ReadTimer(timers[name], buffers[name])
    times = interleave(timers, rounds, clocks.sample)
    recordings = records.align(buffers["detailed"].read(records.raw, timers["detailed"].launches))
    us = {name: statistics.median(each) for name, each in times.items()}
    shares = raw = timers[totals.LIGHT].shares_us
    if us.get(totals.WORK, math.inf) < us[totals.LIGHT]:
        shares = totals.divided(
            timers[totals.WORK].shares_us,
            {wait: timers.get(wait, timers[totals.LIGHT]).shares_us for wait in interrupts},
            interrupts,
        )
    resident = launch.launcher(
        compiled, ordinal, **definition.launch_options(config)
    ).resident_blocks
    state = watched(timers["plain"].replay, uuid_of(torch, ordinal))
    return Observation(
        problem,
        candidate,
        compiled,
        builds[totals.LIGHT],
        builds["detailed"],
        us["plain"],
        us["alone"],
        us[totals.LIGHT],
        us["detailed"],
        us.get("ends"),
        us.get(totals.WORK),
        {wait: us[wait] for wait in interrupts if wait in us},
        us["cublas"],
        tuple(times["plain"]),
        shares,
        raw,
        tuple(recordings),
        clocks.summary(),
        resident,
        state,
    )


def _entrants(
    problem: Problem, candidate: Candidate, compiled, builds: dict, buffers: dict
) -> dict:
    """The contenders by name; the results of all but cuBLAS have been checked."""
    weights = operands.random_weights(problem)
    batch = operands.random_batch(weights, problem.m)
    given = (problem, candidate, weights, batch)
    entrants = {
        name: contenders.kernel(*given, compiled=compiled, overlap=name == "plain")
        for name in ("plain", "alone")
    }
    entrants |= {
        name: contenders.kernel(
            *given, compiled=build.compiled, more=buffers[name].arguments, overlap=False
        )
        for name, build in builds.items()
    }
    for each in entrants.values():
        checked(each, batch)
    return entrants | {"cublas": contenders.cublas(weights, batch)}


def watched(work, uuid: str | None, seconds: float = WATCHED, samples: int = 8) -> dict:
    """What NVML says while ``work()`` is called repeatedly: {"name", "samples", "missing",
    "throttle", "sm_mhz"}, or {"missing": why not}."""
    try:
        monitor = Monitor(uuid=uuid)
    except CapabilityMissing as error:
        return {"missing": str(error)}
    found, start = [], time.monotonic()
    while len(found) < samples:
        while time.monotonic() - start < (len(found) + 1) * seconds / samples:
            work()
        found.append(monitor.sample())
    monitor.close()
    throttle = list(dict.fromkeys(reason for each in found for reason in each.throttle))
    return {
        "name": monitor.name,
        "samples": [each.to_dict() for each in found],
        "missing": monitor.missing,
        "throttle": throttle,
        "sm_mhz": found[-1].values.get("sm_mhz"),
    }


def uuid_of(torch, ordinal: int) -> str | None:
    uuid = getattr(torch.cuda.get_device_properties(ordinal), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"
