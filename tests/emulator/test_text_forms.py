"""Contract under test: the forms of PTX that compilers do not write every day mean what the ISA
says: each is run, and its values are looked at. ptxas of CUDA 13 takes them, but for votes and
shuffles of old (no .sync), which it has for no target that it still knows."""

import numpy as np
import pytest

from numba_marlin.emulator import Machine, OutOfBounds, PtxSyntaxError, UnknownInstruction
from tests.emulator.ptx_cases import HEADER, frame, launch

LANES = np.arange(32)


def values(body, count=1, before="", **options):
    """What ``body`` leaves in %r1, %r2 ... of thread 0."""
    out = np.zeros(count, np.uint32)
    stores = "".join(f"st.global.u32 [%p0+{4 * i}], %r{i + 1};\n" for i in range(count))
    launch(f"{body}\nsetp.ne.u32 %q9, %t, 0;\n@%q9 bra END;\n{stores}END:\n", {"out": out}, before)
    return out.tolist()


@pytest.mark.parametrize(
    "expression, value",
    [
        ("1+2*3", 7),
        ("(1<<4)|3", 19),
        ("1 << 4 | 3", 19),
        ("5>3?7:8", 7),
        ("5<3?7:1?9:10", 9),
        ("!0", 1),
        ("!7", 0),
        ("~0", 0xFFFFFFFF),
        ("-(3)", 0xFFFFFFFD),
        ("- -3", 3),
        ("7 % 4", 3),
        ("7%4", 3),
        ("-7/2", 0xFFFFFFFD),
        ("-7 % 4", 0xFFFFFFFD),
        ("WARP_SZ-1", 31),
        ("0xffffffffffffffff >> 60", 15),
        ("(.s64)0xffffffffffffffff >> 60", 0xFFFFFFFF),
        ("(.u64)-1 > 0", 1),
        ("-1 > 0", 0),
        ("1==1 && 2!=2 || 6&4", 1),
        ("6^3", 5),
        ("1>=1", 1),
        ("10-3-2", 5),
    ],
)
def test_constant_expressions(expression, value):
    assert values(f"mov.u32 %r1, {expression};") == [value]
    machine = Machine(f"{HEADER}.global .s32 x[2] = {{{expression}, 5}};")
    assert machine.globals["x"].data.view(np.uint32).tolist() == [value, 5]


@pytest.mark.parametrize(
    "expression, said",
    [
        ("1/0", "no result"),
        ("1 << 64", "must be by 0 to 63"),
        ("~1.5", "whole numbers"),
        ("(" * 200 + "1", "levels"),
        ("1 +", "expected a number"),
        ("(1", r"expected '\)'"),
        ("1 ? 2", "expected ':'"),
    ],
)
def test_constant_expressions_that_mean_nothing(expression, said):
    with pytest.raises(PtxSyntaxError, match=said) as caught:
        values(f"mov.u32 %r1, {expression};")
    assert caught.value.line


def test_sums_of_decimal_numbers():
    assert values("mov.f32 %f1, 1.5+2.0*2.0; mov.b32 %r1, %f1;") == [
        np.float32(5.5).view(np.uint32)
    ]


def test_offsets_and_sizes_are_expressions():
    before = ".global .align 4 .u32 a[2*3+4] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};\n"
    body = """ld.global.u32 %r1, [a+4*2]; mov.u64 %rd1, a; ld.global.u32 %r2, [%rd1+4*4-4];
    ld.global.u32 %r3, [a+(1<<3)+4]; mov.u64 %rd2, a+4*9; ld.global.u32 %r4, [%rd2];
    ld.global.u32 %r5, [%rd2+-4];"""
    assert values(body, 5, before) == [12, 13, 13, 19, 18]


def test_elements_of_arrays():
    """An index counts elements of the declared type, of a vector its parts, whatever the access:
    as ptxas has it."""
    before = ".global .align 4 .u32 a[10] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};\n"
    body = """.shared .u16 s[8]; mov.u32 %r9, 3; mov.u64 %rd9, 5;
    ld.global.u32 %r1, a[1]; mov.u64 %rd1, a[2]; ld.global.u32 %r2, [%rd1];
    ld.global.u32 %r3, a[%r9]; ld.global.u32 %r4, a[%rd9+1]; mov.u16 %h1, 77;
    st.shared.u16 s[3], %h1; ld.shared.u16 %r5, [s+6];
    .shared .v2 .u32 v[4]; st.shared.u32 [v+12], 5; ld.shared.u8 %r6, v[3];"""
    assert values(body, 6, before) == [11, 12, 13, 16, 77, 5]


