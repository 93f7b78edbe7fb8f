"""Contract under test: what a kernel does wrong is an error that names the Python line, the thread
and the array's element; what does not exist without a GPU is refused by name."""

import numpy as np
import pytest

from numba_marlin.on_cpu.faults import KernelError
from tests.on_cpu import programs

pytestmark = pytest.mark.filterwarnings("ignore:Host array used in CUDA kernel")


def line_of(text):
    with open(programs.__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def test_an_index_beyond_the_array(gpu):
    with pytest.raises(KernelError) as caught:
        programs.too_far[2, 64](gpu.to_device(np.zeros(100, np.int32)))
    error = caught.value
    assert (error.kind, error.line) == ("out-of-bounds", line_of("x[i] = i"))
    assert error.file == programs.__file__
    assert (error.block, error.thread) == ((1, 0, 0), (36, 0, 0))
    text = str(error)
    assert "kernel too_far" in text and "x[i] = i" in text and "x[100] (x is int32[100])" in text
    assert "thread (36, 0, 0)" in text


def test_an_index_of_two_dimensions(gpu):
    with pytest.raises(KernelError, match=r"table\[4, \d\] \(table is float64\[4, 8\]\)") as caught:
        programs.too_far_in_two[1, (5, 8)](np.zeros((4, 8)))
    x, y, z = caught.value.thread
    assert (x, z) == (4, 0) and f"table[4, {y}]" in str(caught.value)
    with pytest.raises(KernelError, match=r"table\[\d, 8\] \(table is float64\[4, 8\]\)"):
        programs.too_far_in_two[1, (4, 9)](np.zeros((4, 8), order="F"))


def test_a_race_is_found_and_may_be_left(gpu):
    from numba_marlin import on_cpu

    with pytest.raises(KernelError) as caught:
        programs.unordered[1, 64](np.zeros(64, np.int32))
    assert caught.value.line in (line_of("shared[63 - i]"), line_of("shared[i] = i"))
    assert caught.value.kind == "missing-barrier" and "shared" in str(caught.value)
    assert on_cpu.Options.from_text("races=off") == on_cpu.Options(False)


def test_fresh_memory_is_not_zero(gpu):
    assert np.isnan(gpu.device_array(4, np.float32).copy_to_host()).all()


def test_what_is_freed_is_gone(gpu):
    array = gpu.to_device(np.zeros(8, np.int32))
    view = gpu.from_cuda_array_interface(array.__cuda_array_interface__)  # does not own it
    assert (view.copy_to_host() == 0).all()
    del array
    gpu.current_context().memory_manager.deallocations.clear()
    with pytest.raises(Exception, match="lies in no allocation"):
        view.copy_to_host()


def test_too_much_memory_is_refused(gpu):
    with pytest.raises(Exception, match="CUDA_ERROR_OUT_OF_MEMORY"):
        gpu.device_array(1 << 36, np.int8)


def test_what_does_not_exist_is_refused_by_name(gpu):
    array = gpu.to_device(np.zeros(8))
    with pytest.raises(Exception, match="NOT_SUPPORTED: .* no support for IPC handles"):
        array.get_ipc_handle()
    with pytest.raises(Exception, match="no support for peer access"):
        gpu.current_context().enable_peer_access(None)


def test_machine_code_cannot_be_linked(gpu):
    function = gpu.declare_device("f", "int32(int32)", link=gpu.Cubin(b"\x7fELF", name="f.cubin"))

    @gpu.jit
    def calls(x):
        x[0] = function(x[0])

    with pytest.raises(RuntimeError, match="f.cubin is machine code .cubin., which cannot run"):
        calls[1, 1](np.zeros(1, np.int32))


def test_an_array_with_gaps_is_no_argument(gpu):
    with pytest.raises(ValueError, match="non-contiguous"):
        programs.too_far[1, 4](np.zeros(8, np.int32)[::2])


def test_too_many_threads(gpu):
    with pytest.raises(Exception, match="CUDA_ERROR_INVALID_VALUE.*2048 threads"):
        programs.too_far[1, 2048](np.zeros(2048, np.int32))


def test_a_large_grid_may_take_longer_than_a_block_that_never_ends(gpu, monkeypatch):
    from numba_marlin.on_cpu import launching

    monkeypatch.setattr(launching, "INSTRUCTIONS", 2000)
    monkeypatch.setattr(launching, "BLOCK_INSTRUCTIONS", 2000)
    out = gpu.to_device(np.zeros(64, np.int32))
    programs.counting[64, 1](100, out)
    assert (out.copy_to_host() == 100).all()
    with pytest.raises(KernelError, match="the budget of 4000 warp instructions is spent"):
        programs.counting[1, 1](100_000, out)
