"""Divergence, loops, barriers, locks between blocks; deadlocks are found, not waited for."""

import numpy as np
import pytest

from numba_marlin.emulator import Deadlock, DivergentCollective, MachineError, Trap
from numba_marlin.emulator.state.listener import Listener
from tests.emulator.ptx_cases import fails, launch

FILL = ".shared .align 16 .b8 s[16]; st.shared.v4.u32 [s], {%t, %t, %t, %t};"
STORE = "mad.wide.u32 %rd0, %t, 4, %p0; st.global.u32 [%rd0], %r0;"


def per_thread(body, threads=64, **options):
    out = np.zeros(threads, np.uint32)
    result = launch(f"mov.u32 %r0, 0; {body} {STORE}", {"out": out}, block=threads, **options)
    return out, result


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_nested_branches_and_loops_with_trip_counts_per_lane(seed):
    """An inner loop runs (lane % 5) times inside an outer one of (lane % 3) rounds, odd lanes take
    another arm."""
    body = """
    rem.u32 %r1, %t, 3; rem.u32 %r2, %t, 5;
    OUTER: setp.eq.u32 %q0, %r1, 0; @%q0 bra DONE;
      mov.u32 %r3, %r2;
      and.b32 %r4, %t, 1; setp.eq.u32 %q1, %r4, 1; @%q1 bra ODD;
      INNER: setp.eq.u32 %q2, %r3, 0; @%q2 bra NEXT; add.u32 %r0, %r0, 1; sub.u32 %r3, %r3, 1;
      bra INNER;
      ODD: setp.gt.u32 %q3, %r3, 2; @%q3 bra BIG; add.u32 %r0, %r0, 100; bra.uni NEXT;
      BIG: add.u32 %r0, %r0, 1000;
      NEXT: sub.u32 %r1, %r1, 1; bra OUTER;
    DONE:"""
    out, _ = per_thread(body, seed=seed)
    expected = [(t % 3) * (t % 5 if t % 2 == 0 else 1000 if t % 5 > 2 else 100) for t in range(64)]
    assert out.tolist() == expected


def test_diverged_lanes_reconverge_behind_the_branch():
    """activemask is whole again at the immediate post-dominator, and partial inside."""
    body = """and.b32 %r1, %t, 1; setp.eq.u32 %q0, %r1, 1; @%q0 bra ODD; activemask.b32 %r0;
    bra.uni MEET;
    ODD: activemask.b32 %r0; MEET: activemask.b32 %r2; setp.ne.b32 %q1, %r2, -1; @%q1 trap;"""
    out, _ = per_thread(body)
    assert out.tolist() == [0x55555555, 0xAAAAAAAA] * 32


def test_early_exit_of_some_lanes():
    out, _ = per_thread(
        f"setp.gt.u32 %q0, %t, 40; @%q0 exit; mov.u32 %r0, 7; bar.sync 0; {STORE} ret;"
    )
    assert out.tolist() == [7] * 41 + [0] * 23


def test_exit_inside_a_divergent_arm_releases_those_who_wait():
    body = """and.b32 %r1, %t, 3; setp.eq.u32 %q0, %r1, 0; @!%q0 bra ELSE; setp.eq.u32 %q1, %t, 8;
    @%q1 ret; mov.u32 %r0, 1; bra MEET;
    ELSE: mov.u32 %r0, 2; MEET: add.u32 %r0, %r0, 10;"""
    out, _ = per_thread(body)
    assert out.tolist() == [0 if t == 8 else 11 if t % 4 == 0 else 12 for t in range(64)]


def test_guarded_instructions_touch_only_their_lanes():
    out, _ = per_thread("setp.lt.u32 %q0, %t, 3; @%q0 mov.u32 %r0, 5; @!%q0 add.u32 %r0, %t, 100;")
    assert out.tolist() == [5] * 3 + [100 + t for t in range(3, 64)]


def test_labels_of_inline_blocks_are_local():
    """Two asm blocks with the same label and register names."""
    block = (
        "{{ .reg .pred p; .reg .u32 n; mov.u32 n, {count}; L: add.u32 %r0, %r0, 1; sub.u32 n, n, 1;"
        " setp.ne.u32 p, n, 0; @p bra L; }}"
    )
    out, _ = per_thread(block.format(count=3) + block.format(count=4))
    assert (out == 7).all()


