"""Probes of sparse products, mma.sp and wgmma.mma_async.sp: every shape and selector, types of each
family. What was inferred of them (``layout.sparsity``, ``emulator.tensor.sparsity``) is what they
ask.

- ``integers``    small ones, exact in any order: where metadata and elements lie
- ``bits``        of integers, any words: the same
- ``any order``   integers; the later place of a chunk first in half of them, which only
                  ``::ordered_metadata`` forbids
- ``normal``      plain data: how sums are rounded
- ``infinities``  one element of B in fifty: does what no stored element meets leave a trace

Registers and shared memory hold random elements, so that no map of A or B is needed here; metadata
are valid in all lanes, so that any selector finds some.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numba_marlin.emulator.state.small_floats import codes_of
from numba_marlin.layout import wgmma
from numba_marlin.layout.sparsity import Metadata
from numba_marlin.witness import draws
from numba_marlin.witness.probe import Probe, Result, Snippets, frame

BLOCK, COUNT, WIDE, COLUMNS = 128, 128, 32, 32
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4}
# (types of A and B, type of C and D, k)
PRODUCTS = (
    *[("f16.f16", d, k) for d in ("f32", "f16") for k in (16, 32)],
    *[("bf16.bf16", "f32", k) for k in (16, 32)],
    *[("tf32.tf32", "f32", k) for k in (8, 16)],
    *[(pair, "f32", 64) for pair in ("e4m3.e4m3", "e4m3.e5m2")],
    *[("u8.s8", "s32", k) for k in (32, 64)],
    *[("s4.u4", "s32", k) for k in (64, 128)],
)
WARPGROUPS = (
    ("f16.f16", "f32"),
    ("bf16.bf16", "f32"),
    ("tf32.tf32", "f32"),
    ("e4m3.e5m2", "f32"),
    ("u8.s8", "s32"),
)
INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "tf32": 0x7F800000, "e5m2": 0x7C}
ASCENDING = [first | last << 2 for last in range(4) for first in range(last)]
DESCENDING = [last | first << 2 for last in range(4) for first in range(last)]
COMPARED = {"f32": "float32", "f16": "float16", "s32": None}
ORDERED = "sp::ordered_metadata"
ANY_ORDER, INFINITIES = "any order", "infinities"


def sets_of(pair: str) -> tuple[str, ...]:
    kind, other = pair.split(".")
    if kind[0] in "su":
        return ("bits", ANY_ORDER)
    order = (ANY_ORDER,) if kind != "tf32" else ()
    return ("integers", *order, "normal", *((INFINITIES,) if other in INFINITY else ()))


def elements(seed: str, kind: str, which: str, words: int) -> np.ndarray:
    """uint32 [words] of elements of that type."""
    if kind[0] in "su":
        return draws.words32(seed, words)
    count = words * 32 // BITS[kind]
    values = draws.normal(seed, count)
    if which != "normal":
        values = np.rint(2 * values)
    values = values.astype(np.float32)
    if BITS[kind] == 8:
        found = codes_of(values, kind).astype(np.uint8)
    elif kind == "f16":
        found = values.astype(np.float16).view(np.uint16)
    else:
        found = values.view(np.uint32)
        if kind == "bf16":
            found = (found >> np.uint32(16)).astype(np.uint16)
    if which == INFINITIES and seed.endswith("/b"):
        found[draws.uniform(f"{seed}/where", count) < 0.02] = INFINITY[kind]
    return np.ascontiguousarray(found).view(np.uint32)


def metadata(seed: str, kind: str, which: str, count: int) -> np.ndarray:
    """uint32 [count] of valid nibbles."""
    codes = ASCENDING + DESCENDING * (which == ANY_ORDER)
    table = np.array([0b0100, 0b1110] if kind == "tf32" else codes, np.uint32)
    drawn = table[draws.raw(seed, 8 * count) % np.uint64(len(table))].reshape(count, 8)
    return np.bitwise_or.reduce(drawn << 4 * np.arange(8, dtype=np.uint32), axis=1)


def sums(seed: str, d: str, words: int) -> np.ndarray:
    """Small whole accumulators, uint32 [words]."""
    values = np.rint(20 * draws.normal(seed, words * (2 if d == "f16" else 1)))
    kind = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d]
    return values.astype(kind).view(np.uint32)


def loads(names: dict[str, int]) -> str:
    """Every lane's registers %a0 ... of the buffers of these widths."""
    return "".join(
        f"mad.wide.u32 %rd0, %g, {4 * width}, %p{position};\n"
        + "".join(f"ld.global.b32 %{name}{i}, [%rd0 + {4 * i}];\n" for i in range(width))
        for position, (name, width) in enumerate(names.items())
    )


def stores(width: int, position: int) -> str:
    return f"mad.wide.u32 %rd0, %g, {4 * width}, %p{position};\n" + "".join(
        f"st.global.b32 [%rd0 + {4 * i}], %c{i};\n" for i in range(width)
    )


def vector(name: str, width: int) -> str:
    return "{" + ", ".join(f"%{name}{i}" for i in range(width)) + "}"


