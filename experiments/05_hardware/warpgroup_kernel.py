"""A warpgroup of which one warp comes late to a product, and whose other warps overwrite the
operands as soon as their own ``wgmma.wait_group`` lets them go on.

``Shape.probe()`` is the kernel. A and B are ones, what overwrites them is twos, so that every
result says how many of its terms were read too late. A block has a warpgroup and four more warps,
one on each quarter of the multiprocessor: those that are asked to keep its tensor core busy.

Buffers: "settings" uint32 [8] (``SETTINGS``), "stamps" uint64 [blocks, 8, 11] (the cycle counter of
each warp, ``STAMPS``), "out" float32 [blocks, 128, n / 2].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.witness.probe import Probe, Result, Snippets, frame
from numba_marlin.witness.waits import DATA

WARPS, THREADS, BLOCK, DEPTH_BYTES = 4, 128, 256, 32
A_BYTES = 64 * DEPTH_BYTES
ONES, TWOS = "0x3C003C00", "0x40004000"  # pairs of fp16
PLACES = ("fence", "product", "middle", "commit", "wait")
SETTINGS = ("late", "nanoseconds", "writers", "first", "bytes", "proxy", "busy", "rounds")
STAMPS = (
    "start",  # behind the block's barrier
    "fence",  # before wgmma.fence
    "fenced",
    "product",  # before the first wgmma
    "issued",  # behind the last
    "commit",
    "committed",
    "wait",
    "waited",
    "overwritten",
    "end",
)
# Without a swizzle: eight rows of a chunk are 128 bytes, their next chunk of k follows, then the
# next eight rows.
DESCRIPTOR = 128 >> 4 << 16 | 256 >> 4 << 32


@dataclass(frozen=True)
class Shape:
    """columns: N. products: how many wgmma, each with a B of its own, into the same accumulators.
    registers: A is in registers. place: where the late warp is held back. left: groups that the
    wait leaves in flight (each product is a group then; 0: all are one group). early: the others
    overwrite before their wait, which is a race: what the probe must be able to see."""

    columns: int
    products: int
    registers: bool
    place: str
    left: int = 0
    early: bool = False

    @property
    def b_bytes(self) -> int:
        return self.columns * DEPTH_BYTES * self.products

    @property
    def name(self) -> str:
        return (
            f"m64n{self.columns}k16 x{self.products} A in"
            f" {'registers' if self.registers else 'shared memory'}, late at {self.place}"
            + (f", {self.left} groups left" if self.left else "")
            + (", overwritten before the wait" if self.early else "")
        )

    def probe(self, blocks: int) -> Probe:
        snippets = Snippets()
        stamps, half = len(STAMPS), self.columns // 2
        declared = (
            f".reg .f32 %d<{half}>;\n.reg .b64 %k<{stamps}>;\n.reg .b64 %b<{self.products}>;\n"
            ".reg .b64 %a;\n.reg .f32 %e<16>;"
        )
        return Probe(
            self.name,
            ("wgmma_wait_group",),
            frame(_body(self, snippets), BLOCK, 3, registers=declared),
            lambda: {
                "settings": np.zeros(len(SETTINGS), np.uint32),
                "stamps": np.zeros((blocks, 2 * WARPS, stamps), np.uint64),
                "out": np.zeros((blocks, THREADS, half), np.float32),
            },
            {"stamps": Result(), "out": Result()},
            blocks,
            BLOCK,
            blocks * THREADS,
            shared_bytes=DATA + A_BYTES + self.b_bytes,
            uses=tuple(snippets.names),
        )


def _stamp(name: str) -> str:
    return f"mov.u64 %k{STAMPS.index(name)}, %clock64;\n"


def _body(shape: Shape, snippets: Snippets) -> str:
    return (
        _settings()
        + _fill(shape, snippets)
        + "bar.sync 0;\n"
        + _stamp("start")
        + "setp.ge.u32 %q3, %r10, 4; @%q3 bra BESIDE;\n"
        + _products(shape, snippets)
        + _results(shape)
        + "bra LEAVE;\n"
        + _beside(snippets)
        + _stamps()
    )


def _settings() -> str:
    """%r0 .. %r7: SETTINGS. %r10, %r11: warp and lane. %r12: how long this warp is held back; %q2:
    this warp overwrites; %q4: and fences it for the asynchronous proxy."""
    loads = "".join(f"ld.global.u32 %r{i}, [%p0+{4 * i}];\n" for i in range(len(SETTINGS)))
    return f"""{loads}shr.u32 %r10, %t, 5; and.b32 %r11, %t, 31;
