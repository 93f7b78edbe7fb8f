"""Compile a learner's ``@cuda.jit`` kernel, and run it on the PTX machine on NumPy arrays."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import lru_cache
from types import FunctionType

import numpy as np

from numba_marlin.counts import Counts
from numba_marlin.counts.observer import Observer
from numba_marlin.emulator import Machine, RunResult
from numba_marlin.emulator.scheduling.schedules import Schedule
from numba_marlin.emulator.state.access import Access
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.state.listener import Listener

TARGET = "sm_90a"
MOST_INSTRUCTIONS = 50_000  # of warps: a loop that never ends is found in seconds
NOBODY = -1


@dataclass
class Run:
    """A run as far as it came. ``writers``: of each output, by its name, the thread (its number in
    the grid) that wrote each element last, NOBODY where nobody did; ``lines``: the line of the
    source that did; ``sources``: of the lines of PTX. ``error``: what stopped it."""

    kernel: FunctionType
    block_threads: int
    arrays: dict[str, np.ndarray]
    writers: dict[str, np.ndarray] = field(default_factory=dict)
    lines: dict[str, np.ndarray] = field(default_factory=dict)
    sources: dict[int, int] = field(default_factory=dict)
    error: Exception | None = None
    result: RunResult | None = None
    counts: Counts | None = None


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
    kinds = tuple((name, _kind(arguments[name])) for name in names)
    threads = int(np.prod(block))
    machine = Machine(_compiled(function, kinds, threads), races=True)
    buffers = {
        name: machine.memory.buffer(value, name, readonly=name in inputs)
        for name, value in arguments.items()
        if isinstance(value, np.ndarray)
    }
    words: list[int] = []
    for name in names:
        value = arguments[name]
        if isinstance(value, np.ndarray):
            place = [0, 0, value.size, value.itemsize, buffers[name].address]
            words += [*place, *value.shape, *value.strides]
        else:
            words.append(value)
    made = Run(function, threads, {name: each.array for name, each in buffers.items()})
    made.sources = {
        each.line: int(each.source[1]) for each in machine.kernel().instructions if each.source
    }
    watch = _Writers(made, [buffers[name] for name in outputs], machine, grid, block)
    try:
        made.result = machine.run(
            grid=grid,
            block=block,
            args=words,
            seed=schedule,
            max_instructions=MOST_INSTRUCTIONS,
            listener=Listener(access=watch.access, request=watch.observer.access),
        )
        made.counts = watch.observer.counts(made.result)
    except Exception as error:  # MachineErrors, which ``judge`` words
        made.error = error
    return made


def _kind(value) -> str:
    if not isinstance(value, np.ndarray):
        return "i32"
    return f"{value.dtype}[{':, ' * (value.ndim - 1)}::1]"


@lru_cache(maxsize=32)
def _compiled(function, kinds, threads: int) -> str:
    from numba_marlin.compiler import numba_cuda
    from numba_marlin.compiler.module_text import tidy
    from numba_marlin.hardware.targets import target_named

    ptx = numba_cuda.to_ptx(
        function, kinds, target_named(TARGET), threads, line_info=True, plain=True
    )
    return tidy(ptx, function.__name__)


class _Writers:
    """Listens to stores to the outputs, and counts."""

    def __init__(self, run: Run, buffers, machine: Machine, grid, block) -> None:
        self.run, self.buffers, self.grid, self.block = run, buffers, grid, block
        self.observer = Observer(machine)
        self.kernel = machine.kernel()
        for buffer in buffers:
            run.writers[buffer.name] = np.full(buffer.array.size, NOBODY)
            run.lines[buffer.name] = np.zeros(buffer.array.size, int)

    def access(self, access: Access) -> None:
        self.observer.access(access)
        if access.kind not in ("store", "atomic") or access.space != "global":
            return
        threads = np.broadcast_to(self._threads(access), access.address.shape)
        line = int(access.ins.source[1]) if access.ins.source else 0
        for buffer in self.buffers:
            first = access.address - buffer.address
            inside = (first >= 0) & (first < buffer.nbytes)
            size = buffer.array.itemsize
            for part in range(0, max(access.nbytes, 1), size):
                elements = (first[inside] + part) // size
                self.run.writers[buffer.name][elements] = threads[inside]
                self.run.lines[buffer.name][elements] = line

    def _threads(self, access: Access) -> np.ndarray:
        """The number in the grid of every lane's thread."""
        lanes = access.lanes
        place = lanes.placement
        slots, within = np.divmod(lanes.warps, place.warps_per_block)
        numbers = [self._block_number(place.block_of[slot]) for slot in slots.tolist()]
        first = np.array(numbers) * self.run.block_threads + within * WARP
        if lanes.full:
            return first[:, None] + np.arange(WARP)
        return first + lanes.columns

    def _block_number(self, block: tuple[int, int, int]) -> int:
        size = (*self.grid, 1, 1)
        return block[0] + size[0] * (block[1] + size[1] * block[2])
