"""Probes of mma and wgmma: every set of ``matrices`` and ``small_matrices``, results in full, so
that a model of the addition can be fitted to them; and many lanes at once.

Also every width of wgmma with every swizzle, on small integers: fragment maps and descriptors.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from numba_marlin.layout import fragments, wgmma
from numba_marlin.witness import draws, matrices, small_matrices
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
INTEGERS = {("m16n8k32", "s32.s8.s8.s32"): "mma_m16n8k32_s32_s8_s8"}
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


def without_a_file(
    opcode: str,
    which: str,
    operands: Callable[[], dict[str, np.ndarray]],
    floats: str | None,
    file: str | None = None,
) -> Probe:
    """One mma.sync a warp, of an ``opcode`` that ptx/ does not have, or has as ``file``;
    ``operands``: the registers of every lane, a, b and c, uint32 [count, 32, registers]. D is like
    C."""
    held = operands()
    names = {x: [f"%{x}{i}" for i in range(held[x].shape[2])] for x in "abc"}
    registers = "".join(f".reg .b32 {x};\n" for each in names.values() for x in each)
    body = ""
    for position, each in enumerate(names.values()):
        body += f"mad.wide.u32 %rd0, %g, {4 * len(each)}, %p{position};\n" + "".join(
            f"ld.global.b32 {x}, [%rd0 + {4 * i}];\n" for i, x in enumerate(each)
        )
    a, b, c = ("{" + ", ".join(each) + "}" for each in names.values())
    body += (
        f"{opcode} {c}, {a}, {b}, {c};\nmad.wide.u32 %rd0, %g, {4 * len(names['c'])}, %p3;\n"
    ) + "".join(f"st.global.b32 [%rd0 + {4 * i}], {x};\n" for i, x in enumerate(names["c"]))
    count = len(held["a"])
    short = opcode.replace(".sync.aligned", "").replace(".row.col", "")
    return Probe(
        f"{short} {which}",
        (file or short,),
        frame(body, BLOCK, 4, registers=registers),
        lambda: {**operands(), "d": np.zeros_like(held["c"])},
        {"d": Result(floats)},
        count * 32 // BLOCK,
        BLOCK,
        count * 32,
    )


def of_small_floats(which: str, kinds: tuple[str, str]) -> Probe:
    """mma of 8-bit floats: ``mma_kinds`` of the machine says how ptxas makes it of others."""

    def operands():
        a, b, c = small_matrices.draw(which, kinds, PRODUCTS // 4, 16, 8, "mma")
        held = (
            fragments.MMA_M16N8K32_A.gather(a),
            fragments.MMA_M16N8K32_B.gather(b.swapaxes(1, 2)),
            fragments.MMA_M16N8K16_C.gather(c),
        )
        return {name: np.ascontiguousarray(each).view(np.uint32) for name, each in zip("abc", held)}

    opcode = f"mma.sync.aligned.m16n8k32.row.col.f32.{'.'.join(kinds)}.f32"
    return without_a_file(opcode, which, operands, "float32")


def of_any_words(shape: str, types: str, widths: tuple[int, int, int]) -> Probe:
    """mma of integers: any bits in all registers."""

    def operands():
        return {
            name: draws.words32(f"{shape}{types}{name}", PRODUCTS * 32 * width).reshape(
                PRODUCTS, 32, width
            )
            for name, width in zip("abc", widths)
        }

    opcode = f"mma.sync.aligned.{shape}.row.col.{types}"
    return without_a_file(opcode, "bits", operands, None, INTEGERS.get((shape, types)))


ANY_WORDS = (
    *[("m16n8k32", f"s32.{a}.{b}.s32", (4, 2, 4)) for a in ("u8", "s8") for b in ("u8", "s8")],
    ("m16n8k32", "satfinite.s32.s8.s8.s32", (4, 2, 4)),
    ("m16n8k16", "s32.u8.s8.s32", (2, 1, 4)),
    ("m8n8k16", "s32.u8.s8.s32", (1, 1, 2)),
    ("m16n8k64", "s32.u4.s4.s32", (4, 2, 4)),
    ("m16n8k32", "s32.s4.u4.s32", (2, 1, 4)),
    ("m8n8k32", "s32.s4.s4.s32", (1, 1, 2)),
    *[("m16n8k256", f"s32.b1.b1.s32.{each}.popc", (4, 2, 4)) for each in ("and", "xor")],
    ("m16n8k128", "s32.b1.b1.s32.and.popc", (2, 1, 4)),
    ("m8n8k128", "s32.b1.b1.s32.xor.popc", (1, 1, 2)),
)


def wgmma_operands(
    which: str,
    kind: str,
    in_registers: bool,
    columns: int,
    swizzle: int,
    count: int,
    halves: bool = False,
    turned: bool = False,
) -> dict[str, np.ndarray]:
    """image: shared memory of every block; a: registers [count, 128, 4]; c: accumulators [count,
    128, columns / 2], or two to a word if they are ``halves``; ``turned``: A and B lie MN-major."""
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
        tile, _ = stored(b[number], swizzle, turned)
        parts = [tile, np.zeros(-tile.size % 1024, np.uint8)]
        if not in_registers:
            parts.append(stored(a[number], swizzle, turned)[0])
        size = sum(part.size for part in parts)
        # a chunk for every thread
        tiles.append(np.concatenate([*parts, np.zeros(-size % (16 * BLOCK), np.uint8)]))
    held = np.ascontiguousarray(wgmma.A_REGISTERS.gather(a)).view(np.uint32)
    if halves:
        with np.errstate(all="ignore"):
            c = c.view(np.float32).astype(np.float16).view(np.uint16)
    sums = np.ascontiguousarray(wgmma.accumulator(columns).gather(c)).view(np.uint32)
    return {"image": np.stack(tiles), "a": held, "c": sums}


def stored(matrix: np.ndarray, swizzle: int, turned: bool):
    """(tile, descriptors) of [rows, k] of 16 bits."""
    if turned:
        return wgmma.store_transposed_tile(np.ascontiguousarray(matrix.T), swizzle)
    return wgmma.store_tile(matrix, swizzle)


def empty_tile(rows: int, swizzle: int, turned: bool) -> tuple[int, int]:
    """(bytes of a tile of [rows, 16] at address 0, the bits of its descriptor)"""
    tile, descriptors = stored(np.zeros((rows, 16), np.uint16), swizzle, turned)
    return tile.size, descriptors[0].encode()


def wide(
    which: str,
    kind: str,
    in_registers: bool,
    columns: int,
    swizzle: int,
    count: int,
    adds: bool = True,
    types: str = "",
    turned: bool = False,
) -> Probe:
    """One wgmma a warpgroup, a warpgroup a block; with other ``types`` than its file says, or with
    matrices in shared memory ``turned``."""
    snippets, half = Snippets(), columns // 2
    name = (WGMMA | BYTES)[kind, in_registers]
    pair = kind if "." in kind else f"{kind}.{kind}"
    named = types or f"{'s32' if 's32' in name else 'f32'}.{pair}"
    halves = "f16" if types.startswith("f16") else ""
    sums = "i32" if "s32" in named or halves else "f32"
    file_types, kind = kind, ".".join(types.split(".")[-2:]) or kind
    words = half // 2 if halves else half
    layout = (in_registers, columns, swizzle)
    sample = wgmma_operands(which, kind, *layout, 1, turned=turned)["image"].shape[1]
    size, b_descriptor = empty_tile(columns, swizzle, turned)
    a_at, a_descriptor = -(-size // 1024) * 1024, empty_tile(64, swizzle, turned)[1]
    d, a = [f"%d{i}" for i in range(half)], [f"%a{i}" for i in range(4)]
    sort = "f32" if sums == "f32" else "b32"
    registers = f".reg .{sort} %d<{half}>;\n.reg .b32 %a<4>;\n"
    body = (
        f"""mad.wide.u32 %rd0, %c, {sample}, %p0; mov.u32 %r0, %t;
