"""Programs that multiply with tcgen05, and what they must give, for tests."""

import numpy as np
import pytest

from numba_marlin.emulator import (
    Machine,
)
from numba_marlin.emulator.state.memory import SHARED_BASE
from numba_marlin.formats import small_floats
from numba_marlin.layout import block_scales, tcgen05, wgmma
from numba_marlin.layout.tcgen05 import KINDS, InstructionDescriptor
from tests.emulator.ptx_cases import HEADER, frame, snippet

START = SHARED_BASE + -SHARED_BASE % 1024


MULTIPLY = {
    "mxf4nvf4": "tcgen05_mma_mxf4nvf4_4x",
    "mxf4": "tcgen05_mma_mxf4_2x",
    "mxf8f6f4": "tcgen05_mma_mxf8f6f4_1x",
}


NVFP4, MXFP4, MXFP8 = KINDS["mxf4nvf4", "4X"], KINDS["mxf4", "2X"], KINDS["mxf8f6f4", "1X"]


ELEMENTS = {NVFP4: "e2m1", MXFP4: "e2m1", MXFP8: "e4m3"}


SCALES = {NVFP4: "e4m3", MXFP4: "e8m0", MXFP8: "e8m0"}


def scale_blocks(scales):
    """[rows, count] bytes -> blocks of 512 bytes: [blocks of 128 rows, blocks of 4 scales, 512]."""
    return block_scales.to_tiles(scales).reshape(
        *block_scales.tiles(*scales.shape), block_scales.TILE_BYTES
    )


def packed(codes, bits):
    return codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4


class Case:
    """A product of one block of 128 threads: operands in shared memory, and the parts of its text,
    for tests to put together or to break."""

    def __init__(self, kind, a, b, sfa, sfb, swizzle=128, negate=(False, False), columns=512):
        self.kind, self.n, self.columns = kind, b.shape[0], columns
        self.steps = a.shape[1] // kind.depth
        parts, self.descriptors, at = [], [], START
        for codes in (a, b):
            tile, found = wgmma.store_tile(
                np.ascontiguousarray(packed(codes, kind.bits)).view(np.uint16), swizzle
            )
            self.descriptors.append(
                [
                    tcgen05.encode(
                        wgmma.Descriptor(d.address + at, d.stride_bytes, d.leading_bytes, d.swizzle)
                    )
                    for d in found
                ]
            )
            parts.append(np.pad(tile, (0, -tile.size % 1024)))
            at += parts[-1].size
        self.scales = []
        for scales in (sfa, sfb):
            blocks = scale_blocks(scales)
            self.scales.append(
                [
                    [at + 512 * (r * blocks.shape[1] + c) for r in range(blocks.shape[0])]
                    for c in range(blocks.shape[1])
                ]
            )
            parts.append(blocks.reshape(-1))
            at += blocks.size
        image = np.concatenate(parts)
        self.image = np.pad(image, (0, -image.size % 2048))
        self.idesc = [
            InstructionDescriptor(
                self.n,
                ELEMENTS[kind],
                ELEMENTS[kind],
                SCALES[kind],
                *[step * kind.vectors % 4] * 2,
                *negate,
            ).encode(kind)
            for step in range(self.steps)
        ]
        self.out = np.full((128, self.n), np.nan, np.float32)

    def set_up(self, fence="fence.proxy.async.shared::cta;"):
        text = f""".shared .align 1024 .b8 s[{self.image.size}]; .shared .align 8 .b64 bar;
.shared .align 4 .b32 where;
.reg .f32 %d<256>; .reg .b32 %w, %m, %base, %bar, %x<8>; .reg .pred %first, %one;
mov.u32 %r60, s; mov.u32 %r61, %t; mov.u32 %bar, bar; shr.u32 %w, %t, 5; setp.eq.u32 %first, %w, 0;
setp.eq.u32 %one, %t, 0;
FILL: mad.lo.u32 %r62, %r61, 16, %r60; mad.wide.u32 %rd60, %r61, 16, %p0;
ld.global.v4.u32 {{%r56, %r57, %r58, %r59}}, [%rd60];
st.shared.v4.u32 [%r62], {{%r56, %r57, %r58, %r59}};
add.u32 %r61, %r61, 128; setp.lt.u32 %q15, %r61, {self.image.size // 16}; @%q15 bra FILL;
{fence}
@!%one bra MADE;
{snippet("mbarrier_init", "%bar", "1")} {snippet("fence_mbarrier_init")}
MADE: mov.u32 %r50, where; @!%first bra ALLOCATED;
{snippet("tcgen05_alloc", "%r50", columns=self.columns)}
ALLOCATED: bar.sync 0; ld.shared.b32 %base, [where];
"""
        return text

    def copies(self):
        """Of all scales, those of a step behind the accumulator's columns and those of other steps;
        by the thread that executes it."""
        text, column = "", self.n
        for of_matrix in self.scales:
            for blocks in of_matrix:
                for block in blocks:
                    text += (
                        f"add.u32 %x0, %base, {column}; mov.u64 %rd0,"
                        f" {tcgen05.scale_descriptor(block):#x};\n"
                        + snippet("tcgen05_cp_32x128b_warpx4", "%x0", "%rd0")
                    )
                    column += 4
        return text

    def product(self, step, adds=None):
        block = step * self.kind.vectors // 4
        per_a, per_b = len(self.scales[0][0]) * 4, len(self.scales[1][0]) * 4
        sfa = self.n + block * per_a
        sfb = self.n + len(self.scales[0]) * per_a + block * per_b
        text = (
            f"mov.u64 %rd1, {self.descriptors[0][step]:#x}; mov.u64 %rd2,"
            f" {self.descriptors[1][step]:#x}; mov.u32 %x1, {self.idesc[step]:#x};\n"
        )
        text += (
            f"add.u32 %x2, %base, {sfa}; add.u32 %x3, %base, {sfb}; mov.u32 %x4,"
            f" {int(step > 0 if adds is None else adds)};\n"
        )
        return text + snippet(
            MULTIPLY[self.kind.name], "%base", "%rd1", "%rd2", "%x1", "%x2", "%x3", "%x4"
        )

    def products(self):
        return "".join(self.product(step) for step in range(self.steps))

    def read_back(self, sync="", after=None):
        after = snippet("tcgen05_fence_after_thread_sync") if after is None else after
        text = sync + after + "shl.b32 %m, %w, 21; add.u32 %x5, %base, %m;\n"
        for start in range(0, self.n, 8):
            text += f"add.u32 %x6, %x5, {start};\n" + snippet(
                "tcgen05_ld_32x32b_f32", tuple(f"%d{start + i}" for i in range(8)), "%x6", n=8
            )
        text += snippet("tcgen05_wait_ld") + f"mad.wide.u32 %rd3, %t, {4 * self.n}, %p1;\n"
        return text + "".join(f"st.global.f32 [%rd3 + {4 * i}], %d{i};\n" for i in range(self.n))

    def finish(self, columns=None):
        free = snippet("tcgen05_dealloc", "%base", columns=columns or self.columns) + snippet(
            "tcgen05_relinquish_alloc_permit"
        )
        return (
            snippet("tcgen05_fence_before_thread_sync")
            + "bar.sync 0; @!%first bra GONE;\n"
            + free
            + "GONE: mov.u32 %r49, 0;\n"
        )

    def text(self):
        return (
            self.set_up()
            + ONLY_ONE
            + self.copies()
            + self.products()
            + COMMIT
            + END_ONE
            + self.read_back(WAIT)
            + self.finish()
        )

    def run(self, text=None, **options):
        races = options.pop("races", False)
        machine = Machine(
            frame(text or self.text(), 2).replace(HEADER, HEADER.replace("sm_90a", "sm_100a")),
            races=races,
        )
        args = [
            machine.memory.buffer(array, name).address
            for name, array in (("image", self.image), ("out", self.out))
        ]
        machine.run("k", block=128, args=args, **options)
        return self.out


