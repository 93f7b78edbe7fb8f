"""Contract under test: what ``launch`` hands to the CUDA driver. A stand-in for the driver reads it
as the real one would.

The launcher itself runs in the kernel tests with ``--run-on cuda``, and in ``api/test_on_gpu.py``;
here is all that needs no GPU.
"""

import threading
from types import SimpleNamespace

import pytest

from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import driver, launch, map_encoding, scratch
from numba_marlin.execution.launch import ArgumentBuffer, check_grid
from numba_marlin.execution.scratch import check_workspace
from numba_marlin.hardware import devices
from numba_marlin.layout.tensor_map import TensorMap
from tests.fake_driver import PARAMETERS, FakeDriver, read_arguments

MAP = bytes(range(128))
ZEROS = (0, 0, bytes(128), 0, 0)


def compiled_kernel(shared_bytes=1024, target="sm_90a", cubin=b"cubin"):
    return SimpleNamespace(
        kernel="toy",
        target=target,
        ptx=f"// {shared_bytes}",
        cubin=cubin,
        entry="marlin_toy",
        parameters=PARAMETERS,
        threads=256,
        shared_bytes=shared_bytes,
    )


CACHED = (driver.primary_context, driver._own_stream, map_encoding.tensor_map_template)


@pytest.fixture
def fake(monkeypatch):
    stand_in = FakeDriver()
    monkeypatch.setattr(driver, "bindings", lambda: stand_in)
    monkeypatch.setattr(driver, "raw_launch", lambda: stand_in.launch)
    monkeypatch.setattr(driver, "pointer", lambda address: address)
    monkeypatch.setattr(driver, "describe", lambda ordinal: devices.device("H200"))
    monkeypatch.setattr(driver, "probe", lambda: driver.Probe(True, "", "13.0"))
    monkeypatch.setattr(launch, "_launchers", {})
    monkeypatch.setattr(scratch, "_workspaces", {})
    monkeypatch.setattr(scratch, "_outgrown", [])
    for each in CACHED:
        each.cache_clear()
    yield stand_in
    scratch.release_workspaces()
    for each in CACHED:
        each.cache_clear()


