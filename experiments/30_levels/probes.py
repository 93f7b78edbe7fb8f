"""Kernels that ask one level of the memory hierarchy, or one unit, for its latency or its rate.

Every kernel has the same frame: two sections, of ``short`` and of ``long`` steps, each between two
readings of the cycle counter. What a step takes is the difference of the sections over the
difference of their steps: what a section costs once (the counter itself, filling a pipeline) drops
out. Latency: a step needs the result of the step before it (a load from the address that the last
load gave; an FMA of the last sum). Rate: steps of all warps that need nothing of each other.

``probes(short, long, sms)`` -> [Level]; their PTX is ptx/'s where it has the instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numba_marlin.witness.probe import Probe, Result, Snippets, frame

WARP, FULL_BLOCK, LINE = 32, 1024, 128
UNROLL = 16
MB = 1 << 20
Step = Callable[[str, int], str]  # a label of its own, its place in the unrolled loop


@dataclass(frozen=True)
class Level:
    """probe: buffers "times" [blocks, 6] uint64 (counter before and after either section, and
    nanoseconds before and after all) and "sink". amount: bytes or operations of a block's step
    (rates), else 1. unit: "cycles" of a step, "bytes" or "operations" of an SM's cycle."""

    name: str
    level: str
    unit: str
    probe: Probe
    short: int
    long: int
    amount: int = 1
    note: str = ""


def section(step: Step, steps: int, at: int, together: bool, unroll: int) -> str:
    """``steps`` times ``step``, between two counters in slots ``at`` and ``at + 1``. together: the
    block waits for all its warps."""
    wait = "bar.sync 0;\n" if together else ""
    loop = "".join(step(f"{at}_{i}", i) for i in range(unroll))
    return f"""{wait}mov.u64 %rd{40 + at}, %clock64;
mov.u32 %r60, {steps // unroll};
LOOP{at}:
{loop}sub.u32 %r60, %r60, 1; setp.ne.u32 %q15, %r60, 0; @%q15 bra LOOP{at};
{wait}mov.u64 %rd{41 + at}, %clock64;
"""


def kernel(
    name: str,
    level: str,
    unit: str,
    step: Step,
    snippets: Snippets,
    short: int,
    long: int,
    *,
    block: int = WARP,
    grid: int = 1,
    cluster: int = 1,
    before: str = "",
    after: str = "",
    sink: str = "%r0",
    last: str = "",
    registers: str = "",
    shared_bytes: int = 0,
    words: int = 32,
    amount: int = 1,
    unroll: int = UNROLL,
    alone: bool = False,
    note: str = "",
) -> Level:
    """A Level; %p2 is a buffer of ``words`` words of zeros, for the kernel to use; %r59 is 0, which
    the assembler does not know."""
    together = block > WARP and not alone
    body = f"""ld.global.b32 %r59, [%p1];
{before}
mov.u64 %rd44, %globaltimer;
{section(step, short, 0, together, unroll)}{section(step, long, 2, together, unroll)}
mov.u64 %rd45, %globaltimer;
setp.ne.u32 %q14, %t, 0; mad.wide.u32 %rd46, %c, 48, %p0;
"""
    body += "".join(f"@!%q14 st.global.u64 [%rd46 + {8 * i}], %rd{40 + i};\n" for i in range(6))
    body += f"{last}mad.wide.u32 %rd47, %g, 4, %p1; st.global.b32 [%rd47], {sink};\n{after}"

    def buffers():
        return {
            "times": np.zeros((grid, 6), np.uint64),
            "sink": np.zeros(grid * block, np.uint32),
            "memory": np.zeros(words, np.uint32),
        }

    results = {"times": Result(), "sink": Result()}
    probe = Probe(
        name,
        tuple(snippets.names),
        frame(body, block, 3, registers=registers, cluster=cluster),
        buffers,
        results,
        grid,
        block,
        grid * block,
        shared_bytes=shared_bytes,
        cluster=cluster,
    )
    return Level(name, level, unit, probe, short, long, amount, note)