ONLY_ONE, END_ONE = "@!%one bra ISSUED;\n", "ISSUED:\n"


COMMIT = snippet("tcgen05_commit", "%bar")


WAIT = (
    "WAIT: "
    + snippet("mbarrier_try_wait_parity", "%r48", "%bar", "0")
    + "setp.eq.u32 %q0, %r48, 0; @%q0 bra WAIT;\n"
)


def draw(kind, n, steps, seed, exact=True):
    rng, depth = np.random.default_rng(seed), kind.depth * steps
    codes = {
        4: lambda shape: rng.integers(0, 16, shape),
        8: lambda shape: rng.integers(0x30, 0x50, shape) | rng.integers(0, 2, shape) << 7,
    }[kind.bits]
    a, b = (codes((rows, depth)).astype(np.uint8) for rows in (128, n))
    ones = {"e4m3": [0x30, 0x38, 0x40], "e8m0": [126, 127, 128]}[SCALES[kind]]
    every = {"e4m3": range(0, 0x7F), "e8m0": range(100, 150)}[SCALES[kind]]
    sfa, sfb = (
        rng.choice(ones if exact else every, (rows, kind.vectors * steps)).astype(np.uint8)
        for rows in (128, n)
    )
    return a, b, sfa, sfb


def reference(kind, a, b, sfa, sfb):
    """float64, of every element times its scale."""
    left, right = (
        small_floats.decode(codes, ELEMENTS[kind]).astype(np.float64)
        * np.repeat(
            small_floats.decode(scales, SCALES[kind]).astype(np.float64), kind.block, axis=1
        )
        for codes, scales in ((a, sfa), (b, sfb))
    )
    return left, right


def broken(kind, text, pattern, case=None, **options):
    case = case or small()
    with pytest.raises(kind, match=f"(?s){pattern}") as caught:
        case.run(text, **options)
    return caught.value


def small(**options):
    return Case(NVFP4, *draw(NVFP4, 8, 1, seed=8), **options)


BEFORE, AFTER = (
    snippet("tcgen05_fence_before_thread_sync"),
    snippet("tcgen05_fence_after_thread_sync"),
)


C = small()


ISSUE = ONLY_ONE + C.copies() + C.products() + COMMIT + END_ONE


AGAIN = (
    "bar.sync 0;\n@!%one bra AGAIN;\n"
    + AFTER
    + C.product(0)
    + COMMIT
    + "AGAIN: bar.sync 0;\n"
    + WAIT.replace("WAIT", "TWICE").replace(", 0;\n", ", 1;\n", 1).replace("%bar], 0", "%bar], 1")
)
