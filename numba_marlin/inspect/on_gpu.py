"""A kernel on this machine's GPU, looked at: its time, and where its warps spend it. Needs torch.

``observe(problem, candidate)`` -> ``Observation``. The plain kernel, its two instrumented builds (``totals``: how long in each section; ``recorder``: when) and cuBLAS are timed in the same rounds,
cold L2 (``bench``), with launches kept apart: where they overlap, the time from one end to the next is less than a launch takes. Totals are read after every round, events once. All builds come from the same PTX with line numbers, which change no instruction.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

from numba_marlin import compiler, driver, launch
from numba_marlin.bench import contenders, operands
from numba_marlin.bench.clocks import ClockWatch
from numba_marlin.bench.measure import checked, least_launches
from numba_marlin.bench.timing import GraphTimer, interleave, torch_on_gpu
from numba_marlin.errors import CapabilityMissing
from numba_marlin.heuristics import Candidate, Problem
from numba_marlin.heuristics.block_scaled import BlockProblem
from numba_marlin.inspect import block_on_gpu, recorder, records, totals
from numba_marlin.inspect.device_state import Monitor
from numba_marlin.inspect.on_machine import definition_of

CAPACITY = 4088  # sections a warp: slots of 32 KiB
LAUNCHES, READ = 8, 64  # launches of a replay, its last, of which events and totals are kept
MOST_BYTES = 2 << 30  # of the buffers
ROUNDS = 9
EVERY = 4  # of so many warps of a block one records in a second light build; that of the two which cost less is believed
WATCHED = 1.6  # seconds of launches that NVML looks at


@dataclass(frozen=True, eq=False)
class Observation:
    """us: of the plain kernel as it is launched, and alone_us with launches kept apart, in a kernel that else begins beside the one before it; of its instrumented builds, kept apart too, and of
    cuBLAS: medians of the rounds; ``rounds`` of the plain one. shares_us: where the time of a launch goes, medians of the rounds;
    recordings: of launches that followed each other. light, detailed: the builds that gave the one and the other; both_us: of the light builds in which all warps record, and
    some; ends_us: of one that records ends alone."""

    problem: Problem | BlockProblem
    candidate: Candidate
    compiled: object
    light: recorder.Instrumented
    detailed: recorder.Instrumented
    us: float
    alone_us: float
    light_us: float
    detailed_us: float
    ends_us: float | None
    both_us: tuple[float, float]
    cublas_us: float
    rounds: tuple[float, ...]
    shares_us: dict[str, float]
    recordings: tuple[records.Recording, ...]
    clocks: dict | None
    resident_blocks: int
    state: dict

    @property
    def timeline_us(self) -> float:
        """What the parts add up to."""
        return sum(self.shares_us.values())


class Buffers:
    """Memory for the records of ``count`` launches; launch ``index`` of a graph writes to number ``index % count``."""

    def __init__(self, torch, build: recorder.Instrumented, blocks: int, count: int) -> None:
        self.build, self.blocks, self.count, self.nbytes = build, blocks, count, build.nbytes(blocks)
        self.memory = torch.zeros(count * self.nbytes + build.slot_bytes, dtype=torch.uint8, device="cuda")
        self.offset = -self.memory.data_ptr() % build.slot_bytes

    @property
    def arguments(self) -> tuple[tuple[int], ...]:
        return tuple((self.memory.data_ptr() + self.offset + number * self.nbytes,) for number in range(self.count))

    def read(self, raw, launches: int) -> list:
        """What ``raw`` makes of the last launches of a graph of so many, in order."""
        host = self.memory.cpu().numpy()[self.offset :]
        numbers = [index % self.count for index in range(max(0, launches - self.count), launches)]
        return [raw(host[number * self.nbytes : (number + 1) * self.nbytes], self.build, self.blocks) for number in numbers]


class ReadTimer:
    """A GraphTimer whose records are read after every replay: ``found`` has ``shares`` of each."""

    def __init__(self, timer: GraphTimer, buffers: Buffers) -> None:
        self.timer, self.buffers, self.found = timer, buffers, []

    def replay(self, during=None) -> float:
        us = self.timer.replay(during)
        self.found.append(totals.shares(totals.align(self.buffers.read(totals.raw, self.timer.launches)), apart=True))
        return us


def observe(problem: Problem | BlockProblem, candidate: Candidate, rounds: int = ROUNDS, capacity: int = CAPACITY, ends: bool = False) -> Observation:
    """ends: also time a build that records its warps' ends alone. CapabilityMissing without torch or a GPU; WrongResult if the kernel, plain or instrumented, multiplies wrongly."""
    torch = torch_on_gpu()
    torch.manual_seed(0)
    definition, config, both = definition_of(candidate.kernel), candidate.config, isinstance(problem, BlockProblem)
    ordinal = torch.cuda.current_device()
    compiled = compiler.build(definition, config, target=definition.min_arch if both else driver.describe(ordinal).target, line_info=True)
    blocks = math.prod(candidate.grid)
    builds = {"light": totals.instrument(compiled), "some": totals.instrument(compiled, every=EVERY), "detailed": recorder.instrument(compiled, capacity)}
    if ends:
        builds["ends"] = totals.instrument(compiled, ends_only=True)
    counts = {"light": READ, "ends": READ, "some": READ, "detailed": max(3, min(LAUNCHES, MOST_BYTES // builds["detailed"].nbytes(blocks)))}
    buffers = {name: Buffers(torch, build, blocks, counts[name]) for name, build in builds.items()}
    entrants = (_of_both if both else _of_weights)(problem, candidate, compiled, builds, buffers)
    clocks = ClockWatch()
    clocks.settle()
    timers: dict = {name: GraphTimer(each.launch, least=max(8, least_launches(each))) for name, each in entrants.items()}
    for name in ("light", "some"):
        timers[name] = ReadTimer(timers[name], buffers[name])
    times = interleave(timers, rounds, clocks.sample)
    recordings = records.align(buffers["detailed"].read(records.raw, timers["detailed"].launches))
    us = {name: statistics.median(each) for name, each in times.items()}
    us["all"], chosen = us["light"], min(("light", "some"), key=lambda name: us[name])
    us["light"], builds["light"], found = us[chosen], builds[chosen], timers[chosen].found
    shares = {name: statistics.median(each[name] for each in found) / 1e3 for name in found[0]}
    resident = launch.launcher(compiled, ordinal, **definition.launch_options(config)).resident_blocks
    state = watched(timers["plain"].replay, uuid_of(torch, ordinal))
    return Observation(
        problem, candidate, compiled, builds["light"], builds["detailed"], us["plain"], us["alone"], us["light"], us["detailed"], us.get("ends"), (us["all"], us["some"]), us["cublas"], tuple(times["plain"]), shares, tuple(recordings),
        clocks.summary(), resident, state,
    )


def _of_weights(problem: Problem, candidate: Candidate, compiled, builds: dict, buffers: dict) -> dict:
    """Contenders by name, all but cuBLAS checked."""
    weights = operands.random_weights(problem)
    batch = operands.random_batch(weights, problem.m)
    entrants = {name: contenders.kernel(problem, candidate, weights, batch, compiled=compiled, overlap=name == "plain") for name in ("plain", "alone")}
    entrants |= {name: contenders.kernel(problem, candidate, weights, batch, compiled=build.compiled, more=buffers[name].arguments, overlap=False) for name, build in builds.items()}
    for each in entrants.values():
        checked(each, batch)
    return entrants | {"cublas": contenders.cublas(weights, batch)}


def _of_both(problem: BlockProblem, candidate: Candidate, compiled, builds: dict, buffers: dict) -> dict:
    """The same of two block-scaled operands, whose kernels never begin beside the launch before."""
    made = block_on_gpu.Operands(problem)
    entrants = {name: block_on_gpu.contender(candidate, made, compiled) for name in ("plain", "alone")}
    entrants |= {name: block_on_gpu.contender(candidate, made, build.compiled, buffers[name].arguments) for name, build in builds.items()}
    for each in entrants.values():
        block_on_gpu.check(each, made)
    return entrants | {"cublas": block_on_gpu.cublas(made)}


def watched(work, uuid: str | None, seconds: float = WATCHED, samples: int = 8) -> dict:
    """What NVML says while ``work()`` is done again and again: {"name", "samples", "missing", "throttle", "sm_mhz"}, or {"missing": why not}."""
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
    return {"name": monitor.name, "samples": [each.to_dict() for each in found], "missing": monitor.missing, "throttle": throttle, "sm_mhz": found[-1].values.get("sm_mhz")}


def uuid_of(torch, ordinal: int) -> str | None:
    uuid = getattr(torch.cuda.get_device_properties(ordinal), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"
