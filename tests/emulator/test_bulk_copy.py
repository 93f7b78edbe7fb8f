"""Contract under test: bulk copies move bytes whenever the ISA lets them, and whoever relies on
more is told."""

import numpy as np
import pytest

from numba_marlin.emulator import (
    BarrierMisuse,
    Misaligned,
    OutOfBounds,
    PendingCopyRead,
    ProxyHazard,
    ReadOnlyWrite,
    UninitializedRead,
    UnknownInstruction,
)
from numba_marlin.emulator.state.listener import Listener
from tests.emulator.async_ptx import COMMIT, FENCE, READ_ALL, SEEDS, WAIT_ALL, spin, start
from tests.emulator.ptx_cases import fails, launch, snippet, words

SHARED = ".shared .align 128 .b8 s[1024]; mov.u32 %r50, s;\n"
ONE = "setp.ne.u32 %q1, %t, 0; @%q1 bra END;\n"


def g2s(target="%r50", source="%p0", nbytes="512", barrier="%r40"):
    return snippet("cp_async_bulk_g2s", target, source, nbytes, barrier)


def s2g(target="%p0", source="%r50", nbytes="512"):
    return snippet("cp_async_bulk_s2g", target, source, nbytes)


def fill(value="%t"):
    """Every lane of one warp writes 16 bytes, 512 in all."""
    return (
        f"mad.lo.u32 %r51, %t, 16, %r50; st.shared.v4.u32 [%r51], {{{value}, {value}, {value},"
        f" {value}}};\n"
    )


EXPECT = snippet("mbarrier_arrive_expect_tx", "%r40", "512")
LOAD = (
    "mad.lo.u32 %r51, %t, 16, %r50; ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r51]; mad.wide.u32"
    " %rd9, %t, 16, %p1;\n"
)
KEEP = "st.global.v4.u32 [%rd9], {%r1, %r2, %r3, %r4};\n"
ELECTED = snippet("elect_sync", "%r20") + "setp.eq.u32 %q2, %r20, 0; @%q2 bra ISSUED;\n"


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


MISUSE = {
    "shared address": (
        Misaligned,
        start(1) + SHARED + ONE + "add.u32 %r50, %r50, 8;\n" + g2s() + "END:",
        "multiple of 16",
    ),
    "global address": (
        Misaligned,
        start(1) + SHARED + ONE + "add.u64 %p0, %p0, 8;\n" + g2s() + "END:",
        "multiples of 16",
    ),
    "size": (Misaligned, start(1) + SHARED + ONE + g2s(nbytes="24") + "END:", "24 bytes"),
    "barrier's address": (
        Misaligned,
        start(1) + SHARED + ONE + "add.u32 %r40, %r40, 4;\n" + g2s() + "END:",
        "multiple of 8",
    ),
    "end of shared memory": (
        OutOfBounds,
        start(1) + SHARED + ONE + "add.u32 %r50, %r50, 528;\n" + g2s() + "END:",
        "the shared memory has",
    ),
    "end of a buffer": (
        OutOfBounds,
        start(1) + SHARED + ONE + g2s(nbytes="528") + "END:",
        "528 bytes at x[0]",
    ),
    "no barrier": (
        BarrierMisuse,
        start(1) + SHARED + ONE + g2s(barrier="%r50") + "END:",
        "no mbarrier at s[byte 0]",
    ),
    "a barrier without a fence": (
        ProxyHazard,
        start(1).replace(snippet("fence_mbarrier_init"), "") + SHARED + ONE + g2s() + "END:",
        "no fence.mbarrier_init",
    ),
    "more bytes than expected": (
        BarrierMisuse,
        start(1)
        + SHARED
        + ONE
        + snippet("mbarrier_arrive_expect_tx", "%r40", "496")
        + g2s()
        + spin("W", "%r40", "0")
        + "END:",
        "512 bytes arrive at bars[byte 0] (shared address 0x400), whose phase 0 lacks only 496",
    ),
    "unwritten source": (UninitializedRead, SHARED + ONE + s2g() + "END:", "s[byte 0]"),
    "source in flight": (
        PendingCopyRead,
        start(1) + SHARED + ONE + EXPECT + g2s() + s2g() + "END:",
        "in flight",
    ),
    "source is a barrier": (
        BarrierMisuse,
        start(1, 1) + ONE + s2g(source="%r40", nbytes="16") + "END:",
        "live mbarrier",
    ),
}


@pytest.mark.parametrize("kind", MISUSE)
def test_rules_of_addresses_sizes_and_barriers(kind):
    error, body, message = MISUSE[kind]
    assert message in str(fails(error, body, {"x": words(128)}))


def test_a_prefetch_changes_nothing_and_its_address_is_checked():
    x = words(128)
    launch(ONE + snippet("cp_async_bulk_prefetch", "%p0", "512") + "END:", {"x": x})
    assert np.array_equal(x, words(128))
    assert "24 bytes" in str(
        fails(Misaligned, ONE + snippet("cp_async_bulk_prefetch", "%p0", "24") + "END:", {"x": x})
    )
    assert "528 bytes at x[0]" in str(
        fails(OutOfBounds, ONE + snippet("cp_async_bulk_prefetch", "%p0", "528") + "END:", {"x": x})
    )


