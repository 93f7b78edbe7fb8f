"""Contract under test: copies, mbarriers, bulk copies and clusters order what the ISA says they
order; without them it is a race, which says what is missing."""

import numpy as np
import pytest

from tests.emulator.async_ptx import spin, start
from tests.emulator.ptx_cases import snippet
from tests.emulator.race_programs import HURRY, SCHEDULES, fine, race
from tests.emulator.wgmma_programs import BEGIN, COMMIT, DESC, OTHER, WAIT, WAIT_1


def test_a_copy_is_its_threads_own_until_a_barrier():
    body = """.shared .align 16 .b8 s[2048]; mov.u32 %r1, s; mad.lo.u32 %r1, %t, 16, %r1;
    mad.wide.u32 %rd1, %t, 16, %p0;
    cp.async.cg.shared.global [%r1], [%rd1], 16; cp.async.commit_group; cp.async.wait_group 0; {}
    xor.b32 %r2, %t, {}; mov.u32 %r3, s; mad.lo.u32 %r3, %r2, 16, %r3;
    ld.shared.u32 %r4, [%r3];"""
    x = {"x": np.zeros(512, np.uint32)}
    fine(body.format("bar.sync 0;", 32), x, block=128)
    fine(body.format("", 0), x, block=128)
    race(body.format("", 1), "missing-warp-sync", x, block=128)
    race(body.format("bar.warp.sync -1;", 32), "missing-barrier", x, block=128, schedules=(None,))


def test_a_tile_may_be_copied_over_only_when_all_have_read_it():
    body = """.shared .align 16 .b8 s[16]; mov.u32 %r1, s; setp.eq.u32 %q0, %t, 0;
    @%q0 st.shared.u32 [%r1], 1; bar.sync 0; ld.shared.u32 %r2, [%r1]; {}
    @%q0 cp.async.cg.shared.global [%r1], [%p0], 16; cp.async.wait_all;"""
    fine(body.format("bar.sync 0;"), {"x": np.zeros(4, np.uint32)}, block=64)
    assert (
        race(
            body.format(""),
            "missing-barrier",
            {"x": np.zeros(4, np.uint32)},
            block=64,
            schedules=(None,),
        ).first.root
        == "ld"
    )


MESSAGE = (
    start(1)
    + """.shared .align 16 .b8 s[16]; mov.u32 %r1, s; setp.ne.u32 %q1, %r9, 0; @%q1 bra OTHER;
setp.ne.u32 %q2, %r8, 0; @%q2 bra END;
st.shared.u32 [%r1], 9; {arrive} bra END; OTHER: {wait} ld.shared.u32 %r2, [%r1]; END:"""
)


def test_an_arrival_and_a_wait_order():
    wait = spin("W", "%r40", "0")
    fine(MESSAGE.format(arrive=snippet("mbarrier_arrive", "%r40"), wait=wait), block=64)
    relaxed = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r40];"
    race(MESSAGE.format(arrive=relaxed, wait=wait), "missing-barrier", block=64)
    race(
        MESSAGE.format(
            arrive=snippet("mbarrier_arrive", "%r40"),
            wait=spin("W", "%r40", "0").replace(".parity", ".parity.relaxed.cta"),
        ),
        "missing-barrier",
        block=64,
    )


def test_waiting_for_the_wrong_phase_orders_nothing():
    """Parity 1 has passed before anybody arrives, which here takes a while."""
    for parity in (0, 1):
        body = MESSAGE.replace("st.shared.u32 [%r1], 9;", HURRY + "st.shared.u32 [%r1], 9;").format(
            arrive=snippet("mbarrier_arrive", "%r40"), wait=spin("W", "%r40", str(parity))
        )
        body = "setp.eq.u32 %q6, %t, 0; mov.u32 %r1, s; @%q6 st.shared.u32 [%r1], 0;" + body
        body = ".shared .align 16 .b8 s[16];" + body.replace(".shared .align 16 .b8 s[16];", "")
        (
            race(body, "missing-barrier", block=64, schedules=(None,))
            if parity
            else fine(body, block=64)
        )


BULK = (
    start(1)
    + """.shared .align 128 .b8 s[512]; mov.u32 %r50, s; mad.lo.u32 %r51, %t, 16, %r50;
setp.ne.u32 %q1, %t, 0; @%q1 bra ISSUED;
"""
    + snippet("mbarrier_arrive_expect_tx", "%r40", "512")
    + snippet("cp_async_bulk_g2s", "%r50", "%p0", "512", "%r40")
    + "ISSUED: {} ld.shared.u32 %r1, [%r51];"
)


def test_what_a_bulk_copy_brings_belongs_to_those_who_waited_for_it():
    x = {"x": np.zeros(128, np.uint32)}
    fine(BULK.format(spin("W", "%r40", "0")), x)
    fine(BULK.format("@%q1 bra MET;" + spin("W", "%r40", "0") + "MET: bar.warp.sync -1;"), x)
    error = race(
        BULK.format(
            "@%q1 bra MET;" + spin("W", "%r40", "0") + "MET: shfl.sync.idx.b32 %r5, %t, 0, 31, -1;"
        ),
        "missing-copy-wait",
        x,
    )
    assert "cp.async.bulk" in error.first.text


