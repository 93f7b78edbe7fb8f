"""Contract under test: on a device ``nm.moe_matmul`` with ``combine`` enqueues two launches on one
stream and waits for nothing: the kernel, which leaves rows in the workspace, and the pass that adds
them up. The driver is made up; ``test_moe_on_gpu`` has the numbers."""

from types import SimpleNamespace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.execution import arrays, driver, gpu, scratch
from numba_marlin.execution import plan as planning
from numba_marlin.hardware import devices
from tests.api.mixture import EXPERTS, E, K, M, N

PAIRS = 2 * M
RESULT, PARTIALS, LOCKS, WEIGHTS = 1 << 40, 1 << 41, 1 << 42, 1 << 43


class OnDevice:
    def __init__(self, shape, dtype, address):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": np.dtype(dtype).str,
            "data": (address, False),
            "version": 3,
        }
        self.shape, self.dtype, self.address = shape, np.dtype(dtype), address

    def __getitem__(self, key):
        raise AssertionError("a number was asked for: the host would wait")


class Launcher:
    """Of a kernel; what it enqueues is written down."""

    def __init__(self, binding, done):
        self.binding, self.done = binding, done

    def __call__(self, grid, addresses, stream):
        self.done.append((self.binding.definition.name, grid, addresses, stream))

    def bind(self, grid, addresses, stream):
        launch = SimpleNamespace(place={})
        launch.enqueue = lambda: self(grid, addresses, stream)
        return launch


@pytest.fixture
def done(monkeypatch):
    """What is enqueued on device 0, in order."""
    found = []
    device = devices.device("H200")
    monkeypatch.setattr(arrays, "_device_of_pointer", lambda address: 0)
    monkeypatch.setattr(driver, "describe", lambda ordinal: device)
    monkeypatch.setattr(driver, "probe", lambda: driver.Probe(True, "", "13.0"))
    monkeypatch.setattr(driver, "follow", lambda *what: found.append(("follow", *what)))
    monkeypatch.setattr(
        arrays, "empty_like", lambda view, shape, dtype: OnDevice(shape, dtype, RESULT)
    )
    monkeypatch.setattr(planning, "compiled_kernel", lambda *_: SimpleNamespace())
    monkeypatch.setattr(gpu, "arguments", lambda launch, addresses, ordinal: addresses)
    monkeypatch.setattr(gpu, "loaded", lambda launch, ordinal: Launcher(launch, found))
    monkeypatch.setattr(gpu, "clear", lambda *what: found.append(("clear", *what)))
    monkeypatch.setattr(
        gpu,
        "kept_on_device",
        lambda owner, kept, ordinal: {name: SimpleNamespace(address=16) for name in kept},
    )

    def workspace(ordinal, stream, partials_bytes, locks):
        found.append(("workspace", partials_bytes))
        return PARTIALS, LOCKS

    monkeypatch.setattr(scratch, "workspace", workspace)
    return found


def called(complete=True, **options):
    routing = nm.Routing(
        OnDevice((M, 2), np.int32, 1 << 20),
        OnDevice((M, 2), np.float32, WEIGHTS),
        OnDevice((PAIRS,), np.int32, 1 << 21),
        OnDevice((E + 1,), np.int32, 1 << 22),
        complete,
    )
    x = OnDevice((M, K), np.float16, 1 << 23)
    return nm.moe_matmul(x, EXPERTS, routing, combine=True, **options)


def test_rows_in_the_workspace_are_added_up_by_a_second_launch(done):
    y = called()
    launches = [each for each in done if each[0] not in ("workspace", "clear")]
    (_, _, first, stream), (name, grid, second, other_stream) = launches
    assert y.shape == (M, N) and y.address == RESULT
    assert (name, grid, stream, other_stream) == ("sum_experts", (M, 1, 1), 0, 0)
    assert second == {"rows": first["c"], "weights": WEIGHTS, "c": RESULT}
    (needed,) = {each[1] for each in done if each[0] == "workspace"}
    assert first["c"] >= PARTIALS and first["c"] % 16 == 0
    assert first["c"] + 4 * PAIRS * N == PARTIALS + needed  # behind the partial sums
    assert not [each for each in done if each[0] == "clear"]


def test_rows_of_other_devices_are_zeroed_before(done):
    called(complete=False)
    events = [each for each in done if each[0] != "workspace"]
    assert [each[0] for each in events] == ["clear", "moe", "sum_experts"]
    assert events[0][1:] == (events[1][2]["c"], 4 * PAIRS * N, 0, 0)


def test_both_launches_are_on_the_stream_that_was_asked_for(done):
    called(stream=7)
    said = [each[0] for each in done if each[0] != "workspace"]
    assert said == ["follow", "moe", "sum_experts", "follow"]
    assert [each[-1] for each in done if each[0] in ("moe", "sum_experts")] == [7, 7]


def test_a_workspace_without_room_for_the_rows_is_refused(done):
    called()
    (needed,) = {each[1] for each in done if each[0] == "workspace"}
    locks = OnDevice((4096,), np.int32, LOCKS)
    given = nm.Workspace(OnDevice((needed // 4,), np.float32, PARTIALS), locks)
    done.clear()
    called(workspace=given)
    assert [each[0] for each in done] == ["moe", "sum_experts"]
    given = nm.Workspace(OnDevice((needed // 4 - 1,), np.float32, PARTIALS), locks)
    with pytest.raises(ValueError, match=f"have {needed - 4} bytes, the kernel needs {needed}"):
        called(workspace=given)
