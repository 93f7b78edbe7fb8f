"""Programs that multiply with wgmma, for tests."""

import re

import numpy as np
import pytest

from numba_marlin.emulator.state.memory import SHARED_BASE
from numba_marlin.layout import wgmma
from tests.emulator.ptx_cases import frame, launch, snippet

FILL = """
.shared .align 1024 .b8 s[{size}];
mov.u32 %r60, s;
mov.u32 %r61, %tid.x;
FILL: mad.lo.u32 %r62, %r61, 16, %r60; mad.wide.u32 %rd60, %r61, 16, %p0;
ld.global.v4.u32 {{%r56, %r57, %r58, %r59}}, [%rd60];
st.shared.v4.u32 [%r62], {{%r56, %r57, %r58, %r59}};
mov.u32 %r63, %ntid.x; add.u32 %r61, %r61, %r63; setp.lt.u32 %q15, %r61, {chunks}; @%q15 bra FILL;
fence.proxy.async.shared::cta; bar.sync 0;
"""


def names(prefix, count):
    return [f"%{prefix}{i}" for i in range(count)]


PRODUCTS = {
    ("f16", True): "wgmma_m64k16_f32_f16_rs",
    ("f16", False): "wgmma_m64k16_f32_f16_ss",
    ("bf16", True): "wgmma_m64k16_f32_bf16_rs",
    ("bf16", False): "wgmma_m64k16_f32_bf16_ss",
    ("u8_s8", True): "wgmma_m64k32_s32_u8_s8_rs",
    ("u8_s8", False): "wgmma_m64k32_s32_u8_s8_ss",
    ("s8_s8", True): "wgmma_m64k32_s32_s8_s8_rs",
    ("e4m3_e4m3", True): "wgmma_m64k32_f32_e4m3_e4m3_rs",
    ("e4m3_e4m3", False): "wgmma_m64k32_f32_e4m3_e4m3_ss",
}
WAITS = {"f32": "wgmma_wait_group_f32", "b32": "wgmma_wait_group_i32"}
DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "b1": 256}  # of the others 32


