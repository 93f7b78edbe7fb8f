"""cp.async: data appear when their thread has waited for their group, and touching them earlier is
an error."""

import numpy as np
import pytest

from numba_marlin.emulator import Misaligned, OutOfBounds, PendingCopyRead
from tests.emulator.ptx_cases import fails, launch, words

# Lane t: %r0 = its 16 bytes of shared memory, %rd0 = its 16 bytes of x, %rd1 = its 16 bytes of y.
SETUP = """.shared .align 16 .b8 s[4096]; mov.u32 %r1, s; mad.lo.u32 %r0, %t, 16, %r1;
mad.wide.u32 %rd0, %t, 16, %p0; mad.wide.u32 %rd1, %t, 16, %p1;
"""
COPY = "cp.async.cg.shared.global [%r0], [%rd0], 16;"
READ = "ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r0];"
WRITE = "st.global.v4.u32 [%rd1], {%r4, %r5, %r6, %r7};"


def arrays():
    return {"x": words(128), "y": np.zeros(128, np.uint32)}


@pytest.mark.parametrize(
    "wait", ["cp.async.commit_group; cp.async.wait_group 0;", "cp.async.wait_all;"]
)
@pytest.mark.parametrize("hints", ["cg", "cg.L2", "ca"])
def test_waited_copies_arrive(wait, hints):
    copy = {
        "cg": COPY,
        "cg.L2": "cp.async.cg.shared.global.L2::cache_hint [%r0], [%rd0], 16, %rd9;",
        "ca": (
            "cp.async.ca.shared::cta.global.L2::128B [%r0], [%rd0], 8; cp.async.ca.shared.global"
            " [%r0+8], [%rd0+8], 4; cp.async.ca.shared.global [%r0+12], [%rd0+12], 4;"
        ),
    }[hints]
    a = arrays()
    launch(
        f"{SETUP} createpolicy.fractional.L2::evict_first.b64 %rd9, 1.0; {copy} {wait} {READ}"
        f" {WRITE}",
        a,
    )
    assert np.array_equal(a["x"], a["y"])


def test_reading_before_the_wait_is_an_error_that_names_both_instructions():
    error = fails(PendingCopyRead, f"{SETUP}{COPY} cp.async.commit_group;\n{READ} // BAD", arrays())
    assert "s[byte 0]" in str(error) and COPY in str(error) and "not waited for" in str(error)
    assert error.lanes == tuple(range(32))


def test_waiting_for_an_older_group_leaves_the_younger_in_flight():
    stages = "".join(
        f"cp.async.cg.shared.global [%r0+{512 * i}], [%rd0], 16; cp.async.commit_group;\n"
        for i in range(4)
    )
    read = "ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r0+{}];"
    a = arrays()
    launch(f"{SETUP}{stages} cp.async.wait_group 2; {read.format(0)} {read.format(512)} {WRITE}", a)
    assert np.array_equal(a["x"], a["y"])
    error = fails(
        PendingCopyRead,
        f"{SETUP}{stages} cp.async.wait_group 2;\n{read.format(1024)} // BAD",
        arrays(),
    )
    assert "s[byte 1024]" in str(error)


def test_empty_groups_count():
    body = (
        f"{SETUP}{COPY} cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 1; {READ}"
        f" {WRITE}"
    )
    a = arrays()
    launch(body, a)
    assert np.array_equal(a["x"], a["y"])


def test_uncommitted_copies_are_not_waited_for():
    fails(
        PendingCopyRead,
        f"{SETUP} cp.async.commit_group; {COPY} cp.async.wait_group 0;\n{READ} // BAD",
        arrays(),
    )


def test_another_thread_must_not_read_before_the_issuing_one_has_waited():
    """Lane 0 copies for lane 1 and does not wait; lane 1 waiting for its own groups does not
    help."""
    body = f"""{SETUP} setp.eq.u32 %q0, %t, 0; @%q0 cp.async.cg.shared.global [%r1+16], [%p0], 16;
    @%q0 cp.async.commit_group; setp.eq.u32 %q1, %t, 1; @%q1 cp.async.wait_all; bar.warp.sync -1;
    @%q1 {READ} // BAD"""
    error = fails(PendingCopyRead, body, arrays())
    assert error.lanes == (1,) and "issued by warp 0, lane 0" in str(error)


def test_after_wait_and_barrier_everybody_may_read():
    """Each thread reads what its mirror image in another warp copied."""
    a = {"x": words(512), "y": np.zeros(512, np.uint32)}
    body = f"""{SETUP}{COPY} cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
    xor.b32 %r2, %t, 127; mad.lo.u32 %r0, %r2, 16, %r1; {READ} {WRITE}"""
    launch(body, a, block=128)
    assert np.array_equal(a["y"].reshape(-1, 4), a["x"].reshape(-1, 4)[::-1])


def test_writing_to_bytes_in_flight_and_copying_twice_are_errors():
    assert "in flight" in str(
        fails(PendingCopyRead, f"{SETUP}{COPY}\nst.shared.u32 [%r0+4], %t; // BAD", arrays())
    )
    fails(
        PendingCopyRead,
        f"{SETUP}{COPY}\ncp.async.ca.shared.global [%r0+8], [%rd0], 8; // BAD",
        arrays(),
    )
    error = fails(
        PendingCopyRead, f"{SETUP}\ncp.async.cg.shared.global [%r1], [%rd0], 16; // BAD", arrays()
    )
    assert "several lanes" in str(error)


