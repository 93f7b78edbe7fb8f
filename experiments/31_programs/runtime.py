"""The functions of the CUDA runtime that programs call, on the PTX machine.

``Runtime.call(name, arguments)`` is what a program's ``name`` does: device memory is
``numba_marlin.on_cpu``'s, and kernels run from the PTX that nvcc put into the program, when they
are launched. ``note`` is told each launch, each report of the machine, and each function that is
not here, which returns cudaErrorNotSupported: textures, graphs, IPC, libraries.
"""

from __future__ import annotations

import ctypes
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from blas import Blas

from numba_marlin.emulator import Listener, MachineError
from numba_marlin.emulator.ordering.affordable import MOST_THREADS
from numba_marlin.emulator.state.global_memory import GlobalMemory
from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.hardware.limits import (
    BLOCK_THREADS,
    CONSTANT_BYTES,
    STATIC_SHARED_BYTES,
    SYSTEM_SHARED_BYTES,
    WARP_LANES,
)
from numba_marlin.on_cpu.launching import RESIDENT_THREADS
from numba_marlin.on_cpu.memory import TOTAL_BYTES, DeviceMemory, host_bytes
from numba_marlin.on_cpu.modules import CompiledKernel, ObjectCode

MULTIPROCESSORS = 16
LAUNCH_FAILED, NOT_SUPPORTED, ASSERTED = 719, 801, 710
INVALID_CONFIGURATION, MISSING_CONFIGURATION = 9, 52
ASSERT = "__assertfail"  # what device code calls
PTX = 1  # kind of a part of a fat binary
ATTRIBUTE_BYTES, COOPERATIVE, OF_CLUSTERS = 72, 2, 4  # of launches, and kinds of them
PROPERTIES = (
    *(TOTAL_BYTES, STATIC_SHARED_BYTES, HOPPER.shared_bytes_per_block, HOPPER.shared_bytes_per_sm),
    *(HOPPER.registers_per_sm, WARP_LANES, BLOCK_THREADS, HOPPER.warps_per_sm * WARP_LANES),
    *(MULTIPROCESSORS, *HOPPER.capability, CONSTANT_BYTES),
)
# numbers of enum cudaDeviceAttr
ATTRIBUTES = {
    **{1: BLOCK_THREADS, 2: BLOCK_THREADS, 3: BLOCK_THREADS, 4: 64, 5: 2**31 - 1},
    **{6: 65535, 7: 65535, 8: STATIC_SHARED_BYTES, 9: CONSTANT_BYTES, 10: WARP_LANES},
    **{12: HOPPER.registers_per_sm, 16: MULTIPROCESSORS, 19: 1, 31: 1, 39: 2048, 41: 1, 40: 1},
    **{75: HOPPER.capability[0], 76: HOPPER.capability[1], 81: HOPPER.shared_bytes_per_sm},
    **{83: 1, 89: 1, 95: 1, 97: HOPPER.shared_bytes_per_block, 115: 1},
}
# What does its work when it is called has nothing to wait for, and one device nothing to choose.
NOTHING_TO_DO = """cudaSetDevice cudaDeviceReset cudaStreamSynchronize
cudaStreamDestroy cudaStreamWaitEvent cudaEventDestroy cudaEventSynchronize cudaEventQuery
cudaStreamQuery cudaFuncSetAttribute cudaFuncSetCacheConfig cudaDeviceSetCacheConfig
cudaProfilerStart cudaProfilerStop cudaSetDeviceFlags cudaMemPrefetchAsync cudaMemAdvise
cudaStreamAttachMemAsync cudaDeviceSetLimit cudaThreadSynchronize
__cudaRegisterFatBinaryEnd __cudaUnregisterFatBinary cudaFuncSetSharedMemConfig
cudaDeviceSetSharedMemConfig cudaStreamSetAttribute cudaCtxResetPersistingL2Cache
cudaInitDevice cudaMemPoolSetAttribute""".split()


def at(address: int, kind=ctypes.c_long):
    return kind.from_address(address)


def text(address: int) -> str:
    return ctypes.string_at(address).decode()


def dim3(first: int, second: int) -> tuple[int, int, int]:
    """A dim3 as it is passed by value: in two integers."""
    return first & 0xFFFFFFFF, first >> 32 & 0xFFFFFFFF, second & 0xFFFFFFFF


