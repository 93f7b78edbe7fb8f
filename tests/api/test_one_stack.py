"""Contract under test: ``block_scaled_matmul`` is served by the same plans, launches, workspaces
and reports as ``matmul``."""

import contextlib
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.execution import binding, driver, gpu, machine, readers, repeat
from numba_marlin.execution import plan as planning
from numba_marlin.hardware import devices
from numba_marlin.heuristics import candidate
from numba_marlin.kernels.registry import find_kernel, kernels
from numba_marlin.problems import OPERANDS, BlockProblem
from numba_marlin.reference.operands import block_scaled_bounds, within_bounds

M, N, K = 4, 16, 64


def operands(m=M, n=N, k=K, form="nvfp4"):
    rng = np.random.default_rng(m + n + k)
    return tuple(
        nm.quantize_blocks(rng.standard_normal((rows, k)).astype(np.float32), form)
        for rows in (m, n)
    )


@pytest.fixture
def on(monkeypatch):
    """A made-up GPU: ``on("B200")``."""

    def put(name):
        device = replace(devices.device(name), source="measured")
        monkeypatch.setattr(driver, "probe", lambda: driver.Probe(True, "", "13.0", (device,)))
        monkeypatch.setattr(driver, "describe", lambda ordinal: device)
        return device

    return put


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kernel, target", (("tcgen05", "sm_100a"), ("block_mma", "sm_120a"), ("block_scaled", "sm_90a"))
)
def test_a_kernel_is_chosen_by_name_on_the_machine(kernel, target):
    a, b = operands()
    y, info = nm.block_scaled_matmul(a, b, backend="emulator", kernel=kernel, return_info=True)
    assert within_bounds(y, *block_scaled_bounds(a, b)).all()
    assert info.candidate.kernel == kernel and info.compiled.target == target
    assert info.instructions > 0 and info.backend == "emulator"
    assert nm.last_run() is info and info.to_dict()["problem"]["format"] == "nvfp4"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "form, kernel", (("mxfp4", "tcgen05"), ("mxfp8-e4m3", "tcgen05"), ("mxfp4", "block_mma"))
)
def test_other_formats_are_multiplied_by_the_kernels_that_take_them(form, kernel):
    a, b = operands(form=form)
    y = nm.block_scaled_matmul(a, b, backend="emulator", kernel=kernel)
    assert within_bounds(y, *block_scaled_bounds(a, b)).all()
    with pytest.raises(ValueError, match=f"does not take format={form}"):
        nm.block_scaled_matmul(a, b, backend="emulator")


@pytest.mark.parametrize(
    "given, message",
    (
        ({"kernel": "nobody"}, "kernel='nobody' must be one of .*block_scaled"),
        ({"kernel": "ampere"}, "kernel 'ampere' does not take two block-scaled operands"),
        ({"kernel": "block_mma", "bias": np.ones(N, np.float32)}, "does not take a bias"),
        ({"kernel": "block_mma", "activation": "silu"}, "does not take activation=silu"),
    ),
)
def test_a_kernel_that_cannot_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        nm.block_scaled_matmul(*operands(), backend="emulator", **given)


def test_auto_says_why_it_takes_the_machine_and_what_could_be_asked_for(on):
    a, b = operands()
    on("B200")
    _, info = nm.block_scaled_matmul(a, b, return_info=True)
    assert info.backend == "emulator" and "kernel='tcgen05' runs there" in info.reason
    on("H200")
    _, info = nm.block_scaled_matmul(a, b, kernel="tcgen05", return_info=True)
    assert "H200 is sm_90, kernel 'tcgen05' needs sm_100a" in info.reason
    with pytest.raises(nm.CapabilityMissing, match="kernel 'block_mma' needs sm_120a"):
        nm.block_scaled_matmul(a, b, backend="cuda", kernel="block_mma")


def test_a_kernel_runs_on_its_own_architecture(on):
    on("B200")
    plan = planning.plan(BlockProblem(M, N, K), "auto", "tcgen05")
    assert (plan.backend, plan.target) == ("cuda", "sm_100a")
    on("RTX 5090")
    plan = planning.plan(BlockProblem(M, N, K), "cuda", "block_mma")
    assert plan.target == "sm_120a" and plan.device.name == "RTX 5090"


def test_arrays_on_a_gpu_that_no_kernel_knows_are_not_copied_away(on):
    on("RTX 4090")
    with pytest.raises(nm.CapabilityMissing, match="backend='auto': RTX 4090 is sm_89"):
        planning.plan(BlockProblem(M, N, K), "auto", ordinal=0)
    assert planning.plan(BlockProblem(M, N, K), "auto").backend == "emulator"


