"""Compile a learner's ``@cuda.jit`` kernel, and run it on the PTX machine on NumPy arrays, with
counts (``judge.launching`` does both)."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType

import numpy as np

from numba_marlin.counts import Counts
from numba_marlin.counts.observer import Observer
from numba_marlin.emulator import Listener, RunResult
from numba_marlin.emulator.scheduling.schedules import Schedule
from numba_marlin.errors import CapabilityMissing
from numba_marlin.judge import launching
from numba_marlin.judge.watching import Watched
from numba_marlin.on_cpu.compiling import compiled

MOST_INSTRUCTIONS = 10_000  # of a warp: a loop that never ends is found in seconds


@dataclass
class Run:
    """A run as far as it came: ``made`` has the machine, ``error`` what stopped it."""

    kernel: FunctionType
    made: launching.Run
    counts: Counts | None = None

    @property
    def error(self) -> Exception | None:
        return self.made.error

    @property
    def result(self) -> RunResult | None:
        return self.made.result

    @property
    def watched(self) -> dict[str, Watched]:
        return self.made.watched

    def line(self, name: str, element: int) -> int:
        """The line of the source that wrote this element last."""
        ins = self.made.instructions[self.watched[name].by[element]]
        return int(ins.source[1]) if ins.source else 0


class NotAKernel(ValueError):
    """What was given is not a kernel, or does not take the puzzle's parameters."""


def run(
    kernel,
    inputs: dict[str, np.ndarray | int],
    outputs: dict[str, np.ndarray],
    grid: tuple[int, ...],
    block: tuple[int, ...],
    schedule: Schedule | None = None,
) -> Run:
    """Run ``kernel`` on these arguments, by name. Inputs are read-only. Raises NotAKernel, and what
    the compiler raises."""
    arguments = inputs | outputs
    function = getattr(kernel, "py_func", None)
    if function is None:
        raise NotAKernel("it must be a kernel: put @cuda.jit above `def`")
    names = list(inspect.signature(function).parameters)
    if set(names) != set(arguments):
        raise NotAKernel(
            f"{function.__name__}({', '.join(names)}) must have the parameters"
            f" {', '.join(arguments)}, as it had"
        )
    values = {
        name: value if isinstance(value, np.ndarray) else np.int32(value)
        for name, value in ((name, arguments[name]) for name in names)
    }
    observed: list[Observer] = []

    def listener(machine) -> Listener:
        observed.append(Observer(machine))
        return Listener(access=observed[0].access, request=observed[0].access)

    made = launching.run(
        _compiled(kernel, tuple(map(_kind, values.values()))),
        values,
        grid,
        block,
        launching.Way(schedule, budget=MOST_INSTRUCTIONS),
        readonly=frozenset(inputs),
        listener=listener,
    )
    counts = observed[0].counts(made.result) if made.result else None
    return Run(function, made, counts)


def _kind(value) -> tuple[str, int | None]:
    return str(value.dtype), value.ndim if isinstance(value, np.ndarray) else None


@lru_cache(maxsize=32)
def _compiled(kernel, kinds) -> launching.Kernel:
    try:
        found = compiled(kernel, kinds)
    except ImportError as error:
        raise CapabilityMissing(f"a compiler is missing, numba-cuda: {error}") from error
    return launching.Kernel(found.text, found.entry, found.name, True, found.parameters)
