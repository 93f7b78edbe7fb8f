"""One launch of a kernel: arguments, names of arrays, the run, and what its errors say."""

from __future__ import annotations

import ctypes
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from numba_marlin.emulator import Listener, MachineError
from numba_marlin.emulator.text.program import Parameter
from numba_marlin.on_cpu.driver import MULTIPROCESSORS, HostDriver
from numba_marlin.on_cpu.faults import fault
from numba_marlin.on_cpu.memory import Allocation, View
from numba_marlin.on_cpu.modules import CompiledKernel, LaunchConfig

RESIDENT_THREADS = 1 << 16
"""So many threads are on the machine at once, the other blocks follow: more cost memory and are no
faster."""

INSTRUCTIONS, BLOCK_INSTRUCTIONS = 10**8, 10**7
"""Warp instructions of a launch, and so many more for each block of its grid, after which it is
taken for endless."""


@dataclass(frozen=True)
class Called:
    """What numba-cuda was about to launch: its kernel's Python function, types of the arguments,
    and the arguments. ``views``: its arrays, where the parameters' order is not numba-cuda's."""

    function: object
    types: tuple
    arguments: tuple
    views: tuple[View, ...] | None = None


current = threading.local()
"""``called``: the innermost Called of this thread."""


def launch(host: HostDriver, stream, config: LaunchConfig, kernel, *arguments) -> None:
    """As cuda.core.launch. The run is over when it returns."""
    if not isinstance(kernel, CompiledKernel):
        raise RuntimeError(
            "this kernel was made for a GPU before the switch was turned on: turn it on before the"
            " kernel's first launch"
        )
    threads, blocks = int(np.prod(config.block)), int(np.prod(config.grid))
    resident = max(1, RESIDENT_THREADS // max(1, threads))
    if config.is_cooperative or config.cooperative_launch:
        resident = blocks
        most = MULTIPROCESSORS * host.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            kernel, threads, config.shmem_size
        )
        if blocks > most:
            raise host.launch_failed(
                "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
                f"{blocks} blocks, {most} can run at once",
            )
    with host.lock:
        run(host, config, kernel, arguments, resident)


def run(host: HostDriver, config: LaunchConfig, kernel, arguments, resident: int) -> None:
    """The launch itself, with ``resident`` blocks at once at most."""
    machine, called = kernel.module.machine, getattr(current, "called", None)
    # a[0] = 1 is a kernel of numba-cuda's own, all of whose threads write the same number
    machine.races = False if of_numba_cuda(called) else kernel.module.races
    named = name_arrays(host, called, arguments)
    blocks = int(np.prod(config.grid))
    try:
        result = machine.run(
            kernel.name,
            grid=config.grid,
            block=config.block,
            shared_bytes=config.shmem_size,
            args=packed(kernel.kernel.parameters, arguments),
            resident_blocks=min(resident, blocks),
            max_instructions=INSTRUCTIONS + BLOCK_INSTRUCTIONS * blocks,
            listener=Listener(printed=sys.stdout.write),
        )
        for warning in result.warnings:
            warnings.warn(str(fault(warning, kernel, config.block, called)), stacklevel=2)
    except MachineError as error:
        raise fault(error, kernel, config.block, called) from error
    except ValueError as error:  # of what does not fit the kernel, before it runs
        raise host.launch_failed("CUDA_ERROR_INVALID_VALUE", error) from error
    finally:
        for allocation in named:
            allocation.views.clear()


def of_numba_cuda(called: Called | None) -> bool:
    """Does the kernel belong to numba-cuda or its successor, rather than to a program or a
    test?"""
    module = getattr(getattr(called, "function", None), "__module__", None) or ""
    return module.startswith(("numba.cuda.", "numba_cuda_mlir.")) and ".tests." not in module


def packed(parameters: Sequence[Parameter], arguments: Sequence) -> list:
    """Arguments as the machine takes them: numbers of Python, of the parameters' types."""
    found = []
    for parameter, value in zip(parameters, arguments):
        if isinstance(value, ctypes._SimpleCData):
            raw = bytes(value)
            if isinstance(value, (ctypes.c_float, ctypes.c_double)) or len(raw) == parameter.size:
                value = raw
            else:
                value = value.value
        found.append(int(value) if isinstance(value, (bool, np.bool_)) else value)
    return found + list(arguments[len(parameters) :])


def name_arrays(host: HostDriver, called: Called | None, arguments: Sequence) -> list[Allocation]:
    """Give the allocations that are arguments the names of the kernel's parameters; which ones."""
    if called is None:
        return []
    views = arrays_of(called, arguments) if called.views is None else called.views
    found = []
    for view in views:
        buffer = host.memory.globals.find(view.address)
        if isinstance(buffer, Allocation):
            buffer.views.append(view)
            found.append(buffer)
    return found


def arrays_of(called: Called, arguments: Sequence) -> Iterator[View]:
    """The arrays among numba-cuda's ``arguments``."""
    code = getattr(called.function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    flat, at = list(arguments), 0
    for name, kind in zip(names, called.types):
        for part, dimensions, dtype, count in parts(name, kind):
            if dimensions is not None and at + count <= len(flat):
                # numba-cuda's array: meminfo, parent, items, bytes of one, data, shape, strides
                address = int(flat[at + 4])
                shape = tuple(flat[at + 5 : at + 5 + dimensions])
                strides = tuple(flat[at + 5 + dimensions : at + count])
                yield View(part, address, dtype, shape, strides)
            at += count


def parts(name: str, kind):
    """(name, dimensions or None, dtype, how many arguments) of each part of a parameter."""
    members = getattr(kind, "types", None)
    if members is not None and hasattr(kind, "count"):
        for number, member in enumerate(members):
            yield from parts(f"{name}[{number}]", member)
    elif hasattr(kind, "ndim") and hasattr(kind, "dtype"):
        yield name, kind.ndim, dtype_of(kind.dtype), 5 + 2 * kind.ndim
    else:
        yield name, None, None, 2 if str(kind) in ("complex64", "complex128") else 1


def dtype_of(kind) -> np.dtype:
    """Of an array's element, bytes where NumPy has no name for it."""
    if hasattr(kind, "fields") and hasattr(kind, "size"):
        return np.dtype(("V", kind.size))
    try:
        return np.dtype(str(kind))
    except TypeError:
        return np.dtype(np.uint8)
