"""Contract under test: what CUDA C++ makes of cuda::barrier and cuda::memcpy_async (libcu++ has no
fence after mbarrier.init) is right as chips see it, with one warning, and stops where the ISA
does."""

import numpy as np
import pytest

from numba_marlin.emulator import Machine, ProxyHazard, Schedule
from tests.emulator.nvrtc import ptx_of

pytestmark = pytest.mark.thorough  # NVRTC takes ten seconds for <cuda/barrier>


@pytest.mark.parametrize("seed", [None, Schedule(1), Schedule(5, "lanes apart", "late")])
def test_a_tile_by_memcpy_async(seed):
    x, y = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    x.flags.writeable = False

    def run(checks):
        machine = Machine(ptx_of("tile_barrier", "sm_90"), races=True, checks=checks)
        args = [machine.memory.buffer(each).address for each in (x, y)]
        return machine.run("tile", 2, 128, args=args, seed=seed)

    warnings = run("hardware").warnings
    assert np.array_equal(y, (np.arange(256) ^ 1) + 1)
    assert [each.check for each in warnings] == ["mbarrier-init-fence"]
    with pytest.raises(ProxyHazard, match="no fence.mbarrier_init"):
        run("strict")