def test_vector_registers():
    out = np.zeros(8, np.float32)
    given = np.arange(8, dtype=np.float32)
    launch(
        """.reg .v2 .f32 v, w<3>; .reg .v4 .f32 q;
        ld.global.v2.f32 v, [%p1+8]; ld.global.v2.f32 w2, [%p1+16]; ld.global.v4.f32 q, [%p1];
        add.f32 %f1, v.x, w2.y; add.f32 %f2, v.g, q.w; mov.b64 %rd1, v; mov.b64 w1, %rd1;
        mov.v4.f32 q, {q.y, q.x, q.w, q.z};
        st.global.v2.f32 [%p0], {%f1, %f2}; st.global.v2.f32 [%p0+8], w1;
        st.global.v4.f32 [%p0+16], q;""",
        {"out": out, "given": given},
    )
    assert out.tolist() == [2 + 5, 3 + 3, 2, 3, 1, 0, 3, 2]


def test_special_registers_as_vectors():
    out = np.zeros((12, 4), np.uint32)
    launch(
        """.reg .v4 .u32 v; mov.v4.u32 v, %tid; mov.v4.u32 {%r4, %r5, _, %r6}, %ntid;
        mad.lo.u32 %r1, v.y, %r4, v.x; mad.wide.u32 %rd1, %r1, 16, %p0; mov.u32 %r7, %tid.w;
        add.u32 v.w, %r7, %r6; add.u32 v.w, v.w, %r5;
        st.global.v4.u32 [%rd1], v;""",
        {"out": out},
        block=(4, 3),
    )
    assert out.tolist() == [[x, y, 0, 3] for y in range(3) for x in range(4)]


def test_values_of_128_bits():
    given = np.arange(4, dtype=np.uint64) + 100
    out = np.zeros(4, np.uint64)
    launch(
        """.reg .b128 q, r; .shared .align 16 .b128 s[2]; ld.global.b128 q, [%p1];
        st.shared.b128 [s+16], q; ld.shared.b128 r, [s+16]; mov.b128 {%rd1, %rd2}, r;
        add.u64 %rd3, %rd1, %rd2; mov.b128 q, {%rd3, %rd2}; mov.b128 r, q;
        st.global.b128 [%p0], r; ld.global.b128 r, [%p1+16]; st.global.b128 [%p0+16], r;""",
        {"out": out, "given": given},
    )
    assert out.tolist() == [201, 101, 102, 103]


def test_initialisers_with_addresses_and_masks():
    before = """.global .align 8 .u32 b[4] = {5, 6, 7, 8};
    .global .align 8 .u8 low[8] = {0xff(b+4), 0xff00(b+4), 0xff0000(b+4), 0xff000000(b+4),
        0xff00000000(b+4), 0xff0000000000(b+4), 0xff000000000000(b+4), 0xff00000000000000(b+4)};
    .global .align 8 .u64 c = generic(b)+8;
    .const .align 8 .u64 d[2] = {b+4*3, generic(b+4)};
    .global .v4 .f32 e = {1.0, 2.0, 3.0, 0f40800000};
    .global .f64 f = 0d4014000000000000;
    """
    body = """ld.global.u64 %rd1, [low]; ld.global.u32 %r1, [%rd1]; ld.global.u64 %rd1, [c];
    ld.u32 %r2, [%rd1]; ld.const.u64 %rd1, [d]; ld.global.u32 %r3, [%rd1];
    ld.const.u64 %rd1, [d+8]; ld.u32 %r4, [%rd1]; ld.global.f32 %f1, [e+12];
    cvt.rzi.u32.f32 %r5, %f1; ld.global.f64 %fd1, [f]; cvt.rzi.u32.f64 %r6, %fd1;"""
    assert values(body, 6, before) == [6, 7, 8, 6, 4, 5]
    with pytest.raises(PtxSyntaxError, match="0xff of one byte"):
        Machine(HEADER + ".global .u32 b; .global .u8 x[1] = {0xf0(b)};")


