"""Launching compiled kernels: a ``Launcher`` enqueues a ``CompiledKernel`` on a stream.

``launcher(compiled, device)`` loads the machine code once per device, opts in to large shared
memory and returns a ``Launcher``. Calling that with a grid, a tuple of the kernel's arguments in
order (ints; 128 bytes for a tensor map), and a stream costs one driver call. ``bind`` fixes all of
that and returns a ``BoundLaunch``, in which only a few words change from call to call. Nothing
waits; as usual in CUDA, an error inside the kernel is reported by a later call or synchronisation.

ValueError: wrong number of arguments, an argument out of range, a grid beyond CUDA's limits.
CapabilityMissing: no device, or no machine code for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading

from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import driver
from numba_marlin.hardware import devices
from numba_marlin.hardware.limits import (
    GRID_BLOCKS,
    PORTABLE_CLUSTER_BLOCKS,
    STATIC_SHARED_BYTES,
    TENSOR_MAP_ALIGNMENT,
    TENSOR_MAP_BYTES,
)

# names a file to which each loaded kernel adds a line (`numba-marlin watch -- COMMAND` reads it)
KERNEL_LOG = "NUMBA_MARLIN_KERNEL_LOG"
WORD = 8
_TYPES = {"u64": ("<Q", 0, 2**64), "i32": ("<i", -(2**31), 2**31)}  # struct code, range


class ArgumentBuffer:
    """The kernel's parameters in memory, and the array of pointers to them that the driver reads.

    ``parameters``: ((name, "u64" | "i32" | "tensormap"), ...), as a KernelDefinition declares them.
    ``words``: the memory as 64-bit words, ``place[name]``: the first word of a parameter; a
    parameter has words of its own.
    """

    def __init__(self, parameters: tuple[tuple[str, str], ...]):
        self.parameters = tuple(parameters)
        offsets, size = [], 0
        for name, kind in self.parameters:
            if kind == "tensormap":
                size += -size % TENSOR_MAP_ALIGNMENT
            elif kind not in _TYPES:
                raise ValueError(
                    f"parameter {name} has type {kind!r}, must be one of"
                    f" {sorted((*_TYPES, 'tensormap'))}"
                )
            offsets.append(size)
            size += TENSOR_MAP_BYTES if kind == "tensormap" else WORD
        size += -size % WORD
        self._memory = ctypes.create_string_buffer(size + TENSOR_MAP_ALIGNMENT)
        start = -ctypes.addressof(self._memory) % TENSOR_MAP_ALIGNMENT
        base = ctypes.addressof(self._memory) + start
        self._bytes = memoryview(self._memory).cast("B")[start : start + size]
        self.words = self._bytes.cast("Q")
        self.place = {name: offset // WORD for (name, _), offset in zip(self.parameters, offsets)}
        self._pointers = (ctypes.c_void_p * max(1, len(offsets)))(
            *(base + offset for offset in offsets)
        )
        self.address = ctypes.addressof(self._pointers)

    def fill(self, arguments: tuple) -> None:
        if len(arguments) != len(self.parameters):
            names = ", ".join(name for name, _ in self.parameters)
            raise ValueError(
                f"{len(arguments)} arguments given, the kernel takes {len(self.parameters)}:"
                f" {names}"
            )
        for (name, kind), argument in zip(self.parameters, arguments):
            start = WORD * self.place[name]
            if kind == "tensormap":
                if not isinstance(argument, bytes) or len(argument) != TENSOR_MAP_BYTES:
                    raise ValueError(
                        f"argument {name}={argument!r} must be the {TENSOR_MAP_BYTES} bytes of a"
                        " tensor map"
                    )
                self._bytes[start : start + TENSOR_MAP_BYTES] = argument
                continue
            code, low, high = _TYPES[kind]
            if not isinstance(argument, int) or not low <= argument < high:
                raise ValueError(f"argument {name}={argument!r} must be an int that fits in {kind}")
            struct.pack_into(code, self._bytes, start, argument)


class _Attribute(ctypes.Structure):  # CUlaunchAttribute: cluster sizes, or one int
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_char * 4), ("value", ctypes.c_uint * 16)]


class _Configuration(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [
        *(
            (name, ctypes.c_uint)
            for name in (
                "grid_x",
                "grid_y",
                "grid_z",
                "block_x",
                "block_y",
                "block_z",
                "shared_bytes",
            )
        ),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION = 4, 6  # CUlaunchAttributeID


def _attributes(cluster: int, dependent: bool):
    chosen = []
    if cluster > 1:
        chosen.append(_Attribute(CLUSTER_DIMENSION, b"", (cluster, 1, 1)))
    if dependent:
        chosen.append(_Attribute(PROGRAMMATIC_SERIALIZATION, b"", (1,)))
    return (_Attribute * len(chosen))(*chosen)


def check_grid(grid: tuple[int, ...]) -> tuple[int, int, int]:
    """``grid`` with three entries, or ValueError."""
    full = (*grid, 1, 1)[:3]
    for axis, blocks, limit in zip("xyz", full, GRID_BLOCKS):
        if not 0 < blocks <= limit:
            raise ValueError(f"grid {axis}={blocks} must be from 1 to {limit}")
    return full


def load_image(compiled, device: devices.Device) -> bytes:
    """What the driver loads: machine code if the device runs it, else PTX for the driver's JIT
    compiler."""
    if compiled.cubin is not None and devices.runs_machine_code(
        compiled.target, device.compute_capability
    ):
        return compiled.cubin
    if compiled.target.endswith("a"):
        raise CapabilityMissing(
            f"kernel {compiled.kernel!r} was compiled for {compiled.target}, which {device.name}"
            f" ({device.arch}) does not run"
        )
    return compiled.ptx.encode() + b"\0"


class BoundLaunch:
    """One launch with fixed arguments, except those that its user writes to ``words`` (at
    ``place[name]``) under ``lock`` before ``enqueue``."""

    def __init__(
        self, launcher: Launcher, grid: tuple[int, ...], arguments: tuple, stream: int = 0
    ):
        x, y, z = check_grid(grid)
        compiled = launcher.compiled
        if x % launcher.cluster:
            raise ValueError(
                f"grid x={x} must be a multiple of the cluster's {launcher.cluster} blocks"
            )
        self.launcher, self.grid, self.stream = launcher, tuple(grid), stream
        self.lock = threading.Lock()
        self._buffer = ArgumentBuffer(compiled.parameters)
        self._buffer.fill(arguments)
        self.words, self.place = self._buffer.words, self._buffer.place
        self._configuration = _Configuration(
            x,
            y,
            z,
            compiled.threads,
            1,
            1,
            compiled.shared_bytes,
            stream,
            launcher.attributes,
            len(launcher.attributes),
        )
        self._call = driver.raw_launch()
        self._handles = tuple(
            driver.pointer(each)
            for each in (
                ctypes.addressof(self._configuration),
                launcher.function_handle,
                self._buffer.address,
            )
        ) + (driver.pointer(0),)

    def refill(self, arguments: tuple, stream: int) -> None:
        self._buffer.fill(arguments)
        self._configuration.stream = self.stream = stream

    def enqueue(self) -> None:
        """Enqueue the launch. The driver copies the arguments before this returns."""
        if self._call(*self._handles):
            self._enqueue_in_own_context()

    def _enqueue_in_own_context(self) -> None:
        """Enqueue with the device's context current; raises DriverError if that fails as well."""
        with driver.on_device(self.launcher.ordinal):
            code = self._call(*self._handles)
        if code:
            compiled = self.launcher.compiled
            raise driver.DriverError(
                f"cuLaunchKernelEx: {driver.bindings().CUresult(code).name}: kernel"
                f" {compiled.kernel!r}, grid {self.grid}, {compiled.threads} threads,"
                f" {compiled.shared_bytes} bytes of shared memory"
                + (f", clusters of {self.launcher.cluster}" if self.launcher.cluster > 1 else "")
            )


