"""Contract under test: ``repeat`` repeats a product only if all that it depends on is as it was;
whatever else it says None, and enqueues nothing.

torch is a stand-in with the few attributes that are read; ``test_on_gpu`` has the real one.
"""

import contextlib
import gc
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from numba_marlin.execution import driver, readers, repeat, scratch
from numba_marlin.execution.arrays import ArrayView
from numba_marlin.execution.gpu import Prepared
from numba_marlin.execution.plan import RunInfo
from numba_marlin.heuristics import Problem

M, N, K = 4, 128, 256
A, C, BIAS = 0x10000, 0x20000, 0x30000
CHOICE = ("auto", None, "numba-cuda", True)
FRESH = 0x90000  # where the stand-in allocates


class Tensor:
    __module__ = "torch"
    requires_grad = False

    def __init__(self, shape=(M, K), address=A, strides=None, dtype="half", device=0):
        self.shape, self.address, self.dtype, self.device = shape, address, dtype, device
        self.strides = strides or (*shape[1:], 1)

    def stride(self):
        return self.strides

    @property
    def is_cuda(self):
        return self.device is not None

    def get_device(self):
        return self.device

    def data_ptr(self):
        return self.address

    def is_contiguous(self):
        return self.strides == (*self.shape[1:], 1)

    def new_empty(self, shape):
        return Tensor(tuple(shape), FRESH, dtype=self.dtype, device=self.device)

    def requiring_gradient(self):
        self.requires_grad = True
        return self


class Weight:
    pass