def chain(name: str, level: str, text: str, put: Snippets, sections, **more) -> Level:
    """Latency: a step is ``text``, which needs what the last one gave."""
    return kernel(name, level, "cycles", lambda label, i: text, put, *sections, **more)


# ---- latencies


def fma_latency(*sections: int) -> Level:
    put = Snippets()
    text = put.put("fma_rn_f32", "%f0", "%f0", "%f1", "%f2")
    ones = "mov.f32 %f0, 0f3f800000; mov.f32 %f1, 0f3f000000; mov.f32 %f2, 0f3f000000;"
    return chain("fma.rn.f32", "registers", text, put, sections, before=ones, sink="%f0")


def mma_latency(*sections: int) -> Level:
    put, sums = Snippets(), [f"%f{i}" for i in range(4)]
    text = put.put("mma_m16n8k16_f32_f16", sums, ["%r1"] * 4, ["%r1"] * 2, sums)
    zero = "mov.u32 %r1, 0;" + "".join(f"mov.f32 {each}, 0f00000000;" for each in sums)
    name = "mma.sync m16n8k16, its sums"
    return chain(name, "tensor cores", text, put, sections, before=zero, sink="%f0")


def shared_latency(*sections: int) -> Level:
    """The word holds its own address: every load needs the one before it."""
    put = Snippets()
    text = put.put("ld_shared_b32", "%r0", "%r0")
    own = "mov.u32 %r0, %s; st.shared.b32 [%r0], %r0; bar.warp.sync 0xffffffff;"
    name = "ld.shared"
    return chain(name, "shared memory", text, put, sections, before=own, shared_bytes=1024)


def ldmatrix_latency(*sections: int) -> Level:
    """All words of the matrices hold their address."""
    put = Snippets()
    text = put.put("ldmatrix_x4", ["%r0", "%r1", "%r2", "%r3"], "%r0")
    own = "mad.lo.u32 %r4, %t, 4, %s; st.shared.b32 [%r4], %s;"
    own += "mov.u32 %r0, %s; bar.warp.sync 0xffffffff;"
    return chain("ldmatrix.x4", "shared memory", text, put, sections, before=own, shared_bytes=1024)


def cluster_latency(*sections: int) -> Level:
    put = Snippets()
    own = put.put("cluster_ctarank", "%r5") + put.put("mapa_shared", "%r6", "%s", "%r5")
    own += "st.shared.b32 [%s], %r6; xor.b32 %r5, %r5, 1;\n"
    own += put.put("mapa_shared", "%r0", "%s", "%r5")
    meet = put.put("cluster_arrive") + put.put("cluster_wait")
    return chain(
        "ld.shared::cluster, of another block",
        "shared memory of a cluster",
        "ld.shared::cluster.u32 %r0, [%r0];\n",
        put,
        sections,
        before=own + meet,
        after=meet,
        grid=2,
        cluster=2,
        shared_bytes=1024,
    )


