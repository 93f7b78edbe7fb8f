"""Contract under test: what the ISA forbids around bulk copies is an error that names the rule:
addresses, sizes, barriers, the end of a block, the asynchronous proxy."""

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
from tests.emulator.async_ptx import COMMIT, FENCE, WAIT_ALL, spin, start
from tests.emulator.bulk_copy_programs import ELECTED, EXPECT, ONE, SHARED, fill, g2s, s2g
from tests.emulator.ptx_cases import fails, launch, snippet, words

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
            "cp.async.bulk.shared::cta.shared::cta.mbarrier::complete_tx::bytes [%r0], [%r2],"
            " 16, [%r1];"
        ),
        "cp.async.bulk.shared::cluster.global [%r0], [%p0], 16, [%r1];",
        "cp.async.bulk.global.shared::cta [%p0], [%r0], 16;",
        "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col [%p0, {%r1, %r2, %r3}], {%h0};",
        "cp.async.bulk.prefetch.global [%p0], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [%p0], [%r0], 16;",
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
