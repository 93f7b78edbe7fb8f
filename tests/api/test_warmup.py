"""Contract under test: after ``nm.warmup`` no call waits for a compiler."""

import errno
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import testing
from numba_marlin.compiler import COMPILERS, MissingCompiler, builder, workers
from numba_marlin.execution import driver, warmup
from numba_marlin.execution import plan as planning
from numba_marlin.execution.warmup import runs
from numba_marlin.hardware import devices
from numba_marlin.heuristics import rank, tuned
from numba_marlin.problems import BlockProblem, WeightProblem
from tests.checkpoints.models import small_model
from tests.fake_compiler import fake_compiler

P = nm.pack(testing.make_quantized("uniform", "ordinary", 128, 192, 32, 0))
H200 = devices.device("H200")
ROWS = range(1, 65, 7)


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    found = fake_compiler(tmp_path, monkeypatch)
    yield found
    found.forget()


def first_call(m, **types):
    """What a product of m rows asks of the compiler."""
    problem = WeightProblem.of(m, P, **types)
    return planning.plan(problem, "auto").compile(COMPILERS[0], problem)


def test_after_a_warm_up_no_call_compiles_anything(compiler):
    report = nm.warmup(P, m=ROWS)
    chosen = {rank(WeightProblem.of(m, P), devices.MODEL)[0].config for m in ROWS}
    assert set(compiler.built) == chosen and len(compiler.built) == len(chosen) > 1
    assert (report.cached, report.compiled, report.failed) == (0, len(chosen), 0) and report.ok
    compiler.forget()
    for m in ROWS:
        assert first_call(m).from_cache
    again = nm.warmup(P, m=ROWS)
    assert (again.cached, again.compiled) == (len(chosen), 0)
    assert compiler.built == []
    first_call(8, bias=True)  # what was not asked for
    assert len(compiler.built) == 1


def test_every_m_is_said_with_the_kernel_that_it_takes(compiler):
    report = nm.warmup(P, m=[3, 1, 1, 2, *range(250, 257)], device="H200")
    said = {
        m: (each.job.kernel, each.job.config, each.job.target)
        for each in report.kernels
        for m in each.m
    }
    assert sum(len(each.m) for each in report.kernels) == len(said) == 10
    for m, (kernel, config, target) in said.items():
        best = rank(WeightProblem.of(m, P), H200)[0]
        assert (kernel, config) == (best.kernel, best.config) and target == "sm_90a"
    assert report.device == "H200 (sm_90)"


def test_a_weight_is_warmed_up_for_1_to_256_rows(compiler):
    kernels = nm.warmup(P, device="A100").kernels
    assert sorted(m for each in kernels for m in each.m) == list(range(1, 257))


@pytest.mark.parametrize("name", devices.names())
def test_kernels_are_compiled_for_a_device_that_is_not_here(compiler, name):
    report = nm.warmup(P, m=[1, 16], device=name)
    wanted = devices.device(name)
    assert report.compiled == len(report.kernels) and report.ok
    for each in report.kernels:
        assert devices.runs_machine_code(each.job.target, wanted.compute_capability)


def test_a_gpu_that_is_here_is_warmed_up_with_the_winners_measured_on_it(compiler, monkeypatch):
    gpu = replace(devices.device("RTX 4090"), source="measured", driver="580.1")
    monkeypatch.setattr(driver, "probe", lambda: driver.Probe(True, "", "13.0", (gpu,)))
    monkeypatch.setattr(driver, "describe", lambda ordinal: gpu)
    report = nm.warmup(P, m=16)
    assert report.device == "RTX 4090 (sm_89): a usable CUDA device"
    assert {each.job.target for each in report.kernels} == {"sm_89"}
    winner = rank(WeightProblem.of(16, P), gpu)[-1]
    assert winner.config != report.kernels[0].job.config
    assert tuned.remember(WeightProblem.of(16, P), gpu, winner.kernel, winner.config, 1.0)
    planning._default_candidate.cache_clear()
    (kernel,) = nm.warmup(P, m=16).kernels
    assert kernel.job.config == winner.config and kernel.problems[0].m == 16
    planning._default_candidate.cache_clear()


def test_types_decide_which_kernels(compiler):
    base = {each.job.config for each in nm.warmup(P, m=1).kernels}
    fp4 = nm.pack(nm.quantize(np.eye(64, dtype=np.float32), format="nvfp4"), dtype="bfloat16")
    jobs = {
        name: {each.job.config for each in nm.warmup(what, m=1, **types).kernels}
        for name, (what, types) in {
            "bfloat16": (P, {"dtype": "bfloat16"}),
            "bias": (P, {"bias": True}),
            "fp4": (fp4, {}),
        }.items()
    }
    assert all(not base & found for found in jobs.values())
    (config,) = jobs["fp4"]
    assert config == rank(WeightProblem.of(1, fp4, "bfloat16"), devices.MODEL)[0].config
    invariant = nm.warmup(P, m=[1, 64], batch_invariant=True).kernels
    for each in invariant:
        for m in each.m:
            best = rank(WeightProblem.of(m, P, batch_invariant=True), devices.MODEL)[0]
            assert each.job.config == best.config


