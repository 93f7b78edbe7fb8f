"""Probes of mma and wgmma: every set of ``matrices`` and ``small_matrices``, results in full, so
that a model of the addition can be fitted to them; and many lanes at once.

Also every width of wgmma with every swizzle, on small integers: fragment maps and descriptors.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.layout import fragments, wgmma
from numba_marlin.witness import matrices, small_matrices
from numba_marlin.witness.probe import Probe, Result, Snippets, frame

MMA = {
    "mma_m16n8k16_f32_f16": ("f16", 16),
    "mma_m16n8k16_f32_bf16": ("bf16", 16),
    "mma_m16n8k8_f32_f16": ("f16", 8),
}
WGMMA = {
    ("f16", True): "wgmma_m64k16_f32_f16_rs",
    ("f16", False): "wgmma_m64k16_f32_f16_ss",
    ("bf16", True): "wgmma_m64k16_f32_bf16_rs",
    ("bf16", False): "wgmma_m64k16_f32_bf16_ss",
}
BYTES = {
    ("u8.s8", True): "wgmma_m64k32_s32_u8_s8_rs",
    ("u8.s8", False): "wgmma_m64k32_s32_u8_s8_ss",
    ("s8.s8", True): "wgmma_m64k32_s32_s8_s8_rs",
    ("e4m3.e4m3", True): "wgmma_m64k32_f32_e4m3_e4m3_rs",
    ("e4m3.e4m3", False): "wgmma_m64k32_f32_e4m3_e4m3_ss",
}
PRODUCTS, MANY, MANY_WIDE = 512, 1 << 15, 1 << 13
BLOCK = 128
WIDE, COLUMNS = 64, 32
FRAGMENTS = {
    16: (fragments.MMA_M16N8K16_A, fragments.MMA_M16N8K16_B),
    8: (fragments.MMA_M16N8K8_A, fragments.MMA_M16N8K8_B),
}


def mma_operands(name: str, which: str, count: int) -> dict[str, np.ndarray]:
    """Registers of every lane: a, b, c, uint32 [count, 32, registers]."""
    kind, depth = MMA[name]
    a, b, c = matrices.draw(which, kind, count, 16, 8, "mma")
    of_a, of_b = FRAGMENTS[depth]
    held = (
        of_a.gather(a[:, :, :depth]),
        of_b.gather(b[:, :depth]),
        fragments.MMA_M16N8K16_C.gather(c),
    )
    return {key: np.ascontiguousarray(value).view(np.uint32) for key, value in zip("abc", held)}


def mma(name: str, which: str, count: int) -> Probe:
    """One product a warp."""
    depth, snippets = MMA[name][1], Snippets()
    a, b, c, d = (
        [f"%{x}{i}" for i in range(width)]
        for x, width in (("a", depth // 4), ("b", depth // 8), ("c", 4), ("d", 4))
    )
    registers = "".join(f".reg .b32 {x};\n" for x in a + b) + "".join(
        f".reg .f32 {x};\n" for x in c + d
    )
    body = ""
    for position, held in enumerate((a, b, c)):
        body += f"mad.wide.u32 %rd0, %g, {4 * len(held)}, %p{position};\n" + "".join(
            f"ld.global.b32 {x}, [%rd0 + {4 * i}];\n" for i, x in enumerate(held)
        )
    body += (
        snippets.put(name, d, a, b[0] if len(b) == 1 else b, c)
        + "mad.wide.u32 %rd0, %g, 16, %p3;\n"
        + "".join(f"st.global.b32 [%rd0 + {4 * i}], {x};\n" for i, x in enumerate(d))
    )

    def buffers():
        return {**mma_operands(name, which, count), "d": np.zeros((count, 32, 4), np.uint32)}

    return Probe(
        f"{name} {which}" + (" many" if count > PRODUCTS else ""),
        (name,),
        frame(body, BLOCK, 4, registers=registers),
        buffers,
        {"d": Result("float32")},
        count * 32 // BLOCK,
        BLOCK,
        count * 32,
    )


def wgmma_operands(
    which: str, kind: str, in_registers: bool, columns: int, swizzle: int, count: int
) -> dict[str, np.ndarray]:
    """image: shared memory of every block; a: registers [count, 128, 4]; c: accumulators [count,
    128, columns / 2]."""
    if "." in kind:
        a, b, c = small_matrices.draw(
            which, tuple(kind.split(".")), count, 64, columns, f"wgmma{columns}"
        )
        a, b = a.view(np.uint16), b.view(np.uint16)
    else:
        a, b, c = matrices.draw(which, kind, count, 64, columns, f"wgmma{columns}")
        b = np.ascontiguousarray(b.swapaxes(1, 2))
    tiles = []
    for number in range(count):
        tile, _ = wgmma.store_tile(b[number], swizzle)
        parts = [tile, np.zeros(-tile.size % 1024, np.uint8)]
        if not in_registers:
            parts.append(wgmma.store_tile(a[number], swizzle)[0])
        size = sum(part.size for part in parts)
        # a chunk for every thread
        tiles.append(np.concatenate([*parts, np.zeros(-size % (16 * BLOCK), np.uint8)]))
    held = np.ascontiguousarray(wgmma.A_REGISTERS.gather(a)).view(np.uint32)
    return {
        "image": np.stack(tiles),
        "a": held,
        "c": np.ascontiguousarray(wgmma.accumulator(columns).gather(c)),
    }


def descriptors(rows: int, swizzle: int) -> int:
    """The bits of a descriptor of [rows, 16] in a tile of its own at address 0."""
    return wgmma.store_tile(np.zeros((rows, 16), np.uint16), swizzle)[1][0].encode()


def wide(
    which: str,
    kind: str,
    in_registers: bool,
    columns: int,
    swizzle: int,
    count: int,
    adds: bool = True,
) -> Probe:
    """One wgmma a warpgroup, a warpgroup a block."""
    snippets, half = Snippets(), columns // 2
    name = (WGMMA | BYTES)[kind, in_registers]
    sums = "i32" if "s32" in name else "f32"
    sample = wgmma_operands(which, kind, in_registers, columns, swizzle, 1)["image"].shape[1]
    a_at = -(-wgmma.store_tile(np.zeros((columns, 16), np.uint16), swizzle)[0].size // 1024) * 1024
    d, a = [f"%d{i}" for i in range(half)], [f"%a{i}" for i in range(4)]
    sort = "f32" if sums == "f32" else "b32"
    registers = f".reg .{sort} %d<{half}>;\n.reg .b32 %a<4>;\n"
    body = (
        f"""mad.wide.u32 %rd0, %c, {sample}, %p0; mov.u32 %r0, %t;
