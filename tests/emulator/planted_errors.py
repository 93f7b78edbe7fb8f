"""Programs with an error planted in them, each with a right twin: PLANTED, which ``test_checks``
runs.

To add one of yours: a row. Bodies stand in ``ptx_cases.frame``; %p0 is the address of ``x``, 256
words of zeros. The line with BAD is where the error is (of several, one), and ``fix`` makes the
twin: (what to replace, by what).
"""

from dataclasses import dataclass

# Thread t of one warp writes word t of a; behind it lies b.
ARRAYS = """.shared .u32 a[32]; .shared .u32 b[32]; mov.u32 %r2, a; mad.lo.u32 %r2, %t, 4, %r2;
mov.u32 %r3, b; mad.lo.u32 %r3, %t, 4, %r3; st.shared.u32 [%r3], 0; bar.warp.sync -1; """
# Every lane writes a word of shared memory and reads its neighbour's.
EXCHANGE = """.shared .u32 s[32]; mov.u32 %r2, s; mad.lo.u32 %r3, %t, 4, %r2;
st.shared.u32 [%r3], 0; bar.warp.sync -1; st{0}.shared.u32 [%r3], %t; {1}
xor.b32 %r4, %t, 1; mad.lo.u32 %r4, %r4, 4, %r2;
ld{0}.shared.u32 %r1, [%r4]; // BAD
"""
# One thread copies 128 bytes of x to shared memory and waits for them.
COPY = """.shared .align 16 .b8 d[128]; .shared .align 8 .b64 b; mov.u32 %r1, d; mov.u32 %r2, b;
mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128; {}
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%p0], 128, [%r2]; // BAD
W: mbarrier.try_wait.parity.shared.b64 %q1, [%r2], 0; @!%q1 bra W;"""


@dataclass(frozen=True)
class Planted:
    name: str
    check: str
    body: str
    fix: tuple[str, str]
    words: str
    """That the message must contain."""
    threads: int = 32
    blocks: int = 1
    goes_on: bool = True
    """Whether a run that only warns comes to its end."""


