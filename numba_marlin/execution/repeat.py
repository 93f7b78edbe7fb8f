"""A product like one before costs what its launch costs: per weight, what depends on shapes alone
is kept, and found by cheap attributes.

``matmul`` asks ``again`` first. It answers None unless all of this is as it was in an earlier call,
which went the long way, was checked there and given to ``remember``: the weight; shape, strides,
type and device of x; backend, kernel and compiler; the stream, which is not being captured (a
captured launch has scratch memory of its own), and is the current one of x's library unless there
is an ``out``. Then only the result is allocated, addresses are written into the argument buffer,
and the launch is enqueued. What is unusual goes the long way, where messages are.

``block_scaled_matmul`` asks ``again_operands``, the same for its operands, all of which may lie
elsewhere this time; its calls go with B.

Nothing here keeps a weight alive: its calls go with it. A weight has at most ``CALLS_PER_WEIGHT``
of them; then all are made anew. Any number of threads may call; a call's buffer is locked while it
is filled and enqueued.
"""

from __future__ import annotations

import functools
import logging
import sys
import weakref

from numba_marlin.execution import driver, scratch
from numba_marlin.execution.arrays import ArrayView, stream_handle
from numba_marlin.execution.binding import RESULT
from numba_marlin.execution.gpu import Prepared, clear
from numba_marlin.execution.plan import RunInfo
from numba_marlin.formats.floats import float_type

CALLS_PER_WEIGHT = 128
log = logging.getLogger("numba_marlin")


class Call:
    """A ``Prepared`` product, unpacked to what a repetition touches."""

    __slots__ = (
        "bound",
        "words",
        "lock",
        "enqueue",
        "info",
        "a_places",
        "c_places",
        "bias_places",
        "scratch",
        "shape",
        "c_strides",
        "a_bytes",
        "bias_bytes",
        "c_bytes",
        "keeps",
    )

    def __init__(self, prepared: Prepared, x: ArrayView):
        problem = prepared.info.problem
        self.bound, self.info, self.keeps, self.scratch = (
            prepared.bound,
            prepared.info,
            prepared.keeps,
            prepared.scratch,
        )
        self.words, self.lock, self.enqueue = (
            prepared.bound.words,
            prepared.bound.lock,
            prepared.bound.enqueue,
        )
        self.a_places, self.c_places, self.bias_places = (
            prepared.places.get(name, ()) for name in ("a", "c", "bias")
        )
        low, high = x.extent()
        unit = 1 if x.kind == "torch" else x.itemsize  # torch counts strides in elements
        self.shape, self.c_strides = (problem.m, problem.n), (problem.n * unit, unit)
        self.a_bytes, self.bias_bytes, self.c_bytes = (
            high - low,
            problem.n * x.itemsize,
            problem.m * problem.n * x.itemsize,
        )

    def launch(self, a: int, bias: int, c: int, out) -> tuple | None:
        """(out, RunInfo); None, and nothing is enqueued, for no memory, memory that is not aligned,
        and a result at c that would lie in x or the bias."""
        end = c + self.c_bytes
        if (
            not (a and c)
            or (a | bias | c) & 15
            or (a < end and c < a + self.a_bytes)
            or (bias and bias < end and c < bias + self.bias_bytes)
        ):
            return None
        words = self.words
        with self.lock:
            for place in self.a_places:
                words[place] = a
            for place in self.c_places:
                words[place] = c
            for place in self.bias_places:
                words[place] = bias
            self.enqueue()
        if log.isEnabledFor(logging.INFO):
            log_run(self.info)
        return out, self.info

    def captured(self) -> bool:
        """Whether the stream is being captured, whatever device is current."""
        with driver.on_device(self.bound.launcher.ordinal):
            return driver.capture_id(self.bound.stream) is not None


class OperandCall:
    """A ``Prepared`` product of two block-scaled operands. places: of each of ``inputs``; results:
    (parameter, shape, type, its places, bytes to zero before a launch)."""

    def __init__(self, prepared: Prepared, inputs: tuple[str, ...]):
        binding = prepared.binding
        self.bound, self.info, self.keeps, self.scratch = (
            prepared.bound,
            prepared.info,
            prepared.keeps,
            prepared.scratch,
        )
        self.places = tuple(prepared.places[name] for name in inputs)
        self.results = tuple(
            (
                name,
                each.shape,
                each.dtype,
                prepared.places[name],
                each.nbytes if each.zero else 0,
            )
            for name, each in binding.with_role(RESULT).items()
        )

    def launch(self, addresses: list[int], results: list[int]) -> bool:
        """False, and nothing is enqueued, for no memory and memory that is not aligned."""
        if not all(addresses) or not all(results) or any(each & 15 for each in addresses):
            return False
        bound = self.bound
        for address, (*_, nbytes) in zip(results, self.results):
            if nbytes:
                clear(address, nbytes, bound.launcher.ordinal, bound.stream)
        with bound.lock:
            for address, places in zip(addresses, self.places):
                for place in places:
                    bound.words[place] = address
            for address, (_, _, _, places, _) in zip(results, self.results):
                for place in places:
                    bound.words[place] = address
            bound.enqueue()
        if log.isEnabledFor(logging.INFO):
            log_run(self.info)
        return True

    captured = Call.captured


