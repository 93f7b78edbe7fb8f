"""PTX text in, instructions out; what cannot be executed is refused by name and line."""

import numpy as np
import pytest

from numba_marlin.emulator import Machine, PtxSyntaxError, UnknownInstruction
from numba_marlin.emulator.text.cfg import EXIT
from tests.emulator.ptx_cases import HEADER, frame, launch


def kernel(body):
    return Machine(frame(body, 0)).kernel()


def test_unknown_opcodes_are_named_with_their_line():
    text = frame("add.u32 %r0, %r1, %r2;\ntcgen05.shift.cta_group::1.down;", 0)
    line = 1 + text[: text.index("tcgen05")].count("\n")
    with pytest.raises(UnknownInstruction, match="tcgen05.shift.cta_group::1.down") as caught:
        Machine(text)
    assert caught.value.line == line and "tcgen05.shift.cta_group::1.down;" in str(caught.value)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("add.sat.s64 %rd0, %rd1, %rd2;", "modifier .sat"),
        ("mul.u32 %r0, %r1, %r2;", "mul.u32"),
        ("add.f16x3 %r0, %r1, %r2;", "f16x3"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3};", "m8n8k4"),
        (
            "cp.async.bulk.prefetch.tensor.1d.L2.global.im2col [%p0, {%r1}];",
            "modifier .im2col",
        ),
        ("atom.global.frob.u32 %r0, [%rd0], 1;", "frob"),
        ("ld.global.v2.u32 %r0, [%rd0];", "v2"),
        ("cvt.s32.f32 %r0, %f0;", "rni"),
        ("setp.foo.u32 %q0, %r0, %r1;", "foo"),
        ("shfl.sync.left.b32 %r0, %r1, 1, 31, -1;", "left"),
    ],
)
def test_unknown_modifiers_are_refused_before_anything_runs(text, reason):
    with pytest.raises(UnknownInstruction) as caught:
        launch(f"trap;\n{text}")
    assert reason in str(caught.value) and caught.value.text == text


@pytest.mark.parametrize(
    "text, reason",
    [
        ("add.u32 %r0, %r1, %nope;", "%nope is not declared"),
        ("bra NOWHERE;", "NOWHERE is not declared"),
        ("add.u32 %r0, %r1 %r2;", "expected ';'"),
        ("@%r0 bra X; X:", "predicate"),
        ("X: X:", "declared twice"),
        ("?", "unexpected character"),
        (".frob 7;", "unknown directive"),
    ],
)
def test_syntax_errors_name_their_line(text, reason):
    with pytest.raises(PtxSyntaxError) as caught:
        kernel(f"\n\n{text}\n")
    assert reason in str(caught.value) and "PTX line" in str(caught.value)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("add.u64 %r0, %rd0, %rd1;", "%r0 has 32 bits, .u64 needs 64"),
        ("add.u32 %q0, %r0, %r1;", "%q0"),
        ("lop3.b32 %r0, %r1, %r2, %r3, %r4;", "literal"),
        ("add.u32 5, %r0, %r1;", "not a register"),
        ("ld.global.u32 %r0, %r1;", "brackets"),
    ],
)
def test_operands_of_the_wrong_kind_are_refused(text, reason):
    with pytest.raises(PtxSyntaxError) as caught:
        launch(text)
    assert reason in str(caught.value) and caught.value.text == text


@pytest.mark.parametrize(
    "before, after",
    [
        (".target sm_90a", ".target"),
        ("}\n", "}\n}\n"),
        (".param .u64", ".param"),
        (".version 8.7", ".version"),
        (".entry k(", ".entry k(.param .b8 x["),
    ],
)
def test_a_text_without_a_word_that_it_needs_is_refused(before, after):
    text = frame("", 1)
    before = (
        next(line for line in text.splitlines() if line.startswith(before.split()[0]))
        if before.startswith((".target", ".version"))
        else before
    )
    assert before in text
    with pytest.raises((PtxSyntaxError, UnknownInstruction), match="PTX line"):
        Machine(text.replace(before, after))


def test_a_parameter_has_a_name():
    with pytest.raises(UnknownInstruction, match="a parameter has a name"):
        launch("ld.param.u64 %rd0, [0];")


def test_a_text_that_ends_early():
    with pytest.raises(PtxSyntaxError, match="ends in the middle"):
        Machine(frame("", 0).rstrip().rstrip("}"))


def test_directives_debug_sections_and_comments_are_skipped():
    text = (
        HEADER
        + """
    .file 1 "kernel.py"
    .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b) ;
    .func helper () { .reg .b32 %r<2>; call helper2; ret; }
    .weak .global .align 8 .u64 env;
    /* a comment
       of two lines */
    .visible .entry one(.param .u64 .ptr .global .align 1 p)
    .maxntid 64, 2, 1 .minnctapersm 1 .pragma "x";
    { .reg .b32 %r<3>; .loc 1 7 0 // inline
      .pragma "nounroll"; mov.u32 %r1, 0x10; ret; }
    .entry two() { ret; }
    .section .debug_str { .b8 1, 2, 3 }
    """
    )
    machine = Machine(text)
    assert machine.entries == ("one", "two") and machine.kernel("one").max_threads == 128
    assert [i.text for i in machine.kernel("one").instructions] == ["mov.u32 %r1, 0x10;", "ret;"]
    with pytest.raises(ValueError, match="entry='three' must be one of one, two"):
        machine.run("three")
    with pytest.raises(ValueError, match="must be one of"):
        machine.run()