@pytest.mark.parametrize("seed", [None, 3])
def test_barriers_order_warps(seed):
    """A relay through shared memory: before barrier i only warp i writes, the next reads behind
    it."""
    body = """.shared .u32 s; setp.eq.u32 %q0, %t, 0; @%q0 st.shared.u32 [s], 1; shr.u32 %r1, %t, 5;
    mov.u32 %r2, 0;
    LOOP: bar.sync 0; setp.ne.u32 %q1, %r1, %r2; @%q1 bra SKIP; ld.shared.u32 %r3, [s];
    bar.warp.sync -1;
    mad.lo.u32 %r3, %r3, 3, %r1; st.shared.u32 [s], %r3; SKIP: add.u32 %r2, %r2, 1;
    setp.lt.u32 %q2, %r2, 8; @%q2 bra LOOP;
    bar.sync 0; ld.shared.u32 %r0, [s];"""
    out, _ = per_thread(body, 256, seed=seed)
    value = 1
    for warp in range(8):
        value = value * 3 + warp
    assert (out == value).all()


def test_named_barriers_with_counts_split_a_block():
    """Producers arrive and go on; consumers wait at barrier 1. The other two warps use barrier
    2."""
    body = """.shared .u32 s[2]; shr.u32 %r1, %t, 5; setp.lt.u32 %q0, %r1, 2; @%q0 bra PAIR;
    bar.sync 2, 64; mov.u32 %r0, 9; bra END;
    PAIR: setp.eq.u32 %q1, %r1, 0; @%q1 bra PRODUCE; barrier.sync 1, 64; ld.shared.u32 %r0, [s];
    bra END;
    PRODUCE: st.shared.u32 [s], 5; bar.arrive 1, 64; END:"""
    out, _ = per_thread(body, 128)
    assert out.tolist() == [0] * 32 + [5] * 32 + [9] * 64


def test_warps_beyond_a_barriers_count_are_of_its_next_phase():
    """All four come at once. The barrier counts two: two complete it, the others the next phase;
    where one has arrived before, one of them is left and waits for good."""
    body = "shr.u32 %r1, %t, 5; setp.eq.u32 %q0, %r1, 3; {} bar.sync 1, 64; mov.u32 %r0, 7;"
    out, _ = per_thread(body.format(""), 128)
    assert (out == 7).all()
    with pytest.raises(Deadlock, match="waits at barrier 1"):
        per_thread(body.format("@%q0 bar.arrive 1, 64;"), 128)


def test_barrier_reductions():
    body = """setp.lt.u32 %q0, %t, 40; bar.red.popc.u32 %r1, 0, %q0; bar.red.and.pred %q1, 0, %q0;
    bar.red.or.pred %q2, 0, %q0;
    selp.u32 %r2, 1000, 0, %q1; selp.u32 %r3, 2000, 0, %q2; add.u32 %r0, %r1, %r2;
    add.u32 %r0, %r0, %r3;"""
    out, _ = per_thread(body)
    assert (out == 2040).all()


def test_lanes_that_diverged_meet_at_a_barrier():
    """A compiler may give both arms of a branch the barrier behind it: bar.sync itself waits for
    all lanes of the warp.

    Lane 0 goes around, and returns before the post-dominator END, just in front of the barrier.
    """
    body = """.shared .u32 s; setp.eq.u32 %q0, %t, 0; @%q0 bra ZERO; setp.eq.u32 %q1, %t, 99;
    @%q1 bra END;
    MEET: bar.sync 0; ld.shared.u32 %r0, [s]; bra END;
    ZERO: st.shared.u32 [s], 4; bra MEET;
    END:"""
    for seed in (None, 1, 2, 3):
        out, _ = per_thread(body, seed=seed)
        assert (out == 4).all()


@pytest.mark.parametrize(
    "collective",
    [
        "bar.sync 0;",
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3},"
            " {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%f0,%f1,%f2,%f3};"
        ),
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1,%r2,%r3,%r4}, [s];",
        "shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;",
        "vote.sync.ballot.b32 %r1, %q1, -1;",
        "bar.warp.sync -1;",
    ],
)
def test_a_collective_without_all_its_lanes_names_who_came(collective):
    """The lane that is missing waits elsewhere: had it exited, some would not wait for it."""
    error = fails(
        DivergentCollective,
        f"""{FILL} mov.u32 %r0, %ctaid.x; setp.eq.u32 %q0, %t, 40; @%q0 bra END;
    {collective} // BAD
    END: bar.sync 15;""",
        grid=2,
        block=64,
    )
    assert (
        error.block == (0, 0, 0)
        and error.warp == 1
        and error.lanes == tuple(i for i in range(32) if i != 8)
    )
    assert "without lane 8" in str(error)


def test_a_guard_that_splits_a_warp_at_a_barrier():
    error = fails(DivergentCollective, "setp.lt.u32 %q0, %t, 5;\n@%q0 bar.sync 0; // BAD")
    assert error.lanes == (0, 1, 2, 3, 4) and "without lanes 5-31" in str(error)


def test_a_guard_that_keeps_members_from_a_shuffle():
    error = fails(
        DivergentCollective,
        "setp.ne.u32 %q0, %t, 7;\n@%q0 shfl.sync.idx.b32 %r1, %r2, 0, 31, -1; // BAD",
    )
    assert error.lanes == (7,) and "missing are" in str(error)


