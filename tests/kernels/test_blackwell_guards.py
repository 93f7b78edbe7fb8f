"""Contract under test: no guard of Blackwell's kernels is for show. Without one of them, or with
one that guards too little, the machine says what is wrong."""

import pytest

from numba_marlin.emulator import (
    BarrierMisuse,
    Deadlock,
    PendingCopyRead,
    ProxyHazard,
    Race,
    RegisterHazard,
    TensorMemoryHazard,
    TensorMemoryMisuse,
)
from numba_marlin.kernels.nvfp4.tcgen05.config import Tcgen05Config
from tests.kernels.blackwell import (
    BLOCK_MMA,
    TCGEN05,
    exact_operand,
    multiply,
)
from tests.kernels.broken import POLLS
from tests.kernels.edits import change

# for one block, which has two tiles of sums; six steps for four stages
THREE_TILES = (300, 128, 288)
FENCE_AFTER, FENCE_BEFORE = (
    r"tcgen05\.fence::after_thread_sync;",
    r"tcgen05\.fence::before_thread_sync;",
)
BROKEN = {
    "scales are not told to be there": (
        change(FENCE_AFTER, which=0),
        TensorMemoryHazard,
        "fence::after_thread_sync",
    ),
    "sums are not told to be there": (
        change(FENCE_AFTER, which=1),
        TensorMemoryHazard,
        "tcgen05.mma .* has written: no tcgen05.fence::after",
    ),
    "sums are given back untold": (
        change(FENCE_BEFORE),
        TensorMemoryHazard,
        "no tcgen05.fence::before_thread_sync",
    ),
    "nobody waits for loads": (
        change(r"tcgen05\.wait::ld[^;]*;", which=None),
        RegisterHazard,
        "no tcgen05.wait::ld",
    ),
    "a commit for the stage is gone": (
        change(r"tcgen05\.commit[^;]*;", which=0),
        Deadlock,
        "lacks 1 of 1 arrivals",
    ),
    "a commit for the sums is gone": (
        change(r"tcgen05\.commit[^;]*;", which=1),
        Deadlock,
        "lacks 1 of 1 arrivals",
    ),
    "the stage is given back by an arrival": (
        change(r"tcgen05\.commit\S+ (\[%\w+\]);", r"mbarrier.arrive.shared::cta.b64 _, \1;", 0),
        (PendingCopyRead, Race),
        "missing-commit-wait|overwrites .* may still be reading",
    ),
    "tensor memory stays taken": (
        change(r"tcgen05\.dealloc[^;]*;"),
        TensorMemoryMisuse,
        "no tcgen05.dealloc",
    ),
    "fewer columns than are used": (
        change(r"(tcgen05\.(?:de)?alloc\S+ \S+, )512;", r"\g<1>256;", None),
        TensorMemoryMisuse,
        "columns 256 to 259 .* not allocated",
    ),
    "results leave before they are visible": (
        change(r"fence\.proxy\.async[^;]*;"),
        ProxyHazard,
        "no fence.proxy.async",
    ),
    "results overwrite those on their way": (
        change(r"cp\.async\.bulk\.wait_group\.read[^;]*;", which=0),
        (PendingCopyRead, Race),
        "missing-read-wait|may still be reading",
    ),
    "barriers are not made visible": (
        change(r"fence\.mbarrier_init[^;]*;", which=None),
        ProxyHazard,
        "no fence.mbarrier_init",
    ),
    "the address is read before it is there": (
        change(r"bar\.sync[^;]*;"),
        (Race, BarrierMisuse),
        "",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_guard_less_is_noticed(name):
    """In the deterministic order, which is as late as the ISA allows; with races looked for."""
    edit, kind, pattern = BROKEN[name]
    with pytest.raises(kind, match=f"(?s){pattern}"):
        multiply_three_tiles(edit_ptx=edit)


def multiply_three_tiles(**options):
    m, n, k = THREE_TILES
    return multiply(
        TCGEN05,
        exact_operand(m, k, "nvfp4", 7),
        exact_operand(n, k, "nvfp4", 8),
        sms=1,
        races=True,
        **options,
    )


class OnePlaceForScales(Tcgen05Config):
    """All stages keep their scales in the same columns of tensor memory. (Compiled so, not edited:
    how a compiler puts a column's number together is its own affair.)"""

    @property
    def stage_columns(self):
        return 0


def test_stages_that_share_their_scales_are_noticed():
    with pytest.raises(TensorMemoryHazard, match="(?s)tcgen05.mma .* may still be reading"):
        multiply_three_tiles(config=OnePlaceForScales())


ALWAYS = (r"mbarrier\.try_wait\S+ complete, [^;]*;", "setp.eq.u32 complete, 0, 0;")
BROKEN_MMA = {
    "stages are filled without waiting": (change(*ALWAYS, which=0), Race, "missing-copy-wait"),
    "stages are read without waiting": (
        change(*ALWAYS, which=POLLS),
        PendingCopyRead,
        "still in flight",
    ),
    "a warp gives a stage back before all its lanes have read": (
        change(r"bar\.warp\.sync[^;]*;"),
        Race,
        "missing-barrier",
    ),
    "no warp gives a stage back": (
        change(r"mbarrier\.arrive\.shared[^;]*;"),
        Deadlock,
        "wait at mbarrier",
    ),
    "nobody says how many bytes come": (
        change(r"mbarrier\.arrive\.expect_tx[^;]*;"),
        Deadlock,
        "wait at mbarrier",
    ),
    "barriers are used before they are there": (
        change(r"bar\.sync[^;]*;"),
        (Race, BarrierMisuse),
        "",
    ),
    "barriers are not made visible": (
        change(r"fence\.mbarrier_init[^;]*;"),
        ProxyHazard,
        "no fence.mbarrier_init",
    ),
}


@pytest.mark.parametrize("name", BROKEN_MMA)
def test_a_guard_less_in_block_mma_is_noticed(name):
    edit, kind, pattern = BROKEN_MMA[name]
    with pytest.raises(kind, match=f"(?s){pattern}"):
        multiply(
            BLOCK_MMA,
            exact_operand(150, 800, "nvfp4", 7),
            exact_operand(24, 800, "nvfp4", 8),
            sms=1,
            edit_ptx=edit,
            races=True,
        )
