"""Contract under test: a Schedule fixes a run completely, prefers whom it says it prefers, and
starves nobody."""

from collections import Counter

import numpy as np
import pytest

from numba_marlin.emulator import Deadlock, Machine, PendingCopyRead, Schedule
from numba_marlin.emulator.scheduling.schedules import APART, COPIES, OF_WARPS
from numba_marlin.emulator.state.listener import Listener
from tests.emulator.async_ptx import spin, start
from tests.emulator.ptx_cases import frame, snippet

# Every warp takes a ticket when it has counted to 20.
TICKETS = """mov.u32 %r1, 0; COUNT: add.u32 %r1, %r1, 1; setp.lt.u32 %q0, %r1, 20; @%q0 bra COUNT;
and.b32 %r2, %t, 31; setp.ne.u32 %q1, %r2, 0; @%q1 bra END;
shr.u32 %r3, %t, 5; mov.u32 %r4, %ctaid.x; mad.lo.u32 %r3, %r4, 4, %r3;
mad.wide.u32 %rd1, %r3, 4, %p1;
atom.relaxed.gpu.global.add.u32 %r5, [%p0], 1; st.global.u32 [%rd1], %r5; END:"""


def tickets(schedule, **options):
    """[block, warp] -> in which order they were done."""
    out = np.zeros((5, 4), np.uint32)
    machine = Machine(frame(TICKETS, 2))
    args = [machine.memory.buffer(array).address for array in (np.zeros(1, np.uint32), out)]
    machine.run("k", grid=5, block=128, args=args, seed=schedule, **options)
    return out


