"""Features of numba.cuda that the host's part of a program uses: launches, arrays, streams.
docs/on_cpu.md has the table of all, which ``.ci/on_cpu_table.py`` makes."""

import os
import tempfile
from pathlib import Path

import numpy as np

from tests.on_cpu.feature import feature


def counted(cuda):
    """A kernel that leaves every thread's number in its place."""

    @cuda.jit
    def count(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = i

    return count


@feature("`kernel[grid, block]` with arrays of the host")
def host_arrays(cuda):
    out = np.zeros(100, np.int32)
    counted(cuda)[4, 32](out)
    assert (out == np.arange(100)).all()


@feature("`kernel[grid, block, stream, shared]`")
def dynamic_shared(cuda):
    @cuda.jit
    def turned(out):
        part = cuda.shared.array(0, np.int32)
        t = cuda.threadIdx.x
        part[t] = t
        cuda.syncthreads()
        out[t] = part[cuda.blockDim.x - 1 - t]

    out = cuda.device_array(64, np.int32)
    turned[1, 64, cuda.stream(), 4 * 64](out)
    assert (out.copy_to_host() == np.arange(64)[::-1]).all()


@feature("grids and blocks of three dimensions")
def three_dimensions(cuda):
    @cuda.jit
    def places(out):
        x, y, z = cuda.grid(3)
        out[x, y, z] = x + 10 * y + 100 * z

    out = np.zeros((4, 6, 4), np.int32)
    places[(2, 3, 2), (2, 2, 2)](out)
    x, y, z = np.indices(out.shape)
    assert (out == x + 10 * y + 100 * z).all()


@feature("`forall`")
def for_all(cuda):
    out = np.zeros(100, np.int32)
    counted(cuda).forall(out.size)(out)
    assert (out == np.arange(100)).all()


@feature("`to_device`, `device_array`, `copy_to_host`, slices of device arrays")
def device_arrays(cuda):
    there = cuda.to_device(np.arange(20, dtype=np.float32))
    assert (there[3:15:4].copy_to_host() == np.arange(20)[3:15:4]).all() and there[7] == 7
    there[5] = 1
    assert there.copy_to_host()[5] == 1
    assert cuda.device_array_like(there).shape == (20,)


@feature("`pinned_array`, `mapped_array`, `pinned`")
def pinned(cuda):
    out = cuda.mapped_array(64, np.int32)
    counted(cuda)[2, 32](out)
    cuda.synchronize()
    assert (out == np.arange(64)).all()
    held = cuda.pinned_array(8, np.int32)
    held[:] = 3
    with cuda.pinned(np.zeros(4)):
        assert (cuda.to_device(held).copy_to_host() == 3).all()


@feature("`managed_array`")
def managed(cuda):
    out = cuda.managed_array(64, np.int32)
    counted(cuda)[2, 32](out)
    cuda.synchronize()
    assert (out == np.arange(64)).all()


@feature("streams and events")
def streams(cuda):
    stream, start, end = cuda.stream(), cuda.event(), cuda.event()
    start.record(stream)
    with stream.auto_synchronize():
        there = cuda.to_device(np.ones(4), stream=stream)
    end.record(stream)
    end.synchronize()
    assert there.copy_to_host().sum() == 4 and start.elapsed_time(end) >= 0


@feature("`stream.add_callback`")
def callbacks(cuda):
    stream, called = cuda.stream(), []
    stream.add_callback(lambda *given: called.append(given), None)
    stream.synchronize()
    assert called


@feature("`declare_device` and `link=` of CUDA C++")
def linked(cuda):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "three.cu")
        path.write_text(
            'extern "C" __device__ int thrice(int* out, int x) { *out = 3 * x; return 0; }'
        )
        thrice = cuda.declare_device("thrice", "int32(int32)")

        @cuda.jit(link=[os.fspath(path)])
        def used(out):
            i = cuda.grid(1)
            out[i] = thrice(i)

        out = np.zeros(32, np.int32)
        used[1, 32](out)
    assert (out == 3 * np.arange(32)).all()


@feature("`inspect_asm`")
def inspected(cuda):
    count = counted(cuda)
    count[1, 32](np.zeros(32, np.int32))
    texts = count.inspect_asm()
    assert all(".visible .entry" in text for text in texts.values()) and texts


@feature("the device's name and figures, memory that is left")
def device(cuda):
    found = cuda.get_current_device()
    assert tuple(found.compute_capability) == (9, 0) and found.WARP_SIZE == 32
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free <= total


@feature("arrays of other libraries: `__cuda_array_interface__`")
def interface(cuda):
    there = cuda.to_device(np.arange(8, dtype=np.int32))

    class Other:
        __cuda_array_interface__ = there.__cuda_array_interface__

    again = cuda.as_cuda_array(Other())
    assert (again.copy_to_host() == np.arange(8)).all()


@feature("textures, IPC handles, graphs, peers: `get_ipc_handle`")
def other_processes(cuda):
    cuda.to_device(np.zeros(8)).get_ipc_handle()
