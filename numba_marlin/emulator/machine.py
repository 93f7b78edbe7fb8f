"""The PTX machine: parse once, run kernels on NumPy arrays.

    machine = Machine(ptx_text)
    x = machine.memory.buffer(array, name="x")
    result = machine.run("kernel", grid=(4,), block=(128,), shared_bytes=4096, args=[x.address, 7])

Raises PtxSyntaxError and UnknownInstruction for text it cannot execute, LimitExceeded for what is
too large for it, other MachineErrors for what a program does wrong, ValueError for a launch that
does not fit the kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_marlin.emulator.asynchronous.clusters import MAX_BLOCKS
from numba_marlin.emulator.checks import DEFAULT, Checks, levels_of
from numba_marlin.emulator.errors import MachineError, PtxSyntaxError
from numba_marlin.emulator.instructions import root_of
from numba_marlin.emulator.limits import MOST_WARP_INSTRUCTIONS, STACK_BYTES, require_state
from numba_marlin.emulator.ordering.weak_memory import WeakMemory
from numba_marlin.emulator.scheduling.execution import Execution
from numba_marlin.emulator.scheduling.scheduler import Scheduler
from numba_marlin.emulator.scheduling.schedules import WEAK, Schedule, schedule_of
from numba_marlin.emulator.state.global_memory import Buffer, GlobalMemory
from numba_marlin.emulator.state.listener import NOBODY, Listener, both
from numba_marlin.emulator.tensor.tensor_sums import MEASURED_ADDER, adder_of
from numba_marlin.emulator.text.parser import parse
from numba_marlin.emulator.text.program import Kernel, Variable
from numba_marlin.hardware.limits import BLOCK_THREADS
from numba_marlin.wording import did_you_mean

# glibc's malloc maps new pages for every array that is as large as the largest freed so far, up to
# 32 MiB, and the system clears them: freed once, this one makes it use again what it has. Without,
# matmul on 1,024 blocks (experiment 14) takes 1.07 s instead of 0.48.
np.empty((32 << 20) - (1 << 13), np.uint8)


@dataclass(frozen=True)
class RunResult:
    """What a run did: ``instructions`` counts warp instructions, ``opcodes`` splits them by opcode
    ("cp.async", "mma"), ``executed`` by pc.

    An instruction whose guard is false counts, as on hardware. ``steps`` are the NumPy-level
    executions it took. ``unraced``: why no races were looked for; "" if they were. ``printed``:
    what the kernel's vprintf wrote. ``warnings``: what checks found and did not raise, once for a
    place.
    """

    instructions: int
    opcodes: Mapping[str, int]
    steps: int
    blocks: int
    resident_blocks: int
    shared_bytes: int
    executed: tuple[int, ...] = ()
    unraced: str = ""
    printed: str = ""
    warnings: tuple[MachineError, ...] = ()


class Machine:
    """A PTX module with its memory.

    ``ptx``: the module's text; a kernel's body is read when that is asked for, or at once if it is
    the only one. ``races``: check that every access is ordered after those it conflicts with
    (``ordering``), and raise Race if not; runs take up to three times as long. None: where the
    records that this takes stay small (``ordering.affordable``); ``RunResult.unraced`` says.
    ``adds_like``: whose tensor cores add the products of mma.sync and wgmma ("sm_90",
    ``tensor.tensor_sums``). The default is the chip that was measured, an H200, whatever the
    ``.target`` of the text: its PTX runs there too. "sm_70", "sm_80" and "sm_89" are as published,
    and were not measured here. ``checks``: what each check does, a level and exceptions
    ("hardware,benign-race=off"; ``emulator.checks``). ``memory`` maps NumPy arrays to
    addresses, its own unless one is given: modules that share one see each other's buffers, as on a
    device. ``entries`` are the names of the kernels.
    """

    def __init__(
        self,
        ptx: str,
        races: bool | None = False,
        adds_like: str = MEASURED_ADDER,
        checks: str = DEFAULT,
        memory: GlobalMemory | None = None,
    ) -> None:
        levels_of(checks)
        self.races, self.adder, self.checks = races, adder_of(adds_like), checks
        self.module = parse(ptx, root_of)
        self.memory = GlobalMemory() if memory is None else memory
        self.globals: dict[str, Buffer] = {}
        self.heap: dict[int, Buffer] = {}  # what kernels got from malloc and have not freed
        self._place(self.module.variables)
        if len(self.entries) == 1:  # its errors are those of the text
            self.kernel()

    def _place(self, variables: Sequence[Variable]) -> None:
        """Global and constant variables get memory and their first values."""
        variables = [
            each
            for each in variables
            if each.space in ("global", "const") and each.name not in self.globals
        ]
        largest = max(variables, key=lambda each: each.size, default=None)
        if largest is None:
            return
        require_state(
            sum(buffer.nbytes for buffer in self.globals.values())
            + sum(each.size for each in variables),
            "the variables of the module",
            "declare less",
            largest.line,
            largest.name,
        )
        for variable in variables:
            data = np.zeros(variable.size, np.uint8)
            data[: len(variable.data)] = np.frombuffer(variable.data, np.uint8)
            self.globals[variable.name] = self.memory.buffer(
                data, variable.name, readonly=variable.space == "const"
            )
        for variable in variables:
            for each in variable.relocations:
                if each.name not in self.globals:
                    raise PtxSyntaxError(
                        f"initialiser of {variable.name}: {each.name} is no variable in global or"
                        " constant memory",
                        line=variable.line,
                        text=variable.name,
                    )
                value = (self.globals[each.name].address + each.offset) % (1 << 64) >> each.shift
                self.globals[variable.name].data[each.at : each.at + each.size] = np.frombuffer(
                    value.to_bytes(8, "little")[: each.size], np.uint8
                )

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self.module.kernels)

    def kernel(self, entry: str | None = None) -> Kernel:
        """The kernel named ``entry``; None if there is only one. Its body is read when it is first
        asked for: PtxSyntaxError, UnknownInstruction and LimitExceeded then name it."""
        if entry is None:
            if len(self.module.kernels) != 1:
                raise ValueError(
                    f"entry must be one of {', '.join(self.entries) or '(there are none)'}"
                )
            (entry,) = self.entries
        if entry not in self.module.kernels:
            raise ValueError(
                f"entry={entry!r} must be one of {', '.join(self.entries) or '(there are none)'}"
                f"{did_you_mean(entry, self.entries)}"
            )
        kernel = self.module.kernels[entry]
        self._place(kernel.variables)
        return kernel

    def run(
        self,
        entry: str | None = None,
        grid: Sequence[int] | int = 1,
        block: Sequence[int] | int = 32,
        shared_bytes: int = 0,
        args: Sequence[Any] = (),
        resident_blocks: int | None = None,
        seed: int | Schedule | None = None,
        max_instructions: int = MOST_WARP_INSTRUCTIONS,
        cluster: Sequence[int] | int | None = None,
        listener: Listener = NOBODY,
        stack_bytes: int = STACK_BYTES,
    ) -> RunResult:
        """Run a whole grid of ``block`` threads each.

        ``entry``: the kernel's name; None if there is only one. ``shared_bytes``: dynamic shared
        memory per block. ``args``: one per parameter, ints (floats for float parameters, bytes for
        structs). ``resident_blocks``: how many blocks are on the machine at once (default all; the
        others follow as places get free). ``seed``: None for the deterministic order, an int for a
        random legal one, a Schedule for one of its kind. ``max_instructions``: budget of warp
        instructions, Deadlock beyond. ``cluster``: blocks of a cluster, of which the grid must be a
        multiple; None for what the kernel declares, else 1. ``listener``: what is called while the
        kernel runs. ``stack_bytes``: local memory of a thread for calls of functions that call
        themselves, LimitExceeded beyond.
        """
        kernel = self.kernel(entry)
        grid, block = dimensions("grid", grid), dimensions("block", block)
        threads = block[0] * block[1] * block[2]
        if threads > BLOCK_THREADS:
            raise ValueError(
                f"block={block} has {threads} threads, at most {BLOCK_THREADS} are allowed"
            )
        if kernel.max_threads is not None and threads > kernel.max_threads:
            raise ValueError(
                f"block={block} has {threads} threads, {kernel.name} was compiled for"
                f" {kernel.max_threads}"
            )
        if shared_bytes < 0:
            raise ValueError(f"shared_bytes={shared_bytes} must not be negative")
        if resident_blocks is not None and resident_blocks < 1:
            raise ValueError(f"resident_blocks={resident_blocks} must be positive")
        if stack_bytes < 0:
            raise ValueError(f"stack_bytes={stack_bytes} must not be negative")
        if max_instructions < 1:
            raise ValueError(f"max_instructions={max_instructions} must be positive")
        blocks, cluster = (
            grid[0] * grid[1] * grid[2],
            dimensions("cluster", kernel.cluster or 1 if cluster is None else cluster),
        )
        if kernel.cluster not in (None, cluster):
            raise ValueError(f"cluster={cluster}, {kernel.name} was compiled for {kernel.cluster}")
        of_cluster = cluster[0] * cluster[1] * cluster[2]
        if of_cluster > MAX_BLOCKS or any(count % size for count, size in zip(grid, cluster)):
            raise ValueError(
                f"cluster={cluster} must divide grid={grid} and have at most {MAX_BLOCKS} blocks"
            )
        schedule = schedule_of(seed)
        if schedule is not None and resident_blocks is None:
            resident_blocks = schedule.resident_blocks
        resident = min(blocks, resident_blocks or blocks) // of_cluster * of_cluster
        if not resident:
            raise ValueError(
                f"resident_blocks={resident_blocks} has no place for a cluster of {of_cluster}"
                " blocks"
            )
        addresses = {name: buffer.address for name, buffer in self.globals.items()}
        checks = Checks(self.checks)
        with np.errstate(all="ignore"):
            execution = Execution(
                kernel,
                self.module.variables,
                self.memory,
                addresses,
                grid,
                block,
                shared_bytes,
                args,
                resident,
                cluster,
                self.adder,
                self.races,
                stack_bytes,
                checks,
            )
            memory, execution.heap = execution.memory, self.heap
            memory.watch = both(memory.watch, listener.access)
            memory.requests = both(memory.requests, listener.request)
            execution.print = listener.printed
            if schedule is not None and schedule.memory == WEAK:
                execution.weak = WeakMemory(execution, schedule.random())
            try:
                scheduler = Scheduler(execution, schedule, listener, max_instructions)
                if listener.started is not None:
                    listener.started(execution)
                scheduler.run()
            finally:
                execution.release()
        opcodes: Counter = Counter()
        executed = [0] * len(kernel.instructions)
        for code in (*scheduler.coarse.values(), *scheduler.fine.values()):
            if code.executed:
                for ins in kernel.instructions[code.start : code.start + code.length]:
                    opcodes[ins.root] += code.executed
                    executed[ins.pc] += code.executed
        return RunResult(
            scheduler.instructions,
            dict(opcodes),
            scheduler.steps,
            blocks,
            resident,
            execution.memory.shared.size - execution.reserved,
            tuple(executed),
            execution.unraced,
            "".join(execution.printed),
            tuple(checks.found.values()),
        )


def dimensions(name: str, value: Sequence[int] | int) -> tuple[int, int, int]:
    """(x, y, z) from an int or up to three of them."""
    sizes = (value,) if isinstance(value, (int, np.integer)) else tuple(value)
    if not 1 <= len(sizes) <= 3 or any(int(size) < 1 for size in sizes):
        raise ValueError(f"{name}={value} must be one to three positive integers")
    return tuple(int(size) for size in sizes) + (1,) * (3 - len(sizes))
