"""Contract under test: mbarriers count arrivals and bytes, phases flip as the ISA says, misuse and
endless waits are reported."""

import numpy as np
import pytest

from numba_marlin.emulator import BarrierMisuse, Deadlock, Misaligned, OutOfBounds, PendingCopyRead
from tests.emulator.async_ptx import SEEDS, spin, start
from tests.emulator.ptx_cases import fails, launch, snippet

STORE = "mad.wide.u32 %rd9, %t, 4, %p0; st.global.u32 [%rd9], {};"


def observe(body: str, threads: int = 32, **options) -> list[int]:
    """%r0 of every thread after ``body``."""
    out = np.zeros(threads, np.uint32)
    launch(f"{body} {STORE.format('%r0')}", {"out": out}, block=threads, **options)
    return out.tolist()


@pytest.mark.parametrize("wait", ["mbarrier_try_wait_parity", "mbarrier_test_wait_parity"])
def test_a_phase_completes_with_its_last_arrival(wait):
    """Three arrivals are wanted: parity 0 is complete after the third only, parity 1 before it
    only."""
    body = start(3) + "mov.u32 %r0, 0; setp.ne.u32 %q1, %t, 0; @%q1 bra END;\n"
    for _ in range(4):
        body += snippet(wait, "%r1", "%r40", "0") + snippet(wait, "%r2", "%r40", "1")
        body += (
            "shl.b32 %r0, %r0, 2; shl.b32 %r1, %r1, 1; or.b32 %r0, %r0, %r1; or.b32 %r0, %r0,"
            " %r2;\n" + snippet("mbarrier_arrive", "%r40")
        )
    assert observe(body + "END:")[0] == 0b01_01_01_10


@pytest.mark.parametrize("seed", SEEDS)
def test_phases_over_many_rounds_keep_producer_and_consumers_in_step(seed):
    """A ring of two stages, 25 rounds: the producer warp writes its round, three consumer warps add
    it up."""
    body = (
        start(32, 32, 3, 3)
        + """
    .shared .u32 stage[2]; mov.u32 %r0, 0; mov.u32 %r1, 0;
    setp.ne.u32 %q1, %r9, 0; @%q1 bra CONSUME;
    PRODUCE: and.b32 %r2, %r1, 1; shr.u32 %r3, %r1, 1; and.b32 %r3, %r3, 1; xor.b32 %r4, %r3, 1;
    mad.lo.u32 %r5, %r2, 8, %r40; mad.lo.u32 %r6, %r2, 8, %r42; mov.u32 %r7, stage;
    mad.lo.u32 %r7, %r2, 4, %r7;
    """
        + spin("FREE", "%r6", "%r4")
        + """
    setp.ne.u32 %q2, %r8, 0; mad.lo.u32 %r10, %r1, %r1, 7; @!%q2 st.shared.u32 [%r7], %r10;
    """
        + snippet("mbarrier_arrive", "%r5")
        + """
    add.u32 %r1, %r1, 1; setp.lt.u32 %q3, %r1, 25; @%q3 bra PRODUCE; bra END;
    CONSUME: and.b32 %r2, %r1, 1; shr.u32 %r3, %r1, 1; and.b32 %r3, %r3, 1;
    mad.lo.u32 %r5, %r2, 8, %r40; mad.lo.u32 %r6, %r2, 8, %r42; mov.u32 %r7, stage;
    mad.lo.u32 %r7, %r2, 4, %r7;
    """
        + spin("FULL", "%r5", "%r3")
        + """
    ld.shared.u32 %r11, [%r7]; mul.lo.u32 %r0, %r0, 3; add.u32 %r0, %r0, %r11; bar.warp.sync -1;
    setp.eq.u32 %q4, %r8, 0; @!%q4 bra NEXT;
    """
        + snippet("mbarrier_arrive", "%r6")
        + """
    NEXT: add.u32 %r1, %r1, 1; setp.lt.u32 %q3, %r1, 25; @%q3 bra CONSUME; END:"""
    )
    value = 0
    for number in range(25):
        value = (value * 3 + number * number + 7) % 2**32
    assert observe(body, 128, seed=seed) == [0] * 32 + [value] * 96


