"""Contract under test: ``nm.matmul`` gives the reference's answer, as the caller's kind of array,
and says where it ran."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import heuristics, reference
from numba_marlin.execution import arrays, driver
from numba_marlin.formats.floats import float_type, round_to
from numba_marlin.hardware import devices
from numba_marlin.testing import exact_problem
from tests.api.engines import choose
from tests.kernels.configurations import DECODE, WGMMA

K, N, M = 256, 128, 4


@pytest.fixture(scope="module")
def problem():
    """Small integers and powers of two: every backend must give the same bits."""
    return exact_problem(M, N, K, 64, seed=1)


@pytest.fixture(scope="module")
def packed(problem):
    return nm.pack(problem.weight)


@pytest.fixture(scope="module")
def expected(problem):
    return reference.matmul(problem.x, problem.weight).astype(np.float16)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(
        driver, "probe", lambda: driver.Probe(False, "no NVIDIA driver on this machine")
    )


def strided(x):
    wide = np.zeros((2 * M, 2 * K), np.float16)
    wide[::2, ::2] = x
    return wide[::2, ::2]


def misaligned(x):
    raw = np.zeros(x.nbytes + 64, np.uint8)
    start = 2 - raw.ctypes.data % 16 + 16
    view = raw[start : start + x.nbytes].view(np.float16).reshape(x.shape)
    view[...] = x
    assert view.ctypes.data % 16 == 2
    return view


VARIANTS = {
    "contiguous": lambda x: x,
    "strided": strided,
    "column-major": np.asfortranarray,
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "misaligned": misaligned,
    "read-only": lambda x: np.frombuffer(x.tobytes(), np.float16).reshape(x.shape),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_machine_gives_the_exact_answer_whatever_the_strides(
    problem, packed, expected, variant
):
    x = VARIANTS[variant](problem.x)
    assert np.array_equal(x, problem.x)
    y = nm.matmul(x, packed, "emulator", kernel="tiled")
    assert y.dtype == np.float16 and np.array_equal(y, expected)
    assert np.array_equal(x, problem.x), "x is only read"


def test_auto_without_a_gpu_runs_the_machine_and_says_so(problem, packed, expected, no_gpu, caplog):
    with caplog.at_level(logging.INFO, logger="numba_marlin"):
        y, info = nm.matmul(problem.x, packed, return_info=True)
    assert np.array_equal(y, expected)
    assert nm.last_run() is info
    assert (
        info.backend == "emulator"
        and info.reason == "no usable CUDA device: no NVIDIA driver on this machine"
    )
    assert (
        info.candidate.kernel
        == info.compiled.kernel
        == nm.explain(M, N, K, 64, device="model").choice.kernel
        and info.instructions > 0
    )
    assert "ran on PTX machine" in caplog.text and "no NVIDIA driver" in caplog.text


def test_the_reference_backend_rounds_once(problem, packed, expected):
    y, info = nm.matmul(problem.x, packed, "reference", return_info=True)
    assert np.array_equal(y, expected) and info.candidate is None


@pytest.mark.parametrize(
    "make",
    [lambda: np.zeros((M, N), np.float16), lambda: np.zeros((2 * M, 2 * N), np.float16)[::2, ::2]],
    ids=["contiguous", "strided"],
)
def test_out_is_filled_and_returned(problem, packed, expected, make):
    out = make()
    assert nm.matmul(problem.x, packed, "emulator", out, kernel="tiled") is out
    assert np.array_equal(out, expected)


def test_a_workspace_of_the_callers_is_used_and_checked(problem, packed, expected):
    plan = heuristics.candidate(heuristics.Problem(M, N, K, 64), devices.MODEL, "ampere")
    locks = arrays.aligned_empty((plan.grid[0],), np.int32)
    locks[...] = 0
    partials = arrays.aligned_empty((1 << 20,), np.float32)
    partials[...] = np.nan
    y = nm.matmul(
        problem.x, packed, "emulator", kernel="ampere", workspace=nm.Workspace(partials, locks)
    )
    assert np.array_equal(y, expected) and not locks.any()
    with pytest.raises(ValueError, match="workspace locks have 0 entries"):
        nm.matmul(
            problem.x,
            packed,
            "emulator",
            kernel="ampere",
            workspace=nm.Workspace(partials, locks[:0]),
        )
    with pytest.raises(ValueError, match=r"workspace partials have 16 bytes, the kernel needs \d+"):
        nm.matmul(
            problem.x,
            packed,
            "emulator",
            kernel="ampere",
            workspace=nm.Workspace(partials[:4], locks),
        )
    with pytest.raises(TypeError, match="workspace.locks.dtype=float32 must be int32"):
        nm.matmul(
            problem.x,
            packed,
            "emulator",
            kernel="ampere",
            workspace=nm.Workspace(partials, partials),
        )
    with pytest.raises(ValueError, match="workspace.locks must be writable, C-contiguous"):
        nm.matmul(
            problem.x,
            packed,
            "emulator",
            kernel="ampere",
            workspace=nm.Workspace(partials, np.zeros(64, np.int32)[::2]),
        )
    locks[1] = 3
    with pytest.raises(ValueError, match=r"workspace.locks\[1\]=3 must be 0"):
        nm.matmul(
            problem.x, packed, "emulator", kernel="ampere", workspace=nm.Workspace(partials, locks)
        )


def test_a_failing_run_leaves_out_as_it_was(problem, packed, monkeypatch):
    from numba_marlin import emulator

    class Broken:
        def __init__(self, ptx):
            raise RuntimeError("broken machine")

    monkeypatch.setattr(emulator, "Machine", Broken)
    out = np.full((M, N), 7, np.float16)
    with pytest.raises(RuntimeError, match="broken machine"):
        nm.matmul(problem.x, packed, "emulator", out, kernel="tiled")
    assert (out == 7).all()


def test_a_lock_left_set_is_an_error_and_no_result(problem, packed, monkeypatch):
    from numba_marlin import emulator

    class Forgetful:
        def __init__(self, ptx):
            self.memory = self

        def buffer(self, array, name, readonly, earlier):
            if name == "locks":
                array[0] = 1
            return SimpleNamespace(address=0)

        def run(self, *arguments, **options):
            return SimpleNamespace(instructions=0)

    monkeypatch.setattr(emulator, "Machine", Forgetful)
    with pytest.raises(RuntimeError, match=r"kernel 'ampere' left locks\[0\] set"):
        nm.matmul(problem.x, packed, "emulator", kernel="ampere")


class Tensor:
    """Speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_arrays_that_speak_only_dlpack_are_read(problem, packed, expected):
    assert np.array_equal(nm.matmul(Tensor(problem.x.copy()), packed, "reference"), expected)


