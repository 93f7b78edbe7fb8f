"""Memory: widths, vectors, spaces, generic addresses, atomics; and every way to get an address
wrong."""

import numpy as np
import pytest

from numba_marlin.emulator import Machine, Misaligned, OutOfBounds, ReadOnlyWrite, UninitializedRead
from numba_marlin.emulator.state.global_memory import GlobalMemory
from numba_marlin.emulator.state.listener import Listener
from tests.emulator.ptx_cases import fails, frame, launch, words


def lane_address(register, parameter, bytes_a_lane):
    return f"mad.wide.u32 {register}, %t, {bytes_a_lane}, {parameter};"


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("space", ["global", "shared", "local"])
def test_load_and_store_every_width_and_vector(width, count, space):
    """Through the space and back, with its own copy in between."""
    size = width // 8 * count
    source = words(32 * count, f"u{width // 8}")
    target = np.zeros_like(source)
    registers = [
        f"{'%h' if width <= 16 else '%r' if width == 32 else '%rd'}{i}" for i in range(count)
    ]
    values = "{" + ", ".join(registers) + "}" if count > 1 else registers[0]
    kind = f"v{count}.b{width}" if count > 1 else f"b{width}"
    middle = {
        "global": "",
        "shared": (
            f"""mad.lo.u32 %r20, %t, {size}, sh; st.shared.{kind} [%r20], {values};
                      {"".join(f"mov.b{max(16, width)} {r}, 0;" for r in registers)}
                      ld.shared.{kind} {values}, [%r20];"""
        ),
        "local": (
            f"""st.local.{kind} [loc+{size}], {values}; mov.u64 %rd21, loc; ld.local.{kind}
            {values}, [%rd21+{size}];"""
        ),
    }[space]
    body = f"""
    .shared .align 32 .b8 sh[1024]; .local .align 32 .b8 loc[64];
    {lane_address("%rd20", "%p0", size)} ld.global.{kind} {values}, [%rd20];
    {middle}
    {lane_address("%rd20", "%p1", size)} st.global.{kind} [%rd20], {values};"""
    body = body.replace(
        f"mad.lo.u32 %r20, %t, {size}, sh;", f"mov.u32 %r21, sh; mad.lo.u32 %r20, %t, {size}, %r21;"
    )
    launch(body, {"source": source, "target": target})
    assert np.array_equal(source, target)


@pytest.mark.parametrize(
    "kind, dtype", [("u8", np.uint8), ("s8", np.int8), ("u16", np.uint16), ("s16", np.int16)]
)
def test_narrow_loads_extend_by_their_sign(kind, dtype):
    source = words(32, dtype)
    target = np.zeros(32, np.int32)
    body = f"""{lane_address("%rd0", "%p0", source.itemsize)} ld.global.{kind} %r0, [%rd0];
    {lane_address("%rd1", "%p1", 4)} st.global.u32 [%rd1], %r0;"""
    launch(body, {"source": source, "target": target})
    assert np.array_equal(target, source.astype(np.int32))


def test_qualifiers_and_cache_hints_change_nothing():
    source, target = words(128), np.zeros(128, np.uint32)
    body = f"""
    createpolicy.fractional.L2::evict_first.b64 %rd9, 1.0;
    {lane_address("%rd0", "%p0", 16)} {lane_address("%rd1", "%p1", 16)}
    prefetch.global.L2 [%rd0];
    ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {{%r0, %r1, %r2, %r3}}, [%rd0], %rd9;
    st.release.gpu.global.b32 [%rd1], %r0; st.volatile.global.b32 [%rd1+4], %r1;
    st.global.cs.b32 [%rd1+8], %r2; st.relaxed.sys.global.b32 [%rd1+12], %r3;
    ld.acquire.gpu.global.b32 %r5, [%rd1]; ld.volatile.global.b32 %r6, [%rd1]; fence.acq_rel.gpu;
    membar.gl;"""
    launch(body, {"source": source, "target": target})
    assert np.array_equal(source, target)


