"""Contract under test: registers and shared memory of products in flight are guarded, a warpgroup
acts as one, and the error names the rule that was broken."""

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
)
from numba_marlin.emulator.state.memory import SHARED_BASE
from numba_marlin.layout import wgmma
from tests.emulator.ptx_cases import launch, snippet
from tests.emulator.wgmma_programs import (
    BEGIN,
    COMMIT,
    DESC,
    FENCE,
    ONE,
    OTHER,
    SET_UP,
    TOUCH_A,
    TOUCH_D,
    WAIT,
    WAIT_1,
    line_of,
    names,
    product,
    refused,
    run,
)

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


def test_a_transposed_operand_stays_as_it_is_too():
    begin = SET_UP + FENCE + ONE.replace("1, 1, 0", "1, 1, 1") + COMMIT
    refused(PendingCopyRead, begin + CHANGES["written"] + WAIT, "k 0 of Descriptor.*changed")
    run(begin + WAIT + CHANGES["written"])


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
