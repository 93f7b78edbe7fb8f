"""Contract under test: what ``nm.matmul`` does with arrays, weights and streams of a device. No
GPU: the driver's part is made up."""

import dataclasses
import functools
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import heuristics
from numba_marlin.execution import arrays, driver, gpu, launch, scratch
from numba_marlin.execution import plan as planning
from numba_marlin.hardware import devices
from numba_marlin.testing import exact_problem

K, N, M = 256, 128, 4


@pytest.fixture(scope="module")
def problem():
    return exact_problem(M, N, K, 128, seed=1)


@pytest.fixture(scope="module")
def packed(problem):
    return nm.pack(problem.weight)


class OnDevice:
    __cuda_array_interface__ = {
        "shape": (1 << 20,),
        "typestr": "<i4",
        "data": (4096, False),
        "version": 3,
    }


def test_a_workspace_that_is_elsewhere_is_refused(problem, packed, monkeypatch):
    monkeypatch.setattr(arrays, "_device_of_pointer", lambda address: 1)
    with pytest.raises(
        ValueError, match="workspace.partials is on cuda:1, must be where the kernel runs: the host"
    ):
        nm.matmul(problem.x, packed, "emulator", workspace=nm.Workspace(OnDevice(), OnDevice()))
    with pytest.raises(
        ValueError, match="workspace.locks is on the host, must be where the kernel runs: cuda:1"
    ):
        scratch.workspace_views(
            nm.Workspace(OnDevice(), arrays.aligned_empty((4,), np.int32)), (0, 0), 1
        )


def test_work_on_another_stream_waits_for_xs_own_and_is_waited_for(packed, monkeypatch):
    """x's library may hand its memory on as soon as its own stream is done with it: a copy of x,
    and the result."""
    monkeypatch.setattr(arrays, "_device_of_pointer", lambda address: 0)
    done = []
    monkeypatch.setattr(
        driver, "follow", lambda ordinal, stream, before: done.append((stream, before))
    )
    monkeypatch.setattr(gpu, "run_cuda", lambda *arguments: (done.append("kernel"), None))
    monkeypatch.setattr(arrays, "empty_like", lambda x, shape: OnDevice())
    x = arrays.view("x", OnDevice())
    plan = SimpleNamespace(definition=SimpleNamespace(parameters=()))
    for out, stream, expected in [
        (None, 0, ["kernel"]),
        (x, 7, ["kernel"]),
        (None, 7, [(7, 0), "kernel", (0, 7)]),
    ]:
        done.clear()
        sys.modules["numba_marlin.api.matmul"]._matmul_cuda(
            x, out, packed, heuristics.Problem(M, N, K), plan, "numba-cuda", stream, None, None
        )
        assert done == expected


class Half:
    """An array on device 0 that a library made, or would copy, on stream ``stream``."""

    def __init__(self, shape, address, stream=None, strides=None):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f2",
            "data": (address, False),
            "version": 3,
            "stream": stream,
            "strides": strides,
        }


def test_a_kernel_waits_for_the_copy_of_a_bias_wherever_it_was_made(packed, monkeypatch):
    done = []
    monkeypatch.setattr(arrays, "_device_of_pointer", lambda address: 0)
    monkeypatch.setattr(
        driver, "follow", lambda ordinal, stream, before: done.append((stream, before))
    )
    monkeypatch.setattr(
        planning,
        "plan",
        lambda *arguments: SimpleNamespace(
            backend="cuda", definition=SimpleNamespace(parameters=())
        ),
    )
    monkeypatch.setattr(
        gpu,
        "run_cuda",
        lambda *arguments: (
            done.append(arguments[-1].address),
            planning.RunInfo("cuda", "", arguments[3], "a device", None),
        ),
    )
    contiguous = arrays.contiguous
    copied = {"bias": Half((N,), 0x9000, 5)}
    monkeypatch.setattr(
        arrays,
        "contiguous",
        lambda name, view: (
            view if view.contiguous else contiguous(name, arrays.view(name, copied[name]))
        ),
    )
    x, out = Half((M, K), 0x1000), Half((M, N), 0x20000)
    apart, plain = Half((N,), 0x8000, 5, (4,)), Half((N,), 0x8000, 5)
    for bias, stream, expected in (
        (plain, 7, [0x8000]),
        (apart, 7, [(7, 5), 0x9000, (5, 7)]),
        (apart, None, [(0, 5), 0x9000, (5, 0)]),
        (apart, 5, [0x9000]),
    ):
        done.clear()
        nm.matmul(x, packed, "cuda", out, bias=bias, stream=stream)
        assert done == expected


def test_threads_that_need_a_weight_at_the_same_time_share_one_copy(packed, monkeypatch):
    """A graph that one of them captures goes on pointing to the copy it was given."""
    copies, racing = [], []

    def from_host(array, ordinal):
        if not racing:
            racing.append(None)
            # another thread, from start to end
            copies.append(gpu.device_weight(packed, ordinal))
        return object()

    monkeypatch.setattr(gpu, "_device_weights", weakref.WeakKeyDictionary())
    monkeypatch.setattr(driver.DeviceArray, "from_host", from_host)
    copies += [gpu.device_weight(packed, 0) for _ in range(2)]
    assert all(each is copies[0] for each in copies)


