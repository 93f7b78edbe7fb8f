"""Contract under test: a qualifier changes what an instruction does, or it is refused by name. None
is read and forgotten."""

import numpy as np
import pytest

from numba_marlin.emulator import Machine, OutOfBounds, UnknownInstruction
from numba_marlin.emulator.instructions import HANDLERS, root_of
from tests.emulator.ptx_cases import compute, frame, launch

# What is too long for the lines below.
LONG = {
    "SUMS4": "{%f0, %f1, %f2, %f3}",
    "SUMS8": "{%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}",
    "WORDS8": "{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}",
    "PROXY": "tensormap::generic",
    "OPERANDS": "[%r0], %rd0, %rd1, %r1, [%r2], [%r3]",
}
# One legal line of every opcode; {} is where a qualifier that nobody knows goes.
LINES = """
add{}.u32 %r0, %r1, %r2;
sub{}.f32 %f0, %f1, %f2;
add.cc{}.u32 %r0, %r1, %r2;
addc{}.u32 %r0, %r1, %r2;
sub.cc{}.u32 %r0, %r1, %r2;
subc{}.u32 %r0, %r1, %r2;
mad.lo.cc{}.u32 %r0, %r1, %r2, %r3;
mad.hi.cc{}.u32 %r0, %r1, %r2, %r3;
madc{}.lo.u32 %r0, %r1, %r2, %r3;
dp4a{}.u32.u32 %r0, %r1, %r2, %r3;
dp2a.lo{}.u32.u32 %r0, %r1, %r2, %r3;
mul{}.lo.u32 %r0, %r1, %r2;
mad{}.lo.u32 %r0, %r1, %r2, %r3;
fma{}.rn.f16x2 %r0, %r1, %r2, %r3;
div{}.u32 %r0, %r1, %r2;
min{}.f16 %h0, %h1, %h2;
max{}.f64 %fd0, %fd1, %fd2;
neg{}.bf16 %h0, %h1;
abs{}.s32 %r0, %r1;
rcp{}.rn.f32 %f0, %f1;
sqrt{}.rn.f64 %fd0, %fd1;
rsqrt{}.approx.f32 %f0, %f1;
ex2{}.approx.f32 %f0, %f1;
lg2{}.approx.f32 %f0, %f1;
sin{}.approx.f32 %f0, %f1;
cos{}.approx.f32 %f0, %f1;
tanh{}.approx.f32 %f0, %f1;
copysign{}.f32 %f0, %f1, %f2;
testp.finite{}.f32 %q0, %f0;
rem{}.u32 %r0, %r1, %r2;
mul24{}.lo.u32 %r0, %r1, %r2;
mad24{}.lo.u32 %r0, %r1, %r2, %r3;
sad{}.u32 %r0, %r1, %r2, %r3;
fns{}.b32 %r0, %r1, %r2, %r3;
vadd2{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vadd4{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vsub2{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vsub4{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vabsdiff2{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vabsdiff4{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vmin2{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vmin4{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vmax2{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vmax4{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vadd{}.u32.u32.u32 %r0, %r1, %r2;
vsub{}.u32.u32.u32 %r0, %r1, %r2;
vabsdiff{}.u32.u32.u32 %r0, %r1, %r2;
vmin{}.u32.u32.u32 %r0, %r1, %r2;
vmax{}.u32.u32.u32 %r0, %r1, %r2;
vshl{}.u32.u32.u32.clamp %r0, %r1, %r2;
vshr{}.u32.u32.u32.clamp %r0, %r1, %r2;
vmad{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vset{}.u32.u32.lt %r0, %r1, %r2;
vavrg2{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vset2{}.u32.u32.eq %r0, %r1, %r2, %r3;
vavrg4{}.u32.u32.u32 %r0, %r1, %r2, %r3;
vset4{}.u32.u32.eq %r0, %r1, %r2, %r3;
and{}.b32 %r0, %r1, %r2;
or{}.b32 %r0, %r1, %r2;
xor{}.b32 %r0, %r1, %r2;
not{}.b32 %r0, %r1;
cnot{}.b32 %r0, %r1;
lop3{}.b32 %r0, %r1, %r2, %r3, 0xea;
shl{}.b32 %r0, %r1, %r2;
shr{}.u32 %r0, %r1, %r2;
shf{}.l.clamp.b32 %r0, %r1, %r2, %r3;
bfe{}.u32 %r0, %r1, %r2, %r3;
bfi{}.b32 %r0, %r1, %r2, %r3, %r4;
bmsk{}.clamp.b32 %r0, %r1, %r2;
szext{}.wrap.s32 %r0, %r1, %r2;
prmt{}.b32 %r0, %r1, %r2, %r3;
popc{}.b32 %r0, %r1;
clz{}.b32 %r0, %r1;
bfind{}.u32 %r0, %r1;
brev{}.b32 %r0, %r1;
setp.eq{}.u32 %q0, %r0, %r1;
set.eq{}.u32.u32 %r0, %r1, %r2;
selp{}.b32 %r0, %r1, %r2, %q0;
slct{}.b32.s32 %r0, %r1, %r2, %r3;
cvt{}.u32.u16 %r0, %h0;
cvt.pack.sat{}.u16.s32 %r0, %r1, %r2;
mov{}.b32 %r0, %r1;
cvta{}.shared.u64 %rd0, %rd1;
isspacep.shared{} %q0, %rd0;
ld{}.global.u32 %r0, [%rd0];
ldu{}.global.u32 %r0, [%rd0];
st{}.global.u32 [%rd0], %r0;
st.bulk{}.shared::cta [%rd0], %rd1, 0;
prefetch{}.global.L2 [%rd0];
prefetchu{}.L1 [%rd0];
applypriority{}.global.L2::evict_normal [%rd0], 128;
discard{}.global.L2 [%rd0], 128;
createpolicy{}.fractional.L2::evict_first.b64 %rd0, 1.0;
atom{}.global.add.u32 %r0, [%rd0], %r1;
red{}.global.add.u32 [%rd0], %r1;
call{} f;
return{};
bra{} $done; $done:
ret{};
exit{};
bar.sync{} 0;
barrier.sync{} 0;
membar{}.gl;
fence{}.acq_rel.gpu;
nanosleep{}.u32 10;
griddepcontrol.wait{};
fence.proxy.async{}.shared::cta;
membar.proxy.alias{};
fence.mbarrier_init.release{}.cluster;
barrier.cluster.arrive{}.aligned;
setmaxnreg.inc{}.sync.aligned.u32 40;
mapa{}.shared::cluster.u32 %r0, %r1, 0;
getctarank{}.shared::cluster.u32 %r0, %r1;
mbarrier.init{}.shared.b64 [%r0], 1;
mbarrier.inval{}.shared.b64 [%r0];
mbarrier.expect_tx{}.relaxed.cta.shared::cta.b64 [%r0], 16;
mbarrier.arrive{}.shared.b64 _, [%r0];
mbarrier.test_wait{}.parity.shared.b64 %q0, [%r0], 0;
mbarrier.try_wait{}.parity.shared.b64 %q0, [%r0], 0;
cp.async.bulk{}.global.shared::cta.bulk_group [%rd0], [%r0], 16;
cp.async.bulk.tensor.1d{}.global.shared::cta.tile.bulk_group [%rd0, {%r1}], [%r0];
cp.async.bulk.prefetch{}.L2.global [%rd0], 16;
tensormap.replace.tile{}.rank.global.b1024.b32 [%rd0], %r1;
tensormap.cp_fenceproxy.global{}.shared::cta.PROXY.release.gpu.sync.aligned [%rd0], [%r0], 128;
cp.async.bulk.commit_group{};
cp.async.bulk.prefetch.tensor.2d{}.L2.global [%rd0, {%r1, %r2}];
cp.reduce.async.bulk.global{}.shared::cta.bulk_group.add.u32 [%rd0], [%r0], 16;
cp.reduce.async.bulk.tensor.1d{}.global.shared::cta.add.bulk_group [%rd0, {%r1}], [%r0];
cp.async.mbarrier.arrive{}.shared.b64 [%r0];
st.async{}.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r0], %r1, [%r2];
red.async.relaxed{}.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r0], %r1, [%r2];
mbarrier.complete_tx{}.shared.b64 [%r0], 16;
mbarrier.arrive_drop{}.shared.b64 _, [%r0];
mbarrier.pending_count{}.b64 %r0, %rd0;
cp.async.bulk.wait_group{}.read 0;
pmevent{} 3;
alloca{}.u64 %rd0, %rd1, 8;
stacksave{}.u64 %rd0;
stackrestore{}.u64 %rd0;
trap{};
brkpt{};
shfl.sync.idx{}.b32 %r0, %r1, %r2, 31, 0xffffffff;
shfl.idx{}.b32 %r0, %r1, %r2, 31;
vote.sync.any{}.pred %q0, %q1, 0xffffffff;
vote.any{}.pred %q0, %q1;
activemask{}.b32 %r0;
match.any.sync{}.b32 %r0, %r1, 0xffffffff;
match.all.sync{}.b32 %r0, %r1, 0xffffffff;
redux.sync.add{}.u32 %r0, %r1, 0xffffffff;
elect.sync{} %r0|%q0, 0xffffffff;
movmatrix.sync{}.aligned.m8n8.trans.b16 %r0, %r1;
bar.warp.sync{} 0xffffffff;
mma{}.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 SUMS4, {%r0, %r1}, {%r2}, SUMS4;
wmma.load.a.sync{}.aligned.row.m16n16k16.global.f16 WORDS8, [%rd0], %r8;
wmma.store.d.sync{}.aligned.row.m16n16k16.global.f32 [%rd0], SUMS8, %r8;
wmma.mma.sync{}.aligned.row.col.m16n16k16.f32.f32 SUMS8, WORDS8, WORDS8, SUMS8;
stmatrix{}.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r0};
wgmma.mma_async{}.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd0, %rd1, 1, 1, 1, 0, 0;
wgmma.fence{}.sync.aligned;
wgmma.commit_group{}.sync.aligned;
wgmma.wait_group{}.sync.aligned 0;
tcgen05.alloc{}.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 32;
tcgen05.dealloc{}.cta_group::1.sync.aligned.b32 %r0, 32;
tcgen05.relinquish_alloc_permit{}.cta_group::1.sync.aligned;
tcgen05.mma{}.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X OPERANDS, %q0;
tcgen05.cp{}.cta_group::1.32x128b.warpx4 [%r0], %rd0;
tcgen05.commit{}.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r0];
tcgen05.ld{}.sync.aligned.32x32b.x1.b32 {%r0}, [%r1];
tcgen05.st{}.sync.aligned.32x32b.x1.b32 [%r1], {%r0};
tcgen05.wait::ld{}.sync.aligned;
tcgen05.wait::st{}.sync.aligned;
tcgen05.fence::before_thread_sync{};
tcgen05.fence::after_thread_sync{};
ldmatrix{}.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r1];
cp.async{}.cg.shared.global [%r0], [%rd0], 16;
cp.async.commit_group{};
cp.async.wait_group{} 0;
cp.async.wait_all{};
""".strip().splitlines()


