"""The few calls of the CUDA driver that this package makes, checked, and memory on the device.

Everything goes through ``cuda.bindings`` (12.x or 13.x), imported on the first call, never with this module. An error of the
driver is a ``DriverError`` with its name and text; no driver, no bindings or no device is a ``CapabilityMissing``.
Work runs in the device's primary context, the one that torch, CuPy and Numba share.
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from dataclasses import dataclass

import numpy as np

from numba_marlin import devices
from numba_marlin.errors import CapabilityMissing


class DriverError(RuntimeError):
    """A call of the CUDA driver failed. An error of an earlier kernel may surface at a later call."""


@functools.lru_cache(maxsize=None)
def bindings():
    """The ``cuda.bindings.driver`` module, initialised."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise CapabilityMissing(
            f"cuda-bindings cannot be imported ({error}); install numba-marlin[cu13] or numba-marlin[cu12]"
        ) from error
    try:
        (code,) = driver.cuInit(0)
    except Exception as error:  # cuda.pathfinder has its own error for a libcuda that is not there, older bindings others
        why = "" if "NotFound" in type(error).__name__ else f" ({(str(error).splitlines() or [type(error).__name__])[0]})"
        raise CapabilityMissing(f"no NVIDIA driver on this machine{why}") from error
    if code != driver.CUresult.CUDA_SUCCESS:
        raise CapabilityMissing(f"the NVIDIA driver does not start: {code.name}")
    return driver


def call(name: str, *arguments):
    """``cuda.bindings.driver.<name>(*arguments)``: its result without the error code, or DriverError."""
    driver = bindings()
    code, *results = getattr(driver, name)(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(code)
        raise DriverError(f"{name}: {code.name}: {text.decode() if isinstance(text, bytes) else text}")
    return results[0] if len(results) == 1 else tuple(results) or None


@dataclass(frozen=True)
class Probe:
    """Whether CUDA can be used here. ``reason`` says why not, ``devices`` lists what there is (maybe too old)."""

    usable: bool
    reason: str
    driver_version: str | None = None
    devices: tuple[devices.Device, ...] = ()


@functools.lru_cache(maxsize=None)
def probe() -> Probe:
    """Ask once per process. Usable: device 0 has compute capability 8.0 or more."""
    try:
        version = call("cuDriverGetVersion")
        count = call("cuDeviceGetCount")
        found = tuple(describe(ordinal) for ordinal in range(count))
    except (CapabilityMissing, DriverError) as error:
        return Probe(False, str(error))
    text = f"{version // 1000}.{version % 1000 // 10}"
    if not found:
        return Probe(False, "the driver lists no device", text)
    try:
        found[0].target
    except ValueError as error:
        return Probe(False, f"{found[0].name}: {error}", text, found)
    return Probe(True, "", text, found)


@functools.lru_cache(maxsize=None)
def describe(ordinal: int) -> devices.Device:
    """The numbers of a real device; its bandwidth is the data sheet's if its name is one we know."""
    attributes = bindings().CUdevice_attribute
    handle = call("cuDeviceGet", ordinal)

    def ask(name: str) -> int:
        return call("cuDeviceGetAttribute", getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)

    name = call("cuDeviceGetName", 256, handle)
    name = name.split(b"\0")[0].decode() if isinstance(name, bytes) else name
    alike = [each for each in devices.SPECIFICATIONS if each.name in name]
    return devices.Device(
        name=name,
        sms=ask("MULTIPROCESSOR_COUNT"),
        compute_capability=(ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")),
        shared_bytes_per_block=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        bandwidth_bytes=max(alike, key=lambda each: len(each.name)).bandwidth_bytes if alike else None,
        source="measured",
    )


@functools.lru_cache(maxsize=None)
def primary_context(ordinal: int):
    """The device's primary context, retained for the life of the process."""
    count = call("cuDeviceGetCount")
    if not 0 <= ordinal < count:
        raise ValueError(f"device={ordinal} must be below {count}, the number of CUDA devices")
    return call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", ordinal))


@contextlib.contextmanager
def on_device(ordinal: int):
    """Make the device's primary context current for the calls inside, and leave the caller's as it was."""
    call("cuCtxPushCurrent", primary_context(ordinal))
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


def synchronize(ordinal: int, stream: int = 0) -> None:
    with on_device(ordinal):
        call("cuStreamSynchronize", bindings().CUstream(stream))


def follow(ordinal: int, stream: int, before: int) -> None:
    """What is put on ``stream`` from now on waits for what is on the stream ``before``; the host waits for nothing."""
    types = bindings()
    with on_device(ordinal):
        event = call("cuEventCreate", int(types.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        try:
            call("cuEventRecord", event, types.CUstream(before))
            call("cuStreamWaitEvent", types.CUstream(stream), event, 0)
        finally:
            call("cuEventDestroy", event)  # the driver keeps it until it has happened


def _free(ordinal: int, address: int) -> None:
    # At interpreter exit the driver may be gone already; the memory goes with it.
    with contextlib.suppress(Exception), on_device(ordinal):
        call("cuMemFree", address)


class DeviceArray:
    """A C-contiguous array on a device, 256-byte aligned, freed with the object; speaks ``__cuda_array_interface__``."""

    def __init__(self, shape: tuple[int, ...], dtype, device: int = 0):
        self.shape, self.dtype, self.device = tuple(shape), np.dtype(dtype), device
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        with on_device(device):
            self.address = int(call("cuMemAlloc", max(self.nbytes, 16)))
        self._finalizer = weakref.finalize(self, _free, device, self.address)

    @classmethod
    def from_host(cls, array: np.ndarray, device: int = 0) -> DeviceArray:
        array = np.ascontiguousarray(array)
        result = cls(array.shape, array.dtype, device)
        with on_device(device):
            call("cuMemcpyHtoD", result.address, array.ctypes.data, array.nbytes)
            # From pageable memory the call may return before the last bytes arrive, which other streams must not see.
            call("cuStreamSynchronize", bindings().CUstream(0))
        return result

    def to_host(self) -> np.ndarray:
        """Waits for work on the legacy default stream; synchronise another stream first."""
        result = np.empty(self.shape, self.dtype)
        with on_device(self.device):
            call("cuMemcpyDtoH", result.ctypes.data, self.address, result.nbytes)
        return result

    def fill_words(self, word: int, stream: int = 0) -> None:
        """Set every 32-bit word, in the order of ``stream``."""
        with on_device(self.device):
            call("cuMemsetD32Async", self.address, word, self.nbytes // 4, bindings().CUstream(stream))

    @property
    def __cuda_array_interface__(self) -> dict:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3, "strides": None}
