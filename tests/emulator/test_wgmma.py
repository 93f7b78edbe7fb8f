"""Contract under test: wgmma multiplies what its registers and descriptors name, when it is waited
for, and whoever comes in between is told."""

import re

import numpy as np
import pytest

from numba_marlin.emulator import (
    Deadlock,
    DivergentCollective,
    MachineError,
    OutOfBounds,
    PendingCopyRead,
    ProxyHazard,
    RegisterHazard,
    UninitializedRead,
    UnknownInstruction,
)
from numba_marlin.emulator.state.listener import Listener
from numba_marlin.emulator.state.memory import SHARED_BASE
from numba_marlin.emulator.tensor.tensor_sums import ADDERS
from numba_marlin.layout import wgmma
from tests.emulator.number_cases import product as hopper_product
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
}


def product(columns, a, b_desc, adds="%adds", kind="f16", d=None):
    """One wgmma; a: registers, or a descriptor."""
    in_registers = isinstance(a, list)
    first = tuple(a) if in_registers else "%rd41"
    text = snippet(
        PRODUCTS[kind, in_registers],
        tuple(d or names("d", columns // 2)),
        first,
        "%rd40",
        adds,
        n=columns,
    )
    return (
        f"mov.u64 %rd40, {b_desc:#x};" + ("" if in_registers else f"mov.u64 %rd41, {a:#x};") + text
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
    a in shared memory."""
    columns, depth = b.shape
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
    out = np.full_like(held_c, np.nan)
    half = columns // 2
    text = (
        FILL.format(size=image.size, chunks=image.size // 16)
        + f".reg .f32 %d<{half}>; .reg .b32 %a<{4 * steps}>, %adds;\n"
    )
    text += (
        f"mov.u32 %adds, {int(adds)}; mad.wide.u32 %rd1, %t, {16 * steps}, %p1; mad.wide.u32 %rd2,"
        f" %t, {4 * half}, %p2; mad.wide.u32 %rd3, %t, {4 * half}, %p3;\n"
    )
    text += "".join(f"ld.global.b32 %a{i}, [%rd1 + {4 * i}];\n" for i in range(4 * steps))
    text += "".join(f"ld.global.f32 %d{i}, [%rd2 + {4 * i}];\n" for i in range(half))
    text += FENCE
    for step in range(steps):
        text += product(
            columns,
            [f"%a{4 * step + i}" for i in range(4)] if in_registers else a_descs[step],
            b_descs[step],
            kind=kind,
        )
        text += "mov.u32 %adds, 1;\n"
    text = (
        text.replace(", 1, 1, 0", f", {signs}, 0")
        + COMMIT
        + snippet("wgmma_wait_group_f32", tuple(names("d", half)), n=0, width=half)
    )
    text += "".join(f"st.global.f32 [%rd3 + {4 * i}], %d{i};\n" for i in range(half))
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


@pytest.mark.parametrize(
    "in_registers", [True, False], ids=["A in registers", "A in shared memory"]
)
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("columns, depth", [(8, 16), (24, 64), (64, 128), (256, 64)])
def test_product_of_small_integers_is_exact(columns, depth, swizzle, in_registers):
    a, b, c = (
        integers((64, depth), 1),
        integers((columns, depth), 2),
        integers((64, columns), 3, -99, 99, np.float32),
    )
    got = multiply(a, b, c, swizzle, in_registers)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64).T + c)


@pytest.mark.parametrize("columns", range(8, 257, 8))
def test_every_width(columns):
    a, b = integers((64, 16), columns), integers((columns, 16), 1)
    got = multiply(a, b, np.zeros((64, columns), np.float32), 32, True)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64).T)


@pytest.mark.parametrize("in_registers", [True, False])
def test_bfloat16(in_registers):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a, b = (integers(shape, 4, dtype=ml_dtypes.bfloat16) for shape in ((64, 32), (16, 32)))
    c = integers((64, 16), 5, dtype=np.float32)
    got = multiply(a.view(np.uint16), b.view(np.uint16), c, 64, in_registers, kind="bf16")
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64).T + c)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_warpgroups_work_side_by_side_in_any_order(seed):
    a, b, c = (
        integers((128, 64), 6),
        integers((32, 64), 7),
        integers((128, 32), 8, dtype=np.float32),
    )
    got = multiply(a, b, c, 128, True, seed=seed, warpgroups=2)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64).T + c)


def test_16_products_and_the_accumulator_are_added_at_a_time_as_hopper_does():
    rng = np.random.default_rng(9)
    a, b = (
        rng.standard_normal((64, 32)).astype(np.float16),
        rng.standard_normal((16, 32)).astype(np.float16),
    )
    c = rng.standard_normal((64, 16)).astype(np.float32)
    want = c
    for k in (0, 16):
        left, right = (x.view(np.uint16)[None, :, k : k + 16] for x in (a, b))
        want = hopper_product(
            "f16", left, right.swapaxes(1, 2), want.view(np.uint32)[None], ADDERS[9]
        )[0].view(np.float32)
    assert np.array_equal(multiply(a, b, c, 64, True), want)


def test_scale_d_of_zero_forgets_the_accumulator():
    a, b = integers((64, 32), 10), integers((8, 32), 11)
    got = multiply(a, b, np.full((64, 8), np.nan, np.float32), 64, False, adds=False)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64).T)


def test_imm_scales_negate():
    a, b, c = integers((64, 16), 12), integers((8, 16), 13), integers((64, 8), 14, dtype=np.float32)
    for signs, factor in (("-1, 1", -1), ("1, -1", -1), ("-1, -1", 1)):
        assert np.array_equal(
            multiply(a, b, c, 32, True, signs=signs),
            factor * (a.astype(np.float64) @ b.astype(np.float64).T) + c,
        )


def test_nan_and_infinity_travel():
    a, b = np.ones((64, 16), np.float16), np.ones((8, 16), np.float16)
    a[3, 4], a[20, 5], b[2, 7] = np.nan, np.inf, -np.inf
    got = multiply(a, b, np.zeros((64, 8), np.float32), 32, True)
    assert (
        np.isnan(got[3]).all()
        and np.isinf(got[20, 0])
        and np.isnan(got[20, 2])
        and got[0, 2] == -np.inf
        and got[0, 0] == 16
    )


# What goes wrong. A kernel of one warpgroup, n = 8: %d0-%d3, %a0-%a3 (another set %e0-%e3,
# %b0-%b3), B at desc, zeros everywhere.

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


GOOD = {
    "wait, then touch": BEGIN + WAIT + TOUCH_A + TOUCH_D,
    "no wait at all, nothing touched": BEGIN,
    "chained on one accumulator": (
        SET_UP + FENCE + ONE + ONE + COMMIT + ONE + COMMIT + WAIT + TOUCH_D
    ),
    "the older of two groups": (
        BEGIN + OTHER + COMMIT + WAIT_1 + TOUCH_A + TOUCH_D + WAIT + "mov.f32 %e0, %d0;"
    ),
    "fenced after writing": BEGIN + WAIT + TOUCH_A + TOUCH_D + FENCE + ONE + COMMIT + WAIT,
    "a copy of A while it is read": BEGIN + "mov.b32 %b0, %a0;" + WAIT,
    "a copy of what was fenced": (
        SET_UP + FENCE + "mov.b32 %a0, %b0; mov.f32 %d0, %e0;" + ONE + COMMIT + WAIT
    ),
    "an accumulator read after the wait, and no fence": (
        BEGIN + WAIT + "st.global.f32 [%p0], %d0;" + ONE + COMMIT + WAIT
    ),
    "an empty group": SET_UP + COMMIT + WAIT,
    "A of another product in flight": (
        BEGIN + product(8, names("a", 4), DESC, d=names("e", 4)) + COMMIT + WAIT
    ),
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("seed", [None, 5])
def test_what_the_rules_allow_runs(name, seed):
    run(GOOD[name], seed=seed)


HAZARDS = {
    "accumulator written": (
        BEGIN + TOUCH_D + WAIT,
        (
            r"%d1 is an accumulator of the wgmma at PTX line LINE .*no wgmma.wait_group 0 or less"
            r" since"
        ),
    ),
    "accumulator read": (
        BEGIN + "st.global.f32 [%p0], %d3;" + WAIT,
        r"%d3 is an accumulator of the wgmma at PTX line LINE",
    ),
    "accumulator copied": (BEGIN + "mov.f32 %f0, %d0;", r"%d0 is an accumulator of"),
    "A written": (
        BEGIN + TOUCH_A + WAIT,
        r"%a2 is read by the wgmma at PTX line LINE .*no wgmma.wait_group 0 or less since",
    ),
    "A overwritten by a copy": (BEGIN + "mov.b32 %a0, %b0;" + WAIT, r"%a0 is read by"),
    "A read": (BEGIN + "add.u32 %b0, %a1, 1;" + WAIT, r"%a1 is read by"),
    "A loaded": (BEGIN + "ld.shared.v4.u32 {%a0, %a1, %a2, %a3}, [s];" + WAIT, r"%a0 is read by"),
    "not committed": (SET_UP + FENCE + ONE + WAIT + TOUCH_D, r"%d1 .*its group is not committed"),
    "the younger of two groups": (
        BEGIN + OTHER + COMMIT + WAIT_1 + "mov.f32 %f0, %e0;",
        r"%e0 is an accumulator.*no wgmma.wait_group 0",
    ),
    "the older of three groups": (
        BEGIN + OTHER + COMMIT + OTHER + COMMIT + snippet("wgmma_wait_group", n=3) + TOUCH_D,
        r"no wgmma.wait_group 2 or less",
    ),
    "another shape on the same accumulators": (
        BEGIN + product(16, names("a", 4), DESC, d=names("d", 4) + names("e", 4)),
        r"%d0 is an accumulator.*another shape",
    ),
    "another order of the accumulators": (
        BEGIN + product(8, names("a", 4), DESC, d=names("d", 4)[::-1]),
        r"another shape or order",
    ),
    "an accumulator as A": (
        BEGIN + product(8, names("d", 4), DESC, d=names("e", 4)),
        r"%d0 is an accumulator of",
    ),
    "A as an accumulator": (
        BEGIN + product(8, names("b", 4), DESC, d=names("a", 4)),
        r"%a0 is read by",
    ),
    "no fence before the first": (
        SET_UP + ONE,
        r"%d0 was written, or never fenced, since the last wgmma.fence",
    ),
    "no fence and nothing written": (
        SET_UP + product(8, DESC, DESC, d=names("f", 4)),
        r"%f0 was written, or never fenced",
    ),
    "A written after the fence": (SET_UP + FENCE + TOUCH_A + ONE, r"%a2 was written"),
    "an accumulator written after the fence": (BEGIN + WAIT + TOUCH_D + ONE, r"%d1 was written"),
    "a copy of what was written after the fence": (
        SET_UP + FENCE + "mov.b32 %b0, 1; mov.b32 %a0, %b0;" + ONE,
        r"%a0 was written",
    ),
}


@pytest.mark.parametrize("name", HAZARDS)
@pytest.mark.parametrize("seed", [None, 5])
def test_registers_in_flight_are_guarded(name, seed):
    body, pattern = HAZARDS[name]
    body = body.replace(ONE, "\n" + ONE)
    refused(
        RegisterHazard,
        body,
        pattern.replace("LINE", str(line_of(body, "wgmma.mma_async"))),
        seed=seed,
    )


def test_products_of_several_accumulators_are_taken_by_one_wait():
    body = (
        SET_UP + "mov.b32 %a0, 0x3C003C00; mov.b32 %b0, 0x40004000; mov.u32 %r1, 0x3C003C00; @%q14"
        " st.shared.u32 [%r0], %r1; fence.proxy.async.shared::cta; bar.sync 0;"
    )
    body += (
        FENCE
        + ONE
        + OTHER
        + ONE
        + COMMIT
        + WAIT
        + "mad.wide.u32 %rd0, %t, 8, %p0; st.global.v2.f32 [%rd0], {%d0, %e0};"
    )
    out = np.zeros((128, 2), np.float32)
    launch(body, {"p": out}, block=128)
    assert (out == [16, 16]).all()


CHANGES = {
    "written": (
        "mov.u32 %r1, 1; @%q14 st.shared.u32 [%r0], %r1; fence.proxy.async.shared::cta; bar.sync 0;"
    ),
    "copied to, and waited for": (
        "setp.eq.u32 %q0, %t, 0; @%q0 cp.async.cg.shared.global [s], [%p0], 16; cp.async.wait_all;"
        " fence.proxy.async.shared::cta; bar.sync 0;"
    ),
    "copied to": "setp.eq.u32 %q0, %t, 0; @%q0 cp.async.cg.shared.global [s], [%p0], 16;",
}


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(
    "what",
    [ONE, product(8, DESC, wgmma.Descriptor(SHARED_BASE + 1536, 128, 128, 0).encode())],
    ids=["b", "a"],
)
def test_shared_memory_stays_as_it_is_until_the_wait(name, what, seed):
    body = (
        SET_UP.replace("s[512]", "s[2048]")
        + "add.u32 %r2, %r0, 512; st.shared.u32 [%r2], 0; add.u32 %r2, %r0, 1024; st.shared.u32"
        " [%r2], 0;"
    )
    body += (
        "add.u32 %r2, %r0, 1536; st.shared.u32 [%r2], 0; fence.proxy.async.shared::cta; bar.sync 0;"
        + FENCE
        + what
        + COMMIT
    )
    arrays = {"p": np.ones(512, np.float32)}
    with pytest.raises(
        PendingCopyRead,
        match=(
            "still in flight"
            if name == "copied to"
            else "row 0 of Descriptor.*changed between issue and wait"
        ),
    ):
        launch(body + CHANGES[name] + WAIT, arrays, block=128, seed=seed)
    launch(body + WAIT + CHANGES[name], arrays, block=128, seed=seed)


MEMORY = {
    "never written": (
        UninitializedRead,
        SET_UP.replace("s[512]", "s[4096]") + FENCE,
        wgmma.Descriptor(SHARED_BASE + 512, 128, 128, 0),
        "reads s.byte 512",
    ),
    "outside": (
        OutOfBounds,
        SET_UP + FENCE,
        wgmma.Descriptor(SHARED_BASE + 384, 128, 128, 0),
        "16 bytes at .*the shared memory has 512 bytes",
    ),
    "before": (
        OutOfBounds,
        SET_UP + FENCE,
        wgmma.Descriptor(0, 128, 128, 0),
        "the shared memory has 512 bytes",
    ),
    "no proxy fence": (
        ProxyHazard,
        SET_UP.replace("fence.proxy.async.shared::cta;", "") + FENCE,
        wgmma.Descriptor(SHARED_BASE, 128, 128, 0),
        "no fence.proxy.async since",
    ),
    "a copy in flight": (
        PendingCopyRead,
        SET_UP + FENCE + "setp.eq.u32 %q0, %t, 0; @%q0 cp.async.cg.shared.global [s], [%p0], 16;",
        wgmma.Descriptor(SHARED_BASE, 128, 128, 0),
        "asynchronous copy is still in flight",
    ),
}


@pytest.mark.parametrize("name", MEMORY)
def test_what_a_descriptor_names_must_be_readable(name):
    kind, before, descriptor, pattern = MEMORY[name]
    refused(kind, before + product(8, names("a", 4), descriptor.encode()), pattern)
    refused(kind, before + product(8, descriptor.encode(), DESC), pattern)


def test_descriptors_that_mean_nothing_are_refused():
    refused(
        MachineError,
        SET_UP + FENCE + product(8, names("a", 4), DESC | 1 << 15),
        "bits set that mean nothing",
    )
    refused(
        MachineError,
        SET_UP + FENCE + product(8, names("a", 4), DESC | 1 << 49),
        "base offset is not implemented",
    )


TOGETHER = "setp.lt.u32 %q0, %t, 64;\n"
COLLECTIVE = {
    "half a warp": (
        DivergentCollective,
        SET_UP + FENCE + "setp.lt.u32 %q0, %t, 16; @%q0 bra L;" + ONE + "L: mov.u32 %r5, 0;",
        "reached without|came alone",
    ),
    "guarded away": (
        DivergentCollective,
        SET_UP + FENCE + "setp.lt.u32 %q0, %t, 16;" + ONE.replace("wgmma.mma", "@%q0 wgmma.mma"),
        "needs all 32 lanes",
    ),
    "two warps do not come": (
        Deadlock,
        BEGIN + TOGETHER + "@%q0 bra L;" + WAIT + "L: mov.u32 %r5, 0;",
        r"warpgroup 0, which lacks warps 0, 1",
    ),
    "two warps issue less": (
        DivergentCollective,
        SET_UP + FENCE + TOGETHER + "@%q0 bra L;" + ONE + "L: " + COMMIT + WAIT,
        "wait for different wgmma",
    ),
    "waits at different places": (
        DivergentCollective,
        BEGIN + TOGETHER + "@%q0 bra L;" + WAIT + "bra E; L: " + WAIT + "E: mov.u32 %r5, 0;",
        "wait at different places",
    ),
    "descriptor by lane": (
        DivergentCollective,
        SET_UP + FENCE + "cvt.u64.u32 %rd40, %t;" + ONE.split(";", 1)[1],
        "b-desc differs between lanes",
    ),
    "scale-d by warp": (
        DivergentCollective,
        SET_UP + TOGETHER + "selp.u32 %adds, 1, 0, %q0;" + FENCE + ONE + COMMIT + WAIT,
        "descriptors or scale-d differ between warps",
    ),
    "half a warpgroup": (Deadlock, BEGIN + WAIT, r"warpgroup 1, which lacks warps 6, 7"),
}


@pytest.mark.parametrize("name", COLLECTIVE)
def test_a_warpgroup_acts_as_one(name):
    kind, body, pattern = COLLECTIVE[name]
    refused(kind, body, pattern, block=192 if name == "half a warpgroup" else 128)


@pytest.mark.parametrize(
    "wrong",
    [
        ONE.replace("m64n8k16", "m64n12k16"),
        ONE.replace("m64n8k16", "m64n8k8"),
        ONE.replace("f32.f16.f16", "f16.f16.f16"),
        ONE.replace("f16.f16", "f16.bf16"),
        ONE.replace(".sync", ""),
        ONE.replace("1, 1, 0", "2, 1, 0"),
        ONE.replace("1, 1, 0", "1, 1, 1"),
        "wgmma.fence.sync;",
        "@%q0 wgmma.commit_group.sync.aligned;",
        "@%q0 wgmma.wait_group.sync.aligned 0;",
        "wgmma.wait_group.sync.aligned -1;",
    ],
)
def test_what_is_not_implemented_is_refused_by_name(wrong):
    refused(UnknownInstruction, SET_UP + FENCE + wrong, "wgmma")


def test_register_counts_fit_the_shape():
    refused(
        MachineError,
        SET_UP + FENCE + ONE.replace("m64n8k16", "m64n16k16"),
        "needs 8 32-bit registers",
    )
    refused(
        MachineError, SET_UP + FENCE + ONE.replace("%a2, %a3", "%a2"), "needs 4 32-bit registers"
    )


def test_reads_of_shared_memory_are_shown_to_whoever_watches():
    seen = []
    run(
        BEGIN + WAIT,
        listener=Listener(
            access=lambda access: seen.append((access.kind, access.nbytes, access.address.tolist()))
        ),
    )
    assert (
        "wgmma",
        16,
        [SHARED_BASE + 16 * i + 128 * j for i in range(8) for j in range(2)],
    ) in seen