setp.eq.u32 %q1, %r10, %r0; selp.u32 %r12, %r1, 0, %q1;
shr.u32 %r13, %r2, %r10; and.b32 %r13, %r13, 1; setp.ne.u32 %q2, %r13, 0;
setp.ne.u32 %q4, %r5, 0;
mov.b32 %r14, {ONES}; mov.b32 %r15, {TWOS};
"""


def _fill(shape: Shape, snippets: Snippets) -> str:
    vector = ", ".join(["%r14"] * 4)
    return f"""mad.lo.u32 %r16, %t, 16, %s; add.u32 %r16, %r16, {DATA};
add.u32 %r17, %s, {DATA + A_BYTES + shape.b_bytes};
FILL: setp.lt.u32 %q0, %r16, %r17; @%q0 st.shared.v4.b32 [%r16], {{{vector}}};
add.u32 %r16, %r16, {16 * BLOCK}; @%q0 bra FILL;
{snippets.put("fence_proxy_async_shared")}"""


def _products(shape: Shape, snippets: Snippets) -> str:
    put, half = snippets.put, shape.columns // 2
    d = [f"%d{i}" for i in range(half)]

    def held(place: str) -> str:
        return "nanosleep.u32 %r12;\n" if place == shape.place else ""

    text = "".join(f"mov.f32 {each}, 0f00000000;\n" for each in d)
    text += f"""add.u32 %r18, %s, {DATA}; shr.u32 %r18, %r18, 4; cvt.u64.u32 %a, %r18;
or.b64 %a, %a, {DESCRIPTOR};
"""
    for i in range(shape.products):
        offset = A_BYTES + i * shape.columns * DEPTH_BYTES >> 4
        text += f"add.u64 %b{i}, %a, {offset};\n"
    text += _stamp("fence").replace("mov", held("fence") + "mov") + put("wgmma_fence")
    text += _stamp("fenced") + held("product") + _stamp("product")
    for i in range(shape.products):
        text += held("middle") if i == shape.products // 2 else ""
        a = ["%r14"] * 4 if shape.registers else "%a"
        text += _wgmma(shape.columns, d, a, f"%b{i}", i > 0)
        if shape.left and i < shape.products - 1:
            text += put("wgmma_commit_group")
    text += _stamp("issued") + held("commit") + _stamp("commit") + put("wgmma_commit_group")
    text += _stamp("committed") + held("wait") + _stamp("wait")
    if shape.early:
        text += _overwrite_early()
    text += put("wgmma_wait_group", n=shape.left) + _stamp("waited")
    if not shape.early:
        text += _overwrite(snippets)
    text += _stamp("overwritten")
    return text + (put("wgmma_wait_group", n=0) if shape.left else "")


def _wgmma(columns: int, d: list[str], a, b: str, adds: bool) -> str:
    """As in ptx/wgmma_m64k16_f32_f16_*.ptx, but that scale-d is known: no predicate is set between
    the products, so that ptxas has no reason to take them one by one."""
    operand = f"{{{', '.join(a)}}}" if isinstance(a, list) else a
    turned = "0" if isinstance(a, list) else "0, 0"
    return (
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {{{', '.join(d)}}}, {operand},"
        f" {b}, {int(adds)}, 1, 1, {turned};\n"
    )


def _overwrite(snippets: Snippets) -> str:
    """Every writing warp overwrites "bytes" bytes, "first" behind A's begin, from the end."""
    vector = ", ".join(["%r15"] * 4)
    return f"""@!%q2 bra KEPT;
add.u32 %r20, %s, %r3; add.u32 %r20, %r20, {DATA}; mad.lo.u32 %r21, %r11, 16, %r20;
add.u32 %r22, %r21, %r4;
NEXT: sub.u32 %r22, %r22, 512; setp.ge.s32 %q5, %r22, %r20;
@%q5 st.shared.v4.b32 [%r22], {{{vector}}};
setp.gt.s32 %q6, %r22, %r21; @%q6 bra NEXT;
@!%q4 bra KEPT;
{snippets.put("fence_proxy_async_shared")}KEPT:
"""