def log_run(info: RunInfo) -> None:
    problem = info.problem
    log.info(
        "matmul m=%d n=%d k=%d ran on %s (%s)",
        problem.m,
        problem.n,
        problem.k,
        info.device,
        info.reason,
    )


_calls: dict[int, dict[tuple, Call | OperandCall]] = {}  # by id(weight), as long as it lives
_libraries: dict[type, object] = {}  # type of array -> Library that reads it
scratch.before_release(_calls.clear)


class _Torch:
    """torch.Tensor on a CUDA device."""

    def __init__(self, torch):
        self.current_device, self.current_stream = (
            torch._C._cuda_getDevice,
            torch._C._cuda_getCurrentRawStream,
        )
        self.capturing = torch.cuda.is_current_stream_capturing
        self.type_named = functools.partial(getattr, torch)

    def seen(self, x) -> tuple:
        return x.shape, x.stride(), x.dtype, x.get_device()

    def key(self, x, choice: tuple, stream: int) -> tuple:
        return *self.seen(x), stream, choice

    def address(self, x) -> int:
        return x.data_ptr()

    def stream(self, x) -> int:
        return self.current_stream(x.get_device())

    def may_be_captured(self, x, call) -> bool:
        return self.capturing() if self.current_device() == x.get_device() else call.captured()

    def result(self, x, shape: tuple, type_name: str):
        return x.new_empty(shape, dtype=self.type_named(type_name))

    def again(self, calls: dict, x, out, bias, choice: tuple, stream: int | None):
        device = x.get_device()
        call = calls.get(
            (
                x.shape,
                x.stride(),
                x.dtype,
                device,
                self.current_stream(device) if stream is None else stream,
                choice,
            )
        )
        if call is None or not x.is_cuda:
            return None
        if call.scratch and (
            self.capturing()
            if stream is None and self.current_device() == device
            else call.captured()
        ):
            return None
        if bias is not None and (
            not isinstance(bias, type(x))
            or bias.shape != call.shape[1:]
            or not bias.is_contiguous()
            or bias.dtype is not x.dtype
            or bias.device != x.device
        ):
            return None
        if out is None:
            out = x.new_empty(call.shape)
        elif (
            type(out) is not type(x)
            or out.shape != call.shape
            or out.stride() != call.c_strides
            or out.dtype is not x.dtype
            or out.device != x.device
        ):
            return None
        return call.launch(
            x.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr(), out
        )


class _Cupy:
    """cupy.ndarray."""

    def __init__(self, cupy):
        self.empty, self.current_stream = cupy.ndarray, cupy.cuda.get_current_stream
        self.current_device, self.is_capturing = (
            cupy.cuda.runtime.getDevice,
            cupy.cuda.runtime.streamIsCapturing,
        )

    def seen(self, x) -> tuple:
        return x.shape, x.strides, x.dtype, x.data.device_id

    def key(self, x, choice: tuple, stream: int) -> tuple:
        return *self.seen(x), stream, choice

    def address(self, x) -> int:
        return x.data.ptr

    def stream(self, x) -> int | None:
        here = self.current_device() == x.data.device_id
        return self.current_stream().ptr if here else None

    def may_be_captured(self, x, call) -> bool:
        stream = call.bound.stream
        return stream not in driver.LEGACY_STREAMS and self.is_capturing(stream)

    def result(self, x, shape: tuple, type_name: str):
        return self.empty(shape, float_type(type_name))

    def again(self, calls: dict, x, out, bias, choice: tuple, stream: int | None):
        a, dtype = x.data, x.dtype
        device = a.device_id
        if stream is None:
            stream = self.current_stream().ptr
        call = calls.get((x.shape, x.strides, dtype, device, stream, choice))
        if (
            call is None
            or self.current_device() != device
            or (call.scratch and stream not in driver.LEGACY_STREAMS and self.is_capturing(stream))
        ):
            return None
        if bias is not None and (
            not isinstance(bias, type(x))
            or bias.shape != call.shape[1:]
            or not bias.flags.c_contiguous
            or bias.dtype != dtype
            or bias.data.device_id != device
        ):
            return None
        if out is None:
            out = self.empty(call.shape, dtype)
        elif (
            type(out) is not type(x)
            or out.shape != call.shape
            or out.strides != call.c_strides
            or out.dtype != dtype
            or out.data.device_id != device
        ):
            return None
        return call.launch(a.ptr, 0 if bias is None else bias.data.ptr, out.data.ptr, out)