def test_a_location_named_again_after_line_0_is_inlined_where_it_was():
    """libnvvm names the place of an inlined function's instruction in full. After instructions of
    no line (``.loc 1 0 1``) it only repeats the line."""
    inlined = ".loc 1 7 1, function_name $f, inlined_at 2 40 1"
    found = kernel(
        f"""
        .loc 1 7 1
        mov.u32 %r0, 0;
        {inlined}
        mov.u32 %r0, 1;
        .loc 1 0 1
        mov.u32 %r0, 2;
        .loc 1 7 1
        mov.u32 %r0, 3;
        .loc 1 0 1
        mov.u32 %r0, 4;
        .loc 1 8 1
        mov.u32 %r0, 5;
        {inlined}
        mov.u32 %r0, 6;
        .loc 1 7 1
        mov.u32 %r0, 7;
        """
    )
    places = [ins.inlined for ins in found.instructions if ins.root == "mov" and ins.source]
    site = ("$f", ("2", 40))
    assert places == [None, site, None, site, None, None, site, None]


def test_launches_that_do_not_fit_are_refused():
    machine = Machine(frame("", 0).replace("k()", "k() .maxntid 64, 1, 1"))
    for options, reason in (
        ({"block": 65}, "compiled for 64"),
        ({"block": (32, 33)}, "at most 1024"),
        ({"grid": 0}, "positive"),
        ({"grid": (1, 1, 1, 1)}, "one to three"),
        ({"shared_bytes": -1}, "shared_bytes=-1"),
        ({"shared_bytes": 1 << 20}, "shared_bytes=1048576"),
        ({"resident_blocks": 0}, "resident_blocks=0"),
        ({"args": [1]}, "takes 0 arguments"),
    ):
        with pytest.raises(ValueError, match=reason):
            machine.run(**options)


def test_registers_of_sibling_scopes_share_places():
    use = "mov.u32 {0}1, 1; mov.u32 {0}2, {0}1; mov.u32 {0}3, {0}2;"
    one = kernel("{ .reg .b32 a<9>; " + use.format("a") + "}")
    two = kernel(
        "{ .reg .b32 a<9>; " + use.format("a") + "} { .reg .b32 b<9>; " + use.format("b") + "}"
    )
    nested = kernel(
        "{ .reg .b32 a<9>; { .reg .b32 b<9>; " + use.format("b") + "}" + use.format("a") + "}"
    )
    unused = kernel("mov.u32 %r0, %t;").registers[32]
    assert (
        one.registers[32] == 3 + kernel("").registers[32] and unused == 1 + kernel("").registers[32]
    )
    assert two.registers == one.registers
    # the outer scope is alive around the inner one
    assert nested.registers[32] == one.registers[32] + 3


def test_an_outer_register_survives_an_inner_scope_in_a_loop():
    """%r9 is first named behind the inner scope, but lives across the next round's."""
    out = np.zeros(1, np.uint32)
    body = """mov.u32 %r0, 0; LOOP: { .reg .u32 x; mov.u32 x, 77; add.u32 %r0, %r0, 1; }
    setp.eq.u32 %q0, %r0, 1; @%q0 mov.u32 %r9, 5;
    setp.lt.u32 %q1, %r0, 3; @%q1 bra LOOP; st.global.u32 [%p0], %r9;"""
    launch(body, {"out": out})
    assert out[0] == 5


def test_inner_names_hide_outer_ones():
    out = np.zeros(1, np.uint32)
    launch(
        ".reg .b32 x; mov.u32 x, 1; { .reg .b32 x; mov.u32 x, 2; } st.global.u32 [%p0], x;",
        {"out": out},
    )
    assert out[0] == 1


def test_branches_reconverge_at_the_immediate_post_dominator():
    program = kernel(
        """@%q0 bra A; mov.u32 %r0, 1; bra B; A: mov.u32 %r0, 2; B: mov.u32 %r1, 3; L: @%q1 bra L;
    @%q2 bra END;
    mov.u32 %r2, 4; ret; END: mov.u32 %r2, 5;"""
    )
    place = {i.text: i.pc for i in program.instructions}
    joins = {program.instructions[b.stop - 1].text: b.join for b in program.blocks.values()}
    assert joins["@%q0 bra A;"] == place["mov.u32 %r1, 3;"]
    assert joins["@%q1 bra L;"] == place["@%q2 bra END;"]
    assert joins["@%q2 bra END;"] == EXIT


def test_endless_loops_have_no_post_dominator():
    program = kernel("@%q0 bra END; L: add.u32 %r0, %r0, 1; bra L; END:")
    assert {b.join for b in program.blocks.values()} <= {EXIT, len(program.instructions) - 1}


def test_literals():
    out = np.zeros(6, np.uint32)
    body = """mov.u32 %r0, 0b101; mov.u32 %r1, 017; mov.f32 %f0, -0f3F800000; mov.f32 %f1, 1.5;
    mov.f64 %fd0, 0d3FF8000000000000;
    cvt.rn.f32.f64 %f2, %fd0; mov.b32 %r2, 0f7FC12345; st.global.u32 [%p0], %r0;
    st.global.u32 [%p0+4], %r1; st.global.f32 [%p0+8], %f0;
    st.global.f32 [%p0+12], %f1; st.global.f32 [%p0+0x10], %f2; st.global.u32 [%p0+20], %r2;"""
    launch(body, {"out": out})
    assert out.tolist() == [5, 15, 0xBF800000, 0x3FC00000, 0x3FC00000, 0x7FC12345]


def test_what_is_said_about_a_pointers_target_does_not_move_the_parameter():
    text = (
        HEADER
        + ".visible .entry k(.param .u32 n, .param .u64 .ptr .global .align 1 p, .param .u64 .ptr"
        " .align 16 q)\n{\nret;\n}\n"
    )
    assert [(each.type, each.offset) for each in Machine(text).kernel("k").parameters] == [
        ("u32", 0),
        ("u64", 8),
        ("u64", 16),
    ]
