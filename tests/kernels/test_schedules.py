"""Contract under test: no kernel has a race, and every kernel gives the same bits, whatever order
warps, blocks and copies make progress in.

A failure says which Schedule it was, and that replays it. Three schedules or four per kernel,
which its variants share; with --thorough fifty; in the nightly profile a thousand for each (an
hour on one core): experiments/17_schedules runs them a hundred at a time, and keeps the result.
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from numba_marlin import testing
from numba_marlin.emulator import Deadlock, Schedule
from numba_marlin.kernels.registry import find_kernel, names
from numba_marlin.testing.trials import SMALLS
from tests.kernels.harness import cases

PARTS = 6  # of a kernel's schedules


def share(name):
    """Of a kernel's parts those that one of its trials has: the first what the others leave."""
    kernel, _, variant = name.partition(", ")
    trials = len(find_kernel(kernel).about.trials)
    others = PARTS // (trials + 1)
    return others if variant else PARTS - others * (trials - 1)


USUAL, THOROUGH = 2, 8  # parts a schedule, schedules a part
# kernels of which another configuration stands here
VARIANTS = (
    "decode, NVFP4",
    "wgmma, two parts",
    "wgmma, MXFP4",
    "block_scaled, one block",
    "wgmma_int8, two warpgroups, one scale per column",
    "wgmma_int8, two warpgroups in turns",
    "wgmma_int8, two parts",
    "wgmma_fp8, two parts",
    "wgmma_fp8, two warpgroups, one scale per column",
    "wgmma_fp8",
    "moe, rows of pairs",
    "moe, whole tiles",
    # whole kernels too, whose trials take long
    "moe",
    "moe_wgmma",
    "moe_wgmma_fp8",
    "moe_wgmma_int8",
    "moe_wgmma_int8, two warpgroups in turns",
    "moe_wgmma_fp8, two warpgroups in turns",
    "wgmma_int8",
    "decode_int8",
    "decode_fp8",
)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name", cases(((name,) for name in SMALLS), lambda name: name not in VARIANTS)
)
def test_no_schedule_finds_a_race_or_changes_a_bit(name, thorough, nightly):
    small = SMALLS[name]
    assert small.wrong(races=True) == 0  # the deterministic order
    count = nightly or (share(name) * THOROUGH if thorough else -(-share(name) // USUAL))

    @settings(
        max_examples=count,
        deadline=None,
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(testing.schedules(small.places))
    def holds(schedule):
        assert small.wrong(seed=schedule, races=True) == 0

    holds()


def test_every_kernel_is_tried_on_something():
    assert all(find_kernel(name).about.trials for name in names())
    assert sum(share(name) for name in SMALLS) == PARTS * len(names())


def test_blocks_that_wait_for_each_other_must_all_be_resident():
    """The faithful kernel's blocks wait for those below them in a slice; from the last block on,
    one place is enough, from the first it is not."""
    small = SMALLS["ampere"]
    assert small.kernel.waits and small.wrong(seed=Schedule(0, "reverse", resident_blocks=1)) == 0
    with pytest.raises(Deadlock, match="blocks have not started: all 1 places are taken"):
        small.wrong(seed=Schedule(1, "any", resident_blocks=1))


def test_only_that_kernel_waits():
    assert [
        name
        for name, small in SMALLS.items()
        if small.kernel.waits
        and small.kernel.workspace_bytes(small.config, *small.shape[:3], small.sms)
    ] == ["ampere", "ampere, whole slices"]