def test_arrivals_with_counts_and_their_states():
    """Two arrivals of one and of two complete a phase of three; the state of the first tells
    when."""
    body = (
        start(3)
        + """mov.u32 %r0, 0; setp.ne.u32 %q1, %t, 0; @%q1 bra END;
    mbarrier.arrive.shared::cta.b64 %rd1, [%r40];
    mbarrier.test_wait.shared::cta.b64 %q2, [%r40], %rd1;
    mbarrier.arrive.release.cta.shared::cta.b64 %rd2, [%r40], 2;
    mbarrier.test_wait.acquire.cta.shared.b64 %q3, [%r40], %rd1;
    selp.u32 %r1, 1, 0, %q2; selp.u32 %r2, 2, 0, %q3; or.b32 %r0, %r1, %r2; END:"""
    )
    assert observe(body)[0] == 2


def test_a_state_older_than_the_previous_phase_is_refused():
    error = fails(
        BarrierMisuse,
        start(1)
        + """setp.ne.u32 %q1, %t, 0; @%q1 bra END; mbarrier.arrive.shared.b64 %rd1, [%r40];
    mbarrier.arrive.shared.b64 _, [%r40];
    mbarrier.try_wait.shared.b64 %q2, [%r40], %rd1, 1000; // BAD
    END:""",
    )
    assert "neither its current nor its previous" in str(error)


def test_generic_addresses_reach_a_barrier():
    body = (
        start(1)
        + """mov.u32 %r0, 0; setp.ne.u32 %q1, %t, 0; @%q1 bra END; mov.u64 %rd0, bars;
    cvta.shared.u64 %rd1, %rd0;
    mbarrier.arrive.b64 _, [%rd1]; mbarrier.test_wait.parity.b64 %q2, [%rd1], 0;
    selp.u32 %r0, 1, 0, %q2; END:"""
    )
    assert observe(body)[0] == 1


def test_expected_bytes_hold_a_phase_until_a_copy_has_brought_them():
    """expect_tx without an arrival, then arrive.expect_tx: the phase needs both numbers of
    bytes."""
    for first, second, done in ((16, 16, True), (16, 32, False)):
        body = (
            start(1)
            + ".shared .align 16 .b8 s[32]; mov.u32 %r50, s; mov.u32 %r0, 0; setp.ne.u32 %q1, %t,"
            " 0; @%q1 bra END;\n"
        )
        body += snippet("mbarrier_expect_tx", "%r40", str(first)) + snippet(
            "mbarrier_arrive_expect_tx", "%r40", str(second)
        )
        body += snippet("cp_async_bulk_g2s", "%r50", "%p0", "32", "%r40")
        body += spin("WAIT", "%r40", "0") + "mov.u32 %r0, 1; END:"
        if done:
            assert observe(body)[0] == 1
        else:
            with pytest.raises(Deadlock, match="lacks 0 of 1 arrivals and 16 bytes"):
                observe(body)


def test_bytes_may_come_before_they_are_expected():
    """An arrival is still pending, so the tx-count goes below zero and back."""
    body = (
        start(2)
        + ".shared .align 16 .b8 s[16]; mov.u32 %r50, s; mov.u32 %r0, 0; setp.ne.u32 %q1, %t, 0;"
        " @%q1 bra END;\n"
    )
    body += snippet("cp_async_bulk_g2s", "%r50", "%p0", "16", "%r40") + snippet(
        "mbarrier_arrive", "%r40"
    )
    # turns in which the copy may land
    body += "".join(f"nanosleep.u32 1; bra L{i}; L{i}:\n" for i in range(40))
    body += (
        snippet("mbarrier_arrive_expect_tx", "%r40", "16")
        + spin("WAIT", "%r40", "0")
        + "ld.shared.u32 %r0, [%r50]; END:"
    )
    for seed in (None, *range(10)):
        out = np.full(32, 7, np.uint32)
        launch(body + STORE.format("%r0"), {"out": out}, seed=seed)
        assert out[0] == 7


def test_a_warp_that_arrives_lane_by_lane_completes_several_phases():
    """A count of 16, all 32 lanes arrive: two phases are over, and the next arrival belongs to the
    third."""
    body = (
        start(16)
        + snippet("mbarrier_arrive", "%r40")
        + "mbarrier.arrive.shared.b64 %rd1, [%r40]; cvt.u32.u64 %r0, %rd1;"
    )
    assert observe(body) == [2] * 16 + [3] * 16


