"""Contract under test: the judge names what caught a mutant, lets nobody off whom a schedule
catches, and does not condemn the intact kernel."""

import numpy as np
import pytest

from numba_marlin.emulator import UnknownInstruction
from numba_marlin.emulator.scheduling.schedules import Schedule
from numba_marlin.mutation.judge import Launch, budgets, described, judge
from numba_marlin.mutation.mutants import mutants
from tests.mutation.kernels import NEIGHBOUR

IN_ORDER = (None,)
NUMBERS = np.arange(64, dtype=np.uint32) + 100
EXPECTED = np.where(np.arange(64) < 60, NUMBERS[np.arange(64) ^ 32], 7).astype(np.uint32)


def launch(expected=EXPECTED):
    buffers = {"src": NUMBERS, "dst": np.full(64, 7, np.uint32)}
    return Launch(
        "neighbour",
        "k",
        (1,),
        64,
        0,
        1,
        buffers,
        {"dst": expected},
        (),
        (),
        lambda addresses: [addresses["src"], addresses["dst"]],
    )


def how(ptx, schedules=IN_ORDER):
    of = [launch()]
    catch = judge(ptx, of, schedules, budgets(NEIGHBOUR, of, schedules))
    return catch and catch.how


def test_the_intact_kernel_is_innocent():
    assert how(NEIGHBOUR) is None


@pytest.mark.parametrize(
    "name, caught_by",
    (
        ("commit/cp.async.commit_group/0/deleted", "PendingCopyRead"),
        ("wait/cp.async.wait_group/0/deleted", "PendingCopyRead"),
        ("count/cp.async.wait_group/0/one more", "PendingCopyRead"),
        ("swizzle/xor.b32/0/no xor", "wrong result"),
        ("predicate/bra/0/never taken", "wrong result"),
        ("predicate/bra/0/turned round", "wrong result"),
    ),
)
def test_what_catches_a_mutant_has_a_name(name, caught_by):
    mutant = next(each for each in mutants(NEIGHBOUR) if each.name == name)
    assert how(mutant.apply(NEIGHBOUR)) == caught_by


def test_a_mutant_that_never_ends_is_a_deadlock():
    assert (
        how(NEIGHBOUR.replace("bar.sync 0;", "STUCK: add.u32 %r9, %r9, 1;\nbra.uni STUCK;"))
        == "Deadlock"
    )


def test_a_mutant_that_the_machine_cannot_read_is_nobodys_merit():
    with pytest.raises(UnknownInstruction):
        how(NEIGHBOUR.replace("bar.sync 0;", "bar.nonsense 0;"))


def test_a_launch_whose_expectation_the_intact_kernel_does_not_meet_is_refused():
    with pytest.raises(ValueError, match="intact"):
        budgets(NEIGHBOUR, [launch(EXPECTED + 1)], IN_ORDER)


def test_a_schedule_that_catches_is_named():
    """Without its barrier this kernel is right as long as both warps run in step."""
    mutant = NEIGHBOUR.replace("bar.sync 0;", ";")
    of, schedules = [launch()], [None, *map(Schedule.drawn, range(20))]
    catch = judge(mutant, of, schedules, budgets(NEIGHBOUR, of, schedules))
    assert (
        catch is not None
        and catch.launch == "neighbour"
        and catch.schedule in [described(each) for each in schedules]
    )