FILL: mad.wide.u32 %rd1, %r0, 16, %rd0; mad.lo.u32 %r1, %r0, 16, %s; \
ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%rd1]; st.shared.v4.b32 [%r1], {{%r2, %r3, %r4, %r5}};
add.u32 %r0, %r0, {BLOCK}; setp.lt.u32 %q0, %r0, {sample // 16}; @%q0 bra FILL;
{snippets.put("fence_proxy_async_shared")} bar.sync 0;
mad.wide.u32 %rd2, %g, 16, %p1; mad.wide.u32 %rd3, %g, {4 * words}, %p2; \
mad.wide.u32 %rd4, %g, {4 * words}, %p3;
"""
        + "".join(f"ld.global.b32 %a{i}, [%rd2 + {4 * i}];\n" for i in range(4))
        + "".join(f"ld.global.{sort} %d{i}, [%rd3 + {4 * i}];\n" for i in range(words))
    )
    body += (
        "cvt.u64.u32 %rd5, %s; shr.u64 %rd5, %rd5, 4; add.u64 %rd6, %rd5,"
        f" {b_descriptor:#x};\nadd.u64 %rd7, %rd5,"
        f" {a_descriptor + (a_at >> 4):#x};\n"
    )
    body += f"mov.u32 %r6, {int(adds)};\n" + snippets.put("wgmma_fence")
    product = snippets.put(name, d, a if in_registers else "%rd7", "%rd6", "%r6", n=columns)
    if types:
        product = re.sub(rf"[fs]32\.{file_types}", types, product)
        product = product.replace(", ".join(d), ", ".join(d[:words]))
    if turned:
        product = product.replace(", 1, 1, 0, 0;", ", 1, 1, 1, 1;")
        product = product.replace(", 1, 1, 0;", ", 1, 1, 1;")
    body += product
    body += (
        snippets.put("wgmma_commit_group")
        + snippets.put(f"wgmma_wait_group_{sums}", d, n=0, width=half)
        + "".join(f"st.global.{sort} [%rd4 + {4 * i}], %d{i};\n" for i in range(words))
    )

    def buffers():
        return {
            **wgmma_operands(which, kind, *layout, count, bool(halves), turned),
            "d": np.zeros((count, 128, words), np.uint32),
        }

    covers = name
    if types or turned:
        covers = f"wgmma.{named}" + (" transposed" if turned else "")
    label = f"{f'wgmma {types}' if types else name} n{columns} swizzle {swizzle} {which}" + (
        "" if adds else " replaced"
    )
    label += " transposed" if turned else ""
    return Probe(
        label,
        (covers,),
        frame(body, BLOCK, 4, registers=registers),
        buffers,
        {"d": Result("float16" if halves else "float32" if sums == "f32" else None)},
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
    for swizzle in (0, 32, 64, 128):
        for columns in (8, 56, 256):
            for in_registers in (True, False):
                yield wide("integers", "f16", in_registers, columns, swizzle, 2, turned=True)


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
    # what no kernel has a file for
    for types in ("f32.e5m2.e5m2", "f32.e4m3.e5m2", "f16.e4m3.e4m3", "f16.e5m2.e5m2"):
        for which in small_matrices.SETS:
            yield wide(which, "e4m3.e4m3", True, COLUMNS, 32, WIDE, types=types)
    for types in ("satfinite.s32.u8.s8", "s32.s8.u8", "s32.u8.u8"):
        yield wide("spread", "u8.s8", True, COLUMNS, 32, WIDE, types=types)
    for kinds in (("e4m3", "e4m3"), ("e5m2", "e4m3")):
        for which in small_matrices.SETS:
            yield of_small_floats(which, kinds)
    for each in ANY_WORDS:
        yield of_any_words(*each)


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
