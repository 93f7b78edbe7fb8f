"""Contract under test: text that is no PTX, or no launch's, is refused by the machine's own errors,
with the line, and is bad input for the command line: never a Python error, never "no hazard"."""

import numpy as np
import pytest

from numba_marlin.emulator import (
    BarrierMisuse,
    LimitExceeded,
    Machine,
    Misaligned,
    OutOfBounds,
    PtxSyntaxError,
    UnknownInstruction,
)
from tests.cli.verbs import run
from tests.emulator.ptx_cases import HEADER, frame, launch

REFUSED = PtxSyntaxError, UnknownInstruction

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
FACTORS = "{%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r4,%r5}"


def error(text, kind=REFUSED, **options):
    """The error that ``text`` in a frame must raise, with its line."""
    with pytest.raises(kind) as caught:
        launch(text, {"x": np.zeros(64, np.uint32)}, **options)
    assert caught.value.line is not None and str(caught.value.line) in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    "instruction",
    [
        "ld.global.u32;",
        "ld.global.u32 %r0;",
        "ld.param.u64 %rd0;",
        "ld.global.u32 %r0, [%rd0], %r1;",
        "ld.u32 {%r0, %r1}, [%rd0];",
        "ld.global %r0, [%rd0];",
        "ld.param.u64 %rd0, %rd1;",
        "ldu.global.u32 %r0;",
        "st.global.u32;",
        "st.global.u32 [%p0];",
        "st.global.u32 [%p0], %r0, %r1;",
        "st.global [%p0], %r0;",
        "atom.global.add.u32;",
        "atom.global.add.u32 %r0;",
        "atom.global.add.u32 %r0, [%p0];",
        "atom.global.add.L2::cache_hint.u32 %r0, [%p0];",
        "red.global.add.u32;",
        "red.global.add.u32 [%p0];",
        f"{MMA};",
        f"{MMA} {{%f0,%f1,%f2,%f3}};",
        f"{MMA} {FACTORS};",
        f"{MMA} {FACTORS}, %f0;",
        f"{MMA} %f0, {FACTORS};",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0,%f1,%f2,%f3};",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32;",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16;",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0};",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r0];",
        "mov.u32;",
        "mov.b64 {%r0, %r1, %r2}, %rd0;",
        "mov.b32 %r0, {%h0, %h1, %h2, %h3, %h4};",
        "add.u32;",
        "cp.async.ca.shared.global [%r0];",
        "cp.async.ca.shared.global [%r0], [%rd0], 3.5;",
        "cp.async.wait_group;",
        "bar.sync %rd0, %r1, %r2, %r3;",
        "bar.red.popc.u32;",
        "isspacep %q0, %rd0;",
        "createpolicy.fractional.L2::evict_first.b64;",
        "prefetch.tensormap;",
        "shfl.sync.bfly.b32 %r0;",
        "setp.eq.u32;",
        "cvt.u32.u64;",
        "cvta.to.global.u64;",
        "mbarrier.init.shared.b64;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16;",
        "fma.rn.f32 %f0;",
        "tcgen05.ld.sync.aligned.32x32b.x32.b32;",
        "lop3.b32;",
        "mapa.shared::cluster.u32;",
        "bra;",
        "call;",
        "call (;",
        "brx.idx;",
        "@ add.u32 %r0, %r1, %r2;",
        "ld.pred %q0, [%p0];",
        "mov.u32 %r0, {};",
        "mov.u32 %r0, " + "{" * 3000 + ";",
        "mov.u64 %rd0, 18446744073709551616;",
        "mov.f32 %f0, 1e999;",
    ],
)
def test_instructions_without_their_operands(instruction):
    for races in (False, True):
        with pytest.raises(REFUSED) as caught:
            machine = Machine(frame(instruction, 1), races=races)
            machine.run(args=[machine.memory.buffer(np.zeros(64, np.uint32)).address])
        assert "PTX line" in str(caught.value)


def test_what_is_missing_is_said():
    for text, said in (
        ("ld.global.u32 %r0;", "ld.global.u32 takes 2 operands, not 1"),
        ("atom.global.add.u32 %r0;", "atom.global.add.u32 takes 3 operands, not 1"),
        (f"{MMA} {FACTORS};", f"{MMA} takes 4 operands, not 3"),
        ("mov.b64 {%r0, %r1, %r2}, %rd0;", "mov.b64 does not take these operands"),
        ("setp.lt %q0, %r0, 2;", "must name a type: compare it with the PTX ISA, #comparison-and-"),
    ):
        assert said in str(error(text))