def _note(compiled, resident_blocks: int) -> None:
    """Append a line to the file that KERNEL_LOG names; errors in writing it are ignored."""
    with contextlib.suppress(OSError), open(os.environ[KERNEL_LOG], "a", encoding="utf-8") as file:
        file.write(
            f"{os.getpid()} {compiled.kernel} {compiled.target} {compiled.resources.registers}"
            f" {compiled.threads} {compiled.shared_bytes} {resident_blocks}\n"
        )


class Launcher:
    """A kernel loaded on one device. Calls may come from several threads.

    ``resident_blocks``: how many of its blocks the device can hold at once, given their registers
    and shared memory. ``cluster``: blocks per cluster, along x. ``dependent``: programmatic
    dependent
    launch: a launch may begin while the previous one on the stream ends; the kernel must then
    execute griddepcontrol.wait before it reads what the previous one wrote.
    """

    def __init__(self, compiled, ordinal: int = 0, cluster: int = 1, dependent: bool = False):
        cuda = driver.bindings()
        self.compiled, self.ordinal, self.cluster = compiled, ordinal, cluster
        self.attributes = _attributes(cluster, dependent)
        image = load_image(compiled, driver.describe(ordinal))
        with driver.on_device(ordinal), driver.beside_captures():
            try:
                self._module = driver.call("cuModuleLoadData", image)
            except driver.DriverError as error:
                raise CapabilityMissing(
                    f"the driver (CUDA {driver.probe().driver_version}) refuses kernel"
                    f" {compiled.kernel!r} for {compiled.target}: {error}"
                ) from error
            function = driver.call("cuModuleGetFunction", self._module, compiled.entry.encode())
            kinds = cuda.CUfunction_attribute
            if compiled.shared_bytes > STATIC_SHARED_BYTES:
                driver.call(
                    "cuFuncSetAttribute",
                    function,
                    kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    compiled.shared_bytes,
                )
            if cluster > PORTABLE_CLUSTER_BLOCKS:
                driver.call(
                    "cuFuncSetAttribute",
                    function,
                    kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                    1,
                )
            per_sm = driver.call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                function,
                compiled.threads,
                compiled.shared_bytes,
            )
        self.function_handle = int(function)
        self.resident_blocks = per_sm * driver.describe(ordinal).sms
        self._bound = None
        self._lock = threading.Lock()
        if KERNEL_LOG in os.environ:
            _note(compiled, self.resident_blocks)

    def bind(self, grid: tuple[int, ...], arguments: tuple, stream: int = 0) -> BoundLaunch:
        """A launch on ``stream`` (a raw handle; 0 is the legacy default stream) with these
        arguments, which can be enqueued many times."""
        return BoundLaunch(self, grid, arguments, stream)

    def __call__(self, grid: tuple[int, ...], arguments: tuple, stream: int = 0) -> None:
        """Enqueue one launch."""
        with self._lock:
            if self._bound is None or self._bound.grid != tuple(grid):
                self._bound = self.bind(grid, arguments, stream)
            else:
                self._bound.refill(arguments, stream)
            self._bound.enqueue()


_launchers: dict[tuple, Launcher] = {}
_registry_lock = threading.RLock()


def launcher(compiled, ordinal: int = 0, cluster: int = 1, dependent: bool = False) -> Launcher:
    """The ``Launcher`` of ``compiled`` on a device, loaded on first use."""
    key = (ordinal, compiled.target, compiled.ptx, cluster, dependent)
    found = _launchers.get(key)
    if found is None:
        with _registry_lock:
            found = _launchers.get(key)
            if found is None:
                found = _launchers[key] = Launcher(compiled, ordinal, cluster, dependent)
    return found
