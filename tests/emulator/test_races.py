"""Contract under test: with ``races=True`` the machine finds every pair of accesses that nothing
orders, whatever order they came in, says what is missing, and finds nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin import testing
from numba_marlin.emulator import Race, Schedule
from tests.emulator.ptx_cases import frame, snippet
from tests.emulator.race_programs import HURRY, fine, race, run

# Thread t writes word t of s; after {}, it reads what thread 63 - t, of the other warp, wrote.
EXCHANGE = """.shared .align 16 .b8 s[256]; mov.u32 %r1, s; mad.lo.u32 %r1, %t, 4, %r1;
st.shared.u32 [%r1], %t;
{}
mov.u32 %r2, s; mad.lo.u32 %r3, %t, -4, %r2; ld.shared.u32 %r4, [%r3+252];"""


def test_a_barrier_orders_a_block():
    fine(EXCHANGE.format("bar.sync 0;"), block=64)
    fine(EXCHANGE.format("bar.sync 3, 64;"), block=64)
    fine(EXCHANGE.format("setp.eq.u32 %q0, %t, 0; bar.red.popc.u32 %r9, 0, %q0;"), block=64)


@pytest.mark.parametrize("instead", (HURRY, "fence.acq_rel.cta;", "bar.warp.sync -1;"))
def test_without_one_it_is_a_race_or_not_even_written(instead):
    body = EXCHANGE.format(instead).replace(
        ".shared .align 16 .b8 s[256];",
        ".shared .align 16 .b8 s[256]; mov.u32 %r8, s; mad.lo.u32 %r8, %t, 4, %r8; st.shared.u32"
        " [%r8], 0; bar.sync 0;",
    )
    assert "warp" in str(race(body, "missing-barrier", block=64))


def test_a_barrier_of_others_orders_nothing():
    """Warps 0 and 1 meet at barrier 1, warps 2 and 3 at barrier 2."""
    body = """.shared .align 16 .b8 s[16]; mov.u32 %r1, s; setp.eq.u32 %q0, %t, 0;
    @%q0 st.shared.u32 [%r1], 7; shr.u32 %r2, %t, 6; add.u32 %r2, %r2, 1; bar.sync %r2, 64;
    setp.eq.u32 %q1, %t, {}; mov.u32 %r3, 1; @%q1 st.shared.u32 [%r1], %r3;"""
    fine(body.format(33), block=128)
    assert race(body.format(65), "missing-barrier", block=128).warp in (0, 2)


def test_who_only_arrives_releases_and_does_not_acquire():
    ends = (
        "setp.lt.u32 %q0, %t, 32; mov.u32 %r1, s; @%q0 bra FIRST; {1} bar.sync 1, 64; {2} bra END;"
        " FIRST: {0} bar.arrive 1, 64; {3} END:"
    )
    read, other = (
        "ld.shared.u32 %r2, [%r1];",
        "setp.eq.u32 %q1, %t, {}; @%q1 st.shared.u32 [%r1], 5;",
    )
    space = ".shared .align 16 .b8 s[16];"
    fine(space + ends.format(other.format(0), "", read, ""), block=64)
    race(
        space + ends.format("", other.format(32), "", other.format(0)), "missing-barrier", block=64
    )


def test_lanes_of_a_warp_are_ordered_by_its_barrier_alone():
    body = """.shared .align 16 .b8 s[128]; mov.u32 %r1, s; mad.lo.u32 %r1, %t, 4, %r1;
    st.shared.u32 [%r1], %t; {}
    xor.b32 %r2, %t, 1; mov.u32 %r3, s; mad.lo.u32 %r3, %r2, 4, %r3; ld.shared.u32 %r4, [%r3];"""
    fine(body.format("bar.warp.sync -1;"))
    for instead in (
        "",
        "shfl.sync.idx.b32 %r5, %t, 0, 31, -1;",
        "vote.sync.any.pred %q1, %q2, -1;",
        "fence.acq_rel.gpu;",
    ):
        error = race(body.format(instead), "missing-warp-sync")
        assert error.warp == 0 and error.first_thread[2] == error.lanes[0] ^ 1


def test_bytes_side_by_side_are_no_race():
    body = (
        ".shared .align 16 .b8 s[64]; mov.u32 %r1, s; add.u32 %r1, %r1, %t; cvt.u16.u32 %h1, %t;"
        " st.shared.u8 [%r1], %h1; {} ld.shared.u8 %h2, [%r1];"
    )
    fine(body.format(""), block=64)
    fine(body.format(""), {"x": np.zeros(1, np.uint8)}, block=64)


# Block 0 writes data and sets a flag; block 1 waits for the flag and reads. One thread each.
HAND_OVER = """mov.u32 %r0, %ctaid.x; setp.ne.u32 %q0, %r0, 0; setp.ne.u32 %q5, %t, 0; @%q5 bra END;
@%q0 bra READ;
st.global.u32 [%p0], 42; {release} bra END;
READ: {acquire} setp.eq.u32 %q1, %r1, 0; @%q1 bra READ; {after} ld.global.u32 %r2, [%p0];
st.global.u32 [%p0+4], %r2; END:"""


RELEASE, ACQUIRE = snippet("st_release_gpu", "%p1", "1"), snippet("ld_acquire_gpu", "%r1", "%p1")


RELAXED_WRITE, RELAXED_READ = (
    "st.relaxed.gpu.global.u32 [%p1], 1;",
    "ld.relaxed.gpu.global.u32 %r1, [%p1];",
)


FENCE = snippet("fence_acq_rel_gpu")


def hand_over(release=RELEASE, acquire=ACQUIRE, after=""):
    return HAND_OVER.format(release=release, acquire=acquire, after=after), {
        "data": np.zeros(2, np.uint32),
        "flag": np.zeros(1, np.uint32),
    }


@pytest.mark.parametrize(
    "release",
    (
        RELEASE,
        FENCE + RELAXED_WRITE,
        "membar.gl; st.volatile.global.u32 [%p1], 1;",
        snippet("red_release_gpu_add", "%p1", "1"),
        "atom.acq_rel.gpu.global.add.u32 %r5, [%p1], 1;",
        FENCE + snippet("red_relaxed_gpu_add", "%p1", "1"),
    ),
)
@pytest.mark.parametrize(
    "acquire, after",
    (
        (ACQUIRE, ""),
        (RELAXED_READ, FENCE),
        ("ld.volatile.global.u32 %r1, [%p1];", "membar.gl;"),
        ("atom.acquire.gpu.global.add.u32 %r1, [%p1], 0;", ""),
    ),
)
def test_a_release_and_an_acquire_hand_over(release, acquire, after):
    body, arrays = hand_over(release, acquire, after)
    fine(body, arrays, grid=2)


@pytest.mark.parametrize(
    "release, acquire, after, kind",
    (
        (RELAXED_WRITE, ACQUIRE, "", "missing-release"),
        (RELAXED_WRITE + FENCE, ACQUIRE, "", "missing-release"),
        (RELEASE, RELAXED_READ, "", "missing-acquire"),
        (snippet("red_relaxed_gpu_add", "%p1", "1"), ACQUIRE, "", "missing-release"),
        (RELEASE.replace("gpu", "cta"), ACQUIRE, "", "narrow-scope"),
        (RELEASE, ACQUIRE.replace("gpu", "cta"), "", "narrow-scope"),
        (RELEASE, RELAXED_READ, FENCE.replace("gpu", "cta"), "missing-acquire"),
        (FENCE.replace("gpu", "cta") + RELAXED_WRITE, ACQUIRE, "", "narrow-scope"),
    ),
)
def test_half_of_it_does_not(release, acquire, after, kind):
    body, arrays = hand_over(release, acquire, after)
    error = race(body, kind, arrays, grid=2)
    assert "data[0]" in str(error) or "flag[0]" in str(error)


def test_what_a_barrier_brought_together_one_thread_releases():
    """All threads of block 0 write, a barrier, one releases; in block 1 one acquires, a barrier,
    all read. Each barrier is needed."""
    body = (
        """mov.u32 %r0, %ctaid.x; mad.wide.u32 %rd1, %t, 4, %p0; setp.ne.u32 %q0, %r0, 0;
    setp.ne.u32 %q1, %t, 0; @%q0 bra READ;
    st.global.u32 [%rd1], %t; {} @%q1 bra END; """
        + snippet("red_release_gpu_add", "%p1", "1")
        + """ bra END;
    READ: @%q1 bra ALL; AGAIN: """
        + ACQUIRE
        + """ setp.eq.u32 %q2, %r1, 0; @%q2 bra AGAIN; ALL: {} ld.global.u32 %r2, [%rd1]; END:"""
    )
    arrays = {"data": np.zeros(64, np.uint32), "flag": np.zeros(1, np.uint32)}
    fine(body.format("bar.sync 0;", "bar.sync 0;"), arrays, grid=2, block=64)
    late = (None, Schedule(4, "one block ahead"))
    for schedule in late:
        for barriers in (("", "bar.sync 0;"), ("bar.sync 0;", "")):
            with pytest.raises(Race):
                run(
                    body.format(*barriers),
                    {name: array.copy() for name, array in arrays.items()},
                    schedule,
                    grid=2,
                    block=64,
                )


def test_atomics_do_not_race_with_each_other_but_with_ordinary_accesses():
    body = "red.relaxed.{}.global.add.u32 [%p0], 1; {}"
    fine(body.format("gpu", ""), {"x": np.zeros(2, np.uint32)}, grid=3, block=64)
    race(body.format("cta", ""), "narrow-scope", {"x": np.zeros(2, np.uint32)}, grid=3, block=64)
    race(
        body.format("gpu", "ld.global.u32 %r1, [%p0];"),
        "missing-release",
        {"x": np.zeros(2, np.uint32)},
        grid=3,
        block=1,
    )
    fine(
        body.format("gpu", "ld.relaxed.gpu.global.u32 %r1, [%p0];"),
        {"x": np.zeros(2, np.uint32)},
        grid=3,
        block=1,
    )


def test_an_atomic_of_the_lane_that_was_there_before_hides_nothing():
    """Thread 0 writes; then all lanes add, thread 0 first, which orders nothing for the others."""
    body = "setp.eq.u32 %q0, %t, 0; @%q0 st.{0}.u32 [{1}], 0; atom.{2}.{0}.add.u32 %r1, [{1}], 1;"
    for order in ("relaxed.gpu", "acq_rel.gpu"):
        for space, place in (("global", "%p0"), ("shared", "s")):
            text = ".shared .u32 s; " + body.format(space, place, order)
            race(text, "missing-warp-sync", {"x": np.zeros(1, np.uint32)})
    fine(
        ".shared .u32 s; " + body.format("shared", "s", "relaxed.cta").replace(" atom", SYNC),
        {"x": np.zeros(1, np.uint32)},
    )


SYNC = " bar.warp.sync -1; atom"


@pytest.mark.parametrize(
    "statement", ("st.relaxed.{}.global.u32 [%p0], 1;", "red.relaxed.{}.global.add.u32 [%p0], 1;")
)
def test_blocks_that_meet_in_one_step_need_a_scope_that_includes_both(statement):
    for scope, options in (("cta", {"grid": 2}), ("cluster", {"grid": 4, "cluster": 2})):
        x = {"x": np.zeros(1, np.uint32)}
        race(statement.format(scope), "narrow-scope", x, block=1, **options)
    x = {"x": np.zeros(1, np.uint32)}
    fine(statement.format("gpu"), x, block=1, grid=4)
    fine(statement.format("cluster"), x, block=1, grid=2, cluster=2)
    fine(statement.format("cta"), x, block=64)


def test_an_atomic_that_changes_nothing_is_no_benign_race():
    body = "setp.eq.u32 %q0, %t, 0; @%q0 st.global.u32 [%p0], 0; setp.eq.u32 %q1, %t, 1;"
    body += "@%q1 red.relaxed.gpu.global.add.u32 [%p0], 0;"
    error = race(body, "missing-warp-sync", {"x": np.zeros(1, np.uint32)})
    assert "benign" not in str(error)


def test_a_block_in_the_place_of_one_that_ended_knows_nothing_of_it():
    body = "setp.eq.u32 %q0, %t, 0; @%q0 st.global.u32 [%p0], 1;"
    error = race(body, "missing-release", {"x": np.zeros(1, np.uint32)}, grid=2, resident_blocks=1)
    assert {error.block, error.first_thread[0]} == {(0, 0, 0), (1, 0, 0)}


def test_a_report_names_both_ends_and_the_lines_they_come_from():
    body = """.file 1 "kernel.py"
    .shared .align 16 .b8 tile[64]; mov.u32 %r1, tile; setp.eq.u32 %q0, %t, 5;
    setp.eq.u32 %q1, %t, 40;
    .loc 1 17 0
    @%q0 st.shared.u32 [%r1+8], %t; // FIRST
    .loc 1 23 0
    @%q1 ld.shared.u32 %r2, [%r1+8]; // SECOND"""
    error, text = (
        race(body, "missing-barrier", block=64, schedules=(None,)),
        frame(body, 0).splitlines(),
    )
    line = {
        name: 1 + next(i for i, each in enumerate(text) if name in each)
        for name in ("FIRST", "SECOND")
    }
    assert (error.line, error.first.line) == (line["SECOND"], line["FIRST"])
    assert (error.block, error.warp, error.lanes) == (
        (0, 0, 0),
        1,
        (8,),
    ) and error.first_thread == ((0, 0, 0), 0, 5)
    for words in (
        "missing-barrier",
        "this read of tile[byte 8] (shared address 0x408)",
        "a write of it",
        f"PTX line {line['FIRST']}",
        "kernel.py:17",
        "kernel.py:23",
        "bar.sync",
        "warp 0, lane 5",
        "warp 1, lane 8",
        "has released nothing since",
    ):
        assert words in str(error), words