def test_generic_addresses_reach_every_space_in_one_instruction():
    """Lanes 0-9 load from global, 10-19 from shared and the others from local memory, with one
    ld."""
    source, target = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    body = f"""
    .shared .b32 sh[32]; .local .b32 loc[2];
    {lane_address("%rd0", "%p0", 4)} {lane_address("%rd9", "%p1", 4)}
    mov.u64 %rd1, sh; cvta.shared.u64 %rd1, %rd1; mad.wide.u32 %rd1, %t, 4, %rd1;
    mov.u64 %rd2, loc; cvta.local.u64 %rd2, %rd2;
    add.u32 %r0, %t, 100; st.u32 [%rd1], %r0; add.u32 %r0, %t, 200; st.u32 [%rd2], %r0;
    setp.lt.u32 %q0, %t, 10; setp.lt.u32 %q1, %t, 20;
    selp.b64 %rd3, %rd1, %rd2, %q1; selp.b64 %rd3, %rd0, %rd3, %q0;
    ld.u32 %r1, [%rd3]; st.u32 [%rd9], %r1;
    cvta.to.shared.u64 %rd4, %rd1; cvt.u32.u64 %r2, %rd4; ld.shared.u32 %r3, [%r2];
    sub.u32 %r3, %r3, 100;
    isspacep.shared %q2, %rd1; isspacep.shared %q3, %rd0; isspacep.global %q4, %rd0;
    @!%q2 trap; @%q3 trap; @!%q4 trap; setp.ne.u32 %q5, %r3, %t; @%q5 trap;"""
    launch(body, {"source": source, "target": target})
    lanes = np.arange(32)
    assert np.array_equal(
        target, np.where(lanes < 10, lanes, np.where(lanes < 20, lanes + 100, lanes + 200))
    )


def test_one_instruction_may_reach_several_buffers():
    a, b = np.zeros(16, np.uint32), np.zeros(16, np.uint32)
    body = """setp.lt.u32 %q0, %t, 16; and.b32 %r0, %t, 15; selp.b64 %rd0, %p0, %p1, %q0;
    mad.wide.u32 %rd0, %r0, 4, %rd0;
    st.global.u32 [%rd0], %t; ld.global.u32 %r1, [%rd0]; setp.ne.u32 %q1, %r1, %t; @%q1 trap;"""
    launch(body, {"a": a, "b": b})
    assert a.tolist() == list(range(16)) and b.tolist() == list(range(16, 32))


def test_module_variables_have_their_initial_values():
    out = np.zeros(4, np.uint32)
    before = """.global .align 4 .u32 table[4] = {1, 2, 0x30, -1};
    .const .align 4 .u32 fixed = 7;
    .global .u32 blank;"""
    body = """ld.global.v2.u32 {%r0, %r1}, [table]; ld.global.u32 %r2, [table+12];
    ld.const.u32 %r3, [fixed];
    mov.u64 %rd0, blank; ld.global.u32 %r4, [%rd0]; add.u32 %r3, %r3, %r4;
    st.global.v4.u32 [%p0], {%r0, %r1, %r2, %r3};"""
    launch(body, {"out": out}, before=before)
    assert out.tolist() == [1, 2, 0xFFFFFFFF, 7]


def test_parameters_of_every_width_and_by_value():
    text = frame("", 0).replace(
        "k()", "k(.param .u8 a, .param .s16 b, .param .f32 c, .param .align 8 .b8 d[16])"
    )
    text = text.replace(
        "ret;",
        """ld.param.u8 %r0, [a]; ld.param.s16 %r1, [b]; ld.param.f32 %f0, [c];
    ld.param.u64 %rd0, [d+8];
    st.global.u32 [%rd0], %r0; st.global.u32 [%rd0+4], %r1; st.global.f32 [%rd0+8], %f0;
    mov.u64 %rd1, d; ld.param.u64 %rd2, [%rd1]; st.global.u64 [%rd0+16], %rd2; ret;""",
    )
    machine = Machine(text)
    out = np.zeros(6, np.uint32)
    address = machine.memory.buffer(out).address
    machine.run(args=[200, -3, 1.5, np.array([77, address], np.uint64)])
    assert out.tolist() == [200, 0xFFFFFFFD, 0x3FC00000, 0, 77, 0]
    with pytest.raises(ValueError, match="takes 4 arguments, got 1"):
        machine.run(args=[1])
    with pytest.raises(ValueError, match="300 does not fit"):
        machine.run(args=[300, 0, 0, bytes(16)])


