"""Contract under test: texts made to take time or memory are refused, or read, in time that grows
as they do, with an error that names a line."""

import resource
import time

import pytest

from numba_marlin.emulator import Deadlock, LimitExceeded, Machine, MachineError
from tests.emulator.hostile_texts import RUNS, TEXTS
from tests.emulator.ptx_cases import frame

SECONDS, GIB = 15, 1  # 0.1 to 4 s where nothing else runs


@pytest.mark.thorough
@pytest.mark.parametrize("name", TEXTS)
def test_time_and_memory_are_bounded(name):
    text = TEXTS[name]()
    start = time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        machine = Machine(text)
        for entry in machine.entries:
            machine.kernel(entry)
    except MachineError as error:
        assert error.line is not None and f"PTX line {error.line}" in str(error)
        assert len(str(error)) < 1500
    assert time.process_time() - start < SECONDS
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < GIB << 20  # ru_maxrss is in KiB


SLOW = {"functions that call the next one twice"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.thorough] if name in SLOW else []) for name in RUNS],
)
def test_what_asks_for_more_than_there_is(name):
    body, before, launch = RUNS[name]
    with pytest.raises((LimitExceeded, Deadlock)) as caught:
        Machine(frame(body, 0, before)).run(**launch)
    assert isinstance(caught.value, Deadlock) == name.startswith(("a loop", "a wait"))