def product(columns, a, b_desc, adds="%adds", kind="f16", d=None):
    """One wgmma; a: registers, or a descriptor; kind: of PRODUCTS, or the types of an instruction
    that ptx/ does not have."""
    in_registers = isinstance(a, list)
    first = tuple(a) if in_registers else "%rd41"
    d = tuple(d or names("d", columns // 2))
    if (kind, in_registers) in PRODUCTS:
        text = snippet(PRODUCTS[kind, in_registers], d, first, "%rd40", adds, n=columns)
    else:
        text = written_out(kind, columns, d, first, adds)
    return (
        f"mov.u64 %rd40, {b_desc:#x};" + ("" if in_registers else f"mov.u64 %rd41, {a:#x};") + text
    )


def written_out(types, columns, d, a, adds):
    """wgmma of ``types``, with a predicate of its own."""
    factor = types.split(".")[-1 if "b1" not in types else 1]
    tail = "" if "s32" in types else ", 1, 1"
    if DEPTHS.get(factor) == 16:
        tail += ", 0" if isinstance(a, tuple) else ", 0, 0"
    left = f"{{{', '.join(a)}}}" if isinstance(a, tuple) else a
    return (
        f"setp.ne.b32 %q13, {adds}, 0;\n"
        f"wgmma.mma_async.sync.aligned.m64n{columns}k{DEPTHS.get(factor, 32)}.{types}"
        f" {{{', '.join(d)}}}, {left}, %rd40, %q13{tail};\n"
    )


COMMIT, FENCE, WAIT = (
    snippet("wgmma_commit_group"),
    snippet("wgmma_fence"),
    snippet("wgmma_wait_group", n=0),
)


WAIT_1 = snippet("wgmma_wait_group", n=1)


def multiply(
    a, b, c, swizzle, in_registers, kind="f16", seed=None, signs="1, 1", adds=True, warpgroups=1
):
    """D = a [64w, k] @ b [n, k].T + c [64w, n], the way a kernel would: b and, unless in_registers,
    a in shared memory. D like c; a and b of any type, as bytes of rows."""
    columns, depth = len(b), b.view(np.uint16).shape[1]
    tile, b_descs = wgmma.store_tile(b.view(np.uint16), swizzle)
    start = SHARED_BASE + -SHARED_BASE % 1024
    b_descs = [
        wgmma.Descriptor(d.address + start, d.stride_bytes, d.leading_bytes, d.swizzle).encode()
        for d in b_descs
    ]
    image, a_descs = tile, []
    if not in_registers:
        a_tile, found = wgmma.store_tile(a.view(np.uint16), swizzle)
        at = start + -(-tile.size // 1024) * 1024
        a_descs = [
            wgmma.Descriptor(d.address + at, d.stride_bytes, d.leading_bytes, d.swizzle).encode()
            for d in found
        ]
        image = np.concatenate([tile, np.zeros(at - start - tile.size, np.uint8), a_tile])
    # a chunk for every thread
    image = np.concatenate([image, np.zeros(-image.size % (16 * 128 * warpgroups), np.uint8)])
    fragment, steps = wgmma.accumulator(columns), depth // 16
    # group, step, lane, element
    held_a = wgmma.A_REGISTERS.gather(a.view(np.uint16).reshape(-1, 64, steps, 16).swapaxes(1, 2))
    # group, lane, step, register
    held_a = np.ascontiguousarray(held_a.swapaxes(1, 2)).view(np.uint32)
    held_c = np.ascontiguousarray(fragment.gather(c.reshape(-1, 64, columns)))
    out = np.full_like(held_c, -1)
    # registers of D
    half = columns // 2 * c.itemsize // 4
    sort = "f32" if c.dtype == np.float32 else "b32"
    text = (
        FILL.format(size=image.size, chunks=image.size // 16)
        + f".reg .{sort} %d<{half}>; .reg .b32 %a<{4 * steps}>, %adds;\n"
    )
    text += (
        f"mov.u32 %adds, {int(adds)}; mad.wide.u32 %rd1, %t, {16 * steps}, %p1; mad.wide.u32 %rd2,"
        f" %t, {4 * half}, %p2; mad.wide.u32 %rd3, %t, {4 * half}, %p3;\n"
    )
    text += "".join(f"ld.global.b32 %a{i}, [%rd1 + {4 * i}];\n" for i in range(4 * steps))
    text += "".join(f"ld.global.{sort} %d{i}, [%rd2 + {4 * i}];\n" for i in range(half))
    text += FENCE
    for step in range(steps):
        text += product(
            columns,
            [f"%a{4 * step + i}" for i in range(4)] if in_registers else a_descs[step],
            b_descs[step],
            kind=kind,
            d=names("d", half),
        )
        text += "mov.u32 %adds, 1;\n"
    text = (
        text.replace(", 1, 1, 0", f", {signs}, 0").replace(", 1, 1;", f", {signs};")
        + COMMIT
        + snippet(WAITS[sort], tuple(names("d", half)), n=0, width=half)
    )
    text += "".join(f"st.global.{sort} [%rd3 + {4 * i}], %d{i};\n" for i in range(half))
    launch(
        text,
        {"tile": image, "a": held_a, "c": held_c, "out": out},
        block=128 * warpgroups,
        seed=seed,
        directives=".maxntid 1024",
    )
    return fragment.scatter(out).reshape(c.shape)


def integers(shape, seed, low=-8, high=9, dtype=np.float16):
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


DESC = wgmma.Descriptor(SHARED_BASE, 128, 128, 0).encode()


SET_UP = (
    """.shared .align 16 .b8 s[512]; .reg .f32 %d<4>, %e<4>; .reg .b32 %a<4>, %b<4>, %adds;
mov.u32 %r0, s; mad.lo.u32 %r0, %t, 4, %r0; setp.lt.u32 %q14, %t, 128; @%q14 st.shared.u32 [%r0], 0;
fence.proxy.async.shared::cta; bar.sync 0;
mov.u32 %adds, 1;
"""
    + "".join(
        f"mov.f32 %d{i}, 0f00000000; mov.f32 %e{i}, 0f00000000; mov.b32 %a{i}, 0; mov.b32 %b{i}, 0;"
        for i in range(4)
    )
    + "\n"
)


ONE = product(8, names("a", 4), DESC)


OTHER = product(8, names("b", 4), DESC, d=names("e", 4))


BEGIN = SET_UP + FENCE + ONE + COMMIT


TOUCH_A, TOUCH_D = "mov.b32 %a2, 7;\n", "add.f32 %d1, %d1, %d1;\n"


def run(body, **options):
    return launch(body, {"p": np.zeros(512, np.float32)}, **{"block": 128, **options})


def line_of(body, text):
    """Its line in the launched PTX, as the messages have it."""
    return next(number for number, line in enumerate(frame(body).splitlines(), 1) if text in line)


def refused(kind, body, *patterns, **options):
    with pytest.raises(kind) as caught:
        run(body, **options)
    for pattern in patterns:
        assert re.search(pattern, str(caught.value), re.DOTALL), (
            f"{pattern!r} is not in:\n{caught.value}"
        )
    return caught.value