ATOMS = {
    "add.u32": lambda x: sum(x) & 0xFFFFFFFF,
    "min.u32": min,
    "max.u32": max,
    "or.b32": lambda x: int(np.bitwise_or.reduce(x)),
    "and.b32": lambda x: int(np.bitwise_and.reduce(x)),
    "xor.b32": lambda x: int(np.bitwise_xor.reduce(x)),
}


@pytest.mark.parametrize("name", ATOMS)
@pytest.mark.parametrize(
    "form", ["atom.global", "red.relaxed.gpu.global", "atom.acq_rel.gpu.global"]
)
def test_atomics_of_colliding_lanes_lose_nothing(name, form):
    values = words(64)
    cells = np.array([5, 9], np.uint32)
    expected = [
        ATOMS[name]([start, *values[i::2].tolist()]) for i, start in enumerate(cells.tolist())
    ]
    result = "%r1, " if form.startswith("atom") else ""
    body = f"""{lane_address("%rd0", "%p0", 4)} ld.global.u32 %r0, [%rd0]; and.b32 %r2, %t, 1;
    mad.wide.u32 %rd1, %r2, 4, %p1; {form}.{name} {result}[%rd1], %r0;"""
    launch(body, {"values": values, "cells": cells}, block=64)
    assert cells.tolist() == expected


def test_atomics_return_what_was_there_before_each_lane():
    cell, seen = np.zeros(1, np.uint32), np.zeros(32, np.uint32)
    body = (
        f"atom.global.add.u32 %r0, [%p0], 1; {lane_address('%rd0', '%p1', 4)} st.global.u32 [%rd0],"
        " %r0;"
    )
    launch(body, {"cell": cell, "seen": seen})
    assert sorted(seen.tolist()) == list(range(32)) and cell[0] == 32


def test_compare_and_swap_and_exchange():
    cells, seen = np.array([3, 4], np.uint32), np.zeros(2, np.uint32)
    body = f"""setp.ge.u32 %q0, %t, 2; @%q0 ret; {lane_address("%rd0", "%p0", 4)}
    {lane_address("%rd1", "%p1", 4)}
    atom.global.cas.b32 %r0, [%rd0], 3, 99; st.global.u32 [%rd1], %r0; setp.eq.u32 %q1, %t, 1;
    @%q1 atom.global.exch.b32 %r1, [%rd0], 50;"""
    launch(body, {"cells": cells, "seen": seen})
    assert seen.tolist() == [3, 4] and cells.tolist() == [99, 50]


def test_shared_atomics_and_float_add():
    out = np.zeros(2, np.float32)
    body = """.shared .f32 sum; setp.eq.u32 %q0, %t, 0; @%q0 st.shared.f32 [sum], 0f00000000;
    bar.sync 0;
    atom.shared.add.f32 %f0, [sum], 0f3FC00000; red.global.add.f32 [%p0+4], 0f40000000;
    bar.sync 0; ld.shared.f32 %f1, [sum]; st.global.f32 [%p0], %f1;"""
    launch(body, {"out": out}, block=64)
    assert out.tolist() == [96.0, 128.0]


def test_out_of_bounds_names_array_index_and_place():
    body = """mov.u32 %r0, %ctaid.x; mad.lo.u32 %r1, %r0, 64, %t;
    mad.wide.u32 %rd0, %r1, 4, %p0;
    st.global.u32 [%rd0], %t; // BAD
    """
    error = fails(OutOfBounds, body, {"weights": np.zeros(100, np.uint32)}, grid=2, block=64)
    assert error.block == (1, 0, 0) and error.warp == 1 and error.lanes == tuple(range(4, 32))
    assert (
        "weights[100]" in str(error) and "uint32 100" in str(error) and "lanes 4-31" in str(error)
    )


def test_an_access_may_not_straddle_the_end_of_a_buffer():
    error = fails(OutOfBounds, "ld.global.u64 %rd0, [%p0+8]; // BAD", {"x": np.zeros(3, np.uint32)})
    assert "8 bytes at x[2]" in str(error)


def test_an_access_may_not_straddle_the_end_of_shared_memory():
    error = fails(OutOfBounds, ".shared .align 4 .b8 s[6];\n st.shared.u32 [s+4], %t; // BAD")
    assert "4 bytes at s[byte 4]" in str(error) and "has 6 bytes" in str(error)


