"""A problem on the GPU, through ``numba_marlin.execution.driver`` alone: buffers between guard
bands, launches on any stream, and a wait that ends.

A kernel that never ends would take the whole session with it, because freeing memory waits for it:
``DeviceProblem.wait`` gives up after ``DEADLINE_SECONDS``, every later use fails at once, and the
process leaves without tidying up.
"""

import atexit
import os
import time
import weakref

import numpy as np

from numba_marlin.execution import driver, gpu

GUARD_BYTES = 4096
GUARD_WORD = 0xA5A5A5A5
NAN_WORDS = {"float16": 0x7E007E00, "bfloat16": 0x7FC07FC0, "float32": 0x7FC00000}
DEADLINE_SECONDS = 20

_alive = weakref.WeakSet()
_stuck = []


class GuardedArray:
    """A copy of a host array on the device, between two guard bands. Its bytes are a multiple of
    four."""

    def __init__(self, array):
        self.host = np.ascontiguousarray(array)
        assert self.host.nbytes % 4 == 0, f"{self.host.nbytes} bytes are not whole words"
        self.memory = driver.DeviceArray((self.host.nbytes + 2 * GUARD_BYTES,), np.uint8)
        self.memory.fill_words(GUARD_WORD)
        self.address = self.memory.address + GUARD_BYTES
        with driver.on_device(0):
            driver.call("cuMemcpyHtoD", self.address, self.host.ctypes.data, self.host.nbytes)

    def poison(self, stream):
        with driver.on_device(0):
            driver.call(
                "cuMemsetD32Async",
                self.address,
                NAN_WORDS[self.host.dtype.name],
                self.host.nbytes // 4,
                driver.bindings().CUstream(stream),
            )

    def read(self, name):
        """The array as it is now. AssertionError if a guard band was written."""
        held = self.memory.to_host()
        bands = np.concatenate((held[:GUARD_BYTES], held[-GUARD_BYTES:])).view(np.uint32)
        assert (bands == GUARD_WORD).all(), f"guard band of {name} was written"
        return held[GUARD_BYTES:-GUARD_BYTES].view(self.host.dtype).reshape(self.host.shape)

    def check_unchanged(self, name):
        assert np.array_equal(self.read(name).view(np.uint8), self.host.view(np.uint8)), (
            f"{name} is read-only and was written"
        )


