"""Contract under test: every guard of a kernel has its mutants, each is the text with that one
thing changed, and names outlive whatever does not matter."""

import re

import pytest

from numba_marlin.emulator import Machine
from numba_marlin.mutation import rules
from numba_marlin.mutation.mutants import mutants, skeleton
from numba_marlin.mutation.program import Program
from tests.mutation.kernels import NEIGHBOUR, text

BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
# An instruction, and everything that may become of it.
CHANGES = {
    "bar.sync 0;": {"barrier/deleted": ""},
    "bar.sync %r1, %r2;": {"barrier/deleted": ""},
    "bar.warp.sync %r1;": {"barrier/deleted": ""},
    "barrier.cluster.arrive.release.aligned;": {
        "barrier/deleted": "",
        "order/release -> relaxed": "barrier.cluster.arrive.relaxed.aligned;",
    },
    "barrier.cluster.wait.aligned;": {"barrier/deleted": ""},
    "cp.async.wait_group 2;": {"wait/deleted": "", "count/one more": "cp.async.wait_group 3;"},
    "cp.async.wait_all;": {
        "wait/deleted": "",
        "count/all but the latest": "cp.async.wait_group 1;",
    },
    "cp.async.bulk.wait_group 0;": {
        "wait/deleted": "",
        "count/one more": "cp.async.bulk.wait_group 1;",
        "wait/sources only": "cp.async.bulk.wait_group.read 0;",
    },
    "cp.async.bulk.wait_group.read 0;": {
        "wait/deleted": "",
        "count/one more": "cp.async.bulk.wait_group.read 1;",
    },
    "wgmma.wait_group.sync.aligned 1;": {
        "wait/deleted": "",
        "count/one more": "wgmma.wait_group.sync.aligned 2;",
    },
    "griddepcontrol.wait;": {"wait/deleted": ""},
    "griddepcontrol.launch_dependents;": {"arrival/deleted": ""},
    "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2;": {
        "wait/always succeeds": "setp.eq.u32 %p1, 0, 0;",
        "phase/parity 0": "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;",
        "phase/parity 1": "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 1;",
    },
    "fence.mbarrier_init.release.cluster;": {"fence/deleted": ""},
    "fence.proxy.async.shared::cta;": {"fence/deleted": ""},
    "fence.acq_rel.gpu;": {"fence/deleted": "", "scope/gpu -> cta": "fence.acq_rel.cta;"},
    "membar.gl;": {"fence/deleted": ""},
    "wgmma.fence.sync.aligned;": {"fence/deleted": ""},
    "cp.async.commit_group;": {"commit/deleted": ""},
    "cp.async.bulk.commit_group;": {"commit/deleted": ""},
    "wgmma.commit_group.sync.aligned;": {"commit/deleted": ""},
    "tcgen05.wait::ld.sync.aligned;": {"wait/deleted": ""},
    "tcgen05.fence::before_thread_sync;": {"fence/deleted": ""},
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];": {
        "commit/deleted": "",
        "commit/an arrival at once": (
            "{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%r1]; }"
        ),
    },
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 512;": {
        "arrival/deleted": "",
        "size/half the columns": (
            "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 256;"
        ),
    },
    "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;": {"arrival/deleted": ""},
    "mbarrier.init.shared::cta.b64 [%r1], %r2;": {
        "arrival/deleted": "",
        "count/one arrival more": (
            "{ .reg .b32 other; add.u32 other, %r2, 1; mbarrier.init.shared::cta.b64 [%r1],"
            " other; }"
        ),
        "count/one arrival fewer": (
            "{ .reg .b32 other; sub.u32 other, %r2, 1; mbarrier.init.shared::cta.b64 [%r1],"
            " other; }"
        ),
    },
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r2;": {
        "arrival/deleted": "",
        "arrival/expects no bytes": "mbarrier.arrive.shared::cta.b64 _, [%r1];",
    },
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];": {
        "arrival/deleted": "",
        "order/release -> relaxed": "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r1];",
        "scope/cluster -> cta": "mbarrier.arrive.release.cta.shared::cluster.b64 _, [%r1];",
    },
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];": {"arrival/deleted": ""},
    "red.release.gpu.global.add.u32 [%rd1], %r1;": {
        "arrival/deleted": "",
        "order/release -> relaxed": "red.relaxed.gpu.global.add.u32 [%rd1], %r1;",
        "scope/gpu -> cta": "red.release.cta.global.add.u32 [%rd1], %r1;",
    },
    "ld.acquire.gpu.global.b32 %r1, [%rd1];": {
        "order/acquire -> relaxed": "ld.relaxed.gpu.global.b32 %r1, [%rd1];",
        "scope/gpu -> cta": "ld.acquire.cta.global.b32 %r1, [%rd1];",
    },
    "atom.acq_rel.gpu.global.add.u32 %r1, [%rd1], %r2;": {
        **{
            f"order/acq_rel -> {word}": f"atom.{word}.gpu.global.add.u32 %r1, [%rd1], %r2;"
            for word in ("relaxed", "acquire", "release")
        },
        "scope/gpu -> cta": "atom.acq_rel.cta.global.add.u32 %r1, [%rd1], %r2;",
    },
    "cp.async.cg.shared.global.L2::cache_hint [%r1], [%rd1], 16, %r2, %rd2;": {
        "size/no zero-fill": (
            "cp.async.cg.shared.global.L2::cache_hint [%r1], [%rd1], 16, 16, %rd2;"
        ),
        "size/all zero-fill": (
            "cp.async.cg.shared.global.L2::cache_hint [%r1], [%rd1], 16, 0, %rd2;"
        ),
    },
    "cp.async.cg.shared.global.L2::cache_hint [%r1], [%rd1], 16, %rd2;": {},
    "cp.async.ca.shared.global [%r1], [%rd1], 4, %r2;": {
        "size/no zero-fill": "cp.async.ca.shared.global [%r1], [%rd1], 4, 4;",
        "size/all zero-fill": "cp.async.ca.shared.global [%r1], [%rd1], 4, 0;",
    },
    f"{BULK} [%r1], [%rd1], %r2, [%r3];": {
        "size/16 bytes less": (
            f"{{ .reg .b32 shorter; sub.u32 shorter, %r2, 16; {BULK} [%r1], [%rd1],"
            " shorter, [%r3]; }"
        )
    },
    "@%p1 st.global.u32 [%rd1], %r1;": {
        "predicate/dropped": "st.global.u32 [%rd1], %r1;",
        "predicate/turned round": "@!%p1 st.global.u32 [%rd1], %r1;",
    },
    "@!%p1 ld.global.u32 %r1, [%rd1];": {
        "predicate/dropped": "ld.global.u32 %r1, [%rd1];",
        "predicate/turned round": "@%p1 ld.global.u32 %r1, [%rd1];",
    },
    "@%p1 bar.sync 0;": {
        "barrier/deleted": "",
        "predicate/dropped": "bar.sync 0;",
        "predicate/turned round": "@!%p1 bar.sync 0;",
    },
    "xor.b32 %r1, %r2, 128;": {"swizzle/no xor": "mov.b32 %r1, %r2;"},
    "add.u32 %r1, %r2, %r3;": {},
    "st.shared.u32 [%r1], %r2;": {},
}