def test_a_readonly_buffer_refuses_a_bulk_store():
    error = fails(
        ReadOnlyWrite,
        SHARED + fill() + FENCE + "bar.sync 0;\n" + ONE + s2g() + "END:",
        {"x": words(128)},
        readonly=("x",),
    )
    assert "x[0]" in str(error)


@pytest.mark.parametrize(
    "waited", ["", COMMIT, COMMIT + snippet("cp_async_bulk_wait_group_read", n=1)]
)
def test_a_block_must_not_end_while_a_store_reads_its_memory(waited):
    error = fails(
        PendingCopyRead,
        SHARED + fill() + FENCE + "bar.sync 0;\n" + ONE + s2g() + waited + "END:",
        {"x": words(128)},
    )
    assert "the block ended" in str(error) and "s[byte 0]" in str(error) and error.lanes == (0,)


def test_a_block_must_not_end_while_a_load_is_in_flight():
    error = fails(
        PendingCopyRead, start(1) + SHARED + ONE + EXPECT + g2s() + "END:", {"x": words(128)}
    )
    assert "still in flight" in str(error) and "cp.async.bulk.shared::cluster" in str(error)


def test_an_ordinary_store_needs_a_proxy_fence_before_a_bulk_store():
    arrays = {"x": words(128)}
    error = fails(ProxyHazard, SHARED + fill() + "bar.sync 0;\n" + ONE + s2g() + "END:", arrays)
    assert "s[byte 0]" in str(error) and "fence.proxy.async" in str(error)
    fails(
        ProxyHazard,
        SHARED
        + fill()
        + snippet("fence_proxy_async_global")
        + "bar.sync 0;\n"
        + ONE
        + s2g()
        + "END:",
        arrays,
    )


def test_the_fence_comes_from_the_writer_or_from_one_who_has_met_it():
    """Two warps write. Each fences before the barrier, or one does behind it: fine. Only one of
    them before it: not."""
    own, arrays = (
        fill().replace("%t", "%r8").replace("mad.lo.u32 %r51, %r8", "mad.lo.u32 %r51, %t"),
        {"x": np.zeros(256, np.uint32)},
    )
    begin, end = (
        SHARED + "and.b32 %r8, %t, 31; shr.u32 %r9, %t, 5;\n" + own,
        ONE + s2g(nbytes="1024") + COMMIT + WAIT_ALL + "END:",
    )
    launch(begin + FENCE + "bar.sync 0;\n" + end, arrays, block=64)
    launch(begin + "bar.sync 0;\n" + FENCE + end, arrays, block=64)
    assert np.array_equal(arrays["x"], np.tile(np.repeat(np.arange(32), 4), 2))
    first_only = "setp.ne.u32 %q3, %r9, 0; @%q3 bra ON;\n" + FENCE + "ON: bar.sync 0;\n"
    error = fails(ProxyHazard, begin + first_only + end, arrays, block=64)
    assert "s[byte 512]" in str(error)


def test_a_fence_before_the_store_does_not_help():
    fails(
        ProxyHazard,
        SHARED + FENCE + fill() + "bar.sync 0;\n" + ONE + s2g() + "END:",
        {"x": words(128)},
    )


def test_what_a_bulk_copy_wrote_needs_no_fence_and_what_cp_async_wrote_does():
    x, y = words(128), np.zeros(128, np.uint32)
    issue = ELECTED + EXPECT + g2s() + "ISSUED:\n" + spin("W", "%r40", "0")
    launch(
        start(1)
        + SHARED
        + fill()
        + "bar.warp.sync -1;\n"
        + issue
        + ONE
        + s2g("%p1")
        + COMMIT
        + WAIT_ALL
        + "END:",
        {"x": x, "y": y},
    )
    assert np.array_equal(x, y)
    copy = (
        "mad.lo.u32 %r51, %t, 16, %r50; mad.wide.u32 %rd9, %t, 16, %p0; cp.async.cg.shared.global"
        " [%r51], [%rd9], 16; cp.async.wait_all; bar.sync 0;\n"
    )
    fails(ProxyHazard, SHARED + copy + ONE + s2g("%p1") + "END:", {"x": x, "y": y})


@pytest.mark.parametrize(
    "text",
    [
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::all"
            " [%r0], [%p0], 16, [%r1], %h0;"
        ),
        "cp.async.bulk.global.shared::cta.bulk_group.multicast::cluster [%p0], [%r0], 16, %h0;",
        (
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r0], [%r2],"
            " 16, [%r1];"
        ),
        "cp.async.bulk.shared::cluster.global [%r0], [%p0], 16, [%r1];",
        "cp.async.bulk.global.shared::cta [%p0], [%r0], 16;",
        "cp.async.bulk.prefetch.tensor.1d.L2.global [%p0, {%r1}];",
        "cp.async.bulk.prefetch.global [%p0], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%p0], [%r0], 16;",
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
            " [%r0], [%p0, {%r1, %r2}], [%r3];"
        ),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            " [%r0], [%p0, {%r1}], [%r3];"
        ),
        (
            "cp.async.bulk.tensor.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r0],"
            " [%p0, {%r1}], [%r3];"
        ),
        (
            "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            " [%r0], [%p0], [%r3];"
        ),
    ],
)
def test_forms_that_the_machine_does_not_know_are_refused(text):
    with pytest.raises(UnknownInstruction):
        launch(text, {"x": np.zeros(1)})
