"""Contract under test: calls of device functions do what the ISA says, for lanes together and
apart, direct and through pointers; what cannot be is refused with advice."""

import numpy as np
import pytest

from numba_marlin.emulator import Machine, PtxSyntaxError, Trap, UnknownInstruction
from tests.emulator.ptx_cases import HEADER, frame, launch

TRIPLE = """
.func (.param .b32 result) triple(.param .b32 x)
{
.reg .b32 %r<4>;
ld.param.u32 %r1, [x];
mul.lo.u32 %r1, %r1, 3;
st.param.b32 [result+0], %r1;
ret;
}
"""


# Odd x: triple it, and return at once; even x: sum over the warp of the lanes that are here.
EARLY = (
    TRIPLE
    + """
.func (.param .b32 result) early(.param .b32 x)
{
.reg .pred %p<2>;
.reg .b32 %r<9>;
ld.param.u32 %r1, [x];
and.b32 %r2, %r1, 1;
setp.eq.u32 %p1, %r2, 1;
@!%p1 bra EVEN;
{
.param .b32 param0;
st.param.b32 [param0+0], %r1;
.param .b32 retval0;
call.uni (retval0), triple, (param0);
ld.param.b32 %r3, [retval0+0];
}
st.param.b32 [result+0], %r3;
ret;
EVEN:
add.u32 %r3, %r1, 1000;
st.param.b32 [result+0], %r3;
ret;
}
"""
)


def call(function, register="%r1", result="%r2", guard=""):
    return f"""{{
.param .b32 param0;
st.param.b32 [param0+0], {register};
.param .b32 retval0;
st.param.b32 [retval0+0], 7;
{guard} call.uni (retval0), {function}, (param0);
ld.param.b32 {result}, [retval0+0];
}}
"""


def run(body, before, out_words=32, **options):
    out = np.zeros(out_words, np.uint32)
    launch(
        body + "mad.wide.u32 %rd1, %t, 4, %p0;\nst.global.u32 [%rd1], %r2;",
        {"out": out},
        before=before,
        **options,
    )
    return out


LANES = np.arange(32, dtype=np.uint32)


def test_parameters_go_in_and_results_come_out():
    assert (run("mov.u32 %r1, %t;\n" + call("triple"), TRIPLE) == 3 * LANES).all()


def test_a_function_may_be_called_twice_and_after_it_is_declared():
    after = Machine(
        frame(
            "mov.u32 %r1, %t;\n"
            + call("triple")
            + call("triple", "%r2")
            + "mad.wide.u32 %rd1, %t, 4, %p0;\nst.global.u32 [%rd1], %r2;",
            1,
            before=".func (.param .b32 result) triple(.param .b32 x);\n",
        )
        + TRIPLE
    )
    out = np.zeros(32, np.uint32)
    after.run("k", args=[after.memory.buffer(out, "out").address])
    assert (out == 9 * LANES).all()


def test_lanes_that_part_in_a_function_meet_behind_it():
    """A collective follows: it deadlocks or is refused unless all lanes of the warp are together
    again."""
    body = (
        "mov.u32 %r1, %t;\n"
        + call("early")
        + "mov.u32 %r9, %r2;\nshfl.sync.bfly.b32 %r2, %r9, 1, 31, 0xffffffff;\n"
    )
    expected = np.where(LANES % 2, 3 * LANES, LANES + 1000)
    for seed in (None, 1, 2, 3):
        assert (run(body, EARLY, seed=seed) == expected[LANES ^ 1]).all()


def test_a_guarded_call_is_made_by_some():
    assert (
        run("mov.u32 %r1, %t;\nsetp.lt.u32 %q1, %t, 5;\n" + call("triple", guard="@%q1"), TRIPLE)
        == np.where(LANES < 5, 3 * LANES, 7)
    ).all()
    assert (
        run("mov.u32 %r1, %t;\nsetp.lt.u32 %q1, %t, 5;\n" + call("triple", guard="@!%q1"), TRIPLE)
        == np.where(LANES >= 5, 3 * LANES, 7)
    ).all()


def test_registers_of_caller_and_callee_are_their_own():
    body = (
        "mov.u32 %r1, %t;\nmov.u32 %r3, 5;\n"
        + call("early", result="%r4")
        + "add.u32 %r2, %r3, %r1;\n"
    )
    assert (run(body, EARLY) == LANES + 5).all()


POINTERS = (
    TRIPLE
    + """
.func (.param .b32 result) negate(.param .b32 x)
{
.reg .b32 %r<4>;
ld.param.u32 %r1, [x];
neg.s32 %r1, %r1;
st.param.b32 [result+0], %r1;
ret;
}
.global .align 8 .u64 table[3] = {triple, negate, 12345};
"""
)


