"""The functions of CUDA's driver API that numba-cuda calls, on host memory.

Methods have the driver's names and return what cuda-bindings' functions return behind the status;
``CudaAPIError`` instead of another status. All work is done when it is asked for: streams are in
order, events have always happened.
"""

from __future__ import annotations

import ctypes
import threading
import time
from functools import partial

from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.hardware.limits import (
    BLOCK_THREADS,
    CONSTANT_BYTES,
    GRID_BLOCKS,
    STATIC_SHARED_BYTES,
    SYSTEM_SHARED_BYTES,
    WARP_LANES,
)
from numba_marlin.on_cpu.memory import (
    TOTAL_BYTES,
    DeviceMemory,
    NotAnAllocation,
    OutOfMemory,
)
from numba_marlin.on_cpu.memory import host_bytes as host

REFUSED = {
    "cuIpc": "IPC handles: device memory is this process's own",
    "cuCtxEnablePeerAccess": "peer access: there is one device",
    "cuMemcpyPeer": "peer copies: there is one device",
    "cuTex": "textures",
    "cuSurf": "surfaces",
    "cuGraph": "graphs",
    "cuArray": "CUDA arrays, which textures read",
}
MULTIPROCESSORS = 16
THREADS_PER_MULTIPROCESSOR = HOPPER.warps_per_sm * WARP_LANES
# What numba-cuda or a program may ask of the device: figures of Hopper, and one device that can
# what is done here.
ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": HOPPER.capability[0],
    "COMPUTE_CAPABILITY_MINOR": HOPPER.capability[1],
    "MULTIPROCESSOR_COUNT": MULTIPROCESSORS,
    "MAX_THREADS_PER_MULTIPROCESSOR": THREADS_PER_MULTIPROCESSOR,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": HOPPER.blocks_per_sm,
    "MAX_THREADS_PER_BLOCK": BLOCK_THREADS,
    "MAX_BLOCK_DIM_X": BLOCK_THREADS,
    "MAX_BLOCK_DIM_Y": BLOCK_THREADS,
    "MAX_BLOCK_DIM_Z": 64,
    "MAX_GRID_DIM_X": GRID_BLOCKS[0],
    "MAX_GRID_DIM_Y": GRID_BLOCKS[1],
    "MAX_GRID_DIM_Z": GRID_BLOCKS[2],
    "MAX_REGISTERS_PER_BLOCK": HOPPER.registers_per_sm,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": HOPPER.registers_per_sm,
    "MAX_SHARED_MEMORY_PER_BLOCK": STATIC_SHARED_BYTES,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": HOPPER.shared_bytes_per_block,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": HOPPER.shared_bytes_per_sm,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": SYSTEM_SHARED_BYTES,
    "TOTAL_CONSTANT_MEMORY": CONSTANT_BYTES,
    "WARP_SIZE": WARP_LANES,
    "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
    "CAN_MAP_HOST_MEMORY": 1,
    "UNIFIED_ADDRESSING": 1,
    "MANAGED_MEMORY": 1,
    "CONCURRENT_MANAGED_ACCESS": 1,
    "COOPERATIVE_LAUNCH": 1,
    "CONCURRENT_KERNELS": 1,
    "ASYNC_ENGINE_COUNT": 1,
    "COMPUTE_MODE": 0,
    "COMPUTE_PREEMPTION_SUPPORTED": 1,
    "ECC_ENABLED": 0,
    "INTEGRATED": 0,
    "KERNEL_EXEC_TIMEOUT": 0,
    "MULTI_GPU_BOARD": 0,
    "TCC_DRIVER": 0,
    "PCI_DOMAIN_ID": 0,
    "PCI_BUS_ID": 0,
    "PCI_DEVICE_ID": 0,
    "TEXTURE_ALIGNMENT": 512,
    "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM": 0,
    "STREAM_PRIORITIES_SUPPORTED": 0,
}