def ptx_of(wrapper: int) -> str:
    """The PTX of a fat binary that is not compressed."""
    data = at(wrapper + 8).value
    begin, size = at(data + 6, ctypes.c_uint16).value, at(data + 8).value
    place, end = data + begin, data + begin + size
    while place < end:
        kind, head = at(place, ctypes.c_uint16).value, at(place + 4, ctypes.c_uint32).value
        nbytes = at(place + 8).value
        if kind == PTX:
            return ctypes.string_at(place + head, nbytes).rstrip(b"\0").decode()
        place += head + nbytes
    return ""


@dataclass
class Variable:
    module: ObjectCode
    name: str


class Runtime:
    """``races``: as of Machine. ``note``: called with a dict for each event."""

    def __init__(self, properties, races: bool | None, note: Callable[[dict], None]) -> None:
        self.memory = DeviceMemory(GlobalMemory())
        self.fill_properties, self.races, self.note = properties, races, note
        self.modules: list[ObjectCode] = []
        self.kernels: dict[int, CompiledKernel] = {}
        self.variables: dict[int, Variable] = {}
        self.launches: list[tuple] = []
        self.events: dict[int, float] = {}
        self.kept: dict = {}
        self.blas = Blas(self.bytes)
        self.last, self.pending, self.handles = 0, 0, 0x1000

    def call(self, name: str, given) -> int:
        arguments = [given[number] for number in range(24)]
        if name in NOTHING_TO_DO:
            return 0
        method = getattr(self, name.lstrip("_").removesuffix("_v2").removesuffix("_ptsz"), None)
        method = method or self.blas.function(name)
        if method is None:
            self.note({"event": "refused", "what": name})
            self.last = NOT_SUPPORTED
            return NOT_SUPPORTED
        try:
            takes = method.__code__
            all_of_them = takes.co_flags & inspect.CO_VARARGS
            found = method(*arguments[: None if all_of_them else takes.co_argcount - 1]) or 0
        except MachineError as error:
            if ASSERT in (error.text or ""):  # a program may want it, and asks later
                self.note({"event": "assert"})
                self.pending = ASSERTED
                return 0
            self.note({"event": "report", "kind": error.kind, "said": str(error)})
            found = LAUNCH_FAILED
        except Exception as error:  # what a program did, or this module: the row says it
            self.note({"event": "error", "said": f"{name}: {type(error).__name__}: {error}"})
            found = LAUNCH_FAILED
        if name.startswith("cuda") and found and method.__name__ not in ("cudaGetErrorString",):
            self.last = found if found < 1000 else self.last
        return found

    def bytes(self, address: int, nbytes: int) -> np.ndarray:
        """Of the device or of the program."""
        if self.memory.globals.find(address) is not None:
            return self.memory.bytes_at(address, nbytes)
        return host_bytes(address, nbytes)

    def handle(self, place: int) -> None:
        self.handles += 0x10
        at(place).value = self.handles

    # a program's kernels and variables

    def cudaRegisterFatBinary(self, wrapper):
        self.modules.append(ObjectCode(ptx_of(wrapper), 0, self.memory, self.races))
        handle = ctypes.c_long(len(self.modules) - 1)
        self.kept[wrapper] = handle
        return ctypes.addressof(handle)

    def cudaRegisterFunction(self, handle, function, name_on_host, name):
        module = self.modules[at(handle).value]
        self.kernels[function] = module.get_kernel(text(name))

    def cudaRegisterVar(self, handle, variable, name_on_host, name):
        self.variables[variable] = Variable(self.modules[at(handle).value], text(name))

    def variable(self, symbol: int):
        found = self.variables[symbol]
        return found.module.machine.globals[found.name]

    # launches

    def cudaPushCallConfiguration(self, grid, grid_z, block, block_z, shared, stream):
        self.launches.append((grid, grid_z, block, block_z, shared, stream))

    def cudaPopCallConfiguration(self, grid, block, shared, stream):
        if not self.launches:  # a kernel that is called as a function
            return MISSING_CONFIGURATION
        given = self.launches.pop()
        for place, first, second in ((grid, *given[:2]), (block, *given[2:4])):
            at(place).value = first
            at(place + 8, ctypes.c_uint32).value = second & 0xFFFFFFFF
        at(shared).value, at(stream).value = given[4:]

    def cudaGetKernel(self, place, function):
        at(place).value = function

    def cudaLaunchKernel(self, function, grid, grid_z, block, block_z, arguments, shared, stream):
        return self.launch(function, dim3(grid, grid_z), dim3(block, block_z), arguments, shared)

    def cudaLaunchCooperativeKernel(
        self, function, grid, grid_z, block, block_z, arguments, shared, stream
    ):
        return self.launch(
            function, dim3(grid, grid_z), dim3(block, block_z), arguments, shared, together=True
        )

    def cudaLaunchKernelExC(self, config, function, arguments):
        """A cudaLaunchConfig_t: grid, block, bytes, stream, attributes and their number."""
        sizes = (ctypes.c_uint32 * 6).from_address(config)
        attributes = at(config + 40).value
        each = (
            attributes + ATTRIBUTE_BYTES * n for n in range(at(config + 48, ctypes.c_int).value)
        )
        kinds = {at(place, ctypes.c_int).value: place + 8 for place in each}
        if OF_CLUSTERS in kinds:
            self.note({"event": "refused", "what": "a launch of clusters"})
            return NOT_SUPPORTED
        shared, together = at(config + 24).value, COOPERATIVE in kinds
        return self.launch(
            function, tuple(sizes[:3]), tuple(sizes[3:]), arguments, shared, together
        )

    def launch(self, function, grid, block, arguments, shared, together=False) -> int:
        """Blocks of the grid are all on the machine at once if they must be."""
        kernel = self.kernels[function]
        machine, blocks = kernel.module.machine, int(np.prod(grid))
        # where there are too many threads for it, None looks for no races
        machine.races = self.races if blocks * int(np.prod(block)) < MOST_THREADS else None
        values = [
            ctypes.string_at(at(arguments + 8 * number).value, parameter.size)
            for number, parameter in enumerate(kernel.kernel.parameters)
        ]
        threads, start = int(np.prod(block)), time.process_time()
        if not threads or not blocks:
            return INVALID_CONFIGURATION
        resident = blocks if together else min(blocks, max(1, RESIDENT_THREADS // max(threads, 1)))
        self.note({"event": "begin", "kernel": kernel.name})
        result = machine.run(
            kernel.name,
            grid=grid,
            block=block,
            shared_bytes=shared & 0xFFFFFFFF,
            args=values,
            resident_blocks=resident,
            listener=Listener(printed=lambda said: None),
            max_instructions=10**9,
        )
        self.note(
            {
                "event": "launch",
                "kernel": kernel.name,
                "blocks": blocks,
                "threads": threads,
                "instructions": result.instructions,
                "seconds": round(time.process_time() - start, 3),
                "warnings": sorted({error.check or error.kind for error in result.warnings}),
            }
        )
        return 0

    def cudaFuncGetAttributes(self, place, function):
        found = self.kernels[function].attributes
        ctypes.memset(place, 0, 48)
        at(place).value = found.shared_size_bytes
        for number, value in enumerate((found.max_threads_per_block, found.num_regs, 90, 90)):
            at(place + 24 + 4 * number, ctypes.c_int).value = value

    def cudaOccupancyMaxActiveBlocksPerMultiprocessor(self, place, function, threads, dynamic):
        shared = self.kernels[function].attributes.shared_size_bytes + dynamic
        warps = -(-(threads & 0xFFFFFFFF) // WARP_LANES)
        at(place, ctypes.c_int).value = min(
            HOPPER.blocks_per_sm,
            HOPPER.warps_per_sm // max(warps, 1),
            HOPPER.shared_bytes_per_sm // (shared + SYSTEM_SHARED_BYTES),
        )

    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = (
        cudaOccupancyMaxActiveBlocksPerMultiprocessor
    )

    # memory

    def cudaMalloc(self, place, nbytes):
        at(place).value = self.memory.allocate(nbytes)

    def cudaMallocAsync(self, place, nbytes):
        at(place).value = self.memory.allocate(nbytes)

    def cudaMallocPitch(self, place, pitch, width, height):
        at(pitch).value = row = -(-width // 512) * 512
        at(place).value = self.memory.allocate(row * height)

    def cudaMallocManaged(self, place, nbytes):
        at(place).value = self.memory.allocate_managed(nbytes)

    cudaMallocHost = cudaHostAlloc = cudaMallocManaged  # one address for both sides

    def cudaHostRegister(self, pointer, nbytes):
        self.memory._add(pointer, host_bytes(pointer, nbytes))  # one address for both sides

    def cudaHostUnregister(self, pointer):
        self.memory._remove(self.memory.allocations[pointer])

    def cudaHostGetDevicePointer(self, place, pointer):
        at(place).value = pointer

    def cudaFree(self, address):
        if address:
            self.memory.free(address)

    cudaFreeHost = cudaFreeAsync = cudaFree

    def cudaMemcpy(self, target, source, nbytes):
        self.bytes(target, nbytes)[:] = self.bytes(source, nbytes)

    cudaMemcpyAsync = cudaMemcpy

    def cudaMemcpy2D(self, target, target_row, source, source_row, width, height):
        for row in range(height):
            self.cudaMemcpy(target + row * target_row, source + row * source_row, width)

    cudaMemcpy2DAsync = cudaMemcpy2D

    def cudaMemset(self, target, value, nbytes):
        self.bytes(target, nbytes)[:] = value & 0xFF

    cudaMemsetAsync = cudaMemset

    def cudaMemcpyToSymbol(self, symbol, source, nbytes, offset):
        self.variable(symbol).data[offset : offset + nbytes] = self.bytes(source, nbytes)

    cudaMemcpyToSymbolAsync = cudaMemcpyToSymbol

    def cudaMemcpyFromSymbol(self, target, symbol, nbytes, offset):
        self.bytes(target, nbytes)[:] = self.variable(symbol).data[offset : offset + nbytes]

    def cudaGetSymbolAddress(self, place, symbol):
        at(place).value = self.variable(symbol).address

    def cudaMemGetInfo(self, free, total):
        at(free).value, at(total).value = TOTAL_BYTES - self.memory.used, TOTAL_BYTES

    # the device, streams, events, errors

    def cudaGetDevice(self, place):
        at(place, ctypes.c_int).value = 0

    def cudaGetDeviceCount(self, place):
        at(place, ctypes.c_int).value = 1

    def cudaGetDeviceProperties(self, place):
        self.fill_properties(ctypes.c_void_p(place), (ctypes.c_long * len(PROPERTIES))(*PROPERTIES))

    def cudaDeviceGetAttribute(self, place, attribute):
        at(place, ctypes.c_int).value = ATTRIBUTES.get(attribute & 0xFFFFFFFF, 0)

    def cudaDriverGetVersion(self, place):
        at(place, ctypes.c_int).value = 13000

    cudaRuntimeGetVersion = cudaDriverGetVersion

    def cudaDeviceSynchronize(self):
        return self.pending

    def cudaStreamCreate(self, place):
        self.handle(place)

    cudaDeviceGetDefaultMemPool = cudaStreamCreate
    cudaStreamCreateWithFlags = cudaStreamCreateWithPriority = cudaStreamCreate
    cudaEventCreate = cudaEventCreateWithFlags = cudaStreamCreate

    def cudaStreamAddCallback(self, stream, function, data):
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(function)(
            stream, 0, data
        )

    def cudaDeviceGetStreamPriorityRange(self, least, greatest):
        at(least, ctypes.c_int).value = at(greatest, ctypes.c_int).value = 0

    def cudaEventRecord(self, event):
        self.events[event] = time.perf_counter()

    def cudaEventElapsedTime(self, place, start, end):
        at(place, ctypes.c_float).value = 1e3 * (self.events[end] - self.events[start]) + 1e-3

    def cudaGetLastError(self):
        last, self.last = self.last, 0
        return last

    def cudaPeekAtLastError(self):
        return self.last

    def cudaGetErrorString(self, code):
        said = self.kept.setdefault(("error", code), ctypes.create_string_buffer(b"CUDA error"))
        return ctypes.addressof(said)

    cudaGetErrorName = cudaGetErrorString