def test_the_source_is_read_when_the_copy_lands():
    """The ISA allows any moment until the wait; this machine takes the last, so that reusing a
    source too soon shows."""
    a = arrays()
    launch(
        f"{SETUP}{COPY} st.global.v4.u32 [%rd0], {{%t, %t, %t, %t}}; cp.async.wait_all; {READ}"
        f" {WRITE}",
        a,
    )
    assert np.array_equal(a["y"], np.repeat(np.arange(32), 4))


def test_src_size_fills_with_zeros_and_does_not_read_beyond():
    a = {"x": words(10), "y": np.ones(128, np.uint32)}
    body = f"""{SETUP} mul.lo.u32 %r2, %t, 16; mov.u32 %r3, 40; max.u32 %r2, %r2, 0;
    sub.s32 %r2, %r3, %r2; max.s32 %r2, %r2, 0;
    min.s32 %r2, %r2, 16; cp.async.cg.shared.global [%r0], [%rd0], 16, %r2; cp.async.wait_all;
    {READ} {WRITE}"""
    launch(body, a)
    assert np.array_equal(a["y"][:10], a["x"]) and not a["y"][10:].any()


def test_guarded_copies_leave_the_others_alone():
    a = arrays()
    body = f"""{SETUP} st.shared.v4.u32 [%r0], {{%t, %t, %t, %t}}; {{ .reg .pred p;
    setp.lt.u32 p, %t, 7; @p {COPY} }}
    cp.async.wait_all; {READ} {WRITE}"""
    launch(body, a)
    assert np.array_equal(a["y"][:28], a["x"][:28]) and np.array_equal(
        a["y"][28:], np.repeat(np.arange(7, 32), 4)
    )


def test_addresses_of_copies_are_checked_at_their_own_line():
    fails(Misaligned, f"{SETUP}\ncp.async.cg.shared.global [%r0+8], [%rd0], 16; // BAD", arrays())
    fails(
        OutOfBounds, f"{SETUP}\ncp.async.cg.shared.global [%r0+4096], [%rd0], 16; // BAD", arrays()
    )
    error = fails(
        OutOfBounds, f"{SETUP}\ncp.async.cg.shared.global [%r0], [%rd0+64], 16; // BAD", arrays()
    )
    assert "x[128]" in str(error) and error.lanes == (28, 29, 30, 31)
    fails(Misaligned, f"{SETUP}\ncp.async.cg.shared.global [%r0], [%rd0+8], 16; // BAD", arrays())


def test_many_groups_in_flight_in_threads_at_different_places():
    """Warp w issues 40 + w copies in a loop with a wait behind by three: queues grow, wrap and
    differ between threads."""
    count = 64
    a = {"x": words(4 * 256), "y": np.zeros(4 * 32 * 4, np.uint32)}
    body = f""".shared .align 16 .b8 s[8192]; shr.u32 %r20, %t, 5; add.u32 %r21, %r20, 40;
    and.b32 %r22, %t, 31;
    mov.u32 %r1, s; mad.lo.u32 %r1, %t, 64, %r1; mov.u32 %r2, 0; mov.u32 %r10, 0;
    mad.wide.u32 %rd0, %r20, {16 * count}, %p0;
    LOOP:
    and.b32 %r3, %r2, 3; mad.lo.u32 %r3, %r3, 16, %r1; cp.async.cg.shared.global [%r3], [%rd0], 16;
    cp.async.commit_group;
    add.u64 %rd0, %rd0, 16; cp.async.wait_group 3;
    setp.lt.u32 %q0, %r2, 3; @%q0 bra NEXT;
    add.u32 %r4, %r2, 1; and.b32 %r4, %r4, 3; mad.lo.u32 %r4, %r4, 16, %r1;
    ld.shared.u32 %r5, [%r4]; add.u32 %r10, %r10, %r5;
    NEXT: add.u32 %r2, %r2, 1; setp.lt.u32 %q1, %r2, %r21; @%q1 bra LOOP;
    mad.wide.u32 %rd1, %t, 4, %p1; st.global.u32 [%rd1], %r10;"""
    launch(body, a, block=128)
    first = a["x"].reshape(4, count, 4)[:, :, 0].astype(np.uint64)
    for warp in range(4):
        assert (
            a["y"][32 * warp : 32 * warp + 32] == first[warp, : 40 + warp - 3].sum() % 2**32
        ).all()


def test_queues_grow_while_copies_are_in_flight():
    """10 copies land, so that the queue's start has moved, then 40 are in flight at once, then the
    rest of them land."""
    x, y = words(64 * 4), np.zeros(50 * 4, np.uint32)
    one = "cp.async.ca.shared.global [%r1+{0}], [%p0+{0}], 16;"
    body = ".shared .align 16 .b8 s[1024]; setp.ne.u32 %q0, %t, 0; @%q0 ret; mov.u32 %r1, s;"
    body += "".join(one.format(16 * i) for i in range(10)) + "cp.async.wait_all;"
    body += (
        "".join(one.format(16 * i) + "cp.async.commit_group;" for i in range(10, 50))
        + "cp.async.wait_group 0;"
    )
    body += "".join(
        f"ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r1+{16 * i}]; st.global.v4.u32 [%p1+{16 * i}],"
        " {%r4, %r5, %r6, %r7};"
        for i in range(50)
    )
    launch(body, {"x": x, "y": y})
    assert np.array_equal(y, x[:200])
