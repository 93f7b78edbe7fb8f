"""Warming up: compile what products will need before the first of them.

``kernels_for`` asks the planner, for every problem and every m, which kernel a product takes, and
says which of them are in the disk cache; ``compile_missing`` compiles the others in processes of
their own (``compiler.workers``) and stores each as soon as it is there. Nothing is launched, and
no GPU is needed.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from numba_marlin import compiler as compiler_room
from numba_marlin.compiler import MissingCompiler
from numba_marlin.compiler.cache import store
from numba_marlin.compiler.cache_directory import cache_directory
from numba_marlin.compiler.compiled import from_bytes
from numba_marlin.compiler.workers import Job, compile_in_processes
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import plan as planning
from numba_marlin.hardware.devices import Device
from numba_marlin.heuristics.gated import launched
from numba_marlin.kernels.registry import find_definition
from numba_marlin.wording import html_table

log = logging.getLogger("numba_marlin")
MOST_PLANS = 1 << 16  # problems times values of m: minutes, at some milliseconds each
CACHED, COMPILED, FAILED = "cached", "compiled", "failed"


@dataclass
class _Need:
    """What one kernel is needed for."""

    m: set[int] = field(default_factory=set)
    problems: dict[Any, Any] = field(default_factory=dict)  # as given -> with the first such m


@dataclass(frozen=True)
class Needed:
    """A kernel that products will need. m: the rows for which it is chosen, ascending; problems:
    those that choose it, at the first such m; state: "cached" (it was compiled before), "compiled",
    "failed", or None while nothing was done; seconds: of compilation; error: why it failed."""

    job: Job
    m: tuple[int, ...]
    problems: tuple[Any, ...]
    state: str | None = None
    seconds: float | None = None
    error: str | None = None

    @property
    def m_text(self) -> str:
        """ "1-8, 33-48" """
        return ", ".join(f"{low}-{high}" if low < high else f"{low}" for low, high in runs(self.m))

    def to_dict(self) -> dict:
        return {
            "kernel": self.job.kernel,
            "config": asdict(self.job.config),
            "target": self.job.target,
            "compiler": self.job.compiler,
            "m": [list(each) for each in runs(self.m)],
            "problems": [each.to_dict() for each in self.problems],
            "state": self.state,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "error": self.error,
        }


@dataclass(frozen=True)
class WarmupReport:
    """What a warm-up did. device: what it was for, in words; kernels: everything that is needed;
    refused: layer -> why no kernel runs it; directory: of the disk cache; seconds: in all."""

    device: str
    kernels: tuple[Needed, ...]
    refused: dict[str, str]
    directory: Path
    seconds: float

    def _number(self, state: str) -> int:
        return sum(each.state == state for each in self.kernels)

    @property
    def cached(self) -> int:
        """Kernels that were compiled before."""
        return self._number(CACHED)

    @property
    def compiled(self) -> int:
        """Kernels that were compiled now."""
        return self._number(COMPILED)

    @property
    def failed(self) -> int:
        """Kernels that could not be compiled."""
        return self._number(FAILED)

    @property
    def ok(self) -> bool:
        """Whether every layer runs, and no call will wait for a compiler."""
        return not self.refused and not self.failed

    def __repr__(self) -> str:
        more = f", {self.failed} FAILED" if self.failed else ""
        if self.refused:
            more += f", no kernel for {len(self.refused)} of the layers"
        return (
            f"<WarmupReport of kernels for {self.device}: {len(self.kernels)} needed,"
            f" {self.cached} cached, {self.compiled} compiled{more}, in {self.seconds:.1f} s>"
        )

    def _repr_html_(self) -> str:
        rows = [
            (
                *(each.job.kernel, each.job.target, each.m_text, each.state),
                "" if each.seconds is None else f"{each.seconds:.1f}",
                each.error or "",
            )
            for each in self.kernels
        ]
        return html_table(rows, ("kernel", "target", "m", "", "seconds", ""))

    def to_dict(self) -> dict:
        return {
            "device": self.device,
            "directory": str(self.directory),
            "cached": self.cached,
            "compiled": self.compiled,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "kernels": [each.to_dict() for each in self.kernels],
            "refused": self.refused,
        }


@dataclass(frozen=True)
class Choice:
    """What ``kernels_for`` found. device: in words; refused: as in WarmupReport."""

    device: str
    kernels: tuple[Needed, ...]
    refused: dict[str, str]


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """(first, last) of every run of neighbours in ascending numbers."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def kernels_for(
    problems: dict[str, Any],
    m: tuple[int, ...] | None,
    device: Device | None,
    compiler: str,
    refused: dict[str, str] | None = None,
) -> Choice:
    """Choose kernels. problems: name -> problem; m: rows to choose for, None: each problem's own.
    device: None for where a product of host arrays would run now. refused: what is known to run
    nowhere; what no kernel runs joins it. None: that is a ValueError."""

    def planned(problem) -> planning.Plan:
        if device is None:
            return planning.plan(problem, "auto")
        return planning.plan_on(problem, device)

    named = collections.defaultdict(list)
    for name, problem in problems.items():
        named[problem].append(name)
    if len(named) * len(m or [1]) > MOST_PLANS:
        raise ValueError(
            f"{len(named)} different problems and {len(m or [1])} values of m must be at most"
            f" {MOST_PLANS} together: leave some values of m out"
        )
    needs: dict[Job, _Need] = collections.defaultdict(_Need)
    places = {} if device is None else {f"{device.name} ({device.arch})": None}
    turned_down = dict(refused or {})
    for problem, names in named.items():
        try:
            for rows in m or (problem.m,):
                each = replace(problem, m=rows)
                first, _ = launched(each, lambda plain: planned(plain).candidate.kernel)
                plan = planned(first)
                for launch in plan.launches:
                    target = planning.target_for(launch.definition, plan.device)
                    need = needs[Job(launch.definition.name, launch.config, target, compiler)]
                    need.m.add(rows)
                    need.problems.setdefault(problem, each)
                if device is None:
                    place = f"{plan.device.name} ({plan.device.arch}): {plan.reason}"
                    places.setdefault(place, None)
        except ValueError as error:
            if refused is None:
                raise
            turned_down |= dict.fromkeys(names, str(error))
    kernels = tuple(
        Needed(job, tuple(sorted(need.m)), tuple(need.problems.values()), _state(job))
        for job, need in needs.items()
    )
    return Choice(", ".join(places) or "no device", kernels, turned_down)