def small(pair: str, d: str, k: int, selector: int, which: str, sparse: str = "sp") -> Probe:
    """One product a warp."""
    kind, other = pair.split(".")
    factors = k * BITS[kind] // 128  # registers of A, and of B
    widths = {"a": factors, "b": factors, "c": 2 if d == "f16" else 4, "e": 1}
    opcode = f"mma.{sparse}.sync.aligned.m16n8k{k}.row.col.{d}.{pair}.{d}"
    a, b, c = (vector(name, widths[name]) for name in "abc")
    body = loads(widths) + f"{opcode} {c}, {a}, {b}, {c}, %e0, {selector};\n"
    body += stores(widths["c"], 4)
    registers = "".join(f".reg .b32 %{name}<{width}>;\n" for name, width in widths.items())
    short = opcode.replace(".sync.aligned", "").replace(".row.col", "")
    seed, lanes = f"sparse/{short}/{selector}/{which}", 32 * COUNT

    def buffers():
        return {
            "a": elements(f"{seed}/a", kind, which, lanes * factors),
            "b": elements(f"{seed}/b", other, which, lanes * factors),
            "c": sums(f"{seed}/c", d, lanes * widths["c"]),
            "e": metadata(f"{seed}/e", kind, which, lanes),
            "d": np.zeros(lanes * widths["c"], np.uint32),
        }

    return Probe(
        f"{short} selector {selector} {which}",
        (short,),
        as_of_8_5(frame(body, BLOCK, 5, registers=registers)),
        buffers,
        {"d": Result(COMPARED[d])},
        lanes // BLOCK,
        BLOCK,
        lanes,
    )


def wide(pair: str, d: str, selector: int, which: str, in_registers: bool, swizzle: int) -> Probe:
    """One product a warpgroup, a warpgroup a block."""
    kind, other = pair.split(".")
    snippets, half, depth = Snippets(), COLUMNS // 2, 512 // BITS[kind]
    # of B a row is 64 bytes, of A 32, both within a row of the swizzle
    row_bytes = swizzle or 64
    a_at = COLUMNS * row_bytes
    image = a_at + 64 * row_bytes
    stride = (8 * row_bytes, 16) if swizzle else (128, 16 * COLUMNS)
    b_desc = wgmma.Descriptor(0, *stride, swizzle).encode()
    a_desc = wgmma.Descriptor(a_at, *(stride if swizzle else (128, 16 * 64)), swizzle).encode()
    widths = {"a": 4, "c": half, "e": 1}
    registers = "".join(f".reg .b32 %{name}<{width}>;\n" for name, width in widths.items())
    opcode = f"wgmma.mma_async.sp.sync.aligned.m64n{COLUMNS}k{depth}.{d}.{pair}"
    tail = "" if d == "s32" else ", 1, 1"
    if BITS[kind] == 16:
        tail += ", 0" if in_registers else ", 0, 0"
    left = vector("a", 4) if in_registers else "%rd7"
    body = loads(widths) + (
        f"""mad.wide.u32 %rd0, %c, {image}, %p3; mov.u32 %r0, %t;
FILL: mad.wide.u32 %rd1, %r0, 16, %rd0; mad.lo.u32 %r1, %r0, 16, %s; \
ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%rd1]; st.shared.v4.b32 [%r1], {{%r2, %r3, %r4, %r5}};
add.u32 %r0, %r0, {BLOCK}; setp.lt.u32 %q0, %r0, {image // 16}; @%q0 bra FILL;
{snippets.put("fence_proxy_async_shared")} bar.sync 0;
cvt.u64.u32 %rd5, %s; shr.u64 %rd5, %rd5, 4; add.u64 %rd6, %rd5, {b_desc:#x};
add.u64 %rd7, %rd5, {a_desc:#x};
{snippets.put("wgmma_fence")}{opcode} {vector("c", half)}, {left}, %rd6, %e0, {selector}, 1{tail};
{snippets.put("wgmma_commit_group")}wgmma.wait_group.sync.aligned 0;
"""
    )
    body += stores(half, 4)
    short = opcode.replace(".sync.aligned", "")
    where = "registers" if in_registers else "shared"
    name = f"{short} A in {where} swizzle {swizzle} selector {selector} {which}"

    def buffers():
        return {
            "a": elements(f"{name}/a", kind, which, WIDE * BLOCK * 4),
            "c": sums(f"{name}/c", d, WIDE * BLOCK * half),
            "e": metadata(f"{name}/e", kind, which, WIDE * BLOCK),
            "image": np.concatenate(
                [
                    part
                    for block in range(WIDE)
                    for part in (
                        elements(f"{name}/{block}/b", other, which, a_at // 4),
                        elements(f"{name}/{block}/image", kind, which, (image - a_at) // 4),
                    )
                ]
            ),
            "d": np.zeros(WIDE * BLOCK * half, np.uint32),
        }

    return Probe(
        name,
        (short,),
        frame(body, BLOCK, 5, registers=registers),
        buffers,
        {"d": Result(COMPARED[d])},
        WIDE,
        BLOCK,
        WIDE * BLOCK,
        shared_bytes=-(-image // 1024) * 1024,
        uses=tuple(snippets.names),
    )


def as_of_8_5(text: str) -> str:
    """The first version of PTX that has ::ordered_metadata."""
    return text.replace(".version 8.4", ".version 8.5")


def every() -> Iterator[Probe]:
    for pair, d, k in PRODUCTS:
        kind = pair.split(".")[0]
        selectors = Metadata(BITS[kind], k).selectors
        for which in sets_of(pair):
            yield small(pair, d, k, selectors - 1, which)
        for selector in range(selectors):
            yield small(pair, d, k, selector, sets_of(pair)[0], ORDERED)
    for pair, d in WARPGROUPS:
        kind = pair.split(".")[0]
        selectors = Metadata(BITS[kind], 512 // BITS[kind]).selectors
        for which in sets_of(pair):
            yield wide(pair, d, 0, which, True, 128)
        for selector in range(selectors):
            for swizzle in (0, 64, 128):
                yield wide(pair, d, selector, sets_of(pair)[0], False, swizzle)


def probes() -> list[Probe]:
    return list(every())