def test_a_workspace_of_the_callers_is_used_and_checked():
    a, b = operands()
    locks = machine.arrays.aligned_empty((4,), np.int32)
    locks[:] = 0
    workspace = nm.Workspace(machine.arrays.aligned_empty((4,), np.float32), locks)
    given = {"backend": "emulator", "kernel": "block_scaled"}
    y = nm.block_scaled_matmul(a, b, **given, workspace=workspace)
    assert np.array_equal(y, nm.block_scaled_matmul(a, b, **given)) and not locks.any()
    locks[0] = 1
    with pytest.raises(ValueError, match=r"workspace.locks\[0\]=1 must be 0"):
        nm.block_scaled_matmul(a, b, **given, workspace=workspace)
    none = nm.Workspace(workspace.partials, locks[:0])
    with pytest.raises(ValueError, match="locks have 0 entries, the kernel needs 1"):
        nm.block_scaled_matmul(a, b, **given, workspace=none)
    with pytest.raises(TypeError, match="workspace is a dict, must be a numba_marlin.Workspace"):
        nm.block_scaled_matmul(a, b, **given, workspace={})


def test_the_reference_reports_too():
    y, info = nm.block_scaled_matmul(*operands(), backend="reference", return_info=True)
    assert y.shape == (M, N) and info.device == "CPU, float64" and info.candidate is None


def test_explain_takes_both_kinds():
    found = nm.explain(M, 8192, 8192, device="H200", format="nvfp4")
    assert found.choice.kernel == "block_decode" and "nvfp4 operands" in str(found)
    assert nm.explain(128, 512, 512, device="B200", format="mxfp8-e4m3").choice.kernel == "tcgen05"
    assert found.to_dict()["problem"]["group_size"] == 16
    with pytest.raises(ValueError, match="group_size=128 must be 16, the block of nvfp4"):
        nm.explain(M, 64, 128, 128, "H200", format="nvfp4")
    with pytest.raises(TypeError):
        nm.explain(M, 64, 128, device="H200", result="float16")


@pytest.mark.parametrize("kernel", [each.name for each in kernels(OPERANDS)])
def test_a_binding_knows_every_parameter_that_is_an_address(kernel):
    """And nothing else: a launch passes 0 for what is not there."""
    definition, a, b = find_kernel(kernel), *operands()
    problem = BlockProblem(M, N, K)
    config = candidate(problem, devices.MODEL, kernel).config
    found = binding.bind(
        definition,
        config,
        problem,
        binding.block_operands(a.with_scales("128x4"), b.with_scales("128x4")),
        sms=4,
        scaling=binding.Scaling(0.5),
    )
    maps = definition.tensor_maps(config, *found.sizes)
    named = {name for name, kind in definition.parameters if kind == "u64"}
    named |= {source for source, _ in maps.values()}
    optional = {"c", "bias", "sfd"}
    assert named - optional <= set(found.buffers) <= named
    assert found.written == {"d", *({"locks", "partials"} & set(found.buffers))}


def test_factors_that_a_kernel_cannot_hold_are_refused():
    a, b = operands()
    with pytest.raises(ValueError, match="factors of kernel 'block_scaled' must be finite"):
        nm.block_scaled_matmul(a, b, alpha=3e38, backend="emulator", kernel="block_scaled")


def test_results_are_poisoned_and_what_must_be_zero_is_not():
    problem = BlockProblem(M, 32, K, result="nvfp4")
    definition = find_kernel("block_scaled")
    config = candidate(problem, devices.MODEL, "block_scaled").config
    found = machine.host_arrays(
        binding.bind(definition, config, problem, {}, sms=4, scaling=binding.Scaling())
    )
    assert (found["d"] == machine.POISON_BYTE).all()
    assert not found["sfd"].any() and not found["locks"].any()


# ---- the repeat path


class Tensor:
    """The attributes of torch.Tensor that are read."""

    __module__ = "torch"
    requires_grad = False

    def __init__(self, shape, address, dtype="uint8", device=0):
        self.shape, self.address, self.dtype, self.device = shape, address, dtype, device

    def stride(self):
        return (*self.shape[1:], 1)

    def get_device(self):
        return self.device

    def data_ptr(self):
        return self.address

    def new_empty(self, shape, dtype):
        return Tensor(tuple(shape), 0x90000 + 0x1000 * len(shape), dtype, self.device)


CHOICE = (1.0, "auto", None)