def handlers_read(body):
    """Let every handler read its instruction; nothing runs."""
    for short, text in LONG.items():
        body = body.replace(short, text)
    Machine(frame(body.replace("{}", ""), 0)).run("k", max_instructions=1)


def opcode(line):
    return line.split()[0].rstrip(";").replace("{}", "")


def test_every_opcode_of_the_machine_has_a_line_here():
    spelt = {root for root in HANDLERS if not root.startswith("%")}
    assert {root_of(opcode(line)) for line in LINES} == spelt


@pytest.mark.parametrize("line", LINES, ids=opcode)
def test_a_qualifier_nobody_knows_is_refused_by_name(line):
    with pytest.raises(UnknownInstruction, match="bogus"):
        handlers_read(line.replace("{}", ".bogus", 1))


@pytest.mark.parametrize(
    "line",
    [
        "add.sat.bf16 %h0, %h1, %h2;",
        "mul.sat.bf16x2 %r0, %r1, %r2;",
        "sub.ftz.bf16 %h0, %h1, %h2;",
        "fma.rn.sat.bf16x2 %r0, %r1, %r2, %r3;",
        "min.ftz.bf16 %h0, %h1, %h2;",
        "abs.ftz.bf16x2 %r0, %r1;",
        "setp.lt.ftz.bf16 %q0, %h0, %h1;",
        "setp.lt.ftz.f64 %q0, %fd0, %fd1;",
        "setp.lt.ftz.s32 %q0, %r0, %r1;",
        "fma.rn.ftz.f64 %fd0, %fd1, %fd2, %fd3;",
        "fma.rn.sat.f64 %fd0, %fd1, %fd2, %fd3;",
        "min.ftz.f64 %fd0, %fd1, %fd2;",
        "abs.ftz.f64 %fd0, %fd1;",
        "rcp.approx.f64 %fd0, %fd1;",
        "sqrt.approx.ftz.f64 %fd0, %fd1;",
        "add.approx.f32 %f0, %f1, %f2;",
        "cvt.rn.ftz.f16.f64 %h0, %fd0;",
        "cvt.rn.sat.f16x2.f32 %r0, %f0, %f1;",
        "slct.ftz.b32.s32 %r0, %r1, %r2, %r3;",
        "red.global.ftz.add.f32 [%rd0], %f0;",
        "red.global.min.f32 [%rd0], %f0;",
        "atom.global.exch.f16 %h0, [%rd0], %h1;",
        (
            "mma.sync.aligned.m16n8k8.row.col.f16.bf16.bf16.f16 {%r0, %r1}, {%r2, %r3}, {%r4},"
            " {%r0, %r1};"
        ),
    ],
)
def test_a_qualifier_that_its_type_does_not_have_is_refused(line):
    with pytest.raises(UnknownInstruction):
        handlers_read(line)