def _overwrite_early() -> str:
    """The same, but no more than 2048 bytes: without a loop, which ptxas would not have between a
    product and its wait."""
    vector = ", ".join(["%r15"] * 4)
    text = f"""add.u32 %r20, %s, %r3; add.u32 %r20, %r20, {DATA};
mad.lo.u32 %r22, %r11, 16, %r20; add.u32 %r22, %r22, %r4;
"""
    for _ in range(4):
        text += f"""sub.u32 %r22, %r22, 512; setp.ge.s32 %q5, %r22, %r20; and.pred %q5, %q5, %q2;
@%q5 st.shared.v4.b32 [%r22], {{{vector}}};
"""
    return text


def _results(shape: Shape) -> str:
    half = shape.columns // 2
    text = _stamp("end")
    text += f"mad.lo.u32 %r23, %c, {THREADS}, %t; mad.wide.u32 %rd0, %r23, {4 * half}, %p2;\n"
    for i in range(0, half, 4):
        vector = ", ".join(f"%d{i + j}" for j in range(4))
        text += f"st.global.v4.f32 [%rd0+{4 * i}], {{{vector}}};\n"
    return text


def _beside(snippets: Snippets) -> str:
    """Warps that are asked to keep a tensor core busy do, "rounds" times four products."""
    text = f"BESIDE:\n{_zero(STAMPS[1:])}"
    text += "shr.u32 %r24, %r6, %r10; and.b32 %r24, %r24, 1; setp.eq.u32 %q7, %r24, 0;\n"
    text += "@%q7 bra LEAVE; mov.u32 %r25, 0;\n"
    text += "".join(f"mov.f32 %e{i}, 0f00000000;\n" for i in range(16)) + "ROUND:\n"
    for i in range(4):
        d = ", ".join(f"%e{4 * i + j}" for j in range(4))
        text += (
            f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{d}}}, {{%r14, %r14, %r14,"
            f" %r14}}, {{%r14, %r14}}, {{{d}}};\n"
        )
    text += "add.u32 %r25, %r25, 1; setp.lt.u32 %q8, %r25, %r7; @%q8 bra ROUND;\n"
    text += "add.f32 %e0, %e0, %e4; add.f32 %e8, %e8, %e12; add.f32 %e0, %e0, %e8;\n"
    # never taken: what keeps the products
    text += "setp.lt.f32 %q9, %e0, 0f00000000; @%q9 st.global.f32 [%p2], %e0;\n"
    return text + _stamp("end")


def _zero(names) -> str:
    return "".join(f"mov.u64 %k{STAMPS.index(name)}, 0;\n" for name in names)


def _stamps() -> str:
    text = "LEAVE: setp.ne.u32 %q10, %r11, 0; @%q10 bra DONE;\n"
    text += f"mad.lo.u32 %r26, %c, {2 * WARPS}, %r10;\n"
    text += f"mad.wide.u32 %rd1, %r26, {8 * len(STAMPS)}, %p1;\n"
    for i in range(len(STAMPS)):
        text += f"st.global.u64 [%rd1+{8 * i}], %k{i};\n"
    return text + "DONE:"
