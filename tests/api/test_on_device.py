"""Contract under test: what ``nm.matmul`` does with arrays, weights and streams of a device. No
GPU: the driver's part is made up."""

import dataclasses
import functools
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import heuristics
from numba_marlin.api.matmul import views_on_device
from numba_marlin.execution import arrays, driver, gpu, launch, map_encoding, scratch
from numba_marlin.execution import plan as planning
from numba_marlin.execution import product as running
from numba_marlin.execution.binding import weight_operands
from numba_marlin.hardware import devices
from numba_marlin.testing import exact_problem

K, N, M = 256, 128, 4


@pytest.fixture(scope="module")
def problem():
    return exact_problem(M, N, K, 64, seed=1)


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


@pytest.fixture
def multiplied(monkeypatch):
    """Device 0, made up: what is done there, in order; ``enqueued``: (inputs, results, ...) of the
    launches."""
    done, enqueued = [], []
    monkeypatch.setattr(arrays, "_device_of_pointer", lambda address: 0)
    monkeypatch.setattr(
        driver, "follow", lambda ordinal, stream, before: done.append((stream, before))
    )

    def prepare(product, plan, options, inputs, results, ordinal, handle, compiled):
        done.append("kernel")
        enqueued.append((inputs, results, handle))
        return SimpleNamespace(
            info=planning.RunInfo("cuda", "", product.problem, "a device", None),
            bound=SimpleNamespace(stream=handle),
            places=None,
        )

    monkeypatch.setattr(running, "_enqueued", prepare)
    plan = SimpleNamespace(
        backend="cuda", strided=False, compile=lambda *_: None, compile_behind=lambda *_: {}
    )
    monkeypatch.setattr(planning, "plan", lambda *arguments: plan)
    return done, enqueued


def test_work_on_another_stream_waits_for_xs_own_and_is_waited_for(packed, monkeypatch, multiplied):
    """x's library may hand its memory on as soon as its own stream is done with it: a copy of x,
    and the result."""
    done, _ = multiplied
    monkeypatch.setattr(arrays, "empty_like", lambda x, shape, dtype: Half((M, N), 0x20000))
    x, out = Half((M, K), 0x1000), Half((M, N), 0x20000)
    for given, stream, expected in [
        (None, 0, ["kernel"]),
        (out, 7, ["kernel"]),
        (None, 7, [(7, 0), "kernel", (0, 7)]),
    ]:
        done.clear()
        nm.matmul(x, packed, "cuda", given, stream=stream)
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


def test_a_kernel_waits_for_the_copy_of_a_bias_wherever_it_was_made(
    packed, monkeypatch, multiplied
):
    done, enqueued = multiplied
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
    for bias, stream, read, expected in (
        (plain, 7, 0x8000, ["kernel"]),
        (apart, 7, 0x9000, [(7, 5), "kernel", (5, 7)]),
        (apart, None, 0x9000, [(0, 5), "kernel", (5, 0)]),
        (apart, 5, 0x9000, ["kernel"]),
    ):
        done.clear()
        nm.matmul(x, packed, "cuda", out, bias=bias, stream=stream)
        assert done == expected and enqueued[-1][0]["bias"].address == read


def test_threads_that_need_a_weight_at_the_same_time_share_one_copy(packed, monkeypatch):
    """A graph that one of them captures goes on pointing to the copy it was given."""
    copies, racing, arrays_of = [], [], weight_operands(packed)

    def from_host(array, ordinal):
        if not racing:
            racing.append(None)
            # another thread, from start to end
            copies.append(gpu.kept_on_device(packed, arrays_of, ordinal))
        return object()

    monkeypatch.setattr(gpu, "_kept", weakref.WeakKeyDictionary())
    monkeypatch.setattr(driver.DeviceArray, "from_host", from_host)
    copies += [gpu.kept_on_device(packed, arrays_of, 0) for _ in range(2)]
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
    monkeypatch.setattr(driver, "describe", lambda ordinal: devices.MODEL)
    monkeypatch.setattr(
        gpu,
        "kept_on_device",
        lambda weight, arrays, ordinal: {
            name: SimpleNamespace(address=address)
            for name, address in (("b", 0x1000), ("scales", 0x2000), ("zeros", 0x3000))
        },
    )
    return launches


def enqueued(a, c, packed, problem, device, definition, config=None, handle=0):
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
    plan = SimpleNamespace(
        device=device,
        candidate=chosen,
        definition=definition,
        strided=True,
        info=lambda *arguments, **options: None,
    )
    product = running.Product(problem, {"a": a}, None, weight=packed, kept=weight_operands(packed))
    options, programs = running.Options("numba-cuda"), running._Programs(compiled, None)
    return running._enqueued(product, plan, options, {"a": a}, {"c": c}, 0, handle, programs)


def device_matrix(address, strides=(2 * K, 2)):
    return arrays.ArrayView(None, "cuda", 0, address, (M, K), np.dtype(np.float16), strides, False)


def test_blocks_that_would_wait_for_blocks_with_no_place_are_not_launched(packed, launched):
    """A compiler that takes more registers than expected: half of the blocks would hold every
    multiprocessor and wait for the others."""
    a = device_matrix(0x7000)
    ampere, problem = heuristics.find_kernel("ampere"), heuristics.Problem(M, N, 1024)
    for sms, waits, refused in ((4, True, True), (3, True, False), (4, False, False)):
        given = (
            a,
            a,
            packed,
            problem,
            dataclasses.replace(devices.MODEL, sms=sms),
            dataclasses.replace(ampere, waits=waits),
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
                enqueued(*given)
        else:
            enqueued(*given)
        assert bool(launched) is not refused


def test_a_kernel_gets_its_arguments_by_name(packed, launched, monkeypatch):
    """In any order; addresses of what is not there are 0; tensor maps are made for the memory that
    they describe."""
    monkeypatch.setattr(
        map_encoding,
        "encode_tensor_map",
        lambda tensor_map, address, ordinal: (tensor_map, address),
    )
    monkeypatch.setattr(map_encoding, "tensor_map_template", lambda tensor_map, ordinal: (b"", 24))
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
    definition = dataclasses.replace(definition, waits=False)
    prepared = enqueued(
        a, c, packed, heuristics.Problem(M, N, K), devices.MODEL, definition, "any", 77
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
    assert {name: prepared.places[name] for name in ("a", "c", "bias")} == {
        "a": (1 + 3,),
        "c": (4, 12 + 3),
        "bias": (3,),
    }, "each word that changes with an address: of maps, word 24 / 8"


@pytest.mark.parametrize(
    "address, strides, device, said",
    (
        (4104, None, 0, r"scales of experts \(address % 16 = 8\) must be aligned"),
        (8192, (512, 4), 0, r"scales of experts \(strides \(512, 4\)\) must be contiguous"),
        (8192, None, 1, "scales of experts is on cuda:1, must be on cuda:0"),
    ),
)
def test_arrays_of_experts_are_checked_before_a_kernel_has_their_addresses(
    monkeypatch, address, strides, device, said
):
    def array(address, strides=None):
        interface = {"shape": (4, 64), "typestr": "<f2", "data": (address, False), "version": 3}
        return SimpleNamespace(__cuda_array_interface__=interface | {"strides": strides})

    where = {4096: 0, address: device}
    monkeypatch.setattr(arrays, "_device_of_pointer", where.__getitem__)
    held = {"b": array(4096), "scales": array(address, strides)}
    with pytest.raises(ValueError, match=said):
        views_on_device("experts", held)
    assert views_on_device("experts", {"b": array(4096)})["b"].address == 4096