def test_bf16_relu_clamps_negative_results_to_zero():
    minus_two, one, nan = 0xC000, 0x3F80, 0x7FC0
    x = np.array([minus_two, one, nan], np.uint16)
    ones, zeros = np.full_like(x, one), np.zeros_like(x)
    result = compute("fma.rn.relu.bf16 %d, %a, %b, %c;", x, ones, zeros, out=np.uint16)
    assert [hex(bits) for bits in result] == ["0x0", "0x3f80", "0x7fff"]


def test_slct_flushes_a_subnormal_selector_where_asked_to():
    c = np.array([-1e-40, -1.0, 1e-40, -0.0, np.nan], np.float32)
    one, two = np.full(5, 1, np.uint32), np.full(5, 2, np.uint32)
    assert compute("slct.b32.f32 %d, %a, %b, %c;", one, two, c, out=np.uint32).tolist() == [
        2,
        2,
        1,
        1,
        2,
    ]
    assert compute("slct.ftz.b32.f32 %d, %a, %b, %c;", one, two, c, out=np.uint32).tolist() == [
        1,
        2,
        1,
        1,
        2,
    ]


def test_a_copy_of_more_source_bytes_than_it_has_is_an_error():
    body = """.shared .align 16 .b8 s[512]; mov.u32 %r1, s; mad.lo.u32 %r0, %t, 16, %r1;
    mad.wide.u32 %rd0, %t, 16, %p0;
    add.u32 %r2, %t, 2;
    cp.async.cg.shared.global [%r0], [%rd0], 16, %r2;"""
    with pytest.raises(OutOfBounds, match="src-size 33 must be at most cp-size 16") as caught:
        launch(body, {"x": np.zeros(128, np.uint32)})
    assert caught.value.lanes == tuple(range(15, 32))