def chase(
    name: str, level: str, cache: str, lines: int, apart: int, *sections: int, flushed: int = 0
) -> Level:
    """Loads of 8 bytes, each from the address that the last one gave, through ``lines`` lines of
    128 bytes, a power of two, ``apart`` bytes apart, i -> 5 i + 3: once before anything is timed.
    flushed: instead, so many bytes behind them are read, which sends them out of the L2 cache."""
    load = f"ld.global.{cache}.u64 %rd0, [%rd0];\n"
    block = FULL_BLOCK if flushed else WARP
    before = f"""mov.u32 %r1, %t;
CHAIN: mad.lo.u32 %r2, %r1, 5, 3; and.b32 %r2, %r2, {lines - 1};
mad.wide.u32 %rd1, %r1, {apart}, %p2; mad.wide.u32 %rd2, %r2, {apart}, %p2;
st.global.u64 [%rd1], %rd2;
add.u32 %r1, %r1, {block}; setp.lt.u32 %q1, %r1, {lines}; @%q1 bra CHAIN;
bar.sync 0; fence.acq_rel.gpu; mov.u64 %rd0, %p2;
"""
    if flushed:
        before += f"""add.u64 %rd3, %p2, {lines * apart}; mad.wide.u32 %rd3, %t, 16, %rd3;
mov.u32 %r3, {flushed // (16 * block)};
FLUSH: ld.global.cg.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd3]; xor.b32 %r58, %r59, %r4;
add.u64 %rd3, %rd3, {16 * block}; sub.u32 %r3, %r3, 1; setp.ne.u32 %q1, %r3, 0; @%q1 bra FLUSH;
bar.sync 0; setp.ge.u32 %q2, %t, {WARP}; @%q2 ret;
"""
    else:
        before += f"""mov.u32 %r3, {lines};
WARM: {load}sub.u32 %r3, %r3, 1; setp.ne.u32 %q1, %r3, 0; @%q1 bra WARM;
"""
    words = (lines * apart + flushed) // 4
    put = Snippets()
    last = "cvt.u32.u64 %r0, %rd0;\n"
    more = {"words": words, "block": block, "alone": True, "last": last}
    return chain(name, level, load, put, sections, before=before, **more)


def bulk_latency(nbytes: int, *sections: int) -> Level:
    """From the issue of a bulk copy until its barrier's phase has completed, one after another."""
    put = Snippets()
    init = put.put("mbarrier_init", "%s", "%r10")
    before = f"setp.ne.u32 %q3, %t, 0; mov.u32 %r10, 1; mov.u32 %r12, 0; @%q3 ret;\n{init}"
    before += put.put("fence_mbarrier_init")
    before += f"add.u32 %r11, %s, 128; mov.u32 %r14, {nbytes};\n"
    go = put.put("mbarrier_arrive_expect_tx", "%s", "%r14")
    go += put.put("cp_async_bulk_g2s", "%r11", "%p2", "%r14", "%s")
    wait = put.put("mbarrier_try_wait_parity", "%r13", "%s", "%r12")

    def step(label: str, i: int) -> str:
        again = f"setp.eq.u32 %q4, %r13, 0; @%q4 bra WAIT{label}; xor.b32 %r12, %r12, 1;\n"
        return f"{go}WAIT{label}: {wait}{again}"

    return kernel(
        f"cp.async.bulk of {nbytes:,} bytes and its mbarrier",
        "L2 to shared memory",
        "cycles",
        step,
        put,
        *sections,
        before=before,
        shared_bytes=128 + nbytes,
        words=nbytes // 4,
        sink="%r12",
    )


# ---- rates


def added(registers: list[str]) -> str:
    """All of them into the first: what nobody reads, the assembler would leave out."""
    first, *others = registers
    return "".join(f"add.rn.f32 {first}, {first}, {each};\n" for each in others)


def fma_rate(*sections: int) -> Level:
    put = Snippets()
    sums = "".join(put.put("fma_rn_f32", f"%f{i}", f"%f{i}", "%f8", "%f9") for i in range(8))
    return kernel(
        "fma.rn.f32",
        "registers",
        "operations",
        lambda label, i: sums,
        put,
        *sections,
        block=FULL_BLOCK,
        before="".join(f"mov.f32 %f{i}, 0f3f000000;" for i in range(10)),
        last=added([f"%f{i}" for i in range(8)]),
        sink="%f0",
        amount=2 * 8 * FULL_BLOCK,
        unroll=4,
    )


def shared_rate(*sections: int) -> Level:
    put = Snippets()
    words = ["%r1", "%r2", "%r3", "%r4"]
    load = put.put("ld_shared_v4_b32", words, "%r5")
    mix = "".join(f"xor.b32 %r0, %r0, {each};" for each in words)

    def step(label: str, i: int) -> str:  # %r59 is 0: no load is the same for the assembler
        return f"{load}{mix} add.u32 %r5, %r5, %r59;\n"

    return kernel(
        "ld.shared.v4, no conflicts",
        "shared memory",
        "bytes",
        step,
        put,
        *sections,
        block=FULL_BLOCK,
        before="mad.lo.u32 %r5, %t, 16, %s; st.shared.v4.b32 [%r5], {%t, %t, %t, %t};"
        " mov.u32 %r0, 0; bar.sync 0;",
        shared_bytes=16 * FULL_BLOCK,
        sink="%r0",
        amount=16 * FULL_BLOCK,
    )


