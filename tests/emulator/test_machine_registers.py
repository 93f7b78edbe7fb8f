"""Contract under test: what a kernel may ask about the machine, and the registers it may trade."""

import numpy as np
import pytest

from numba_marlin.emulator import (
    Deadlock,
    DivergentCollective,
    Misaligned,
    OutOfBounds,
    UnknownInstruction,
)
from tests.emulator.ptx_cases import fails, launch, snippet

BOUNDS = ".maxntid 128, 1, 1"


@pytest.mark.parametrize("name", ["clock64", "globaltimer"])
def test_clocks_go_on(name):
    out = np.zeros(2, np.uint64)
    body = (
        snippet(name, "%rd0")
        + "mov.u32 %r0, 0; L: add.u32 %r0, %r0, 1; setp.lt.u32 %q0, %r0, 100; @%q0 bra L;\n"
        + snippet(name, "%rd1")
    )
    launch(body + "st.global.u64 [%p0], %rd0; st.global.u64 [%p0+8], %rd1;", {"out": out})
    assert out[1] >= out[0] + 100


@pytest.mark.parametrize("threads", [20, 96])
def test_a_clock_goes_on_within_a_basic_block(threads):
    """By what lies between the two reads; whole warps and parts of one alike."""
    out = np.zeros(2, np.uint64)
    body = "mov.u64 %rd0, %clock64;\n" + 10 * "add.u32 %r0, %r0, 1;\n" + "mov.u64 %rd1, %clock64;"
    launch(
        body + "st.global.u64 [%p0], %rd0; st.global.u64 [%p0+8], %rd1;",
        {"out": out},
        block=threads,
    )
    assert out[1] - out[0] == 11 * -(-threads // 32)


def test_blocks_that_run_together_have_different_multiprocessors():
    out = np.zeros(4, np.uint32)
    body = (
        snippet("smid", "%r0")
        + "mov.u32 %r1, %ctaid.x; mad.wide.u32 %rd0, %r1, 4, %p0; st.global.u32 [%rd0], %r0;"
    )
    launch(body, {"out": out}, grid=4)
    assert sorted(out.tolist()) == [0, 1, 2, 3]


def test_registers_are_traded_by_whole_warps_of_kernels_with_bounds():
    trade = snippet("setmaxnreg_dec", n=40) + snippet("setmaxnreg_inc", n=168)
    launch(trade, {"x": np.zeros(1)}, block=128, directives=BOUNDS)
    launch(trade, {"x": np.zeros(1)}, block=128, directives=".maxnreg 168")
    with pytest.raises(UnknownInstruction, match="neither .maxntid nor .maxnreg"):
        launch(trade, {"x": np.zeros(1)}, block=128)
    error = fails(
        DivergentCollective,
        "setp.eq.u32 %q0, %t, 3;\n@%q0 setmaxnreg.dec.sync.aligned.u32 40; // BAD",
        directives=BOUNDS,
    )
    assert "all 32 lanes" in str(error)


SPECIALISED = "setp.ge.u32 %q0, %t, 128; @%q0 bra CONSUME;\n{} bra END; CONSUME:\n{} END:"


@pytest.mark.parametrize(
    "directives, taken, enough",
    [
        (".maxntid 384, 1, 1", 232, True),
        (".maxntid 384, 1, 1", 240, False),
        (".maxnreg 160", 216, True),
        (".maxnreg 160", 224, False),
        (".maxntid 384, 1, 1\n.minnctapersm 2", 96, True),
        (".maxntid 384, 1, 1\n.minnctapersm 2", 112, False),
    ],
)
def test_a_block_cannot_take_more_registers_than_it_has(directives, taken, enough):
    """One warpgroup keeps 40 of the entry's registers (168 of 65536 for 384 threads, 80 if two
    blocks are to fit), two take more."""
    body = SPECIALISED.format(snippet("setmaxnreg_dec", n=40), snippet("setmaxnreg_inc", n=taken))
    if enough:
        launch(
            body, {"x": np.zeros(1)}, block=384, directives=directives, grid=3, resident_blocks=2
        )
    else:
        with pytest.raises(Deadlock, match="waits for registers for ever") as caught:
            launch(body, {"x": np.zeros(1)}, block=384, directives=directives)
        assert (
            f"setmaxnreg.inc.sync.aligned.u32 {taken}" in str(caught.value)
            and caught.value.warp >= 4
        )


def test_all_warps_of_a_warpgroup_trade_alike():
    body = (
        "setp.ge.u32 %q0, %t, 96; @%q0 bra END;\nsetmaxnreg.dec.sync.aligned.u32 40; // BAD\nEND:"
    )
    error = fails(DivergentCollective, body, block=128, directives=BOUNDS)
    assert "warp 3 of the same warpgroup" in str(error)


@pytest.mark.parametrize("count", [16, 44, 264])
def test_the_number_of_registers_is_a_multiple_of_8_from_24_to_256(count):
    with pytest.raises(
        UnknownInstruction, match=f"{count} registers must be a multiple of 8 between 24 and 256"
    ):
        launch(snippet("setmaxnreg_dec", n=count), {"x": np.zeros(1)}, directives=BOUNDS)
    for legal in (24, 256):
        launch(snippet("setmaxnreg_inc", n=legal), {"x": np.zeros(1)}, directives=BOUNDS)


@pytest.mark.parametrize(
    "line",
    [
        "setmaxnreg.sync.aligned.u32 40;",
        "setmaxnreg.inc.aligned.u32 40;",
        "fence.mbarrier_init.acquire.cluster;",
        "fence.proxy.async.global.shared::cta;",
        "fence.proxy.alias.global;",
        "fence.proxy.tensormap::generic.release;",
        "fence.proxy.tensormap::generic.acquire.gpu [%rd0], 64;",
    ],
)
def test_forms_that_the_isa_does_not_have_are_refused(line):
    with pytest.raises(UnknownInstruction):
        launch(line, {"x": np.zeros(1)}, directives=BOUNDS)


def test_reserved_shared_memory_is_there_for_who_asks_where():
    """Cooperative groups keep the barriers of tiles of several warps in it."""
    out = np.zeros(4, np.uint32)
    body = """.shared .b32 s; mov.u32 %r1, %reserved_smem_offset_1; cvt.u64.u32 %rd1, %r1;
    cvta.shared.u64 %rd1, %rd1; ld.b32 %r2, [%rd1+1020]; atom.or.b32 %r3, [%rd1+4], 5;
    bar.sync 0; ld.shared.b32 %r4, [%r1+4]; mov.u32 %r5, s; mov.u32 %r6, %total_smem_size;
    st.global.v4.u32 [%p0], {%r2, %r4, %r5, %r6};"""
    result = launch(body, {"out": out})
    assert out.tolist() == [0, 5, 1024, 4] and result.shared_bytes == 4
    with pytest.raises(OutOfBounds, match="shared address 0x0"):
        launch("ld.shared.b32 %r4, [0];", {"out": out})


def test_registers_of_the_driver_and_of_reserved_memory():
    """0 is what nobody set; shared memory begins behind the kilobyte that the system reserves."""
    out = np.zeros(10, np.uint64)
    names = (
        "envreg0 envreg31 pm7 reserved_smem_offset_begin reserved_smem_offset_end"
        " reserved_smem_offset_cap aggr_smem_size total_smem_size"
    ).split()
    body = "".join(
        f"mov.u32 %r{i}, %{name}; cvt.u64.u32 %rd0, %r{i}; st.global.u64 [%p0+{8 * i}], %rd0;\n"
        for i, name in enumerate(names)
    )
    body += "mov.u64 %rd0, %pm3_64; mov.u64 %rd1, %current_graph_exec; or.b64 %rd0, %rd0, %rd1;"
    body += "st.global.u64 [%p0+64], %rd0; mov.pred %q0, %is_explicit_cluster;"
    body += "selp.u64 %rd0, 1, 0, %q0; st.global.u64 [%p0+72], %rd0; mov.u32 %r20, s;"
    body += "setp.ne.u32 %q1, %r20, %r4; @%q1 trap;"
    for cluster in (1, 2):
        launch(
            body,
            {"out": out},
            before=".shared .b32 s[5];",
            grid=2,
            cluster=cluster,
            shared_bytes=64,
        )
        assert out.tolist() == [0, 0, 0, 0, 1024, 1024, 1024 + 96, 96, 0, cluster - 1]


def test_discarded_memory_is_poison():
    data = np.zeros(64, np.uint32)
    launch("discard.global.L2 [%p0+128], 128;", {"data": data}, block=1)
    assert data.tolist() == [0] * 32 + [0xA5A5A5A5] * 32
    fails(OutOfBounds, "discard.global.L2 [%p0+256], 128; // BAD", {"x": np.zeros(64, np.uint32)})
    fails(Misaligned, "discard.L2 [%p0+64], 128; // BAD", {"x": np.zeros(64, np.uint32)})


@pytest.mark.parametrize(
    "hint",
    [
        "createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64 %rd0, [%p0], %r2, %r3;",
        "createpolicy.cvt.L2.b64 %rd0, %rd1;",
        "membar.proxy.alias;",
        "fence.acquire.sync_restrict::shared::cluster.cluster;",
        "fence.release.sync_restrict::shared::cta.cluster;",
        "fence.proxy.tensormap::generic.release.gpu;",
        "fence.proxy.tensormap::generic.acquire.sys [%p0], 128;",
    ],
)
def test_hints_and_fences_change_nothing(hint):
    launch(hint, {"x": np.zeros(64, np.uint32)})


def test_a_barrier_with_a_reduction_and_a_count():
    out = np.zeros(96, np.uint32)
    body = "setp.lt.u32 %q0, %t, 40; setp.ge.u32 %q2, %t, 64; @%q2 bra REST;"
    body += "bar.red.popc.u32 %r0, 1, 64, %q0; barrier.red.and.pred %q1, 2, 64, !%q0;"
    body += "selp.u32 %r1, 100, 0, %q1; add.u32 %r0, %r0, %r1; REST: @%q2 mov.u32 %r0, 7;"
    body += "mad.wide.u32 %rd0, %t, 4, %p0; st.global.u32 [%rd0], %r0;"
    launch(body, {"out": out}, block=96)
    assert out.tolist() == [40] * 64 + [7] * 32
