"""A timing model for use without a GPU: the time of a launch and the shares of its sections, with
the model's error against measurements.

The time of a launch is ``heuristics``' prediction, which was fitted to an H200, for kernels that
have one (ampere, decode, wgmma). For others it is a lower bound: the launch overhead plus the time
of all work or of all bytes, whichever is longer. A section's work, in cycles of an SM, is the
largest of its demands on three units, from the machine's counts: warp instructions / 4
(schedulers), wavefronts of shared memory / 1, and operations of tensor cores / their peak per cycle
(mma.sync reaches 62% of it on Hopper, wgmma all). If the bytes that must move take longer than all
work, at the memory's full rate, the difference is waiting for copies (in kernels that have such a
section). The rest of the time, other than the launch overhead, is "latency": memory that is not at
its full rate, and warps that wait for each other. In this model nothing but bytes overlaps with
work, so shares of short sections are rough.

``error()`` compares the predictions with the times that experiments 01_faithful and 02_hopper
recorded (``data.measured``).
"""

from __future__ import annotations

import functools
import statistics
from dataclasses import asdict, dataclass

from numba_marlin.counts.instructions import tensor_bits
from numba_marlin.data import measured
from numba_marlin.hardware.devices import Device, device
from numba_marlin.hardware.limits import SM_SCHEDULERS
from numba_marlin.heuristics import Candidate, Problem, candidate, find_kernel
from numba_marlin.profile.instrument.records import LAUNCH
from numba_marlin.profile.instrument.sections import SECTIONS
from numba_marlin.profile.sources.on_machine import Counted

MMA_SHARE = 0.62  # of a Hopper's tensor peak that mma.sync reaches
FIELDS = ("m", "n", "k", "group_size", "dtype", "bits", "zeros", "scale_dtype", "bias")
LATENCY = "latency"
# from the end of one launch to the first warp of the next one in a graph, on an H200
# (experiments/10_profile)
LAUNCH_US = 1.3


@dataclass(frozen=True)
class Modelled:
    """The time of a launch in us; ``parts``: that of each section, and of LATENCY; ``fitted``:
    whether the time is a prediction and not a lower bound."""

    us: float
    parts: dict[str, float]
    fitted: bool


def factor_bits(counted: Counted) -> int:
    """Bits of a factor that the kernel's tensor-core instructions multiply."""
    return tensor_bits(row.text for row in counted.counts.instructions)


def peak_flops(counted: Counted, device: Device) -> float | None:
    """Operations/s of the tensor cores that the kernel uses: those for block-scaled factors have a
    peak of their own. None if no source states it."""
    return device.peak_flops(factor_bits(counted))


def model(counted: Counted, device: Device) -> Modelled:
    clock = (device.clock_mhz or 1500) * 1e6
    work = {section.name: 0.0 for section in SECTIONS}
    peak = (peak_flops(counted, device) or 1e14) / device.sms / clock
    tallies: dict = {}
    for row, section in zip(counted.counts.instructions, counted.sections):
        tallies[section] = tallies[section] + row.tally if section in tallies else row.tally
    wgmma = any(row.text.startswith("wgmma.mma_async") for row in counted.counts.instructions)
    slowed = "wgmma" in device.architecture.matrix_instructions and not wgmma
    reached = peak * (MMA_SHARE if slowed else 1.0)
    for section, tally in tallies.items():
        cycles = max(tally.executed / SM_SCHEDULERS, tally.shared.wavefronts, tally.flops / reached)
        work[section] = cycles * counted.factor / device.sms / clock * 1e6
    predicted = counted.candidate.figures.get("predicted_us")
    memory = (
        counted.problem.least_bytes / device.bandwidth_bytes * 1e6
        if device.bandwidth_bytes
        else 0.0
    )
    total = predicted if predicted is not None else max(sum(work.values()), memory) + LAUNCH_US
    busy = sum(work.values())
    if busy > total:  # more than it is predicted to take: shares are what is left to say
        work = {name: value * total / busy for name, value in work.items()}
    launch = min(LAUNCH_US, max(0.0, total - busy))
    left = max(0.0, total - busy - launch)
    copies = min(left, max(0.0, memory - busy)) if "wait_copies" in tallies else 0.0
    parts = {name: value for name, value in work.items() if value}
    parts |= {
        LAUNCH: launch,
        "wait_copies": copies + parts.get("wait_copies", 0.0),
        LATENCY: left - copies,
    }
    return Modelled(
        total, {name: value for name, value in parts.items() if value}, predicted is not None
    )


@dataclass(frozen=True)
class Error:
    """The error of predictions against ``cells`` measured times: mean and largest |predicted /
    measured - 1|; of ``kernel`` alone if one was asked for."""

    cells: int
    mean: float
    largest: float
    device: str

    def __str__(self) -> str:
        return (
            f"off by {self.mean:.0%} on average, {self.largest:.0%} at most, over {self.cells}"
            f" measured cells ({self.device})"
        )


@functools.cache
def error(kernel: str | None = None) -> Error | None:
    """The model's ``Error``; None for a kernel without predictions, or without recorded times."""
    off, where = [], "H200"
    for row in measured("weight_times"):
        found = _predicted(row) if kernel in (None, row["kernel"]) else None
        if found:
            off.append(abs(found / row["us"] - 1))
            where = row["device"]
    return Error(len(off), statistics.mean(off), max(off), where) if off else None


def recorded(kernel: str, problem, config) -> dict | None:
    """The row of data/measured/block_times for this product in this configuration; None if nothing
    was measured."""
    cell = kernel, problem.m, problem.n, problem.k, asdict(config)
    for row in measured("block_times"):
        if (row["kernel"], row["m"], row["n"], row["k"], row["config"]) == cell:
            return row
    return None


def _predicted(row: dict) -> float | None:
    try:
        config = find_kernel(row["kernel"]).config_type(**row["config"])
        problem = Problem(
            **{name: row[name] for name in FIELDS if name in row},
            batch_invariant=bool(row.get("batch_invariant")),
        )
        found: Candidate = candidate(problem, device("H200"), row["kernel"], config)
    # a kernel that is no rung, or a configuration that there is no more
    except (ValueError, TypeError):
        return None
    return found.figures.get("predicted_us")
