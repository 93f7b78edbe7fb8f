"""Contract under test: nobody reaches the shared memory of another block, or the local memory of
another thread, by an address below its own; on the machine they lie side by side."""

import pytest

from numba_marlin.emulator import OutOfBounds
from tests.emulator.ptx_cases import fails


@pytest.mark.parametrize(
    "reach",
    [
        "ld.shared.u32 %r1, [%r0]; // BAD",
        "st.shared.u32 [%r0], 1; // BAD",
        "atom.shared.add.u32 %r1, [%r0], 1; // BAD",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2]; // BAD",
        "cp.async.ca.shared.global [%r0], [%p0], 4; // BAD",
    ],
)
def test_an_access_below_a_blocks_shared_memory_does_not_reach_its_neighbours(reach):
    """Block 0 fills as much as the blocks are apart, and block 1 reaches for the last of it."""
    body = f""".shared .align 128 .b8 s[128];
    mov.u32 %r0, s; mad.lo.u32 %r1, %t, 4, %r0; st.shared.u32 [%r1], %t; bar.sync 0;
    sub.u32 %r2, %r0, 16; sub.u32 %r0, %r0, 4; mov.u32 %r3, %ctaid.x; setp.eq.u32 %q0, %r3, 0;
    @%q0 bra END;
    {reach}
    END:"""
    error = fails(OutOfBounds, body, grid=2)
    assert error.block == (1, 0, 0) and "the shared memory has 128 bytes" in str(error)


def test_an_access_below_a_threads_local_memory_does_not_reach_its_neighbours():
    body = """.local .align 128 .b8 l[128];
    st.local.u32 [l+124], %t; mov.u32 %r0, l; sub.u32 %r0, %r0, 4;
    setp.eq.u32 %q0, %t, 0; @%q0 bra END;
    ld.local.u32 %r1, [%r0]; // BAD
    END:"""
    error = fails(OutOfBounds, body)
    assert error.lanes == tuple(range(1, 32)) and "the local memory has 128 bytes" in str(error)