def test_torch_in_torch_out(problem, packed, expected):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(problem.x.copy())
    y = nm.matmul(x, packed, "reference")
    assert (
        isinstance(y, torch.Tensor)
        and y.dtype == torch.float16
        and np.array_equal(y.numpy(), expected)
    )
    out = torch.zeros((M, N), dtype=torch.float16)
    assert nm.matmul(
        x.t().contiguous().t(), packed, "reference", out=out
    ) is out and np.array_equal(out.numpy(), expected)
    with pytest.raises(TypeError, match=r"x.dtype=float32 must be float16.*x.half\(\)"):
        nm.matmul(x.float(), packed, "reference")
    y = nm.matmul(x.bfloat16(), packed, "reference")
    # exact in float16; some have more bits than bfloat16
    exact = torch.from_numpy(nm.matmul(x.bfloat16().to(torch.float16).numpy(), packed, "reference"))
    assert y.dtype == torch.bfloat16 and torch.equal(y, exact.to(torch.bfloat16))


@pytest.mark.parametrize(
    "name, config",
    (("decode", DECODE), ("wgmma", replace(WGMMA, group_blocks=4))),
)
def test_the_machine_runs_hopper_kernels_too(problem, expected, name, config, monkeypatch):
    """Tensor maps, and the distance of rows, reach them as on a GPU."""
    packed = choose(monkeypatch, name, config, problem, devices.MODEL, "emulator")
    y, info = nm.matmul(problem.x, packed, return_info=True)
    assert np.array_equal(y, expected) and info.candidate.kernel == name


@pytest.mark.parametrize(
    "backend, options", (("reference", {}), ("emulator", {"kernel": "general"})), ids=str
)
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_a_bias_is_added_before_the_one_rounding(problem, packed, dtype, backend, options):
    kind = (
        float_type(dtype)
        if dtype == "float16"
        else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    )
    x, bias = problem.x.astype(kind), (np.arange(N) % 7 - 3).astype(kind)
    y = nm.matmul(x, packed, backend, bias=bias, **options)
    exact = reference.matmul(x, problem.weight) + bias.astype(np.float64)
    assert y.dtype == kind and np.array_equal(y, round_to(exact, kind))


def test_round_trips_through_the_public_functions(problem, packed):
    q = nm.unpack(packed)
    assert np.array_equal(q.codes, problem.weight.codes) and np.array_equal(
        q.scales, problem.weight.scales
    )
    assert np.array_equal(nm.dequantize(packed), nm.dequantize(problem.weight))


def test_large_weights_take_the_compiled_loops_and_give_the_same_bytes(
    problem, packed, monkeypatch
):
    from numba_marlin.api import packing

    monkeypatch.setattr(packing, "_MANY_WEIGHTS", 1)
    fast = nm.pack(problem.weight)
    assert np.array_equal(fast.qweight, packed.qweight) and np.array_equal(
        fast.scales, packed.scales
    )
    assert np.array_equal(nm.unpack(fast).codes, problem.weight.codes)