class _Numba:
    """numba.cuda's device arrays of the default stream. To allocate one takes Numba several times
    as long as the rest: give ``out``."""

    def __init__(self, numba):
        self.empty, self.current_context = numba.cuda.device_array, numba.cuda.current_context

    def seen(self, x) -> tuple:
        return x.shape, x.strides, x.dtype, x.gpu_data.context.device.id

    def key(self, x, choice: tuple, stream: int) -> tuple | None:
        return (*self.seen(x), stream, choice) if x.stream == 0 else None

    def address(self, x) -> int:
        return x.device_ctypes_pointer.value

    def stream(self, x) -> int | None:
        here = self.current_context().device.id == x.gpu_data.context.device.id
        return 0 if here and x.stream == 0 else None

    def may_be_captured(self, x, call) -> bool:
        return False  # the legacy default stream

    def result(self, x, shape: tuple, type_name: str):
        return self.empty(shape, float_type(type_name))

    def again(self, calls: dict, x, out, bias, choice: tuple, stream: int | None):
        if x.stream != 0 or bias is not None:
            return None
        device = x.gpu_data.context.device.id
        call = calls.get((x.shape, x.strides, x.dtype, device, stream or 0, choice))
        if call is None or (stream and call.scratch and call.captured()):
            return None
        if out is None:
            if self.current_context().device.id != device:
                return None
            out = self.empty(call.shape, x.dtype)
        elif (
            type(out) is not type(x)
            or out.shape != call.shape
            or out.strides != call.c_strides
            or out.dtype != x.dtype
            or out.gpu_data.context.device.id != device
        ):
            return None
        return call.launch(x.device_ctypes_pointer.value, 0, out.device_ctypes_pointer.value, out)


# not what derives from them: it may have a mind of its own
_READERS = {"torch.Tensor": _Torch, "cupy.ndarray": _Cupy, "numba.DeviceNDArray": _Numba}


def again(x, p, out, bias, choice: tuple, stream=None):
    """(result, RunInfo) of a product like an earlier one, enqueued; None if there was none like
    it."""
    calls = _calls.get(id(p))
    if calls is None:
        return None
    library = _libraries.get(type(x))
    if library is None:
        return None
    if stream is not None:
        if out is None:  # its memory belongs to another stream, which has to be followed
            return None
        stream = stream_handle(stream, 0)
    return library.again(calls, x, out, bias, choice, stream)


def again_operands(b, inputs: tuple, choice: tuple):
    """({parameter: result}, RunInfo) of a product with ``b`` like an earlier one, enqueued; None if
    there was none like it. inputs: arrays of both operands, and of the epilogue."""
    calls = _calls.get(id(b))
    if calls is None:
        return None
    first = inputs[0]
    library = _libraries.get(type(first))
    if library is None or any(type(each) is not type(first) for each in inputs):
        return None
    stream = library.stream(first)
    try:
        call = calls.get((*map(library.seen, inputs), stream, choice))
    except TypeError:  # something in choice that cannot be a key, nor be right
        return None
    if call is None or (call.scratch and library.may_be_captured(first, call)):
        return None
    results = {
        name: library.result(first, shape, type_name)
        for name, shape, type_name, _, _ in call.results
    }
    done = call.launch(
        [library.address(each) for each in inputs],
        [library.address(each) for each in results.values()],
    )
    return (results, call.info) if done else None


def remember_operands(b, inputs: dict, choice: tuple, prepared: Prepared, device: int) -> None:
    """Keep ``prepared``, made for ``inputs`` ({parameter: array}) as they lie."""
    first, *others = inputs.values()
    library = _library_for(first, prepared, device)
    if library is None or any(type(each) is not type(first) for each in others):
        return
    stream = prepared.bound.stream
    if stream == library.stream(first):
        key = (*map(library.seen, inputs.values()), stream, choice)
        _keep(b, key, OperandCall(prepared, tuple(inputs)))


def remember(x, x_view, p, choice: tuple, prepared: Prepared) -> None:
    """Keep ``prepared``, which was made for x as it lies, for calls like it."""
    library = _library_for(x, prepared, x_view.device)
    key = None if library is None else library.key(x, choice, prepared.bound.stream)
    if key is not None:
        _keep(p, key, Call(prepared, x_view))


def _library_for(x, prepared: Prepared, device: int):
    """What reads x, if a launch like ``prepared`` can be repeated for it; else None."""
    stream = prepared.bound.stream
    if prepared.places is None or stream == scratch.PER_THREAD_STREAM:
        return None
    library = _libraries.get(type(x))
    if library is None:
        home = type(x).__module__.partition(".")[0]
        reader = _READERS.get(f"{home}.{type(x).__name__}")
        if reader is None:
            return None
        library = _libraries[type(x)] = reader(sys.modules[home])
    with driver.on_device(device):
        captured = prepared.scratch and driver.capture_id(stream) is not None
    return None if captured else library


def _keep(weight, key: tuple, call) -> None:
    kept = _calls.get(id(weight))
    if kept is None:
        kept = _calls[id(weight)] = {}
        weakref.finalize(weight, _calls.pop, id(weight), None).atexit = False
    if len(kept) >= CALLS_PER_WEIGHT:
        kept.clear()
    kept[key] = call