def stream(
    name: str, level: str, cache: str, nbytes: int, grid: int, *sections: int, own: bool
) -> Level:
    """16 bytes a thread and step, of ``nbytes``, a power of two, again and again; all blocks the
    same (own: each from its own place on)."""
    first = nbytes // grid // (16 * FULL_BLOCK) * (16 * FULL_BLOCK) if own else 0
    before = f"mad.lo.u32 %r5, %t, 16, 0; mad.lo.u32 %r5, %c, {first}, %r5; mov.u32 %r0, 0;\n"
    load = f"ld.global.{cache}.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd0];"
    mix = "".join(f"xor.b32 %r0, %r0, %r{i};" for i in range(1, 5))

    def step(label: str, i: int) -> str:
        where = f"and.b32 %r5, %r5, {nbytes - 1}; mad.wide.u32 %rd0, %r5, 1, %p2;"
        return (
            f"{where} {load} add.u32 %r5, %r5, {16 * FULL_BLOCK}; add.u32 %r5, %r5, %r59; {mix}\n"
        )

    return kernel(
        name,
        level,
        "bytes",
        step,
        Snippets(),
        *sections,
        block=FULL_BLOCK,
        grid=grid,
        before=before,
        sink="%r0",
        words=nbytes // 4,
        amount=16 * FULL_BLOCK,
    )


def mma_rate(*sections: int) -> Level:
    put, chains = Snippets(), 4
    sums = [[f"%f{4 * c + i}" for i in range(4)] for c in range(chains)]
    text = "".join(
        put.put("mma_m16n8k16_f32_f16", each, ["%r1"] * 4, ["%r1"] * 2, each) for each in sums
    )
    zero = "mov.u32 %r1, 0;" + "".join(f"mov.f32 {x}, 0f00000000;" for each in sums for x in each)
    return kernel(
        "mma.sync m16n8k16, fp16",
        "tensor cores",
        "operations",
        lambda label, i: text,
        put,
        *sections,
        block=512,
        before=zero,
        last=added([x for each in sums for x in each]),
        sink="%f0",
        amount=2 * 16 * 8 * 16 * chains * 512 // WARP,
        unroll=4,
    )


def levels(sms: int, size: int = MB, short: int = 256, long: int = 2048) -> list[Level]:
    """All of them. size: of a megabyte, less for a try on the PTX machine."""
    s = short, long
    few = max(short // 4, UNROLL), max(long // 4, 2 * UNROLL)
    lines = 2 * (short + long)
    return [
        fma_latency(*s),
        shared_latency(*s),
        ldmatrix_latency(*s),
        cluster_latency(*s),
        chase("ld.global, in L1", "L1 cache", "ca", 64, LINE, *s),
        chase("ld.global.cg, in L2", "L2 cache", "cg", 1024, size // 64, *s),
        chase(
            "ld.global.cg, not in L2",
            "memory",
            "cg",
            1 << (lines - 1).bit_length(),
            size // 128,
            *s,
            flushed=256 * size,
        ),
        bulk_latency(128, *few),
        bulk_latency(16384, *few),
        mma_latency(*s),
        fma_rate(*few),
        shared_rate(*s),
        stream("ld.global.v4, in L1", "L1 cache", "ca", 16 * 1024, 1, *s, own=False),
        stream("ld.global.cg.v4, in L2", "L2 cache", "cg", 16 * size, sms, *s, own=True),
        stream("ld.global.cg.v4, all SMs", "memory", "cg", 1024 * size, sms, *s, own=True),
        mma_rate(*few),
    ]
