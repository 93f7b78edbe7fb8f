"""The names of numba-cuda that are replaced while the switch is on, and by what."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path

from numba_marlin.on_cpu import launching, modules
from numba_marlin.on_cpu.driver import HostDriver
from numba_marlin.on_cpu.layer import on_host
from numba_marlin.on_cpu.linking import lto_ir, ptx_of
from numba_marlin.on_cpu.switch import Options
from numba_marlin.row_stack import restore_row_stack


@contextmanager
def patched(options: Options) -> Iterator[None]:
    """Replace them, and put them back."""
    restore_row_stack()
    import numba_cuda  # noqa: F401  (redirects numba.cuda)
    from numba.cuda import debuginfo, dispatcher
    from numba.cuda.codegen import CUDACodeLibrary
    from numba.cuda.cudadrv import devices, driver, nvrtc
    from numba.cuda.memory_management import nrt

    with on_host("numba.cuda") as (host, old):
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
        old.set(nrt, "LaunchConfig", modules.LaunchConfig)
        old.set(nrt, "launch", partial(launching.launch, host))
        old.set(nrt._Runtime, "_compile_memsys_module", counters(host, options, devices, nvrtc))
        functions = weakref.WeakKeyDictionary()
        old.set(
            CUDACodeLibrary,
            "get_cufunc",
            lambda library: loaded(library, functions, host, options, devices, driver),
        )
        nrt.rtsys.close()
        try:
            yield
        finally:
            nrt.rtsys.close()


def counters(host: HostDriver, options: Options, devices, nvrtc):
    """In place of _Runtime._compile_memsys_module: the counters of numba-cuda's reference counting,
    which it compiles to machine code."""
    from numba.cuda.memory_management import nrt

    def compile_counters(runtime) -> None:
        path = Path(nrt.__file__).with_name("memsys.cu")
        compiled = nvrtc.compile(path.read_text("utf-8"), path.name, host.capability)[0]
        text = compiled.code.decode()
        code = modules.ObjectCode(text, host.handle(), host.memory, options.races)
        host.libraries[code.handle] = code
        runtime._memsys_module = devices.get_context().create_module_image(code)

    return compile_counters


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
