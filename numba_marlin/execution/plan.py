"""What would run where: a problem and a device -> backend, kernel, configuration, grid, and why.

The machine and a GPU run the same PTX. The machine is modelled on a Hopper (``devices.MODEL``); for
a kernel made of another architecture's instructions it plays that architecture.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from numba_marlin import compiler as compiler_room
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import driver
from numba_marlin.hardware import devices
from numba_marlin.hardware.targets import target_named
from numba_marlin.heuristics import Candidate, candidate, has_instructions, kernel_of, rank
from numba_marlin.kernels.registry import find_kernel, kernels

BACKENDS = ("auto", "cuda", "emulator", "reference")


@dataclass(frozen=True)
class RunInfo:
    """What a product did. ``seconds`` is host wall time of the call, with compilation left out; on
    a GPU it includes no wait unless the arrays were on the host; None for a call like one before,
    which is not timed (``repeat``). ``instructions``: warp instructions the machine executed."""

    backend: str
    reason: str
    problem: Any
    device: str
    seconds: float | None
    candidate: Candidate | None = None
    compiled: object | None = None
    instructions: int | None = None

    def to_dict(self) -> dict:
        return {
            "backend": self.backend,
            "reason": self.reason,
            "problem": self.problem.to_dict(),
            "device": self.device,
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "instructions": self.instructions,
            "candidate": None if self.candidate is None else self.candidate.to_dict(),
            "target": getattr(self.compiled, "target", None),
            "compiler": getattr(self.compiled, "compiler", None),
        }


@dataclass(frozen=True)
class Plan:
    """Where a product will run, why there, and as which candidate (None: the reference)."""

    backend: str
    reason: str
    device: devices.Device | None
    candidate: Candidate | None

    @property
    def definition(self):
        return find_kernel(self.candidate.kernel)

    @property
    def target(self) -> str:
        """What the kernel is compiled for."""
        return target_for(self.definition, self.device)

    @property
    def strided(self) -> bool:
        """Whether the kernel is told the distance of a's rows."""
        return any(name == "a_stride" for name, _ in self.definition.parameters)

    def compile(self, compiler: str):
        """The CompiledKernel of the candidate for the device; from memory or the disk cache if it
        is there."""
        return compiled_kernel(self.candidate.kernel, self.candidate.config, self.target, compiler)

    def info(
        self,
        problem,
        seconds: float | None,
        compiled=None,
        instructions: int | None = None,
        ordinal: int | None = None,
    ) -> RunInfo:
        """Of a product that ran so. ordinal: of the GPU."""
        where, device = "CPU, float64", self.device
        if device is not None:
            number = "" if ordinal is None else f"cuda:{ordinal}, "
            where = f"{device.name} ({number}{device.sms} SMs, {device.arch})"
        return RunInfo(
            self.backend,
            self.reason,
            problem,
            where,
            seconds,
            self.candidate,
            compiled,
            instructions,
        )


def plan(
    problem,
    backend: str,
    kernel: str | None = None,
    config: object = None,
    ordinal: int | None = None,
) -> Plan:
    """Choose backend, device and candidate. ordinal: of the device that the arrays are on, None for
    the host. CapabilityMissing if a GPU was asked for by name, or holds the arrays, and cannot run
    the problem."""
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} must be one of {', '.join(BACKENDS)}")
    if kernel is None and config is not None:
        kernel = kernel_of(config)
    reason = "asked for"
    if backend in ("auto", "cuda"):
        missing = _missing(problem, kernel, ordinal)
        on_usable = ordinal is not None and driver.probe().usable
        if missing and (backend == "cuda" or on_usable):
            raise CapabilityMissing(f"backend={backend!r}: {missing}")
        if backend == "auto":
            reason = f"no usable CUDA device: {missing}" if missing else "a usable CUDA device"
            backend = "emulator" if missing else "cuda"
    if backend == "reference":
        if kernel is not None:
            find_kernel(kernel)  # a wrong name is wrong here too
        return Plan(backend, reason, None, None)
    device = driver.describe(ordinal or 0) if backend == "cuda" else machine_for(kernel)
    chosen = (
        _default_candidate(problem, device, kernel)
        if config is None
        else candidate(problem, device, kernel, config)
    )
    return Plan(backend, reason, device, chosen)


def target_for(definition, device: devices.Device) -> str:
    """What a kernel is compiled for, to run on a device: the device's own target, or that of the
    instructions which the kernel is made of."""
    return device.target if device.runs(definition.min_arch) else definition.min_arch


def machine_for(kernel: str | None) -> devices.Device:
    """What the PTX machine plays for a kernel: a Hopper, or the architecture whose instructions it
    is made of."""
    needs = "sm_80" if kernel is None else find_kernel(kernel).min_arch
    if devices.MODEL.runs(needs):
        return devices.MODEL
    return replace(devices.MODEL, compute_capability=target_named(needs).capability)


def _missing(problem, kernel: str | None, ordinal: int | None) -> str:
    """Why no GPU can be used; empty if one can."""
    probe = driver.probe()
    if not probe.usable:
        return probe.reason
    device = driver.describe(ordinal or 0)
    if kernel is not None:
        needs = find_kernel(kernel).min_arch
        found = has_instructions(kernel, device)
        return "" if found else f"{device.name} is {device.arch}, kernel {kernel!r} needs {needs}"
    able = [each for each in kernels(problem.kind) if has_instructions(each.name, device)]
    if any(device.runs(each.min_arch) for each in able):
        return ""
    needs = kernels(problem.kind)[0].min_arch
    by_name = "".join(f"; kernel={each.name!r} runs there, if asked for" for each in able)
    return f"{device.name} is {device.arch}, the kernel needs {needs}{by_name}"


@functools.lru_cache(maxsize=4096)
def _default_candidate(problem, device: devices.Device, kernel: str | None) -> Candidate:
    """Remembered: ranking takes longer than a small product on a GPU."""
    return rank(problem, device)[0] if kernel is None else candidate(problem, device, kernel)


@functools.lru_cache(maxsize=256)
def compiled_kernel(kernel: str, config: object, target: str, compiler: str):
    """The compiled kernel, from memory, from the disk cache, or built now."""
    return compiler_room.build(find_kernel(kernel), config, target=target, compiler=compiler)