def test_reading_before_a_buffer_or_at_zero_is_out_of_bounds():
    assert "x[-1]" in str(fails(OutOfBounds, "ld.global.u32 %r0, [%p0+-4]; // BAD"))
    assert "address 0x0" in str(
        fails(OutOfBounds, "mov.u64 %rd0, 0;\n ld.global.u32 %r0, [%rd0]; // BAD")
    )


def test_misaligned_names_the_address_and_the_rule():
    error = fails(Misaligned, "ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%p0+8]; // BAD")
    assert "must be a multiple of 16" in str(error) and "x[2]" in str(error)
    assert "multiple of 2" in str(
        fails(
            Misaligned, ".shared .b8 s[8];\n mov.u32 %r0, s;\n ld.shared.u16 %r1, [%r0+1]; // BAD"
        )
    )


def test_readonly_buffers_refuse_stores_and_atomics():
    for text in ("st.global.u32 [%p0+4], %t; // BAD", "red.global.add.u32 [%p0+4], 1; // BAD"):
        error = fails(ReadOnlyWrite, text, readonly=("x",))
        assert "x[1]" in str(error) and "read-only" in str(error)
    frozen = np.zeros(4, np.uint32)
    frozen.setflags(write=False)
    fails(ReadOnlyWrite, "st.global.u32 [%p0], %t; // BAD", {"frozen": frozen})


def test_constants_cannot_be_written():
    fails(
        ReadOnlyWrite,
        "mov.u64 %rd0, fixed;\n st.global.u32 [%rd0], 1; // BAD",
        before=".const .u32 fixed = 7;",
    )


def test_shared_memory_is_bounded_by_what_the_launch_asked_for():
    body = "mov.u32 %r0, dyn; mad.lo.u32 %r1, %t, 4, %r0;\n st.shared.u32 [%r1], %t; // BAD"
    before = ".extern .shared .align 16 .b8 dyn[];"
    error = fails(OutOfBounds, body, before=before, shared_bytes=64)
    assert error.lanes == tuple(range(16, 32)) and "the shared memory has 64 bytes" in str(error)
    launch(body, {"x": np.zeros(1)}, before=before, shared_bytes=128)


def test_static_shared_variables_do_not_overlap_and_dynamic_memory_follows():
    out = np.zeros(3, np.uint32)
    body = """.shared .align 4 .b8 a[6]; .shared .align 16 .b8 b[16];
    mov.u32 %r0, a; mov.u32 %r1, b; mov.u32 %r2, dyn; st.global.u32 [%p0], %r0;
    st.global.u32 [%p0+4], %r1; st.global.u32 [%p0+8], %r2;"""
    result = launch(
        body, {"out": out}, before=".extern .shared .align 128 .b8 dyn[];", shared_bytes=256
    )
    a, b, dynamic = out.tolist()
    assert b >= a + 6 and b % 16 == 0 and dynamic >= b + 16 and dynamic % 128 == 0
    assert result.shared_bytes == dynamic + 256 - a


def test_uninitialised_shared_and_local_memory():
    body = (
        ".shared .b32 s[32];\n mov.u32 %r0, s; mad.lo.u32 %r0, %t, 4, %r0; setp.ne.u32 %q0, %t, 5;"
        " @%q0 st.shared.u32 [%r0], %t;\n ld.shared.u32 %r1, [%r0]; // BAD"
    )
    error = fails(UninitializedRead, body)
    assert (
        error.lanes == (5,) and "s[byte 20]" in str(error) and "nothing has written" in str(error)
    )
    error = fails(
        UninitializedRead,
        ".local .b32 depot[4];\n st.local.u16 [depot+8], 1;\n ld.local.u32 %r1, [depot+8]; // BAD",
    )
    assert "depot[byte 10]" in str(error)


def test_a_new_block_in_the_same_place_finds_uninitialised_memory():
    body = (
        ".shared .b32 s;\n mov.u32 %r0, %ctaid.x; setp.eq.u32 %q0, %r0, 0; @%q0 st.shared.u32 [s],"
        " 1;\n ld.shared.u32 %r1, [s]; // BAD"
    )
    assert fails(UninitializedRead, body, grid=2, resident_blocks=1).block == (1, 0, 0)