def _state(job: Job) -> str | None:
    return None if _stored(job) is None else CACHED


def _stored(job: Job):
    return compiler_room.load(find_definition(job.kernel), job.config, job.target, job.compiler)


def compile_missing(
    choice: Choice,
    processes: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> WarmupReport:
    """Compile the kernels of a choice that are not in the disk cache. progress: called with
    (kernels done, kernels to compile, the kernel's name), at the start with "". An exception, also
    KeyboardInterrupt, ends the processes; what was compiled by then stays in the cache.

    Raises CapabilityMissing if no directory can keep kernels, MissingCompiler if a kernel is to be
    compiled and the compiler is not there.
    """
    start, directory = time.perf_counter(), cache_directory()
    if directory is None:
        raise CapabilityMissing(
            "no directory for compiled kernels is this user's own and writable, so that nothing"
            " could be kept: set NUMBA_MARLIN_CACHE to one that is"
        )
    missing = {each.job: each for each in choice.kernels if each.state is None}
    done: dict[Job, Needed] = {}
    if progress is not None:
        progress(0, len(missing), "")
    workers = min(processes or cores(), len(missing))
    with contextlib.closing(compile_in_processes(missing, workers)) as answers:
        for job, answer in answers:
            done[job] = _kept(missing[job], answer, directory)
            if progress is not None:
                progress(len(done), len(missing), job.kernel)
    report = WarmupReport(
        choice.device,
        tuple(done.get(each.job, each) for each in choice.kernels),
        choice.refused,
        directory,
        time.perf_counter() - start,
    )
    log.log(logging.WARNING if report.failed else logging.INFO, "warmup: %r", report)
    return report


def _kept(needed: Needed, answer, directory: Path) -> Needed:
    """Store what a worker compiled."""
    if answer.error is not None:
        kind, message = answer.error
        if kind == MissingCompiler.__name__:
            raise MissingCompiler(message)
        return replace(needed, state=FAILED, seconds=answer.seconds, error=message.strip() or kind)
    store(from_bytes(answer.entry, needed.job.config))
    if _stored(needed.job) is None:
        error = f"it compiles, but cannot be written to {directory}: is the disk full?"
        return replace(needed, state=FAILED, seconds=answer.seconds, error=error)
    return replace(needed, state=COMPILED, seconds=answer.seconds)


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
