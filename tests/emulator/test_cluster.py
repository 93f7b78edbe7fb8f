"""Contract under test: blocks of a cluster run together, reach each other's shared memory, and meet
at their barrier."""

import numpy as np
import pytest

from numba_marlin.emulator import (
    BarrierMisuse,
    Deadlock,
    MachineError,
    OutOfBounds,
    UnknownInstruction,
)
from numba_marlin.emulator.state.memory import RANK_SHIFT
from numba_marlin.layout.tensor_map import TensorMap
from tests.emulator.async_ptx import SEEDS, buffers, spin, start
from tests.emulator.ptx_cases import fails, launch, snippet

ARRIVE, WAIT = snippet("cluster_arrive"), snippet("cluster_wait")
SYNC = ARRIVE + WAIT
RANK = snippet("cluster_ctarank", "%r60")
SLOT = (
    "mov.u32 %r61, %ctaid.x; mov.u32 %r62, %ntid.x; mad.lo.u32 %r61, %r61, %r62, %t; mad.wide.u32"
    " %rd9, %r61, 4, %p0;\n"
)


def test_names_of_blocks_and_clusters():
    """A grid of 6 x 4 x 2 in clusters of 3 x 2 x 1: ranks go x first, and every special register
    agrees."""
    out = np.zeros((2, 4, 6, 8), np.uint32)
    names = [
        "cluster_ctarank",
        "cluster_nctarank",
        "cluster_ctaid.x",
        "cluster_ctaid.y",
        "cluster_nctaid.y",
        "clusterid.x",
        "clusterid.y",
        "nclusterid.x",
    ]
    body = (
        "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z; mad.lo.u32 %r4, %r3,"
        " 4, %r2; mad.lo.u32 %r4, %r4, 6, %r1;"
    )
    body += "mad.wide.u32 %rd0, %r4, 32, %p0;" + "".join(
        f"mov.u32 %r5, %{name}; st.global.u32 [%rd0+{4 * i}], %r5;" for i, name in enumerate(names)
    )
    launch(body, {"out": out}, grid=(6, 4, 2), cluster=(3, 2, 1))
    z, y, x = np.indices((2, 4, 6))
    expected = [x % 3 + 3 * (y % 2), 6 + 0 * x, x % 3, y % 2, 2 + 0 * x, x // 3, y // 2, 2 + 0 * x]
    assert np.array_equal(out, np.stack(expected, axis=-1))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("resident", [None, 5])
def test_every_block_reads_its_neighbours_shared_memory(seed, resident):
    """Eight blocks in clusters of four; thread t of rank r reads what thread t of rank r + 1 wrote,
    and writes to rank r + 2."""
    out = np.zeros(8 * 32 * 2, np.float32)
    body = f""".shared .align 16 .b8 s[1024]; {RANK} {SLOT} mov.u32 %r1, s;
    mad.lo.u32 %r1, %t, 16, %r1; cvt.rn.f32.u32 %f0, %r61;
    st.shared.v4.f32 [%r1], {{%f0, %f0, %f0, %f0}}; {SYNC}
    add.u32 %r2, %r60, 1; and.b32 %r2, %r2, 3; {snippet("mapa_shared", "%r3", "%r1", "%r2")}
    {snippet("ld_shared_cluster_v4_f32", ("%f1", "%f2", "%f3", "%f4"), "%r3")}
    add.u32 %r2, %r60, 2; and.b32 %r2, %r2, 3; {snippet("mapa_shared", "%r3", "%r1", "%r2")}
    add.u32 %r3, %r3, 512;
    {snippet("st_shared_cluster_v4_f32", "%r3", ("%f1", "%f1", "%f1", "%f1"))} {SYNC}
    ld.shared.f32 %f5, [%r1+524]; mul.wide.u32 %rd1, %r61, 8; add.u64 %rd1, %rd1, %p0;
    st.global.f32 [%rd1], %f4; st.global.f32 [%rd1+4], %f5;"""
    launch(body, {"out": out}, grid=8, block=32, cluster=4, seed=seed, resident_blocks=resident)
    block, thread = np.divmod(np.arange(256), 32)
    first, rank = block // 4 * 4, block % 4
    from_next, from_two_behind = (
        (first + (rank + 1) % 4) * 32 + thread,
        (first + (rank - 2 + 1) % 4) * 32 + thread,
    )
    assert np.array_equal(out.reshape(-1, 2), np.stack([from_next, from_two_behind], axis=1))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_arrival_at_another_blocks_barrier(seed):
    """Every block of the cluster arrives at rank 0's barrier, behind its store to rank 0's memory;
    rank 0 adds up."""
    out = np.zeros(4, np.uint32)
    body = f"""{start(4)} .shared .align 4 .b8 s[16]; {RANK} {SYNC} setp.ne.u32 %q1, %t, 0;
    @%q1 bra END;
    mov.u32 %r1, s; mad.lo.u32 %r1, %r60, 4, %r1; {snippet("mapa_shared", "%r2", "%r1", "0")}
    add.u32 %r3, %r60, 100; st.shared::cluster.u32 [%r2], %r3;
    {snippet("fence_acq_rel_cluster")} {snippet("mapa_shared", "%r4", "%r40", "0")}
    {snippet("mbarrier_arrive_cluster", "%r4")}
    setp.ne.u32 %q2, %r60, 0; @%q2 bra END; {spin("W", "%r40", "0")}
    mov.u32 %r5, s; ld.shared.u32 %r6, [%r5]; ld.shared.u32 %r7, [%r5+4];
    ld.shared.u32 %r8, [%r5+8]; ld.shared.u32 %r9, [%r5+12];
    add.u32 %r6, %r6, %r7; add.u32 %r8, %r8, %r9; add.u32 %r6, %r6, %r8; st.global.u32 [%p0], %r6;
    END: {SYNC}"""
    launch(body, {"out": out}, grid=4, cluster=4, seed=seed)
    assert out[0] == 406


def test_a_generic_address_becomes_one_of_the_clusters_window():
    """Of another block's memory as mapa gives it, and of the block's own as cvta does."""
    out = np.zeros(2 * 32 * 2, np.uint32)
    body = f""".shared .align 16 .b8 s[128]; {RANK} {SLOT} mov.u32 %r1, s;
    mad.lo.u32 %r1, %t, 4, %r1; st.shared.u32 [%r1], %r61; {SYNC} xor.b32 %r2, %r60, 1;
    cvt.u64.u32 %rd1, %r1; cvta.shared.u64 %rd1, %rd1; mapa.u64 %rd2, %rd1, %r2;
    cvta.to.shared::cluster.u64 %rd3, %rd2; ld.shared::cluster.u32 %r3, [%rd3];
    cvta.to.shared::cluster.u64 %rd4, %rd1; ld.shared::cluster.u32 %r4, [%rd4]; {SYNC}
    mul.wide.u32 %rd5, %r61, 8; add.u64 %rd5, %rd5, %p0; st.global.v2.u32 [%rd5], {{%r3, %r4}};"""
    launch(body, {"out": out}, grid=2, block=32, cluster=2)
    own = np.arange(64)
    assert np.array_equal(out.reshape(64, 2), np.stack([own ^ 32, own], axis=1))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_barrier_over_many_rounds(seed):
    """Round i: rank i % 2 adds to rank 0's word while the other waits; an arrive and its wait may
    lie apart."""
    out = np.zeros(1, np.uint32)
    body = f""".shared .u32 s; {RANK} setp.ne.u32 %q1, %t, 0; mov.u32 %r1, s;
    {snippet("mapa_shared", "%r2", "%r1", "0")} setp.ne.u32 %q2, %r60, 0;
    or.pred %q3, %q1, %q2; @!%q3 st.shared.u32 [s], 1; {SYNC} mov.u32 %r3, 0;
    LOOP: and.b32 %r4, %r3, 1; setp.ne.u32 %q4, %r4, %r60; or.pred %q4, %q4, %q1; @%q4 bra SKIP;
    ld.shared::cluster.u32 %r5, [%r2]; mad.lo.u32 %r5, %r5, 3, %r3;
    st.shared::cluster.u32 [%r2], %r5; SKIP: bar.warp.sync -1;
    {ARRIVE} add.u32 %r3, %r3, 1; {WAIT} setp.lt.u32 %q5, %r3, 9; @%q5 bra LOOP;
    @!%q3 ld.shared.u32 %r6, [s]; @!%q3 st.global.u32 [%p0], %r6;"""
    launch(body, {"out": out}, grid=2, block=64, cluster=2, seed=seed)
    value = 1
    for number in range(9):
        value = value * 3 + number
    assert out[0] == value


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_multicast_reaches_the_blocks_of_its_mask(seed, tensor):
    """Rank 1 of 4 loads for ranks 0, 1 and 3: each counts the bytes at a barrier of its own, and
    rank 2 keeps what it had."""
    source, out = np.arange(32 * 4, dtype=np.uint32).reshape(8, 16), np.zeros((4, 32), np.uint32)
    tensor_map = TensorMap("uint32", source.shape, (64, 4), (8, 16))
    arrays = buffers(tensor_map, source, out=out)
    copy = snippet("cp_async_bulk_g2s_multicast", "%r1", "%p2", "512", "%r40", "%h0")
    if tensor:
        copy = snippet(
            "cp_async_bulk_tensor_2d_g2s_multicast", "%r1", "%p0", "0", "0", "%r40", "%h0"
        )
    body = f"""{start(1)} .shared .align 128 .b8 s[512]; {RANK} mov.u32 %r1, s;
    mad.lo.u32 %r2, %t, 16, %r1; mov.b16 %h0, 11;
    setp.eq.u32 %q1, %r60, 2; @%q1 st.shared.u32 [%r2], 77;
    setp.ne.u32 %q2, %t, 0; @%q2 bra MEET; {snippet("mbarrier_arrive_expect_tx", "%r40", "512")}
    MEET: {SYNC}
    setp.ne.or.u32 %q3, %r60, 1, %q2; @%q3 bra ISSUED; {copy} ISSUED: @%q1 bra READ;
    {spin("W", "%r40", "0")} READ: ld.shared.u32 %r3, [%r2]; mad.lo.u32 %r4, %r60, 32, %t;
    mad.wide.u32 %rd0, %r4, 4, %p1; st.global.u32 [%rd0], %r3; {SYNC}"""
    launch(body, arrays, grid=4, cluster=4, seed=seed)
    expected = np.broadcast_to(np.arange(0, 128, 4), (4, 32)).copy()
    expected[2] = 77
    assert np.array_equal(out, expected)


def test_exited_warps_do_not_hold_the_barrier_up():
    launch(
        f"setp.ge.u32 %q0, %t, 32; @%q0 ret; {SYNC}",
        {"x": np.zeros(1)},
        grid=2,
        block=64,
        cluster=2,
    )


def test_without_a_cluster_a_block_is_its_own():
    out = np.full(32, 9, np.uint32)
    body = (
        ".shared .u32 s[32]; mov.u32 %r1, s; mad.lo.u32 %r1, %t, 4, %r1; st.shared::cluster.u32"
        f" [%r1], %t; {RANK} {SLOT} {SYNC}"
    )
    launch(
        body
        + "ld.shared::cluster.u32 %r2, [%r1]; add.u32 %r2, %r2, %r60; st.global.u32 [%rd9], %r2;",
        {"out": out},
    )
    assert out.tolist() == list(range(32))


def test_a_block_that_never_arrives_is_a_deadlock():
    body = (
        f"{RANK} setp.eq.u32 %q1, %r60, 1; @%q1 bra OTHER; {SYNC} bra END; OTHER: bar.sync 1, 64;"
        " END:"
    )
    with pytest.raises(Deadlock, match="waits at barrier of the cluster") as caught:
        launch(body, {"x": np.zeros(1)}, grid=2, cluster=2)
    assert "waits at barrier 1" in str(caught.value)


MULTICAST = (
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1],"
    " [%p0], 16, [%r40], %h0; // BAD"
)
MISUSE = {
    "multicast to nobody": (
        OutOfBounds,
        f".shared .align 16 .b8 s[16]; mov.u32 %r1, s; mov.b16 %h0, 0; {start(1)}\n{MULTICAST}",
        "mask 0x0",
    ),
    "multicast to a block too many": (
        OutOfBounds,
        f".shared .align 16 .b8 s[16]; mov.u32 %r1, s; mov.b16 %h0, 5; {start(1)}\n{MULTICAST}",
        "mask 0x5",
    ),
    "multicast to a block without barrier": (
        BarrierMisuse,
        f""".shared .align 16 .b8 s[16]; mov.u32 %r1, s; mov.b16 %h0, 3; {RANK}
    setp.ne.u32 %q6, %r60, 0; @%q6 bra END;
    {start(1)} @%q0 bra END;\n{MULTICAST}\nEND: {SYNC}""",
        "no mbarrier at",
    ),
    "wait without arrive": (
        BarrierMisuse,
        "barrier.cluster.wait.aligned; // BAD",
        "without having arrived",
    ),
    "arrive twice": (
        BarrierMisuse,
        "barrier.cluster.arrive.aligned;\nbarrier.cluster.arrive.aligned; // BAD",
        "again without having waited",
    ),
    "no such rank": (
        OutOfBounds,
        "mov.u32 %r1, 0;\nmapa.shared::cluster.u32 %r2, %r1, 2; // BAD",
        "2 blocks, none of rank 2",
    ),
    "address of no rank": (
        OutOfBounds,
        "mov.u32 %r1, 0x5000400;\nst.shared::cluster.u32 [%r1], 0; // BAD",
        "none of rank 4",
    ),
    "address of the first rank that there is not": (
        OutOfBounds,
        f"mov.u32 %r1, {(3 << RANK_SHIFT) + 0x400:#x};\nst.shared::cluster.u32 [%r1], 0; // BAD",
        "2 blocks, none of rank 2",
    ),
    "a block that has ended": (
        MachineError,
        f""".shared .u32 s; {RANK} setp.eq.u32 %q1, %r60, 1; {ARRIVE} @%q1 ret; {WAIT}
    mov.u32 %r1, s;
    mapa.shared::cluster.u32 %r2, %r1, 1; mov.u32 %r3, 0; L: add.u32 %r3, %r3, 1;
    setp.lt.u32 %q2, %r3, 9; @%q2 bra L;
    st.shared::cluster.u32 [%r2], 0; // BAD""",
        "block (1, 0, 0), which has ended",
    ),
}