def test_blocks_have_shared_memory_and_threads_local_memory_of_their_own():
    out = np.zeros(4 * 64, np.uint32)
    body = """.shared .b32 s[64]; .local .b32 l; mov.u32 %r9, %ctaid.x; mad.lo.u32 %r0, %r9, 64, %t;
    mov.u32 %r1, s; mad.lo.u32 %r1, %t, 4, %r1; st.shared.u32 [%r1], %r0; st.local.u32 [l], %r0;
    bar.sync 0;
    xor.b32 %r2, %t, 63; mov.u32 %r3, s; mad.lo.u32 %r3, %r2, 4, %r3; ld.shared.u32 %r4, [%r3];
    ld.local.u32 %r5, [l];
    sub.u32 %r6, %r4, %r5; mad.wide.u32 %rd0, %r0, 4, %p0; st.global.u32 [%rd0], %r6;"""
    launch(body, {"out": out}, grid=4, block=64)
    thread = np.arange(256) % 64
    assert np.array_equal(out.view(np.int32), (63 - thread) - thread)


def test_buffers_must_be_contiguous_arrays():
    machine = Machine(frame("", 1))
    with pytest.raises(ValueError, match="C-contiguous"):
        machine.memory.buffer(np.zeros((4, 4)).T[1:])
    with pytest.raises(TypeError, match="numpy.ndarray"):
        machine.memory.buffer([1, 2])


def test_released_buffers_are_unmapped():
    machine = Machine(frame("ld.global.u32 %r0, [%p0];", 1))
    buffer = machine.memory.buffer(np.zeros(4, np.uint32))
    machine.run(args=[buffer.address])
    machine.memory.release(buffer)
    with pytest.raises(OutOfBounds):
        machine.run(args=[buffer.address])


def test_watch_sees_every_access():
    seen = []
    x = np.zeros(64, np.uint32)
    body = (
        ".shared .b32 s[64]; mov.u32 %r0, s; mad.lo.u32 %r0, %t, 4, %r0; st.shared.u32 [%r0], %t;"
        " ld.global.u32 %r1, [%p0];"
    )
    launch(
        body,
        {"x": x},
        block=64,
        listener=Listener(
            access=lambda access: seen.append(
                (access.kind, access.space, access.nbytes, access.address.size)
            )
        ),
    )
    assert seen == [("store", "shared", 4, 64), ("load", "global", 4, 64)]


@pytest.mark.parametrize(
    "prepare, operation, kept",
    [
        ("", "red.global.add.f32 [%rd0], %f0;", False),
        ("", "red.add.f32 [%rd0], %f0;", False),
        (
            (
                ".shared .align 4 .b32 s[32]; mov.u32 %r1, s; mad.lo.u32 %r0, %t, 4, %r1;"
                " ld.global.f32 %f1, [%rd0]; st.shared.f32 [%r0], %f1;"
            ),
            "red.shared.add.f32 [%r0], %f0; ld.shared.f32 %f1, [%r0]; st.global.f32 [%rd0], %f1;",
            True,
        ),
    ],
    ids=["global", "generic", "shared"],
)
def test_float_atomics_flush_subnormals_in_global_memory_only(prepare, operation, kept):
    tiny, normal = np.float32(1e-40), np.float32(2.0**-126)
    memory = np.zeros(32, np.float32)
    added = np.zeros(32, np.float32)
    memory[:4], added[:4] = [tiny, 0, 1.5 * normal, 1], [0, tiny, -normal, 2]
    launch(
        "mad.wide.u32 %rd0, %t, 4, %p0; mad.wide.u32 %rd1, %t, 4, %p1; ld.global.f32 %f0, [%rd1];"
        f" {prepare} {operation}",
        {"memory": memory, "added": added},
    )
    assert memory[:4].tolist() == ([tiny, tiny, normal / 2, 3] if kept else [0, 0, 0, 3])


def test_modules_may_share_a_memory():
    """What one writes, the other reads; addresses are never given out twice."""
    memory = GlobalMemory()
    first, second = (Machine(frame(STEP, 1), memory=memory) for _ in range(2))
    buffer = memory.buffer(np.zeros(1, np.uint32), "x")
    for machine in (first, second, first):
        machine.run("k", block=1, args=[buffer.address])
    assert buffer.array[0] == 3
    place = memory.reserve(100, 1 << 16)
    assert place % (1 << 16) == 0 and memory.reserve(1) >= place + 100


STEP = "ld.global.u32 %r1, [%p0];\nadd.u32 %r1, %r1, 1;\nst.global.u32 [%p0], %r1;"
