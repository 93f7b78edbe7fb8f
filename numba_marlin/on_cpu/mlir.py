"""The names of numba-cuda-mlir that are replaced while the switch is on, and by what.

Its layer above the driver is numba-cuda's under another name (``layer``). Its launches go through a
dispatcher in C++ that calls the driver itself: a launch is made here in Python in its place. What
the compiler hands it as a kernel's machine code is PTX here.

A kernel's parameters are those of MLIR's descriptors: of an array the address of its memory,
the address of its first element, an offset, and sizes and strides in elements; of a tuple its
elements, one after the other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace

import numpy as np

from numba_marlin.on_cpu import launching, modules
from numba_marlin.on_cpu.driver import HostDriver
from numba_marlin.on_cpu.layer import on_host
from numba_marlin.on_cpu.linking import Unlinkable, joined
from numba_marlin.on_cpu.memory import View
from numba_marlin.on_cpu.switch import Options

BLOCK_THREADS = 128  # of forall, which asks a driver for a number of threads
ELF = b"\x7fELF"
DEVICE_RUNTIME = "libcudadevrt"  # which kernels with a barrier of the grid are linked with
# What a kernel leaves in this variable, as the compiler numbers it: the exception that it raised.
ERROR_CODE = "__numba_cuda_mlir_error_code"
RAISED = {
    1: (AssertionError, "Kernel assertion failed"),
    2: (IndexError, "Index out of bounds in kernel"),
    3: (ValueError, "Invalid value in kernel"),
    4: (RuntimeError, "Runtime error in kernel"),
    5: (ZeroDivisionError, "Division by zero in kernel"),
}
called = threading.local()
"""``launch``: the innermost Launched of this thread."""


class Launched:
    """A launch on its way: its ``dispatcher``, and ``types`` and ``values`` of the arguments, each
    as the kernel names them."""

    def __init__(self, dispatcher, types: Sequence, values: Sequence) -> None:
        self.dispatcher, self.types, self.values = dispatcher, types, values


@contextmanager
def patched(options: Options) -> Iterator[None]:
    """Replace them, and put them back."""
    from numba_cuda_mlir import compiler, descriptor, mlir_compiler, tools
    from numba_cuda_mlir.numba_cuda.cudadrv import driver

    # kernels that were configured here; they keep who launches them
    configured: weakref.WeakSet = weakref.WeakSet()
    loaded: dict[bytes, modules.ObjectCode] = {}
    with on_host("numba_cuda_mlir.numba_cuda") as (host, old):

        def code_of(image: bytes) -> modules.ObjectCode:
            if image not in loaded:
                loaded[image] = loaded_code(image, host, options)
            return loaded[image]

        old.set(tools, "_cached_cc", host.capability)
        old.set(mlir_compiler, "mlir_compiler_entry", with_lines(mlir_compiler.mlir_compiler_entry))
        old.set(driver._Linker, "complete", linked)
        old.set(compiler.CodeLibrary, "get_cufunc", function_of(code_of))
        old.set(compiler.CodeLibrary, "get_kernel_attributes", attributes_of(code_of))
        old.set(descriptor, "LaunchConfiguration", launcher(host, code_of))
        marshaller = descriptor._ArgMarshaller
        old.set(marshaller, "_launch", remembered(marshaller._launch))
        dispatcher = descriptor.MLIRDispatcher
        old.set(dispatcher, "configure", known(dispatcher.configure, configured))
        old.set(
            descriptor._ForAll,
            "_compute_thread_per_block",
            lambda asked: asked.thread_per_block or BLOCK_THREADS,
        )
        try:
            yield
        finally:
            for each in configured:
                each._clear_configure_cache()


def with_lines(compile_entry):
    """Line numbers are always compiled."""

    @wraps(compile_entry)
    def call(*args, targetoptions, **keywords):
        if not targetoptions.get("debug"):
            targetoptions = dict(targetoptions, lineinfo=True)
        return compile_entry(*args, targetoptions=targetoptions, **keywords)

    return call


def linked(linker):
    """In place of Linker.complete: PTX as the code, of all that is linked."""
    linker._materialize_pending_cu()
    codes = linker._object_codes
    kinds = {each.code_type for each in codes}
    if "ltoir" in kinds:
        whole = linker.recreate_with_lto(lto=True, ltoir_only=True)
        texts = [text_of(whole.get_linked_ptx())]
    else:
        texts = []
    texts += [text_of(each.code) for each in codes if each.code_type == "ptx"]
    # ``joined`` brings what cooperative grids want of it
    codes = [each for each in codes if DEVICE_RUNTIME not in str(each.name)]
    foreign = [each for each in codes if each.code_type not in ("ptx", "ltoir")]
    if foreign:
        raise Unlinkable(
            f"{foreign[0].name} is machine code ({foreign[0].code_type}), which cannot run without"
            " a GPU: link CUDA C++, PTX or LTO IR"
        )
    return SimpleNamespace(code=joined(texts[::-1]).encode() + b"\0")


def text_of(code) -> str:
    return (code if isinstance(code, str) else bytes(code).decode()).rstrip("\0")


def loaded_code(image: bytes, host: HostDriver, options: Options) -> modules.ObjectCode:
    if image.startswith(ELF):
        raise RuntimeError(
            "this kernel was compiled for a GPU before the switch was turned on: turn it on before"
            " the kernel's first launch"
        )
    code = modules.ObjectCode(text_of(image), host.handle(), host.memory, options.races)
    host.libraries[code.handle] = code
    return code


def function_of(code_of):
    """In place of CodeLibrary.get_cufunc."""

    def get_cufunc(library):
        return code_of(library._cubin).get_kernel(library._func_name)

    return get_cufunc


def attributes_of(code_of):
    """In place of CodeLibrary.get_kernel_attributes."""

    def get_kernel_attributes(library):
        found = code_of(library._cubin).get_kernel(library._func_name).attributes
        return {
            "regs_per_thread": found.num_regs,
            "shared_mem_per_block": found.shared_size_bytes,
            "const_mem_size": found.const_size_bytes,
            "local_mem_per_thread": found.local_size_bytes,
            "max_threads_per_block": found.max_threads_per_block,
        }

    return get_kernel_attributes


def known(configure, configured: weakref.WeakSet):
    """MLIRDispatcher.configure, which keeps nothing that was configured for a GPU."""

    @wraps(configure)
    def call(dispatcher, *args, **keywords):
        if dispatcher not in configured:
            dispatcher._clear_configure_cache()
            configured.add(dispatcher)
        return configure(dispatcher, *args, **keywords)

    return call


def remembered(launch):
    """_ArgMarshaller._launch, which tells ``called`` what is launched."""

    @wraps(launch)
    def call(marshaller, types, flat, values=None):
        before = getattr(called, "launch", None)
        called.launch = Launched(marshaller._dispatcher, types, flat if values is None else values)
        try:
            return launch(marshaller, types, flat, values)
        finally:
            called.launch = before

    return call


def launcher(host: HostDriver, code_of):
    """In place of _cext.LaunchConfiguration."""

    class LaunchConfiguration:
        def __init__(self, kernel_dispatcher, grid, block, stream, shared_bytes, cluster) -> None:
            self.config = modules.LaunchConfig(
                grid, block, shared_bytes or 0, cluster=cluster, is_cooperative=False
            )

        def __call__(self, *flat) -> None:
            launch = called.launch
            image, name, cooperative, *loading = launch.dispatcher._compile(list(flat))
            code = code_of(image)
            for setup in loading:
                setup(code.handle)
            views, arguments = flattened(launch)
            before = getattr(launching.current, "called", None)
            launching.current.called = launching.Called(
                launch.dispatcher.py_func, tuple(launch.types), tuple(launch.values), views
            )
            config = modules.LaunchConfig(
                self.config.grid,
                self.config.block,
                self.config.shmem_size,
                is_cooperative=cooperative,
                cluster=self.config.cluster,
            )
            try:
                launching.launch(host, None, config, code.get_kernel(name), *arguments)
            finally:
                launching.current.called = before
            raise_what_it_raised(code)

    return LaunchConfiguration


def raise_what_it_raised(code: modules.ObjectCode) -> None:
    """The exception of Python that a kernel with ``debug=True`` left word of, once."""
    left = code.variable(ERROR_CODE)
    if left is None or not left.data.any():
        return
    number = int.from_bytes(left.data[:4].tobytes(), "little")
    left.data[:] = 0
    kind, said = RAISED.get(number, (RuntimeError, f"Kernel error (code {number})"))
    raise kind(said)


def flattened(launch: Launched) -> tuple[tuple[View, ...], list]:
    """(the arrays by name, what the kernel is given)."""
    code = launch.dispatcher.py_func.__code__
    views: list[View] = []
    arguments: list = []
    for name, value in zip(code.co_varnames[: code.co_argcount], launch.values):
        flatten(name, value, views, arguments)
    return tuple(views), arguments


def flatten(name: str, value, views: list[View], arguments: list) -> None:
    if isinstance(value, (tuple, list)):
        for place, part in enumerate(value):
            flatten(f"{name}[{place}]", part, views, arguments)
        return
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        arguments.append(number(value))
        return
    dtype = np.dtype(interface.get("descr") or interface["typestr"])
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    if strides is None:
        strides = dense(shape, dtype.itemsize)
    address = int(interface["data"][0] or 0)
    views.append(View(name, address, dtype, shape, tuple(strides)))
    if getattr(value, "__device_record__", False):
        arguments.append(address)
        return
    arguments += [address, address, 0, *shape, *(each // dtype.itemsize for each in strides)]


def dense(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides, in bytes, of an array in C's order."""
    found, step = [], itemsize
    for size in reversed(shape):
        found.append(step)
        step *= size
    return tuple(reversed(found))


def number(value):
    """A number as ``launching.packed`` takes it: bytes where its bits are not an integer's."""
    if isinstance(value, (np.complexfloating, complex, np.float16, np.datetime64, np.timedelta64)):
        return np.asarray(value).tobytes()
    return value