class HostDriver:
    """One device and its one context. ``binding``: the module cuda.bindings.driver, for its types;
    ``failure``: CudaAPIError of numba-cuda; ``refused``: the same of a launch; ``memory``: what it
    allocates in."""

    def __init__(self, binding, failure: type, refused: type, memory: DeviceMemory) -> None:
        self.binding, self.failure, self.refused = binding, failure, refused
        self.capability = HOPPER.capability
        self.memory = memory
        # a driver's function or a launch at a time: what a kernel sees does not move under it
        self.lock = threading.RLock()
        self.context = binding.CUcontext(0x1000)
        self.libraries: dict[int, object] = {}
        self.events: dict[int, float] = {}
        self.streams: set[int] = set()
        self._local = threading.local()
        self._next = 0x2000

    def function(self, name: str):
        """The driver's function ``name``; one that says why not, if it is not here."""
        method = getattr(self, name, None)
        if method is None:
            return partial(self._refuse, name)

        def call(*args):
            try:
                with self.lock:
                    found = method(*args)
            except OutOfMemory as error:
                raise self.failed("CUDA_ERROR_OUT_OF_MEMORY", name, error) from error
            except NotAnAllocation as error:
                raise self.failed("CUDA_ERROR_INVALID_VALUE", name, error) from error
            return () if found is None else found

        call.__name__ = name
        return call

    def _refuse(self, name: str, *args):
        what = next((text for start, text in REFUSED.items() if name.startswith(start)), name)
        raise self.failed(
            "CUDA_ERROR_NOT_SUPPORTED", name, f"without a GPU there is no support for {what}"
        )

    def failed(self, status: str, name: str, why) -> Exception:
        return self._error(self.failure, status, name, why)

    def launch_failed(self, status: str, why) -> Exception:
        return self._error(self.refused, status, "cuLaunchKernelEx", why)

    def _error(self, kind: type, status: str, name: str, why) -> Exception:
        code = getattr(self.binding.CUresult, status)
        return kind(code, f"Call to {name} results in {status}: {why}")

    def handle(self) -> int:
        self._next += 0x10
        return self._next

    # devices and contexts

    def cuInit(self, flags):
        pass

    def cuDriverGetVersion(self):
        return self.binding.CUDA_VERSION

    def cuDeviceGetCount(self):
        return 1

    def cuDeviceGet(self, number):
        return self.binding.CUdevice(number)

    def cuDeviceGetName(self, length, device):
        return b"PTX machine"

    def cuDeviceGetAttribute(self, code, device):
        name = code.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        if name not in ATTRIBUTES:
            raise self.failed(
                "CUDA_ERROR_INVALID_VALUE", "cuDeviceGetAttribute", f"{name} is not known here"
            )
        return ATTRIBUTES[name]

    def cuDeviceCanAccessPeer(self, device, peer):
        return 0

    def cuDevicePrimaryCtxRelease(self, device):
        pass

    def cuDevicePrimaryCtxReset(self, device):
        self.memory.free_all()
        self.libraries.clear()

    @property
    def _stack(self) -> list:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        return self._local.stack

    def cuCtxGetCurrent(self):
        return self._stack[-1] if self._stack else self.binding.CUcontext(0)

    def cuCtxGetDevice(self):
        return self.binding.CUdevice(0)

    def cuCtxPushCurrent(self, context):
        self._stack.append(context)

    def cuCtxPopCurrent(self):
        if not self._stack:
            raise self.failed("CUDA_ERROR_INVALID_CONTEXT", "cuCtxPopCurrent", "none is current")
        return self._stack.pop()

    def cuCtxSynchronize(self):
        pass

    def cuProfilerStart(self):
        pass

    def cuProfilerStop(self):
        pass

    # memory

    def cuMemAlloc(self, nbytes):
        if not nbytes:
            raise self.failed("CUDA_ERROR_INVALID_VALUE", "cuMemAlloc", "0 bytes")
        return self.binding.CUdeviceptr(self.memory.allocate(int(nbytes)))

    def cuMemAllocManaged(self, nbytes, flags):
        return self.binding.CUdeviceptr(self.memory.allocate_managed(int(nbytes)))

    def cuMemFree(self, pointer):
        self.memory.free(int(pointer))

    def cuMemHostAlloc(self, nbytes, flags):
        mapped = bool(flags & self.binding.CU_MEMHOSTALLOC_DEVICEMAP)
        return self.memory.allocate_host(int(nbytes), mapped)

    def cuMemFreeHost(self, pointer):
        self.memory.unregister(int(pointer))

    def cuMemHostRegister(self, pointer, nbytes, flags):
        mapped = bool(flags & self.binding.CU_MEMHOSTREGISTER_DEVICEMAP)
        self.memory.register(int(pointer), int(nbytes), mapped)

    def cuMemHostUnregister(self, pointer):
        self.memory.unregister(int(pointer))

    def cuMemHostGetDevicePointer(self, pointer, flags):
        found = self.memory.hosted.get(int(pointer))
        if found is None:
            raise NotAnAllocation(f"{int(pointer):#x} is not mapped")
        return self.binding.CUdeviceptr(found.address)

    def cuMemGetInfo(self):
        return TOTAL_BYTES - self.memory.used, TOTAL_BYTES

    def cuMemGetAddressRange(self, pointer):
        found = self.memory.find(int(pointer))
        return self.binding.CUdeviceptr(found.address), found.nbytes

    def cuPointerGetAttribute(self, attribute, pointer):
        mapped = self.memory.hosted.get(int(pointer))
        if attribute.name != "CU_POINTER_ATTRIBUTE_DEVICE_POINTER":
            self._refuse(f"cuPointerGetAttribute({attribute.name})")
        return self.binding.CUdeviceptr((mapped or self.memory.find(int(pointer))) and int(pointer))

    def cuMemcpyHtoD(self, target, source, nbytes, stream=0):
        self.memory.bytes_at(int(target), nbytes)[:] = host(int(source), nbytes)

    def cuMemcpyDtoH(self, target, source, nbytes, stream=0):
        host(int(target), nbytes)[:] = self.memory.bytes_at(int(source), nbytes)

    def cuMemcpyDtoD(self, target, source, nbytes, stream=0):
        self.memory.bytes_at(int(target), nbytes)[:] = self.memory.bytes_at(int(source), nbytes)

    def cuMemsetD8(self, target, value, count, stream=0):
        self.memory.bytes_at(int(target), count)[:] = value & 0xFF

    cuMemcpyHtoDAsync, cuMemcpyDtoHAsync = cuMemcpyHtoD, cuMemcpyDtoH
    cuMemcpyDtoDAsync, cuMemsetD8Async = cuMemcpyDtoD, cuMemsetD8

    # streams and events

    def cuStreamCreate(self, flags):
        handle = self.handle()
        self.streams.add(handle)
        return self.binding.CUstream(handle)

    def cuStreamDestroy(self, stream):
        self.streams.discard(int(stream))

    def cuStreamSynchronize(self, stream):
        pass

    def cuStreamWaitEvent(self, stream, event, flags):
        pass

    def cuStreamAddCallback(self, stream, callback, data, flags):
        # what is called gives up its reference to ``data``, as the driver's thread would have it do
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        function(int(callback))(int(stream or 0), 0, data)

    def cuEventCreate(self, flags):
        return self.binding.CUevent(self.handle())

    def cuEventDestroy(self, event):
        self.events.pop(int(event), None)

    def cuEventRecord(self, event, stream):
        self.events[int(event)] = time.perf_counter()

    def cuEventQuery(self, event):
        pass

    def cuEventSynchronize(self, event):
        pass

    def cuEventElapsedTime(self, start, end):
        try:
            return 1e3 * (self.events[int(end)] - self.events[int(start)])
        except KeyError as error:
            raise self.failed(
                "CUDA_ERROR_INVALID_HANDLE", "cuEventElapsedTime", "an event was not recorded"
            ) from error

    # modules

    def cuLibraryGetGlobal(self, library, name):
        """(address, bytes) of a variable of a module."""
        found = self.libraries[int(library)].variable(name.decode())
        if found is None:
            raise self.failed("CUDA_ERROR_NOT_FOUND", "cuLibraryGetGlobal", name.decode())
        return self.binding.CUdeviceptr(found.address), found.nbytes

    def cuLibraryUnload(self, library):
        self.libraries.pop(int(library), None)

    def cuKernelSetCacheConfig(self, kernel, flag, device):
        pass

    def cuKernelSetAttribute(self, attribute, value, kernel, device):
        pass

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, kernel, threads, dynamic):
        shared = kernel.attributes.shared_size_bytes + dynamic + SYSTEM_SHARED_BYTES
        warps = -(-threads // WARP_LANES)
        return max(
            0,
            min(
                HOPPER.blocks_per_sm,
                HOPPER.warps_per_sm // max(warps, 1),
                HOPPER.shared_bytes_per_sm // shared,
            ),
        )

    def cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(self, kernel, threads, dynamic, flags):
        return self.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, threads, dynamic)