def test_a_stage_may_be_filled_again_only_when_its_readers_say_so():
    """The reader's arrival at the empty barrier is what the second copy needs; one lane's arrival
    speaks for the others behind bar.warp.sync only."""
    body = (
        start(1, 1)
        + """.shared .align 128 .b8 s[512]; mov.u32 %r50, s; setp.ne.u32 %q1, %r9, 0;
    @%q1 bra READER; setp.ne.u32 %q2, %r8, 0; @%q2 bra END;
    """
        + snippet("mbarrier_arrive_expect_tx", "%r40", "512")
        + snippet("cp_async_bulk_g2s", "%r50", "%p0", "512", "%r40")
        + "WAIT"
        + """
    """
        + snippet("mbarrier_arrive_expect_tx", "%r40", "512")
        + snippet("cp_async_bulk_g2s", "%r50", "%p0", "512", "%r40")
        + spin("Z", "%r40", "1")
        + """ bra END;
    READER: """
        + spin("X", "%r40", "0")
        + """ mad.lo.u32 %r51, %r8, 16, %r50; ld.shared.u32 %r1, [%r51];
    SYNC setp.ne.u32 %q3, %r8, 0; @%q3 bra END;
    """
        + snippet("mbarrier_arrive", "%r41")
        + "END:"
    )
    x, wait = {"x": np.zeros(128, np.uint32)}, spin("Y", "%r41", "0")
    fine(body.replace("WAIT", wait).replace("SYNC", "bar.warp.sync -1;"), x, block=64)
    assert (
        race(
            body.replace("WAIT", wait).replace("SYNC", ""), "missing-barrier", x, block=64
        ).first_thread[2]
        != 0
    )


def test_a_store_lends_its_source_until_the_wait():
    body = (
        """.shared .align 128 .b8 s[512]; mov.u32 %r50, s; mad.lo.u32 %r51, %t, 16, %r50;
    st.shared.v4.u32 [%r51], {{%t, %t, %t, %t}}; fence.proxy.async.shared::cta; bar.warp.sync -1;
    setp.ne.u32 %q1, %t, 0; @%q1 bra ISSUED; """
        + snippet("cp_async_bulk_s2g", "%p0", "%r50", "512")
        + snippet("cp_async_bulk_commit_group")
        + snippet("cp_async_bulk_wait_group_read", n=0)
        + "ISSUED: {} st.shared.u32 [%r51], 3;"
    )
    x = {"x": np.zeros(128, np.uint32)}
    fine(body.format("bar.warp.sync -1;"), x)
    race(body.format("shfl.sync.idx.b32 %r5, %t, 0, 31, -1;"), "missing-warp-sync", x)


def overwritten_by(thread: int) -> str:
    """The first word of the operand that all four warps of a warpgroup read."""
    return f"setp.eq.u32 %q13, %t, {thread}; @%q13 st.shared.u32 [s], 1;"


@pytest.mark.parametrize("warp", range(4))
def test_a_wait_of_one_warp_is_for_what_the_whole_warpgroup_reads(warp):
    """As CUTLASS's epilogues have it, and an H200 does it (experiment 05)."""
    store = overwritten_by(32 * warp)
    fine(BEGIN + WAIT + store, block=128)
    race(BEGIN + store + WAIT, "missing-wgmma-wait", block=128)
    fine(
        BEGIN + OTHER.replace(f"{DESC:#x}", f"{DESC + 16:#x}") + COMMIT + WAIT_1 + store, block=128
    )
    race(BEGIN + OTHER + COMMIT + WAIT_1 + store, "missing-wgmma-wait", block=128)


def test_another_warpgroups_wait_is_for_its_own_products():
    fine(BEGIN + WAIT + "bar.sync 0;" + overwritten_by(128), block=256)
    body = BEGIN + WAIT + overwritten_by(128)
    waited, slowest = SCHEDULES[:1], SCHEDULES[2:3]  # by then the first warpgroup has, or not
    race(body, "missing-barrier", block=256, schedules=waited)
    race(body, "missing-wgmma-wait", block=256, schedules=slowest)


def test_blocks_of_a_cluster_are_ordered_by_its_barrier():
    body = (
        """.shared .align 16 .b8 s[16]; mov.u32 %r1, s; setp.eq.u32 %q0, %t, 0;
    @%q0 st.shared.u32 [%r1], 7; {}
    """
        + snippet("cluster_ctarank", "%r60")
        + "xor.b32 %r2, %r60, 1;"
        + snippet("mapa_shared", "%r3", "%r1", "%r2")
        + "@%q0 ld.shared::cluster.u32 %r4, [%r3]; {}"
    )
    sync = snippet("cluster_arrive") + snippet("cluster_wait")
    relaxed = sync.replace("arrive", "arrive.relaxed")
    fine(body.format(sync, sync), grid=2, cluster=2)
    race(body.format(relaxed, sync), "missing-cluster-barrier", grid=2, cluster=2)
    race(
        body.format(
            sync,
            snippet("cluster_arrive").replace("arrive", "arrive.relaxed") + snippet("cluster_wait"),
        ),
        "missing-wait-for-others",
        grid=2,
        cluster=2,
    )


def test_of_uses_by_others_after_a_blocks_end_the_first_place_is_named():
    body = (
        """.shared .align 16 .b8 s[64]; mov.u32 %r1, s; setp.eq.u32 %q0, %t, 0;
    @%q0 st.shared.v2.u32 [%r1+24], {%t, %t};
    """
        + snippet("cluster_arrive")
        + snippet("cluster_wait")
        + snippet("cluster_ctarank", "%r60")
        + "xor.b32 %r2, %r60, 1;"
        + snippet("mapa_shared", "%r3", "%r1", "%r2")
        + """@%q0 ld.shared::cluster.u32 %r4, [%r3+28];
    @%q0 ld.shared::cluster.u32 %r4, [%r3+24];
    """
        + snippet("cluster_arrive").replace("arrive", "arrive.relaxed")
        + snippet("cluster_wait")
    )
    found = race(body, "missing-wait-for-others", grid=2, cluster=2)
    assert "s[byte 24]" in str(found) and "%r3+24" in str(found) and "+28" not in str(found)