@pytest.mark.parametrize("kind", MISUSE)
def test_misuse_is_reported_with_the_rule(kind):
    error, body, message = MISUSE[kind]
    assert message in str(fails(error, body, grid=2, cluster=2))


def test_launches_that_do_not_fit_are_refused():
    for options, message in (
        (dict(grid=3, cluster=2), "must divide grid"),
        (dict(grid=16, cluster=16), "at most 8 blocks"),
        (dict(grid=4, cluster=4, resident_blocks=3), "no place for a cluster of 4"),
    ):
        with pytest.raises(ValueError, match=message):
            launch("", {"x": np.zeros(1)}, **options)


@pytest.mark.parametrize(
    "line",
    [
        "barrier.cluster.aligned;",
        "barrier.cluster.arrive.acquire.aligned;",
        "barrier.cluster.wait.release.aligned;",
        "mapa.u32 %r0, %r1, 0;",
    ],
)
def test_forms_that_the_machine_does_not_know_are_refused(line):
    with pytest.raises(UnknownInstruction):
        launch(line, {"x": np.zeros(1)})


def test_a_cluster_that_the_kernel_declares_need_not_be_passed():
    out = np.zeros(4, np.uint32)
    body = (
        "mov.u32 %r0, %cluster_nctarank; mov.u32 %r1, %ctaid.x; mad.wide.u32 %rd0, %r1, 4, %p0;"
        " st.global.u32 [%rd0], %r0;"
    )
    launch(body, {"out": out}, grid=4, directives=".reqnctapercluster 2, 1, 1")
    assert out.tolist() == [2, 2, 2, 2]
    with pytest.raises(ValueError, match=r"cluster=\(4, 1, 1\), k was compiled for \(2, 1, 1\)"):
        launch(body, {"out": out}, grid=4, cluster=4, directives=".reqnctapercluster 2")