def test_mma_in_a_partial_warp():
    error = fails(
        DivergentCollective,
        f"{FILL}\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r1}}, [s]; // BAD",
        block=48,
    )
    assert error.warp == 1 and "needs all 32 lanes" in str(error)


# block b waits until the lock says b, in reverse order of their numbers, then passes it on
CHAIN = """
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; sub.u32 %r3, %r2, %r1; sub.u32 %r3, %r3, 1;
setp.ne.u32 %q0, %t, 0; @%q0 bra READY;
SPIN: ld.acquire.gpu.global.u32 %r4, [%p0]; setp.ne.u32 %q1, %r4, %r3; @%q1 bra SPIN;
READY: bar.sync 0;
@%q0 bra END; mad.wide.u32 %rd0, %r4, 4, %p1; st.global.u32 [%rd0], %r1; fence.acq_rel.gpu;
red.release.gpu.global.add.u32 [%p0], 1;
END:"""


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
def test_blocks_hand_a_lock_along_a_chain_in_reverse_order(seed):
    lock, order = np.zeros(1, np.uint32), np.zeros(20, np.uint32)
    launch(CHAIN, {"lock": lock, "order": order}, grid=20, block=64, seed=seed)
    assert lock[0] == 20 and order.tolist() == list(range(19, -1, -1))


def test_a_chain_that_needs_more_resident_blocks_than_there_are_is_a_deadlock():
    lock, order = np.zeros(1, np.uint32), np.zeros(20, np.uint32)
    with pytest.raises(Deadlock) as caught:
        launch(CHAIN, {"lock": lock, "order": order}, grid=20, block=64, resident_blocks=19)
    message = str(caught.value)
    assert (
        "only repeat themselves" in message
        and "waits at barrier 0" in message
        and "bar.sync 0;" in message
    )
    assert "1 blocks have not started" in message and "block (" in message


def test_limited_residency_runs_all_blocks():
    out = np.zeros(10, np.uint32)
    body = (
        "mov.u32 %r0, %ctaid.x; mov.u32 %r1, %smid; mad.wide.u32 %rd0, %r0, 4, %p0; add.u32 %r1,"
        " %r1, 1; st.global.u32 [%rd0], %r1;"
    )
    result = launch(body, {"out": out}, grid=10, resident_blocks=3)
    assert set(out.tolist()) == {1, 2, 3} and result.resident_blocks == 3 and result.blocks == 10


def test_a_lane_may_wait_for_another_lane_of_its_warp():
    """Lane 0 spins on a flag that lane 5 sets behind the branch: paths of one warp progress
    independently."""
    flag = np.zeros(1, np.uint32)
    body = """setp.ne.u32 %q0, %t, 0; @%q0 bra OTHERS; SPIN: ld.volatile.global.u32 %r1, [%p0];
    setp.eq.u32 %q1, %r1, 0; @%q1 bra SPIN; bra END;
    OTHERS: setp.eq.u32 %q2, %t, 5; @%q2 st.volatile.global.u32 [%p0], 1; END:"""
    launch(body, {"flag": flag})


def test_a_lock_per_lane_with_compare_and_swap():
    """All 64 lanes take one lock in turn: no two are inside at a time."""
    state = np.zeros(2, np.uint32)
    body = """mov.u32 %r5, 0; TRY: atom.global.cas.b32 %r1, [%p0], 0, 1; setp.ne.u32 %q0, %r1, 0;
    @%q0 bra NEXT;
    ld.volatile.global.u32 %r2, [%p0+4]; add.u32 %r2, %r2, 1; st.volatile.global.u32 [%p0+4], %r2;
    atom.global.exch.b32 %r3, [%p0], 0;
    mov.u32 %r5, 1; NEXT: setp.eq.u32 %q1, %r5, 0; @%q1 bra TRY;"""
    launch(body, {"state": state}, block=64)
    assert state.tolist() == [0, 64]


def test_spinning_for_ever_is_a_deadlock_that_names_the_loop():
    body = "SPIN: ld.volatile.global.u32 %r0, [%p0];\nsetp.eq.u32 %q0, %r0, 0;\n@%q0 bra SPIN;"
    with pytest.raises(Deadlock, match="only repeat themselves") as caught:
        launch(body, {"flag": np.zeros(1, np.uint32)}, grid=3, block=64)
    assert "ld.volatile.global.u32 %r0" in str(caught.value) and caught.value.warp is not None


def test_a_failing_compare_and_swap_is_not_progress():
    body = "SPIN: atom.global.cas.b32 %r1, [%p0], 1, 0; setp.ne.u32 %q0, %r1, 1; @%q0 bra SPIN;"
    with pytest.raises(Deadlock, match="only repeat themselves"):
        launch(body, {"lock": np.zeros(1, np.uint32)})


