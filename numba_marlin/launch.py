"""Pointers in, kernel enqueued: a ``CompiledKernel`` becomes a ``Launcher`` that puts it on a stream.

``launcher(compiled, device)`` loads the machine code once per device, opts in to large shared memory and returns a
``Launcher``. Calling that with a grid, a tuple of the kernel's integers in order, and a stream costs one driver call: the
argument buffer is made once and only its values change. Nothing waits; an error inside the kernel surfaces at a later call
or synchronisation, as CUDA has it.

``workspace(device, stream, partials_bytes, locks)`` gives the addresses of scratch memory that belongs to that stream (a captured
graph must not be replayed beside other work of the stream it was captured on): fp32 partial sums, and int32 locks that are zero between launches (kernels leave them so). It grows and never shrinks;
an outgrown buffer stays alive, because a captured CUDA graph may still point to it. ``release_workspaces`` frees all.

ValueError: wrong number of arguments, an argument out of range, a grid beyond CUDA's limits.
CapabilityMissing: no device, or no machine code for it.
"""

from __future__ import annotations

import ctypes
import struct
import threading

from numba_marlin import devices, driver
from numba_marlin.errors import CapabilityMissing

STATIC_SHARED_LIMIT = 48 * 1024  # more dynamic shared memory than this needs an opt-in
_TYPES = {"u64": ("Q", 8, 0, 2**64), "i32": ("i", 4, -(2**31), 2**31)}  # struct code, size, range


class ArgumentBuffer:
    """The kernel's parameters in memory, and the array of pointers to them that ``cuLaunchKernel`` reads.

    ``parameters``: ((name, "u64" | "i32"), ...), as a KernelDefinition declares them.
    """

    def __init__(self, parameters: tuple[tuple[str, str], ...]):
        for name, kind in parameters:
            if kind not in _TYPES:
                raise ValueError(f"parameter {name} has type {kind!r}, must be one of {sorted(_TYPES)}")
        self.parameters = tuple(parameters)
        # "=": no padding. The driver copies each parameter by its own pointer and asks for no alignment on the host.
        self._layout = struct.Struct("=" + "".join(_TYPES[kind][0] for _, kind in self.parameters))
        self.bytes = ctypes.create_string_buffer(self._layout.size)
        base = ctypes.addressof(self.bytes)
        sizes = [_TYPES[kind][1] for _, kind in self.parameters]
        self._pointers = (ctypes.c_void_p * len(sizes))(*(base + sum(sizes[:i]) for i in range(len(sizes))))
        self.address = ctypes.addressof(self._pointers)

    def fill(self, arguments: tuple[int, ...]) -> None:
        try:
            self._layout.pack_into(self.bytes, 0, *arguments)
        except struct.error as error:
            raise ValueError(self._complaint(arguments)) from error

    def _complaint(self, arguments: tuple[int, ...]) -> str:
        if len(arguments) != len(self.parameters):
            names = ", ".join(name for name, _ in self.parameters)
            return f"{len(arguments)} arguments given, the kernel takes {len(self.parameters)}: {names}"
        for (name, kind), argument in zip(self.parameters, arguments):
            _, _, low, high = _TYPES[kind]
            if not isinstance(argument, int) or not low <= argument < high:
                return f"argument {name}={argument!r} must be an int that fits in {kind}"
        return f"arguments {arguments} do not fit {self.parameters}"


def check_grid(grid: tuple[int, ...]) -> tuple[int, int, int]:
    """``grid`` with three entries, or ValueError."""
    full = (*grid, 1, 1)[:3]
    for axis, blocks, limit in zip("xyz", full, (2**31 - 1, 65535, 65535)):
        if not 0 < blocks <= limit:
            raise ValueError(f"grid {axis}={blocks} must be from 1 to {limit}")
    return full


def load_image(compiled, device: devices.Device) -> bytes:
    """What to hand to the driver: machine code if the device runs it, else PTX for the driver's own compiler."""
    if compiled.cubin is not None and devices.runs_machine_code(compiled.target, device.compute_capability):
        return compiled.cubin
    if compiled.target.endswith("a"):
        raise CapabilityMissing(
            f"kernel {compiled.kernel!r} was compiled for {compiled.target}, which {device.name} ({device.arch}) does not run"
        )
    return compiled.ptx.encode() + b"\0"


