"""Contract under test: memory of a thread's stack."""

import numpy as np
import pytest

from numba_marlin.emulator import OutOfBounds, UninitializedRead, UnknownInstruction
from tests.emulator.ptx_cases import fails, launch


def test_threads_take_what_they_need_and_give_it_back():
    """Lane i takes 8 * (i + 1) bytes, fills them, and takes as many again after a restore."""
    out = np.zeros((32, 4), np.uint64)
    body = """.local .align 8 .b8 fixed[24]; add.u32 %r0, %t, 1; mul.wide.u32 %rd0, %r0, 8;
    mov.u64 %rd9, fixed; stacksave.u64 %rd1; alloca.u64 %rd2, %rd0; alloca.u64 %rd3, 40, 64;
    cvt.u64.u32 %rd4, %t; st.local.u64 [%rd2], %rd4; st.local.u64 [%rd3+32], %rd4;
    st.local.u64 [%rd9+16], 99; cvta.local.u64 %rd5, %rd2; ld.u64 %rd6, [%rd5];
    stackrestore.u64 %rd1; alloca.u64 %rd7, %rd0; sub.u64 %rd7, %rd7, %rd2;
    and.b64 %rd8, %rd3, 63; or.b64 %rd7, %rd7, %rd8; sub.u64 %rd1, %rd1, %rd2;
    ld.local.u64 %rd10, [%rd9+16];
    mad.wide.u32 %rd8, %t, 32, %p0; st.global.v2.u64 [%rd8], {%rd6, %rd7};
    st.global.v2.u64 [%rd8+16], {%rd1, %rd10};"""
    launch(body, {"out": out})
    lane = np.arange(32)
    assert np.array_equal(out, np.stack([lane, 0 * lane, 8 * lane + 8, 0 * lane + 99], axis=1))


def test_a_new_block_has_a_stack_of_its_own():
    body = "alloca.u64 %rd0, 1000; st.local.u64 [%rd0], 1;"
    launch(body, {"x": np.zeros(1)}, grid=3, resident_blocks=1)
    fails(
        UninitializedRead,
        f"mov.u32 %r0, %ctaid.x; setp.eq.u32 %q0, %r0, 1; alloca.u64 %rd0, 1000;\n"
        f"@%q0 ld.local.u64 %rd1, [%rd0]; // BAD\n{body.split(';')[1]};",
        grid=2,
        resident_blocks=1,
    )


@pytest.mark.parametrize("size", ["1032", "-8", "0x100000000"])
def test_the_stack_has_an_end(size):
    error = fails(OutOfBounds, f"alloca.u64 %rd0, 16;\nalloca.u64 %rd0, {size}; // BAD")
    assert "1008 of the stack's 1024 are left" in str(error)


def test_only_what_was_saved_can_be_restored():
    fails(OutOfBounds, "stacksave.u64 %rd0; sub.u64 %rd0, %rd0, 8;\nstackrestore.u64 %rd0; // BAD")


def test_alignments_are_powers_of_two():
    with pytest.raises(UnknownInstruction, match="power of two"):
        launch("alloca.u64 %rd0, 16, 24;")
