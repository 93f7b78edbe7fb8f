"""Contract under test: what ``launch`` hands to the CUDA driver. A stand-in for the driver reads it as the real one would.

The launcher itself runs in the kernel tests with ``--run-on cuda``; here is all that needs no GPU.
"""

import ctypes
import threading
from enum import Enum
from types import SimpleNamespace

import pytest

from numba_marlin import devices, driver, launch
from numba_marlin.errors import CapabilityMissing
from numba_marlin.launch import ArgumentBuffer, check_grid, check_workspace

PARAMETERS = (("a", "u64"), ("m", "i32"), ("locks", "u64"), ("k", "i32"))


def read_arguments(address, parameters):
    """What cuLaunchKernel would copy: through the array of pointers."""
    pointers = (ctypes.c_void_p * len(parameters)).from_address(address)
    types = {"u64": ctypes.c_uint64, "i32": ctypes.c_int32}
    return [types[kind].from_address(pointer).value for pointer, (_, kind) in zip(pointers, parameters)]


def compiled_kernel(shared_bytes=1024, target="sm_90a", cubin=b"cubin"):
    return SimpleNamespace(
        kernel="toy", target=target, ptx=f"// {shared_bytes}", cubin=cubin, entry="marlin_toy", parameters=PARAMETERS,
        threads=256, shared_bytes=shared_bytes,
    )


class FakeDriver:
    """The calls of ``cuda.bindings.driver`` that are made, each recorded; a context is current as torch would leave it."""

    CUresult = Enum("CUresult", ["CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"])
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="max dynamic shared")
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUstream = staticmethod(lambda handle: ("stream", handle))

    def __init__(self):
        self.calls = []
        self.failing = {}
        self.current = 7000
        self.allocated = 0x10000

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def record(*arguments):
            self.calls.append((name, *arguments))
            return (self.failing.get(name, self.CUresult.CUDA_SUCCESS), *self.results(name, arguments))

        return record

    def results(self, name, arguments):
        if name == "cuMemAlloc":
            self.allocated += 0x100000
            return [self.allocated]
        fixed = {
            "cuDevicePrimaryCtxRetain": [7000], "cuCtxGetCurrent": [self.current], "cuDeviceGetCount": [2], "cuDeviceGet": [0],
            "cuModuleLoadData": ["module"], "cuModuleGetFunction": ["function"], "cuEventCreate": ["event"], "cuOccupancyMaxActiveBlocksPerMultiprocessor": [2], "cuCtxPopCurrent": [7000], "cuGetErrorString": [b"what it means"],
        }
        return fixed.get(name, [])

    def named(self, name):
        return [call for call in self.calls if call[0] == name]


@pytest.fixture
def fake(monkeypatch):
    stand_in = FakeDriver()
    monkeypatch.setattr(driver, "bindings", lambda: stand_in)
    monkeypatch.setattr(driver, "describe", lambda ordinal: devices.device("H200"))
    monkeypatch.setattr(driver, "probe", lambda: driver.Probe(True, "", "13.0"))
    monkeypatch.setattr(launch, "_launchers", {})
    monkeypatch.setattr(launch, "_workspaces", {})
    monkeypatch.setattr(launch, "_outgrown", [])
    driver.primary_context.cache_clear()
    yield stand_in
    launch.release_workspaces()
    driver.primary_context.cache_clear()


