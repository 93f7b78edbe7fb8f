"""Contract under test: bulk copies move bytes whenever the ISA lets them, and whoever relies on
more is told."""

import numpy as np
import pytest

from numba_marlin.emulator import (
    PendingCopyRead,
)
from numba_marlin.emulator.state.listener import Listener
from tests.emulator.async_ptx import COMMIT, FENCE, READ_ALL, SEEDS, WAIT_ALL, spin, start
from tests.emulator.bulk_copy_programs import (
    ELECTED,
    EXPECT,
    KEEP,
    LOAD,
    ONE,
    SHARED,
    fill,
    g2s,
    s2g,
)
from tests.emulator.ptx_cases import fails, launch, snippet, words


@pytest.mark.parametrize("hint", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_load_is_there_when_its_barrier_says_so(hint, seed):
    copy = (
        snippet("cp_async_bulk_g2s_hint", "%r50", "%p0", "512", "%r40", "%rd0") if hint else g2s()
    )
    policy = snippet("create_policy_evict_last", "%rd0")
    x, y = words(128), np.zeros(128, np.uint32)
    launch(
        start(1)
        + SHARED
        + policy
        + ELECTED
        + EXPECT
        + copy
        + "ISSUED:\n"
        + spin("W", "%r40", "0")
        + LOAD
        + KEEP,
        {"x": x, "y": y},
        seed=seed,
    )
    assert np.array_equal(x, y)


def test_a_load_reads_its_source_as_late_as_it_may():
    """The ISA allows any moment before the phase completes; a source that is reused too soon
    shows."""
    x, y = words(128), np.zeros(128, np.uint32)
    body = (
        start(1)
        + SHARED
        + ELECTED
        + EXPECT
        + g2s()
        + "ISSUED: mad.wide.u32 %rd1, %t, 16, %p0; st.global.v4.u32 [%rd1], {%t, %t, %t, %t};\n"
    )
    launch(body + spin("W", "%r40", "0") + LOAD + KEEP, {"x": x, "y": y})
    assert np.array_equal(y, np.repeat(np.arange(32), 4))


def test_a_wait_for_arrivals_lets_no_copy_land():
    """One of two arrivals is missing when somebody asks, so nothing forces the copy yet: it reads
    what the source holds afterwards."""
    x, y = words(128), np.zeros(128, np.uint32)
    body = (
        start(2)
        + SHARED
        + ELECTED
        + EXPECT
        + g2s()
        + "ISSUED:"
        + snippet("mbarrier_try_wait_parity", "%r30", "%r40", "0")
    )
    body += (
        "bar.warp.sync -1; mad.wide.u32 %rd1, %t, 16, %p0; st.global.v4.u32 [%rd1], {%t, %t, %t,"
        " %t}; bar.warp.sync -1; setp.ne.u32 %q3, %t, 0; @%q3 bra ON;\n"
    )
    launch(
        body + snippet("mbarrier_arrive", "%r40") + "ON:" + spin("W", "%r40", "0") + LOAD + KEEP,
        {"x": x, "y": y},
    )
    assert np.array_equal(y, np.repeat(np.arange(32), 4))


def test_copies_of_one_barrier_land_in_any_order_under_a_seed():
    """Two copies to the same barrier; whichever lands first, both are counted. Over the seeds both
    orders are met."""
    orders = set()

    def watch(access):
        if access.kind == "bulk-land":
            landed.append(int(access.address.flat[0]))

    body = (
        start(1)
        + SHARED
        + ONE
        + snippet("mbarrier_arrive_expect_tx", "%r40", "512")
        + g2s(nbytes="256")
    )
    body += (
        "add.u32 %r52, %r50, 256; add.u64 %rd1, %p0, 256;\n"
        + g2s("%r52", "%rd1", "256")
        + spin("W", "%r40", "0")
        + "END:"
    )
    for seed in range(20):
        landed = []
        launch(body, {"x": words(128)}, seed=seed, listener=Listener(access=watch))
        assert len(landed) == 2
        orders.add(landed[0] < landed[1])
    assert orders == {True, False}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_is_complete_when_its_group_was_waited_for(seed):
    out = np.zeros(256, np.uint32)
    body = (
        SHARED
        + fill()
        + FENCE
        + "bar.sync 0;\n"
        + ONE
        + s2g()
        + COMMIT
        + WAIT_ALL
        + "ld.global.u32 %r1, [%p0+508]; st.global.u32 [%p0+1020], %r1; END:"
    )
    launch(body, {"out": out}, seed=seed)
    assert (
        np.array_equal(out[:128], np.repeat(np.arange(32), 4))
        and out[255] == 31
        and not out[128:255].any()
    )


def test_a_store_that_was_only_read_appears_at_the_end_of_the_grid():
    """wait_group.read promises nothing about the writes: a thread that looks for them too early
    finds the old values."""
    out = np.full(256, 9, np.uint32)
    look = "ld.global.u32 %r1, [%p0+508]; st.global.u32 [%p0+1020], %r1; END:"
    launch(
        SHARED
        + fill()
        + FENCE
        + "bar.sync 0;\n"
        + ONE
        + s2g()
        + COMMIT
        + READ_ALL
        + fill("7")
        + look,
        {"out": out},
    )
    assert np.array_equal(out[:128], np.repeat(np.arange(32), 4)) and out[255] == 9


def test_waiting_for_an_older_group_leaves_the_younger_pending():
    """Three groups, the last is empty and counts: a wait for all but two has read the first
    only."""
    begin = (
        SHARED
        + fill()
        + FENCE
        + "bar.sync 0;\n"
        + ONE
        + s2g(nbytes="256")
        + COMMIT
        + "add.u32 %r52, %r50, 256; add.u64 %rd1, %p0, 256;\n"
    )
    begin += (
        s2g("%rd1", "%r52", "256") + COMMIT + COMMIT + snippet("cp_async_bulk_wait_group_read", n=2)
    )
    out = {"out": np.zeros(128, np.uint32)}
    launch(begin + "st.shared.u32 [%r50], 1;\n" + WAIT_ALL + "END:", out)
    assert "s[byte 256]" in str(
        fails(PendingCopyRead, begin + "\nst.shared.u32 [%r50+256], 1; // BAD\nEND:", out)
    )


def test_the_source_of_a_store_may_be_read_but_not_overwritten_before_the_wait():
    issue = SHARED + fill() + FENCE + "bar.sync 0;\n" + ONE + s2g() + COMMIT
    arrays = {"out": np.zeros(128, np.uint32)}
    launch(
        issue + "ld.shared.u32 %r1, [%r50+8];\n" + READ_ALL + "st.shared.u32 [%r50+8], 1; END:",
        arrays,
    )
    error = fails(PendingCopyRead, issue + "\nst.shared.u32 [%r50+8], 1; // BAD\nEND:", arrays)
    assert (
        "writes s[byte 8]" in str(error)
        and "may still be reading" in str(error)
        and "cp.async.bulk.global" in str(error)
    )
    uncommitted = (
        SHARED
        + fill()
        + FENCE
        + "bar.sync 0;\n"
        + ONE
        + s2g()
        + READ_ALL
        + "\nst.shared.u32 [%r50+8], 1; // BAD\nEND:"
    )
    fails(PendingCopyRead, uncommitted, arrays)


def test_two_stores_may_read_the_same_bytes():
    body = (
        SHARED
        + fill()
        + FENCE
        + "bar.sync 0;\n"
        + ONE
        + s2g()
        + COMMIT
        + s2g("%p1", "%r50", "256")
        + COMMIT
    )
    older = snippet("cp_async_bulk_wait_group_read", n=1)
    arrays = {"a": np.zeros(128, np.uint32), "b": np.zeros(64, np.uint32)}
    launch(body + older + "st.shared.u32 [%r50+300], 1;\n" + WAIT_ALL + "END:", arrays)
    assert np.array_equal(arrays["b"], arrays["a"][:64])
    fails(PendingCopyRead, body + older + "\nst.shared.u32 [%r50+200], 1; // BAD\nEND:", arrays)


def test_groups_belong_to_their_thread():
    body = (
        SHARED
        + fill()
        + FENCE
        + "bar.sync 0; setp.eq.u32 %q1, %t, 0; @!%q1 bra OTHER;\n"
        + s2g()
        + COMMIT
        + "bra MEET; OTHER:"
        + COMMIT
        + WAIT_ALL
    )
    body += "MEET: bar.warp.sync -1; @%q1 bra END;\nst.shared.u32 [%r50], 1; // BAD\nEND:"
    fails(PendingCopyRead, body, {"out": np.zeros(128, np.uint32)})


def test_overwriting_a_stage_that_is_being_loaded_or_still_read_by_others():
    arrays = {"x": words(128)}
    assert "in flight" in str(
        fails(
            PendingCopyRead,
            start(1) + SHARED + ONE + EXPECT + g2s() + "\nst.shared.u32 [%r50], 1; // BAD\nEND:",
            arrays,
        )
    )
    fails(
        PendingCopyRead,
        start(1)
        + SHARED
        + ONE
        + EXPECT
        + g2s()
        + "add.u32 %r52, %r50, 496;\n"
        + g2s("%r52", nbytes="16")
        + "END:",
        arrays,
    )
