"""Contract under test: programs of numba-cuda-mlir run on the machine, unchanged, and what they do
wrong is said as for numba-cuda."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numba_marlin import on_cpu
from numba_marlin.on_cpu.faults import KernelError

pytest.importorskip("numba_cuda_mlir", reason="comes with numba-marlin[cu13,mlir], on Python 3.11")
pytestmark = pytest.mark.filterwarnings("ignore:Host array used in CUDA kernel", "ignore:The 'gen")
ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import numpy as np
from numba_cuda_mlir import cuda


@cuda.jit
def doubled(x):
    i = cuda.grid(1)
    x[i] *= 2


def test_doubled():
    x = np.arange(8)
    doubled[1, 8](x)
    assert (x == 2 * np.arange(8)).all()


def test_too_far():
    doubled[1, 9](np.arange(8))
"""


@pytest.fixture
def programs():
    with on_cpu.cuda(races=True):
        from tests.on_cpu import mlir_programs

        yield mlir_programs


def line_of(programs, text):
    with open(programs.__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def test_host_and_device_arrays(programs):
    x, y = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    programs.saxpy[4, 32](np.float32(2), x, y)
    assert (y == 2 * x + 1).all()
    device = programs.cuda.to_device(x)
    out = programs.cuda.device_array_like(device)
    assert np.isnan(out.copy_to_host()).all()  # fresh memory
    out[:] = 1  # a kernel of the compiler's own, all of whose threads write the same
    programs.saxpy[4, 32](np.float32(3), device, out)
    assert (out.copy_to_host() == 3 * x + 1).all()


@pytest.mark.thorough
def test_strides_of_all_orders(programs):
    table = np.arange(60, dtype=np.float64).reshape(6, 10)
    for given in (table, np.asfortranarray(table)):
        out = np.zeros((10, 6))
        programs.transposed[(1, 1), (8, 16)](given, out)
        assert (out == table.T).all()
    device = programs.cuda.to_device(table)[1:5:2, ::3]
    out = programs.cuda.to_device(np.zeros((4, 2)))
    programs.transposed[(1, 1), (8, 16)](device, out)
    assert (out.copy_to_host() == table[1:5:2, ::3].T).all()


@pytest.mark.thorough
def test_shared_memory_and_atomics(programs):
    x, out = np.arange(4 * 64, dtype=np.int32), np.zeros(1, np.int32)
    programs.total[4, 64](x, out)
    assert out[0] == x.sum()


@pytest.mark.thorough
def test_numbers_and_tuples(programs):
    out = np.zeros(2)
    programs.numbers[1, 1](out, np.int16(-3), 1.5, True, (10, 0.25))
    assert out.tolist() == [7, 1.75]
    programs.numbers[1, 1](out, 1 << 40, np.float32(0.5), np.bool_(False), (1, 2.0))
    assert out.tolist() == [(1 << 40) + 1, 1.75]


def test_an_index_beyond_the_array(programs):
    with pytest.raises(KernelError) as caught:
        programs.too_far[2, 64](np.zeros(100, np.int32))
    error = caught.value
    assert (error.kind, error.line) == ("out-of-bounds", line_of(programs, "x[i] = i"))
    assert (error.file, error.thread) == (programs.__file__, (36, 0, 0))
    assert "kernel too_far" in str(error) and "x[100] (x is int32[100])" in str(error)


@pytest.mark.thorough
def test_an_exception_of_the_kernel_is_raised_once(programs):
    @programs.cuda.jit(debug=True, opt=False)
    def checked(x):
        if x[programs.cuda.grid(1)] > 2:
            raise ValueError("too large")

    with pytest.raises(ValueError, match="Invalid value in kernel"):
        checked[1, 4](np.arange(4.0))
    checked[1, 2](np.arange(2.0))


@pytest.mark.thorough
def test_a_race_is_found(programs):
    with pytest.raises(KernelError) as caught:
        programs.unordered[1, 64](np.zeros(64, np.int32))
    assert caught.value.kind == "missing-barrier"
    assert caught.value.line in (
        line_of(programs, "out[i] = shared["),
        line_of(programs, "shared[i] = i"),
    )


def test_both_compilers_have_arrays_in_one_context(programs):
    numba_cuda = pytest.importorskip("numba.cuda")
    of_the_other = numba_cuda.to_device(np.arange(32, dtype=np.float32))
    out = programs.cuda.to_device(np.zeros(32, np.float32))
    seen = programs.cuda.as_cuda_array(of_the_other)  # it does not type the array itself
    programs.saxpy[1, 32](np.float32(2), seen, out)
    assert (out.copy_to_host() == 2 * of_the_other.copy_to_host()).all()


@pytest.mark.thorough
def test_off_is_off_and_on_again():
    from numba_cuda_mlir.numba_cuda.cudadrv.error import CudaSupportError

    with on_cpu.cuda():
        from tests.on_cpu import mlir_programs as programs

        programs.saxpy[1, 32](np.float32(2), np.ones(8, np.float32), np.ones(8, np.float32))
    if not programs.cuda.is_available():
        with pytest.raises(CudaSupportError):
            programs.saxpy[1, 32](np.float32(2), np.ones(8, np.float32), np.ones(8, np.float32))
    with on_cpu.cuda():
        y = np.ones(8, np.float32)
        programs.saxpy[1, 32](np.float32(2), np.ones(8, np.float32), y)
        assert (y == 3).all()


@pytest.mark.thorough
def test_the_plugin_of_pytest(tmp_path):
    (tmp_path / "test_program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "numba_marlin.on_cpu.pytest_plugin"]
    done = subprocess.run(
        [*command, "--cuda-on-cpu", "test_program.py"],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "line 9: x[i] *= 2" in done.stdout and "x[8] (x is int64[8])" in done.stdout