def test_arguments_arrive_as_given():
    buffer = ArgumentBuffer(PARAMETERS)
    for arguments in [(2**64 - 1, -5, 16, 2**31 - 1), (0, 0, 2**40, -(2**31))]:
        buffer.fill(arguments)
        assert read_arguments(buffer.address, PARAMETERS) == list(arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((1, 2, 3), "3 arguments given, the kernel takes 4: a, m, locks, k"),
        ((1, 2**31, 3, 4), "argument m=2147483648 must be an int that fits in i32"),
        ((-1, 2, 3, 4), "argument a=-1 must be an int that fits in u64"),
        ((1, 2, 3, 4.0), "argument k=4.0 must be an int"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        ArgumentBuffer(PARAMETERS).fill(arguments)


def test_an_unknown_parameter_type_is_refused():
    with pytest.raises(ValueError, match="parameter x has type 'f32'"):
        ArgumentBuffer((("x", "f32"),))


def test_grids_are_completed_and_checked():
    assert check_grid((5,)) == (5, 1, 1)
    assert check_grid((5, 65535)) == (5, 65535, 1)
    for grid, message in [((0,), "grid x=0"), ((2**31,), "grid x=2147483648"), ((1, 65536), "grid y=65536"), ((1, 1, -1), "grid z=-1")]:
        with pytest.raises(ValueError, match=message):
            check_grid(grid)


def test_a_workspace_too_small_is_refused_by_size():
    check_workspace(4096, 132, needs_bytes=4096, needs_locks=132)
    with pytest.raises(ValueError, match="partials have 4095 bytes, the kernel needs 4096"):
        check_workspace(4095, 132, needs_bytes=4096, needs_locks=132)
    with pytest.raises(ValueError, match="locks have 131 entries, the kernel needs 132"):
        check_workspace(4096, 131, needs_bytes=4096, needs_locks=132)


def test_a_device_gets_machine_code_if_it_runs_it_and_ptx_otherwise():
    h200, rtx = devices.device("H200"), devices.device("RTX 4090")
    assert launch.load_image(compiled_kernel(), h200) == b"cubin"
    assert launch.load_image(compiled_kernel(target="sm_80"), rtx) == b"cubin"
    assert launch.load_image(compiled_kernel(target="sm_80"), h200) == b"// 1024\0"
    assert launch.load_image(compiled_kernel(cubin=None, target="sm_80"), rtx) == b"// 1024\0"
    with pytest.raises(CapabilityMissing, match="compiled for sm_90a, which RTX 4090"):
        launch.load_image(compiled_kernel(), rtx)


def test_a_launch_is_one_driver_call_with_the_arguments_packed(fake):
    start = launch.launcher(compiled_kernel())
    fake.calls.clear()
    seen = []
    fake_launch = start._launch
    start._launch = lambda *arguments: (seen.append((arguments, read_arguments(arguments[9], PARAMETERS))), fake_launch(*arguments))[1]
    start((132,), (2**40, 16, 2**41, 1024), stream=99)
    (arguments, values), = seen
    assert arguments[:9] == ("function", 132, 1, 1, 256, 1, 1, 1024, ("stream", 99))
    assert values == [2**40, 16, 2**41, 1024]
    assert [call[0] for call in fake.calls] == ["cuCtxGetCurrent", "cuLaunchKernel"]


def test_large_shared_memory_is_opted_in_to_once_and_small_is_not(fake):
    launch.launcher(compiled_kernel(shared_bytes=48 * 1024))
    assert not fake.named("cuFuncSetAttribute")
    large = compiled_kernel(shared_bytes=48 * 1024 + 1)
    assert launch.launcher(large) is launch.launcher(large)
    assert fake.named("cuFuncSetAttribute") == [("cuFuncSetAttribute", "function", "max dynamic shared", 48 * 1024 + 1)]
    assert launch.launcher(large, 1) is not launch.launcher(large, 0), "a handle belongs to its device"


def test_a_launch_under_another_current_context_leaves_it_as_it_was(fake):
    start = launch.launcher(compiled_kernel())
    fake.current = 8000
    fake.calls.clear()
    start((1,), (0, 0, 0, 0))
    assert [call[0] for call in fake.calls] == ["cuCtxGetCurrent", "cuCtxPushCurrent", "cuLaunchKernel", "cuCtxPopCurrent"]


def test_a_refused_launch_names_kernel_grid_and_error(fake):
    start = launch.launcher(compiled_kernel())
    fake.failing["cuLaunchKernel"] = fake.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(driver.DriverError, match=r"cuLaunchKernel: CUDA_ERROR_INVALID_VALUE: kernel 'toy', grid \(3,\), 256 threads"):
        start((3,), (0, 0, 0, 0))


def test_an_image_the_driver_refuses_is_a_missing_capability(fake):
    fake.failing["cuModuleLoadData"] = fake.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    with pytest.raises(CapabilityMissing, match=r"driver \(CUDA 13.0\) refuses kernel 'toy' for sm_90a.*what it means"):
        launch.launcher(compiled_kernel())


def test_workspaces_belong_to_a_stream_start_zeroed_and_only_grow(fake):
    first = launch.workspace(0, 5, 10_000, 132)
    assert launch.workspace(0, 5, 8_000, 4) == first
    assert launch.workspace(0, 6, 8_000, 4) != first, "two streams may run at the same time"
    grown = launch.workspace(0, 5, 20_000, 132)
    assert grown[0] != first[0] and grown[1] == first[1]
    assert not fake.named("cuMemFree"), "a captured graph may still point to an outgrown buffer"
    filled = {call[1]: call[2:] for call in fake.named("cuMemsetD32Async")}
    assert set(filled) >= {*first, *grown}
    assert filled[first[1]][0] == 0 and filled[first[1]][1] >= 132
    assert filled[first[1]][2] == ("stream", 5), "zeroed in the order of the stream that will use it"


def test_the_default_stream_of_each_thread_has_its_own_workspace(fake):
    def in_a_thread():
        found = []
        thread = threading.Thread(target=lambda: found.append(launch.workspace(0, launch.PER_THREAD_STREAM, 64, 4)))
        thread.start()
        thread.join()
        return found[0]

    assert launch.workspace(0, launch.PER_THREAD_STREAM, 64, 4) != in_a_thread(), "one handle, two streams that run at the same time"
    assert launch.workspace(0, 5, 64, 4) == launch.workspace(0, 5, 64, 4)


def test_a_launcher_knows_how_many_of_its_blocks_the_device_holds(fake):
    assert launch.launcher(compiled_kernel(1024)).resident_blocks == 2 * 132
    assert fake.named("cuOccupancyMaxActiveBlocksPerMultiprocessor")[0][1:] == ("function", 256, 1024)


def test_one_stream_follows_another_by_an_event_that_is_destroyed(fake):
    driver.follow(0, 7, 5)
    order = [call for call in fake.calls if call[0].startswith(("cuEvent", "cuStreamWait"))]
    assert [call[0] for call in order] == ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy"]
    assert order[1][2] == ("stream", 5) and order[2][1] == ("stream", 7)


def test_without_a_driver_the_probe_says_why(monkeypatch):
    def missing():
        raise CapabilityMissing("no NVIDIA driver on this machine")

    monkeypatch.setattr(driver, "bindings", missing)
    driver.probe.cache_clear()
    try:
        probe = driver.probe()
        assert not probe.usable and probe.reason == "no NVIDIA driver on this machine" and probe.devices == ()
    finally:
        driver.probe.cache_clear()