def test_a_long_computation_without_stores_is_no_deadlock():
    out, _ = per_thread(
        "mov.u32 %r1, 0; L: mad.lo.u32 %r0, %r0, 3, %t; add.u32 %r1, %r1, 1; setp.lt.u32 %q0, %r1,"
        " 5000; @%q0 bra L;"
    )
    value = np.zeros(64, np.uint32)
    for _ in range(5000):
        value = value * np.uint32(3) + np.arange(64, dtype=np.uint32)
    assert np.array_equal(out, value)


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_spinning_while_another_block_computes_is_no_deadlock(seed):
    """Block 1 computes for long without a store, then lets block 0 go; the random order may run
    block 0 many times in a row."""
    body = """mov.u32 %r0, %ctaid.x; setp.eq.u32 %q0, %r0, 0; @%q0 bra SPIN; mov.u32 %r1, 0;
    WORK: add.u32 %r1, %r1, 1; setp.lt.u32 %q1, %r1, 1500; @%q1 bra WORK; st.global.u32 [%p0], 1;
    bra END;
    SPIN: ld.acquire.gpu.global.u32 %r2, [%p0]; setp.eq.u32 %q2, %r2, 0; @%q2 bra SPIN; END:"""
    launch(body, {"flag": np.zeros(1, np.uint32)}, grid=2, seed=seed)


def test_a_barrier_that_one_warp_never_reaches():
    """Warps that exit do not hold a barrier up; one that waits at another barrier does."""
    per_thread("setp.ge.u32 %q0, %t, 32; @%q0 ret; bar.sync 0;")
    body = (
        "setp.ge.u32 %q0, %t, 32; @%q0 bra OTHER;\nbar.sync 1, 64;\nbra END;\nOTHER: bar.sync 2,"
        " 64;\nEND:"
    )
    with pytest.raises(Deadlock, match="no warp can go on") as caught:
        per_thread(body)
    assert "warp 0 waits at barrier 1" in str(caught.value) and "warp 1 waits at barrier 2" in str(
        caught.value
    )


def test_the_instruction_budget_ends_a_run():
    body = "L: add.u32 %r0, %r0, 1; bra L;"
    with pytest.raises(Deadlock, match="budget of 1000 warp instructions"):
        launch(body, {"x": np.zeros(1)}, max_instructions=1000)


def test_trap_names_its_place():
    error = fails(Trap, "setp.eq.u32 %q0, %t, 33;\n@%q0 trap; // BAD", block=64)
    assert error.warp == 1 and error.lanes == (1,)


def test_opcode_counts_are_per_warp():
    _, result = per_thread(
        "mov.u32 %r1, 3; L: add.u32 %r0, %r0, 1; sub.u32 %r1, %r1, 1; setp.ne.u32 %q0, %r1, 0; @%q0"
        " bra L;",
        96,
    )
    assert result.opcodes["bra"] == 9 and result.opcodes["sub"] == 9 and result.opcodes["st"] == 3
    assert result.instructions == sum(result.opcodes.values())
    assert result.steps < result.instructions


def test_counts_do_not_depend_on_the_interleaving():
    lock, order = np.zeros(1, np.uint32), np.zeros(4, np.uint32)
    counts = set()
    for seed in (None, 1, 2):
        body = (
            "mov.u32 %r1, 3; L: add.u32 %r0, %r0, 1; sub.u32 %r1, %r1, 1; setp.ne.u32 %q0, %r1, 0;"
            " @%q0 bra L; bar.sync 0;"
        )
        result = launch(body, {"lock": lock, "order": order}, grid=4, block=64, seed=seed)
        counts.add((result.instructions, tuple(sorted(result.opcodes.items()))))
    assert len(counts) == 1


def test_observer_sees_every_instruction_with_its_lanes():
    seen = []
    launch(
        "setp.eq.u32 %q0, %t, 3; @%q0 mov.u32 %r0, 1;",
        {"x": np.zeros(1)},
        listener=Listener(before=lambda ins, lanes: seen.append((ins.root, lanes.shape))),
    )
    assert seen == [
        ("ld", (1, 32)),
        ("mov", (1, 32)),
        ("setp", (1, 32)),
        ("mov", (1, 32)),
        ("ret", (1, 32)),
    ]


@pytest.mark.parametrize("number", ["16", "%r0"])
def test_there_are_sixteen_barriers(number):
    """Whoever comes: the whole block at once, or a part of it first."""
    error = fails(MachineError, f"mov.u32 %r0, 16;\n bar.sync {number}; // BAD", block=64)
    assert "barrier 16 does not exist, there are 16" in str(error)