def test_problems_and_lists_and_mappings_are_taken(compiler):
    problem = WeightProblem(16, 192, 128, 32)
    own = nm.warmup(problem)
    assert own.kernels[0].m == (16,) and own.kernels[0].problems == (problem,)
    assert nm.warmup([P, P], m=16).cached == 1  # the same kernel
    assert nm.warmup({"up": P}, m=16).cached == 1
    block = BlockProblem(16, 64, 64)
    both = nm.warmup([problem, block], device="H200")
    assert [each.problems for each in both.kernels] == [(problem,), (block,)] and both.ok
    assert nm.warmup(block, m=[1, 2], device="H200").ok


def test_a_damaged_entry_is_compiled_again(compiler):
    nm.warmup(P, m=1)
    (entry,) = compiler.cache.glob("*.kernel")
    entry.write_bytes(entry.read_bytes()[:-1])
    assert nm.warmup(P, m=1).compiled == 1 and nm.warmup(P, m=1).cached == 1


def test_progress_counts_what_is_compiled(compiler):
    seen = []
    report = nm.warmup(P, m=ROWS, progress=lambda *each: seen.append(each))
    total = report.compiled
    assert [each[:2] for each in seen] == [(done, total) for done in range(total + 1)]
    assert seen[0][2] == "" and {each[2] for each in seen[1:]} <= {
        each.job.kernel for each in report.kernels
    }


def test_an_interruption_keeps_what_is_whole_and_nothing_else(compiler):
    def stop(done, total, name):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nm.warmup(P, m=ROWS, progress=stop)
    assert [each.suffix for each in compiler.cache.iterdir()] == [".kernel"]
    assert nm.warmup(P, m=ROWS).cached == 1


def test_an_interruption_ends_the_processes_before_anybody_sees_it(compiler, monkeypatch):
    ended = []

    def compiling(jobs, processes):
        try:
            for job in jobs:
                yield job, workers._answer(job)
        finally:
            ended.append(True)

    def stop(done, total, name):
        if done:
            raise KeyboardInterrupt

    monkeypatch.setattr(warmup, "compile_in_processes", compiling)
    try:
        nm.warmup(P, m=ROWS, progress=stop)
    except KeyboardInterrupt:
        assert ended  # now, not when the traceback is forgotten


@pytest.mark.parametrize("processes, most", [(None, 3), (2, 2), (100, None)])
def test_as_many_processes_as_cores_and_no_more_than_kernels(
    compiler, monkeypatch, processes, most
):
    asked = []

    def compiling(jobs, processes):
        asked.append(processes)
        return ((job, workers._answer(job)) for job in jobs)

    monkeypatch.setattr(warmup, "compile_in_processes", compiling)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 2, 5}, raising=False)
    large = WeightProblem(1, 4096, 4096)
    report = nm.warmup(large, m=[1, 16, 32, 64, 128], device="H200", processes=processes)
    assert len(report.kernels) > 3 and asked == [most or len(report.kernels)]


def test_a_cache_that_cannot_be_written_is_said_before_anything_is_compiled(compiler, monkeypatch):
    monkeypatch.setattr(warmup, "cache_directory", lambda: None)
    with pytest.raises(nm.CapabilityMissing, match="set NUMBA_MARLIN_CACHE to one that is"):
        nm.warmup(P, m=1)
    assert compiler.built == []


def test_a_full_disk_is_a_failure_with_the_directory(compiler, monkeypatch, caplog):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    report = nm.warmup(P, m=1)
    assert report.failed == 1 and not report.ok and "1 FAILED" in repr(report)
    assert f"cannot be written to {compiler.cache}: is the disk full?" in report.kernels[0].error
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert list(compiler.cache.iterdir()) == []


def test_a_kernel_that_does_not_compile_does_not_stop_the_others(compiler, monkeypatch):
    real = builder._compile

    def moody(kernel, config, *others):
        if config == rank(WeightProblem.of(1, P), devices.MODEL)[0].config:
            raise RuntimeError("ptxas: no")
        return real(kernel, config, *others)

    monkeypatch.setattr(builder, "_compile", moody)
    report = nm.warmup(P, m=ROWS)
    (failed,) = [each for each in report.kernels if each.state == "failed"]
    assert failed.error == "ptxas: no" and 1 in failed.m and report.compiled >= 1


def test_without_a_compiler_nothing_is_tried_twice(compiler, monkeypatch):
    def missing(*arguments):
        compiler.built.append(None)
        raise MissingCompiler("pip install it")

    monkeypatch.setattr(builder, "_compile", missing)
    with pytest.raises(MissingCompiler, match="pip install it"):
        nm.warmup(P, m=ROWS)
    assert len(compiler.built) == 1