@pytest.mark.parametrize("instruction", CHANGES)
def test_an_instruction_has_exactly_these_mutants_and_the_machine_reads_them(instruction):
    ptx = text(instruction)
    found = mutants(ptx)
    assert {f"{mutant.kind}/{mutant.change}": mutant.mutated for mutant in found} == CHANGES[
        instruction
    ]
    for mutant in found:
        assert mutant.kind in rules.KINDS and mutant.original == instruction
        assert mutant.apply(ptx) == ptx.replace(instruction, mutant.mutated or ";")
        machine = Machine(mutant.apply(ptx))
        try:  # bind everything: a modifier that the machine does not know would show now
            machine.run("k", block=128, args=[0, 0])
        except Exception as error:
            assert type(error).__name__ not in ("PtxSyntaxError", "UnknownInstruction"), error


def test_every_rule_has_an_example():
    opcodes = {
        re.sub(r"^@!?\S+ ", "", instruction).split()[0].rstrip(";") for instruction in CHANGES
    }
    unused = [
        pattern.pattern
        for pattern, _ in rules.RULES
        if not any(pattern.fullmatch(opcode) for opcode in opcodes)
    ]
    assert not unused


PHASES = text("""
mov.u32 %r1, 0;
mov.u32 %r2, tile;
mov.u32 %r9, 1;
mbarrier.init.shared::cta.b64 [%r2], %r9;
LOOP:
mbarrier.arrive.shared::cta.b64 _, [%r2];
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], %r1;
xor.b32 %r3, %r1, 1;
setp.eq.u32 %p2, %r3, 1;
selp.b32 %r1, %r3, %r1, %p2;
xor.b32 %r4, %r2, 64;
ld.shared.u32 %r5, [%r4];
@%p1 bra LOOP;
""")