def test_every_error_has_a_name_that_does_not_change():
    from numba_marlin.emulator import errors

    assert (
        errors.PendingCopyRead("x").kind == "pending-copy-read"
        and errors.Deadlock("x").kind == "deadlock"
    )


WARPS, WORDS = 3, 3


ACTIONS = st.tuples(st.sampled_from("rw"), st.integers(0, WARPS - 1), st.integers(0, WORDS - 1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ACTIONS, max_size=5), min_size=1, max_size=4), testing.schedules())
def test_programs_of_reads_writes_and_barriers_race_exactly_if_two_warps_conflict_between_barriers(
    phases, schedule
):
    conflict = any(
        a[2] == b[2] and a[1] != b[1] and "w" in a[0] + b[0]
        for phase in phases
        for a in phase
        for b in phase
    )
    body = (
        "mov.u32 %r1, s; setp.ne.u32 %q0, %t, 0; @!%q0 st.shared.v4.u32 [%r1], {%t, %t, %t, %t};"
        " bar.sync 0;"
    )
    for phase in phases:
        for what, warp, word in phase:
            access = (
                f"st.shared.u32 [%r1+{4 * word}], %t;"
                if what == "w"
                else f"ld.shared.u32 %r2, [%r1+{4 * word}];"
            )
            body += f"setp.eq.u32 %q1, %t, {32 * warp}; @%q1 {access}\n"
        body += "bar.sync 0;\n"
    try:
        run(".shared .align 16 .b8 s[16];" + body, seed=schedule, block=32 * WARPS)
        found = False
    except Race as error:
        found = error.kind == "missing-barrier"
    assert found == conflict