@pytest.mark.parametrize("order", [*OF_WARPS, pytest.param(APART, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("copies", COPIES)
def test_the_same_schedule_replays_the_same_run(order, copies):
    def trace(seed):
        seen = []
        machine = Machine(frame(TICKETS, 2))
        args = [machine.memory.buffer(np.zeros(20, np.uint32)).address for _ in range(2)]
        machine.run(
            "k",
            grid=5,
            block=128,
            args=args,
            seed=Schedule(seed, order, copies),
            listener=Listener(
                before=lambda ins, lanes: seen.append((ins.pc, tuple(lanes.warps.tolist())))
            ),
        )
        return seen

    # one block after the other or warp after warp, each of them in step: nothing left to draw
    assert trace(1) == trace(1) and (trace(1) != trace(2)) == (order not in ("reverse", "in turn"))


def test_a_number_is_a_schedule_of_any_order():
    assert (tickets(7) == tickets(Schedule(7))).all() and (tickets(7) != tickets(8)).any()
    drawn = [Schedule.drawn(seed) for seed in range(40)]
    assert (
        {each.order for each in drawn} == set(OF_WARPS)
        and {each.copies for each in drawn} == set(COPIES)
        and drawn[3] == Schedule.drawn(3)
    )


def test_the_slowest_warp_is_the_last_of_its_block():
    last = Counter()
    for seed in range(12):
        numbers = tickets(Schedule(seed, "slowest warp"))
        slow = set(numbers.argmax(axis=1).tolist())
        # after all other warps of all blocks
        assert len(slow) == 1 and numbers[:, slow.pop()].min() == 15
        last[int(numbers.argmax(axis=1)[0])] += 1
    assert len(last) > 1


def test_one_block_is_done_before_the_others_begin():
    for seed in range(6):
        numbers = tickets(Schedule(seed, "one block ahead"))
        assert sorted(numbers[numbers.max(axis=1).argmin()].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("resident", (None, 2))
def test_blocks_in_reverse_come_from_the_last_to_the_first(resident):
    firsts = tickets(Schedule(1, "reverse", resident_blocks=resident)).min(axis=1)
    assert firsts.tolist() == [16, 12, 8, 4, 0]


def test_warps_in_turn_issue_at_the_same_rate():
    """Two warps count to 60 in loops of 3 and of 30 instructions: the short loop is not run in step
    with the long one, as rounds of loops would be."""
    body = (
        """shr.u32 %r1, %t, 5; mov.u32 %r2, 0; setp.ne.u32 %q0, %r1, 0; @%q0 bra LONG;
    SHORT: add.u32 %r2, %r2, 1; setp.lt.u32 %q1, %r2, 60; @%q1 bra SHORT; bra END;
    LONG: """
        + "add.u32 %r2, %r2, 1; " * 28
        + """setp.lt.u32 %q1, %r2, 1680; @%q1 bra LONG; END:"""
    )

    def ended(schedule):
        """Warp -> instructions that the other one had executed when it ended."""
        seen, found = Counter(), {}

        def before(ins, lanes):
            for warp in set(lanes.warps.tolist()):
                seen[warp] += 1
                if ins.root in ("ret", "exit"):
                    found[warp] = seen[1 - warp]

        machine = Machine(frame(body))
        machine.run("k", block=64, args=[0], seed=schedule, listener=Listener(before=before))
        return seen, found

    seen, found = ended(Schedule(0, "in turn"))
    assert seen[0] < 200 < 1700 < seen[1]
    assert abs(found[0] - seen[0]) < 40  # the short one ends when both have issued as much
    assert ended(None)[1][0] > 1000  # the machine's own order: a round of each loop at a time


def test_blocks_that_wait_for_later_ones_need_places_for_both():
    """Block b lets b - 1 go on: from the last to the first it works in one place, from the first on
    it never ends."""
    body = (
        """mov.u32 %r0, %ctaid.x; setp.ne.u32 %q0, %t, 0; @%q0 bra END;
    mad.wide.u32 %rd1, %r0, 4, %p0; SPIN: ld.acquire.gpu.global.u32 %r1, [%rd1+4];
    setp.eq.u32 %q1, %r1, 0; @%q1 bra SPIN; """
        + snippet("st_release_gpu", "%rd1", "1")
        + "END:"
    )

    def run(schedule):
        flags = np.array([0, 0, 0, 0, 1], np.uint32)
        machine = Machine(frame(body), races=True)
        machine.run("k", grid=4, args=[machine.memory.buffer(flags).address], seed=schedule)
        assert flags.all()

    run(Schedule(1, "reverse", resident_blocks=1))
    run(Schedule(1, "one block ahead"))
    with pytest.raises(Deadlock, match="blocks have not started"):
        run(Schedule(0, "any", resident_blocks=1))


def test_early_copies_are_there_at_once_and_late_ones_only_when_waited_for():
    """A flag is set behind the copy; whoever asks the barrier without waiting sees which it was."""
    body = (
        start(1)
        + ".shared .align 128 .b8 s[512]; mov.u32 %r50, s; setp.ne.u32 %q1, %t, 0; @%q1 bra END;"
    )
    body += snippet("mbarrier_expect_tx", "%r40", "512") + snippet(
        "cp_async_bulk_g2s", "%r50", "%p0", "512", "%r40"
    )
    body += (
        "mov.u32 %r1, s; ld.shared.u32 %r2, [%r1]; st.global.u32 [%p1], %r2;"
        + snippet("mbarrier_arrive", "%r40")
        + spin("W", "%r40", "0")
        + "END:"
    )
    for copies in COPIES[1:]:
        out, machine = np.zeros(1, np.uint32), Machine(frame(body, 2))
        args = [machine.memory.buffer(array).address for array in (np.full(128, 9, np.uint32), out)]
        try:
            machine.run("k", args=args, seed=Schedule(1, copies=copies))
            assert copies == "early" and out[0] == 9
        except Exception as error:
            assert copies == "late" and error.kind == "pending-copy-read"


def test_late_copies_come_when_somebody_has_asked_in_vain():
    """Who asks once and goes on, whatever the answer, finds nothing; in the machine's own order he
    is lucky."""
    body = (
        start(1)
        + ".shared .align 128 .b8 s[512]; mov.u32 %r50, s; setp.ne.u32 %q1, %t, 0; @%q1 bra END;"
    )
    body += (
        snippet("mbarrier_arrive_expect_tx", "%r40", "512")
        + snippet("cp_async_bulk_g2s", "%r50", "%p0", "512", "%r40")
        + snippet("mbarrier_try_wait_parity", "%r30", "%r40", "0")
    )
    read = "mov.u32 %r1, s; ld.shared.u32 %r2, [%r1]; st.global.u32 [%p1], %r2;"

    def run(text, schedule):
        out, machine = np.zeros(1, np.uint32), Machine(frame(text, 2))
        machine.run(
            "k",
            args=[
                machine.memory.buffer(array).address for array in (np.full(128, 9, np.uint32), out)
            ],
            seed=schedule,
        )
        return out[0]

    late = Schedule(1, copies="late")
    assert run(body + read + "END:", None) == 9
    with pytest.raises(PendingCopyRead):
        run(body + read + "END:", late)
    assert run(body + spin("W", "%r40", "0") + read + "END:", late) == 9


@pytest.mark.parametrize(
    "wrong, rule",
    (
        ({"order": "fast"}, "order='fast' must be one of any"),
        ({"copies": "never"}, "copies='never' must be one of any"),
    ),
)
def test_what_cannot_be_is_refused_by_name(wrong, rule):
    with pytest.raises(ValueError, match=rule):
        Schedule(0, **wrong)
