"""The few calls of the CUDA driver that this package makes, with errors checked, and device memory.

All calls go through ``cuda.bindings`` (12.x or 13.x), imported on the first call, never with this
module. A driver error raises ``DriverError`` with its name and text; a missing driver, device or
``cuda.bindings`` raises ``CapabilityMissing``. Work runs in the device's primary context, the one
that torch, CuPy and Numba share.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import re
import sys
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from numba_marlin.errors import CapabilityMissing
from numba_marlin.hardware import devices
from numba_marlin.hardware.architectures import architecture_of
from numba_marlin.hardware.limits import WARP_LANES


class DriverError(RuntimeError):
    """A CUDA driver call failed. It may report an error of a kernel launched earlier."""


@functools.cache
def bindings():
    """The ``cuda.bindings.driver`` module, initialised."""
    if sys.platform == "darwin":
        raise CapabilityMissing("there is no CUDA for macOS")
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise CapabilityMissing(
            f"cuda-bindings cannot be imported ({error}); install numba-marlin[cu13] or"
            " numba-marlin[cu12]"
        ) from error
    try:
        (code,) = driver.cuInit(0)
    # cuda.pathfinder has its own error for a libcuda that is not there, older bindings others
    except Exception as error:
        why = (
            ""
            if "NotFound" in type(error).__name__
            else f" ({(str(error).splitlines() or [type(error).__name__])[0]})"
        )
        raise CapabilityMissing(f"no NVIDIA driver on this machine{why}") from error
    if code != driver.CUresult.CUDA_SUCCESS:
        raise CapabilityMissing(f"the NVIDIA driver does not start: {code.name}")
    return driver


def call(name: str, *arguments):
    """``cuda.bindings.driver.<name>(*arguments)``: its result without the error code, or
    DriverError."""
    driver = bindings()
    code, *results = getattr(driver, name)(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(code)
        raise DriverError(
            f"{name}: {code.name}: {text.decode() if isinstance(text, bytes) else text}"
        )
    return results[0] if len(results) == 1 else tuple(results) or None


@dataclass(frozen=True)
class Probe:
    """Whether CUDA is usable. ``reason``: why not; ``devices``: all devices, including those that
    are too old."""

    usable: bool
    reason: str
    driver_version: str | None = None
    devices: tuple[devices.Device, ...] = ()


@functools.cache
def probe() -> Probe:
    """Probe for CUDA once per process. Usable: device 0 has compute capability 8.0 or higher."""
    try:
        text = _cuda_version()
        count = call("cuDeviceGetCount")
        found = tuple(describe(ordinal) for ordinal in range(count))
    except (CapabilityMissing, DriverError) as error:
        return Probe(False, str(error))
    if not found:
        return Probe(False, "the driver lists no device", text)
    try:
        _ = found[0].target  # ValueError: older than every target of the kernels
    except ValueError as error:
        return Probe(False, f"{found[0].name}: {error}", text, found)
    return Probe(True, "", text, found)


@functools.cache
def version() -> str | None:
    """The driver's version ("580.159.04") if the operating system reports it; else the CUDA version
    that it supports; None without a driver."""
    with contextlib.suppress(OSError):
        found = re.search(
            r"\b\d+\.\d+(?:\.\d+)?\b",
            Path("/proc/driver/nvidia/version").read_text(encoding="utf-8"),
        )
        if found:
            return found[0]
    try:
        return f"CUDA {_cuda_version()}"
    except (CapabilityMissing, DriverError):
        return None


def _cuda_version() -> str:
    number = call("cuDriverGetVersion")
    return f"{number // 1000}.{number % 1000 // 10}"


@functools.cache
def describe(ordinal: int) -> devices.Device:
    """The Device of a real GPU, from the driver's attributes. Bandwidth and tensor-core peaks are
    those of the data sheet if the table has a GPU of that name, else None."""
    attributes = bindings().CUdevice_attribute
    handle = call("cuDeviceGet", ordinal)

    def ask(name: str) -> int:
        return call(
            "cuDeviceGetAttribute", getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}"), handle
        )

    name = call("cuDeviceGetName", 256, handle)
    name = name.split(b"\0")[0].decode() if isinstance(name, bytes) else name
    capability = (ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR"))
    known = devices.specified(name)
    return devices.Device(
        name=name,
        sms=ask("MULTIPROCESSOR_COUNT"),
        compute_capability=capability,
        source="measured",
        bandwidth_bytes=known and known.bandwidth_bytes,
        memory_bytes=call("cuDeviceTotalMem", handle),
        l2_bytes=ask("L2_CACHE_SIZE"),
        clock_mhz=ask("CLOCK_RATE") // 1000,
        matrix_flops=known and known.matrix_flops,
        fp8_flops=known and known.fp8_flops,
        fp4_flops=known and known.fp4_flops,
        references=known.references if known else (),
        limits=replace(
            architecture_of(capability),
            warps_per_sm=ask("MAX_THREADS_PER_MULTIPROCESSOR") // WARP_LANES,
            blocks_per_sm=ask("MAX_BLOCKS_PER_MULTIPROCESSOR"),
            registers_per_sm=ask("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            shared_bytes_per_sm=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            source="measured",
        ),
        driver=version(),
    )


@functools.cache
def primary_context(ordinal: int):
    """The device's primary context, retained for the life of the process."""
    count = call("cuDeviceGetCount")
    if not 0 <= ordinal < count:
        raise ValueError(f"device={ordinal} must be below {count}, the number of CUDA devices")
    return call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", ordinal))