MISUSE = {
    "arrive at what is none": (
        ".shared .align 8 .b8 s[8]; mov.u32 %r1, s;\nmbarrier.arrive.shared.b64 _, [%r1]; // BAD",
        "no mbarrier at s",
    ),
    "wait at what is none": (
        (
            ".shared .align 8 .b8 s[8]; mov.u32 %r1, s;\nmbarrier.try_wait.parity.shared.b64 %q1,"
            " [%r1], 0; // BAD"
        ),
        "no mbarrier at s",
    ),
    "count of zero": (
        ".shared .align 8 .b8 s[8]; mov.u32 %r1, s;\nmbarrier.init.shared.b64 [%r1], 0; // BAD",
        "count 0 must be",
    ),
    "count too large": (
        (
            ".shared .align 8 .b8 s[8]; mov.u32 %r1, s;\nmbarrier.init.shared.b64 [%r1], 1048576;"
            " // BAD"
        ),
        "count 1048576",
    ),
    "several lanes initialise": (
        ".shared .align 8 .b8 s[8]; mov.u32 %r1, s;\nmbarrier.init.shared.b64 [%r1], 1; // BAD",
        "several lanes initialise s",
    ),
    "initialised twice": (
        start(1)
        + "setp.ne.u32 %q0, %t, 0;\n@%q0 bra END; mbarrier.init.shared.b64 [%r40], 1; // BAD\nEND:",
        "is live",
    ),
    "parity of 2": (
        start(1) + "\nmbarrier.test_wait.parity.shared.b64 %q1, [%r40], 2; // BAD",
        "0 or 1, not 2",
    ),
    "too many bytes": (
        start(2) + "\nmbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r40], 1048576; // BAD",
        "more than 1048575 bytes",
    ),
    "arrivals beyond the count": (
        start(1)
        + """mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r40], 4;
    mbarrier.arrive.shared.b64 _, [%r40]; // BAD""",
        "whose phase 0 lacks 0 arrivals and 128 bytes",
    ),
    "an ordinary load": (start(1) + "\nld.shared.u32 %r1, [%r40+4]; // BAD", "live mbarrier"),
    "an ordinary store": (start(1) + "\nst.shared.u32 [%r40], %t; // BAD", "live mbarrier"),
    "an atomic": (start(1) + "\nred.shared.add.u32 [%r40], 1; // BAD", "live mbarrier"),
    "a copy over it": (
        start(1) + "mov.u64 %rd0, %p0;\n cp.async.ca.shared.global [%r40], [%rd0], 8; // BAD",
        "live mbarrier",
    ),
    "used when invalid": (
        start(1)
        + """setp.ne.u32 %q0, %t, 0; @!%q0 mbarrier.inval.shared::cta.b64 [%r40]; bar.warp.sync -1;
    mbarrier.arrive.shared.b64 _, [%r40]; // BAD""",
        "invalid by now",
    ),
}


@pytest.mark.parametrize("kind", MISUSE)
def test_misuse_is_reported_with_the_rule(kind):
    body, message = MISUSE[kind]
    assert message in str(fails(BarrierMisuse, body))


def test_addresses_of_barriers_are_checked():
    fails(
        Misaligned,
        ".shared .align 8 .b8 s[16]; mov.u32 %r1, s;\n mbarrier.init.shared.b64 [%r1+4], 1; // BAD",
    )
    fails(
        OutOfBounds,
        ".shared .align 8 .b8 s[8]; mov.u32 %r1, s;\n mbarrier.init.shared.b64 [%r1+8], 1; // BAD",
    )
    fails(OutOfBounds, "mbarrier.arrive.b64 _, [%p0]; // BAD")


def test_an_invalidated_barrier_is_ordinary_memory_and_may_be_initialised_again():
    body = (
        start(1)
        + "mov.u32 %r0, 0; setp.ne.u32 %q1, %t, 0; @%q1 bra END;\n"
        + snippet("mbarrier_inval", "%r40")
    )
    body += (
        "st.shared.u32 [%r40], 5; ld.shared.u32 %r0, [%r40];\n"
        + snippet("mbarrier_init", "%r40", "1")
        + snippet("mbarrier_arrive", "%r40")
    )
    assert observe(body + "END:")[0] == 5


