"""Planning: a problem and a device -> backend, kernel, configuration and grid, with the reason.

The PTX machine and a GPU run the same PTX. The machine models a Hopper (``devices.MODEL``); for a
kernel that needs another architecture's instructions it models that architecture.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from numba_marlin import compiler as compiler_room
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import driver
from numba_marlin.hardware import devices
from numba_marlin.hardware.targets import target_named
from numba_marlin.heuristics import Candidate, candidate, has_instructions, kernel_of, rank
from numba_marlin.kernels.language.definition import Configured
from numba_marlin.kernels.registry import find_definition, find_kernel, kernels
from numba_marlin.wording import html_table

log = logging.getLogger("numba_marlin")
BACKENDS = ("auto", "cuda", "emulator", "reference")


@dataclass(frozen=True)
class RunInfo:
    """How a product ran.

    backend: "cuda", "emulator" or "reference"; reason: why. problem: the WeightProblem or
    BlockProblem. device: description of the device. seconds: host wall time of the call without
    compilation; for device arrays it does not include the kernel's time, since the call is
    asynchronous; None for a repetition of an earlier call (``repeat``), which is not timed.
    candidate: kernel, configuration and grid; compiled: the CompiledKernel; both None for the
    reference. instructions: warp instructions that the PTX machine executed, else None.
    """

    backend: str
    reason: str
    problem: Any
    device: str
    seconds: float | None
    candidate: Candidate | None = None
    compiled: object | None = None
    instructions: int | None = None

    def _said(self) -> dict[str, str]:
        """What a reader wants to know, in order."""
        candidate, found = self.candidate, {"problem": self.problem.in_words()}
        if candidate is not None:
            found["kernel"] = f"{candidate.kernel}, grid {candidate.grid_text}"
            found["configuration"] = candidate.config_text
        found |= {"backend": f"{self.backend}: {self.reason}", "device": self.device}
        if self.seconds is not None:
            found["time of the call"] = f"{self.seconds * 1e3:.3g} ms"
        if self.instructions is not None:
            found["warp instructions"] = f"{self.instructions:,}"
        return found

    def __repr__(self) -> str:
        said = self._said()
        said.pop("configuration", None)
        return f"<RunInfo {'; '.join(f'{name}: {text}' for name, text in said.items())}>"

    def _repr_html_(self) -> str:
        return html_table(self._said().items())

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
    """The backend for a product, the reason, and the candidate (None: the reference)."""

    backend: str
    reason: str
    device: devices.Device | None
    candidate: Candidate | None

    @property
    def definition(self):
        return find_kernel(self.candidate.kernel)

    @property
    def launches(self) -> tuple[Configured, ...]:
        """The kernel, and the passes behind it."""
        definition, config = self.definition, self.candidate.config
        return (Configured(definition, config), *definition.behind(config))

    @property
    def target(self) -> str:
        """The target that the kernel is compiled for."""
        return target_for(self.definition, self.device)

    @property
    def strided(self) -> bool:
        """Whether the kernel takes the stride of a's rows."""
        return any(name == "a_stride" for name, _ in self.definition.parameters)

    def compile(self, compiler: str, problem=None):
        """The candidate's CompiledKernel for the device, from memory, the disk cache, or compiled
        now. problem: what needs it, for the log."""
        chosen = self.candidate
        return compiled_kernel(chosen.kernel, chosen.config, self.target, compiler, problem)

    def compile_behind(self, compiler: str, problem=None) -> dict[Configured, Any]:
        """The CompiledKernel of each pass behind the kernel."""
        found = {}
        for each in self.launches[1:]:
            target = target_for(each.definition, self.device)
            name = each.definition.name
            found[each] = compiled_kernel(name, each.config, target, compiler, problem)
        return found

    def info(
        self,
        problem,
        seconds: float | None,
        compiled=None,
        instructions: int | None = None,
        ordinal: int | None = None,
    ) -> RunInfo:
        """The RunInfo of a product that ran by this plan. ordinal: of the GPU."""
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
    whole_n: int | None = None,
) -> Plan:
    """Choose backend, device and candidate. ordinal: the device that holds the arrays, None for the
    host. whole_n: as in ``rank``, which chooses if ``kernel`` is None. CapabilityMissing if
    backend="cuda", or arrays on a device, need a GPU that cannot run the problem; ValueError for an
    unknown backend or kernel."""
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
            find_kernel(kernel)  # an unknown name is an error for the reference too
        return Plan(backend, reason, None, None)
    device = driver.describe(ordinal or 0) if backend == "cuda" else machine_for(kernel)
    chosen = (
        _default_candidate(problem, device, kernel, whole_n)
        if config is None
        else candidate(problem, device, kernel, config)
    )
    return Plan(backend, reason, device, chosen)


def plan_on(problem, device: devices.Device) -> Plan:
    """The plan of a product on a device that need not be there. ValueError, with the reasons, if no
    kernel runs there."""
    return Plan("cuda", "asked for", device, _default_candidate(problem, device, None))


def target_for(definition, device: devices.Device) -> str:
    """The target of a kernel on a device: the device's own, or that of the architecture-specific
    instructions that the kernel uses."""
    return device.target if device.runs(definition.min_arch) else definition.min_arch


def machine_for(kernel: str | None) -> devices.Device:
    """The device that the PTX machine models for a kernel: a Hopper, or the architecture whose
    instructions the kernel needs."""
    needs = "sm_80" if kernel is None else find_kernel(kernel).min_arch
    if devices.MODEL.runs(needs):
        return devices.MODEL
    return replace(devices.MODEL, compute_capability=target_named(needs).capability)


def _missing(problem, kernel: str | None, ordinal: int | None) -> str:
    """Why no GPU can run the problem; empty if one can."""
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
def _default_candidate(
    problem, device: devices.Device, kernel: str | None, whole_n: int | None = None
) -> Candidate:
    """The default candidate, cached because ranking takes longer than a small product on a GPU."""
    if kernel is None:
        return rank(problem, device, whole_n)[0]
    return candidate(problem, device, kernel)


class _Held:
    """A compiled kernel in memory, and the lock of the threads that want it first."""

    def __init__(self):
        self.lock, self.compiled = threading.Lock(), None


@functools.lru_cache(maxsize=256)
def held(kernel: str, config: object, target: str, compiler: str) -> _Held:
    """Where ``compiled_kernel`` keeps a kernel."""
    return _Held()


def compiled_kernel(kernel: str, config: object, target: str, compiler: str, problem=None):
    """The compiled kernel or pass, from memory, from the disk cache, or built now: then the log
    says what the caller waits for, and how long it took."""
    place = held(kernel, config, target, compiler)
    with place.lock:
        if place.compiled is None:
            definition = find_definition(kernel)
            found = compiler_room.load(definition, config, target, compiler)
            place.compiled = found or _built(definition, config, target, compiler, problem)
    return place.compiled


def _built(definition, config, target: str, compiler: str, problem):
    what = f"kernel {definition.name} for {target}"
    why = "" if problem is None else f", which {problem.in_words()} is the first to need"
    log.info("compiling %s%s; numba_marlin.warmup compiles ahead of the first call", what, why)
    start = time.perf_counter()
    compiled = compiler_room.build(definition, config, target=target, compiler=compiler)
    if compiled.shipped:
        log.info("%s came with the package: no compiler is installed", what)
    else:
        log.info("compiled %s in %.1f s", what, time.perf_counter() - start)
    return compiled