def test_variables_declared_in_a_kernel_and_in_functions():
    """Of those in global and shared memory there is one, whoever calls; local ones of two functions
    are two, whatever they are called."""
    before = """
    .func (.reg .b32 r) inner(.reg .b32 a)
    { .local .b32 tmp[2]; st.local.u32 [tmp], a; ld.local.u32 r, [tmp]; add.u32 r, r, 1; ret; }
    .func (.reg .b32 r) outer(.reg .b32 a)
    { .local .b32 tmp[4]; .reg .b32 %x; .global .u32 calls = 40; st.local.u32 [tmp], a;
      call (r), inner, (a); ld.local.u32 %x, [tmp]; mad.lo.u32 r, r, 100, %x;
      ld.global.u32 %x, [calls]; add.u32 %x, %x, 1; st.global.u32 [calls], %x;
      add.u32 r, r, %x; ret; }
    """
    body = """.global .u32 g[2] = {3, 4}; .const .u32 c = 9; .shared .u32 s; setp.ne.u32 %q1, %t, 0;
    @%q1 bra SKIP; ld.global.u32 %r1, [g+4]; ld.const.u32 %r2, [c];
    call (%r3), outer, (5); call (%r4), outer, (6); { .local .b32 z[2]; st.local.u32 [z+4], 1; }
    { .local .b32 z; st.local.u32 [z], 8; ld.local.u32 %r5, [z]; }
    SKIP:"""
    assert values(body, 5, before) == [4, 9, 646, 748, 8]


def test_parameters_in_registers_and_constants_as_arguments():
    before = """
    .func (.reg .b32 s, .reg .pred big) sum(.reg .b32 a, .reg .f32 x, .param .b32 c)
    { .reg .b32 %i; cvt.rzi.u32.f32 %i, x; add.u32 s, a, %i; ld.param.u32 %i, [c];
      add.u32 s, s, %i; setp.gt.u32 big, s, 10; ret; }
    .func (.param .b32 y) twice(.reg .b32 a)
    { .reg .b32 %i; add.u32 %i, a, a; st.param.b32 [y], %i; ret; }
    """
    body = """mov.u32 %r9, 3; call (%r1, %q2), sum, (%r9, 2.0, 1); selp.u32 %r2, 1, 0, %q2;
    { .param .b32 a; st.param.b32 [a], 100; call (%r3, %q2), sum, (1, 0f40000000, a); }
    selp.u32 %r4, 1, 0, %q2; call (%r5), twice, (21); call (_), twice, (1);
    { .param .b32 a; .param .b32 b; st.param.b32 [a], 4; call (b), twice, (a);
      ld.param.u32 %r6, [b]; }"""
    assert values(body, 6, before) == [6, 0, 103, 1, 42, 8]


def test_an_array_as_a_parameter_of_a_function():
    before = """.func (.param .align 4 .b8 r[8]) swap(.param .align 4 .b32 a[2])
    { .reg .b32 %x<3>; ld.param.u32 %x1, [a]; ld.param.u32 %x2, [a+4];
      st.param.b32 [r+4], %x1; st.param.b32 [r], %x2; ret; }"""
    body = """{ .param .align 4 .b32 a[2]; .param .align 4 .b8 r[8]; st.param.b32 [a], 1;
    st.param.b32 [a+4], 2; call (r), swap, (a); ld.param.u32 %r1, [r]; ld.param.u32 %r2, [r+4]; }"""
    assert values(body, 2, before) == [2, 1]


TWO = """
.func (.reg .b32 r) one(.reg .b32 a) { add.u32 r, a, 1; ret; }
.func (.reg .b32 r) two(.reg .b32 a) .noreturn .abi_preserve 8 { add.u32 r, a, 2; ret; }
.alias deux, two;
"""


def test_targets_of_a_call_and_other_names():
    body = """T: .calltargets one, deux; setp.eq.u32 %q1, %t, 0; selp.u64 %rd1, one, two, %q1;
    call (%r1), %rd1, (10), T; call (%r2), deux, (20); mov.u64 %rd2, deux; mov.u64 %rd3, two;
    setp.eq.u64 %q2, %rd2, %rd3; selp.u32 %r3, 1, 0, %q2;"""
    assert values(body, 3, TWO) == [11, 22, 1]
    with pytest.raises(UnknownInstruction, match="calltargets"):
        values("T: .calltargets one, nobody; call (%r1), %rd1, (10), T;", 1, TWO)
    with pytest.raises(PtxSyntaxError, match="nobody is no function"):
        Machine(HEADER + ".alias a, nobody;")


def test_an_indexed_branch_may_have_a_guard():
    out = np.zeros(32, np.uint32)
    launch(
        """and.b32 %r1, %t, 1; setp.lt.u32 %q1, %t, 6; mov.u32 %r2, 9;
        T: .branchtargets A, B; @%q1 brx.idx.uni %r1, T; bra END;
        A: mov.u32 %r2, 1; bra END; B: mov.u32 %r2, 2; END:
        mad.wide.u32 %rd1, %t, 4, %p0; st.global.u32 [%rd1], %r2;""",
        {"out": out},
    )
    assert (out == np.where(LANES < 6, 1 + LANES % 2, 9)).all()