INDIRECT = """
and.b32 %r5, %t, 1;
mov.u64 %rd4, table;
mad.wide.u32 %rd4, %r5, 8, %rd4;
ld.global.u64 %rd5, [%rd4];
mov.u32 %r1, %t;
{
.param .b32 param0;
st.param.b32 [param0+0], %r1;
.param .b32 retval0;
prototype_0 : .callprototype (.param .b32 _) _ (.param .b32 _) ;
call (retval0), %rd5, (param0), prototype_0;
ld.param.b32 %r2, [retval0+0];
}
"""


def test_each_lane_calls_its_own_function():
    assert (
        run(INDIRECT, POINTERS)
        == np.where(LANES % 2, -LANES.astype(np.int32), 3 * LANES.astype(np.int32)).view(np.uint32)
    ).all()
    direct = INDIRECT.replace("ld.global.u64 %rd5, [%rd4];", "mov.u64 %rd5, negate;")
    assert (run(direct, POINTERS) == (-LANES.astype(np.int32)).view(np.uint32)).all()
    with pytest.raises(Trap):
        run(INDIRECT.replace("and.b32 %r5, %t, 1;", "mov.u32 %r5, 2;"), POINTERS)


def test_what_cannot_be_called_is_refused_with_advice():
    endless = TRIPLE.replace("mul.lo.u32 %r1, %r1, 3;", call("triple", result="%r1"))
    with pytest.raises(UnknownInstruction, match="triple calls itself.*loop"):
        run(call("triple"), endless)
    allocating = ".extern .func (.param .b32 result) malloc(.param .b32 x);\n"
    with pytest.raises(
        UnknownInstruction, match="malloc has no body.*printf(.|\n)*what to do(.|\n)*PTX line"
    ):
        run(call("malloc"), allocating)
    with pytest.raises(PtxSyntaxError, match="nobody"):
        run("{\n.param .b32 a;\ncall.uni nobody, (a);\n}\n", "")
    with pytest.raises(PtxSyntaxError, match="takes 1 parameters"):
        run("{\n.param .b32 a;\ncall.uni (a), triple;\n}\n", TRIPLE)
    with pytest.raises(Trap):
        run(
            "{\n.param .b32 a;\ncall.uni __assertfail, (a);\n}\n",
            ".extern .func __assertfail(.param .b32 x);\n",
        )


def test_structures_are_passed_by_value():
    swap = """
.func (.param .align 8 .b8 result[16]) swap(.param .align 8 .b8 x[16])
{
.reg .b64 %d<3>;
.reg .b32 %r<3>;
ld.param.u64 %d1, [x];
ld.param.v2.b32 {%r1, %r2}, [x+8];
st.param.v2.b32 [result], {%r1, %r2};
st.param.b64 [result+8], %d1;
ret;
}
"""
    body = """{
.param .align 8 .b8 param0[16];
mov.u64 %rd2, 0x500000006;
st.param.b64 [param0+0], %rd2;
st.param.b32 [param0+8], %t;
st.param.b32 [param0+12], 9;
.param .align 8 .b8 retval0[16];
call.uni (retval0), swap, (param0);
ld.param.b32 %r1, [retval0];
ld.param.b32 %r3, [retval0+12];
}
mad.lo.u32 %r2, %r3, 100, %r1;
"""
    assert (run(body, swap) == 500 + LANES).all()


def test_addresses_in_initialisers():
    before = (
        ".global .align 4 .u32 numbers[4] = {10, 20, 30, 40};\n.const .align 8 .u64 places[3] ="
        " {numbers, generic(numbers)+8, numbers+4};\n"
    )
    body = (
        "rem.u32 %r1, %t, 3;\nmov.u64 %rd2, places;\nmad.wide.u32 %rd2, %r1, 8, %rd2;\nld.const.u64"
        " %rd3, [%rd2];\nld.global.u32 %r2, [%rd3];\n"
    )
    assert (run(body, before) == np.array([10, 30, 20])[LANES % 3]).all()
    with pytest.raises(PtxSyntaxError, match="nothing"):
        run(body, before.replace("{numbers,", "{nothing,"))


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_an_indexed_branch_goes_where_the_table_says(seed):
    body = """
and.b32 %r1, %t, 3;
TABLE: .branchtargets L2, L0, L1, L0;
brx.idx %r1, TABLE;
L0:
mov.u32 %r2, 10;
bra.uni END;
L1:
mov.u32 %r2, 11;
bra.uni END;
L2:
mov.u32 %r2, 12;
END:
mov.u32 %r9, %r2;
shfl.sync.bfly.b32 %r2, %r9, 1, 31, 0xffffffff;
"""
    assert (run(body, "", seed=seed) == np.array([12, 10, 11, 10])[(LANES ^ 1) & 3]).all()


def test_a_header_is_all_that_a_kernel_needs():
    assert Machine(HEADER + TRIPLE).entries == ()
