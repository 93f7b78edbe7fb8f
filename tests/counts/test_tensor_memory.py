"""Contract under test: operands of tensor cores that are named by descriptors are counted, of
shared memory and of tensor memory."""

import pytest

from numba_marlin import counts
from numba_marlin.counts.instructions import operand_bytes_of
from numba_marlin.emulator import Machine
from numba_marlin.emulator.text.program import Instruction, Vector
from numba_marlin.testing.launches import launch_on
from tests.trace.block_runs import RUNS, prepared


def test_a_kernel_of_tcgen05_moves_what_its_tiles_hold():
    m, n, k = RUNS["tcgen05"]
    _, found = prepared("tcgen05")
    machine = Machine(found.compiled.ptx)
    _, counted = counts.count(machine, **launch_on(machine, found))
    assert (m, n, k) == (140, 136, 544) and found.config.tile_n == 128
    tiles, steps = 2 * 2, 3  # of 128 x 128, and of 256 along k
    codes, scales = 2 * 128 * 256 // 2, 2 * 128 * 256 // 16  # bytes of A and B for a step
    total = counted.total.tally
    assert total.flops == tiles * steps * 2 * 128 * 128 * 256
    assert total.operand_bytes == tiles * steps * (codes + scales)
    # every byte of scales lies in tensor memory once for each of four warps
    assert total.tensor_memory == {
        "scales": tiles * steps * 4 * scales,
        "loaded": tiles * 128 * 128 * 4,
    }


@pytest.mark.parametrize(
    "depth, types", [(16, "f32.f16.f16"), (32, "s32.u8.s8"), (8, "f32.tf32.tf32")]
)
@pytest.mark.parametrize("registers, left", [(0, 64 * 32), (4, 0)])
def test_wgmma_reads_b_and_perhaps_a_from_shared_memory(registers, left, depth, types):
    """Once for the four warps of a warpgroup."""
    a = Vector((None,) * registers) if registers else None
    name = "wgmma.mma_async"
    shape = ("sync", "aligned", f"m64n128k{depth}", *types.split("."))
    found = operand_bytes_of(Instruction(0, 1, "", name, name, shape, (None, a, None)))
    assert 4 * found == 128 * 32 + left
