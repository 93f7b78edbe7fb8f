"""Contract under test: the log says, once, what the first call of a shape waits for, and nothing
where the kernel is there."""

import logging
import threading

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import testing
from numba_marlin.compiler import COMPILERS, builder
from numba_marlin.emulator.errors import MachineError
from numba_marlin.execution import plan as planning
from numba_marlin.hardware import devices
from numba_marlin.heuristics import rank
from numba_marlin.problems import WeightProblem
from tests.fake_compiler import fake_compiler

P = nm.pack(testing.make_quantized("uniform", "ordinary", 128, 192, 32, 0))


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    found = fake_compiler(tmp_path, monkeypatch)
    yield found
    found.forget()


def first_call(m):
    """What a product of m rows asks of the compiler."""
    problem = WeightProblem.of(m, P)
    return planning.plan(problem, "auto").compile(COMPILERS[0], problem)


def lines(caplog):
    return [each.getMessage() for each in caplog.records if "compil" in each.getMessage()]


def test_the_first_call_of_a_shape_says_once_what_it_waits_for(compiler, caplog):
    caplog.set_level(logging.INFO, "numba_marlin")
    first_call(2)
    first_call(2)
    first_call(1)  # the same kernel
    begun, ended = lines(caplog)
    chosen = rank(WeightProblem.of(2, P), devices.MODEL)[0]
    assert begun.startswith(f"compiling kernel {chosen.kernel} for sm_90a, which y[2, 192] = x[2,")
    assert "numba_marlin.warmup compiles ahead" in begun
    assert ended.startswith(f"compiled kernel {chosen.kernel} for sm_90a in ")
    compiler.forget()  # another process: from the disk, without a word
    caplog.clear()
    first_call(2)
    assert lines(caplog) == []


def test_after_a_warm_up_the_log_is_silent(compiler, caplog):
    nm.warmup(P, m=[1, 2])
    caplog.set_level(logging.INFO, "numba_marlin")
    first_call(2)
    assert lines(caplog) == []


def test_threads_that_need_the_same_kernel_compile_it_once(compiler, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "numba_marlin")
    real, together = builder._compile, threading.Barrier(4)

    def slow(*arguments):
        threading.Event().wait(0.05)
        return real(*arguments)

    def call():
        together.wait()
        first_call(2)

    monkeypatch.setattr(builder, "_compile", slow)
    threads = [threading.Thread(target=call) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(compiler.built) == 1 and len(lines(caplog)) == 2


def test_a_compilation_that_fails_is_tried_again(compiler, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(builder, "_compile", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            first_call(2)
    assert first_call(2) and len(compiler.built) == 1


def test_a_product_gives_the_log_its_shape(compiler, caplog):
    caplog.set_level(logging.INFO, "numba_marlin")
    with pytest.raises(MachineError):  # "no PTX" is what it was given
        nm.matmul(np.ones((3, 128), np.float16), P)
    assert "y[3, 192] = x[3, 128]" in lines(caplog)[0]