@pytest.mark.parametrize(
    "declared",
    [
        ".shared .b32 x[-5];",
        ".local .b32 x[-5];",
        ".shared .align -4 .b8 x[8];",
        ".shared .align 0 .b8 x[8];",
        ".shared .align 3 .b8 x[8];",
        ".shared .pred x;",
        ".shared .b8;",
        ".shared x[4];",
        ".shared .b8 x[1.5];",
        ".shared .b8 x[];  .shared .b8 y[",
        ".reg .b32 %z<-3>; mov.u32 %z1, 1;",
        ".reg .b65 %z;",
        ".param .b32 z[-5];",
    ],
)
def test_declarations_that_mean_nothing(declared):
    error(declared)


@pytest.mark.parametrize(
    "declared",
    [
        ".global .b32 x[-5];",
        ".global .align -4 .b8 x[8];",
        ".global .pred x;",
        ".global .u8 x = 256;",
        ".global .s8 x = -129;",
        ".global .u64 x = 99999999999999999999;",
        ".global .f32 x = 1e300;",
        ".global .f32 x = 1e999;",
        ".global .u8 x = 1.5;",
        ".global .u8 x = 0f3F800000;",
        ".global .b8 x[2] = {1, 2, 3};",
        ".global .b32 x = {1, 2};",
        ".global .b32 x[2] = {" + "{" * 3000 + "1",
        ".global .u32 y; .global .u32 x = y;",
        ".global .u64 x = nothing;",
        ".func f() { ret; } .global .u8 x[1] = {f+300};",
        ".global .b8 x[2] = {;",
        ".global .b8 x[2] = ;",
        ".file;",
        ".section;",
        ".func;",
        ".func f(;",
        ".func f(.param .b32 x[08]) { ret; }",
        ".func f(.param .b32 x[-1]) { ret; }",
        ".entry;",
        ".entry e(.param .pred p) { ret; }",
        ".entry e(.param p) { ret; }",
        ".entry e(.param .b32 p[-1]) { ret; }",
        ".entry e(.param .align -4 .b8 p[4]) { ret; }",
        ".entry e(.param .b8 p[1099511627776]) { ret; }",
        ".entry e() .maxntid 0 { ret; }",
        ".entry e() .maxntid -1, 1, 1 { ret; }",
        ".entry e() .minnctapersm 0 { ret; }",
        ".entry e() .maxnreg 0 { ret; }",
        ".entry e() .reqnctapercluster 0 { ret; }",
        ".entry e() .reqnctapercluster 1, 1, 1, 1 { ret; }",
        ".global .b8 x[" + "9" * 5000 + "];",
    ],
)
def test_modules_that_mean_nothing(declared):
    with pytest.raises((*REFUSED, LimitExceeded)) as caught:
        Machine(HEADER + declared)
    assert "PTX line" in str(caught.value)


@pytest.mark.parametrize(
    "declared, expected",
    [
        (".u8 x[4] = {255, -128, 0, 0x7f}", [255, 128, 0, 127]),
        (".f32 x = 1.0", [0, 0, 0x80, 0x3F]),
        (".f32 x = -0f3F800000", [0, 0, 0x80, 0xBF]),
        (".u8 x[] = {1, 2, 3, 4}", [1, 2, 3, 4]),
        (".u8 x[2][2] = {{1, 2}, {3, 4}}", [1, 2, 3, 4]),
        (".u8 x[4] = {1}", [1, 0, 0, 0]),
    ],
)
def test_initialisers_are_what_they_say(declared, expected):
    machine = Machine(f"{HEADER}.global .align 4 {declared};\n")
    assert machine.globals["x"].data.tolist() == expected


def chain(count: int) -> str:
    return "".join(
        f".func f{i}() {{ {f'call f{i - 1};' if i else ''} ret; }}\n" for i in range(count)
    )


def test_functions_in_a_chain():
    with pytest.raises(LimitExceeded, match="more than 100 calls within each other"):
        Machine(frame("call f1999;", 0, chain(2000)))
    Machine(frame("call f99;", 0, chain(100)))


def test_moves_beside_wgmma():
    """What looks for copies of its registers reads moves before anything has checked them."""
    product = (
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0,%f1,%f2,%f3}, %rd0, %rd1, 1, 1, 1,"
        " 0, 0;"
    )
    for move in ("mov.u32;", "mov.u32 %r1;", "mov.b32 %r1, %r2, %r3;"):
        assert error(f"{product} {move}", block=128).text == move


@pytest.mark.parametrize("bytes_", (48 * 1024 + 1, 1 << 20, 1 << 40))
def test_static_shared_memory_has_a_limit(bytes_):
    found = error(f".shared .b8 x[{bytes_}]; mov.u32 %r0, x;")
    assert f"{bytes_} bytes of static shared memory" in str(found) and "49152" in str(found)


