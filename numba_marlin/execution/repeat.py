"""Repeating a product at the cost of its launch: everything that depends only on shapes is cached
per weight and looked up by cheap attributes.

``matmul`` first calls ``again``, which returns None unless all of this equals an earlier call that
took the full path, was checked there and passed to ``remember``: the weight; shape, strides, type
and device of x; backend, kernel and compiler; and the stream, which must not be being captured (a
captured launch has its own scratch memory) and must be the current one of x's library unless
``out`` is given. Then only the result is allocated, addresses are written into the argument buffer,
and the launch is enqueued. Anything unusual takes the full path, which has the error messages.

``block_scaled_matmul`` calls ``again_operands``, which does the same for its operands, all of which
may have other addresses than before; its calls are cached with B.

The cache does not keep a weight alive: its calls are dropped with it. A weight has at most
``CALLS_PER_WEIGHT`` calls; then the cache of that weight is cleared. This is thread-safe: a call's
buffer is locked while it is filled and enqueued.
"""

from __future__ import annotations

import logging
import sys
import weakref

from numba_marlin.execution import driver, scratch
from numba_marlin.execution.arrays import ArrayView, stream_handle
from numba_marlin.execution.binding import RESULT
from numba_marlin.execution.gpu import Prepared, clear
from numba_marlin.execution.plan import RunInfo
from numba_marlin.execution.readers import READERS

CALLS_PER_WEIGHT = 128
log = logging.getLogger("numba_marlin")


class Call:
    """A ``Prepared`` product, reduced to what a repetition uses."""

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
        """Enqueue and return (out, RunInfo). Returns None, and enqueues nothing, for null or
        unaligned addresses, and for a result at c that overlaps x or the bias."""
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
        """Whether the stream is being captured, independent of the current device."""
        with driver.on_device(self.bound.launcher.ordinal):
            return driver.capture_id(self.bound.stream) is not None


class OperandCall:
    """A ``Prepared`` product of two block-scaled operands. places: the words with the address of
    each of ``inputs``; results: (parameter, shape, type, its places, bytes to zero before a
    launch)."""

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
        """Enqueue. Returns False, and enqueues nothing, for null or unaligned addresses."""
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


_calls: dict[int, dict[tuple, Call | OperandCall]] = {}  # by id(weight), while the weight is alive
_libraries: dict[type, object] = {}  # type of array -> Library that reads it
scratch.before_release(_calls.clear)


def again(x, p, out, bias, choice: tuple, stream=None):
    """Enqueue a product that repeats an earlier one -> (result, RunInfo); None if there is no such
    call."""
    calls = _calls.get(id(p))
    if calls is None:
        return None
    library = _libraries.get(type(x))
    if library is None:
        return None
    if stream is not None:
        if out is None:  # its memory belongs to another stream, which this one must wait for
            return None
        stream = stream_handle(stream, 0)
    return library.again(calls, x, out, bias, choice, stream)


def again_operands(b, inputs: tuple, choice: tuple):
    """Enqueue a product with ``b`` that repeats an earlier one -> ({parameter: result}, RunInfo);
    None if there is no such call. inputs: arrays of both operands and of the epilogue."""
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
    except TypeError:  # an unhashable value in choice, which cannot be valid
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


def remember_operands(
    b, inputs: dict, choice: tuple, prepared: Prepared, device: int, keeps: tuple | None = None
) -> None:
    """Cache ``prepared``, made for ``inputs`` ({parameter: array}) of these shapes and strides.
    keeps: objects that must outlive its repetitions; None: those of ``prepared``."""
    first, *others = inputs.values()
    library = _library_for(first, prepared, device)
    if library is None or any(type(each) is not type(first) for each in others):
        return
    stream = prepared.bound.stream
    if stream == library.stream(first):
        key = (*map(library.seen, inputs.values()), stream, choice)
        call = OperandCall(prepared, tuple(inputs))
        call.keeps = call.keeps if keeps is None else keeps
        _keep(b, key, call)


def remember(x, x_view, p, choice: tuple, prepared: Prepared) -> None:
    """Cache ``prepared``, made for x of this shape and these strides, for calls that repeat it."""
    library = _library_for(x, prepared, x_view.device)
    key = None if library is None else library.key(x, choice, prepared.bound.stream)
    if key is not None:
        _keep(p, key, Call(prepared, x_view))


def _library_for(x, prepared: Prepared, device: int):
    """The reader for x if ``prepared`` can be repeated for it; else None."""
    stream = prepared.bound.stream
    if prepared.places is None or stream == scratch.PER_THREAD_STREAM:
        return None
    library = _libraries.get(type(x))
    if library is None:
        home = type(x).__module__.partition(".")[0]
        reader = READERS.get(f"{home}.{type(x).__name__}")
        if reader is None:
            return None
        library = _libraries[type(x)] = reader(sys.modules[home])
    with driver.on_device(device):
        captured = prepared.scratch and driver.capture_id(stream) is not None
    return None if captured else library


def forget(weight) -> None:
    """Drop the calls of a weight, which keep its device copies alive."""
    _calls.pop(id(weight), None)


def _keep(weight, key: tuple, call) -> None:
    kept = _calls.get(id(weight))
    if kept is None:
        kept = _calls[id(weight)] = {}
        weakref.finalize(weight, _calls.pop, id(weight), None).atexit = False
    if len(kept) >= CALLS_PER_WEIGHT:
        kept.clear()
    kept[key] = call