def test_declared_and_defined():
    """.extern and .weak say who else knows a name; a definition wins wherever it stands."""
    before = """.extern .global .u32 x; .visible .global .u32 x = 7; .weak .global .u32 y = 8;
    .extern .global .u32 y; .common .global .u32 z;\n"""
    body = "ld.global.u32 %r1, [x]; ld.global.u32 %r2, [y]; ld.global.u32 %r3, [z];"
    assert values(body, 3, before) == [7, 8, 0]
    for twice in (
        ".visible .shared .b8 x[4]; .shared .b8 x[8];",
        ".func x(); .func x() { ret; } .func x() { ret; }",
        ".entry x() { ret; } .entry x() { ret; }",
    ):
        with pytest.raises(PtxSyntaxError, match="x is defined twice"):
            Machine(HEADER + twice)


def test_directives_that_say_nothing_here():
    text = (
        HEADER
        + """
    .file 1 "a.cu", 1700000000, 33
    .language 5
    @@DWARF .section .debug_abbrev, "", @progbits
    .section .debug_abbrev { .b8 17, 1; .b8 37 .b8 0 L0: .b8 8 .b32 L0 }
    .entry k(.param .u64 p)
    .explicitcluster .reqnctapercluster 1, 1, 1 .maxclusterrank 8 .maxntid 64 .maxnreg 32
    .minnctapersm 2 .abi_preserve 3 .pragma "nounroll; { }";
    { // a brace in a comment: }
      .reg .b64 %d; .reg .b32 %r; .pragma "used_bytes_mask 0xf"; .loc 1 3 5 // }
      ld.param.u64 %d, [p]; /* ; } */ .loc 1 0 0, function_name L0+4, inlined_at 1 9 1
      mov.u32 %r, 5; st.global.u32 [%d], %r; .section .debug_loc { .b64 1 } ret;
    }
    .section .debug_info { .b32 .debug_abbrev .b8 1 }
    """
    )
    machine = Machine(text)
    out = np.zeros(1, np.uint32)
    machine.run(args=[machine.memory.buffer(out).address])
    kernel = machine.kernel("k")
    assert out[0] == 5
    assert (kernel.max_threads, kernel.max_registers, kernel.min_blocks) == (64, 32, 2)
    assert kernel.cluster == (1, 1, 1)
    assert [kernel.source_of(each) for each in kernel.instructions[:2]] == ["a.cu:3", "a.cu:0"]


@pytest.mark.parametrize(
    "text, said",
    [
        (HEADER.replace("64\n", "32\n"), "addresses of 32 bits.*compile for 64"),
        (frame("mov.u32 %r1, x;", 0, ".global .u32 x;\n"), "address of x needs 64 bits, not 32"),
        (frame("return;", 0), "unknown instruction 'return'"),
        (frame("txq.width.b32 %r1, [%rd0];", 0), "'txq.width.b32': there are no textures"),
        (frame("ld.global.u32 %r1, p0[1];", 1), "p0 is no variable whose elements"),
        (frame(".reg .v4 .b64 v;", 0), "'b64' are not supported"),
        (frame(".reg .v2 .b32 v; mov.v2.b32 v, %r1;", 0), "two vectors of one length"),
    ],
)
def test_what_is_refused(text, said):
    with pytest.raises((PtxSyntaxError, UnknownInstruction), match=f"(?s){said}.*PTX line"):
        Machine(text).run()


def test_the_address_of_shared_memory_has_32_bits():
    body = ".shared .u32 s[4]; mov.u32 %r2, s; st.shared.u32 [%r2+8], 6; ld.shared.u32 %r1, [s+8];"
    assert values(body) == [6]


def test_bytes_of_zero_end_a_text():
    """NVRTC gives its PTX with the NUL that ends a C string; one within a text is none of it."""
    text, out = frame("mov.u32 %r1, 7; st.global.u32 [%p0], %r1;", 1), np.zeros(1, np.uint32)
    machine = Machine(text + "\0")
    machine.run("k", args=[machine.memory.buffer(out).address])
    assert out.tolist() == [7]
    with pytest.raises(PtxSyntaxError, match="unexpected character"):
        Machine(text.replace(" 7", "\0 7"))