def test_static_and_dynamic_shared_memory_have_a_limit_together():
    declared = ".shared .b8 x[49152]; mov.u32 %r0, x;"
    launch(declared, shared_bytes=1 << 17)
    with pytest.raises(ValueError, match="shared_bytes=200000 and 49152 bytes"):
        launch(declared, shared_bytes=200000)


@pytest.mark.parametrize("offset", (-1, 8, 1 << 40))
def test_parameters_have_an_end(offset):
    error(f"ld.param.u64 %rd0, [p0+{offset}];")
    error(
        f"mov.b64 %rd1, p0; add.u64 %rd1, %rd1, {offset}; ld.param.u64 %rd0, [%rd1];", OutOfBounds
    )


@pytest.mark.parametrize(
    "text",
    [
        frame("ld.global.u32 %r0;", 0),
        frame(".shared .b32 x[-5];", 0),
        frame(".shared .b8 x[1048576]; mov.u32 %r0, x;", 0),
        frame("call f1999;", 0, chain(2000)),
        HEADER + ".entry e(.param .pred p) { ret; }",
        HEADER + ".global .f32 x = 1e300; .entry e() { ret; }",
    ],
)
def test_it_is_bad_input_for_the_command_line(tmp_path, capsys, text):
    (tmp_path / "k.ptx").write_text(text)
    code, _, said = run(capsys, "machine", "run", tmp_path / "k.ptx")
    assert code == 2 and "error" in said and "PTX line" in said


@pytest.mark.parametrize("branch", ("bra END;", "@%q0 bra END;", "@!%q0 bra END;"))
def test_a_label_at_the_end_is_an_exit(branch):
    """Without a ret behind it; for whole warps, and for parts of them."""
    for where in ("%tid.x, 7", "%ctaid.x, 0"):
        text = f"{HEADER}.entry k() {{ .reg .pred %q<2>; .reg .b32 %r<2>; mov.u32 %r0, "
        register, value = where.split(",")
        text += f"{register}; setp.eq.u32 %q0, %r0, {value}; {branch} mov.u32 %r1, 1; END: }}"
        assert Machine(text).run(grid=2, block=64).blocks == 2


def test_addresses_wrap_at_64_bits():
    out = np.zeros(2, np.uint32)
    launch("st.global.u32 [%p0+18446744073709551612+8], 5;", {"out": out})
    assert out.tolist() == [0, 5]
    for offset in (1 << 63, (1 << 64) - 1):
        for base in ("%p0", "%r0", "0"):
            with pytest.raises((OutOfBounds, Misaligned)):
                launch(f"mov.u32 %r0, 0; ld.global.u32 %r1, [{base}+{offset}];", {"x": out})


@pytest.mark.parametrize("value", ("%laneid", "s"))
def test_what_is_no_pair_of_halves(value):
    assert "is not a .f16x2 value" in str(error(f".shared .b32 s; mul.rn.f16x2 %r0, %r1, {value};"))


@pytest.mark.parametrize("guard", ("", "@%q0 "))
def test_a_signal_to_an_mbarrier_where_no_kernel_makes_one(guard):
    """The machine keeps no mbarriers then."""
    with pytest.raises(BarrierMisuse, match="there is no mbarrier at"):
        launch(
            f""".shared .align 8 .b64 s; setp.eq.u32 %q0, %t, 0;
            {guard}tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [s];"""
        )


def test_a_kernel_without_instructions_ends():
    assert Machine(f"{HEADER}.entry k() {{ }}").run(grid=3000, resident_blocks=1).blocks == 3000


@pytest.mark.parametrize("value", ("%lanemask_lt", "%laneid", "5", "s"))
def test_stmatrix_stores_any_value(value):
    """Special registers lie in memory in another order than the program's own."""
    text = f""".shared .align 16 .b8 s[1024]; mov.u32 %r3, s; mov.b32 %r1, {value};
    shr.u32 %r0, %t, 5; mad.lo.u32 %r0, %r0, 128, %r3; mov.u32 %r2, %laneid;
    mad.lo.u32 %r0, %r2, 16, %r0;
    stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r0], {{{{ {{}} }}}}; bar.sync 0;
    mad.wide.u32 %rd0, %t, 4, %p0; mad.lo.u32 %r4, %t, 4, %r3; ld.shared.u32 %r5, [%r4];
    st.global.u32 [%rd0], %r5;"""
    found = []
    for stored in (value, "%r1"):
        out = np.zeros(64, np.uint32)
        launch(text.format(stored), {"out": out}, block=64)
        found.append(out)
    assert (found[0] == found[1]).all() and found[0].any()
