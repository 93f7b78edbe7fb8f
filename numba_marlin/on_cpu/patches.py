"""The names of numba-cuda that are replaced while the switch is on, and by what."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, wraps

from numba_marlin.on_cpu import launching, modules, nvrtc
from numba_marlin.on_cpu.driver import HostDriver
from numba_marlin.on_cpu.linking import lto_ir, ptx_of
from numba_marlin.on_cpu.switch import Options
from numba_marlin.on_cpu.views import make_device_view, make_host_view


@contextmanager
def patched(options: Options) -> Iterator[None]:
    """Replace them, and put them back."""
    import numba_cuda  # noqa: F401  (redirects numba.cuda)
    from cuda.bindings import driver as binding
    from numba.cuda import debuginfo, dispatcher
    from numba.cuda.codegen import CUDACodeLibrary
    from numba.cuda.core import config
    from numba.cuda.core.errors import NumbaPerformanceWarning
    from numba.cuda.cudadrv import devicearray, devices, driver
    from numba.cuda.cudadrv import nvrtc as cuda_nvrtc

    host = HostDriver(binding, driver.CudaAPIError, launch_error(driver.CudaAPIError))
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
        make_device_view(devicearray, NumbaPerformanceWarning),
    )
    # of no interest to a machine that is no GPU
    old.set(config, "CUDA_LOW_OCCUPANCY_WARNINGS", 0)
    old.set(dispatcher, "LaunchConfig", modules.LaunchConfig)
    old.set(dispatcher, "launch", partial(launching.launch, host))
    old.set(dispatcher, "compile_cuda", with_lines(dispatcher.compile_cuda))
    builder = debuginfo.CUDADIBuilder
    for name in ("mark_variable", "update_variable"):
        old.set(builder, name, unless_lines_only(vars(builder)[name]))
    builder = debuginfo.DIBuilder
    old.set(builder, "mark_subprogram", plainly_named(builder.mark_subprogram))
    builder = debuginfo.CUDADIBuilder
    old.set(builder, "_di_subroutine_type", untyped(vars(builder)["_di_subroutine_type"]))
    old.set(dispatcher._Kernel, "launch", remembered(dispatcher._Kernel.launch))
    old.set(CUDACodeLibrary, "get_ltoir", lto_ir)
    old.set(cuda_nvrtc, "Program", nvrtc.Program)
    old.set(cuda_nvrtc, "ProgramOptions", nvrtc.Options)
    functions = weakref.WeakKeyDictionary()
    old.set(
        CUDACodeLibrary,
        "get_cufunc",
        lambda library: loaded(library, functions, host, options, devices, driver),
    )
    try:
        yield
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


def loaded(library, functions, host: HostDriver, options: Options, devices, driver):
    """In place of CUDACodeLibrary.get_cufunc: the kernel of ``library`` in a module of the machine.
    Nothing is kept in ``library``, which may be written to a disk cache and read with a GPU."""
    if library._entry_name is None:
        raise RuntimeError("Missing entry_name: this is a device function")
    found = functions.get(library)
    if found is None:
        context = devices.get_context()
        code = modules.ObjectCode(
            ptx_of(library, driver._Linker), host.handle(), host.memory, options.races
        )
        host.libraries[code.handle] = code
        module = context.create_module_image(
            code, library._setup_functions, library._teardown_functions
        )
        found = functions[library] = module.get_function(library._entry_name)
    return found


def remembered(launch):
    """_Kernel.launch, which tells ``launching`` whose arrays the arguments are."""

    @wraps(launch)
    def call(kernel, args, *rest, **keywords):
        before = getattr(launching.current, "called", None)
        launching.current.called = launching.Called(
            getattr(kernel, "py_func", None), kernel.argument_types, tuple(args)
        )
        try:
            return launch(kernel, args, *rest, **keywords)
        finally:
            launching.current.called = before

    return call


def with_lines(compile_cuda):
    @wraps(compile_cuda)
    def call(*args, debug=False, lineinfo=False, **keywords):
        with warnings.catch_warnings():
            if not (
                lineinfo or debug
            ):  # nobody asked for lines: of what has no source there are none
                warnings.filterwarnings("ignore", message="Could not find source for function")
            return compile_cuda(*args, debug=debug, lineinfo=lineinfo or not debug, **keywords)

    return call


def unless_lines_only(method):
    """libnvvm fails on debug information about arrays ("Symbol name with unsupported characters",
    numba-cuda 0.30.4): with line numbers alone there is none about variables."""

    @wraps(method)
    def call(self, *args, **keywords):
        if self.emission_kind == "FullDebug":
            return method(self, *args, **keywords)
        return None

    return call


def untyped(method):
    """Nor is there any about the types of parameters, on some of which it fails too."""

    @wraps(method)
    def call(self, line, function, argmap):
        if self.emission_kind == "FullDebug":
            return method(self, line, function, argmap)
        empty = self.module.add_metadata([])
        return self.module.add_debug_info("DISubroutineType", {"types": empty})

    return call


def plainly_named(method):
    """libnvvm rejects "<locals>" in the names of functions."""

    @wraps(method)
    def call(self, function, qualname, *args, **keywords):
        return method(self, function, qualname.rpartition(".")[2], *args, **keywords)

    return call