def test_declarations_without_spaces():
    before = """.func (.param.b32 r) twice(.param.b32 a)
    { .reg.b32 x; ld.param.b32 x, [a]; add.u32 x, x, x; st.param.b32 [r], x; ret; }
    .global.u32 g[2] = {40, 50};"""
    body = """.reg.v4.u16 q; .param.b32 in; .param.b32 out; st.param.b32 [in], 21;
    call (out), twice, (in); ld.param.b32 %r1, [out]; mov.v4.u16 q, {1, 2, 3, 4};
    cvt.u32.u16 %r2, q.z; ld.global.u32 %r3, [g+4];"""
    assert values(body, 3, before) == [42, 3, 50]


def test_vector_registers_as_parameters_and_results():
    before = """.func (.reg .v2 .b32 r) turned(.reg .v2 .b32 a)
    { mov.v2.b32 r, {a.y, a.x}; ret; }"""
    body = """.reg .v2 .b32 v; mov.v2.b32 v, {5, 7}; call (v), turned, (v);
    mov.b32 %r1, v.x; mov.b32 %r2, v.y;"""
    assert values(body, 2, before) == [7, 5]


def test_a_variable_s_name_as_an_address_says_the_state_space():
    """Of ld, st and atom without one: ptxas has LDS, STS, STL, ATOMS there. An address in a
    register is generic all the same."""
    body = """.shared .b32 s[2]; .local .b32 l; st.b32 [s+4], 5; ld.shared.b32 %r1, [s+4];
    st.local.b32 [l], 9; ld.b32 %r2, [l]; st.volatile.shared.b32 [s], 0; bar.sync 0;
    atom.add.u32 %r3, [s], 1; bar.sync 0; ld.b32 %r4, [s];"""
    assert values(body, 4)[:2] == [5, 9] and values(body, 4)[3] == 32
    with pytest.raises(OutOfBounds, match="no generic form"):
        values(".shared .b32 s[2]; mov.u64 %rd1, s; st.b32 [%rd1], 5;")


def test_sync_behind_other_modifiers():
    """As CUB has it in inline PTX; ptxas takes modifiers in any order."""
    body = """setp.lt.u32 %q1, %t, 5; vote.ballot.sync.b32 %r1, %q1, -1;
    shfl.idx.sync.b32 %r2, %t, 7, 31, -1; redux.add.sync.u32 %r3, %t, -1;"""
    assert values(body, 3) == [31, 7, sum(range(32))]


def test_votes_and_shuffles_of_old():
    """Without .sync and a member mask: of the lanes that come together."""
    body = """setp.lt.u32 %q1, %t, 5; vote.ballot.b32 %r1, %q1; vote.any.pred %q2, %q1;
    selp.u32 %r2, 1, 0, %q2; shfl.up.b32 %r3|%q3, %t, 1, 0; shfl.idx.b32 %r4, %t, 9, 31;
    mov.u32 %r5, 0; @%q1 bra FEW; bra DONE; FEW: vote.ballot.b32 %r5, %q1;
    shfl.bfly.b32 %r6, %t, 1, 31; DONE:"""
    assert values(body, 6) == [31, 1, 0, 9, 31, 1]


def test_a_prototype_without_a_semicolon():
    """nvopencc, of CUDA 2 to 4, ends it so."""
    before = """.visible .func (.param .u32 r) twice (.param .u32 a)
    .global .align 4 .u32 g[2] = {40, 50};
    .visible .func (.param .u32 r) twice (.param .u32 a)
    { .reg .u32 x; ld.param.u32 x, [a]; add.u32 x, x, x; st.param.u32 [r], x; ret; }
    """
    body = """.param .u32 in; .param .u32 out; st.param.u32 [in], 21; call (out), twice, (in);
    ld.param.u32 %r1, [out]; ld.global.u32 %r2, [g+4];"""
    assert values(body, 2, before) == [42, 50]


def test_textures_are_refused_where_they_are_read():
    """Not where they are declared: other kernels of the module run."""
    before = ".global .texref t; .global .surfref s; .global .samplerref u;"
    assert values("mov.u32 %r1, 7;", 1, before) == [7]
    with pytest.raises(UnknownInstruction, match="no textures and surfaces"):
        values("tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [t, {%r1}];", 1, before)


def test_memory_of_several_gpus_is_refused_by_name():
    with pytest.raises(UnknownInstruction, match="here is one GPU"):
        values("multimem.red.release.sys.global.add.s32 [%rd1], %r1;", 1)