class Launcher:
    """A kernel loaded on one device. Calls may come from several threads.

    ``resident_blocks``: how many of its blocks the device can hold at once, given the registers and shared memory they take.
    """

    def __init__(self, compiled, ordinal: int = 0):
        cuda = driver.bindings()
        self.compiled, self.ordinal = compiled, ordinal
        self.context = driver.primary_context(ordinal)
        image = load_image(compiled, driver.describe(ordinal))
        with driver.on_device(ordinal):
            try:
                self._module = driver.call("cuModuleLoadData", image)
            except driver.DriverError as error:
                raise CapabilityMissing(
                    f"the driver (CUDA {driver.probe().driver_version}) refuses kernel {compiled.kernel!r} for {compiled.target}: {error}"
                ) from error
            self.function = driver.call("cuModuleGetFunction", self._module, compiled.entry.encode())
            if compiled.shared_bytes > STATIC_SHARED_LIMIT:
                attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                driver.call("cuFuncSetAttribute", self.function, attribute, compiled.shared_bytes)
            per_sm = driver.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", self.function, compiled.threads, compiled.shared_bytes)
        self.resident_blocks = per_sm * driver.describe(ordinal).sms
        self._arguments = ArgumentBuffer(compiled.parameters)
        self._lock = threading.Lock()
        self._launch, self._success = cuda.cuLaunchKernel, cuda.CUresult.CUDA_SUCCESS
        self._current, self._stream_type = cuda.cuCtxGetCurrent, cuda.CUstream
        self._context_address = int(self.context)

    def __call__(self, grid: tuple[int, ...], arguments: tuple[int, ...], stream: int = 0) -> None:
        """Enqueue one launch on ``stream`` (a raw handle; 0 is the legacy default stream)."""
        if int(self._current()[1]) == self._context_address:
            self._enqueue(grid, arguments, stream)
        else:
            with driver.on_device(self.ordinal):
                self._enqueue(grid, arguments, stream)

    def _enqueue(self, grid: tuple[int, ...], arguments: tuple[int, ...], stream: int) -> None:
        x, y, z = check_grid(grid)
        compiled = self.compiled
        with self._lock:  # the driver copies the arguments before it returns
            self._arguments.fill(arguments)
            (code,) = self._launch(
                self.function, x, y, z, compiled.threads, 1, 1, compiled.shared_bytes,
                self._stream_type(stream), self._arguments.address, 0,
            )
        if code != self._success:
            raise driver.DriverError(
                f"cuLaunchKernel: {code.name}: kernel {compiled.kernel!r}, grid {grid}, {compiled.threads} threads, "
                f"{compiled.shared_bytes} bytes of shared memory"
            )


_launchers: dict[tuple[int, str, str], Launcher] = {}
_registry_lock = threading.Lock()


def launcher(compiled, ordinal: int = 0) -> Launcher:
    """The ``Launcher`` of ``compiled`` on a device, loaded on first use."""
    key = (ordinal, compiled.target, compiled.ptx)
    found = _launchers.get(key)
    if found is None:
        with _registry_lock:
            found = _launchers.get(key)
            if found is None:
                found = _launchers[key] = Launcher(compiled, ordinal)
    return found


def check_workspace(partials_bytes: int, locks: int, *, needs_bytes: int, needs_locks: int) -> None:
    """ValueError if a workspace of ``partials_bytes`` and ``locks`` int32 is smaller than a kernel needs."""
    if partials_bytes < needs_bytes:
        raise ValueError(f"workspace partials have {partials_bytes} bytes, the kernel needs {needs_bytes}")
    if locks < needs_locks:
        raise ValueError(f"workspace locks have {locks} entries, the kernel needs {needs_locks} int32")


PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD: one handle, another stream in every host thread
_workspaces: dict[tuple, driver.DeviceArray] = {}
_outgrown: list[driver.DeviceArray] = []


def _scratch(ordinal: int, stream: int, role: str, nbytes: int) -> int:
    key = (ordinal, stream, role, threading.get_ident() if stream == PER_THREAD_STREAM else None)
    with _registry_lock:
        held = _workspaces.get(key)
        if held is None or held.nbytes < nbytes:
            # Doubling bounds what outgrown buffers can add up to.
            size = max(nbytes, 4096, 0 if held is None else 2 * held.nbytes)
            fresh = driver.DeviceArray((-(-size // 4),), "int32", ordinal)
            fresh.fill_words(0, stream)
            if held is not None:
                _outgrown.append(held)
            _workspaces[key] = held = fresh
    return held.address


def workspace(ordinal: int, stream: int, partials_bytes: int, locks: int) -> tuple[int, int]:
    """(address of at least ``partials_bytes``, address of at least ``locks`` zeroed int32) that belong to the stream."""
    return _scratch(ordinal, stream, "partials", partials_bytes), _scratch(ordinal, stream, "locks", 4 * locks)


def release_workspaces() -> None:
    """Free all scratch memory. No launch may be in flight and no captured graph may be replayed afterwards."""
    with _registry_lock:
        _workspaces.clear()
        _outgrown.clear()
