"""A kernel on this machine's GPU, looked at: its time, and where its warps spend it. Needs torch.

``observe(problem, candidate)`` -> ``Observation``. The plain kernel, the instrumented build of it and cuBLAS are timed in the same rounds, cold L2 (``bench``); the last launches of the
instrumented one are read. Both builds come from the same PTX with line numbers, which change no instruction.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass


from numba_marlin import compiler, driver, launch
from numba_marlin.bench import contenders, operands
from numba_marlin.bench.clocks import ClockWatch
from numba_marlin.bench.measure import checked, least_launches
from numba_marlin.bench.timing import GraphTimer, interleave, torch_on_gpu
from numba_marlin.heuristics import Candidate, Problem, find_kernel
from numba_marlin.inspect import recorder, records

CAPACITY = 4088  # sections a warp: slots of 32 KiB
LAUNCHES = 8  # read: the last of a replay
MOST_BYTES = 2 << 30  # of their buffers
ROUNDS = 9


@dataclass(frozen=True, eq=False)
class Observation:
    """us: of the plain kernel, of the instrumented one, of cuBLAS, medians of the rounds; ``rounds`` of the plain one. recordings: of launches that followed each other."""

    problem: Problem
    candidate: Candidate
    compiled: object
    instrumented: recorder.Instrumented
    us: float
    instrumented_us: float
    cublas_us: float
    rounds: tuple[float, ...]
    recordings: tuple[records.Recording, ...]
    clocks: dict | None
    resident_blocks: int

    @property
    def timeline_us(self) -> float:
        """What the parts of the timeline add up to."""
        return sum(records.shares(list(self.recordings)).values()) / 1e3

    @property
    def overhead(self) -> float:
        return self.instrumented_us / self.us - 1


def observe(problem: Problem, candidate: Candidate, rounds: int = ROUNDS, capacity: int = CAPACITY) -> Observation:
    """CapabilityMissing without torch or a GPU; WrongResult if the kernel, plain or instrumented, multiplies wrongly."""
    torch = torch_on_gpu()
    torch.manual_seed(0)
    definition, config = find_kernel(candidate.kernel), candidate.config
    ordinal = torch.cuda.current_device()
    compiled = compiler.build(definition, config, target=driver.describe(ordinal).target, line_info=True)
    instrumented = recorder.instrument(compiled, capacity)
    blocks = math.prod(candidate.grid)
    count = max(3, min(LAUNCHES, MOST_BYTES // instrumented.nbytes(blocks)))
    memory, addresses = _buffers(torch, instrumented, blocks, count)
    weights = operands.random_weights(problem)
    batch = operands.random_batch(weights, problem.m)
    plain = contenders.kernel(problem, candidate, weights, batch, compiled=compiled)
    recorded = contenders.kernel(problem, candidate, weights, batch, compiled=instrumented.compiled, more=tuple((address,) for address in addresses))
    peer = contenders.cublas(weights, batch)
    for each in (plain, recorded):
        checked(each, batch)
    clocks = ClockWatch()
    clocks.settle()
    timers = {name: GraphTimer(each.launch, least=max(count, least_launches(each))) for name, each in (("plain", plain), ("recorded", recorded), ("cublas", peer))}
    times = interleave(timers, rounds, clocks.sample)
    timers["recorded"].replay()
    torch.cuda.synchronize()
    last = timers["recorded"].launches
    read = [memory[addresses[index % count] - memory.data_ptr():][: instrumented.nbytes(blocks)].cpu().numpy() for index in range(last - count, last)]
    found = records.align([records.raw(each, instrumented, blocks) for each in read])
    us = {name: statistics.median(each) for name, each in times.items()}
    resident = launch.launcher(compiled, ordinal, **definition.launch_options(config)).resident_blocks
    return Observation(
        problem, candidate, compiled, instrumented, us["plain"], us["recorded"], us["cublas"], tuple(times["plain"]), tuple(found), clocks.summary(), resident,
    )


def _buffers(torch, instrumented: recorder.Instrumented, blocks: int, count: int):
    """(one tensor, the addresses in it of a buffer for each launch)."""
    slot = instrumented.slot_bytes
    memory = torch.zeros(count * instrumented.nbytes(blocks) + slot, dtype=torch.uint8, device="cuda")
    first = memory.data_ptr() + -memory.data_ptr() % slot
    return memory, [first + index * instrumented.nbytes(blocks) for index in range(count)]
