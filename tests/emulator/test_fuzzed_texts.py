"""Contract under test: whatever a text says, the machine answers with an error of its own, or runs
it, and in little time. Texts are compiled kernels with mistakes and random programs, both drawn
from fixed seeds (``text_mutants``); with --thorough from all kernels, and more of them."""

import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_marlin import testing
from numba_marlin.emulator import Machine, MachineError, PtxSyntaxError
from numba_marlin.emulator.text.lexer import tokenize
from numba_marlin.testing.trials import SMALLS
from tests.emulator.form_programs import FORMS
from tests.emulator.ptx_cases import HEADER, frame
from tests.emulator.text_mutants import Mutants, Programs

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numbers are arbitrary
    pytest.mark.timeout(3600),
]

SECONDS = 30  # of a core, for one text
PATIENCE = 6  # times the instructions of the intact kernel
LAUNCH_CHECKS = ("machine.py", "execution.py")  # ValueErrors of theirs are about the launch
USUAL = "ampere"  # other tests compile it too
FEW, MANY = 20, 150
PARTS = 4


def answer(text: str, run) -> str:
    """The name of the machine's error for ``text``, or "ran"; ``run(machine)`` launches it. Any
    other error goes through."""
    start = time.process_time()
    try:
        run(Machine(text, races=None))
        said = "ran"
    except MachineError as error:
        said = type(error).__name__
    except ValueError as error:
        last = Path(traceback.extract_tb(error.__traceback__)[-1].filename).name
        if last not in LAUNCH_CHECKS:
            raise
        said = "launch"
    assert time.process_time() - start < SECONDS
    return said


def answers(texts, run) -> Counter:
    """How often each answer came. A failure names the number of the text."""
    found = Counter()
    for number, text in enumerate(texts):
        try:
            found[answer(text, run)] += 1
        except Exception as error:
            error.add_note(f"text {number}")
            raise
    return found


def kernel_mutants(name: str, count: int) -> Counter:
    prepare, _ = SMALLS[name].problem
    prepared = prepare()
    budget = PATIENCE * testing.launches.on_machine(prepared).instructions

    def run(machine):
        launch = testing.launches.launch_on(machine, prepare())
        machine.run(**launch | {"max_instructions": budget})

    mutants = Mutants(prepared.compiled.ptx, name)
    return answers((mutants.draw() for _ in range(count)), run)


def programs(names, seed, count: int) -> Counter:
    kernels = (Machine(SMALLS[name].problem[0]().compiled.ptx).kernel() for name in names)
    drawn = Programs([ins for kernel in kernels for ins in kernel.instructions], seed)

    def run(machine):
        args = [machine.memory.buffer(np.zeros(size, np.uint32)).address for size in (1024, 64)]
        for schedule in (None, 1):
            machine.run(block=128, args=args, max_instructions=20000, seed=schedule)

    return answers((frame(drawn.draw(), 2) for _ in range(count)), run)


def test_mistakes_in_a_kernel():
    found = kernel_mutants(USUAL, FEW)
    assert found["ran"] and found[PtxSyntaxError.__name__]


def test_random_programs():
    found = programs([USUAL], 0, 10 * FEW)
    assert found["ran"] and len(found) > 4


def form_mutants(seed, count: int) -> Counter:
    def run(machine):
        args = [machine.memory.buffer(np.zeros(32, np.uint32)).address, bytes(8)]
        machine.run("k" if "k" in machine.entries else None, args=args, max_instructions=3000)

    mutants = Mutants(FORMS, seed)
    return answers((mutants.draw() for _ in range(count)), run)


def test_the_forms_are_right_to_begin_with():
    machine, out = Machine(FORMS), np.zeros(32, np.uint32)
    machine.run(args=[machine.memory.buffer(out).address, bytes(8)])
    # of thread t: fib(t % 4) + 1 or 2, and 3 + 5, and tile[5] ^ numbers[...]
    numbers, places = [1, 2, 3, 4], np.arange(32) % 4
    values = np.where(places % 2, numbers[1], np.array(numbers)[places])
    called = np.array([0, 1, 1, 2])[places] + np.array([1, 1, 2, 2])[places]
    assert (out == 3 + 5 + (values[5] ^ values) + called).all()


def test_mistakes_in_rare_forms():
    found = form_mutants("forms", FEW)
    assert found["ran"] and found[PtxSyntaxError.__name__]


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(PARTS))
def test_many_mistakes_in_rare_forms(part):
    found = form_mutants(part, 10 * MANY)
    assert found["ran"] and len(found) > 6


WORDS = sorted({token.text for token in tokenize(FORMS)})


@pytest.mark.thorough
@given(st.lists(st.sampled_from(WORDS), max_size=40), st.sampled_from(("{}", "{} ret; }}", "; {}")))
def test_words_in_any_order(words, ending):
    """As a module, and as the body of a kernel."""
    text = ending.format(" ".join(words))
    for each in (HEADER + text, frame(text, 0), HEADER + ".func f(.reg .b32 a) { " + text):
        answer(each, lambda machine: machine.run(max_instructions=100))


@pytest.mark.thorough
@given(st.integers(0, len(FORMS)), st.text(max_size=3))
def test_texts_that_end_early_or_hold_any_character(place, characters):
    for each in (FORMS[:place] + characters, FORMS[:place] + characters + FORMS[place:]):
        answer(each, lambda machine: [machine.kernel(name) for name in machine.entries])


@pytest.mark.thorough
@pytest.mark.parametrize("name", SMALLS)
def test_mistakes_in_every_kernel(name):
    found = kernel_mutants(name, MANY)
    assert found["ran"] and found[PtxSyntaxError.__name__]


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(PARTS))
def test_many_random_programs(part):
    found = programs(SMALLS, part + 1, 10 * MANY)
    assert found["ran"] and len(found) > 8


def test_a_python_error_goes_through():
    """What these tests are for: they see it."""

    def broken(machine):
        return [][1]

    with pytest.raises(IndexError):
        answers([frame("", 0)], broken)
    with pytest.raises(ValueError):
        answers([frame("", 0)], lambda machine: int("x"))