PLANTED = [
    Planted(
        "shared memory that nothing has written",
        "uninitialized-shared",
        """.shared .u32 s[64]; mov.u32 %r2, s; mad.lo.u32 %r2, %t, 4, %r2; st.shared.u32 [%r2], 1;
        ld.shared.u32 %r1, [%r2+128]; // BAD""",
        ("+128", "+0"),
        "which nothing has written",
    ),
    Planted(
        "local memory that nothing has written",
        "uninitialized-local",
        """.local .u32 l[4]; st.local.u32 [l], 1;
        ld.local.u32 %r1, [l+4]; // BAD""",
        ("l+4", "l"),
        "which nothing has written",
    ),
    Planted(
        "an mbarrier gets a count of 0",
        "mbarrier-count-zero",
        """.shared .align 8 .b64 b; mov.u32 %r2, b; setp.ne.u32 %q0, %t, 0; @%q0 bra G;
        mbarrier.init.shared.b64 [%r2], 0; // BAD
        G: bar.sync 0;""",
        ("[%r2], 0;", "[%r2], 1;"),
        "count 0 must be between 1 and 1048575",
    ),
    Planted(
        "a wait for a phase whose parity is -1",
        "mbarrier-parity",
        """.shared .align 8 .b64 b; mov.u32 %r2, b; setp.ne.u32 %q0, %t, 0; @%q0 bra G;
        mbarrier.init.shared.b64 [%r2], 1; mov.u32 %r3, -1;
        mbarrier.try_wait.parity.shared.b64 %q1, [%r2], %r3; // BAD
        G: bar.sync 0;""",
        ("%r3, -1;", "%r3, 1;"),
        "a phase's parity is 0 or 1, not 4294967295",
    ),
    Planted(
        "a bulk copy signals an mbarrier without a fence since its init",
        "mbarrier-init-fence",
        """.shared .align 16 .b8 d[128]; .shared .align 8 .b64 b; mov.u32 %r1, d; mov.u32 %r2, b;
        setp.ne.u32 %q0, %t, 0; @%q0 bra G; mbarrier.init.shared.b64 [%r2], 1; // FENCE
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%p0], 128, [%r2]; // BAD
        G: bar.sync 0; W: mbarrier.try_wait.parity.shared.b64 %q1, [%r2], 0; @!%q1 bra W;""",
        ("// FENCE", "fence.mbarrier_init.release.cluster;"),
        "no fence.mbarrier_init or fence.proxy.async since it was initialised",
    ),
    Planted(
        "accumulators are set to zero behind the fence of a wgmma",
        "wgmma-fence",
        """.shared .align 1024 .b8 s[4096]; mov.u32 %r2, s; mad.lo.u32 %r3, %t, 32, %r2;
        mov.u32 %r4, 0; st.shared.v4.u32 [%r3], {%r4, %r4, %r4, %r4};
        st.shared.v4.u32 [%r3+16], {%r4, %r4, %r4, %r4}; fence.proxy.async.shared::cta; bar.sync 0;
        shr.u32 %r2, %r2, 4; cvt.u64.u32 %rd1, %r2; or.b64 %rd1, %rd1, 0x1000080000;
        setp.eq.u32 %q1, %r4, 0; wgmma.fence.sync.aligned;
        mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0; // FENCE
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0,%f1,%f2,%f3}, %rd1, %rd1, %q1,1,1,0,0; // BAD
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;""",
        ("// FENCE", "wgmma.fence.sync.aligned;"),
        "was written, or never fenced, since the last wgmma.fence",
        threads=128,
    ),
    Planted(
        "registers are traded by a kernel that bounds neither threads nor registers",
        "setmaxnreg-bound",
        "setmaxnreg.dec.sync.aligned.u32 40; // BAD",
        ("setmaxnreg", "// setmaxnreg"),
        "declares neither .maxntid nor .maxnreg, so its registers at entry are unknown",
        threads=128,
    ),
    Planted(
        "a block ends without waiting for its bulk store",
        "bulk-store-at-end",
        """.shared .align 16 .b8 d[128]; mov.u32 %r1, d; mad.lo.u32 %r2, %t, 4, %r1;
        st.shared.u32 [%r2], 7; fence.proxy.async; bar.sync 0; setp.ne.u32 %q0, %t, 0; @%q0 bra E;
        cp.async.bulk.global.shared::cta.bulk_group [%p0], [%r1], 128; // BAD
        cp.async.bulk.commit_group; // WAIT
        E:""",
        ("// WAIT", "cp.async.bulk.wait_group 0;"),
        "the block ended, and this copy, never waited for, may still be reading",
    ),
    Planted(
        "all threads write the same value to one word",
        "benign-race",
        """setp.gt.u32 %q0, %t, 99;
        st.global.u32 [%p0], 7; // BAD""",
        (" st.global", " @%q0 st.global"),
        "benign: both write the same value",
        threads=101,
    ),
    Planted(
        "warps one after the other write the same value",
        "benign-race",
        """.shared .u32 s; setp.lt.u32 %q0, %t, 32;
        @%q0 st.shared.u32 [s], 7; // BAD: the later one
        bar.warp.sync -1; // BARRIER
        @!%q0 st.shared.u32 [s], 7; // BAD""",
        ("// BARRIER", "bar.sync 0;"),
        "benign: both write the same value",
        threads=64,
    ),
    Planted(
        "every lane of a warp issues the same bulk store",
        "benign-race",
        """.shared .align 16 .b8 s[128]; mov.u32 %r2, s; mad.lo.u32 %r3, %t, 4, %r2;
        st.shared.u32 [%r3], %t; fence.proxy.async; bar.warp.sync -1; setp.ne.u32 %q0, %t, 0;
        cp.async.bulk.global.shared::cta.bulk_group [%p0], [%r2], 128; // BAD
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;""",
        (" cp.async.bulk.global", " @!%q0 cp.async.bulk.global"),
        "benign: both write the same value",
    ),
    Planted(
        "lanes store different bytes to one place by bulk copies",
        "race",
        """.shared .align 16 .b8 s[32]; mov.u32 %r2, s; mad.lo.u32 %r2, %t, 16, %r2;
        mul.wide.u32 %rd1, %t, 16; add.u64 %rd2, %rd1, %p0; mov.u32 %r4, 5; mov.u32 %r5, 6;
        st.shared.v4.u32 [%r2], {%r4, %r5, %r4, %t}; fence.proxy.async;
        cp.async.bulk.global.shared::cta.bulk_group [%p0], [%r2], 16; // BAD
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;""",
        ("[%p0]", "[%rd2]"),
        "missing-read-wait",
        threads=2,
    ),
    Planted(
        "warps write different values to one word",
        "race",
        """shr.u32 %r1, %t, 5; mul.wide.u32 %rd1, %r1, 4; add.u64 %rd2, %rd1, %p0;
        st.global.u32 [%p0], %r1; // BAD""",
        ("[%p0]", "[%rd2]"),
        "missing-barrier",
        threads=64,
    ),
    Planted(
        "a register that nothing has written is stored",
        "uninitialized-register",
        """mad.wide.u32 %rd1, %t, 4, %p0; // WRITE
        add.u32 %r1, %r5, 1; st.global.u32 [%rd1], %r1; // BAD""",
        ("// WRITE", "mov.u32 %r5, 3;"),
        "never written in these lanes: give it a value first",
    ),
    Planted(
        "a register that some lanes have not written is branched on",
        "uninitialized-register",
        """setp.lt.u32 %q0, %t, 9; @%q0 bra ON; mov.u32 %r5, 0; // WRITE
        ON: setp.eq.u32 %q1, %r5, 0;
        @%q1 bra E; // BAD
        st.global.u32 [%p0], 1; E:""",
        ("@%q0 bra ON;", ""),
        "%q1 is a guard",
    ),
    Planted(
        "an address in a register that a loop without a turn would have written",
        "uninitialized-register",
        """mov.u32 %r2, %t; L: setp.lt.u32 %q0, %r2, 4; @%q0 bra OUT;
        mad.wide.u32 %rd1, %t, 4, %p0; shr.u32 %r2, %r2, 2; bra L;
        OUT: st.global.u32 [%rd1], 1; // BAD""",
        ("mov.u32 %r2, %t;", "mov.u32 %r2, %t; mov.u64 %rd1, %p0;"),
        "%rd1 is an address",
        goes_on=False,
    ),
    Planted(
        "a sum of lanes that have exited",
        "shuffle-from-outside",
        """mov.u32 %r1, %t; setp.ge.u32 %q0, %t, 20; @%q0 exit;
        shfl.sync.down.b32 %r2, %r1, 16, 31, -1; add.u32 %r1, %r1, %r2;
        shfl.sync.down.b32 %r2, %r1, 8, 31, -1; add.u32 %r1, %r1, %r2;
        setp.eq.u32 %q1, %t, 0;
        @%q1 st.global.u32 [%p0], %r1; // BAD""",
        ("@%q0 exit;", "@%q0 mov.u32 %r1, 0;"),
        "comes from a lane that the member mask does not name or that has exited",
    ),
    Planted(
        "a shuffle from a lane outside of the mask",
        "shuffle-from-outside",
        """mad.wide.u32 %rd1, %t, 4, %p0; setp.ge.u32 %q0, %t, 16; @%q0 bra E;
        shfl.sync.bfly.b32 %r2, %t, 16, 31, 0xffff; add.u32 %r2, %r2, 1;
        st.global.u32 [%rd1], %r2; // BAD
        E:""",
        ("%t, 16, 31", "%t, 8, 31"),
        "shuffle among lanes of the mask only",
    ),
    Planted(
        "a lane votes that is not in its mask",
        "lane-outside-mask",
        """setp.lt.u32 %q0, %t, 16;
        vote.sync.ballot.b32 %r1, %q0, 0xffff; // BAD""",
        ("0xffff;", "-1;"),
        "each must be in its own mask",
    ),
    Planted(
        "lanes that meet give masks that disagree",
        "divergent-collective",
        """setp.lt.u32 %q0, %t, 16; selp.u32 %r2, 0xffffffff, 0xffff0000, %q0;
        redux.sync.add.u32 %r1, %t, %r2; // BAD""",
        ("0xffffffff, 0xffff0000", "0x0000ffff, 0xffff0000"),
        "lanes that meet must give the same mask",
    ),
    Planted(
        "an index runs out of a shared array into its neighbour",
        "neighbouring-variable",
        ARRAYS + "st.shared.u32 [%r2+4], %t; // BAD",
        ("[%r2+4]", "[%r2]"),
        "byte 128 of a, which has 128, is byte 0 of b: keep the index within a",
    ),
    Planted(
        "a negative index by a generic address",
        "neighbouring-variable",
        ARRAYS
        + """cvt.u64.u32 %rd1, %r3; cvta.shared.u64 %rd1, %rd1; add.s64 %rd2, %rd1, -4;
        st.u32 [%rd2], 0; // BAD""",
        ("-4;", "0;"),
        "byte -4 of b",
    ),
    Planted(
        "an array of local memory and its neighbour",
        "neighbouring-variable",
        """.local .u32 l[4]; .local .u32 m[4]; st.local.u32 [l], 1; st.local.u32 [m], 1;
        ld.local.u32 %r1, [l+16]; // BAD""",
        ("l+16", "l"),
        "is byte 0 of m",
    ),
    Planted(
        "one thread uses the local address of another",
        "out-of-bounds",
        """.local .u32 l; .shared .u64 s[32]; mov.u64 %rd1, l; st.local.u32 [%rd1], %t;
        cvta.local.u64 %rd1, %rd1; mov.u32 %r2, s; mad.lo.u32 %r3, %t, 8, %r2;
        st.shared.u64 [%r3], %rd1; bar.warp.sync -1; xor.b32 %r4, %t, 1; // OTHER
        mad.lo.u32 %r3, %r4, 8, %r2; ld.shared.u64 %rd2, [%r3];
        ld.u32 %r1, [%rd2]; // BAD""",
        ("// OTHER", "mov.u32 %r4, %t;"),
        "of another thread (warp 0, lane 1 of its block): only that thread can reach it",
    ),
    Planted(
        "a local address from a shuffle, back from its generic form",
        "out-of-bounds",
        """.local .u32 l; mov.u64 %rd1, l; st.local.u32 [%rd1], %t; cvta.local.u64 %rd1, %rd1;
        mov.b64 {%r1, %r2}, %rd1; shfl.sync.idx.b32 %r1, %r1, 0, 31, -1; // FIRST
        mov.b64 %rd1, {%r1, %r2};
        cvta.to.local.u64 %rd1, %rd1; // BAD
        ld.local.u32 %r3, [%rd1];""",
        ("shfl.sync.idx.b32 %r1, %r1, 0, 31, -1;", ""),
        "pass the value, or use shared memory",
    ),
    Planted(
        "warp-synchronous code",
        "race",
        EXCHANGE.format("", "// SYNC").replace("%t; //", "%t; // BAD"),
        ("// BAD SYNC", "bar.warp.sync -1;"),
        "bar.warp.sync of both lanes between the two",
    ),
    Planted(
        "warp-synchronous code by volatile accesses",
        "volatile-warp-sync",
        EXCHANGE.format(".volatile", "// SYNC").replace("%t; //", "%t; // BAD"),
        ("// BAD SYNC", "bar.warp.sync -1;"),
        "bar.warp.sync of both lanes between the two",
    ),
    Planted(
        "lanes write their numbers to one word",
        "lanes-overwrite",
        """and.b32 %r1, %t, 1;
        st.global.u32 [%p0], %r1; // BAD""",
        ("%t, 1;", "%t, 0;"),
        "missing-warp-sync",
    ),
    Planted(
        "ld.global.nc of what the same thread has written",
        "proxy-hazard",
        """mad.wide.u32 %rd1, %t, 4, %p0; st.global.u32 [%rd1], %t;
        ld.global.nc.u32 %r1, [%rd1]; // BAD""",
        (".nc", ""),
        "through the non-coherent cache, which this kernel has written",
    ),
    Planted(
        "ld.global.nc of what another block has written, beside what it may read",
        "proxy-hazard",
        """mov.u32 %r1, %ctaid.x; mad.wide.u32 %rd1, %r1, 4, %p0;
        atom.global.add.u32 %r2, [%rd1], 1;
        ld.global.nc.u32 %r3, [%rd1+0]; // BAD""",
        ("+0", "+64"),
        "ld.global without .nc",
        threads=1,
        blocks=2,
    ),
    Planted(
        "a bulk copy of global bytes that the thread has stored",
        "proxy-hazard",
        COPY.format("st.global.u32 [%p0+64], 7; // FENCE\n"),
        ("// FENCE", "fence.proxy.async.global;"),
        "no fence.proxy.async or fence.proxy.async.global since",
        threads=1,
    ),
    Planted(
        "a bulk copy of stored bytes behind a fence of shared memory only",
        "proxy-hazard",
        COPY.format("st.global.u32 [%p0+64], 7; fence.proxy.async.shared::cta;\n"),
        ("async.shared::cta", "async"),
        "x[16]",
        threads=1,
    ),
    Planted(
        "a bulk copy of bytes stored behind the fence",
        "proxy-hazard",
        COPY.format("fence.proxy.async; st.global.u32 [%p0+64], 7;\n"),
        ("[%p0+64]", "[%p0+128]"),
        "through the async proxy, written by block number 0",
        threads=1,
    ),
    Planted(
        "a store of what was there before a bulk store that is on its way",
        "race",
        """.shared .align 16 .b8 d[128]; mov.u32 %r1, d; mad.lo.u32 %r2, %t, 4, %r1;
        st.shared.u32 [%r2], 7; fence.proxy.async; bar.sync 0; setp.ne.u32 %q0, %t, 0; @%q0 bra E;
        cp.async.bulk.global.shared::cta.bulk_group [%p0], [%r1], 128; // BAD
        cp.async.bulk.commit_group;
        E: setp.eq.u32 %q1, %t, 1;
        @%q1 st.global.u32 [%p0+16], 0; // BAD
        @!%q0 cp.async.bulk.wait_group 0;""",
        ("E: setp", "cp.async.bulk.wait_group 0; E: bar.sync 0; setp"),
        "is not ordered after",
    ),
    Planted(
        "a plain store behind which an atomic of the same thread follows",
        "race",
        """mov.u32 %r0, %ctaid.x; setp.ne.u32 %q0, %r0, 0; mov.u32 %r9, 0; @%q0 bra LATE;
        st.global.u32 [%p0], 0; // BAD
        bra ALL;
        LATE: add.u32 %r9, %r9, 1; setp.lt.u32 %q1, %r9, 50; @%q1 bra LATE; ALL:
        red.relaxed.gpu.global.add.u32 [%p0], 1; // BAD""",
        ("st.global", "st.relaxed.gpu.global"),
        "is not ordered after",
        threads=1,
        blocks=2,
    ),
]