@contextlib.contextmanager
def on_device(ordinal: int):
    """Make the device's primary context current for the calls inside, and leave the caller's as it
    was."""
    call("cuCtxPushCurrent", primary_context(ordinal))
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


def synchronize(ordinal: int, stream: int = 0) -> None:
    with on_device(ordinal):
        call("cuStreamSynchronize", bindings().CUstream(stream))


def follow(ordinal: int, stream: int, before: int) -> None:
    """Make later work on ``stream`` wait for the work now on the stream ``before``. The host does
    not wait."""
    types = bindings()
    with on_device(ordinal):
        event = call("cuEventCreate", int(types.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        try:
            call("cuEventRecord", event, types.CUstream(before))
            call("cuStreamWaitEvent", types.CUstream(stream), event, 0)
        finally:
            call("cuEventDestroy", event)  # the driver keeps the event until it has completed


@functools.cache
def raw_launch():
    """``cuLaunchKernelEx`` as a ctypes function (config, function, parameters, extra) -> error
    code, without the overhead of the bindings. ``pointer`` makes its arguments."""
    _, entry, *_ = bindings().cuGetProcAddress(b"cuLaunchKernelEx", 12000, 0)
    if not int(entry or 0):
        raise CapabilityMissing("the NVIDIA driver has no cuLaunchKernelEx; it came with CUDA 11.8")
    return ctypes.CFUNCTYPE(ctypes.c_int)(int(entry))


def pointer(address: int):
    """An argument for ``raw_launch``, reusable for many calls."""
    return ctypes.c_void_p.from_param(address)


LEGACY_STREAMS = (0, 1)  # the legacy default stream, which cannot be captured, and its other name


def capture_id(stream: int) -> int | None:
    """The id of the graph capture that ``stream`` is in, unique in the process; None if it is not
    being captured."""
    types = bindings()
    if stream in LEGACY_STREAMS:  # a query would fail, and would end the capture of another stream
        return None
    status, number, *_ = call("cuStreamGetCaptureInfo", types.CUstream(stream))
    return (
        int(number)
        if status == types.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        else None
    )


@contextlib.contextmanager
def beside_captures():
    """A context in which this thread may allocate and load while a stream is being captured,
    without adding to the graph."""
    mode = call(
        "cuThreadExchangeStreamCaptureMode",
        bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,
    )
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", mode)


@functools.cache
def _own_stream(ordinal: int):
    """A stream of this package for copies and fills that the host waits for, so that they do not
    queue behind other work."""
    with on_device(ordinal):
        return call("cuStreamCreate", int(bindings().CUstream_flags.CU_STREAM_NON_BLOCKING))


def _free(ordinal: int, address: int) -> None:
    # At interpreter exit the driver may be gone already; the memory goes with it.
    with contextlib.suppress(Exception), on_device(ordinal), beside_captures():
        call("cuMemFree", address)


class DeviceArray:
    """A C-contiguous array on a device, 256-byte aligned, freed with the object; it has
    ``__cuda_array_interface__``."""

    def __init__(self, shape: tuple[int, ...], dtype, device: int = 0):
        self.shape, self.dtype, self.device = tuple(shape), np.dtype(dtype), device
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        with on_device(device), beside_captures():
            self.address = int(call("cuMemAlloc", max(self.nbytes, 16)))
        self._finalizer = weakref.finalize(self, _free, device, self.address)

    @classmethod
    def from_host(cls, array: np.ndarray, device: int = 0) -> DeviceArray:
        array = np.ascontiguousarray(array)
        result = cls(array.shape, array.dtype, device)
        with on_device(device), beside_captures():
            call(
                "cuMemcpyHtoDAsync",
                result.address,
                array.ctypes.data,
                array.nbytes,
                _own_stream(device),
            )
            call("cuStreamSynchronize", _own_stream(device))
        return result

    def clear(self) -> DeviceArray:
        """Zero every byte, and wait for it, regardless of what other streams do or capture."""
        with on_device(self.device), beside_captures():
            call("cuMemsetD8Async", self.address, 0, self.nbytes, _own_stream(self.device))
            call("cuStreamSynchronize", _own_stream(self.device))
        return self

    def to_host(self) -> np.ndarray:
        """Copy to the host, after work on the legacy default stream; synchronise other streams
        first."""
        result = np.empty(self.shape, self.dtype)
        with on_device(self.device):
            call("cuMemcpyDtoH", result.ctypes.data, self.address, result.nbytes)
        return result

    def fill_words(self, word: int, stream: int = 0) -> None:
        """Set every 32-bit word, in stream order."""
        with on_device(self.device):
            call(
                "cuMemsetD32Async",
                self.address,
                word,
                self.nbytes // 4,
                bindings().CUstream(stream),
            )

    @property
    def __cuda_array_interface__(self) -> dict:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
        }
