"""The three ways to run a product: on a GPU, on the PTX machine, or as the float64 reference.

Each takes a checked problem and returns the result with a ``RunInfo`` that says what ran where.
``api.py`` checks and chooses; ``compiler`` is asked here for kernels, and kept out of everything
else. The two that run a kernel run the same PTX.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass

from numba_marlin import compiler as compiler_room
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import driver
from numba_marlin.hardware import devices
from numba_marlin.heuristics import Candidate, Problem, candidate, find_kernel, kernel_of, rank

BACKENDS = ("auto", "cuda", "emulator", "reference")


@dataclass(frozen=True)
class RunInfo:
    """What ``matmul`` did. ``seconds`` is host wall time of the call, with compilation left out; on
    a GPU it includes no wait unless the arrays were on the host; None for a call like one before,
    which is not timed (``repeat``). ``instructions``: warp instructions the machine executed."""

    backend: str
    reason: str
    problem: Problem
    device: str
    seconds: float | None
    candidate: Candidate | None = None
    compiled: object | None = None
    instructions: int | None = None

    def to_dict(self) -> dict:
        return {
            "backend": self.backend,
            "reason": self.reason,
            "problem": asdict(self.problem),
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

    def compile(self, compiler: str):
        """The CompiledKernel of the candidate for the device; from memory or the disk cache if it
        is there."""
        return compiled_kernel(
            self.candidate.kernel, self.candidate.config, self.device.target, compiler
        )


def plan(
    problem: Problem,
    backend: str,
    kernel: str | None = None,
    config: object = None,
    ordinal: int = 0,
) -> Plan:
    """Choose backend, device and candidate. CapabilityMissing if a GPU was asked for by name and
    cannot be used."""
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} must be one of {', '.join(BACKENDS)}")
    if kernel is None and config is not None:
        kernel = kernel_of(config)
    reason = "asked for"
    if backend in ("auto", "cuda"):
        probe = driver.probe()
        if backend == "cuda" and not probe.usable:
            raise CapabilityMissing(f"backend='cuda': {probe.reason}")
        if backend == "auto":
            reason = (
                "a usable CUDA device" if probe.usable else f"no usable CUDA device: {probe.reason}"
            )
            backend = "cuda" if probe.usable else "emulator"
    if backend == "reference":
        if kernel is not None:
            find_kernel(kernel)  # a wrong name is wrong here too
        return Plan(backend, reason, None, None)
    device = driver.describe(ordinal) if backend == "cuda" else devices.MODEL
    chosen = (
        _default_candidate(problem, device, kernel)
        if config is None
        else candidate(problem, device, kernel, config)
    )
    return Plan(backend, reason, device, chosen)


@functools.lru_cache(maxsize=4096)
def _default_candidate(problem: Problem, device: devices.Device, kernel: str | None) -> Candidate:
    """Remembered: ranking takes longer than a small product on a GPU."""
    return rank(problem, device)[0] if kernel is None else candidate(problem, device, kernel)


@functools.lru_cache(maxsize=256)
def compiled_kernel(kernel: str, config: object, target: str, compiler: str):
    """The compiled kernel, from memory, from the disk cache, or built now."""
    return compiler_room.build(find_kernel(kernel), config, target=target, compiler=compiler)