@pytest.fixture
def state(monkeypatch):
    """What torch and the driver would answer; ``cleared``: addresses zeroed before launches."""
    now = SimpleNamespace(device=0, stream=7, capturing=False, recording=True, cleared=[])
    torch = SimpleNamespace(
        _C=SimpleNamespace(
            _cuda_getDevice=lambda: now.device, _cuda_getCurrentRawStream=lambda device: now.stream
        ),
        cuda=SimpleNamespace(is_current_stream_capturing=lambda: now.capturing),
        is_grad_enabled=lambda: now.recording,
        float16="float16",
        uint8="uint8",
    )
    monkeypatch.setattr(driver, "on_device", lambda ordinal: contextlib.nullcontext())
    monkeypatch.setattr(driver, "capture_id", lambda stream: 1 if now.capturing else None)
    monkeypatch.setattr(
        repeat, "clear", lambda address, nbytes, ordinal, stream: now.cleared.append(address)
    )
    monkeypatch.setattr(repeat, "_libraries", {Tensor: readers.Torch(torch)})
    repeat._calls.clear()
    yield now
    repeat._calls.clear()


class Matrix:
    """B, as long as it lives."""


def inputs(data=0x1000, scales=0x2000):
    return {
        "a": Tensor((M, K // 2), data),
        "b": Tensor((N, K // 2), 0x3000),
        "sfa": Tensor((128, 4), scales),
        "sfb": Tensor((128, 4), 0x4000),
    }


def remembered(b, result="float16", given=None, scratch=True):
    problem = BlockProblem(M, 32, K, result=result)
    config = candidate(problem, devices.MODEL, "block_scaled").config
    found = binding.bind(
        find_kernel("block_scaled"), config, problem, {}, sms=4, scaling=binding.Scaling()
    )
    launches, words = [], [0] * 6
    bound = SimpleNamespace(
        words=words,
        lock=threading.Lock(),
        enqueue=lambda: launches.append(list(words)),
        stream=7,
        launcher=SimpleNamespace(ordinal=0),
    )
    places = {name: (index,) for index, name in enumerate(("a", "b", "sfa", "sfb", "d", "sfd"))}
    info = planning.RunInfo("cuda", "asked for", problem, "a device", None)
    prepared = gpu.Prepared(bound, info, places, scratch, (), found)
    repeat.remember_operands(b, given or inputs(), CHOICE, prepared, 0)
    return launches


def again(b, given=None, choice=CHOICE):
    return repeat.again_operands(b, tuple((given or inputs()).values()), choice)


def test_a_repetition_writes_all_addresses_and_enqueues_once(state):
    b = Matrix()
    launches = remembered(b)
    results, info = again(b, inputs(0x7000, 0x8000))
    d = results["d"]
    assert launches == [[0x7000, 0x3000, 0x8000, 0x4000, d.address, 0]]
    assert (d.shape, d.dtype) == ((M, 32), "float16") and info.problem.format == "nvfp4"
    assert state.cleared == []


def test_the_scales_of_a_block_scaled_result_are_zeroed_first(state):
    b = Matrix()
    launches = remembered(b, "nvfp4")
    results, _ = again(b)
    assert set(results) == {"d", "sfd"} and state.cleared == [results["sfd"].address]
    assert launches[0][4:] == [results["d"].address, results["sfd"].address]


@pytest.mark.parametrize(
    "what",
    (
        "another B",
        "another shape",
        "another choice",
        "no key",
        "another stream",
        "a capture",
        "misaligned",
        "no memory",
        "another library",
        "a gradient",
    ),
)
def test_what_is_unusual_goes_the_long_way(state, what):
    b, given, choice = Matrix(), inputs(), CHOICE
    launches = remembered(b)
    if what == "another shape":
        given["a"] = Tensor((M + 1, K // 2), 0x1000)
    elif what in ("another choice", "no key"):
        choice = (2.0, "auto", None) if what == "another choice" else ([1], "auto", None)
    elif what == "another stream":
        state.stream = 8
    elif what == "a capture":
        state.capturing = True
    elif what in ("misaligned", "no memory"):
        given["sfa"].address = 0x2008 if what == "misaligned" else 0
    elif what == "another library":
        given["sfb"] = np.zeros((128, 4), np.uint8)
    elif what == "a gradient":
        given["a"].requires_grad = True
    assert again(Matrix() if what == "another B" else b, given, choice) is None and launches == []


def test_numbers_of_its_own_keep_a_launch_out_of_captures(state):
    b = Matrix()
    remembered(b, scratch=False)
    state.capturing = True
    assert again(b) is not None
    b = Matrix()
    state.capturing = True
    remembered(b)
    state.capturing = False
    assert again(b) is None, "what was captured is not kept"


def test_calls_go_with_b(state):
    b = Matrix()
    remembered(b)
    assert len(repeat._calls) == 1
    del b
    assert repeat._calls == {}