def test_a_barrier_that_copies_will_signal_cannot_be_invalidated():
    body = (
        start(1)
        + ".shared .align 16 .b8 s[16]; mov.u32 %r50, s; setp.ne.u32 %q1, %t, 0; @%q1 bra END;\n"
    )
    body += (
        snippet("cp_async_bulk_g2s", "%r50", "%p0", "16", "%r40")
        + snippet("mbarrier_inval", "%r40")
        + "END:"
    )
    assert "bulk copies in flight" in str(fails(BarrierMisuse, body))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wait_that_nobody_satisfies_is_a_deadlock_that_says_what_is_missing(seed):
    """Warp 1 waits for two arrivals of which one comes; the message names barrier, phase, what it
    lacks, and who waits where."""
    body = start(1, 2) + "setp.eq.u32 %q1, %r9, 0; @%q1 bra ONE;\n" + spin("WAIT", "%r41", "0")
    body += (
        "bra END; ONE: setp.ne.u32 %q2, %t, 0; @%q2 bra END;\n"
        + snippet("mbarrier_arrive", "%r41")
        + "END:"
    )
    with pytest.raises(Deadlock, match="only repeat themselves") as caught:
        launch(body, {"x": np.zeros(1)}, block=64, grid=2, seed=seed)
    message = str(caught.value)
    for block in (0, 1):
        assert (
            f"block ({block}, 0, 0) warp 1 waits at mbarrier bars[byte 8] (shared address"
            in message
        )
    assert (
        "mbarrier.try_wait.parity.shared::cta.b64" in message
        and "for the phase of parity 0" in message
    )
    assert "its phase 0 (parity 0) lacks 1 of 2 arrivals and 0 bytes" in message


def test_warps_that_wait_for_the_same_are_named_together():
    with pytest.raises(
        Deadlock, match=r"block \(0, 0, 0\) warps 0-2, 4 wait at mbarrier bars\[byte 0\]"
    ):
        launch(
            start(1)
            + "setp.eq.u32 %q1, %r9, 3; @%q1 bra END;\n"
            + spin("WAIT", "%r40", "0")
            + "END:",
            {"x": np.zeros(1)},
            block=160,
        )


def test_waiting_for_the_wrong_parity_is_a_deadlock_too():
    with pytest.raises(
        Deadlock, match=r"for the phase of parity 1; its phase 1 \(parity 1\) lacks 1 of 1 arrivals"
    ):
        observe(
            start(1)
            + "setp.eq.u32 %q1, %t, 0; @!%q1 bra W;\n"
            + snippet("mbarrier_arrive", "%r40")
            + "W: bar.warp.sync -1;"
            + spin("WAIT", "%r40", "1")
        )


def test_waiting_gives_way_to_those_who_work():
    """The arrival comes after 3,000 steps of another warp; nobody takes the waiting for a
    deadlock."""
    body = (
        start(1)
        + "mov.u32 %r0, 0; setp.eq.u32 %q1, %r9, 0; @%q1 bra WORK;\n"
        + spin("WAIT", "%r40", "0")
        + """mov.u32 %r0, 1; bra END;
    WORK: add.u32 %r1, %r1, 1; mov.u32 %r2, 0; L: add.u32 %r2, %r2, 1; setp.lt.u32 %q2, %r2, 3000;
    @%q2 bra L;
    setp.ne.u32 %q3, %t, 0; @%q3 bra END;
    """
        + snippet("mbarrier_arrive", "%r40")
        + "END:"
    )
    for seed in (None, 1):
        assert observe(body, 64, seed=seed) == [0] * 32 + [1] * 32


def test_a_new_block_finds_no_barriers_of_the_old_one():
    body = (
        start(1)
        + "mov.u32 %r0, %ctaid.x; "
        + snippet("mbarrier_test_wait_parity", "%r1", "%r40", "0")
    )
    launch(body, {"x": np.zeros(1)}, grid=5, resident_blocks=2)
    uninitialised = (
        ".shared .align 8 .b8 s[8]; mov.u32 %r1, s; mov.u32 %r0, %ctaid.x; setp.ne.u32 %q0, %r0, 0;"
        " setp.ne.or.u32 %q0, %t, 0, %q0;\n"
    )
    uninitialised += (
        "@!%q0 mbarrier.init.shared.b64 [%r1], 1; bar.sync 0;\n"
        " mbarrier.test_wait.parity.shared.b64 %q1, [%r1], 0; // BAD"
    )
    assert fails(BarrierMisuse, uninitialised, grid=2, resident_blocks=1).block == (1, 0, 0)


def test_reading_what_a_barrier_would_announce_without_waiting_is_an_error():
    body = (
        start(1)
        + ".shared .align 16 .b8 s[16]; mov.u32 %r50, s; setp.ne.u32 %q1, %t, 0; @%q1 bra END;\n"
    )
    body += snippet("mbarrier_arrive_expect_tx", "%r40", "16") + snippet(
        "cp_async_bulk_g2s", "%r50", "%p0", "16", "%r40"
    )
    error = fails(PendingCopyRead, body + "\nld.shared.u32 %r1, [%r50+4]; // BAD\nEND:")
    assert (
        "s[byte 4]" in str(error)
        and "issued by warp 0, lane 0" in str(error)
        and "cp.async.bulk" in str(error)
    )
