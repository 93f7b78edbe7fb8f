"""A timing model for use without a GPU: the time of a launch and the shares of its sections, with
the model's error against measurements.

The time of a launch is ``heuristics``' prediction, which was fitted to an H200, for kernels that
have one (ampere, decode, wgmma). For others it is what an experiment recorded of the same product
on this device (``recorded``) or, if none did, a lower bound: the launch overhead plus the time of
all work or of all bytes, whichever is longer. A section's work, in cycles of an SM, is the
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
import math
import statistics
from dataclasses import dataclass

from numba_marlin.counts.instructions import tensor_bits
from numba_marlin.data import measured
from numba_marlin.hardware.devices import Device, device, specified
from numba_marlin.hardware.limits import SM_SCHEDULERS
from numba_marlin.heuristics import Candidate, Problem, candidate, find_kernel
from numba_marlin.problems import OPERANDS
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
    """The time of a launch in us, and of each section and LATENCY in ``parts``. ``fitted``: whether
    the model predicts it; else it is that of ``recorded``, a row of an experiment on this device,
    or a lower bound. ``model_us``: the prediction or the bound."""

    us: float
    parts: dict[str, float]
    fitted: bool
    model_us: float
    recorded: dict | None = None

    @property
    def is_bound(self) -> bool:
        return not self.fitted and self.recorded is None


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
    told = predicted if predicted is not None else max(sum(work.values()), memory) + LAUNCH_US
    candidate, row = counted.candidate, None
    if predicted is None:
        row = recorded(candidate.kernel, counted.problem, candidate.config, device)
    total = told if row is None else row["us"]
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
    listed = {name: value for name, value in parts.items() if value}
    return Modelled(total, listed, predicted is not None, told, row)


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

    def on(self, other: Device) -> str:
        """What it says of predictions for a device: nothing, if the times are another one's."""
        if specified(self.device) == specified(other.name) is not None:
            return str(self)
        return (
            f"fitted to {self.device}; how far off it is on {other.name} is not known: no time was"
            " measured there"
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


def recorded(kernel: str, problem, config, on: Device | None = None) -> dict | None:
    """The newest row of data/measured for this product in this configuration, on one device if
    ``on`` is given; None if nothing was measured."""
    found = [
        row
        for row in times_of(problem)
        if row["kernel"] == kernel
        and is_config(row["config"], config)
        and (on is None or is_of(row, on.name))
    ]
    return max(reversed(found), key=lambda row: row["date"], default=None)


def is_config(fields: dict, config) -> bool:
    """Whether a recorded configuration is this one. Fields that there were not yet when it was
    recorded have their defaults."""
    try:
        return type(config)(**fields) == config
    except (TypeError, ValueError):  # of a kernel that has changed since
        return False


def times_of(problem) -> list[dict]:
    """The recorded times of a product, by any kernel on any device."""
    if problem.kind == OPERANDS:
        size = problem.m, problem.n, problem.k
        return [row for row in measured("block_times") if (row["m"], row["n"], row["k"]) == size]
    return [row for row in of_size(problem.m, problem.n, problem.k) if problem_of(row) == problem]


def of_size(m: int, n: int, k: int) -> list[dict]:
    """The recorded times of products with a packed weight of this size, whatever its format."""
    return [row for row in weight_rows() if (row["m"], row["n"], row["k"]) == (m, n, k)]


def weight_rows() -> list[dict]:
    return [*measured("weight_times"), *measured("ladder_times")]


def problem_of(row: dict) -> Problem:
    """The product with a packed weight that a row is of."""
    given = {name: row[name] for name in FIELDS if name in row}
    return Problem(**given, batch_invariant=bool(row.get("batch_invariant")))


def nearest(kernel: str, problem, on: Device) -> dict | None:
    """Of a kernel's recorded times on a device, that of the product nearest in size."""
    rows = [
        row
        for name in ("weight_times", "ladder_times", "block_times")
        for row in measured(name)
        if row["kernel"] == kernel and is_of(row, on.name)
    ]

    def distance(row: dict) -> float:
        return sum(abs(math.log(row[name] / getattr(problem, name))) for name in ("m", "n", "k"))

    return min(rows, key=distance, default=None)


def is_of(row: dict, device: str) -> bool:
    """Whether a recorded row is of a device by this name, or by the longer one of its driver."""
    return specified(row["device"]) == specified(device) is not None


def _predicted(row: dict) -> float | None:
    try:
        config = find_kernel(row["kernel"]).config_type(**row["config"])
        found: Candidate = candidate(problem_of(row), device("H200"), row["kernel"], config)
    # a kernel that is no rung, or a configuration that there is no more
    except (ValueError, TypeError):
        return None
    return found.figures.get("predicted_us")