def test_arguments_arrive_as_given():
    buffer = ArgumentBuffer(PARAMETERS)
    for arguments in [(2**64 - 1, -5, MAP, 16, 2**31 - 1), (0, 0, bytes(128), 2**40, -(2**31))]:
        buffer.fill(arguments)
        assert read_arguments(buffer.address, PARAMETERS) == list(arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((1, 2, MAP, 3), "4 arguments given, the kernel takes 5: a, m, a_map, locks, k"),
        ((1, 2**31, MAP, 3, 4), "argument m=2147483648 must be an int that fits in i32"),
        ((-1, 2, MAP, 3, 4), "argument a=-1 must be an int that fits in u64"),
        ((1, 2, MAP, 3, 4.0), "argument k=4.0 must be an int"),
        ((1, 2, MAP[1:], 3, 4), "argument a_map=.* must be the 128 bytes of a tensor map"),
        ((1, 2, 77, 3, 4), "argument a_map=77 must be the 128 bytes"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        ArgumentBuffer(PARAMETERS).fill(arguments)


def test_a_word_of_a_bound_launch_is_what_the_driver_reads(fake):
    bound = launch.launcher(compiled_kernel()).bind((2,), (1, 2, MAP, 3, 4), stream=5)
    bound.words[bound.place["a"]] = 2**63 + 9
    bound.words[bound.place["a_map"] + 15] = 2**40 + 1
    bound.enqueue()
    assert (
        fake.launches[0].arguments
        == [2**63 + 9, 2, MAP[:120] + (2**40 + 1).to_bytes(8, "little"), 3, 4]
        and fake.launches[0].stream == 5
    )


def test_an_unknown_parameter_type_is_refused():
    with pytest.raises(ValueError, match="parameter x has type 'f32'"):
        ArgumentBuffer((("x", "f32"),))


def test_grids_are_completed_and_checked():
    assert check_grid((5,)) == (5, 1, 1)
    assert check_grid((5, 65535)) == (5, 65535, 1)
    for grid, message in [
        ((0,), "grid x=0"),
        ((2**31,), "grid x=2147483648"),
        ((1, 65536), "grid y=65536"),
        ((1, 1, -1), "grid z=-1"),
    ]:
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


def test_a_launch_is_one_driver_call_with_all_that_it_needs(fake):
    start = launch.launcher(compiled_kernel())
    fake.calls.clear()
    start((132,), (2**40, 16, MAP, 2**41, 1024), stream=99)
    start((132,), (2**40, 17, MAP, 2**41, 1024), stream=98)
    start((7, 2), (2**40, 18, MAP, 2**41, 1024))
    first, second, third = fake.launches
    assert (
        first.grid,
        first.block,
        first.shared_bytes,
        first.stream,
        first.function,
        first.extra,
    ) == ((132, 1, 1), (256, 1, 1), 1024, 99, 0xF00, 0)
    assert first.arguments == [2**40, 16, MAP, 2**41, 1024] and first.attributes == {}
    assert (second.stream, second.arguments[1]) == (98, 17) and (
        third.grid,
        third.stream,
        third.arguments[1],
    ) == ((7, 2, 1), 0, 18)
    assert fake.calls == [("cuLaunchKernelEx",)] * 3


def test_clusters_and_dependent_launches_are_attributes(fake):
    launch.launcher(compiled_kernel(), cluster=4, dependent=True)((8,), ZEROS)
    launch.launcher(compiled_kernel(), dependent=True)((3,), ZEROS)
    assert [each.attributes for each in fake.launches] == [
        {4: (4, 1, 1), 6: (1, 0, 0)},
        {6: (1, 0, 0)},
    ]
    with pytest.raises(ValueError, match="grid x=6 must be a multiple of the cluster's 4 blocks"):
        launch.launcher(compiled_kernel(), cluster=4)((6,), ZEROS)
    assert not fake.named("cuFuncSetAttribute")
    launch.launcher(compiled_kernel(), cluster=16)
    assert fake.named("cuFuncSetAttribute") == [("cuFuncSetAttribute", 0xF00, "large clusters", 1)]


def test_large_shared_memory_is_opted_in_to_once_and_small_is_not(fake):
    launch.launcher(compiled_kernel(shared_bytes=48 * 1024))
    assert not fake.named("cuFuncSetAttribute")
    large = compiled_kernel(shared_bytes=48 * 1024 + 1)
    assert launch.launcher(large) is launch.launcher(large)
    assert fake.named("cuFuncSetAttribute") == [
        ("cuFuncSetAttribute", 0xF00, "max dynamic shared", 48 * 1024 + 1)
    ]
    assert launch.launcher(large, 1) is not launch.launcher(large, 0), (
        "a handle belongs to its device"
    )


def test_a_launch_under_another_current_context_leaves_it_as_it_was(fake):
    start = launch.launcher(compiled_kernel())
    fake.calls.clear()
    fake.codes = [400]  # invalid handle: the function is of another context than the current one
    start((1,), ZEROS)
    assert [call[0] for call in fake.calls] == [
        "cuLaunchKernelEx",
        "cuCtxPushCurrent",
        "cuLaunchKernelEx",
        "cuCtxPopCurrent",
    ]


def test_a_refused_launch_names_kernel_grid_and_error(fake):
    start = launch.launcher(compiled_kernel())
    fake.codes = [1, 1]
    with pytest.raises(
        driver.DriverError,
        match=r"cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE: kernel 'toy', grid \(3,\), 256 threads",
    ):
        start((3,), ZEROS)
    assert fake.calls[-1][0] == "cuCtxPopCurrent"


def test_an_image_the_driver_refuses_is_a_missing_capability(fake):
    fake.failing["cuModuleLoadData"] = fake.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    with pytest.raises(
        CapabilityMissing,
        match=r"driver \(CUDA 13.0\) refuses kernel 'toy' for sm_90a.*what it means",
    ):
        launch.launcher(compiled_kernel())


def test_workspaces_belong_to_a_stream_start_zeroed_and_only_grow(fake):
    first = scratch.workspace(0, 5, 10_000, 132)
    assert scratch.workspace(0, 5, 8_000, 4) == first
    assert scratch.workspace(0, 6, 8_000, 4) != first, "two streams may run at the same time"
    grown = scratch.workspace(0, 5, 20_000, 132)
    assert grown[0] != first[0] and grown[1] == first[1]
    assert not fake.named("cuMemFree"), "a captured graph may still point to an outgrown buffer"
    filled = {call[1]: call[2:] for call in fake.named("cuMemsetD8Async")}
    assert set(filled) >= {*first, *grown}
    assert filled[first[1]][0] == 0 and filled[first[1]][1] >= 4 * 132
    assert fake.named("cuStreamSynchronize"), "zero before any stream can use it"


def test_each_capture_of_a_stream_has_a_workspace_of_its_own(fake):
    """Two graphs captured on one stream may be replayed at the same time, and beside the stream's
    other work."""
    eager = scratch.workspace(0, 5, 64, 4)
    found = []
    for fake.capturing in ({5: 1}, {5: 2}, {5: 2, 6: 2}):
        found += [scratch.workspace(0, stream, 64, 4) for stream in fake.capturing]
    first, second, again, branch = found
    assert second == again and len({eager, first, second, branch}) == 4
    modes = [call[1] for call in fake.named("cuThreadExchangeStreamCaptureMode")]
    assert modes == ["relaxed", "before"] * (len(modes) // 2), (
        "allocating is no part of the graph, and the mode is put back"
    )


def test_the_legacy_stream_is_not_asked_whether_it_is_captured(fake):
    """The question alone is an error while another stream is captured, and spoils that capture."""
    scratch.workspace(0, 0, 64, 4)
    assert not fake.named("cuStreamGetCaptureInfo")


def test_whoever_keeps_addresses_of_scratch_memory_hears_of_its_release(fake, monkeypatch):
    monkeypatch.setattr(scratch, "_to_forget", [])
    heard = []
    scratch.before_release(lambda: heard.append(len(scratch._workspaces)))
    scratch.workspace(0, 5, 64, 4)
    scratch.release_workspaces()
    assert heard == [2] and not scratch._workspaces


def encode_with(words_of):
    """A driver's encoding of which ``words_of(address)`` are words 0, 1 and 2."""
    return lambda tensor_map, address, ordinal: (
        b"".join(word.to_bytes(8, "little") for word in words_of(address)) + bytes(range(104))
    )


@pytest.mark.parametrize(
    "words_of, place",
    [
        (lambda address: (5, address, 7), 8),
        (lambda address: (address >> 4, 6, 7), None),
        (lambda address: (address, address >> 32, 7), None),
    ],
    ids=["the address in a word", "in another form", "in two places"],
)
def test_a_tensor_map_is_patched_only_where_the_driver_puts_the_address_itself(
    fake, monkeypatch, words_of, place
):
    asked = []
    encode = encode_with(words_of)
    monkeypatch.setattr(
        map_encoding,
        "_encode",
        lambda *arguments: (asked.append(arguments[1]), encode(*arguments))[1],
    )
    tensor_map = TensorMap("float16", (16, 64), (128, 2), (16, 64))
    template = map_encoding.tensor_map_template(tensor_map, 0)
    assert (template and template[1]) == place
    asked.clear()
    for address in (0x7F0000000010, 0x10):
        assert map_encoding.encode_tensor_map(tensor_map, address) == encode(tensor_map, address, 0)
    assert asked == ([] if place is not None else [0x7F0000000010, 0x10])
    with pytest.raises(ValueError, match="address=0x18 of a tensor map must be a multiple of 16"):
        map_encoding.encode_tensor_map(tensor_map, 0x18)


def test_the_default_stream_of_each_thread_has_its_own_workspace(fake):
    def in_a_thread():
        found = []
        thread = threading.Thread(
            target=lambda: found.append(scratch.workspace(0, scratch.PER_THREAD_STREAM, 64, 4))
        )
        thread.start()
        thread.join()
        return found[0]

    eager = scratch.workspace(0, scratch.PER_THREAD_STREAM, 64, 4)
    assert eager != in_a_thread(), "one handle, two streams that run at the same time"
    assert scratch.workspace(0, 5, 64, 4) == scratch.workspace(0, 5, 64, 4)
    captured = []
    for number in (1, 2):
        fake.capturing = {scratch.PER_THREAD_STREAM: number}
        captured.append(scratch.workspace(0, scratch.PER_THREAD_STREAM, 64, 4))
    assert len({eager, *captured}) == 3, "its graphs may be replayed at the same time too"


def test_a_launcher_knows_how_many_of_its_blocks_the_device_holds(fake):
    assert launch.launcher(compiled_kernel(1024)).resident_blocks == 2 * 132
    assert fake.named("cuOccupancyMaxActiveBlocksPerMultiprocessor")[0][1:] == (0xF00, 256, 1024)


def test_one_stream_follows_another_by_an_event_that_is_destroyed(fake):
    driver.follow(0, 7, 5)
    order = [call for call in fake.calls if call[0].startswith(("cuEvent", "cuStreamWait"))]
    assert [call[0] for call in order] == [
        "cuEventCreate",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuEventDestroy",
    ]
    assert order[1][2] == ("stream", 5) and order[2][1] == ("stream", 7)


def test_without_a_driver_the_probe_says_why(monkeypatch):
    def missing():
        raise CapabilityMissing("no NVIDIA driver on this machine")

    monkeypatch.setattr(driver, "bindings", missing)
    driver.probe.cache_clear()
    try:
        probe = driver.probe()
        assert (
            not probe.usable
            and probe.reason == "no NVIDIA driver on this machine"
            and probe.devices == ()
        )
    finally:
        driver.probe.cache_clear()
