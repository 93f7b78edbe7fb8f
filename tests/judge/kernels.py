"""A task, a right kernel in PTX, and copies of it with one defect each."""

import numpy as np

from numba_marlin import judge

THREADS = 64
TASK = judge.Task(
    title="sums of 64",
    sizes={"n": judge.Size(1, 130)},
    arguments=[
        judge.Input("x", "float32", ("n",), fill=("wide", "integers")),
        judge.Output("y", "float32", (lambda n: -(-n // THREADS),)),
        judge.Scalar("n", "int32", "n"),
    ],
    reference=lambda x: np.add.reduceat(x, range(0, len(x), THREADS)),
    bound=lambda x: judge.sum_bound(THREADS, np.add.reduceat(abs(x), range(0, len(x), THREADS))),
    grid=lambda n: -(-n // THREADS),
    block=THREADS,
)
RIGHT = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry sums(.param .u64 x, .param .u64 y, .param .u32 n)
{
  .reg .pred %p<4>; .reg .f32 %f<4>; .reg .b32 %r<9>; .reg .b64 %rd<6>;
  .shared .align 4 .f32 part[64];
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %ctaid.x;
  mad.lo.u32 %r4, %r3, 64, %r2;
  mul.wide.u32 %rd3, %r4, 4;
  add.u64 %rd1, %rd1, %rd3;
  mul.wide.u32 %rd4, %r3, 4;
  add.u64 %rd2, %rd2, %rd4;
  mov.f32 %f1, 0f00000000;
  setp.ge.u32 %p1, %r4, %r1;
  @%p1 bra LOADED;
  ld.global.f32 %f1, [%rd1];
LOADED:
  mov.u32 %r5, part;
  mad.lo.u32 %r5, %r2, 4, %r5;
  st.shared.f32 [%r5], %f1;
  bar.sync 0;
  mov.u32 %r6, 32;
TREE:
  setp.ge.u32 %p2, %r2, %r6;
  @%p2 bra NEXT;
  mad.lo.u32 %r7, %r6, 4, %r5;
  ld.shared.f32 %f2, [%r7];
  ld.shared.f32 %f3, [%r5];
  add.f32 %f3, %f3, %f2;
  st.shared.f32 [%r5], %f3;
NEXT:
  bar.sync 0;
  shr.u32 %r6, %r6, 1;
  setp.ne.u32 %p3, %r6, 0;
  @%p3 bra TREE;
  setp.ne.u32 %p3, %r2, 0;
  @%p3 bra DONE;
  ld.shared.f32 %f1, [part];
  st.global.f32 [%rd2], %f1;
DONE:
  ret;
}
"""
ATOMIC = (
    RIGHT[: RIGHT.index("LOADED:")]
    + """LOADED:
  setp.ne.u32 %p2, %r2, 0;
  @%p2 bra READY;
  st.shared.f32 [part], 0f00000000;
READY:
  bar.sync 0;
  atom.shared.add.f32 %f2, [part], %f1;
  bar.sync 0;
  @%p2 bra DONE;
  ld.shared.f32 %f1, [part];
  st.global.f32 [%rd2], %f1;
DONE:
  ret;
}
"""
)


def changed(old: str, new: str, text: str = RIGHT) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


STORE = "  st.global.f32 [%rd2], %f1;\n"
# (what is wrong, PTX, the kind that the judge must find, what it must say)
WRONG = {
    "reads one too many": (
        changed("setp.ge.u32 %p1, %r4, %r1", "setp.gt.u32 %p1, %r4, %r1"),
        "out-of-bounds",
        "ld.global.f32 %f1, [%rd1];\n  thread (1, 0, 0) of block (0, 0, 0)",
    ),
    "writes one too far": (
        changed(STORE, "  st.global.f32 [%rd2+4], %f1;\n"),
        "out-of-bounds",
        "nearest is y[1]",
    ),
    "writes before the array": (
        changed(STORE, "  st.global.f32 [%rd2+-4], %f1;\n"),
        "out-of-bounds",
        "y[-1]",
    ),
    "no barrier in the tree": (
        changed("NEXT:\n  bar.sync 0;\n", "NEXT:\n"),
        "race",
        "first thread (16, 0, 0)",
    ),
    "no barrier before the tree": (
        changed("  bar.sync 0;\n  mov.u32 %r6, 32;", "  mov.u32 %r6, 32;"),
        "race",
        "then thread (0, 0, 0)",
    ),
    "every thread writes another value": (
        changed("  setp.ne.u32 %p3, %r2, 0;\n  @%p3 bra DONE;\n", "").replace(
            "ld.shared.f32 %f1, [part];", "ld.shared.f32 %f1, [%r5];"
        ),
        "race",
        "two threads write the same place",
    ),
    "reads shared memory that nobody wrote": (
        changed("  st.shared.f32 [%r5], %f1;\n", "  @!%p1 st.shared.f32 [%r5], %f1;\n"),
        "uninitialized-shared",
        "which nothing has written",
    ),
    "adds in the order of chance": (ATOMIC, "nondeterministic", "in one order and"),
    "adds to the output": (
        changed(STORE, "  ld.global.f32 %f2, [%rd2];\n  add.f32 %f1, %f1, %f2;\n" + STORE),
        "reads-output",
        "y[0] (y is float32[1])",
    ),
    "gives what is in the output": (
        changed("  ld.shared.f32 %f1, [part];\n", "  ld.global.f32 %f1, [%rd2];\n"),
        "reads-output",
        "the result depends on",
    ),
    "adds to the output by an atomic": (
        changed(STORE, "  red.global.add.f32 [%rd2], %f1;\n"),
        "reads-output",
        "y[0]",
    ),
    "leaves out the last elements": (
        changed("setp.ge.u32 %p1, %r4, %r1", "and.b32 %r1, %r1, -4;\n  setp.ge.u32 %p1, %r4, %r1"),
        "wrong-value",
        "elements of y are wrong: y[0]",
    ),
    "writes to the input": (
        changed(
            "  ld.global.f32 %f1, [%rd1];\n",
            "  ld.global.f32 %f1, [%rd1];\n  st.global.f32 [%rd1], %f1;\n",
        ),
        "read-only-write",
        "store to x[0]",
    ),
    "writes only some blocks": (
        changed(
            "  setp.ne.u32 %p3, %r2, 0;\n", "  or.b32 %r2, %r2, %r3;\n  setp.ne.u32 %p3, %r2, 0;\n"
        ),
        "not-written",
        "the first is y[1]",
    ),
    "never ends": (
        changed("  shr.u32 %r6, %r6, 1;", "  shr.u32 %r6, %r6, 0;"),
        "budget",
        "the budget of 2000 warp instructions is spent: an endless loop?",
    ),
    "half of the threads wait at another barrier": (
        changed(
            "  mov.u32 %r6, 32;",
            "  setp.lt.u32 %p2, %r2, 32;\n  @%p2 bar.sync 1, 64;\n  bar.sync 0;\n"
            "  mov.u32 %r6, 32;",
        ),
        "deadlock",
        "threads wait for what never happens",
    ),
}
NOT_READ = changed("  ld.global.f32 %f1, [%rd1];\n", "")
