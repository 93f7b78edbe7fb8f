"""Contract under test: addresses of every state space, generic and not; what does not fit is said
with the instruction's line."""

from time import process_time

import numpy as np
import pytest

from numba_marlin.emulator import (
    Machine,
    Misaligned,
    OutOfBounds,
    PtxSyntaxError,
    ReadOnlyWrite,
    UninitializedRead,
    UnknownInstruction,
)
from numba_marlin.emulator.checks import Checks
from numba_marlin.emulator.scheduling.provenance import Provenance
from tests.emulator.ptx_cases import HEADER, fails, frame, launch

SHARED = ".shared .align 16 .b8 s[64]; .global .align 16 .b8 g[64];"


@pytest.mark.parametrize("space", ["param", "param::entry"])
def test_generic_addresses_of_parameters(space):
    """As LLVM reads a by-value struct: mov, cvta.param, ld without a state space."""
    text = frame("", 0).replace("k()", "k(.param .u64 out, .param .align 16 .b8 d[32])")
    text = text.replace(
        "ret;",
        f"""ld.param.u64 %rd0, [out]; mov.b64 %rd1, d; cvta.{space}.u64 %rd2, %rd1;
    ld.v2.u64 {{%rd3, %rd4}}, [%rd2+16]; st.global.v2.u64 [%rd0], {{%rd3, %rd4}};
    cvta.to.param.u64 %rd5, %rd2; ld.param.u32 %r0, [%rd5+4]; st.global.u32 [%rd0+16], %r0;
    isspacep.{space} %q0, %rd2; isspacep.param %q1, %rd0; isspacep.global %q2, %rd0;
    selp.u32 %r1, 1, 0, %q0; selp.u32 %r2, 2, 0, %q1; selp.u32 %r3, 4, 0, %q2;
    or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3; st.global.u32 [%rd0+20], %r1; ret;""",
    )
    machine, out = Machine(text), np.zeros(6, np.uint32)
    buffer = machine.memory.buffer(out)
    machine.run(args=[buffer.address, np.arange(8, dtype=np.uint32)])
    assert out.tolist() == [4, 5, 6, 7, 1, 5]
    assert machine.memory.buffers == (buffer,)  # unmapped with the run


def test_parameters_cannot_be_written_through_generic_addresses():
    fails(ReadOnlyWrite, "mov.b64 %rd1, p0; cvta.param.u64 %rd2, %rd1;\nst.u64 [%rd2], 0; // BAD")


def test_generic_addresses_of_other_blocks():
    """mapa without a state space; getctarank tells whose an address is, generic or not."""
    out = np.zeros((4, 4), np.uint32)
    body = """mov.u32 %r0, %cluster_ctarank; add.u32 %r1, %r0, 1; and.b32 %r1, %r1, 3;
    st.shared.u32 [s], %r0; mov.u64 %rd0, s; cvta.shared.u64 %rd0, %rd0;
    barrier.cluster.arrive; barrier.cluster.wait;
    mapa.u64 %rd1, %rd0, %r1; ld.u32 %r2, [%rd1]; getctarank.u64 %r3, %rd1;
    getctarank.u64 %r4, %rd0; mov.u32 %r6, s; mapa.shared::cluster.u32 %r7, %r6, %r1;
    getctarank.shared::cluster.u32 %r5, %r7; mad.wide.u32 %rd2, %r0, 16, %p0;
    st.global.v4.u32 [%rd2], {%r2, %r3, %r4, %r5};
    barrier.cluster.arrive; barrier.cluster.wait;"""
    launch(body, {"out": out}, before=SHARED, grid=4, block=1, cluster=4)
    assert out.tolist() == [[(i + 1) % 4, (i + 1) % 4, i, (i + 1) % 4] for i in range(4)]


