"""One run of a compiled kernel on the PTX machine, on arrays of its own, with what it did to them.

A kernel of Numba takes an array as numba-cuda passes it (seven words and more), one of PTX as a
pointer. Arrays stand in allocations with nothing around them, so that what leaves one is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from numba_marlin.emulator import Listener, Machine, RunResult
from numba_marlin.emulator.checks import DEFAULT
from numba_marlin.emulator.scheduling.schedules import Schedule
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.state.listener import both
from numba_marlin.emulator.text.program import Instruction, Parameter
from numba_marlin.judge.watching import Watch, Watched
from numba_marlin.on_cpu.memory import Allocation, View

BUDGET = 100_000  # instructions of a warp: a loop that never ends is found in seconds


@dataclass(frozen=True)
class Kernel:
    """``text``: PTX; ``entry``: its kernel, None for the only one; ``name`` for people; ``numba``:
    does it take arrays as numba-cuda passes them? ``parameters``: their names, if known."""

    text: str
    entry: str | None
    name: str
    numba: bool
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Way:
    """How to run it. ``poison``: the byte that fresh memory holds; ``reverse``: arrays in memory
    from the last to the first; ``offsets``: of an array's address behind a multiple of 256;
    ``budget``: instructions of a warp, on the mean of all warps."""

    schedule: Schedule | None = None
    poison: int = 0xFF
    reverse: bool = False
    offsets: Mapping[str, int] = field(default_factory=dict)
    budget: int = BUDGET
    checks: str = DEFAULT


@dataclass
class Run:
    """A run as far as it came: ``error`` stopped it. ``arrays``: by name, as it left them."""

    kernel: Kernel
    machine: Machine
    grid: tuple[int, ...]
    block: tuple[int, ...]
    watched: dict[str, Watched]
    watch: Watch
    error: Exception | None = None
    result: RunResult | None = None

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {name: each.array for name, each in self.watched.items()}

    @property
    def instructions(self) -> Sequence[Instruction]:
        return self.machine.kernel(self.kernel.entry).instructions

    @property
    def compiled(self):
        """As ``on_cpu.faults`` takes a kernel."""
        return SimpleNamespace(kernel=self.machine.kernel(self.kernel.entry), name=self.kernel.name)

    def source(self, line: int | None) -> int:
        """The line of the source behind a line of PTX, 0 if there is none."""
        found = (each.source[1] for each in self.instructions if each.line == line and each.source)
        return int(next(found, 0))

    def thread(self, number: int) -> tuple[int, int]:
        """(block, thread in it) of a thread's number in the grid."""
        return divmod(number, self.watch.threads)


@lru_cache(maxsize=8)
def machine_of(text: str, checks: str) -> tuple[Machine, dict[str, bytes]]:
    """A machine, and what its module's variables hold at first: reading a kernel takes longer than
    many a run of it."""
    machine = Machine(text, races=True, checks=checks)
    return machine, {name: each.data.tobytes() for name, each in machine.globals.items()}


def run(
    kernel: Kernel,
    values: Mapping[str, Any],
    grid: tuple[int, ...],
    block: tuple[int, ...],
    way: Way,
    *,
    readonly: frozenset[str] = frozenset(),
    poisoned: frozenset[str] = frozenset(),
    shared: int = 0,
    cluster: tuple[int, ...] | None = None,
    listener=None,
) -> Run:
    """Run ``kernel`` on copies of ``values``: arrays and numbers in its order, by name.
    ``listener``: makes another Listener of the machine, which hears accesses and requests. What
    stops the run is in it; ValueError if the arguments do not fit the kernel."""
    machine, variables = machine_of(kernel.text, way.checks)
    for name, data in variables.items():  # a run before may have changed them
        machine.globals[name].data[:] = np.frombuffer(data, np.uint8)
    for buffer in machine.memory.buffers:
        if buffer not in machine.globals.values():
            machine.memory.release(buffer)
    names = [name for name, value in values.items() if isinstance(value, np.ndarray)]
    watched = {}
    for name in reversed(names) if way.reverse else names:
        watched[name] = mapped(machine, name, values[name], way, name in readonly, name in poisoned)
    watched = {name: watched[name] for name in names}
    watch = Watch(list(watched.values()), grid, int(np.prod(block)))
    made = Run(kernel, machine, grid, block, watched, watch)
    other = Listener() if listener is None else listener(machine)
    entry = machine.kernel(kernel.entry)
    warps = int(np.prod(grid)) * -(-int(np.prod(block)) // WARP)
    arguments = packed(kernel, entry.parameters, values, watched)
    try:
        made.result = machine.run(
            kernel.entry,
            grid=grid,
            block=block,
            args=arguments,
            shared_bytes=shared,
            cluster=cluster,
            seed=way.schedule,
            max_instructions=way.budget * warps,
            listener=Listener(
                access=both(watch.access, other.access),
                request=both(watch.request, other.request),
                printed=lambda text: None,
            ),
        )
    except Exception as error:  # what the kernel did wrong, or what the launch asks for
        made.error = error
    return made


def mapped(machine: Machine, name: str, value, way: Way, readonly: bool, poison: bool) -> Watched:
    """A copy of ``value`` in the machine's memory."""
    first = way.offsets.get(name, 0)
    data = np.full(first + value.nbytes, way.poison, np.uint8)
    array = data[first:].view(value.dtype).reshape(value.shape)
    if not poison:
        array[...] = value
    address = machine.memory.reserve(data.size)
    buffer = Allocation(name, address, array, data, readonly)
    buffer.views.append(View(name, address + first, array.dtype, array.shape, array.strides))
    machine.memory.add(buffer)
    return Watched(name, buffer, array, first, poison)


def packed(kernel: Kernel, parameters: Sequence[Parameter], values, watched) -> list:
    """The words of a launch. ValueError unless they fit the kernel's parameters."""
    found: list[bytes] = []
    said = []
    for name, value in values.items():
        if not isinstance(value, np.ndarray):
            found.append(value.tobytes())
            said.append(f"{name} ({value.dtype})")
            continue
        each = watched[name]
        words = [each.buffer.address + each.first]
        if kernel.numba:
            words = [0, 0, value.size, value.itemsize, *words, *value.shape, *value.strides]
        found += [word.to_bytes(8, "little") for word in words]
        said.append(f"{name} (pointer)")
    if len(found) != len(parameters):
        wanted = ", ".join(f".{each.type} of {each.size} bytes" for each in parameters) or "none"
        raise ValueError(
            f"{kernel.name} takes {len(parameters)} parameters ({wanted}), the task passes"
            f" {len(found)}: {', '.join(said)}"
        )
    for number, (word, parameter) in enumerate(zip(found, parameters)):
        if len(word) != parameter.size:
            raise ValueError(
                f"parameter {number} of {kernel.name} takes {parameter.size} bytes"
                f" (.{parameter.type}), the task passes {len(word)}: {', '.join(said)}"
            )
    return found