class DeviceProblem:
    """A ``testing.launches.Prepared`` with its buffers on the device; ``launch`` it as often
    as you like. ``held``: {parameter: GuardedArray} that are there already, say weights that many
    problems share."""

    def __init__(self, prepared, stream=0, held=None):
        if _stuck:
            raise RuntimeError(
                "a kernel launched earlier never ended, the GPU cannot be used any more:"
                f" {_stuck[0]}"
            )
        self.compiled, self.grid, self.sizes, self.stream, self.held = (
            prepared.compiled,
            prepared.grid,
            prepared.sizes,
            stream,
            held or {},
        )
        self.arrays = {
            name: self.held.get(name) or GuardedArray(array)
            for name, array in prepared.buffers.items()
        }
        self.prepared = prepared
        self.arguments = self.arguments_with()
        self.launcher = gpu.loaded(prepared.binding, 0)
        # the copies above are on the default stream, which a non-blocking stream does not wait for
        driver.synchronize(0)
        _alive.add(self)

    def arguments_with(self, **addresses):
        """What a launch passes, with these addresses instead of those of the arrays of that
        name."""
        held = {name: array.address for name, array in self.arrays.items()}
        return gpu.arguments(self.prepared.binding, held | addresses, 0)

    def launch(self, arguments=None):
        self.launcher(self.grid, arguments or self.arguments, stream=self.stream)

    def launched(self):
        self.launch()
        return self

    def wait(self):
        cuda = driver.bindings()
        end = time.monotonic() + DEADLINE_SECONDS
        while True:
            with driver.on_device(0):
                (code,) = cuda.cuStreamQuery(cuda.CUstream(self.stream))
            if code != cuda.CUresult.CUDA_ERROR_NOT_READY:
                break
            if time.monotonic() > end:
                self._give_up()
            time.sleep(0)
        if code != cuda.CUresult.CUDA_SUCCESS:
            raise driver.DriverError(
                f"{code.name} in kernel {self.compiled.kernel!r}, {self.compiled.config}, grid"
                f" {self.grid}"
            )

    def _give_up(self):
        message = (
            f"{self.compiled.kernel}, {self.compiled.config}, grid {self.grid}, sizes {self.sizes}"
        )
        # kept for ever: to free an array would wait for the kernel
        _stuck.extend((message, *_alive))
        atexit.register(os._exit, 1)
        raise RuntimeError(f"a kernel did not end within {DEADLINE_SECONDS} s: {message}")

    def collect(self):
        """{name: host array} of what the kernel may write. AssertionError if it wrote anything else
        (arrays that were held are their owner's to look at)."""
        self.wait()
        found = {
            name: array.read(name) for name, array in self.arrays.items() if name not in self.held
        }
        written = self.prepared.binding.written
        for name in found.keys() - written:
            self.arrays[name].check_unchanged(name)
        assert not found.get("locks", np.zeros(1)).any(), (
            f"locks {found['locks']} are not zero after the launch"
        )
        return {name: array for name, array in found.items() if name in written}

    def repeat(self, launches):
        """The bits of c after each of ``launches`` launches, all enqueued at once: uint16
        [launches, m, n]. c and partials are NaN before each."""
        c = self.arrays["c"]
        results = driver.DeviceArray((launches, *c.host.shape), np.uint16)
        for index in range(launches):
            for name in ("c", "partials"):
                if name in self.arrays:
                    self.arrays[name].poison(self.stream)
            self.launch()
            with driver.on_device(0):
                driver.call(
                    "cuMemcpyDtoDAsync",
                    results.address + index * c.host.nbytes,
                    c.address,
                    c.host.nbytes,
                    driver.bindings().CUstream(self.stream),
                )
        self.wait()
        return results.to_host()

    def repeat_adjacent(self, launches, in_graph=False):
        """The bits of c after each of ``launches`` launches with nothing in between: uint16
        [launches, m, n]. Each has a c of its own, NaN before. In a graph they overlap where the
        kernel lets them; on a stream only if the host is fast enough."""
        results = Row(launches, self.arrays["c"].host, self.stream)
        rows = [self.arguments_with(c=address) for address in results.addresses]
        put(self.stream, lambda: [self.launch(arguments) for arguments in rows], in_graph)
        self.wait()
        return results.bits()


def put(stream, enqueue, in_graph):
    """``enqueue()`` on the stream, or what it puts there captured and launched as one graph."""
    return Graph(stream, enqueue).launch() if in_graph else enqueue()


class Row:
    """``count`` arrays like ``array`` one behind the other on the device, all NaN."""

    def __init__(self, count, array, stream):
        assert array.nbytes % 16 == 0, f"{array.nbytes} bytes leave the next array unaligned"
        self.memory = driver.DeviceArray((count, *array.shape), np.uint16)
        self.addresses = [self.memory.address + index * array.nbytes for index in range(count)]
        self.word, self.stream = NAN_WORDS[array.dtype.name], stream
        self.poison()

    def poison(self):
        self.memory.fill_words(self.word, self.stream)

    def bits(self):
        return self.memory.to_host()


class Graph:
    """What ``enqueue()`` puts on ``stream``, captured; ``launch`` replays it there."""

    def __init__(self, stream, enqueue):
        cuda = driver.bindings()
        self.stream = cuda.CUstream(stream)
        with driver.on_device(0):
            driver.call(
                "cuStreamBeginCapture",
                self.stream,
                cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            )
            try:
                enqueue()
            finally:
                graph = driver.call("cuStreamEndCapture", self.stream)
            self.executable = driver.call("cuGraphInstantiate", graph, 0)
            driver.call("cuGraphDestroy", graph)
        weakref.finalize(self, driver.call, "cuGraphExecDestroy", self.executable).atexit = False

    def launch(self):
        with driver.on_device(0):
            driver.call("cuGraphLaunch", self.executable, self.stream)


class Streams:
    """``with Streams(4) as handles``: streams that do not wait for the default one."""

    def __init__(self, count):
        self.count = count

    def __enter__(self):
        flags = int(driver.bindings().CUstream_flags.CU_STREAM_NON_BLOCKING)
        with driver.on_device(0):
            self.streams = [driver.call("cuStreamCreate", flags) for _ in range(self.count)]
        return [int(stream) for stream in self.streams]

    def __exit__(self, *exception):
        with driver.on_device(0):
            for stream in self.streams:
                driver.call("cuStreamDestroy", stream)
