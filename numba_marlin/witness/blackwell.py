"""Probes of what only Blackwell has: products with block scales, through tensor memory (sm_100a)
and by mma.sync (sm_120a). No GPU at hand has run them.

Codes are random in all bits, e4m3 but for NaN; scales are near 1 and, in other probes, of all
sizes: those show the order and the rounding of the sum, about which the machine only has an
assumption (``emulator.tensor.block_scales``). Small integers are exact in any order, so that a
wrong place shows.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.layout import block_scales, tcgen05, wgmma
from numba_marlin.layout.tcgen05 import KINDS, InstructionDescriptor
from numba_marlin.witness import draws
from numba_marlin.witness.probe import Probe, Result, Snippets, frame
from numba_marlin.witness.waits import DATA, barriers, fill, status, wait

BLOCK, COLUMNS, MANY = 128, 32, 512
TENSOR, CONSUMER = "sm_100a", "sm_120a"
PRODUCTS = {
    "tcgen05_mma_mxf4nvf4_4x": ("mxf4nvf4", "4X", "e2m1", "e4m3"),
    "tcgen05_mma_mxf4_2x": ("mxf4", "2X", "e2m1", "e8m0"),
    "tcgen05_mma_mxf8f6f4_1x": ("mxf8f6f4", "1X", "e4m3", "e8m0"),
}
WARP_PRODUCTS = {
    "mma_m16n8k64_f32_mxf4nvf4_4x": ("e4m3", {}),
    "mma_m16n8k64_f32_mxf4_2x": ("e8m0", {"byte": 2}),
}
NOTE = "the ISA leaves the order and rounding of the sum open; the machine's is an assumption"
EXACT, ANY = "exact sums", "scales of all sizes"
SCALES = {
    (EXACT, "e4m3"): (0x30, 0x41),
    (ANY, "e4m3"): (0, 0x7F),
    (EXACT, "e8m0"): (126, 129),
    (ANY, "e8m0"): (100, 150),
}


def codes(seed: str, which: str, count: int, element: str) -> np.ndarray:
    """uint8 [count]: bytes of codes, none of them NaN."""
    found = draws.raw(seed, count).astype(np.uint8)
    if element == "e2m1":
        return found
    return found & np.uint8(0x8F) | np.uint8(0x30) if which == EXACT else found & np.uint8(0xBF)


def scales(seed: str, which: str, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    low, high = SCALES[which, kind]
    drawn = draws.raw(seed, int(np.prod(shape))) % np.uint64(high - low) + np.uint64(low)
    return (
        (drawn & np.uint64(0x78) if (which, kind) == (EXACT, "e4m3") else drawn)
        .astype(np.uint8)
        .reshape(shape)
    )


def product(name: str, which: str) -> Probe:
    """A product of 128 x 32 per block, added to what was stored before, and loaded again."""
    snippets = Snippets()
    put, (kind_name, size, element, scale) = snippets.put, PRODUCTS[name]
    kind = KINDS[kind_name, size]
    a_tile = wgmma.store_tile(np.zeros((tcgen05.ROWS, 16), np.uint16), 32)[0].size
    b_tile = wgmma.store_tile(np.zeros((COLUMNS, 16), np.uint16), 32)[0].size
    sizes = [a_tile, b_tile, block_scales.TILE_BYTES, block_scales.TILE_BYTES]
    starts = [sum(sizes[:i]) for i in range(4)]
    nbytes = -(-sum(sizes) // (16 * BLOCK)) * 16 * BLOCK
    matrix = tcgen05.encode(wgmma.Descriptor(0, 8 * 32, 16, 32))
    body = barriers(put, 1) + fill(nbytes, 0, BLOCK) + put("fence_proxy_async_shared")
    body += (
        "add.u32 %r20, %s, 512; shr.u32 %r21, %t, 5; setp.ne.u32 %q1, %r21, 0; @%q1 bra"
        " ALLOCATED;\n"
        + put("tcgen05_alloc", "%r20", columns=64)
        + put("tcgen05_relinquish_alloc_permit")
    )
    body += (
        "ALLOCATED: bar.sync 0; ld.shared.b32 %r22, [%r20]; shl.b32 %r23, %r21, 21; add.u32 %r23,"
        f" %r22, %r23; mad.wide.u32 %rd10, %g, {4 * COLUMNS}, %p1;\n"
    )
    held = [f"%d{i}" for i in range(COLUMNS)]
    body += "".join(f"ld.global.f32 {x}, [%rd10 + {4 * i}];\n" for i, x in enumerate(held))
    body += (
        put("tcgen05_st_32x32b_f32", "%r23", held, n=COLUMNS)
        + put("tcgen05_wait_st")
        + put("tcgen05_fence_before_thread_sync")
        + "bar.sync 0; @%q0 bra ISSUED;\n"
    )
    body += (
        put("tcgen05_fence_after_thread_sync")
        + f"add.u32 %r24, %s, {DATA}; cvt.u64.u32 %rd11, %r24; shr.u64 %rd11, %rd11, 4;\n"
    )
    for i, (start, bits) in enumerate(
        zip(starts, (matrix, matrix, tcgen05.scale_descriptor(0), tcgen05.scale_descriptor(0)))
    ):
        body += f"add.u64 %rd{12 + i}, %rd11, {bits + (start >> 4):#x};\n"
    body += (
        f"add.u32 %r25, %r22, {COLUMNS}; add.u32 %r26, %r22, {COLUMNS + 4};\n"
        + put("tcgen05_cp_32x128b_warpx4", "%r25", "%rd14")
        + put("tcgen05_cp_32x128b_warpx4", "%r26", "%rd15")
    )
    body += (
        f"mov.u32 %r27, {InstructionDescriptor(COLUMNS, element, element, scale).encode(kind):#x};"
        " mov.u32 %r28, 1;\n"
    )
    body += (
        put(name, "%r22", "%rd12", "%rd13", "%r27", "%r25", "%r26", "%r28")
        + put("tcgen05_commit", "%r40")
        + "ISSUED:\n"
        + wait(put, "W", "%r40", "0")
    )
    body += (
        put("tcgen05_fence_after_thread_sync")
        + put("tcgen05_ld_32x32b_f32", held, "%r23", n=COLUMNS)
        + put("tcgen05_wait_ld")
    )
    body += (
        f"mad.wide.u32 %rd10, %g, {4 * COLUMNS}, %p2;\n"
        + "".join(f"st.global.f32 [%rd10 + {4 * i}], {x};\n" for i, x in enumerate(held))
        + status(3)
    )
    body += (
        put("tcgen05_fence_before_thread_sync")
        + "bar.sync 0; @%q1 bra GONE;\n"
        + put("tcgen05_dealloc", "%r22", columns=64)
        + "GONE:"
    )
    count, label = MANY // 8, f"{name} {which}"

    def buffers():
        image = np.zeros((count, nbytes), np.uint8)
        for block in range(count):
            for (rows, start), what in zip(((tcgen05.ROWS, starts[0]), (COLUMNS, starts[1])), "ab"):
                tile, _ = wgmma.store_tile(
                    codes(f"{label}/{what}{block}", which, rows * tcgen05.K_BYTES, element)
                    .reshape(rows, -1)
                    .view(np.uint16),
                    32,
                )
                image[block, start : start + tile.size] = tile
                at = starts[2 + "ab".index(what)]
                image[block, at : at + block_scales.TILE_BYTES] = block_scales.to_tiles(
                    scales(f"{label}/s{what}{block}", which, scale, (rows, 4))
                )
        c = draws.normal(f"{label}/c", count * BLOCK * COLUMNS)
        c = np.round(c * 8) if which == EXACT else c
        return {
            "image": image,
            "c": c.astype(np.float32).view(np.uint32),
            "d": np.zeros(count * BLOCK * COLUMNS, np.uint32),
            "gave_up": np.zeros(count * BLOCK, np.uint32),
        }

    covers = (
        name,
        "tcgen05_alloc",
        "tcgen05_dealloc",
        "tcgen05_cp_32x128b_warpx4",
        "tcgen05_commit",
        "tcgen05_ld_32x32b_f32",
        "tcgen05_st_32x32b_f32",
        "tcgen05_wait_st",
    )
    return Probe(
        label,
        covers,
        frame(body, BLOCK, 4, registers=f".reg .f32 %d<{COLUMNS}>;\n", target=TENSOR),
        buffers,
        {"d": Result("float32"), "gave_up": Result()},
        count,
        BLOCK,
        count,
        shared_bytes=DATA + nbytes,
        uses=tuple(n for n in snippets.names if n not in covers),
        note=NOTE if which == ANY else "",
        target=TENSOR,
    )


def warp_product(name: str, which: str, thread_a: int, thread_b: int) -> Probe:
    """A product of 16 x 8 x 64 per warp; registers are random, those of scales also in the bytes
    that are not read."""
    snippets, (scale, more) = Snippets(), WARP_PRODUCTS[name]
    a, b, c, d = (
        [f"%{x}{i}" for i in range(width)] for x, width in (("a", 4), ("b", 2), ("c", 4), ("d", 4))
    )
    registers = "".join(f".reg .b32 {x};\n" for x in a + b) + "".join(
        f".reg .f32 {x};\n" for x in c + d
    )
    body = ""
    for position, held in enumerate((a, b, c)):
        body += f"mad.wide.u32 %rd0, %g, {4 * len(held)}, %p{position};\n" + "".join(
            f"ld.global.b32 {x}, [%rd0 + {4 * i}];\n" for i, x in enumerate(held)
        )
    body += "mad.wide.u32 %rd0, %g, 8, %p3; ld.global.v2.b32 {%r0, %r1}, [%rd0];\n" + snippets.put(
        name, d, a, b, c, "%r0", "%r1", thread_a=thread_a, thread_b=thread_b, **more
    )
    body += "mad.wide.u32 %rd0, %g, 16, %p4;\n" + "".join(
        f"st.global.b32 [%rd0 + {4 * i}], {x};\n" for i, x in enumerate(d)
    )
    label = f"{name} threads {thread_a} and {thread_b} {which}"

    def buffers():
        lanes = MANY * 32
        c = np.round(draws.normal(f"{label}/c", lanes * 4) * 8).astype(np.float32).view(np.uint32)
        words = scales(f"{label}/scales", which, scale, (lanes, 8)).view(np.uint32)
        return {
            "a": draws.words32(f"{label}/a", lanes * 4),
            "b": draws.words32(f"{label}/b", lanes * 2),
            "c": c,
            "scales": np.ascontiguousarray(words),
            "d": np.zeros(lanes * 4, np.uint32),
        }

    return Probe(
        label,
        (name,),
        frame(body, BLOCK, 5, registers=registers, target=CONSUMER),
        buffers,
        {"d": Result("float32")},
        MANY * 32 // BLOCK,
        BLOCK,
        MANY * 32,
        note=NOTE if which == ANY else "",
        target=CONSUMER,
    )


def probes() -> list[Probe]:
    found = [product(name, which) for name in PRODUCTS for which in (EXACT, ANY)]
    found += [
        warp_product(name, EXACT, thread_a, thread_b)
        for name in WARP_PRODUCTS
        for thread_a, thread_b in ((0, 0), (1, 1), (0, 2), (1, 3))
    ]
    return found + [warp_product(name, ANY, 0, 0) for name in WARP_PRODUCTS]