@pytest.fixture
def state(monkeypatch):
    """What the library and the driver would answer."""
    now = SimpleNamespace(device=0, stream=7, capturing=False, recording=True)
    torch = SimpleNamespace(
        _C=SimpleNamespace(
            _cuda_getDevice=lambda: now.device, _cuda_getCurrentRawStream=lambda device: now.stream
        ),
        cuda=SimpleNamespace(is_current_stream_capturing=lambda: now.capturing),
        is_grad_enabled=lambda: now.recording,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(driver, "on_device", lambda ordinal: contextlib.nullcontext())
    monkeypatch.setattr(driver, "capture_id", lambda stream: 1 if now.capturing else None)
    monkeypatch.setattr(repeat, "_libraries", {})
    repeat._calls.clear()
    yield now
    repeat._calls.clear()


def prepared(places=None, scratch=True, stream=7):
    """-> (Prepared, the launches it made as lists of its words)"""
    launches, words = [], [0] * 4
    bound = SimpleNamespace(
        words=words,
        lock=threading.Lock(),
        enqueue=lambda: launches.append(list(words)),
        stream=stream,
        launcher=SimpleNamespace(ordinal=0),
    )
    info = RunInfo("cuda", "asked for", Problem(M, N, K), "a device", None)
    return (
        Prepared(bound, info, places or {"a": (0, 3), "c": (1,), "bias": (2,)}, scratch, ()),
        launches,
    )


def remembered(weight, x=None, **options):
    x = x or Tensor()
    what, launches = prepared(**options)
    strides = tuple(2 * stride for stride in x.strides)
    repeat.remember(
        x,
        ArrayView(x, "torch", 0, x.address, x.shape, np.dtype(np.float16), strides, False),
        weight,
        CHOICE,
        what,
    )
    return launches


def test_a_repetition_writes_the_addresses_and_enqueues_once(state):
    weight = Weight()
    launches = remembered(weight)
    y, info = repeat.again(Tensor(address=A + 512), weight, None, None, CHOICE)
    assert launches == [[A + 512, FRESH, 0, A + 512]], (
        "both words that hold x's address, one of them in a tensor map"
    )
    assert y.shape == (M, N) and info.device == "a device" and info.seconds is None
    out = Tensor((M, N), C)
    assert repeat.again(Tensor(), weight, out, Tensor((N,), BIAS), CHOICE)[0] is out
    assert launches[1:] == [[A, C, BIAS, A]]


UNUSUAL = {
    "more rows": {"x": Tensor((M + 1, K))},
    "rows further apart": {"x": Tensor(strides=(2 * K, 1))},
    "another type": {"x": Tensor(dtype="bfloat16")},
    "another device": {"x": Tensor(device=1)},
    "not on a device": {"x": Tensor(device=-1)},
    "a stream asked for, and no out that is its": {"asked": 7},
    "a misaligned x": {"x": Tensor(address=A + 2)},
    "an x whose memory was taken away": {"x": Tensor(address=0)},
    "an out whose memory was taken away": {"out": Tensor((M, N), 0)},
    "another kind of array": {"x": np.zeros((M, K), np.float16)},
    "no array": {"x": None},
    "another kernel": {"choice": ("auto", "tiled", "numba-cuda", True)},
    "another stream": {"stream": 8},
    "a capture on a device that is not current": {"capturing": True, "device": 1},
    "a capture": {"capturing": True},
    "an out of another shape": {"out": Tensor((M, N + 1), C)},
    "an out of another type": {"out": Tensor((M, N), C, dtype="float")},
    "an out with gaps": {"out": Tensor((M, N), C, strides=(2 * N, 1))},
    "an out elsewhere": {"out": Tensor((M, N), C, device=1)},
    "an out of another library": {"out": np.zeros((M, N), np.float16)},
    "a misaligned out": {"out": Tensor((M, N), C + 8)},
    "an out that begins in x": {"out": Tensor((M, N), A + 2 * M * K - 16)},
    "an out that ends in x": {"out": Tensor((M, N), A - 2 * M * N + 16)},
    "an x whose gradient would be lost": {"x": Tensor().requiring_gradient()},
    "an out whose gradient would be lost": {"out": Tensor((M, N), C).requiring_gradient()},
    "a bias whose gradient would be lost": {"bias": Tensor((N,), BIAS).requiring_gradient()},
    "a bias of another shape": {"bias": Tensor((1, N), BIAS)},
    "a bias of another type": {"bias": Tensor((N,), BIAS, dtype="float")},
    "a bias with gaps": {"bias": Tensor((N,), BIAS, strides=(2,))},
    "a bias elsewhere": {"bias": Tensor((N,), BIAS, device=1)},
    "a misaligned bias": {"bias": Tensor((N,), BIAS + 2)},
    "an out that holds the bias": {"out": Tensor((M, N), C), "bias": Tensor((N,), C + 2 * N)},
    "an out that begins in the bias": {
        "out": Tensor((M, N), C),
        "bias": Tensor((N,), C - 2 * N + 16),
    },
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_unusual_goes_the_long_way(state, what):
    weight, change = Weight(), dict(UNUSUAL[what])
    launches = remembered(weight)
    arguments = {"x": Tensor(), "out": None, "bias": None, "choice": CHOICE}
    for name in arguments.keys() & change.keys():
        arguments[name] = change.pop(name)
    asked = change.pop("asked", None)
    for name, value in change.items():
        setattr(state, name, value)
    assert (
        repeat.again(
            arguments["x"], weight, arguments["out"], arguments["bias"], arguments["choice"], asked
        )
        is None
    )
    assert launches == []
    assert repeat.again(Tensor(), Weight(), None, None, CHOICE) is None, "another weight"


def test_where_no_gradients_are_recorded_none_is_lost(state):
    weight = Weight()
    launches = remembered(weight)
    state.recording = False
    x, bias = Tensor().requiring_gradient(), Tensor((N,), BIAS).requiring_gradient()
    assert repeat.again(x, weight, Tensor((M, N), C), bias, CHOICE) is not None
    assert launches == [[A, C, BIAS, A]]


def test_the_current_device_may_be_another(state):
    """As it is where the layers of a model lie on several devices; the launch itself finds its
    context."""
    weight = Weight()
    launches = remembered(weight)
    state.device = 1
    assert repeat.again(Tensor(), weight, None, None, CHOICE) is not None and len(launches) == 1


def test_a_stream_that_is_asked_for_is_found_by_its_handle(state):
    """With an out there is no memory of the current stream in play. The current stream's capture
    does not matter, the asked one's does."""
    weight, out = Weight(), Tensor((M, N), C)
    what, launches = prepared(stream=99)
    x = Tensor()
    repeat.remember(
        x,
        ArrayView(x, "torch", 0, A, (M, K), np.dtype(np.float16), (2 * K, 2), False),
        weight,
        CHOICE,
        what,
    )
    for asked, found in ((99, True), (SimpleNamespace(ptr=99), True), (98, False), (None, False)):
        launches.clear()
        assert (repeat.again(x, weight, out, None, CHOICE, asked) is not None) is found and bool(
            launches
        ) is found
    state.capturing = True
    assert repeat.again(x, weight, out, None, CHOICE, 99) is None


def test_a_bias_that_is_a_parameter_repeats(state):
    class Parameter(Tensor):
        pass

    weight = Weight()
    launches = remembered(weight)
    assert repeat.again(
        Tensor(), weight, None, Parameter((N,), BIAS), CHOICE
    ) is not None and launches == [[A, FRESH, BIAS, A]]


def test_an_out_right_beside_x_or_the_bias_is_apart(state):
    weight = Weight()
    remembered(weight)
    for address in (A + 2 * M * K, A - 2 * M * N):
        assert repeat.again(Tensor(), weight, Tensor((M, N), address), None, CHOICE) is not None
    for address in (C - 2 * N, C + 2 * M * N):
        assert (
            repeat.again(Tensor(), weight, Tensor((M, N), C), Tensor((N,), address), CHOICE)
            is not None
        )


def test_a_call_is_kept_for_the_stream_it_was_made_for(state):
    """Which need not be the one that the library would name now: that of its current device,
    say."""
    weight = Weight()
    state.stream = 8
    launches = remembered(weight, stream=7)
    assert repeat.again(Tensor(), weight, None, None, CHOICE) is None and launches == []
    state.stream = 7
    assert repeat.again(Tensor(), weight, None, None, CHOICE) is not None


@pytest.mark.parametrize("library", ("cupy.ndarray", "numba.DeviceNDArray"))
def test_bytes_in_another_order_are_another_type(library):
    """Their letter is the same."""

    def array(dtype):
        dtype = np.dtype(dtype)
        context = SimpleNamespace(device=SimpleNamespace(id=0))
        return SimpleNamespace(
            shape=(M, K),
            strides=(2 * K, 2),
            dtype=dtype,
            data=SimpleNamespace(device_id=0, ptr=A),
            stream=0,
            gpu_data=SimpleNamespace(context=context),
        )

    reader = object.__new__(readers.READERS[library])
    assert (
        reader.key(array("<f2"), CHOICE, 7)
        == reader.key(array("float16"), CHOICE, 7)
        != reader.key(array(">f2"), CHOICE, 7)
    )


def test_a_kernel_without_a_workspace_repeats_in_a_capture_too(state):
    weight = Weight()
    launches = remembered(weight, scratch=False)
    state.capturing = True
    assert repeat.again(Tensor(), weight, None, None, CHOICE) is not None and len(launches) == 1


@pytest.mark.parametrize(
    "what",
    (
        "a capture",
        "the stream of a thread",
        "an address in no word",
        "a class of the user's, whatever its name",
    ),
)
def test_what_cannot_be_repeated_is_not_kept(state, what):
    weight = Weight()
    state.capturing = what == "a capture"
    stream = scratch.PER_THREAD_STREAM if what == "the stream of a thread" else 7
    x = type("Tensor", (Tensor,), {"__module__": "mine"})() if what.startswith("a class") else None
    remembered(weight, x, stream=stream)
    if what == "an address in no word":
        repeat._calls.clear()
        nowhere = Prepared(prepared()[0].bound, None, None, False, ())
        repeat.remember(
            Tensor(),
            ArrayView(None, "torch", 0, A, (M, K), np.dtype(np.float16), (2 * K, 2), False),
            weight,
            CHOICE,
            nowhere,
        )
    assert repeat._calls == {}


def test_calls_go_with_their_weight(state):
    weight = Weight()
    remembered(weight)
    assert len(repeat._calls) == 1
    del weight
    gc.collect()
    assert repeat._calls == {}


def test_calls_go_when_scratch_memory_is_released(state):
    weight = Weight()
    remembered(weight)
    scratch.release_workspaces()
    assert repeat.again(Tensor(), weight, None, None, CHOICE) is None


def test_a_weight_has_a_bounded_number_of_calls(state, monkeypatch):
    monkeypatch.setattr(repeat, "CALLS_PER_WEIGHT", 4)
    weight = Weight()
    for state.stream in range(100, 111):
        remembered(weight, stream=state.stream)
        assert repeat.again(Tensor(), weight, None, None, CHOICE) is not None
        assert len(repeat._calls[id(weight)]) <= 4
