"""Contract under test: a strong access hides no weaker one of before. Strong accesses need not come
after each other, so who does not race with the last one may race with what that one came after."""

import numpy as np
import pytest

from tests.emulator.race_programs import HURRY, fine, race

# Thread 0 of every block; block 0 does {first}, the others wait a while, all do {then}.
BLOCKS = """mov.u32 %r0, %ctaid.x; setp.ne.u32 %q0, %r0, 0; setp.ne.u32 %q5, %t, 0; @%q5 exit;
@%q0 bra LATE; {first} bra ALL; LATE: """
BLOCKS += HURRY + " ALL: {then}"
ADD, WEAK = "red.relaxed.gpu.global.add.u32 [%p0], 1;", "st.global.u32 [%p0], 0;"
READ = "ld.global.u32 %r1, [%p0];"
SPIN = "ld.acquire.gpu.global.u32 %r2, [%p1]; setp.eq.u32 %q1, %r2, 0;"
HAND = "red.release.gpu.global.add.u32 [%p1], 1;"


def arrays():
    return {"x": np.zeros(2, np.uint32), "flag": np.zeros(1, np.uint32)}


@pytest.mark.parametrize(
    "first, then",
    [
        (WEAK, ADD),
        (WEAK + "bar.warp.sync 1;", ADD + "bar.warp.sync 1;" + ADD),
        (WEAK + "bar.sync 0;", "atom.global.exch.b32 %r3, [%p0], 1;"),
        (WEAK, "st.relaxed.gpu.global.u32 [%p0], 5;"),
        (READ, ADD),
        (READ, "ld.relaxed.gpu.global.u32 %r1, [%p0]; st.relaxed.gpu.global.u32 [%p0], 1;"),
        (READ + ADD, "atom.global.cas.b32 %r3, [%p0], 7, 8;"),
    ],
)
def test_a_strong_access_hides_no_weak_one(first, then):
    race(BLOCKS.format(first=first, then=then), "missing-release", arrays(), grid=3)


def test_nor_one_of_a_narrower_scope():
    first, then = "red.relaxed.cta.global.add.u32 [%p0], 1; bar.warp.sync 1;" + ADD, ADD
    race(BLOCKS.format(first=first, then=then), "narrow-scope", arrays(), grid=2)


@pytest.mark.parametrize("first", [WEAK, READ, WEAK + READ, READ + ADD + WEAK])
def test_what_is_ordered_is_none(first):
    """Block 0 hands over after its weak access; the others acquire that first."""
    text = BLOCKS.replace(HURRY, SPIN + " @%q1 bra LATE;")
    fine(text.format(first=first + HAND, then=ADD), arrays(), grid=3)


def test_a_weak_write_stands_for_all_before_it():
    """In one block: weak, strong, a barrier, weak, a barrier, strong by another warp."""
    body = """and.b32 %r1, %t, 31; setp.ne.u32 %q2, %r1, 0;
    setp.ne.u32 %q0, %t, 0; setp.ne.u32 %q1, %t, 32; @%q0 bra A; {0} {1} A: bar.sync 0;
    @%q1 bra B; {0} B: bar.sync 0; @%q2 exit; {1}"""
    fine(body.format(WEAK, ADD), arrays(), block=64)
    race(
        body.replace("B: bar.sync 0;", "B:").format(WEAK, ADD),
        "missing-barrier",
        arrays(),
        block=64,
    )


@pytest.mark.parametrize("space", ["shared", "global"])
def test_many_readers_stay_too(space):
    """Every warp of a block reads weakly and then adds; nothing orders the two of different
    warps."""
    body = f""".shared .align 16 .b8 s[16]; mov.u32 %r1, s; mov.u64 %rd1, %p0;
    mov.u32 %r7, 0; setp.ne.u32 %q0, %t, 0; @%q0 bra A; st.{space}.u32 [X], %r7; A: bar.sync 0;
    ld.{space}.u32 %r4, [X]; {{}} red.relaxed.gpu.{space}.add.u32 [X], 1;"""
    body = body.replace("[X]", "[%r1]" if space == "shared" else "[%rd1]")
    fine(body.format("bar.sync 0;"), arrays(), block=96)
    race(body.format(""), "missing-barrier", arrays(), block=96)