def test_a_report_is_said_in_one_line_and_in_json(compiler):
    report = nm.warmup(P, m=[1, 2, 3, 64])
    assert len(repr(report)) < 320 and "\n" not in repr(report)
    assert f"{len(report.kernels)} needed, 0 cached" in repr(
        report
    ) and "no GPU in this test" in repr(report)
    assert report.kernels[0].job.kernel in report._repr_html_()
    said = report.to_dict()
    assert said["compiled"] == report.compiled and said["kernels"][0]["m"][0] == [1, 3]
    assert runs([1, 2, 3, 7, 9, 10]) == [(1, 3), (7, 7), (9, 10)] and runs([]) == []


MODEL = {"device": "model"}
WRONG = {
    "no_weight": ((5,), {}, TypeError, "p is a int, must be a PackedWeight"),
    "unpacked": ((nm.unpack(P),), {}, TypeError, r"must be packed: pass nm.pack\(q\)"),
    "nothing": (([],), {}, ValueError, "at least one weight or problem"),
    "m_zero": ((P, 0), {}, ValueError, "m=0 must be from 1 to 2147483647"),
    "m_negative": ((P, [4, -1]), {}, ValueError, "m=-1 must be from 1"),
    "m_too_large": ((P, 2**31), {}, ValueError, "m=2147483648 must be from 1"),
    "m_bool": ((P, [True]), {}, TypeError, "m has True, must be an int"),
    "m_float": ((P, 1.5), {}, TypeError, "m=1.5 must be an int or several"),
    "m_text": ((P, "1-8"), {}, TypeError, "m='1-8' must be an int or several"),
    "m_empty": ((P, range(0)), {}, ValueError, "m must have at least one value"),
    "m_endless": ((P, range(1, 2**31)), {}, ValueError, "m must have at most 65536 values"),
    "device": ((P, 1, "H20"), {}, ValueError, "did you mean 'H200'"),
    "device_type": ((P, 1, 0), {}, TypeError, "device is a int, must be a Device or the name"),
    "dtype": ((P, 1), {"dtype": "int8"}, ValueError, "dtype='int8' must be one of float16"),
    "compiler": ((P, 1), {"compiler": "nvcc"}, ValueError, "compiler='nvcc' must be one of"),
    "processes": ((P, 1), {"processes": 0}, ValueError, "processes 0 must be at least 1"),
    "processes_type": ((P, 1), {"processes": 1.0}, TypeError, "processes 1.0 must be an int"),
    "problem_types": (
        (WeightProblem(1, 64, 64),),
        {"bias": True},
        ValueError,
        "a problem has its own dtype, bias",
    ),
    "both": (([P, WeightProblem(1, 64, 64)],), {}, ValueError, "m must be given"),
    "runs_nowhere": (
        (BlockProblem(1, 64, 64), None, "A100"),
        {},
        ValueError,
        "no kernel runs m=1, n=64, k=64 on A100",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_before_anything_is_compiled(compiler, name):
    arguments, options, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        nm.warmup(*arguments, **options)
    assert compiler.built == []


def test_fp4_is_warmed_up_for_the_type_that_it_is_packed_for(compiler):
    fp4 = nm.pack(nm.quantize(np.eye(64, dtype=np.float32), format="nvfp4"))
    with pytest.raises(ValueError, match="dtype='bfloat16' must be float16, which p is packed for"):
        nm.warmup(fp4, 1, dtype="bfloat16")


# All the way, in processes

SCRIPT = """
import logging
import numpy as np
import numba_marlin as nm
from numba_marlin.compiler import builder

print("once")  # a worker does not run this file
logging.basicConfig(level=logging.INFO, format="%(message)s")
q = nm.quantize(np.random.default_rng(0).standard_normal((64, 64)), group_size=32)
p = nm.pack(q)
report = nm.warmup(p, m=[1, 2], device="model")
assert report.compiled == len(report.kernels) > 0, report
builder._compile = None  # whoever compiles now fails
y, info = nm.matmul(np.ones((2, 64), np.float16), p, "emulator", return_info=True)
assert info.compiled.from_cache
expected = np.ones((2, 64)) @ nm.dequantize(q).astype(np.float64)
assert np.allclose(y, expected, atol=0.1)
"""


@pytest.mark.thorough
def test_a_script_warms_up_from_its_top_level_and_multiplies(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {
        "NUMBA_MARLIN_CACHE": str(tmp_path / "kernels"),
        "PYTHONPATH": os.pathsep.join(map(str, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "once\n" and "compiling kernel" not in done.stderr
    assert {each.suffix for each in (tmp_path / "kernels").iterdir()} == {".kernel"}


@pytest.mark.parametrize("zeros", [None, "integer"])
def test_a_checkpoint_needs_what_its_packed_layers_need(compiler, tmp_path, zeros):
    model = small_model(2, zeros)
    path = nm.save_checkpoint(tmp_path / "model", model, "gptq")
    jobs = {each.job for each in nm.warmup(nm.load_checkpoint(path), m=[1, 2]).kernels}
    packed = [nm.pack(each) for each in model.values()]
    assert {each.zeros_kind for each in packed} == {zeros}
    assert jobs == {each.job for each in nm.warmup(packed, m=[1, 2]).kernels}
