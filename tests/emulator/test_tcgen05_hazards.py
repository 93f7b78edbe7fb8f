"""Contract under test: what the ISA lets nobody do to tensor memory, and to what a product reads,
while tcgen05 is at work is an error that names the rule."""

import numpy as np
import pytest

from numba_marlin.emulator import (
    BadDescriptor,
    PendingCopyRead,
    Race,
    RegisterHazard,
    TensorMemoryHazard,
)
from numba_marlin.layout.tcgen05 import InstructionDescriptor
from tests.emulator.ptx_cases import snippet
from tests.emulator.tcgen05_programs import (
    AFTER,
    AGAIN,
    BEFORE,
    COMMIT,
    END_ONE,
    ISSUE,
    NVFP4,
    ONLY_ONE,
    WAIT,
    C,
    broken,
    draw,
    reference,
    small,
)

HAZARDS = {
    "a load before the wait": (
        C.set_up() + ISSUE + "bar.sync 0;" + C.read_back(),
        "tcgen05.mma at PTX line .* may still be writing: nobody has waited for an mbarrier",
    ),
    "a load without the fence": (
        C.set_up() + ISSUE + C.read_back(WAIT, after=""),
        "tcgen05.mma at .* has written: no tcgen05.fence::after_thread_sync by this thread since",
    ),
    "a copy over scales in use": (
        C.set_up() + ONLY_ONE + C.copies() + C.products() + C.copies() + END_ONE,
        "tcgen05.mma at .* may still be reading",
    ),
    "a copy over a copy": (
        C.set_up() + ONLY_ONE + C.copies() + C.copies() + END_ONE,
        "tcgen05.cp at .* may still be writing",
    ),
    "another accumulator at the same place": (
        C.set_up()
        + ONLY_ONE
        + C.copies()
        + C.products()
        + C.product(0).replace(f"{C.idesc[0]:#x}", f"{InstructionDescriptor(16).encode(NVFP4):#x}")
        + END_ONE,
        "may still be writing",
    ),
    "a product over a load not waited for": (
        C.set_up() + ISSUE + C.read_back(WAIT).split(snippet("tcgen05_wait_ld"))[0] + AGAIN,
        r"tcgen05.ld at .* of warp 0 may still be reading: no tcgen05.wait::ld",
    ),
    "a product over a load not announced": (
        C.set_up() + ISSUE + C.read_back(WAIT) + AGAIN,
        "of warp 0 was reading: no tcgen05.fence::before_thread_sync by it since",
    ),
    "a product that does not look": (
        C.set_up() + ISSUE + C.read_back(WAIT) + BEFORE + AGAIN.replace(AFTER, ""),
        "of warp 0 was reading: no tcgen05.fence::after_thread_sync by this thread since",
    ),
    "columns given back in use": (
        C.set_up() + ISSUE + C.finish(),
        "tcgen05.mma at .* may still be writing|tcgen05.cp at",
    ),
    "a store not waited for": (
        C.set_up()
        + "shl.b32 %m, %w, 21; add.u32 %x5, %base, %m; mov.f32 %d9, 0f00000000;"
        + snippet("tcgen05_st_32x32b_f32", "%x5", ("%d9",) * 8, n=8)
        + C.read_back(),
        "tcgen05.st at .* of warp 0 may still be writing: no tcgen05.wait::st",
    ),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_tensor_memory_is_guarded(name):
    text, pattern = HAZARDS[name]
    broken(TensorMemoryHazard, text, pattern)


def test_registers_are_there_when_the_load_has_been_waited_for():
    text = C.set_up() + ISSUE + C.read_back(WAIT).replace(snippet("tcgen05_wait_ld"), "")
    assert "the tcgen05.ld at PTX line" in str(
        broken(RegisterHazard, text, "%d0 is filled by .*: no tcgen05.wait::ld by the warp since")
    )
    twice = C.read_back(WAIT).split(snippet("tcgen05_wait_ld"))[0]
    broken(
        RegisterHazard,
        C.set_up() + ISSUE + twice + twice.replace("WAIT", "MORE"),
        "%d0 is filled by",
    )


def test_a_second_product_after_all_fences_is_right():
    case = small()
    left, right = reference(NVFP4, *draw(NVFP4, 8, 1, seed=8))
    text = (
        case.set_up()
        + ISSUE
        + case.read_back(WAIT)
        + BEFORE
        + AGAIN
        + case.read_back()
        + case.finish()
    )
    assert np.array_equal(case.run(text), left @ right.T)


def test_scales_must_be_the_same_for_all_four_warps():
    """As if they had been stored for the lanes of one warp only, and others for another."""
    store = (
        "shl.b32 %m, %w, 21; add.u32 %x5, %base, %m; add.u32 %x5, %x5, 8; cvt.rn.f32.u32 %d9, %w;"
        " @!%first bra S1; mov.f32 %d9, 0f00000000;\nS1:\n"
    )
    store += (
        snippet("tcgen05_st_32x32b_f32", "%x5", ("%d9",) * 8, n=8)
        + snippet("tcgen05_wait_st")
        + BEFORE
        + "bar.sync 0;\n"
        + AFTER
    )
    broken(
        BadDescriptor,
        C.text().replace(ONLY_ONE + C.copies(), store + ONLY_ONE),
        "scales of A differ between the four times 32 lanes",
    )


def test_overwriting_operands_by_a_copy_is_told_at_once():
    load = (
        "mov.u32 %x7, s; "
        + snippet("mbarrier_arrive_expect_tx", "%bar", "16")
        + snippet("cp_async_bulk_g2s", "%x7", "%p0", "16", "%bar")
    )
    text = (
        C.text()
        .replace(snippet("mbarrier_init", "%bar", "1"), snippet("mbarrier_init", "%bar", "2"))
        .replace(COMMIT, COMMIT + load)
    )
    broken(
        PendingCopyRead,
        text,
        r"overwrites s.byte 0.*, which the tcgen05.mma at PTX line .* may still be reading",
    )


def test_a_race_with_an_operand_names_the_commit():
    """Read by a product, written by a thread that has not waited for its commit."""
    text = C.text().replace(
        END_ONE,
        END_ONE
        + "setp.eq.u32 %q1, %t, 32; @%q1 ld.shared.b32 %r1, [s]; @%q1 st.shared.b32 [s], %r1;\n",
        1,
    )
    assert (
        broken(Race, text, "is not ordered after a read of it.*tcgen05.mma", races=True).kind
        == "missing-commit-wait"
    )
