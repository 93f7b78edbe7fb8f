"""Contract under test: the blocks of CUDA C++ that wait for the whole grid find its barrier, and
what they wrote before it is seen behind it; where not all blocks are on the machine at once there
is none, as in a launch that is not cooperative."""

import numpy as np
import pytest

from numba_marlin.emulator import Machine, Race, Schedule, Trap
from tests.emulator.nvrtc import ptx_of

BLOCKS, THREADS, ROWS = 3, 64, 4


def rows(ptx: str, **options) -> np.ndarray:
    machine, table = Machine(ptx, races=True), np.zeros((ROWS, BLOCKS * THREADS), np.int32)
    args = [machine.memory.buffer(table).address, ROWS]
    machine.run("rows", BLOCKS, THREADS, args=args, **options)
    return table


@pytest.mark.parametrize(
    "seed",
    [
        None,
        pytest.param(Schedule(3), marks=pytest.mark.thorough),
        pytest.param(Schedule(7, "slowest warp"), marks=pytest.mark.thorough),
    ],
)
def test_rows_of_a_grid_that_waits(seed):
    assert (rows(ptx_of("grid_barrier"), seed=seed) == np.arange(ROWS)[:, None]).all()


def test_without_its_release_the_barrier_is_a_race():
    with pytest.raises(Race):
        rows(ptx_of("grid_barrier").replace("atom.add.release.gpu", "atom.add.relaxed.gpu"))


def test_without_place_for_all_blocks_there_is_no_barrier():
    with pytest.raises(Trap):
        rows(ptx_of("grid_barrier"), resident_blocks=2)