FILL: mad.wide.u32 %rd1, %r0, 16, %rd0; mad.lo.u32 %r1, %r0, 16, %s; \
ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%rd1]; st.shared.v4.b32 [%r1], {{%r2, %r3, %r4, %r5}};
add.u32 %r0, %r0, {BLOCK}; setp.lt.u32 %q0, %r0, {sample // 16}; @%q0 bra FILL;
{snippets.put("fence_proxy_async_shared")} bar.sync 0;
mad.wide.u32 %rd2, %g, 16, %p1; mad.wide.u32 %rd3, %g, {4 * half}, %p2; \
mad.wide.u32 %rd4, %g, {4 * half}, %p3;
"""
        + "".join(f"ld.global.b32 %a{i}, [%rd2 + {4 * i}];\n" for i in range(4))
        + "".join(f"ld.global.{sort} %d{i}, [%rd3 + {4 * i}];\n" for i in range(half))
    )
    body += (
        "cvt.u64.u32 %rd5, %s; shr.u64 %rd5, %rd5, 4; add.u64 %rd6, %rd5,"
        f" {descriptors(columns, swizzle):#x};\nadd.u64 %rd7, %rd5,"
        f" {descriptors(64, swizzle) + (a_at >> 4):#x};\n"
    )
    body += f"mov.u32 %r6, {int(adds)};\n" + snippets.put("wgmma_fence")
    body += snippets.put(name, d, a if in_registers else "%rd7", "%rd6", "%r6", n=columns)
    body += (
        snippets.put("wgmma_commit_group")
        + snippets.put(f"wgmma_wait_group_{sums}", d, n=0, width=half)
        + "".join(f"st.global.{sort} [%rd4 + {4 * i}], %d{i};\n" for i in range(half))
    )

    def buffers():
        return {
            **wgmma_operands(which, kind, in_registers, columns, swizzle, count),
            "d": np.zeros((count, 128, half), np.uint32),
        }

    label = f"{name} n{columns} swizzle {swizzle} {which}" + ("" if adds else " replaced")
    return Probe(
        label,
        (name,),
        frame(body, BLOCK, 4, registers=registers),
        buffers,
        {"d": Result("float32" if sums == "f32" else None)},
        count,
        BLOCK,
        count * BLOCK,
        shared_bytes=-(-sample // 1024) * 1024,
        uses=tuple(n for n in snippets.names if n != name),
    )


def shapes():
    """Every swizzle with A in both places, and every width, on small integers."""
    for swizzle in (0, 32, 64, 128):
        for in_registers in (True, False):
            yield wide("integers", "f16", in_registers, 56, swizzle, 4)
    for columns in wgmma.COLUMNS:
        yield wide(
            "integers",
            "bf16" if columns % 16 else "f16",
            columns % 24 != 0,
            columns,
            128 if columns % 64 else 32,
            2,
        )
    yield wide("integers", "f16", True, 64, 128, 2, adds=False)


def of_bytes():
    """8-bit factors: every set, every swizzle, every width that they have."""
    for kind, in_registers in BYTES:
        sets = small_matrices.SETS if kind[0] == "e" else small_matrices.INTEGER_SETS
        for which in sets if in_registers else sets[:3]:
            yield wide(which, kind, in_registers, COLUMNS, 32, WIDE)
        for swizzle in (0, 64) if in_registers else (0, 64, 128):
            yield wide("integers", kind, in_registers, 48, swizzle, 4)
    for columns in wgmma.COLUMNS:
        odd = columns % 16 and columns > 24
        yield wide("integers", "e4m3.e4m3" if odd else "u8.s8", True, columns, 128, 2)


def probes() -> list[Probe]:
    found = [mma(name, which, PRODUCTS) for name in MMA for which in matrices.SETS]
    found += [mma(name, "spread", MANY) for name in MMA]
    found += [wide("spread", kind, in_registers, 8, 32, MANY_WIDE) for kind, in_registers in WGMMA]
    found += [
        wide(which, kind, in_registers, COLUMNS, 32, WIDE)
        for kind, in_registers in WGMMA
        for which in matrices.SETS
        if in_registers or which in ("normal", "cancel")
    ]
    return found + list(shapes()) + list(of_bytes())
