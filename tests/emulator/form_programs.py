"""One text with the forms of PTX that compilers seldom write, for tests that spoil it."""

from tests.emulator.ptx_cases import HEADER

FORMS = (
    HEADER
    + """
.file 1 "a.cu"
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.func (.reg .b32 r) fib(.reg .b32 n)
{
.reg .pred %p; .reg .b32 %x<3>; .local .align 4 .b32 kept[2];
mov.b32 r, n; st.local.u32 [kept+4], n;
setp.lt.u32 %p, n, 2; @%p ret;
sub.u32 %x1, n, 1; call (%x2), fib, (%x1);
ld.local.u32 %x1, [kept+4]; sub.u32 %x1, %x1, 2; call (r), fib, (%x1);
add.u32 r, r, %x2; ret;
}
.func (.param .b32 r) one(.param .b32 a)
{ .reg .b32 %x; ld.param.u32 %x, [a]; add.u32 %x, %x, 1; st.param.b32 [r], %x; ret; }
.func (.param .b32 r) two(.param .b32 a)
{ .reg .b32 %x; ld.param.u32 %x, [a]; add.u32 %x, %x, 2; st.param.b32 [r], %x; ret; }
.alias deux, two;
.global .align 8 .u64 table[2] = {one, two};
.global .align 4 .u32 numbers[2*2] = {1, 1+1, 6/2, 1<<2};
.const .align 8 .u8 bytes[8] = {0xff(numbers), 0xff00(numbers+4), 0, 0, 0, 0, 0, 0};
.const .align 8 .u64 places[2] = {generic(numbers)+8, numbers};
.visible .entry k(.param .u64 .ptr .global .align 4 p, .param .align 8 .b8 s[8])
.maxntid 32, 1, 1 .minnctapersm 1 .pragma "nounroll";
{
.reg .pred %q<4>; .reg .b32 %r<20>; .reg .b64 %d<9>; .reg .v2 .f32 v; .reg .v4 .u32 t; .reg .b128 w;
.shared .align 16 .b32 tile[32]; .global .u32 own = 5; .local .align 4 .b8 depot[16];
ld.param.u64 %d1, [p]; mov.v4.u32 t, %tid; .loc 1 5 7
mov.u32 %r1, t.x; and.b32 %r2, %r1, 3; call (%r3), fib, (%r2);
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r3; mul.wide.u32 %d2, %r2, 4;
and.b64 %d2, %d2, 8; mov.u64 %d3, table; add.u64 %d3, %d3, %d2; ld.global.u64 %d4, [%d3];
P: .callprototype (.param .b32 _) _ (.param .b32 _); call (b), %d4, (a), P;
ld.param.b32 %r4, [b]; }
T: .branchtargets A, B, A, B;
setp.ne.u32 %q1, %r1, %r1; @%q1 bra A; brx.idx %r2, T;
A: ld.global.u32 %r5, numbers[%r2]; bra.uni END;
B: ld.global.u32 %r5, numbers[1];
END:
st.shared.u32 tile[%r1], %r5; bar.sync 0; ld.shared.v2.f32 v, [tile+8*2];
ld.shared.b128 w, [tile]; mov.b128 {%d5, %d6}, w; mov.b32 %r6, v.y; xor.b32 %r6, %r6, %r5;
ld.const.u64 %d7, [places]; ld.global.u32 %r7, [%d7]; ld.global.u32 %r8, [own];
st.local.u32 [depot+4*(1+1)], %r8; ld.local.u32 %r9, [depot+8];
add.u32 %r9, %r9, %r7; add.u32 %r9, %r9, %r6; add.u32 %r9, %r9, %r4;
mad.wide.u32 %d8, %r1, 4, %d1; st.global.u32 [%d8], %r9; ret;
}
.section .debug_str { L0: .b8 97, 98, 0 }
"""
)