@pytest.mark.parametrize("statement", ["mov.u32 %r0, g;", "mov.u16 %h0, g;", "add.u32 %r0, g, 1;"])
def test_an_address_that_does_not_fit_is_named(statement):
    with pytest.raises(PtxSyntaxError, match="the address of g needs 64 bits") as caught:
        launch(statement, before=SHARED)
    assert caught.value.text == statement


def test_other_sizes_of_addresses_are_refused():
    with pytest.raises(
        UnknownInstruction, match="compile for 64(.|\n)*PTX line 3: .address_size 32"
    ):
        Machine(HEADER.replace("64\n", "32\n"))


@pytest.mark.parametrize("spaces", ["global.shared", "shared.shared", "shared", "global.global"])
def test_copies_go_from_global_to_shared_memory(spaces):
    with pytest.raises(UnknownInstruction, match="copies from global to shared memory"):
        launch(f"cp.async.ca.{spaces} [s], [g], 16;", before=SHARED)


@pytest.mark.parametrize(
    "prepare, address, said",
    [
        ("", "[s]", "that of s[byte 0]"),
        (".local .b8 l[64];", "[l]", "that of l[byte 0]"),
        ("mov.u64 %rd1, s; cvta.shared.u64 %rd0, %rd1;", "[%rd0]", "generic address of shared"),
    ],
)
@pytest.mark.parametrize("size", ["4", "4, 2"])
def test_a_copy_from_another_space_says_which(prepare, address, said, size):
    """At the copy, or where what it brings is waited for."""
    body = (
        f"{prepare}\ncp.async.ca.shared.global [s], {address}, {size}; // BAD\ncp.async.wait_all;"
    )
    assert said in str(fails(OutOfBounds, body, before=SHARED, block=1))


@pytest.mark.parametrize("space", ["", ".weak.shared::cta"])
def test_zeros_in_bulk(space):
    """Lane 0 fills 40 bytes, lane 1 the 16 behind; what nobody has written stays so."""
    out = np.ones(8, np.uint64)
    address = "%rd1" if space else "%rd2"
    body = f"""mov.u64 %rd1, s; setp.eq.u32 %q0, %t, 0; selp.u64 %rd3, 40, 16, %q0;
    @!%q0 add.u64 %rd1, %rd1, 40; cvta.shared.u64 %rd2, %rd1; st.bulk{space} [{address}], %rd3, 0;
    bar.sync 0; mov.u32 %r0, 0;
    L: mul.wide.u32 %rd4, %r0, 8; mov.u64 %rd5, s; add.u64 %rd5, %rd5, %rd4;
    ld.shared.u64 %rd6, [%rd5]; add.u64 %rd7, %p0, %rd4; st.global.u64 [%rd7], %rd6;
    add.u32 %r0, %r0, 1; setp.lt.u32 %q1, %r0, {{}}; @%q1 bra L;"""
    launch(body.format(7), {"out": out}, before=SHARED, block=2)
    assert out.tolist() == [0] * 7 + [1]
    with pytest.raises(UninitializedRead):
        launch(body.format(8), {"out": out}, before=SHARED, block=2)
    fails(Misaligned, "mov.u64 %rd1, s;\nst.bulk [%rd1], 12, 0; // BAD", before=SHARED)


def test_long_kernels_are_bound_in_a_time_that_grows_with_their_length():
    """Where addresses are made of several variables, and so are followed; it grew with the square:
    a kernel of 68,000 instructions took a minute."""

    def seconds(count: int) -> float:
        lines = "".join(f"add.u32 %r{2 + i % 50}, %r{1 + i % 50}, {i};\n" for i in range(count))
        text = frame(f".shared .b32 a[4], b[4]; mov.u32 %r1, a; {lines} ld.shared.b32 %r9, [b];")
        machine = Machine(text)
        kernel = machine.kernel()
        placed = {"shared": [(0, 16, "a"), (16, 16, "b")]}
        start = process_time()
        Provenance(kernel.instructions, placed, Checks())
        return process_time() - start

    assert seconds(40_000) < 25 * min(seconds(5_000) for _ in range(3))
