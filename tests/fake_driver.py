"""A stand-in for ``cuda.bindings.driver``, which reads what ``launch`` hands to it as the real one
would."""

import ctypes
from enum import Enum
from types import SimpleNamespace

from numba_marlin.execution import launch

PARAMETERS = (("a", "u64"), ("m", "i32"), ("a_map", "tensormap"), ("locks", "u64"), ("k", "i32"))
ACTIVE = 1


def read_arguments(address, parameters):
    """What the driver would copy: through the array of pointers."""
    pointers = (ctypes.c_void_p * len(parameters)).from_address(address)
    types = {"u64": ctypes.c_uint64, "i32": ctypes.c_int32, "tensormap": ctypes.c_ubyte * 128}
    found = [
        (pointer, types[kind].from_address(pointer))
        for pointer, (_, kind) in zip(pointers, parameters)
    ]
    assert all(
        pointer % 64 == 0
        for (pointer, _), (_, kind) in zip(found, parameters)
        if kind == "tensormap"
    ), "CUtensorMap is aligned to 64 bytes"
    return [value.value if hasattr(value, "value") else bytes(value) for _, value in found]


class FakeDriver:
    """The calls of ``cuda.bindings.driver`` that are made, each recorded; ``capturing``: {stream:
    number of its capture}."""

    class CUresult(Enum):
        CUDA_SUCCESS = 0
        CUDA_ERROR_INVALID_VALUE = 1
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222

    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="max dynamic shared",
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED="large clusters",
    )
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")
    CUstreamCaptureStatus = SimpleNamespace(CU_STREAM_CAPTURE_STATUS_ACTIVE=ACTIVE)
    CUstream = staticmethod(lambda handle: ("stream", handle))

    def __init__(self):
        self.calls = []
        self.failing = {}
        self.capturing = {}
        self.codes = []  # of the next launches, then 0
        self.allocated = 0x10000
        self.launches = []

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def record(*arguments):
            self.calls.append((name, *arguments))
            return (
                self.failing.get(name, self.CUresult.CUDA_SUCCESS),
                *self.results(name, arguments),
            )

        return record

    def results(self, name, arguments):
        if name == "cuMemAlloc":
            self.allocated += 0x100000
            return [self.allocated]
        if name == "cuStreamGetCaptureInfo":
            number = self.capturing.get(arguments[0][1])
            return [0, 0] if number is None else [ACTIVE, number]
        fixed = {
            "cuDevicePrimaryCtxRetain": [7000],
            "cuDeviceGetCount": [2],
            "cuDeviceGet": [0],
            "cuModuleLoadData": ["module"],
            "cuModuleGetFunction": [0xF00],
            "cuEventCreate": ["event"],
            "cuStreamCreate": ["own stream"],
            "cuThreadExchangeStreamCaptureMode": ["before"],
            "cuOccupancyMaxActiveBlocksPerMultiprocessor": [2],
            "cuCtxPopCurrent": [7000],
            "cuGetErrorString": [b"what it means"],
        }
        return fixed.get(name, [])

    def named(self, name):
        return [call for call in self.calls if call[0] == name]

    def launch(self, configuration, function, parameters, extra):
        """cuLaunchKernelEx, reading what it is given."""
        self.calls.append(("cuLaunchKernelEx",))
        read = launch._Configuration.from_address(configuration)
        attributes = {
            read.attributes[i].id: tuple(read.attributes[i].value[:3])
            for i in range(read.attribute_count)
        }
        self.launches.append(
            SimpleNamespace(
                grid=(read.grid_x, read.grid_y, read.grid_z),
                block=(read.block_x, read.block_y, read.block_z),
                shared_bytes=read.shared_bytes,
                stream=read.stream or 0,
                attributes=attributes,
                function=function,
                extra=extra,
                arguments=read_arguments(parameters, PARAMETERS),
            )
        )
        return self.codes.pop(0) if self.codes else 0
