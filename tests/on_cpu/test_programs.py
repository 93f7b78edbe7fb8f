"""Contract under test: programs that use numba.cuda run under the switch, unchanged, and compute
what they would on a GPU."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.on_cpu import programs

pytestmark = pytest.mark.filterwarnings("ignore:Host array used in CUDA kernel")


def test_there_is_one_device_of_compute_capability_9(gpu):
    device = gpu.get_current_device()
    assert gpu.is_available() and len(gpu.gpus) == 1
    assert (device.name, tuple(device.compute_capability)) == ("PTX machine", (9, 0))
    assert device.WARP_SIZE == 32 and device.MAX_THREADS_PER_BLOCK == 1024


def test_device_arrays_keep_what_launches_leave_in_them(gpu):
    x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    there, sums = gpu.to_device(x), gpu.to_device(y)
    for _ in range(3):
        programs.saxpy[4, 256](np.float32(2), there, sums)
    assert (sums.copy_to_host() == 6 * x + 1).all() and (y == 1).all()
    assert (sums[10:20:3].copy_to_host() == (6 * x + 1)[10:20:3]).all()
    assert sums[7] == 43


def test_arrays_of_the_host_are_copied_there_and_back(gpu):
    x, y = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    programs.saxpy[1, 128](np.float32(2), x, gpu.InOut(y))
    assert (y == 2 * x + 1).all()
    programs.saxpy[1, 128](np.float32(2), gpu.In(x), y)
    assert (y == 4 * x + 1).all()


@pytest.mark.thorough
def test_shared_memory_and_barriers(gpu):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (2 * programs.TILE,) * 2).astype(np.float32) for _ in "ab")
    c = np.zeros_like(a)
    programs.product[(2, 2), (programs.TILE,) * 2](a, b, c)
    assert (c == a @ b).all()


@pytest.mark.thorough
def test_dynamic_shared_memory_and_streams(gpu):
    stream, out = gpu.stream(), gpu.device_array(32, np.int32)
    programs.dynamic[1, 32, stream, 4 * 32](out)
    stream.synchronize()
    assert (out.copy_to_host(stream=stream) == 62 - 2 * np.arange(32)).all()


def test_events(gpu):
    stream, start, end = gpu.stream(), gpu.event(), gpu.event()
    start.record(stream)
    start.wait(stream)
    end.record(stream)
    end.synchronize()
    assert end.query() and gpu.event_elapsed_time(start, end) > 0
    with pytest.raises(Exception, match="an event was not recorded"):
        gpu.event_elapsed_time(start, gpu.event())


def test_pinned_and_mapped_arrays(gpu):
    pinned = gpu.pinned_array(8, np.int32)
    pinned[:] = 3
    assert (gpu.to_device(pinned).copy_to_host() == 3).all()
    mapped = gpu.mapped_array(8, np.int32)
    programs.too_far[1, 8](mapped)
    assert (mapped == np.arange(8)).all()
    with gpu.pinned(np.zeros(4)):
        pass


def test_managed_arrays_are_the_hosts_too(gpu):
    managed = gpu.managed_array(8, np.int32)
    managed[:] = -1
    programs.too_far[1, 8](managed)
    gpu.synchronize()
    assert (managed == np.arange(8)).all()


@pytest.mark.thorough
def test_constant_and_local_arrays(gpu):
    out = np.zeros(8, np.float32)
    programs.weighted[1, 8](out)
    assert (out == 4 * programs.WEIGHTS).all()


@pytest.mark.thorough
def test_atomics(gpu):
    values = np.random.default_rng(0).integers(0, 10, 500)
    bins = np.zeros(10, np.int64)
    programs.counted[4, 128](values, bins)
    assert (bins == np.bincount(values, minlength=10)).all()


@pytest.mark.thorough
def test_the_blocks_of_a_cooperative_grid_wait_for_each_other(gpu):
    table = np.zeros((5, 128), np.int32)
    programs.rows[4, 32](table)
    assert (table == np.arange(5)[:, None]).all()
    most = programs.rows.overloads[programs.rows.signatures[0]].max_cooperative_grid_blocks(32)
    assert most >= 4
    with pytest.raises(Exception, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
        programs.rows[most + 1, 32](np.zeros((2, 32 * (most + 1)), np.int32))


def test_what_a_kernel_prints(gpu, capsys):
    programs.says[1, 3](np.arange(3.0))
    assert capsys.readouterr().out == (
        "thread 0 has 0.000000 False\nthread 1 has 1.000000 False\nthread 2 has 2.000000 True\n"
    )


@pytest.mark.thorough
def test_reductions(gpu):
    total = gpu.reduce(lambda a, b: a + b)
    assert total(np.arange(1000.0)) == 499500


@pytest.mark.thorough
def test_ufuncs_and_random_numbers(gpu):
    """numba-cuda's own host code, and kernels that it makes."""
    from numba import guvectorize, vectorize
    from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

    @vectorize(["float32(float32, float32)"], target="cuda")
    def added(a, b):
        return a + b

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert (added(x, x) == 2 * x).all() and (added(x, np.float32(1)) == x + 1).all()

    @guvectorize(["void(float32[:], float32[:])"], "(n)->()", target="cuda")
    def summed(row, out):
        out[0] = 0
        for value in row:
            out[0] += value

    assert (summed(x) == x.sum(axis=1)).all()

    @gpu.jit
    def drawn(states, out):
        i = gpu.grid(1)
        out[i] = xoroshiro128p_uniform_float32(states, i)

    out = np.zeros(64, np.float32)
    drawn[2, 32](create_xoroshiro128p_states(64, seed=1), out)
    assert len(set(out)) > 60 and 0 <= out.min() and out.max() < 1


def test_kernels_of_one_switch_run_in_the_next(gpu):
    """The cached function is of a module that went with the first."""
    from numba_marlin import on_cpu

    x = np.zeros(8, np.int32)
    for _ in range(2):
        with on_cpu.cuda():  # within another: nothing changes
            programs.too_far[1, 8](x)
    assert gpu.is_available() and (x == np.arange(8)).all()


@pytest.mark.thorough
def test_threads_may_launch_and_copy_at_once(gpu):
    def work(number):
        mine = gpu.to_device(np.full(64, number, np.float32))
        sums = gpu.to_device(np.zeros(64, np.float32))
        for _ in range(5):
            programs.saxpy[2, 32](np.float32(1), mine, sums)
            gpu.to_device(np.zeros(8))
        return sums.copy_to_host()

    with ThreadPoolExecutor(4) as pool:
        for number, sums in enumerate(pool.map(work, range(8))):
            assert (sums == 5 * number).all()


def test_no_warning_about_a_gpu_that_is_not_busy(gpu):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        programs.too_far[4, 2](gpu.to_device(np.zeros(8, np.int32)))  # first launch of this shape


def test_off_is_off():
    from numba import cuda
    from numba.cuda.cudadrv.error import CudaSupportError

    from numba_marlin import on_cpu

    with on_cpu.cuda():
        kept = cuda.to_device(np.zeros(4))
        assert cuda.gpus.current.name == "PTX machine"
    if cuda.is_available():
        assert cuda.gpus[0].name != "PTX machine"
    else:
        with pytest.raises(CudaSupportError):
            print(cuda.gpus[0])
    del kept  # which asks no GPU to free what it never had
