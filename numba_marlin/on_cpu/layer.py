"""The layer between a compiler's Python and CUDA's driver, in place of a GPU's.

numba-cuda and numba-cuda-mlir have it under two names, in modules of the same names
(``cudadrv.driver``, ``devicearray``, ``devices``, ``nvrtc``): it reaches the driver through one
method and a few names of cuda.core.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module

from numba_marlin.on_cpu import modules, nvrtc
from numba_marlin.on_cpu.driver import HostDriver
from numba_marlin.on_cpu.memory import memory_of
from numba_marlin.on_cpu.views import make_device_view, make_host_view


@contextmanager
def on_host(package: str) -> Iterator[tuple[HostDriver, Replaced]]:
    """``package``: where cudadrv lies, "numba.cuda" or "numba_cuda_mlir.numba_cuda". Yields its
    driver, and what records further names that are replaced until the context ends."""
    from cuda.bindings import driver as binding

    devicearray, devices, driver, its_nvrtc = (
        import_module(f"{package}.cudadrv.{name}")
        for name in ("devicearray", "devices", "driver", "nvrtc")
    )
    config = import_module(f"{package}.core.config")
    warning = import_module(f"{package}.core.errors").NumbaPerformanceWarning
    failure = driver.CudaAPIError
    host = HostDriver(binding, failure, launch_error(failure), memory_of(package))
    old = Replaced()
    real = driver.driver
    kept = dict(vars(real))
    for name in list(vars(real)):
        if name.startswith("cu"):
            del vars(real)[name]
    real.is_initialized, real.initialization_error, real.pid = True, None, os.getpid()
    real.devices = type(kept["devices"])()
    if not hasattr(driver, "_logger"):
        driver._logger = driver.make_logger()
    forget_devices(devices)
    old.set(driver.Driver, "_cuda_python_wrap_fn", lambda self, name: host.function(name))
    old.set(driver, "ExperimentalDevice", partial(modules.Device, host))
    old.set(driver, "ExperimentalStream", modules.Stream)
    old.set(devicearray, "_make_strided_memory_view", make_host_view(devicearray))
    old.set(
        devicearray,
        "_to_strided_memory_view",
        make_device_view(devicearray, import_module(package), config, warning),
    )
    # of no interest to a machine that is no GPU
    old.set(config, "CUDA_LOW_OCCUPANCY_WARNINGS", 0)
    old.set(its_nvrtc, "Program", nvrtc.Program)
    old.set(its_nvrtc, "ProgramOptions", nvrtc.Options)
    try:
        yield host, old
    finally:
        for device in devices.gpus:
            device.reset()
        old.restore()
        forget_devices(devices)
        vars(real).clear()
        vars(real).update(kept)
        for name in DESTRUCTORS:
            vars(real)[name] = late(name, host, real)


DESTRUCTORS = (
    *("cuMemFree", "cuMemFreeHost", "cuMemHostUnregister"),
    *("cuStreamDestroy", "cuEventDestroy", "cuLibraryUnload"),
)


def late(name: str, host: HostDriver, real):
    """A destructor for what outlives the switch: arrays, streams and modules call one when they are
    collected. A GPU's own, where there is one, get theirs."""

    def call(handle):
        try:
            return host.function(name)(handle)
        except host.failure:  # was not made here, or is gone already
            if real.initialization_error is not None:
                return ()
            found = real._cuda_python_wrap_fn(name)(handle)
            vars(real)[name] = call
            return found

    call.__name__ = name
    return call


def launch_error(failure: type) -> type:
    """What a launch raises that the driver refuses: cuda.core's error, and numba-cuda's."""
    from cuda.core._utils import cuda_utils

    return type("LaunchError", (failure, cuda_utils.CUDAError), {})


class Replaced:
    """Attributes that stand for others for a while."""

    def __init__(self) -> None:
        self._before: list[tuple] = []

    def set(self, owner, name: str, value) -> None:
        self._before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def restore(self) -> None:
        for owner, name, value in reversed(self._before):
            setattr(owner, name, value)


def forget_devices(devices) -> None:
    """numba-cuda keeps the list of devices for ever, and for each thread the context in use."""
    vars(type(devices.gpus))["lst"].fget.cache_clear()
    devices._runtime._set_attached_context(None)