@pytest.fixture
def launched(monkeypatch):
    """A device with room for three blocks: its launches, as (arguments by name, grid, stream)."""
    launches = []

    class Launcher:
        resident_blocks = 3

        def __init__(self, compiled, options):
            self.options = options
            self.names = [name for name, _ in compiled.parameters]

        def bind(self, grid, arguments, stream):
            enqueue = functools.partial(
                launches.append, (dict(zip(self.names, arguments)), grid, stream)
            )
            return SimpleNamespace(
                place={name: index for index, name in enumerate(self.names)},
                enqueue=enqueue,
                stream=stream,
                launcher=self,
            )

    monkeypatch.setattr(
        launch, "launcher", lambda compiled, ordinal, **options: Launcher(compiled, options)
    )
    monkeypatch.setattr(scratch, "workspace", lambda *arguments: (0x5000, 0x6000))
    monkeypatch.setattr(
        gpu,
        "device_weight",
        lambda weight, ordinal: {
            name: SimpleNamespace(address=address)
            for name, address in (("b", 0x1000), ("scales", 0x2000), ("zeros", 0x3000))
        },
    )
    return launches


def fake_plan(device, definition, config=None, problem=None):
    compiled = SimpleNamespace(
        kernel=definition.name,
        parameters=definition.parameters,
        resources=SimpleNamespace(registers=130),
        shared_bytes=1024,
    )
    chosen = (
        heuristics.candidate(problem, device, definition.name)
        if config is None
        else SimpleNamespace(kernel=definition.name, config=config, grid=(4, 1, 1))
    )
    return SimpleNamespace(
        compile=lambda compiler: compiled,
        device=device,
        candidate=chosen,
        reason="",
        definition=definition,
    )


def device_matrix(address, strides=(2 * K, 2)):
    return arrays.ArrayView(None, "cuda", 0, address, (M, K), np.dtype(np.float16), strides, False)


def test_blocks_that_would_wait_for_blocks_with_no_place_are_not_launched(packed, launched):
    """A compiler that takes more registers than expected: half of the blocks would hold every
    multiprocessor and wait for the others."""
    a = device_matrix(0x7000)
    ampere, problem = heuristics.find_kernel("ampere"), heuristics.Problem(M, N, 1024)
    for sms, waits, refused in ((4, True, True), (3, True, False), (4, False, False)):
        chosen = fake_plan(
            dataclasses.replace(devices.MODEL, sms=sms),
            dataclasses.replace(ampere, waits=waits),
            problem=problem,
        )
        launched.clear()
        if refused:
            with pytest.raises(
                nm.CapabilityMissing,
                match=(
                    r"its 4 blocks wait for each other, PTX machine holds 3 of them at once \(130"
                    r" registers"
                ),
            ):
                gpu.run_cuda(a, a, packed, problem, chosen, "numba-cuda", 0, 0)
        else:
            gpu.run_cuda(a, a, packed, problem, chosen, "numba-cuda", 0, 0)
        assert bool(launched) is not refused


def test_a_kernel_gets_its_arguments_by_name(packed, launched, monkeypatch):
    """In any order; addresses of what is not there are 0; tensor maps are made for the memory that
    they describe."""
    monkeypatch.setattr(
        driver, "encode_tensor_map", lambda tensor_map, address, ordinal: (tensor_map, address)
    )
    monkeypatch.setattr(driver, "tensor_map_template", lambda tensor_map, ordinal: (b"", 24))
    names = (
        "k",
        "a_map",
        "a_stride",
        "bias",
        "c",
        "locks",
        "zeros",
        "m",
        "b",
        "n",
        "partials",
        "scales",
        "c_map",
    )
    definition = dataclasses.replace(
        heuristics.find_kernel("ampere"),
        parameters=tuple((name, "tensormap" if "map" in name else "u64") for name in names),
        tensor_maps=lambda config, m, n, k, a_stride: {
            "a_map": ("a", ("map of a", m, k, a_stride)),
            "c_map": ("c", ("map of c", m, n)),
        },
        workspace_bytes=lambda config, m, n, k, sms: (64, 16),
        cluster=lambda config: 2,
        dependent=lambda config: config == "any",
    )
    a, c = device_matrix(0x7000, (2 * K + 32, 2)), device_matrix(0x9000)
    chosen = fake_plan(devices.MODEL, dataclasses.replace(definition, waits=False), config="any")
    prepared, _ = gpu.run_cuda(
        a, c, packed, heuristics.Problem(M, N, K), chosen, "numba-cuda", 0, 77
    )
    ((arguments, grid, stream),) = launched
    assert arguments == {
        "k": K,
        "a_map": (("map of a", M, K, K + 16), 0x7000),
        "a_stride": K + 16,
        "bias": 0,
        "c": 0x9000,
        "locks": 0x6000,
        "zeros": 0x3000,
        "m": M,
        "b": 0x1000,
        "n": N,
        "partials": 0x5000,
        "scales": 0x2000,
        "c_map": (("map of c", M, N), 0x9000),
    }
    assert (grid, stream) == ((4, 1, 1), 77) and prepared.bound.launcher.options == {
        "cluster": 2,
        "dependent": True,
    }
    assert prepared.places == {
        "a": (1 + 3,),
        "c": (4, 12 + 3),
        "bias": (3,),
    }, "each word that changes with an address: of maps, word 24 / 8"
