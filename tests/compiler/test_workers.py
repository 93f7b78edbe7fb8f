"""Contract under test: kernels are compiled in processes of their own; every job gets an answer,
also if its process dies, and no process outlives the work."""

import contextlib
import signal
import subprocess
import sys
import time

import pytest

from numba_marlin.compiler import COMPILERS, workers
from numba_marlin.compiler.compiled import from_bytes
from numba_marlin.compiler.workers import Job, compile_in_processes
from numba_marlin.hardware import devices
from numba_marlin.heuristics import rank
from numba_marlin.problems import WeightProblem

JOBS = [Job("decode", number, "sm_90a", COMPILERS[0]) for number in range(5)]
# workers that load nothing, so that they start at once
ECHO = """
import pickle, sys
sys.path[:] = {path!r}
from numba_marlin.compiler.workers import Answer
while True:
    try:
        job = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    pickle.dump(Answer(bytes([job.config]), None, 0.0), sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""
DIES = "import os; os._exit(3)"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
SLEEPS = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    found, start = [], subprocess.Popen

    def noted(*arguments, **options):
        found.append(start(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    return found


def all_ended(processes):
    return all(each.returncode is not None for each in processes)


@pytest.mark.parametrize("processes", [1, pytest.param(50, marks=pytest.mark.thorough)])
def test_every_job_is_answered_once(monkeypatch, started, processes):
    monkeypatch.setattr(workers, "_PROGRAM", ECHO)
    answers = dict(compile_in_processes(JOBS, processes))
    assert {job: answer.entry for job, answer in answers.items()} == {
        job: bytes([job.config]) for job in JOBS
    }
    assert len(started) <= min(processes, len(JOBS)) and all_ended(started)
    assert {each.returncode for each in started} == {0}


@pytest.mark.thorough
def test_a_process_compiles_so_many_kernels_and_no_more(monkeypatch, started):
    monkeypatch.setattr(workers, "_PROGRAM", ECHO)
    monkeypatch.setattr(workers, "KERNELS_PER_PROCESS", 2)
    assert len(dict(compile_in_processes(JOBS, 1))) == 5
    assert len(started) == 3 and all_ended(started)


@pytest.mark.parametrize(
    "program, how", [(DIES, "ended with exit code 3"), (KILLED, "was ended by signal 9")]
)
def test_a_process_that_dies_is_an_answer_for_its_job_alone(monkeypatch, started, program, how):
    monkeypatch.setattr(workers, "_PROGRAM", program)
    answers = dict(compile_in_processes(JOBS[:2], 1))
    assert set(answers) == set(JOBS[:2]) and len(started) == 2
    for answer in answers.values():
        assert answer.entry is None and answer.error[0] == "ChildProcessError"
        assert how in answer.error[1]


def test_an_interpreter_that_cannot_be_started_is_an_answer(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    answers = dict(compile_in_processes(JOBS, 2))
    assert len(answers) == 5
    assert all(each.error[0] == "FileNotFoundError" for each in answers.values())


def interrupt_at(monkeypatch, ready):
    """Ctrl-C, as soon as ``ready()``."""
    real = workers._Pool.start

    def start(pool, threads):
        real(pool, threads)
        while not ready():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(workers._Pool, "start", start)


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
    reason="a shell's background job ignores SIGINT, and so do the processes that it starts",
)
def test_leaving_early_lets_the_processes_tidy_up(monkeypatch, started):
    monkeypatch.setattr(workers, "_PROGRAM", SLEEPS)
    monkeypatch.setattr(workers, "_GRACE", 30.0)
    interrupt_at(monkeypatch, lambda: len(started) == 2)
    with pytest.raises(KeyboardInterrupt):
        next(compile_in_processes(JOBS, 2))
    # one that was only about to start says so with exit code 1
    assert {each.returncode for each in started} <= {-signal.SIGINT, 1}


def test_a_process_that_does_not_listen_is_killed(monkeypatch, started, tmp_path):
    deaf = tmp_path / "deaf"
    monkeypatch.setattr(workers, "_PROGRAM", DEAF + f"; open({str(deaf)!r}, 'w'); time.sleep(60)")
    monkeypatch.setattr(workers, "_GRACE", 0.1)
    interrupt_at(monkeypatch, deaf.exists)
    with pytest.raises(KeyboardInterrupt):
        next(compile_in_processes(JOBS, 1))
    assert [each.returncode for each in started] == [-signal.SIGKILL]


@pytest.mark.thorough
def test_closing_the_loop_ends_the_processes(monkeypatch, started):
    monkeypatch.setattr(workers, "_PROGRAM", ECHO)
    with contextlib.closing(compile_in_processes(JOBS, 2)) as answers:
        next(answers)
    assert all_ended(started)


@pytest.mark.thorough
def test_a_worker_compiles_what_build_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_MARLIN_CACHE", str(tmp_path))
    config = rank(WeightProblem(1, 64, 64, 32), devices.MODEL)[0].config
    good = Job("decode", config, "sm_90a", COMPILERS[0])
    bad = Job("decode", config, "sm_12", COMPILERS[0])
    answers = dict(compile_in_processes([bad, good], 1))
    assert answers[bad].error[0] == "ValueError" and "target='sm_12'" in answers[bad].error[1]
    compiled = from_bytes(answers[good].entry, config)
    assert ".entry marlin_decode" in compiled.ptx and answers[good].seconds > 0
    assert list(tmp_path.iterdir()) == []  # the caller stores
