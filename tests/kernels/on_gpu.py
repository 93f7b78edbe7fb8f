"""A problem on the GPU, through ``numba_marlin.driver`` alone: buffers between guard bands, launches on any stream, and a wait that ends.

A kernel that never ends would take the whole session with it, because freeing memory waits for it: ``DeviceProblem.wait`` gives up after
``DEADLINE_SECONDS``, every later use fails at once, and the process leaves without tidying up.
"""
import atexit
import os
import time
import weakref

import numpy as np

from numba_marlin import driver, launch
from tests.kernels.harness import WRITTEN

GUARD_BYTES = 4096
GUARD_WORD = 0xA5A5A5A5
NAN_WORDS = {"float16": 0x7E007E00, "bfloat16": 0x7FC07FC0, "float32": 0x7FC00000}
DEADLINE_SECONDS = 20

_alive = weakref.WeakSet()
_stuck = []


class GuardedArray:
    """A copy of a host array on the device, between two guard bands. Its bytes are a multiple of four."""

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
            driver.call("cuMemsetD32Async", self.address, NAN_WORDS[self.host.dtype.name], self.host.nbytes // 4, driver.bindings().CUstream(stream))

    def read(self, name):
        """The array as it is now. AssertionError if a guard band was written."""
        held = self.memory.to_host()
        bands = np.concatenate((held[:GUARD_BYTES], held[-GUARD_BYTES:])).view(np.uint32)
        assert (bands == GUARD_WORD).all(), f"guard band of {name} was written"
        return held[GUARD_BYTES:-GUARD_BYTES].view(self.host.dtype).reshape(self.host.shape)


class DeviceProblem:
    """A ``tests.kernels.harness.Prepared`` with its buffers on the device; ``launch`` it as often as you like."""

    def __init__(self, prepared, stream=0):
        if _stuck:
            raise RuntimeError(f"a kernel launched earlier never ended, the GPU cannot be used any more: {_stuck[0]}")
        self.compiled, self.grid, self.sizes, self.stream = prepared.compiled, prepared.grid, prepared.sizes, stream
        self.arrays = {name: GuardedArray(array) for name, array in prepared.buffers.items()}
        self.arguments = prepared.arguments({name: array.address for name, array in self.arrays.items()}, driver.encode_tensor_map)
        self.launcher = launch.launcher(prepared.compiled, **prepared.kernel.launch_options(prepared.config))
        driver.synchronize(0)  # the copies above are on the default stream, which a non-blocking stream does not wait for
        _alive.add(self)

    def launch(self):
        self.launcher(self.grid, self.arguments, stream=self.stream)

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
            raise driver.DriverError(f"{code.name} in kernel {self.compiled.kernel!r}, {self.compiled.config}, grid {self.grid}")

    def _give_up(self):
        message = f"{self.compiled.kernel}, {self.compiled.config}, grid {self.grid}, sizes {self.sizes}"
        _stuck.extend((message, *_alive))  # kept for ever: to free an array would wait for the kernel
        atexit.register(os._exit, 1)
        raise RuntimeError(f"a kernel did not end within {DEADLINE_SECONDS} s: {message}")

    def collect(self):
        """{name: host array} of what the kernel may write. AssertionError if it wrote anything else."""
        self.wait()
        found = {name: array.read(name) for name, array in self.arrays.items()}
        for name in found.keys() - set(WRITTEN):
            assert np.array_equal(found[name].view(np.uint8), self.arrays[name].host.view(np.uint8)), f"{name} is read-only and was written"
        assert not found.get("locks", np.zeros(1)).any(), f"locks {found['locks']} are not zero after the launch"
        return {name: array for name, array in found.items() if name in WRITTEN}

    def repeat(self, launches):
        """The bits of c after each of ``launches`` launches, all enqueued at once: uint16 [launches, m, n]. c and partials are NaN before each."""
        c = self.arrays["c"]
        results = driver.DeviceArray((launches, *c.host.shape), np.uint16)
        for index in range(launches):
            for name in ("c", "partials"):
                if name in self.arrays:
                    self.arrays[name].poison(self.stream)
            self.launch()
            with driver.on_device(0):
                driver.call("cuMemcpyDtoDAsync", results.address + index * c.host.nbytes, c.address, c.host.nbytes, driver.bindings().CUstream(self.stream))
        self.wait()
        return results.to_host()


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