def test_an_xor_on_the_way_to_a_parity_is_a_phase_and_others_are_swizzles():
    changed = {
        mutant.original: mutant.kind for mutant in mutants(PHASES) if mutant.change == "no xor"
    }
    assert changed == {"xor.b32 %r3, %r1, 1;": "phase", "xor.b32 %r4, %r2, 64;": "swizzle"}


DESCRIPTOR = text("""
mov.u32 %r1, tile;
cvt.u64.u32 %rd1, %r1;
or.b64 %rd2, %rd1, 4611686293305360384;
or.b64 %rd3, %rd1, 4611686293305360384;
{ .reg .pred adds; setp.ne.b32 adds, %r1, 0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, \
{%r2, %r3, %r4, %r5}, %rd2, adds, 1, 1, 0; }
""")


def test_only_a_matrix_descriptor_loses_its_swizzle():
    changed = {mutant.original: mutant.mutated for mutant in mutants(DESCRIPTOR)}
    assert changed == {
        "or.b64 %rd2, %rd1, 4611686293305360384;": (
            f"or.b64 %rd2, %rd1, {4611686293305360384 - 2**62};"
        )
    }


BRANCHES = text("""
setp.eq.u32 %p1, %r1, 0;
@%p1 bra ARITHMETIC;
add.u32 %r2, %r1, 1;
ARITHMETIC:
@!%p1 bra STORE_HERE;
bra.uni MEET;
STORE_HERE:
st.global.u32 [%rd1], %r1;
MEET:
@%p1 bra BOTH;
st.global.u32 [%rd1], %r1;
bra.uni END;
BOTH:
add.u32 %r2, %r1, 1;
END:
""")


def test_a_branch_has_mutants_if_its_sides_differ_in_what_they_access():
    changed = {f"{mutant.original} {mutant.change}": mutant.mutated for mutant in mutants(BRANCHES)}
    assert changed == {
        "@!%p1 bra STORE_HERE; never taken": "",
        "@!%p1 bra STORE_HERE; turned round": "@%p1 bra STORE_HERE;",
        "@%p1 bra BOTH; never taken": "",
        "@%p1 bra BOTH; turned round": "@!%p1 bra BOTH;",
    }


def test_names_are_unique_and_survive_other_registers_comments_and_arithmetic():
    names = [mutant.name for mutant in mutants(NEIGHBOUR)]
    assert len(set(names)) == len(names) == 7
    other = (
        NEIGHBOUR.replace("%r7", "%r17")
        .replace("add.u32", "// a comment\nadd.s32")
        .replace("shl.b32 %r3, %r1, 2", "mul.lo.u32 %r3, %r1, 4")
    )
    assert [mutant.name for mutant in mutants(other)] == names and skeleton(other) == skeleton(
        NEIGHBOUR
    )


def test_the_skeleton_sees_a_barrier_that_moves():
    moved = NEIGHBOUR.replace("bar.sync 0;\n", "").replace(
        "cp.async.commit_group;", "cp.async.commit_group;\nbar.sync 0;"
    )
    assert skeleton(moved) != skeleton(NEIGHBOUR)


def test_statements_that_share_a_line_are_found_apart():
    ptx = text("bar.sync 0; bar.sync 0; { bar.sync 0; }")
    assert [ptx[slice(*span)] for span in Program(ptx).spans] == ["bar.sync 0;"] * 3 + ["ret;"]
    assert len({span for span in Program(ptx).spans}) == 4


def test_a_text_with_two_entries_is_refused():
    with pytest.raises(ValueError, match="2 entries"):
        mutants(
            text("bar.sync 0;")
            + text("bar.sync 0;").split("address_size 64\n")[1].replace("entry k", "entry other")
        )
